"""The file that says whose the links of a run were."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from amqp10broker.observe.flow_events import EventKind
from amqp10broker.observe.recording.runs import (
    LATE_NS,
    LinkName,
    LinkNameIndex,
    NamesFile,
    NotARecording,
    NotWritable,
    path_of,
    read_names,
)

S = 1_000_000_000
NAME = LinkName(
    5 * S, int(EventKind.LINK_IN), 1, 0, 3, "grün", "/queues/q", "client", "ann", "/", "127.0.0.1:5"
)


def written(folder: Path, *names: LinkName) -> Path:
    file = NamesFile(folder, "r")
    for name in names:
        file.write([asdict(name)])
    file.close()
    return path_of(folder, "r")


def test_names_are_found_by_the_numbers_of_an_event(tmp_path: Path) -> None:
    written(tmp_path, NAME, replace(NAME, handle=4, link="other"))
    names = read_names(tmp_path, "r")
    assert len(names) == 2
    assert names.find(NAME.place, 7 * S) == NAME
    for place in ((2, 1, 0, 3), (1, 2, 0, 3), (1, 1, 1, 3), (1, 1, 0, 5)):
        assert names.find(place, 7 * S) is None


def test_numbers_that_are_used_again_are_told_apart_by_the_time() -> None:
    """A name holds from its time on, until the next."""
    names = LinkNameIndex([replace(NAME, ts_ns=9 * S, link="second"), NAME])
    found = [names.find(NAME.place, at) for at in (5 * S, 9 * S - 2 * LATE_NS, 9 * S, 20 * S)]
    assert [name and name.link for name in found] == ["grün", "grün", "second", "second"]
    assert names.find(NAME.place, 5 * S - LATE_NS) == NAME  # its first event may have begun a little before
    assert names.find(NAME.place, 5 * S - 2 * LATE_NS) is None


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    """By a broker that records, or by one that was killed."""
    path = written(tmp_path, NAME, NAME)
    path.write_bytes(path.read_bytes()[:-9])
    assert len(read_names(tmp_path, "r")) == 1


@pytest.mark.parametrize("line", [b"no json", b"{}", b'{"link": 1}', b"[]", b"\xff"])
def test_a_damaged_file_is_said(tmp_path: Path, line: bytes) -> None:
    path = written(tmp_path, NAME)
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(NotARecording, match=r"r\.jsonl"):
        read_names(tmp_path, "r")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    path = path_of(tmp_path, "r")
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    file = NamesFile(tmp_path, "r")
    with pytest.raises(NotWritable, match="No space left"):
        file.write([asdict(NAME)])
    file.close()
