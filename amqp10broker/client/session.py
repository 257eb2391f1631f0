"""One session of a client connection, with its link ends. Without I/O; driven by `core.ClientCore`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, assert_never

from amqp10broker.client.errors import (
    ClientError,
    LinkDetachedError,
    LinkRefusedError,
    MessageTooLargeError,
    SessionEndedError,
    facts_of,
    said,
)
from amqp10broker.client.message import Message, decode_message
from amqp10broker.client.options import UINT_MAX, ULONG_MAX, check_integer, check_outcome, check_text, fields
from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.errors import AmqpError, Condition
from amqp10broker.protocols.amqp10.link import (
    DeliveriesReceived,
    DeliveriesSent,
    DeliveriesSettled,
    DeliveriesUpdated,
    DeliveryBegun,
    DeliveryResumed,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    LinkFlowed,
    LinkState,
    MarkerReached,
    PumpEvent,
    ReceiverLink,
    SenderLink,
    SessionEnded,
    SessionEvent,
)
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Error,
    Flow,
    Modified,
    Rejected,
    Released,
    Role,
    SenderSettleMode,
    Source,
    Target,
    TerminusExpiryPolicy,
)
from amqp10broker.protocols.amqp10.session import Session, SessionState
from amqp10broker.protocols.amqp10.settling import ACCEPTED, RELEASED, Outcome
from amqp10broker.protocols.amqp10.types import Symbol

_OUTCOMES: Final = (Accepted, Rejected, Released, Modified)
_SECTION: Final = b"\x00"


@dataclass(eq=False, slots=True)
class Delivery:
    """A received message."""

    delivery_id: int
    tag: bytes
    payload: bytes
    settled: bool

    def message(self) -> Message:
        return decode_message(self.payload)


class LinkEnd:
    link: SenderLink | ReceiverLink

    def __init__(self, session: ClientSession, link: SenderLink | ReceiverLink, address: str | None) -> None:
        self.address = address
        self.attached = False
        self._session = session
        self._engine = session.engine
        self._failure: ClientError | None = None
        self._detached_here = False
        self.link = link

    @property
    def failure(self) -> ClientError | None:
        """Why the link cannot be used any more; None after a local detach."""
        return self._failure or self._session.failure

    @property
    def detached(self) -> bool:
        return self.link.state is LinkState.DETACHED or self.failure is not None

    @property
    def credit(self) -> int:
        return self.link.credit.link_credit

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self._engine.ended:
            raise SessionEndedError("this program has ended the session: begin another one")
        if self._detached_here:
            raise LinkDetachedError(
                "this program has detached the link: attach another one", address=self.address
            )

    def detach(self) -> None:
        self._detached_here = True
        if self.link.state in (LinkState.ATTACHED, LinkState.ATTACH_SENT) and self.failure is None:
            self._engine.links.detach(self.link)
            self.attached = False
        self._session.forget(self.link)

    def on_attached(self, attach: Attach) -> None:
        terminus = attach.source if isinstance(self.link, ReceiverLink) else attach.target
        # A null local terminus marks a refusal; the detach with its reason follows (2.6.3).
        self.attached = terminus is not None
        if self.attached and self.address is None:
            self.address = getattr(terminus, "address", None)

    def on_detached(self, event: LinkDetached) -> None:
        if event.fault is None:
            self._engine.links.detach(self.link, closed=event.closed)
        shown_address = f"'{self.address}'" if self.address else "a terminus without address"
        kind, verb = (LinkDetachedError, "detached") if self.attached else (LinkRefusedError, "refused")
        what = "sender" if isinstance(self.link, SenderLink) else "receiver"
        text = f"the broker {verb} the {what} for {shown_address}{said(event.error)}"
        facts = facts_of(event.error)
        if event.fault is not None:
            text = f"the {what} for {shown_address} was closed by this client: {event.fault}"
            facts = {"condition": event.fault.condition, "description": event.fault.description}
        self._failure = kind(text, address=self.address, **facts)
        self.attached = False


class SenderEnd(LinkEnd):
    """The sending end of a link. Pass a batch to `send`, wait until `in_flight` has fallen, then collect the
    outcomes with `take_outcomes`, by the keys of the messages. `in_flight`: messages without an outcome; on a
    settled link, those not yet written.
    """

    link: SenderLink

    def __init__(self, session: ClientSession, link: SenderLink, address: str | None) -> None:
        super().__init__(session, link, address)
        self.in_flight = 0
        self._next_key = 0
        self._written = 0
        self._outcomes: dict[int, Outcome] = {}
        self._abandoned: set[int] = set()

    @property
    def settled(self) -> bool:
        return self.link.settled

    def send(self, payloads: Sequence[bytes]) -> range:
        """Queue encoded messages, all or none. Raises `MessageTooLargeError` or `ValueError`."""
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
        """Return and forget the outcomes of these messages; None: none has arrived."""
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
            # Settled without an outcome, it does not count as accepted.
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
    """The receiving end of a link. With a `credit_limit` the engine tops up the link's credit as `take` makes
    room; with 0 the program grants credit by hand.
    """

    link: ReceiverLink

    def __init__(
        self, session: ClientSession, link: ReceiverLink, address: str | None, credit_limit: int
    ) -> None:
        super().__init__(session, link, address)
        self.ready: deque[Delivery] = deque()
        self._credit_limit = credit_limit

    @property
    def available(self) -> int | None:
        return self.link.peer_available

    def set_credit_limit(self, credit_limit: int) -> None:
        self._credit_limit = credit_limit
        self.link.credit.limit = credit_limit
        if credit_limit and self.attached:
            self._engine.inbound.top_up(self.link)

    def take(self, count: int) -> list[Delivery]:
        """Return up to `count` messages that have arrived, and make room for as many."""
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
        """Set the credit. `drain`: unusable credit is given back; `drained` becomes true."""
        check_integer("credit", credit, 0, UINT_MAX)
        self.check()
        self._engine.grant(self.link, credit, drain=drain)

    def begin_fetch(self, credit: int) -> None:
        """Grant a fixed credit, which is not topped up until `end_drain`."""
        self.link.credit.limit = 0
        self.grant(credit)

    def begin_drain(self) -> None:
        """Top up no credit until `end_drain`. `drained` becomes true."""
        self.link.credit.limit = 0
        self.grant(self.credit, drain=True)

    @property
    def drained(self) -> bool:
        return self.link.credit.link_credit <= 0

    def end_drain(self) -> None:
        self.link.drain = False
        self.set_credit_limit(self._credit_limit)

    def settle(self, deliveries: Sequence[Delivery], outcome: Outcome = ACCEPTED) -> None:
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
        """Handle a flow; the engine has updated credit and `available` already."""

    def on_detached(self, event: LinkDetached) -> None:
        super().on_detached(event)
        self.ready = deque(delivery for delivery in self.ready if delivery.settled)


_TEMPORARY_QUEUE: Final = Symbol("temporary-queue")
_LINK_NAME_ADDRESS_CHARS: Final = 60


class ClientSession:
    def __init__(
        self,
        engine: Session,
        connection_failure: Callable[[], ClientError | None],
        next_number: Callable[[], int],
    ) -> None:
        """Create the session. `connection_failure`: returns why the connection has ended, or None."""
        self.engine = engine
        self._connection_failure = connection_failure
        self._next_number = next_number
        self._failure: ClientError | None = None
        self._links_made = 0
        self._ends: dict[SenderLink | ReceiverLink, Any] = {}
        engine.begin()

    @property
    def failure(self) -> ClientError | None:
        """Why the session cannot be used any more; None after a local end."""
        return self._failure or self._connection_failure()

    @property
    def begun(self) -> bool:
        return self.engine.state is SessionState.MAPPED

    @property
    def ended(self) -> bool:
        """Whether the broker can send nothing more on it."""
        return self.engine.state is SessionState.UNMAPPED or self.failure is not None

    def end(self) -> None:
        if self.engine.state is SessionState.MAPPED and self.failure is None:
            self.engine.end()

    def sender(
        self,
        address: str | None,
        *,
        settled: bool = False,
        properties: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> SenderEnd:
        """Attach a link for sending; `SenderEnd.attached` becomes true, or `failure` is set. `address`: None:
        each message has its own in `to`. Raises `ValueError` if an argument fits no frame.
        """
        check_text("address", address)
        check_text("name", name)
        link = self.engine.links.attach(
            self._link_name(address, name),
            Role.SENDER,
            source=Source(),
            target=Target(address=address),
            snd_settle_mode=SenderSettleMode.SETTLED if settled else SenderSettleMode.UNSETTLED,
            properties=fields("properties", properties),
        )
        assert type(link) is SenderLink
        self._ends[link] = end = SenderEnd(self, link, address)
        return end

    def receiver(
        self,
        address: str | None,
        *,
        credit_limit: int = 0,
        settled: bool = False,
        max_message_size_bytes: int = 0,
        filters: Mapping[str, Any] | None = None,
        desired_capabilities: Sequence[str] = (),
        properties: Mapping[str, Any] | None = None,
        name: str | None = None,
        end_type: type[ReceiverEnd] = ReceiverEnd,
    ) -> ReceiverEnd:
        """Attach a link for receiving, as `sender`. `address`: None: a queue created for this link and
        deleted with it, with its name in `ReceiverEnd.address`. `credit_limit`: level to which credit is
        topped up; 0: `ReceiverEnd.grant` grants by hand. `max_message_size_bytes`: larger ones end the link;
        0 for no limit.
        """
        check_text("address", address)
        check_text("name", name)
        check_integer("credit", credit_limit, 0, UINT_MAX)
        check_integer("max_message_size_bytes", max_message_size_bytes, 0, ULONG_MAX)
        if address is None:
            source = Source(
                dynamic=True,
                expiry_policy=TerminusExpiryPolicy.LINK_DETACH,
                capabilities=(_TEMPORARY_QUEUE,),
            )
        else:
            source = Source(address=address, filter=fields("filters", filters))
        link = self.engine.links.attach(
            self._link_name(address, name),
            Role.RECEIVER,
            source=source,
            target=Target(),
            snd_settle_mode=SenderSettleMode.SETTLED if settled else SenderSettleMode.UNSETTLED,
            credit_limit=credit_limit,
            max_message_size=max_message_size_bytes,
            desired_capabilities=tuple(map(Symbol, desired_capabilities)) or None,
            properties=fields("properties", properties),
        )
        assert type(link) is ReceiverLink
        self._ends[link] = end = end_type(self, link, address, credit_limit)
        return end

    def forget(self, link: SenderLink | ReceiverLink) -> None:
        self._ends.pop(link, None)

    def _link_name(self, address: str | None, name: str | None) -> str:
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self.engine.ended:
            raise SessionEndedError("this program has ended the session: begin another one")
        if name is not None:
            return name
        self._links_made += 1
        shown = (address or "-")[:_LINK_NAME_ADDRESS_CHARS]
        return f"{shown}#{self.engine.channel}.{self._links_made}.{self._next_number()}"

    # --- input and output, for the core ------------------------------------------------------------

    def receive(self, items: list[object]) -> None:
        for event in self.engine.receive(items):
            self._on_event(event)

    def write(self, pieces: list[bytes | memoryview], budget_bytes: int) -> int:
        """Append pending output to `pieces`; return its bytes of transfers."""
        spent = 0
        events: list[PumpEvent] | None = None
        while events is None or events:
            written, events = self.engine.pump(budget_bytes - spent)
            spent += written
            for event in events:
                self._on_event(event)
        pieces.extend(self.engine.take_output())
        return spent

    def _on_event(self, event: SessionEvent | PumpEvent) -> None:
        match event:
            case DeliveriesReceived():
                if (end := self._ends.get(event.link)) is not None:
                    end.on_received(event)
            case DeliveriesUpdated():
                if (end := self._ends.get(event.link)) is not None:
                    end.on_updated(event)
            case DeliveriesSent():
                if (end := self._ends.get(event.link)) is not None:
                    end.on_sent(event.deliveries)
            case LinkAttached():
                if (end := self._ends.get(event.link)) is not None:
                    end.on_attached(event.attach)
            case LinkFlowed(link=ReceiverLink()):
                if (end := self._ends.get(event.link)) is not None:
                    end.on_flowed(event.flow)
            case LinkDetached():
                if (end := self._ends.pop(event.link, None)) is not None:
                    end.on_detached(event)
            case LinkAttaching():
                # A broker must not attach links to a client.
                self.engine.links.refuse(
                    event.link,
                    AmqpError(Condition.NOT_ALLOWED, "this client takes no links that the peer attaches"),
                )
            case DeliveryBegun() | DeliveryResumed():
                raise AssertionError("no link of a client's resumes, or looks ahead")
            case SessionEnded():
                if event.fault is None:
                    self.engine.end()
                    self._failure = ended(SessionEndedError, "the broker ended the session", event.error)
                else:
                    what = "the session was ended for a fault of the broker"
                    self._failure = ended(SessionEndedError, what, event.error)
            case LinkFlowed() | DeliveriesSettled() | MarkerReached():
                pass  # the engine has processed flows and the peer's settling already
            case _:
                assert_never(event)


def ended(kind: type[ClientError], what: str, error: Error | None) -> ClientError:
    return kind(f"{what}{said(error)}", **facts_of(error))
