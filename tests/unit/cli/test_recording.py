"""``amqp10broker record``: what it asks of the broker, and what it says of the answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
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
    """The broker that all commands reach."""
    fake = Broker()
    monkeypatch.setattr(admin, "ask", fake.ask)
    return fake


def test_start(broker: Broker, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The folder is meant as seen from here, whatever folder the broker runs in."""
    assert main.main(["record", "start", "here"]) == 0
    assert main.main(["record", "start", str(tmp_path), "--every", "10", "--run", "r"]) == 0
    assert broker.asked == [
        {"op": "record-start", "arguments": {"folder": str(Path.cwd() / "here"), "run": None}},
        {"op": "record-start", "arguments": {"folder": str(tmp_path), "every": 10, "run": "r"}},
    ]
    assert capsys.readouterr().out == "recording to /recording, run r\n" * 2


def test_start_says_if_the_name_got_a_number(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.answer = STATUS | {"run_id": "r-2"}
    assert main.main(["record", "start", "here", "--run", "r"]) == 0
    assert capsys.readouterr().out == "recording to /recording, run r-2 (there is a run r already)\n"


def test_stop(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["record", "stop"]) == 0
    assert broker.asked == [{"op": "record-stop", "arguments": {}}]
    says = "recorded to /recording, run r, every 50 ms: 1 event, 0 in complete files, 3 dropped; "
    says += "observing takes 0.2 % of a processor, 0.5 % of what the broker uses\n"
    assert capsys.readouterr().out == says


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


def test_status_of_a_recording_that_failed(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has to look into the log for the reason."""
    failed = {"folder": "/recording", "run_id": "r", "events": 9, "events_lost": 7, "reason": "no room"}
    broker.answer = {"recording": None, "failed": failed}
    assert main.main(["record", "status"]) == 1
    says = "the broker does not record: the recording to /recording, run r, failed; "
    assert capsys.readouterr().out == f"{says}of 9 events 7 are lost: no room\n"
    assert main.main(["record", "status", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"failed": failed}


@pytest.mark.parametrize("every", ["9", "1001", "-1", "x"])
def test_an_interval_out_of_range_is_refused_here(
    broker: Broker, capsys: pytest.CaptureFixture[str], every: str
) -> None:
    assert main.main(["record", "start", "here", "--every", every]) == 2
    assert "must be an integer from 10 to 1000" in capsys.readouterr().err
    assert broker.asked == []
