"""Outcomes of messages (part 3, section 3.4): constructors for receivers, and collection for senders."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from amqp10broker.client.checks import check_text, fields
from amqp10broker.client.message import Message
from amqp10broker.client.session import SenderEnd
from amqp10broker.protocols.amqp10.performatives import Accepted, Error, Modified, Rejected, Released
from amqp10broker.protocols.amqp10.settling import ACCEPTED, RELEASED, Outcome
from amqp10broker.protocols.amqp10.types import Symbol


def rejected(condition: str = "", description: str = "") -> Rejected:
    """Make the outcome of an invalid message. `condition`: for the sender, such as ``amqp:decode-error``."""
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
        self._waiting: list[range] = []
        self._keys: list[range] = []
        self._found: list[list[Outcome | None]] = []

    def add(self, keys: range) -> None:
        self._waiting.append(keys)
        self._keys.append(keys)

    def count(self) -> int:
        waiting = self._waiting
        while waiting and not self._end.waiting(waiting[0]):
            self._found.append(self._end.take_outcomes(waiting.pop(0)))
        return min(self._end.in_flight, sum(map(len, waiting)))

    def at_most(self, count: int) -> bool:
        return self.count() <= count

    def outcomes(self) -> list[Outcome | None]:
        return list(itertools.chain.from_iterable(self._found))

    def abandon(self) -> list[Outcome | None]:
        """Stop waiting, and return the outcomes that have arrived."""
        self.count()
        for keys in self._waiting:
            self._found.append(self._end.abandon(keys))
        self._waiting.clear()
        return self.outcomes()


def encoded(messages: Iterable[Message | bytes]) -> list[bytes]:
    return [message.encode() if isinstance(message, Message) else message for message in messages]


__all__ = [
    "ACCEPTED",
    "RELEASED",
    "Accepted",
    "BatchesUnderWay",
    "Modified",
    "Outcome",
    "Rejected",
    "Released",
    "encoded",
    "modified",
    "rejected",
]
