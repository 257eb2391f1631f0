"""What was seen last of one link, and the event that follows from what is seen now."""

from __future__ import annotations

from typing import Final, Protocol

UINT_MAX: Final = 0xFFFF_FFFF
QUIET_NS: Final = 1_000_000_000
"""A link of which nothing changes has an event of its own so often, not at each observation."""


class Emit(Protocol):
    """Takes one event, never waiting: `flowevents.ring.Ring.add`."""

    def __call__(
        self,
        ts_ns: int,
        kind: int,
        reason: int,
        connection: int,
        channel: int,
        handle: int,
        link_credit: int,
        incoming_window: int,
        queue_credit: int,
        n: int,
        size_bytes: int,
        value_ns: int,
        queue_depth: int,
        /,
    ) -> None:
        """The columns of an event, see `flowevents.schema.FIELDS`."""


class OnLink(Protocol):
    """Is told who a link is when it is seen first; once a link, and never for an event."""

    def __call__(self, now_ns: int, kind: int, channel: int, handle: int, link: str, address: str, /) -> None:
        """When, by a clock that never goes back; `LINK_IN` or `LINK_OUT`; the numbers that its events have;
        its name; where it publishes to or consumes from."""


class Trail:
    """One link (AMQP 0-9-1: channel or consumer) as it was seen last.

    Attributes:
        turn: of the observation that saw it last; its observer tells by it which are gone.
    """

    __slots__ = (
        "_count",
        "_depth",
        "_incoming_window",
        "_link_credit",
        "_queue_credit",
        "_reason",
        "_since_ns",
        "channel",
        "connection",
        "handle",
        "kind",
        "turn",
    )

    def __init__(
        self, kind: int, connection: int, channel: int, handle: int, *, now_ns: int, count: int
    ) -> None:
        """Begin.

        Args:
            kind: of its events.
            connection: number.
            channel: number.
            handle: of the link.
            now_ns: the present, by a clock that never goes back.
            count: deliveries so far that are not to be told.
        """
        self.kind = kind
        self.connection = connection
        self.channel = channel
        self.handle = handle
        self.turn = 0
        self._since_ns = now_ns
        self._count = count
        self._reason = 0
        self._link_credit = 0
        self._incoming_window = 0
        self._queue_credit = 0
        self._depth = 0

    def see(
        self,
        emit: Emit,
        now_ns: int,
        ts_ns: int,
        count: int,
        reason: int,
        link_credit: int,
        incoming_window: int,
        queue_credit: int,
        depth: int,
        *,
        whole: bool = False,
    ) -> None:
        """Compare, and emit an event if something moved.

        Args:
            emit: takes the event.
            now_ns: the present, by a clock that never goes back.
            ts_ns: the same by the wall clock.
            count: deliveries so far, modulo 2**32.
            reason: why it waits, from now on.
            link_credit, incoming_window, queue_credit, depth: as they are now.
            whole: emit although nothing moved, so that the elapsed time is told up to now.
        """
        n = (count - self._count) & UINT_MAX
        elapsed = now_ns - self._since_ns
        if (
            n == 0
            and reason == self._reason
            and link_credit == self._link_credit
            and queue_credit == self._queue_credit
            and depth == self._depth
            and incoming_window == self._incoming_window
            and elapsed < QUIET_NS
            and not (whole and elapsed)
        ):
            return
        if n or elapsed:
            emit(
                ts_ns,
                self.kind,
                self._reason,
                self.connection,
                self.channel,
                self.handle,
                self._link_credit,
                self._incoming_window,
                self._queue_credit,
                n,
                0,
                elapsed,
                self._depth,
            )
        self._since_ns = now_ns
        self._count = count
        self._reason = reason
        self._link_credit = link_credit
        self._incoming_window = incoming_window
        self._queue_credit = queue_credit
        self._depth = depth
