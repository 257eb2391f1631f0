"""Following a recording: the windows of the stream are those of the batch, each told once."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from amqp10broker.observe.flow_events import EVENTS
from amqp10broker.observe.recording import NotARecording
from amqp10broker.tools.analysis.cells import read_events
from amqp10broker.tools.analysis.follow import WINDOWS, SecondWindow, follow, line_of, windowed, windows_of
from amqp10broker.tools.analysis.report import ProgressLines
from amqp10broker.tools.analysis.session import FollowFailed
from tests.support import synthetic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

LATE_S = 3


def plants(number: int) -> list[synthetic.Plant]:
    """Return one of two runs of ten seconds; the second starts half a minute later."""
    return synthetic.sweep(credits=(50, 170), windows=(400,), repetitions=1, events=4_000)[
        number : number + 1
    ]


def kept(output: Path) -> list[SecondWindow]:
    table = pq.read_table(output / WINDOWS)
    windows = [SecondWindow(**row) for row in table.to_pylist()]
    return sorted(windows, key=lambda window: (window.start_s, window.run_id))


def by_batch(spark: SparkSession, folder: Path) -> list[SecondWindow]:
    return windows_of(windowed(read_events(spark, folder)).toArrow().to_pydict())


def closed(windows: list[SecondWindow]) -> list[SecondWindow]:
    """Keep windows that a watermark has passed: their end is at most the last event less the lag."""
    # The last event of a run lies at the very end of its last tick, as windows' edges do.
    last = max(window.start_s for window in windows)
    return [window for window in windows if window.start_s + 1 <= last - LATE_S]


def run_through(folder: Path, output: Path, spark: SparkSession) -> list[str]:
    told: list[str] = []
    follow(folder, output, spark, ProgressLines(None), tell=told.append, late_s=LATE_S, available_now=True)
    return told


def test_windows_of_the_stream_are_those_of_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The last few wait for late events; a second start reports only new windows."""
    folder, output = tmp_path / "recording", tmp_path / "output"
    synthetic.write(folder, plants(0))
    told = run_through(folder, output, spark)
    first = closed(by_batch(spark, folder))
    assert kept(output) == first
    assert told == [line_of(window) for window in first]
    assert len(told) > 5
    synthetic.write(folder, plants(1), seed=9)
    more = run_through(folder, output, spark)
    both = closed(by_batch(spark, folder))
    assert kept(output) == both
    assert told + more == [line_of(window) for window in both]
    # The windows that were open when the first part ended are closed by the second run's events.
    assert any(plants(0)[0].run.run_id in line for line in more)


def test_what_comes_later_than_the_watermark_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    folder, output = tmp_path / "recording", tmp_path / "output"
    synthetic.write(folder, plants(1))
    run_through(folder, output, spark)
    before = kept(output)
    synthetic.write(folder, plants(0))
    run_through(folder, output, spark)
    late = plants(0)[0].run.run_id
    assert [window for window in kept(output) if window.run_id == late] == []
    assert kept(output)[: len(before)] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_in_order_and_files_that_appear_meanwhile_are_told(
    spark: SparkSession, tmp_path: Path, deadline: None, number: signal.Signals
) -> None:
    """The folder has no event at first; then two runs appear, then comes the signal."""
    folder, output = tmp_path / "recording", tmp_path / "output"
    folder.mkdir()
    told: list[str] = []
    enough = threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        if not enough.is_set():
            enough.set()

    def write_and_interrupt() -> None:
        synthetic.write(folder, plants(0))
        synthetic.write(folder, plants(1), seed=9)
        if enough.wait(120):  # otherwise nobody may be there who expects it
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    helper = threading.Thread(target=write_and_interrupt)
    helper.start()
    follow(folder, output, spark, ProgressLines(None), tell=tell, late_s=LATE_S)
    helper.join()
    assert told
    assert [line_of(window) for window in kept(output)] == told
    assert signal.getsignal(number) is before
    assert spark.range(3).count() == 3


