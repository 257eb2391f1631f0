"""The present state of a connection that may hold up a session or channel of it."""

from __future__ import annotations

from typing import NamedTuple

from amqp10broker.sessions.diagnosis.waits import STUCK_MS, seconds


class WaitContext(NamedTuple):
    """The state of a connection. Times are those since when it holds, in ms of the broker's clock."""

    now_ms: int = 0
    writer_blocked: bool = False
    """Transfers, or deliveries, of the session or channel wait for the connection's writer."""
    writer_ms: int | None = None
    """The socket takes none of the writer's bytes; None: the writer is empty."""
    writer_bytes: int = 0
    held_by: str | None = None
    """The connection is not read, because another part of it takes nothing: ``session 3``."""
    held_ms: int = 0
    alarms: tuple[str, ...] = ()
    blocked_ms: int | None = None
    """The connection has published (too much) during an alarm, and is not read until its end."""
    reader_credit: int = 0
    """Of a channel: contents that the connection's reader may give it before it waits."""
    holds_reader: bool = False
    """Of a channel: the reader waits until it takes contents again, and with it the whole connection."""

    @property
    def stuck(self) -> bool:
        """Whether the client has not read for a while what was sent to it."""
        return self.writer_ms is not None and self.now_ms - self.writer_ms >= STUCK_MS

    def ago(self, since_ms: int) -> str:
        return f"{seconds(self.now_ms - since_ms)} ago"
