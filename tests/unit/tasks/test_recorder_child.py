"""The helper that writes recordings, in this process: frames in, files and answers out."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.flowevents.schema import PACK, Kind
from amqp10broker.recording.parquet import read_events
from amqp10broker.recording.runs import Run, read_run, read_runs, write_run
from amqp10broker.tasks.recorder_child import END, EVENTS, FRAME, NOTE, RUN, Scribe, serve

FIRST = Run(run_id="r", benchmark="broker", began_ns=100, settings='{"a": 1}')


def frame(kind: int, payload: bytes | dict[str, Any], dropped: int = 0) -> bytes:
    """As the broker sends it."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return FRAME.pack(kind, len(data), dropped) + data


def run(row: Run, dropped: int = 0) -> bytes:
    """The frame that begins a run, and ends the one before."""
    return frame(RUN, asdict(row), dropped)


def events(*times: int, dropped: int = 0) -> bytes:
    """A frame of events at these times."""
    packed = b"".join(PACK.pack(ts_ns, Kind.QUEUE, *[0] * 11) for ts_ns in times)
    return frame(EVENTS, packed, dropped)


def told(recording: Path, *frames: bytes) -> list[dict[str, Any]]:
    """What the helper answers to these frames, and to the end of the broker behind them."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            ours.sendall(b"".join(frames))
            ours.shutdown(socket.SHUT_WR)
            serve(theirs, Scribe(str(recording)))
        received = b""
        while data := ours.recv(65_536):
            received += data
    return [json.loads(line) for line in received.splitlines()]


def times(recording: Path, run_id: str = "r") -> list[int]:
    """Of the events in the files."""
    found: list[int] = read_events(recording, run_id)["ts_ns"].to_pylist()
    return found


def test_a_run_from_beginning_to_end(tmp_path: Path) -> None:
    answers = told(
        tmp_path,
        run(FIRST),
        frame(NOTE, {"began_ns": 150}),
        frame(NOTE, {"queues": {"1": {"name": "q"}}}),
        events(200, 300),
        events(400, dropped=7),
        frame(END, {"ended_ns": 500}, dropped=7),
    )
    assert answers == [{"ready": True}, {"written": 3, "ended": True}]
    assert times(tmp_path) == [200, 300, 400]
    row = read_run(tmp_path, "r")
    assert (row.began_ns, row.ended_ns, row.events_dropped) == (150, 500, 7)
    assert json.loads(row.settings) == {"a": 1, "queues": {"1": {"name": "q"}}}


def test_a_broker_that_is_gone_ends_the_run_with_its_last_event(tmp_path: Path) -> None:
    """Half a frame is left out."""
    told(tmp_path, run(FIRST), events(200, 300, dropped=2), events(400)[:-1])
    assert times(tmp_path) == [200, 300]
    row = read_run(tmp_path, "r")
    assert (row.ended_ns, row.events_dropped) == (300, 2)


def test_a_run_without_events_has_its_row(tmp_path: Path) -> None:
    told(tmp_path, run(FIRST))
    assert read_run(tmp_path, "r").ended_ns == 100


def test_the_next_run_ends_the_one_before(tmp_path: Path) -> None:
    """Each with its own events and its own count of those that were lost; queues keep their names."""
    second = replace(FIRST, run_id="s", began_ns=250)
    answers = told(
        tmp_path,
        run(FIRST),
        frame(NOTE, {"queues": {"1": {"name": "q"}}}),
        events(200, dropped=3),
        run(second, dropped=5),
        events(300, dropped=1),
        frame(END, {"ended_ns": 400}, dropped=2),
    )
    assert [answer for answer in answers if "ready" in answer] == [{"ready": True}] * 2
    assert (times(tmp_path, "r"), times(tmp_path, "s")) == ([200], [300])
    rows = read_runs(tmp_path)
    assert [(row.run_id, row.ended_ns, row.events_dropped) for row in rows] == [("r", 250, 5), ("s", 400, 2)]
    assert all("queues" in json.loads(row.settings) for row in rows)


def test_who_asked_for_the_run_may_say_more_in_its_row(tmp_path: Path) -> None:
    """While it is recorded: what only the helper knows is added to it."""
    ours, theirs = socket.socketpair()
    scribe = Scribe(str(tmp_path))
    scribe.begin(asdict(FIRST))
    write_run(tmp_path, replace(FIRST, benchmark="sweep", case="c", message_size_bytes=100, ended_ns=250))
    with ours, theirs:
        ours.sendall(events(200, dropped=4) + frame(END, {"ended_ns": 300}, dropped=4))
        serve(theirs, scribe)
    row = read_run(tmp_path, "r")
    assert (row.benchmark, row.case, row.message_size_bytes) == ("sweep", "c", 100)
    assert (row.ended_ns, row.events_dropped) == (250, 4)


def test_a_folder_that_cannot_be_written_is_the_last_answer(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("in the way")
    (answer,) = told(tmp_path, run(FIRST), events(200))
    assert "cannot be written" in answer["failed"]


def test_a_full_disk_says_in_the_row_what_is_missing(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    part = tmp_path / "events" / "run_id=r" / "_broker-00000.parquet"
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")
    answers = told(
        tmp_path, run(FIRST), events(200, 300, dropped=5), frame(END, {"ended_ns": 400}, dropped=5)
    )
    assert "cannot be written" in answers[-1]["failed"]
    row = read_run(tmp_path, "r")
    assert (row.ended_ns, row.events_dropped) == (300, 7)
    assert list(part.parent.iterdir()) == []


def test_a_part_is_complete_when_it_is_old_although_nothing_comes(tmp_path: Path) -> None:
    """The broker hears how much can be read."""
    now = 0.0
    scribe = Scribe(str(tmp_path))
    scribe.begin(asdict(FIRST))
    assert scribe._writer is not None
    scribe._writer._clock = lambda: now
    scribe.take(PACK.pack(200, Kind.QUEUE, *[0] * 11))
    scribe.tick()
    assert scribe.complete == 0
    now = 60.0
    scribe.tick()
    assert scribe.complete == 1
    assert times(tmp_path) == [200]
