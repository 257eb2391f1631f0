"""The helper that writes recordings, in this process: frames in, files and answers out."""

from __future__ import annotations

import errno
import io
import itertools
import json
import math
import os
import socket
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pyarrow  # noqa: F401 (what writes the files: where it is not made for a Python, these tests say so)
import pytest

from amqp10broker.observe import recording as runs
from amqp10broker.observe.flow_events import PACK, EventKind
from amqp10broker.runtime.observe.recorder_child import END, EVENTS, FRAME, NOTE, RUN, Scribe, serve

FIRST = runs.RunRecord(run_id="r", benchmark="broker", began_ns=100, settings='{"a": 1}')


def frame(kind: int, payload: bytes | dict[str, Any], dropped: int = 0) -> bytes:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return FRAME.pack(kind, len(data), dropped) + data


def run(row: runs.RunRecord, dropped: int = 0) -> bytes:
    return frame(RUN, asdict(row), dropped)


def events(*times: int, dropped: int = 0) -> bytes:
    packed = b"".join(PACK.pack(ts_ns, EventKind.QUEUE, *[0] * 11) for ts_ns in times)
    return frame(EVENTS, packed, dropped)


def told(recording: Path, *frames: bytes) -> list[dict[str, Any]]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            ours.sendall(b"".join(frames))
            ours.shutdown(socket.SHUT_WR)
            serve(theirs, Scribe(str(recording)))
        received = b""
        # What it has not read any more, because it has failed, makes the end of its answers an error.
        with suppress(ConnectionResetError):
            while data := ours.recv(65_536):
                received += data
    return [json.loads(line) for line in received.splitlines()]


def times(recording: Path, run_id: str = "r") -> list[int]:
    found: list[int] = runs.read_events(recording, run_id)["ts_ns"].to_pylist()
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
    assert answers == [{"ready": True, "run_id": "r", "number": 1}, {"written": 3, "ended": True}]
    assert times(tmp_path) == [200, 300, 400]
    row = runs.read_run(tmp_path, "r")
    assert (row.began_ns, row.ended_ns, row.events_dropped) == (150, 500, 7)
    assert json.loads(row.settings) == {"a": 1, "queues": {"1": {"name": "q"}}}


def test_a_broker_that_is_gone_ends_the_run_with_its_last_event(tmp_path: Path) -> None:
    told(tmp_path, run(FIRST), events(200, 300, dropped=2), events(400)[:-1])
    assert times(tmp_path) == [200, 300]
    row = runs.read_run(tmp_path, "r")
    assert (row.ended_ns, row.events_dropped) == (300, 2)


def test_the_next_run_ends_the_one_before(tmp_path: Path) -> None:
    """Each run has its own events and its own count of lost ones; queues keep their names."""
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
    assert [answer["run_id"] for answer in answers if "ready" in answer] == ["r", "s"]
    assert (times(tmp_path, "r"), times(tmp_path, "s")) == ([200], [300])
    rows = runs.read_runs(tmp_path)
    assert [(row.run_id, row.ended_ns, row.events_dropped) for row in rows] == [("r", 250, 5), ("s", 400, 2)]
    assert all("queues" in json.loads(row.settings) for row in rows)


