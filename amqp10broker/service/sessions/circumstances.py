"""What a session's connection does for it at present: what else its links may have to wait for."""

from __future__ import annotations

from typing import NamedTuple

from amqp10broker.service.waits import STUCK_MS, seconds


class Circumstances(NamedTuple):
    """All times in ms of the session's clock: since when."""

    now_ms: int = 0
    writer_blocked: bool = False
    """Transfers of the session wait for the connection's writer."""
    writer_ms: int | None = None
    """The socket takes nothing of what the writer has; None: the writer has nothing."""
    writer_bytes: int = 0
    """What the writer has."""
    held_by: str | None = None
    """The connection is not read, because this session of it does not listen: ``session 3``."""
    held_ms: int = 0
    alarms: tuple[str, ...] = ()
    unread: bool = False
    """The connection is not read until the alarms are over, because it published too much."""

    @property
    def stuck(self) -> bool:
        """Whether the client has not read for a while what was sent to it."""
        return self.writer_ms is not None and self.now_ms - self.writer_ms >= STUCK_MS

    def ago(self, since_ms: int) -> str:
        """Such a time as a text: ``12 s ago``."""
        return f"{seconds(self.now_ms - since_ms)} ago"
