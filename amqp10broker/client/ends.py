"""The two kinds of link end that a client holds, and what arrives on one. Pure.

An end is told of the engine's events by `core.ClientSession`; a program asks it for what it needs to
wait for (`attached`, `in_flight`, `ready`, `drained`). Nothing here waits.

Part 2, sections 2.6.7 (credit), 2.6.12 (settling) and part 3, section 3.4 (outcomes).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from amqp10broker.amqp10.disposition import ACCEPTED, RELEASED, Outcome
from amqp10broker.amqp10.events import DeliveriesReceived, DeliveriesUpdated, LinkDetached
from amqp10broker.amqp10.link import LinkState, ReceiverLink, SenderLink
from amqp10broker.amqp10.performatives import Accepted, Attach, Flow, Modified, Rejected, Released
from amqp10broker.amqp10.session import Session
from amqp10broker.client.checks import UINT_MAX, check_integer, check_outcome
from amqp10broker.client.errors import (
    ClientError,
    LinkDetachedError,
    LinkRefusedError,
    MessageTooLargeError,
    SessionEndedError,
    said,
)
from amqp10broker.client.message import Message, decode_message

_OUTCOMES: Final = (Accepted, Rejected, Released, Modified)
_SECTION: Final = b"\x00"


class SessionOwner(Protocol):
    """What an end asks of the session that it belongs to."""

    engine: Session

    @property
    def failure(self) -> ClientError | None:
        """Why the session is over, None while it is not."""

    def forget(self, link: SenderLink | ReceiverLink) -> None:
        """The end of this link is told nothing more."""


class Delivery:
    """A message that arrived. One per message, so a plain slotted class.

    Attributes:
        delivery_id: by which it is settled.
        tag: the sender's name for it.
        payload: the encoded message; `message` takes it apart.
        settled: the sender expects no outcome.
    """

    __slots__ = ("delivery_id", "payload", "settled", "tag")

    def __init__(self, delivery_id: int, tag: bytes, payload: bytes, settled: bool) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.payload = payload
        self.settled = settled

    def message(self) -> Message:
        """The message, decoded anew at each call.

        Raises:
            DecodeError: the sender's bytes are no message.
        """
        return decode_message(self.payload)


class LinkEnd:
    """What both kinds of end have.

    Attributes:
        link: the engine's end.
        address: as asked for; for a dynamic terminus the one that the broker chose, once attached.
        attached: the broker has attached its end, and not as a refusal.
    """

    def __init__(self, session: SessionOwner, link: SenderLink | ReceiverLink, address: str | None) -> None:
        self.address = address
        self.attached = False
        self._session = session
        self._engine = session.engine
        self._failure: ClientError | None = None
        self._detached_here = False
        self._end = link

    @property
    def failure(self) -> ClientError | None:
        """Why the link cannot be used any more; None while it can, and after our own detach."""
        return self._failure or self._session.failure

    @property
    def detached(self) -> bool:
        """Whether the broker has answered our detach, or nothing can answer it any more."""
        return self._end.state is LinkState.DETACHED or self.failure is not None

    def check(self) -> None:
        """Whether the link can still be used; a frame for one that is gone would end the whole session.

        Raises:
            ClientError: the link or what it stands on has ended, by the broker or by this program.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self._engine.ended:
            raise SessionEndedError("this program has ended the session: begin another one")
        if self._detached_here:
            raise LinkDetachedError(
                "this program has detached the link: attach another one", address=self.address
            )

    def detach(self) -> None:
        """Close the link; `detached` comes to hold. Unsettled deliveries go back to the queue."""
        self._detached_here = True
        if self._end.state in (LinkState.ATTACHED, LinkState.ATTACH_SENT) and self.failure is None:
            self._engine.links.detach(self._end)
            self.attached = False
        self._session.forget(self._end)

    def on_attached(self, attach: Attach) -> None:
        """The broker's attach arrived."""
        terminus = attach.source if isinstance(self._end, ReceiverLink) else attach.target
        # "the local terminus is null" marks a refusal; the detach that says why follows (2.6.3).
        self.attached = terminus is not None
        if self.attached and self.address is None:
            self.address = getattr(terminus, "address", None)

    def on_detached(self, event: LinkDetached) -> None:
        """The link has ended, by the broker or by a fault of its own."""
        if event.fault is None:
            self._engine.links.detach(self._end, closed=event.closed)
        if event.fault is not None:
            words = f": {event.fault}"
            condition, description = event.fault.condition, event.fault.description
        else:
            words = said(event.error)
            condition = "" if event.error is None else str(event.error.condition)
            description = "" if event.error is None else event.error.description or ""
        whom = f"'{self.address}'" if self.address else "a terminus without address"
        kind, verb = (LinkDetachedError, "detached") if self.attached else (LinkRefusedError, "refused")
        what = "sender" if isinstance(self._end, SenderLink) else "receiver"
        self._failure = kind(
            f"the broker {verb} the {what} for {whom}{words}"
            if event.fault is None
            else f"the {what} for {whom} was closed by this client{words}",
            address=self.address,
            condition=condition or None,
            description=description,
        )
        self.attached = False


