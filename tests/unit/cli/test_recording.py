"""``amqp10broker record``: what it asks of the broker, and what it says of the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from amqp10broker.cli import admin, main

STATUS: dict[str, Any] = {
    "folder": "/recording",
    "run_id": "r",
    "every_ms": 50,
    "events": 1,
    "events_written": 0,
    "events_dropped": 3,
    "processor_percent": 0.2,
    "cost_percent": 0.5,
}


class Broker:
    """In place of a broker: keeps what it is asked, and answers the same to all."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: Any = STATUS

    def ask(self, place: admin.Place, request: Mapping[str, Any], *, timeout_s: float = 10.0) -> Any:
        self.asked.append(dict(request))
        return self.answer


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    fake = Broker()
    monkeypatch.setattr(admin, "ask", fake.ask)
    return fake


def test_status(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 if there is no recording, for scripts."""
    broker.answer = {"recording": STATUS}
    assert main.main(["record", "status"]) == 0
    assert "run r, every 50 ms: 1 event" in capsys.readouterr().out
    broker.answer = {"recording": None}
    assert main.main(["record", "status"]) == 1
    assert "does not record" in capsys.readouterr().out
    assert main.main(["record", "status", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out) is None
