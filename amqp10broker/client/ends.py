"""The two kinds of link end of a client connection, and the deliveries that arrive on one.

`core.ClientSession` passes the engine's events to an end; a driver polls its states (`attached`,
`in_flight`, `ready`, `drained`). Nothing here waits or does I/O. AMQP 1.0 part 2, sections 2.6.7 and
2.6.12; part 3, 3.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

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
from amqp10broker.protocols.amqp10.events import DeliveriesReceived, DeliveriesUpdated, LinkDetached
from amqp10broker.protocols.amqp10.link import LinkState, ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import Accepted, Attach, Flow, Modified, Rejected, Released
from amqp10broker.protocols.amqp10.session import Session
from amqp10broker.protocols.amqp10.settling import ACCEPTED, RELEASED, Outcome

_OUTCOMES: Final = (Accepted, Rejected, Released, Modified)
_SECTION: Final = b"\x00"


class SessionOwner(Protocol):
    engine: Session

    @property
    def failure(self) -> ClientError | None:
        """Why the session has ended, None while it has not."""

    def forget(self, link: SenderLink | ReceiverLink) -> None:
        """Stop passing events of this link to its end."""


class Delivery:
    """A message that arrived. Created once per message, so a plain slotted class."""

    __slots__ = ("delivery_id", "payload", "settled", "tag")

    def __init__(self, delivery_id: int, tag: bytes, payload: bytes, settled: bool) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.payload = payload
        self.settled = settled

    def message(self) -> Message:
        """Decode the message, anew at each call. Raises `DecodeError` if the payload is not a message."""
        return decode_message(self.payload)


class LinkEnd:
    """The base of both kinds of link end.

    Methods that send frames raise `ClientError` once the link, its session or its connection has ended.
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
        """Why the link cannot be used any more; None while it can, and after a local detach."""
        return self._failure or self._session.failure

    @property
    def detached(self) -> bool:
        """Whether the broker has answered a local detach, or no answer can come any more."""
        return self._end.state is LinkState.DETACHED or self.failure is not None

    def check(self) -> None:
        """Raise an error if the link has ended; a frame on such a link would end the whole session."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self._engine.ended:
            raise SessionEndedError("this program has ended the session: begin another one")
        if self._detached_here:
            raise LinkDetachedError(
                "this program has detached the link: attach another one", address=self.address
            )

    def detach(self) -> None:
        """Close the link; `detached` becomes true. Unsettled deliveries return to the queue."""
        self._detached_here = True
        if self._end.state in (LinkState.ATTACHED, LinkState.ATTACH_SENT) and self.failure is None:
            self._engine.links.detach(self._end)
            self.attached = False
        self._session.forget(self._end)

    def on_attached(self, attach: Attach) -> None:
        terminus = attach.source if isinstance(self._end, ReceiverLink) else attach.target
        # A null local terminus marks a refusal; the detach with its reason follows (2.6.3).
        self.attached = terminus is not None
        if self.attached and self.address is None:
            self.address = getattr(terminus, "address", None)

    def on_detached(self, event: LinkDetached) -> None:
        if event.fault is None:
            self._engine.links.detach(self._end, closed=event.closed)
        if event.fault is not None:
            words = f": {event.fault}"
            condition, description = event.fault.condition, event.fault.description
        else:
            words = said(event.error)
            condition = "" if event.error is None else str(event.error.condition)
            description = "" if event.error is None else event.error.description or ""
        shown_address = f"'{self.address}'" if self.address else "a terminus without address"
        kind, verb = (LinkDetachedError, "detached") if self.attached else (LinkRefusedError, "refused")
        what = "sender" if isinstance(self._end, SenderLink) else "receiver"
        self._failure = kind(
            f"the broker {verb} the {what} for {shown_address}{words}"
            if event.fault is None
            else f"the {what} for {shown_address} was closed by this client{words}",
            address=self.address,
            condition=condition or None,
            description=description,
        )
        self.attached = False


class SenderEnd(LinkEnd):
    """The sending end of a link.

    Messages are identified by keys, ascending numbers from 0. Pass a batch to `send`, wait until `in_flight`
    has fallen, then collect the outcomes with `take_outcomes`. `in_flight`: messages sent without an outcome
    so far; on a settled link, those not yet written.
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
        return self.link.settled

    @property
    def credit(self) -> int:
        return self.link.credit.link_credit

    def send(self, payloads: Sequence[bytes]) -> range:
        """Queue encoded messages; they are written as credit and window allow. Raises `MessageTooLargeError`
        if one is larger than the link's limit; none was queued, and `ValueError` if one is not an encoded
        message; none was queued.
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
        """Return and forget the outcomes of these messages, in order; None where none has arrived."""
        pop = self._outcomes.pop
        return [pop(key, None) for key in keys]

    def waiting(self, keys: range) -> bool:
        if self.settled:
            return self._written < keys.stop or self.link.partial is not None
        if self.in_flight == 0:
            return False
        outcomes = self._outcomes
        return len(outcomes) < len(keys) or not all(key in outcomes for key in keys)

    def abandon(self, keys: range) -> list[Outcome | None]:
        """Withdraw the messages that have not begun to be written, forget the others; return as
        `take_outcomes`.
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
        if self.settled:
            self._written += deliveries
            self.in_flight -= deliveries

    def on_updated(self, event: DeliveriesUpdated) -> None:
        state = event.state
        if not isinstance(state, _OUTCOMES):
            if not event.settled:
                return  # "received" reports how far a transfer has come; the outcome follows (3.4)
            # Settled without an outcome: the broker promised nothing, so the message does not count as
            # accepted.
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
    """The receiving end of a link.

    With a `credit_limit` the engine tops up the link's credit as `take` makes room; with 0 the program grants
    credit by hand. Either way `ready` never holds more messages than were granted.
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
        return self.link.credit.link_credit

    @property
    def available(self) -> int | None:
        """Messages that wait at the broker, as of its last flow; None if it has never reported that."""
        return self.link.peer_available

    def set_credit_limit(self, credit_limit: int) -> None:
        """Change the level to which credit is topped up; a rise is granted at once, a reduction takes effect
        gradually.
        """
        self._credit_limit = credit_limit
        self.link.credit.limit = credit_limit
        if credit_limit and self.attached:
            self._engine.inbound.top_up(self.link)

    def take(self, count: int) -> list[Delivery]:
        """Return up to `count` messages that have arrived, in order, and make room for as many."""
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
        """Set the number of messages that the broker may send from now on; replaces earlier grants. `drain`:
        credit that cannot be used at once is given back; `drained` becomes true. Raises `ValueError` if the
        credit is out of range.
        """
        check_integer("credit", credit, 0, UINT_MAX)
        self.check()
        self._engine.grant(self.link, credit, drain=drain)

    def begin_fetch(self, credit: int) -> None:
        """Grant a fixed credit, which is not topped up until `end_drain`."""
        self.link.credit.limit = 0
        self.grant(credit)

    def begin_drain(self) -> None:
        """Request the available messages within the remaining credit, and the return of the rest.

        No credit is topped up until `end_drain`. `drained` becomes true.
        """
        self.link.credit.limit = 0
        self.grant(self.credit, drain=True)

    @property
    def drained(self) -> bool:
        return self.link.credit.link_credit <= 0

    def end_drain(self) -> None:
        """Resume topping up to the credit limit."""
        self.link.drain = False
        self.set_credit_limit(self._credit_limit)

    def settle(self, deliveries: Sequence[Delivery], outcome: Outcome = ACCEPTED) -> None:
        """Send the outcome of messages to the broker. Messages that were sent settled are skipped. Raises
        `ValueError` if the outcome is not valid, or cannot be encoded.
        """
        self.check()
        check_outcome(outcome)
        ids = [delivery.delivery_id for delivery in deliveries if not delivery.settled]
        if ids:
            self._engine.settling.settle_received(ids, outcome)

    def on_received(self, event: DeliveriesReceived) -> None:
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
        """Credit and `available` have been updated by the engine already."""

    def on_detached(self, event: LinkDetached) -> None:
        """Unsettled deliveries that were not taken return to the queue with the link's end."""
        super().on_detached(event)
        self.ready = deque(delivery for delivery in self.ready if delivery.settled)
