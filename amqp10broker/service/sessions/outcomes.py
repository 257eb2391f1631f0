"""What clients decide on deliveries, in the queue's words (part 3, section 3.4)."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.amqp10.encoder import encode
from amqp10broker.amqp10.errors import AmqpLinkError, AmqpSessionError, Condition
from amqp10broker.amqp10.performatives import Accepted, Flow, Modified, Rejected, Released
from amqp10broker.amqp10.types import Symbol
from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import Verdict

_TXN_ID: Final = Symbol("txn-id")


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of deliveries.

    Attributes:
        verdict: in the queue's words.
        annotations: an encoded map to merge into their message-annotations; empty: none.
    """

    verdict: Verdict
    annotations: bytes = b""


def decide(state: Any, *, settled: bool, default: Verdict) -> Decision | None:
    """Read a client's disposition.

    Args:
        state: of the delivery; None: the client did not say.
        settled: the client forgets the delivery.
        default: what becomes of one that is settled without an outcome.

    Returns:
        None when nothing was said.

    Raises:
        AmqpLinkError: annotations that clients may not set.
        AmqpSessionError: the state is none that a receiver decides.
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
    verdict = to_verdict(state)
    if verdict is None:
        raise AmqpSessionError(
            Condition.INVALID_FIELD, f"Unrecognised state: {type(state).__name__.lower()} in DISPOSITION"
        )
    return Decision(verdict, annotations)


def transaction_named(flow: Flow) -> bytes | None:
    """The transaction in which a client wants to acquire.

    Raises:
        AmqpLinkError: what it names is no id.
    """
    txn_id = None if flow.properties is None else flow.properties.get(_TXN_ID)
    if txn_id is not None and not isinstance(txn_id, bytes):
        text = f"property txn-id of a flow must be binary, and is {txn_id!r}"
        raise AmqpLinkError(Condition.INVALID_FIELD, text)
    return txn_id


def check_no_transaction(flow: Flow) -> None:
    """Refuse a flow of a client that wants to acquire within a transaction.

    A source that cannot do so "MUST" say so (part 4, section 4.4.3).

    Raises:
        AmqpLinkError: the flow names a transaction.
    """
    if flow.properties and flow.properties.get(_TXN_ID) is not None:
        text = "flow names a transaction (txn-id): messages of this link cannot be acquired in one"
        raise AmqpLinkError(Condition.NOT_IMPLEMENTED, text)


def default_verdict(outcome: Any) -> Verdict:
    """What an unsettled delivery becomes when it is settled without an outcome (3.5.3).

    Released when the source does not say; it is not counted as a failed attempt.
    """
    return to_verdict(outcome) or Verdict.REQUEUE


def to_verdict(state: Any) -> Verdict | None:
    """A delivery state in the queue's words; None when it is no outcome."""
    match state:
        case Accepted():
            return Verdict.ACCEPT
        case Rejected():
            # "delivery-count is incremented" (3.4.2): who gets the dead letter sees it.
            return Verdict.DISCARD_FAILED
        case Released():
            return Verdict.REQUEUE
        case Modified(undeliverable_here=True):
            # As RabbitMQ: the message is not offered to other consumers either, but dead-lettered.
            return Verdict.DISCARD_FAILED if state.delivery_failed else Verdict.DISCARD
        case Modified():
            return Verdict.REQUEUE_FAILED if state.delivery_failed else Verdict.REQUEUE
        case _:
            return None
