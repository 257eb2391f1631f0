"""The decisions of clients on deliveries, translated for queues (part 3, section 3.4)."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.encoder import encode
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.performatives import Accepted, Flow, Modified, Rejected, Released
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
