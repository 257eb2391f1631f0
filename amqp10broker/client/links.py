"""Links of a client, for either driver."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amqp10broker.client.core import LinkBase, Steps, WaitFor, flush, never
from amqp10broker.client.errors import NO_CREDIT_HINT, ClientError, NotAcceptedError, TimedOutError
from amqp10broker.client.message import Message
from amqp10broker.client.options import IN_FLIGHT_MAX, check_integer, check_text, fields
from amqp10broker.client.session import Delivery, ReceiverEnd, SenderEnd
from amqp10broker.protocols.amqp10.performatives import Accepted as Accepted
from amqp10broker.protocols.amqp10.performatives import Error
from amqp10broker.protocols.amqp10.performatives import Modified as Modified
from amqp10broker.protocols.amqp10.performatives import Rejected as Rejected
from amqp10broker.protocols.amqp10.performatives import Released as Released
from amqp10broker.protocols.amqp10.settling import ACCEPTED as ACCEPTED
from amqp10broker.protocols.amqp10.settling import RELEASED as RELEASED
from amqp10broker.protocols.amqp10.settling import Outcome as Outcome
from amqp10broker.protocols.amqp10.types import Symbol


def rejected(condition: str = "", description: str = "") -> Rejected:
    """Make the outcome of an invalid message, with an error such as ``amqp:decode-error``."""
    check_text("description", description)
    error = Error(condition=Symbol(condition), description=description or None) if condition else None
    return Rejected(error=error)


def modified(
    *,
    delivery_failed: bool = True,
    undeliverable_here: bool = False,
    annotations: Mapping[str, Any] | None = None,
) -> Modified:
    return Modified(
        delivery_failed=delivery_failed,
        undeliverable_here=undeliverable_here,
        message_annotations=fields("annotations", annotations),
    )


class BatchesUnderWay:
    def __init__(self, end: SenderEnd, in_flight_max: int) -> None:
        if in_flight_max < 1:
            raise ValueError(f"in_flight_max is {in_flight_max}; at least one message must be under way")
        self._end = end
        self.waiting: list[range] = []
        self._found: list[list[Outcome | None]] = []

    def count(self) -> int:
        waiting = self.waiting
        while waiting and not self._end.waiting(waiting[0]):
            self._found.append(self._end.take_outcomes(waiting.pop(0)))
        return min(self._end.in_flight, sum(map(len, waiting)))

    def outcomes(self) -> list[Outcome | None]:
        return list(itertools.chain.from_iterable(self._found))

    def abandon(self) -> list[Outcome | None]:
        """Stop waiting, and return the outcomes that have arrived."""
        self.count()
        for keys in self.waiting:
            self._found.append(self._end.abandon(keys))
        self.waiting.clear()
        return self.outcomes()


def encoded(messages: Iterable[Message | bytes]) -> list[bytes]:
    return [message.encode() if isinstance(message, Message) else message for message in messages]


class ReceiverBase(LinkBase[ReceiverEnd]):
    def grant(self, credit: int) -> None:
        """Set the number of messages that the broker may send; replaces earlier grants."""
        self.end.grant(credit)
        self.client.write_soon()

    def accept(self, deliveries: Delivery | Sequence[Delivery]) -> None:
        self.settle(deliveries)

    def release(self, deliveries: Delivery | Sequence[Delivery]) -> None:
        """Return the messages to their places in the queue."""
        self.settle(deliveries, RELEASED)

    def reject(
        self, deliveries: Delivery | Sequence[Delivery], condition: str = "", description: str = ""
    ) -> None:
        """Settle the messages as invalid: no consumer will get them. Arguments as of `rejected`."""
        self.settle(deliveries, rejected(condition, description))

    def settle(self, deliveries: Delivery | Sequence[Delivery], outcome: Outcome = ACCEPTED) -> None:
        self.end.settle((deliveries,) if isinstance(deliveries, Delivery) else deliveries, outcome)
        self.client.write_soon()


def detach(link: LinkBase[Any], *, timeout_s: float | None = None) -> Steps[None]:
    end = link.end
    end.detach()
    yield WaitFor(lambda: end.detached, never, timeout_s, "answer to our detach frame")


# --- sending --------------------------------------------------------------------------------------


def send(
    sender: LinkBase[SenderEnd], message: Message | bytes, *, timeout_s: float | None = None
) -> Steps[None]:
    """Send one message and wait until the broker has accepted it; if settled, until it is written. Raises
    `NotAcceptedError`, `MessageTooLargeError` (it was not sent), or `TimedOutError` (it is not sent if it had
    not begun to be written).
    """
    (outcome,) = yield from send_many(sender, (message,), timeout_s=timeout_s)
    if outcome is not None and not isinstance(outcome, Accepted):
        raise NotAcceptedError(outcome)


def send_many(
    sender: LinkBase[SenderEnd],
    messages: Iterable[Message | bytes],
    *,
    in_flight_max: int = IN_FLIGHT_MAX,
    timeout_s: float | None = None,
) -> Steps[list[Outcome | None]]:
    """Send messages, as many at a time as credit, window and `in_flight_max` allow. Returns the outcome of
    each; None if they are sent settled: check whether all are accepted. A cancelled call withdraws the
    messages that have not begun to be written. `timeout_s`: for all of it; None takes the client's, anew for
    each batch. Raises as `send`, but for NotAcceptedError; see `ClientError.outcomes`.
    """
    client, end = sender.client, sender.end
    began = None if timeout_s is None else client.clock()
    under_way = BatchesUnderWay(end, in_flight_max)
    iterator = iter(messages)
    try:
        while True:
            room = in_flight_max - under_way.count()
            batch = encoded(itertools.islice(iterator, room))
            if batch:
                under_way.waiting.append(end.send(batch))
            full = len(batch) == room
            if not full and not under_way.count():
                break
            # Half of them at a time, so that both ends always have something to do.
            goal = in_flight_max // 2 if full else 0
            yield WaitFor(
                lambda goal=goal: under_way.count() <= goal,  # type: ignore[misc]
                lambda: end.failure,
                timeout_s,
                f"outcome of {under_way.count()} messages" if end.credit else "link credit",
                "" if end.credit else NO_CREDIT_HINT,
                began,
            )
    except BaseException as error:
        outcomes = under_way.abandon()
        if isinstance(error, ClientError):
            error.outcomes = outcomes
        raise
    if end.settled:
        yield from flush(client, timeout_s)
    return under_way.outcomes()


# --- receiving ------------------------------------------------------------------------------------


def receive(receiver: ReceiverBase, *, timeout_s: float | None = None) -> Steps[Delivery | None]:
    """Return the next message; None: none arrived in time."""
    taken = yield from receive_many(receiver, 1, timeout_s=timeout_s)
    return taken[0] if taken else None


def receive_many(
    receiver: ReceiverBase, count_max: int, *, timeout_s: float | None = None, count_min: int = 1
) -> Steps[list[Delivery]]:
    """Return `count_min` to `count_max` messages, or fewer after the time-out."""
    client, end = receiver.client, receiver.end
    began = client.clock()
    check_integer("count_max", count_max, 0, sys.maxsize)
    count_min = min(count_min, count_max)  # or it would wait with no room for those that come
    taken = end.take(count_max)
    try:
        while len(taken) < count_min:
            yield WaitFor(lambda: bool(end.ready), lambda: end.failure, timeout_s, "message", began=began)
            taken += end.take(count_max - len(taken))
    except TimedOutError:
        pass
    except ClientError:
        if not taken:
            raise
    return taken


def fetch(
    receiver: ReceiverBase,
    count: int,
    *,
    timeout_s: float | None = None,
    drain_timeout_s: float | None = None,
) -> Steps[list[Delivery]]:
    """Request `count` messages, wait for them, and take the rest of the credit back (2.6.10), so that no
    message is in transit afterwards. Meant for a receiver with `credit` 0. `timeout_s`: 0 takes the available
    ones. Raises `TimedOutError` if the broker did not answer drain; `receive` returns the messages that
    arrived.
    """
    end = receiver.end
    missing = count - len(end.ready)
    if missing > 0:
        end.begin_fetch(missing)
        try:
            if timeout_s != 0:
                try:
                    yield WaitFor(lambda: len(end.ready) >= count, lambda: end.failure, timeout_s, "messages")
                except TimedOutError:
                    pass
            yield from drain(receiver, timeout_s=drain_timeout_s)
        finally:
            end.end_drain()
    return end.take(count)


def drain(receiver: ReceiverBase, *, timeout_s: float | None = None) -> Steps[None]:
    """Receive the available messages within the remaining credit, and take the rest of the credit back."""
    end = receiver.end
    if end.drained:
        return
    end.begin_drain()
    try:
        yield WaitFor(lambda: end.drained, lambda: end.failure, timeout_s, "answer to our drain")
    finally:
        end.end_drain()