def test_a_recording_that_is_over_is_told_to_its_end(
    spark: SparkSession, tmp_path: Path, deadline: None
) -> None:
    """Its last seconds are reported once: a later run or a second start does not repeat them."""
    folder, output = tmp_path / "recording", tmp_path / "output"
    synthetic.write(folder, plants(0))
    whole = by_batch(spark, folder)
    told: list[str] = []

    def until(count: int) -> None:
        def tell(line: str) -> None:
            told.append(line)
            if len(told) == count:
                os.kill(os.getpid(), signal.SIGINT)

        follow(folder, output, spark, ProgressLines(None), tell=tell, late_s=LATE_S)

    until(len(whole))
    assert told == [line_of(window) for window in whole]
    assert kept(output) == whole
    synthetic.write(folder, plants(1), seed=9)
    both = by_batch(spark, folder)
    until(len(both))
    assert told == [line_of(window) for window in both]
    assert kept(output) == both


def test_what_the_reader_of_lines_throws_is_thrown_here(spark: SparkSession, tmp_path: Path) -> None:
    """For a broken pipe there is neither an error of Spark nor a trace of Java."""
    folder = tmp_path / "recording"
    synthetic.write(folder, plants(0))

    def tell(line: str) -> None:
        raise BrokenPipeError(line)

    with pytest.raises(BrokenPipeError, match=": in "):
        follow(
            folder,
            tmp_path / "output",
            spark,
            ProgressLines(None),
            tell=tell,
            late_s=LATE_S,
            available_now=True,
        )
    assert len(run_through(folder, tmp_path / "again", spark)) > 5


def test_the_recording_is_not_written_to(spark: SparkSession, tmp_path: Path, deadline: None) -> None:
    """It may belong to another user; a folder without a recording is waited for."""
    folder = tmp_path / "recording"
    folder.mkdir()
    before = signal.getsignal(signal.SIGTERM)
    over = threading.Event()

    def end_it_later() -> None:
        # Before it is expected, or behind the end, the signal would end the tests.
        while signal.getsignal(signal.SIGTERM) == before:
            if over.wait(0.01):
                return
        if not over.wait(1.0):
            os.kill(os.getpid(), signal.SIGTERM)

    helper = threading.Thread(target=end_it_later)
    helper.start()
    try:
        follow(folder, tmp_path / "output", spark, ProgressLines(None), tell=print, late_s=LATE_S)
    finally:
        over.set()
        helper.join()
    assert list(tmp_path.rglob("*")) == [folder]


def test_a_damaged_file_ends_it_with_advice(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    (plant,) = plants(0)
    synthetic.write(folder, [plant])
    run_through(folder, tmp_path / "output", spark)
    broken = folder / EVENTS / f"run_id={plant.run.run_id}" / "part-00009.parquet"
    broken.write_bytes(b"this is no Parquet file, though its name says so")
    with pytest.raises(NotARecording, match="part-00009.parquet: cannot be read as Parquet"):
        run_through(folder, tmp_path / "output", spark)
    # What is wrong behind the footer is seen by Spark alone.
    (whole,) = broken.parent.glob("part-00000.parquet")
    content = bytearray(whole.read_bytes())
    content[40 : len(content) // 2] = b"A" * (len(content) // 2 - 40)
    broken.write_bytes(content)
    with pytest.raises(
        FollowFailed, match="start again: it goes on where it was, or, if a file is"
    ) as failed:
        run_through(folder, tmp_path / "output", spark)
    assert failed.value.path == str(broken)


def test_a_folder_that_is_not_there_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotARecording, match="is no folder"):
        run_through(tmp_path / "none", tmp_path / "output", spark)
    assert list(tmp_path.iterdir()) == []


def test_a_line_says_only_what_was_recorded() -> None:
    bare = SecondWindow("r", 3661, 5, None, None, "", "", None, None, None, None, None, 7)
    assert line_of(bare) == "01:01:01 r: in -/s, out -/s, 7 events dropped"
    full = replace(
        bare,
        in_per_s=1234.0,
        stall_side="publishers",
        stall_reason="no credit",
        stall_share=0.25,
        confirm_p50_ms=1.0,
        confirm_p99_ms=12.345,
        dropped=0,
    )
    assert line_of(full) == (
        "01:01:01 r: in 1,234/s, out -/s, publishers wait 25% (no credit), confirm p50 1 ms p99 12.3 ms"
    )
    assert "no stall" in line_of(replace(full, stall_share=0.0))
    assert set(asdict(full)) == set(SecondWindow.__annotations__)
