"""What a channel's connection does for it at present: what else it may have to wait for."""

from __future__ import annotations

from typing import NamedTuple

from amqp10broker.service.waits import STUCK_MS


class Circumstances(NamedTuple):
    """All times in ms of the channel's clock: since when."""

    now_ms: int = 0
    writer_blocked: bool = False
    """Deliveries of the channel wait for the connection's writer."""
    writer_ms: int | None = None
    """The socket takes nothing of what the writer has; None: the writer has nothing."""
    writer_bytes: int = 0
    """What the writer has."""
    reader_credit: int = 0
    """Contents that the connection's reader may give the channel before it waits."""
    holds_reader: bool = False
    """The reader waits until the channel takes contents again, and with it the whole connection."""
    held_by: int | None = None
    """The number of another channel for which the reader waits."""
    held_ms: int = 0
    alarms: tuple[str, ...] = ()
    blocked_ms: int | None = None
    """The connection has published during an alarm and is not read until its end."""

    @property
    def stuck(self) -> bool:
        """Whether the client has not read for a while what was sent to it."""
        return self.writer_ms is not None and self.now_ms - self.writer_ms >= STUCK_MS
