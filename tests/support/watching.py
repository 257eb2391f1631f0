"""Flow events in tests: named tuples of what an observer emitted, and a clock that tests turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from amqp10broker.observe.flow_events import PACK, EventKind


class Event(NamedTuple):
    ts_ns: int
    kind: int
    reason: int
    connection: int
    channel: int
    handle: int
    link_credit: int
    incoming_window: int
    queue_credit: int
    n: int
    bytes: int
    value_ns: int
    queue_depth: int


class Seen:
    """Takes events as a ring does; each must be one that can be packed.

    Attributes:
        events: since the last `take`.
        now_ns: what tests say it is.
        links: who was seen first: time, kind, channel, handle, name, address.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now_ns = 1_000
        self.links: list[tuple[int, int, int, int, str, str]] = []

    def add(self, *columns: int) -> None:
        assert PACK.unpack(PACK.pack(*columns)) == columns
        self.events.append(Event(*columns))

    def link(self, *given: Any) -> None:
        self.links.append(given)

    def take(self, *kinds: EventKind) -> list[Event]:
        """Return new events of these kinds since the last call; the others are dropped."""
        events, self.events = self.events, []
        return [event for event in events if not kinds or event.kind in kinds]


def total(events: Iterable[Event], kind: EventKind, column: str = "n") -> int:
    return sum(getattr(event, column) for event in events if event.kind == kind)


def reasons(events: Iterable[Event], kind: EventKind) -> dict[int, int]:
    """Return elapsed time by reason, in ns, over events of a kind."""
    found: dict[int, int] = {}
    for event in events:
        if event.kind == kind:
            found[event.reason] = found.get(event.reason, 0) + event.value_ns
    return found
