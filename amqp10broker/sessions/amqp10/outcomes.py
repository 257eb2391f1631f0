"""The decisions of clients on deliveries, translated for queues (part 3, section 3.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.encoder import encode
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.performatives import Accepted, Flow, Modified, Rejected, Released
from amqp10broker.protocols.amqp10.settling import Outcome
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.queues.commands import DeliveryOutcome

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
