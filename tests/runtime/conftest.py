"""Fixtures for Trio tests: every one of them runs on a clock that jumps when nothing can happen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.logins import verify_passwords_at_once
from tests.support.virtual_time import wait_for_syncs

__all__ = ["LogRecorder", "log", "verify_passwords_at_once", "wait_for_syncs"]

MODULES = (
    "broker",
    "observe.clock_watch",
    "connections.connection_log",
    "queues.dead_letters",
    "queues.dead_letter_worker",
    "journal.definitions_file",
    "connections.client_connection",
    "queues.durability",
    "connections.listener",
    "connections.log_limits",
    "connections.login",
    "queues.queues",
)


class LogRecorder:
    """What the tasks logged, whatever else in this process has set structlog up."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Any:
        def note(event: str, **fields: Any) -> None:
            self.entries.append((level, event, fields))

        return note

    def of(self, level: str) -> list[tuple[str, dict[str, Any]]]:
        """Event and fields of each entry of a level."""
        return [(event, fields) for each, event, fields in self.entries if each == level]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> LogRecorder:
    """The log of broker, connections and listener."""
    recorder = LogRecorder()
    for module in MODULES:
        monkeypatch.setattr(f"amqp10broker.runtime.{module}._log", recorder)
    return recorder
