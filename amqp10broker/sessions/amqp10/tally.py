"""One outcome for each delivery that went to queues, whatever their number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from amqp10broker.protocols.amqp10.errors import AmqpDeliveryError, Condition
from amqp10broker.protocols.amqp10.faults import to_error
from amqp10broker.protocols.amqp10.performatives import Rejected
from amqp10broker.protocols.amqp10.settling import ACCEPTED, RELEASED, Outcome
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.queues.effects import Confirmed, Unconfirmed
from amqp10broker.queues.effects import PublishRejected as Refused


class Tally:
    """The outcomes of the deliveries of one publishing link. `left`: of deliveries that went to several
    queues: how many have not answered, and the outcome so far.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left: dict[int, tuple[int, Outcome]] = {}

    def expect(self, ids: Iterable[int], queues: int) -> None:
        """Expect answers of several queues (more than one) for each of these deliveries."""
        for delivery_id in ids:
            self.left[delivery_id] = (queues, RELEASED)

    def count_down(self, ids: Sequence[int], outcome: Outcome) -> list[tuple[Outcome, Sequence[int]]]:
        """Count a queue's answer; return deliveries for which it was the last: rejected, accepted or
        released.
        """
        if not self.left:
            return [(outcome, ids)]
        answered: list[tuple[Outcome, list[int]]] = []
        for delivery_id in ids:
            left, worst = self.left.get(delivery_id, (1, RELEASED))
            if isinstance(outcome, Rejected) or worst is RELEASED:
                worst = outcome
            if left > 1:
                self.left[delivery_id] = (left - 1, worst)
                continue
            self.left.pop(delivery_id, None)
            if not answered or answered[-1][0] is not worst:
                answered.append((worst, []))
            answered[-1][1].append(delivery_id)
        return [(worst, its_ids) for worst, its_ids in answered]


def refusal_of(effect: Unconfirmed | Refused) -> AmqpDeliveryError | None:
    """Return why a queue does not accept messages; None if it was deleted, which releases them."""
    if isinstance(effect, Refused):
        return AmqpDeliveryError(
            Condition.RESOURCE_LIMIT_EXCEEDED,
            f"queue '{effect.queue}' exceeded maximum length",
            {Symbol("queue"): effect.queue, Symbol("reason"): Symbol("maxlen")},
        )
    if not effect.failed:
        return None
    return AmqpDeliveryError(
        Condition.PRECONDITION_FAILED,
        f"queue '{effect.queue}' is unavailable",
        {Symbol("queue"): effect.queue, Symbol("reason"): Symbol("unavailable")},
    )


def outcome_of(effect: Confirmed | Unconfirmed | Refused) -> Outcome:
    match effect:
        case Confirmed():
            return ACCEPTED
        case Unconfirmed() | Refused():
            refusal = refusal_of(effect)
            return RELEASED if refusal is None else Rejected(error=to_error(refusal))
        case _:
            assert_never(effect)
