"""The last observation of one link, and the events that follow from the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from amqp10broker.observe.flow_events.schema import EventKind

UINT_MAX: Final = 0xFFFF_FFFF
QUIET_NS: Final = 1_000_000_000
"""An unchanged link has an event of its own so often, not at each observation."""

State = tuple[int, int, int, int, int]
"""Number of the reason (`REASONS`) for a wait; link_credit, incoming_window, queue_credit, queue_depth."""

NOTHING: Final[State] = (0, 0, 0, 0, 0)


Emit = Callable[..., None]
"""Takes the values of one event in the order of `observe.flow_events.schema.FIELDS`, without waiting:
`observe.flow_events.ring.Ring.add`.
"""

OnLink = Callable[[int, int, int, int, str, str], None]
"""Called once per link when it is observed first: time, kind, channel, handle, name, address."""


class Trail:
    """The last observation of one link (AMQP 0-9-1: channel or consumer). `limit`: of its credit if that is
    automatic, and the number of its reason; else None. `turn`: number of the observation that found it last,
    so that the observer can find links that are gone.
    """

    __slots__ = ("_count", "_since_ns", "_state", "kind", "limit", "turn", "where")

    def __init__(self, kind: int, where: tuple[int, int, int], now_ns: int, count: int) -> None:
        self.kind = kind
        self.where = where
        self.turn = 0
        self.limit: tuple[int, int] | None = None
        self._since_ns = now_ns
        self._count = count
        self._state = NOTHING

    def see_limit(self, emit: Emit, ts_ns: int, limit: tuple[int, int] | None) -> None:
        """Record a new limit of its credit; None: it is fixed, as the run's metadata state."""
        self.limit = limit
        if limit is not None:
            emit(ts_ns, EventKind.LIMIT, limit[1], *self.where, limit[0], *[0] * 6)

    def see(
        self, emit: Emit, now_ns: int, ts_ns: int, count: int, state: State, *, whole: bool = False
    ) -> None:
        """Emit an event with the state that held until now if something moved, or `whole`."""
        n = (count - self._count) & UINT_MAX
        elapsed = now_ns - self._since_ns
        if n == 0 and state == self._state and elapsed < QUIET_NS and not (whole and elapsed):
            return
        if n or elapsed:
            reason, link_credit, window, queue_credit, depth = self._state
            emit(
                *(ts_ns, self.kind, reason, *self.where, link_credit, window, queue_credit),
                *(n, 0, elapsed, depth),
            )
        self._since_ns, self._count, self._state = now_ns, count, state