class SenderEnd(LinkEnd):
    """The end from which a client's messages leave.

    Messages are known by keys, ascending numbers from 0. Hand a batch over with `send`, wait until
    `in_flight` has fallen, take the outcomes with `take_outcomes`.

    Attributes:
        in_flight: messages handed over whose outcome is not known; on a settled link, those that are
            not written.
    """

    def __init__(self, session: SessionOwner, link: SenderLink, address: str | None) -> None:
        super().__init__(session, link, address)
        self.link = link
        self.in_flight = 0
        self._next_key = 0
        self._written = 0
        self._outcomes: dict[int, Outcome] = {}
        self._abandoned: set[int] = set()

    @property
    def settled(self) -> bool:
        """Whether messages go out settled, and no outcome comes back."""
        return self.link.settled

    @property
    def credit(self) -> int:
        """Messages that the broker takes now."""
        return self.link.credit.link_credit

    def send(self, payloads: Sequence[bytes]) -> range:
        """Hand encoded messages over; they are written as credit and window allow.

        Args:
            payloads: encoded messages, in order.

        Returns:
            Their keys.

        Raises:
            ClientError: the link or what it stands on has ended.
            MessageTooLargeError: one is larger than the link takes; none was handed over.
            ValueError: one is no encoded message; none was handed over.
        """
        self.check()
        limit = self.link.peer_max_message_size
        if limit and payloads and (largest := max(map(len, payloads))) > limit:
            raise MessageTooLargeError(largest, limit)
        for payload in payloads:
            if payload[:1] != _SECTION:
                raise ValueError(
                    f"{payload[:20]!r} is no encoded message: make one with data_message or Message.encode"
                )
        keys = range(self._next_key, self._next_key + len(payloads))
        self._next_key = keys.stop
        self.in_flight += len(keys)
        self._engine.outbound.queue_deliveries(self.link, keys, [(b"", payload) for payload in payloads])
        return keys

    def take_outcomes(self, keys: Sequence[int]) -> list[Outcome | None]:
        """Outcomes of these messages, in order; None where none is known. They are forgotten here."""
        pop = self._outcomes.pop
        return [pop(key, None) for key in keys]

    def waiting(self, keys: range) -> bool:
        """Whether any of these messages has no outcome yet, or on a settled link is not written."""
        if self.settled:
            return self._written < keys.stop or self.link.partial is not None
        if self.in_flight == 0:
            return False
        outcomes = self._outcomes
        return len(outcomes) < len(keys) or not all(key in outcomes for key in keys)

    def abandon(self, keys: range) -> list[Outcome | None]:
        """Take back what has not begun, and forget the rest: the caller waits for these no longer.

        Returns:
            As `take_outcomes`.
        """
        outcomes = self.take_outcomes(keys)
        back = self.link.withdraw(0)
        others = [(key, parts) for key, parts in back if key not in keys]
        if others:
            self._engine.outbound.queue_deliveries(
                self.link, [key for key, _ in others], [parts for _, parts in others]
            )
        taken = {key for key, _ in back if key in keys}
        self.in_flight -= len(taken)
        if self.settled:
            self._written += len(taken)
        else:
            self._abandoned.update(
                key
                for key, outcome in zip(keys, outcomes, strict=True)
                if outcome is None and key not in taken
            )
        return outcomes

    def on_sent(self, deliveries: int) -> None:
        """So many were written, or begun."""
        if self.settled:
            self._written += deliveries
            self.in_flight -= deliveries

    def on_updated(self, event: DeliveriesUpdated) -> None:
        """The broker's disposition for some of them."""
        state = event.state
        if not isinstance(state, _OUTCOMES):
            if not event.settled:
                return  # "received" says how far a transfer has come; the outcome follows (3.4)
            # Settled without an outcome: nothing was promised, so nothing may be taken for accepted.
            state = RELEASED
        if not event.settled:
            self._engine.settling.settle_sent(event.delivery_ids, None)
        self.in_flight -= len(event.keys)
        if self._abandoned:
            keys = [key for key in event.keys if key not in self._abandoned]
            self._abandoned.difference_update(event.keys)
        else:
            keys = event.keys
        self._outcomes.update(dict.fromkeys(keys, state))


