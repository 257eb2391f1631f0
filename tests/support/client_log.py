"""The log of a connection in tests without one."""

from __future__ import annotations

from typing import Any

from amqp10broker.metadata.queue import LastError


class ClientLog:
    """As `runtime.log.ConnectionLog`.

    Attributes:
        entries: level, event and fields of each entry.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, dict[str, Any]]] = []

    def warning(self, event: str, **details: Any) -> LastError:
        self.entries.append(("warning", event, details))
        return LastError("2026-11-22T08:38:47Z", event, details)

    def noted(self, event: str, **details: Any) -> LastError:
        self.entries.append(("noted", event, details))
        return LastError("2026-11-22T08:38:47Z", event, details)

    def info(self, event: str, **details: Any) -> None:
        self.entries.append(("info", event, details))

    def of(self, level: str) -> list[tuple[str, dict[str, Any]]]:
        """Event and fields of each entry of a level."""
        return [(event, fields) for each, event, fields in self.entries if each == level]