def test_a_folder_that_cannot_be_written_is_the_last_answer(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("in the way")
    (answer,) = told(tmp_path, run(FIRST), events(200))
    assert "cannot be written" in answer["failed"]


class Disk:
    """A small disk, in place of the system's: what has been written takes room as long as it is somewhere.

    As a disk has it, a file that is open keeps its room when its name is gone.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._files: list[_OnDisk] = []

    def open(self, path: Path) -> _OnDisk:
        file = _OnDisk(self, path)
        self._files.append(file)
        return file

    @property
    def free(self) -> int:
        return self._room - sum(file.size for file in self._files if file.is_somewhere)


class _OnDisk(io.FileIO):
    def __init__(self, disk: Disk, path: Path) -> None:
        super().__init__(path, "wb")
        self._disk = disk
        self._inode = os.fstat(self.fileno()).st_ino
        self._folder = path.parent
        self.size = 0

    @property
    def is_somewhere(self) -> bool:
        return not self.closed or self._inode in {each.inode() for each in os.scandir(self._folder)}

    def write(self, data: Any, /) -> int:
        if len(data) > self._disk.free:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.size += len(data)
        return super().write(data)

    def truncate(self, size: int | None = None, /) -> int:
        self.size = size or 0
        return super().truncate(size)


@pytest.mark.parametrize("left", [0.01, 1.4])
def test_a_full_disk_says_in_the_row_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: float
) -> None:
    """Room was kept for the row, whether or not the part that is lost leaves enough.

    Args:
        left: what the first part leaves for the second one, which needs more; in rows.
    """
    row_bytes = runs.write_run(tmp_path / "a", FIRST).stat().st_size
    # Parts end by their size alone, however long it takes.
    small = {"part_events_max": 500, "row_group_events": 100, "part_seconds_max": math.inf}
    with runs.EventWriter(tmp_path / "a", "r", **small) as writer:  # type: ignore[arg-type]
        for first in range(200, 700, 50):
            writer.write(events(*range(first, first + 50))[FRAME.size :])
    part_bytes = (writer.folder / "part-00000.parquet").stat().st_size
    assert part_bytes > 1.4 * row_bytes, "the second part must not fit where the row does"
    recording = tmp_path / "recording"
    room = runs.ROW_BYTES_MAX + row_bytes + part_bytes + int(left * row_bytes)
    monkeypatch.setattr(runs, "open_raw", Disk(room).open)
    monkeypatch.setattr(runs.EventWriter, "__init__", partialmethod(runs.EventWriter.__init__, **small))
    at = iter(range(200, 10**9))
    many = [events(*itertools.islice(at, 50)) for _ in range(30)]
    answers = told(recording, run(FIRST), *many, frame(END, {"ended_ns": 10**9}))
    assert "No space left on device" in answers[-1]["failed"]
    row = runs.read_run(recording, "r")
    assert answers[-1]["written"] == len(times(recording)) == 500
    assert row.events_dropped == row.ended_ns - 699 > 0, "one event a ns, and 500 in the first part"
    assert not list(recording.rglob("_*"))


def test_a_disk_that_stays_full_is_said_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row cannot be completed then; the helper's answer has the figures."""
    ours, theirs = socket.socketpair()
    scribe = Scribe(str(tmp_path))
    scribe.begin(asdict(FIRST))
    monkeypatch.setattr(runs, "open_raw", Disk(0).open)
    with ours, theirs:
        ours.sendall(events(200, 300) + frame(END, {"ended_ns": 400}))
        serve(theirs, scribe)
        answer = json.loads(ours.recv(65_536))
    assert ("No space left" in answer["failed"], answer["written"]) == (True, 0)
    assert runs.read_run(tmp_path, "r").ended_ns is None


@pytest.mark.parametrize(
    ("notes", "protocol", "all_of_them"),
    [
        ([], None, None),
        ([["amqp091"]], "amqp091", ["amqp091"]),
        ([["amqp10"], ["amqp091", "amqp10"]], None, ["amqp091", "amqp10"]),
    ],
)
def test_the_row_says_what_the_connections_spoke(
    tmp_path: Path, notes: list[list[str]], protocol: str | None, all_of_them: list[str] | None
) -> None:
    """Only a single protocol is in its column; each run has those of its own connections."""
    told(
        tmp_path,
        run(FIRST),
        *(frame(NOTE, {"protocols": each}) for each in notes),
        run(replace(FIRST, run_id="s", began_ns=250)),
        events(300),
    )
    row = runs.read_run(tmp_path, "r")
    assert (row.protocol, json.loads(row.settings).get("protocols")) == (protocol, all_of_them)
    row = runs.read_run(tmp_path, "s")
    assert (row.protocol, json.loads(row.settings)) == (None, {"a": 1})
