"""The owner of a link: the `Publisher`, the `Consumer` or one end of a pair of management links.

The engine reports events that name a link; the session looks up the link's owner here, once per event, and
calls it. An event is about a batch of deliveries. An owner may raise the error with which the link
(`AmqpLinkError`) or the session (`AmqpSessionError`) is to be ended.

The decisions of clients on deliveries, translated for queues (part 3, section 3.4).

The times of the last events of a link, from which its waits are derived, also if it was not observed
meanwhile.

Noted once per flow frame or batch, never per message. All times are of `Moment`, in ms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.credit import Grant, ReceiverCredit, SenderCredit
from amqp10broker.protocols.amqp10.delivery import PartialDelivery, Parts
from amqp10broker.protocols.amqp10.encoder import encode
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.link import DeliveriesReceived, DeliveriesUpdated, ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import Accepted, Flow, Modified, Rejected, Released
from amqp10broker.protocols.amqp10.settling import Outcome
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.queues.commands import DeliveryOutcome
from amqp10broker.sessions.counters import Moment


class LinkOwner(ABC):
    """The events of any link."""

    __slots__ = ()

    @abstractmethod
    def on_flow(self, flow: Flow) -> None:
        """Handle a flow; the engine has already applied its credit. Raises `AmqpLinkError`."""

    @abstractmethod
    def on_detached(self, unsent: Sequence[tuple[int, Parts]]) -> None:
        """Handle the end of the link; `unsent` has keys and messages that were not sent."""


class ReceiverOwner(LinkOwner):
    """The owner of a link on which the client sends."""

    __slots__ = ()

    @abstractmethod
    def on_deliveries(self, event: DeliveriesReceived) -> None:
        """Handle complete deliveries. Raises `AmqpLinkError`, `AmqpSessionError`, `AmqpConnectionError`."""


class SenderOwner(LinkOwner):
    """The owner of a link on which the client receives."""

    __slots__ = ()

    @abstractmethod
    def on_updated(self, event: DeliveriesUpdated) -> None:
        """Handle a disposition of unsettled deliveries. Raises `AmqpLinkError`, `AmqpSessionError`."""

    @abstractmethod
    def on_sent(self, deliveries: int) -> None:
        """Count deliveries that have been written, or begun."""

    @abstractmethod
    def act_on(self, marker: object) -> None:
        """Handle a marker that the owner has queued: everything before it has been written."""


class LinkOwners:
    """The owners of a session's links."""

    __slots__ = ("receivers", "senders")

    def __init__(self) -> None:
        self.receivers: dict[ReceiverLink, ReceiverOwner] = {}
        self.senders: dict[SenderLink, SenderOwner] = {}

    def find(self, link: SenderLink | ReceiverLink) -> LinkOwner | None:
        return self.senders.get(link) if isinstance(link, SenderLink) else self.receivers.get(link)

    def take(self, link: SenderLink | ReceiverLink) -> LinkOwner | None:
        if isinstance(link, SenderLink):
            return self.senders.pop(link, None)
        return self.receivers.pop(link, None)

    def clear(self) -> None:
        self.receivers.clear()
        self.senders.clear()