class ReceiverEnd(LinkEnd):
    """The end at which messages arrive for a client.

    With a `credit_limit` the engine keeps the link's credit topped up, as `take` makes room; with 0
    the program grants by hand. Either way no more wait in `ready` than were granted.

    Attributes:
        ready: what has arrived and was not taken.
    """

    def __init__(
        self, session: SessionOwner, link: ReceiverLink, address: str | None, credit_limit: int
    ) -> None:
        super().__init__(session, link, address)
        self.link = link
        self.ready: deque[Delivery] = deque()
        self._credit_limit = credit_limit

    @property
    def credit(self) -> int:
        """Messages that the broker may still send."""
        return self.link.credit.link_credit

    @property
    def available(self) -> int | None:
        """Messages that wait at the broker, as of its last flow; None if it never said."""
        return self.link.peer_available

    def set_credit_limit(self, credit_limit: int) -> None:
        """Change what the credit is topped up to; more is granted at once, less by and by."""
        self._credit_limit = credit_limit
        self.link.credit.limit = credit_limit
        if credit_limit and self.attached:
            self._engine.inbound.top_up(self.link)

    def take(self, count: int) -> list[Delivery]:
        """Up to `count` messages that have arrived, in order; makes room for as many."""
        ready = self.ready
        if count >= len(ready):
            taken = list(ready)
            ready.clear()
        else:
            popleft: Callable[[], Delivery] = ready.popleft
            taken = [popleft() for _ in range(count)]
        if taken:
            self._engine.inbound.finish(self.link, len(taken))
        return taken

    def grant(self, credit: int, *, drain: bool = False) -> None:
        """Let the broker send so many messages from now on; replaces what was granted before.

        Args:
            credit: messages.
            drain: what cannot be sent at once is given back; `drained` comes to hold.

        Raises:
            ClientError: the link or what it stands on has ended.
            ValueError: it is no credit.
        """
        check_integer("credit", credit, 0, UINT_MAX)
        self.check()
        self._engine.grant(self.link, credit, drain=drain)

    def begin_fetch(self, credit: int) -> None:
        """Grant so many, and no more until `end_drain`, whatever is taken meanwhile.

        Raises:
            ClientError: the link or what it stands on has ended.
        """
        self.link.credit.limit = 0
        self.grant(credit)

    def begin_drain(self) -> None:
        """Ask the broker to send what it has within the credit left, and to forfeit the rest.

        No credit is topped up until `end_drain`. `drained` comes to hold.

        Raises:
            ClientError: the link or what it stands on has ended.
        """
        self.link.credit.limit = 0
        self.grant(self.credit, drain=True)

    @property
    def drained(self) -> bool:
        """Whether no credit is left."""
        return self.link.credit.link_credit <= 0

    def end_drain(self) -> None:
        """The credit limit counts again."""
        self.link.drain = False
        self.set_credit_limit(self._credit_limit)

    def settle(self, deliveries: Sequence[Delivery], outcome: Outcome = ACCEPTED) -> None:
        """Tell the broker what became of messages. Those that were sent settled are left out.

        Raises:
            ClientError: the link or what it stands on has ended, and the messages are the queue's again.
            ValueError: that is no outcome, or none that can be sent.
        """
        self.check()
        check_outcome(outcome)
        ids = [delivery.delivery_id for delivery in deliveries if not delivery.settled]
        if ids:
            self._engine.settling.settle_received(ids, outcome)

    def on_received(self, event: DeliveriesReceived) -> None:
        """Messages arrived."""
        settled = event.settled
        self.ready.extend(
            [
                Delivery(delivery_id, tag, payload, settled)
                for delivery_id, tag, payload in zip(
                    event.delivery_ids, event.tags, event.payloads, strict=True
                )
            ]
        )

    def on_flowed(self, flow: Flow) -> None:
        """The broker told the link's state; credit and `available` have been taken over already."""

    def on_detached(self, event: LinkDetached) -> None:
        """The link has ended; what was neither taken nor sent settled is the queue's again."""
        super().on_detached(event)
        self.ready = deque(delivery for delivery in self.ready if delivery.settled)
