"""``amqp10broker timeline``: what it asks of the broker, and the one document that it prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from amqp10broker.cli import admin, looking, main


class Broker:
    """In place of a broker: a link whose timeline comes in parts."""

    def __init__(self, *parts: dict[str, Any]) -> None:
        self.asked: list[dict[str, Any]] = []
        self.parts = list(parts)

    def ask(self, place: admin.Place, request: Mapping[str, Any], *, timeout_s: float = 10.0) -> Any:
        self.asked.append(dict(request))
        if request["op"] == "timeline":
            return self.parts.pop(0)
        return {"watch": 7, "link": "out", "connection": 3, "channel": 0, "role": "receiver"}


def part(
    since: int, *steps: int, lost: int = 0, more: bool = False, ended: str | None = None
) -> dict[str, Any]:
    return {
        "since": since,
        "next": since + len(steps),
        "lost": lost,
        "more": more,
        "ended": ended,
        "start": {"credit": since},
        "steps": list(steps),
    }


def run(monkeypatch: pytest.MonkeyPatch, broker: Broker, *options: str) -> int:
    monkeypatch.setattr(admin, "ask", broker.ask)
    monkeypatch.setattr(looking.time, "sleep", lambda seconds: None)
    return main.main(["timeline", "3", "out", *options])


def test_the_parts_of_a_timeline_become_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked for from where the last part ended; the watch is ended then."""
    broker = Broker(part(0, 1, 2, more=True), part(2, 3), part(3))
    assert run(monkeypatch, broker, "--for", "0", "--role", "receiver") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["link"]["watch"] == 7
    assert (printed["start"], printed["steps"], printed["lost"]) == ({"credit": 0}, [1, 2, 3], 0)
    assert [each["op"] for each in broker.asked] == ["watch-link", *["timeline"] * 3, "unwatch-link"]
    assert broker.asked[0]["arguments"] == {
        "connection": 3,
        "link": "out",
        "channel": None,
        "role": "receiver",
    }
    assert [each["arguments"]["since"] for each in broker.asked[1:4]] == [None, 2, 3]


def test_what_is_behind_a_gap_begins_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of before cannot be drawn together with those; that some are lost is said."""
    broker = Broker(part(0, 1), part(9, 10, lost=8, ended="the link is detached"))
    assert run(monkeypatch, broker, "--for", "0") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["start"], printed["steps"]) == ({"credit": 9}, [10])
    assert (printed["lost"], printed["ended"]) == (8, "the link is detached")
