"""``amqp10broker record``: what it asks of the broker, and what it says of the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amqp10broker.cli import main
from tests.unit.cli.conftest import Broker

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


def test_status(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1 if there is no recording, for scripts."""
    broker.answers = {None: {"recording": STATUS}}
    assert main.main(["record", "status"]) == 0
    assert "run r, every 50 ms: 1 event" in capsys.readouterr().out
    broker.answers = {None: {"recording": None}}
    assert main.main(["record", "status"]) == 1
    assert "is not recording" in capsys.readouterr().out
    assert main.main(["record", "status", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out) is None
