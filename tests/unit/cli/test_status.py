"""The status tables: complete, within 100 columns, and safe to show in a terminal."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest

from amqp10broker.cli import status
from amqp10broker.cli.admin import Place
from tests.unit.cli import documents
from tests.unit.cli.conftest import Broker

RESOURCES: dict[str, Any] = {
    "memory": {
        "used_bytes": 700_000_000,
        "total_bytes": 1_000_000_000,
        "setting": "0.6",
        "limit_bytes": 600_000_000,
        "alarm_ends_at_bytes": 570_000_000,
        "causes": ["measured"],
        "on_for_s": 75.5,
    },
    "disk": {
        "free_bytes": 30_000_000,
        "setting": "50MB",
        "limit_bytes": 50_000_000,
        "alarm_ends_at_bytes": 52_500_000,
        "causes": ["by hand", "measured", "storage cannot write"],
        "on_for_s": 3.0,
    },
}


def shown_of(alarms: list[str], width: int = 100, **changes: dict[str, Any]) -> list[str]:
    document = documents.status()
    resources = {name: {**each, **changes.get(name, {})} for name, each in RESOURCES.items()}
    document["broker"] |= {"alarms": alarms, "resources": resources}
    lines = status.render(document, width=width)
    return lines[2 : lines.index("")]


def test_alarms_say_since_when_why_and_what_ends_them() -> None:
    assert shown_of(["disk", "memory"]) == [
        "memory alarm above 572.2 MiB (0.6)  disk alarm below 47.7 MiB (50MB), free 28.6 MiB",
        "ALARM: disk, memory (publishers are blocked)",
        "  disk for 3 s: raised by an operator; 'amqp10broker alarm set disk off' ends it; 28.6 MiB free,",
        "    ends at 50.1 MiB: free space, or lower the limit with 'amqp10broker alarm disk-limit'; storage",
        "    cannot write",
        "  memory for 1 min 15 s: 667.6 MiB used, ends at 543.6 MiB: consume messages, or raise the limit",
        "    with 'amqp10broker alarm memory-limit'",
    ]
    assert max(map(len, shown_of(["disk", "memory"], width=60))) <= 60


@pytest.mark.parametrize("width", [60, 80, 100, 132])
def test_no_line_is_wider_than_asked_for_however_long_the_names(width: int) -> None:
    document = documents.status()
    link = document["connections"][0]["sessions"][0]["links"][1]
    link |= {"name": "n" * 300, "queue": "q" * 300, "address": "a" * 300, "credit": 85}
    link |= {"waits": "queue-empty", "waits_why": "evidence " * 40}
    document["connections"][0]["container_id"] = "c" * 300
    document["queues"][0]["name"] = "q" * 300
    lines = status.render(document, width=width)
    tables = 90 if width < 90 else width  # numbers are never cut, so a narrow table may stick out
    assert max(map(len, lines)) <= tables
    assert sum("evidence" in line for line in lines) > 1


def test_open_transactions_are_shown() -> None:
    """They are below their session; one that cannot commit has its reason."""
    document = documents.status()
    open_one = document["connections"][0]["sessions"][0]["transactions"]
    open_one.append({**open_one[0], "failed": "it has become too large"})
    found = [line for line in status.render(document) if "Transaction" in line]
    shown = "    Transaction 0000000100000002  open for 1 min 15 s  posted 3, 2.0 KiB  decided on 2"
    assert found == [shown] * 2
    assert "can only be rolled back: it has become too large" in "\n".join(status.render(document))


def test_names_of_clients_cannot_steer_the_terminal() -> None:
    document = documents.status()
    document["connections"][0]["container_id"] = "\x1b[2J\nforged"
    link = document["connections"][0]["sessions"][0]["links"][0]
    link |= {"name": "a\rb", "waits_why": "peer said \x07", "properties": {"\x1b": "\x00"}}
    text = "\n".join(status.render(document))
    assert all(character == "\n" or character.isprintable() for character in text)
    assert "\\x1b[2J\\nforged" in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Interrupt:
    """A sleep that counts, and is interrupted by ctrl-C after some rounds."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def show(stream: io.StringIO, **options: Any) -> str:
    options = {"watch_s": None, "as_json": False, "fetch": documents.status, **options}
    assert status.show(Place(5672, None), stream=stream, **options) == 0
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here(descriptor: int) -> os.terminal_size:
        raise OSError(f"{descriptor} is no terminal")

    monkeypatch.setattr(os, "get_terminal_size", none_here)
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


def test_watching_redraws_in_place_and_gives_the_screen_back() -> None:
    sleep = Interrupt(3)
    shown = show(Terminal(), watch_s=0.5, sleep=sleep)
    assert sleep.slept == [0.5] * 3
    assert shown.startswith("\x1b[?1049h\x1b[?25l")
    assert shown.endswith("\x1b[?25h\x1b[?1049l")
    assert shown.count("\x1b[H") == 3
    assert shown.count("\x1b[2J") == 1, "clearing before each picture would flicker"


RECORDING: dict[str, Any] = {
    "folder": "/data/recording",
    "run_id": "r",
    "every_ms": 50,
    "events": 1000,
    "events_written": 900,
    "events_dropped": 0,
}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "recording to /data/recording  run r  events 1000  in complete files 900"),
        ({"events_dropped": 7}, "DROPPED 7: the disk or processor is too slow"),
    ],
)
def test_a_recording_is_summed_up(changes: dict[str, Any], line: str) -> None:
    document = documents.status()
    document["broker"]["recording"] = RECORDING | changes
    assert line in "\n".join(status.render(document))
    document["broker"]["recording"] = None
    assert "recording" not in "\n".join(status.render(document))


def test_suspended_links_are_shown() -> None:
    """The page shows ten, with their state and its remaining time."""
    document = documents.status()
    link: dict[str, Any] = {"link": 3, "name": "mine", "container_id": "c", "user": "guest", "vhost": "/"}
    link |= {"role": "receiver", "unsettled": 4, "age_s": 12.0, "left_s": 48.0}
    document["broker"]["suspended_links"] = [link, link | {"left_s": None}] + [link] * 9
    document["broker"]["kept_links"] = 12
    text = " ".join("\n".join(status.render(document)).split())
    shown = "suspended link 3: mine of container c user guest in / receiver, 4 unsettled for 12 s "
    assert text.count(f"{shown}ends in 48 s") == 9
    assert text.count("until its session or connection ends") == 1
    assert "... more links are suspended; 12 are kept" in text


def test_what_is_chosen_is_asked_of_the_broker_and_the_screen_bounds_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand connections the broker sends only those that fit; JSON and --all have no bound."""
    broker.answers = {None: documents.status()}
    monkeypatch.setenv("LINES", "30")
    monkeypatch.setenv("COLUMNS", "80")
    once: dict[str, Any] = {"watch_s": None, "choose": {"user": "ann"}}
    status.show(Place(1, None), as_json=False, stream=io.StringIO(), **once)
    status.show(Place(1, None), as_json=False, all_of_them=True, stream=io.StringIO(), **once)
    status.show(Place(1, None), as_json=True, stream=io.StringIO(), **once)
    watched: dict[str, Any] = {"watch_s": 1.0, "all_of_them": True, "sleep": Interrupt(1)}
    status.show(Place(1, None), as_json=False, stream=Terminal(), **watched)
    assert [each["arguments"]["choose"] for each in broker.requests] == [
        {"user": "ann", "limit": status.SHOWN_MAX},
        {"user": "ann"},
        {"user": "ann"},
        {"limit": 30},
    ]
