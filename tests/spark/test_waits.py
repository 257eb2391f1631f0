"""The longest waits of single links, found by Spark in recordings with planted ones."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amqp10broker.observe import recording
from amqp10broker.observe.flow_events import CHANNEL_HANDLE, FIELDS, NO_CREDIT, NO_REASON, PACK, EventKind
from amqp10broker.sessions.diagnosis.wait_reasons import Wait
from amqp10broker.tools.analysis import report
from amqp10broker.tools.analysis.recommend import Aim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

MS = 1_000_000
S = 1000 * MS
BEGAN = 1_790_000_000 * S
RUN = recording.RunRecord(
    run_id="r", benchmark="broker", began_ns=BEGAN, ended_ns=BEGAN + 100 * S, max_link_credit=170
)


class Tape:
    """The events of one link, one behind the other."""

    def __init__(self, kind: EventKind, connection: int, handle: int = 0, *, at_ms: int = 0) -> None:
        self.events: list[bytes] = []
        self._where = {"kind": int(kind), "connection": connection, "handle": handle}
        self._ts_ns = BEGAN + at_ms * MS

    def hold(self, reason: int, *parts_ms: int, n: int = 0) -> Tape:
        """Add a reason with these durations, one an event; n deliveries end the last."""
        for number, part_ms in enumerate(parts_ms):
            self._ts_ns += part_ms * MS
            moved = n if number == len(parts_ms) - 1 else 0
            columns = {
                **self._where,
                "ts_ns": self._ts_ns,
                "reason": int(reason),
                "value_ns": part_ms * MS,
                "n": moved,
            }
            self.events.append(PACK.pack(*(columns.get(field.name, 0) for field in FIELDS)))
        return self


def recorded(folder: Path, *tapes: Tape, names: Sequence[recording.LinkName] = ()) -> Path:
    recording.write_run(folder, RUN)
    with recording.EventWriter(folder, "r", "broker") as writer:
        for tape in tapes:
            writer.write(b"".join(tape.events))
    if names:
        file = recording.NamesFile(folder, "r")
        file.write(map(asdict, names))
        file.close()
    return folder


def found(folder: Path, spark: SparkSession) -> list[report.LinkWait]:
    rows = report.look_for_waits(report.find_recording(folder), spark)
    return report.name_waits(rows, {"r": recording.read_names(folder, "r")})


def told(waits: Sequence[report.LinkWait]) -> list[tuple[int, str, float, float]]:
    return [
        (wait.connection, wait.reason, (wait.began_ns - BEGAN) / S, round(wait.seconds, 6)) for wait in waits
    ]


def test_a_wait_of_many_events_is_one(spark: SparkSession, tmp_path: Path) -> None:
    """It may span many seconds and cases of its reason; its last case names it."""
    used_up, stale = Wait.NO_CREDIT_USED_UP.number, Wait.NO_CREDIT_STALE_FLOW.number
    tape = (
        Tape(EventKind.LINK_OUT, 1)
        .hold(NO_REASON, 500, n=9)
        .hold(used_up, 700, 1000, 1000)
        .hold(stale, 1000, 300)
    )
    tape.hold(stale, 50, n=1).hold(NO_REASON, 4000)
    other = Tape(EventKind.LINK_IN, 2).hold(Wait.CREDIT_WITHHELD.number, 1500, 1500)
    waits = found(recorded(tmp_path, tape, other), spark)
    assert told(waits) == [(1, "no credit stale flow", 0.5, 4.0), (2, "credit withheld", 0.0, 3.0)]
    assert [wait.side for wait in waits] == ["consumer", "publisher"]


def test_what_moved_in_between_makes_two_waits(spark: SparkSession, tmp_path: Path) -> None:
    """A look that finds the same reason again has missed the deliveries in between."""
    withheld = Wait.CREDIT_WITHHELD.number
    tape = Tape(EventKind.LINK_IN, 1).hold(withheld, 2000).hold(withheld, 50, n=40).hold(withheld, 3000)
    waits = found(recorded(tmp_path, tape), spark)
    assert told(waits) == [(1, "credit withheld", 2.05, 3.0), (1, "credit withheld", 0.0, 2.0)]


def test_of_many_short_waits_in_a_second_the_longest_is_told(spark: SparkSession, tmp_path: Path) -> None:
    tape = Tape(EventKind.LINK_IN, 1)
    for length_ms in (30, 200, 40):
        tape.hold(Wait.CREDIT_WITHHELD.number, length_ms).hold(NO_REASON, 20, n=5)
    assert told(found(recorded(tmp_path, tape), spark)) == [(1, "credit withheld", 0.05, 0.2)]


def test_waits_that_hold_nobody_up_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """A consumer with an empty queue is left out; so are connection events and waits before the run."""
    tapes = [
        Tape(EventKind.LINK_OUT, 1).hold(Wait.QUEUE_EMPTY.number, 5000),
        Tape(EventKind.LINK_OUT, 2).hold(Wait.STREAM_END.number, 5000).hold(Wait.NOT_ACTIVE.number, 5000),
        Tape(EventKind.CONNECTION_IN, 3).hold(Wait.CREDIT_FLOW.number, 5000),
        Tape(EventKind.LINK_IN, 4, at_ms=-9000).hold(Wait.CREDIT_WITHHELD.number, 5000),
    ]
    assert found(recorded(tmp_path, *tapes), spark) == []


def test_names_are_put_to_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """The time selects the name, since numbers are reused; a link without a name keeps its numbers."""
    tape = Tape(EventKind.LINK_IN, 1, 3).hold(Wait.CREDIT_WITHHELD.number, 3000).hold(NO_REASON, 1000)
    again = Tape(EventKind.LINK_IN, 1, 3, at_ms=5000).hold(Wait.CREDIT_WITHHELD.number, 2000)
    old = Tape(EventKind.LINK_OUT, 2, CHANNEL_HANDLE + 1).hold(Wait.PREFETCH_FULL.number, 900)
    stranger = Tape(EventKind.LINK_OUT, 9, 4).hold(Wait.WRITER_BLOCKED.number, 800)
    first = recording.LinkName(
        BEGAN, int(EventKind.LINK_IN), 1, 0, 3, "orders", "/queues/q", "shop", "ann", "/", "p"
    )
    names = [
        first,
        replace(first, ts_ns=BEGAN + 5 * S, link="invoices"),
        recording.LinkName(
            BEGAN, int(EventKind.LINK_OUT), 2, 0, CHANNEL_HANDLE + 1, "tag", "q", "pika", "bob", "/", "p"
        ),
    ]
    waits = found(recorded(tmp_path, tape, again, old, stranger, names=names), spark)
    assert [(wait.link, wait.address, wait.client, wait.user) for wait in waits] == [
        ("orders", "/queues/q", "shop", "ann"),
        ("invoices", "/queues/q", "shop", "ann"),
        ("tag", "q", "pika", "bob"),
        (None, None, None, None),
    ]
    assert [wait.subject for wait in waits[2:]] == [
        "consumer tag (connection 2, channel 0)",
        "consumer, connection 9, channel 0, handle 4",
    ]


def test_the_report_lists_them(spark: SparkSession, tmp_path: Path) -> None:
    """It has link, time, reason and duration; names are escaped."""
    tape = (
        Tape(EventKind.LINK_IN, 1, 3)
        .hold(NO_REASON, 2000, n=5)
        .hold(Wait.CREDIT_WITHHELD_BY_SYNC.number, 3000)
    )
    tape.hold(NO_REASON, 10, n=5)
    name = recording.LinkName(
        BEGAN, int(EventKind.LINK_IN), 1, 0, 3, "<b>", "/queues/q", "shop", "ann", "/", "p"
    )
    folder = recorded(tmp_path / "recording", tape, names=[name])
    result = report.analyse(folder, tmp_path / "out", Aim("throughput"), spark, report.ProgressLines(None))
    page = result.report.read_text()
    assert "The longest waits of single links" in page
    assert "&lt;b&gt; (connection 1, channel 0)" in page
    at = time.strftime("%H:%M:%S.000", time.gmtime(BEGAN // S + 2))
    for text in ("credit withheld by sync", "ann / shop", "/queues/q", at, "3.000"):
        assert text in page
    with (tmp_path / "out" / "waits.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["link"], row["user"], row["reason"], row["seconds"]) == (
        *("<b>", "ann", "credit withheld by sync", "3"),
    )


def test_an_older_recording_has_its_waits_by_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """It has no names, and its reasons are the general ones."""
    tape = Tape(EventKind.LINK_OUT, 7).hold(NO_CREDIT, 4000).hold(NO_REASON, 10, n=1)
    result = report.analyse(
        recorded(tmp_path / "recording", tape),
        tmp_path / "out",
        Aim("throughput"),
        spark,
        report.ProgressLines(None),
    )
    assert "connection 7, channel 0, handle 0" in result.report.read_text()