_TXN_ID: Final = Symbol("txn-id")


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision; `annotations` is an encoded map for the message-annotations, or empty."""

    delivery_outcome: DeliveryOutcome
    annotations: bytes = b""


def decide(state: Any, *, settled: bool, default: DeliveryOutcome) -> Decision | None:
    """Translate a client's disposition. `state`: of the delivery; None if the client did not set it. Returns
    None when the disposition contains no decision. Raises `AmqpLinkError` if annotations that clients may not
    set, and `AmqpSessionError` if the state is not one that a receiver may set.
    """
    if state is None:
        return Decision(default) if settled else None
    annotations = b""
    if isinstance(state, Modified) and state.message_annotations:
        if not all(isinstance(key, Symbol) and key.startswith("x-") for key in state.message_annotations):
            raise AmqpLinkError(
                Condition.INVALID_FIELD,
                "reserved_annotation_key: message-annotations of modified must have symbol keys that start "
                "with x-",
            )
        annotations = encode(state.message_annotations)
    delivery_outcome = to_outcome(state)
    if delivery_outcome is None:
        raise AmqpSessionError(
            Condition.INVALID_FIELD, f"Unrecognised state: {type(state).__name__.lower()} in DISPOSITION"
        )
    return Decision(delivery_outcome, annotations)


def transaction_named(flow: Flow) -> bytes | None:
    """Return the id of the transaction in which a client wants to acquire. Raises `AmqpLinkError`."""
    txn_id = None if flow.properties is None else flow.properties.get(_TXN_ID)
    if txn_id is not None and not isinstance(txn_id, bytes):
        text = f"property txn-id of a flow must be binary, and is {txn_id!r}"
        raise AmqpLinkError(Condition.INVALID_FIELD, text)
    return txn_id


def check_no_transaction(flow: Flow) -> None:
    """Raise `AmqpLinkError` for a flow with a transaction that is not supported (part 4, 4.4.3)."""
    if flow.properties and flow.properties.get(_TXN_ID) is not None:
        text = "flow names a transaction (txn-id): messages of this link cannot be acquired in one"
        raise AmqpLinkError(Condition.NOT_IMPLEMENTED, text)


def default_delivery_outcome(outcome: Any) -> DeliveryOutcome:
    """Return the decision on a delivery settled without an outcome (3.5.3): released by default."""
    return to_outcome(outcome) or DeliveryOutcome.REQUEUE


def to_outcome(state: Any) -> DeliveryOutcome | None:
    """Translate a delivery state; None when it is not an outcome."""
    match state:
        case Accepted():
            return DeliveryOutcome.ACCEPT
        case Rejected():
            # "delivery-count is incremented" (3.4.2): the consumer of the dead letter sees it.
            return DeliveryOutcome.DISCARD_FAILED
        case Released():
            return DeliveryOutcome.REQUEUE
        case Modified(undeliverable_here=True):
            # As RabbitMQ: the message is not offered to other consumers either, but dead-lettered.
            return DeliveryOutcome.DISCARD_FAILED if state.delivery_failed else DeliveryOutcome.DISCARD
        case Modified():
            return DeliveryOutcome.REQUEUE_FAILED if state.delivery_failed else DeliveryOutcome.REQUEUE
        case _:
            return None


@dataclass(eq=False, slots=True)
class Decisions:
    """The pending decisions of one consuming link.

    The client may not have settled, and waits until a quorum queue has made the decision durable. And it may
    decide on deliveries that the queue has taken back after a timeout: such decisions are ignored.
    """

    # Both are made on demand: few links ever have any, and empty ones take 800 bytes. In the order in
    # which the queue received them, which is that of its answers.
    _undurable: deque[tuple[Sequence[int], Outcome | None]] | None = None
    _expired: set[int] | None = None

    def wait(self, ids: Sequence[int], outcome: Outcome | None) -> None:
        """Add deliveries with a decision that the queue has to confirm."""
        if self._undurable is None:
            self._undurable = deque()
        self._undurable.append((ids, outcome))

    @property
    def undurable(self) -> int:
        """The number of answers of the queue that are still to come."""
        return len(self._undurable or ())

    def take_durable(self) -> tuple[Sequence[int], Outcome | None]:
        assert self._undurable is not None
        return self._undurable.popleft()

    def expire(self, ids: Iterable[int]) -> None:
        self._expired = (self._expired or set()) | set(ids)

    def without_expired(self, keys: list[int], ids: list[int]) -> tuple[list[int], list[int], list[int]]:
        """Separate expired deliveries from those on which the client decides.

        The key of a delivery that went back to the queue may be reused by another one. Returns keys and ids
        of those that still count, and ids of the others, which are removed here.
        """
        if not self._expired:
            return keys, ids, []
        valid = [(key, number) for key, number in zip(keys, ids, strict=True) if number not in self._expired]
        expired = [number for number in ids if number in self._expired]
        self._expired.difference_update(expired)
        return [key for key, _ in valid], [number for _, number in valid], expired


ANSWERS_OWED_MAX: Final = 256
"""The most unanswered flows with echo or drain per link or pair; further ones get no answer of their own."""

ACTIVE: Final = Symbol("rabbitmq:active")
"""Link state property that states whether a client is the single active consumer."""

Properties = dict[Symbol, bool]


@dataclass(eq=False, slots=True)
class FlowAnswers:
    """The pending answers of one link; `unasked` if a flow came since the last request to the queue."""

    tells_active: bool
    unasked: bool = False
    _active_told: bool | None = None
    _asked: int = 0
    _owed: int = 0

    def owe(self) -> None:
        self._owed = min(self._owed + 1, ANSWERS_OWED_MAX)

    def asked(self) -> None:
        """Note a request to the queue that covers all flows so far."""
        self.unasked = False
        self._asked += self._owed
        self._owed = 0

    def take(self) -> int:
        """Return how many flows are to be sent now that the queue has answered."""
        asked, self._asked = self._asked, 0
        return asked

    def take_drained(self) -> None:
        self._asked = max(0, self._asked - 1)

    def take_active(self, *, active: bool) -> Properties | None:
        """Return the properties that report the consumer's activity; None if the client already has them."""
        if active is self._active_told:
            return None
        self._active_told = active
        return {ACTIVE: active}


@dataclass(eq=False, slots=True)
class ConsumerTimes:
    """The times of a link on which a client receives. `granted_ms`: the last flow that left credit; None:
    there was none. `settled_ms`: the client's last decision on deliveries; None: there was none.
    `unsent_ms`: the first delivery that waits to be written; `request_ms`: the last request to the queue.
    The consumer sets these three.
    """

    _moment: Moment
    credit_ms: int = field(init=False)
    unsent_ms: int = field(init=False)
    request_ms: int = field(init=False)
    flow_ms: int | None = None
    granted_ms: int | None = None
    sent_ms: int | None = None
    settled_ms: int | None = None
    _has_credit: bool = False
    _last: Grant | None = None

    def __post_init__(self) -> None:
        self.credit_ms = self.unsent_ms = self.request_ms = self._moment.ms

    def on_flow(self, credit: SenderCredit) -> None:
        if credit.last is self._last:
            return
        self._last = credit.last
        self.flow_ms = self._moment.ms
        if credit.link_credit:
            self.granted_ms = self._moment.ms
        self.note(credit)

    def on_sent(self, credit: SenderCredit) -> None:
        self.sent_ms = self._moment.ms
        self.note(credit)

    def note(self, credit: SenderCredit) -> None:
        has_credit = credit.link_credit > 0
        if has_credit is not self._has_credit:
            self._has_credit = has_credit
            now_ms = self._moment.ms
            if has_credit:
                self._moment.measures.receiver_credit_zero.count(now_ms - self.credit_ms)
            self.credit_ms = now_ms

    @property
    def idle_ms(self) -> int:
        """The earliest time from which the client could have got the next delivery."""
        return self.credit_ms if self.sent_ms is None else max(self.credit_ms, self.sent_ms)


@dataclass(eq=False, slots=True)
class PublisherTimes:
    """The times of a link on which a client publishes."""

    _moment: Moment
    attached_ms: int = field(init=False)
    credit_ms: int = field(init=False)
    granted_ms: int = field(init=False)
    part_ms: int = field(init=False)
    received_ms: int | None = None
    outcome: Outcome | None = None
    outcome_ms: int | None = None
    _has_credit: bool = True
    _part: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.attached_ms = self.credit_ms = self.granted_ms = self.part_ms = self._moment.ms

    def received(self, credit: ReceiverCredit) -> None:
        self.received_ms = self._moment.ms
        self.note(credit)

    def note_part(self, partial: PartialDelivery | None) -> None:
        """Note frames of the session, which may contain a part of this link's delivery."""
        part = None if partial is None else (partial.delivery_id, partial.size_bytes)
        if part != self._part:
            self._part = part
            self.part_ms = self._moment.ms

    def answered(self, credit: ReceiverCredit, outcome: Outcome | None) -> None:
        """Note the outcome of deliveries; None if it is not sent to the client."""
        if outcome is not None:
            self.outcome = outcome
            self.outcome_ms = self._moment.ms
        self.note(credit)

    def note(self, credit: ReceiverCredit) -> None:
        if credit.granted is not None:
            self.granted_ms = self._moment.ms
        has_credit = credit.link_credit > 0
        if has_credit is not self._has_credit:
            self._has_credit = has_credit
            now_ms = self._moment.ms
            if has_credit:
                self._moment.measures.sender_credit_zero.count(now_ms - self.credit_ms)
            self.credit_ms = now_ms
