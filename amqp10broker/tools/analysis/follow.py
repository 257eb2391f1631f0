"""Follows a growing recording by Structured Streaming: one line per second and run.

A window of one second is closed when the watermark, the latest event time less `late_s`, has passed it; then
it is printed and stored, once. Files appear up to ten seconds after their first event, so the watermark must
lag by more; later events are omitted here, though not in the batch. When all runs have ended (`Ending`), the
rest is closed. Warm-up is included, since a run may not have its row yet.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events import EVENTS, NOT_HELD_UP, RUNS, EventKind
from amqp10broker.observe.recording import NotARecording, RecordingError, read_runs
from amqp10broker.tools.analysis.cells import Cell, aggregate, cells_of, event_type, read_events, uncut
from amqp10broker.tools.analysis.figures import CONFIRM_KINDS, SIDES, Sums, percentiles, reason_name
from amqp10broker.tools.analysis.report import (
    ProgressLines,
    check_layout,
    columns_of,
    event_files,
    make_folder,
    schema_of,
)
from amqp10broker.tools.analysis.session import (
    FollowFailed,
    OutputNotWritable,
    explained,
    place_and_problem,
    spark_errors,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


_WINDOWS_LOOK_S: Final = 2.0
# More than two triggers of the stream: the existing files have been read then.
_QUIET_LEAST_S: Final = 5.0


class Ending:
    """Detects the end of a recording."""

    def __init__(self, folder: Path, late_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._quiet_s = max(late_s, _QUIET_LEAST_S)
        self._clock = clock
        self._looked = self._since = clock()
        self._files: frozenset[Path] = frozenset()
        self._said = False

    def looks(self) -> bool:
        """Return whether it is time to check again: listing the files of a recording is expensive."""
        now = self._clock()
        if now - self._looked < _WINDOWS_LOOK_S:
            return False
        self._looked = now
        return True

    def due(self, *, idle: bool) -> bool:
        """Return whether the recording is over; True once, until another file appears.

        `idle`: the stream has read all files, and closed as many windows as it could.
        """
        now = self._clock()
        files = frozenset(path for paths in event_files(self._folder).values() for path in paths)
        if files != self._files:
            self._files, self._since, self._said = files, now, False
        if self._said or not files or not idle or now - self._since < self._quiet_s:
            return False
        self._said = self._all_ended()
        return self._said

    def _all_ended(self) -> bool:
        try:
            runs = {run.run_id: run.ended_ns for run in read_runs(self._folder)}
        except RecordingError:
            # There is no row yet, or it is being replaced: the next check finds it.
            return False
        return all(runs.get(run_id) is not None for run_id in event_files(self._folder))


def first_open_s(checkpoint: Path) -> int | None:
    """Return the first second that the stream has not closed, since 1970; None: before its first event.

    A query that was started again and is idle has no watermark in its progress: the checkpoint has that of a
    batch in the log of offsets, and whether it is complete in that of commits.
    """
    done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not done:
        return None
    try:
        lines = (checkpoint / "offsets" / str(max(done))).read_text("utf-8").splitlines()
        # A second is closed when its end is not behind the mark.
        return int(json.loads(lines[1])["batchWatermarkMs"]) // 1000 or None
    except (OSError, ValueError, LookupError, TypeError):
        # Another layout of a later Spark: the last seconds stay open then.
        return None


# More than the ten seconds after which a part of a recording is completed.
LATE_S: Final = 15
# In the output.
WINDOWS: Final = "windows"
# In that folder; readers ignore names that begin with an underscore.
CHECKPOINT: Final = "_checkpoint"
# Files of windows that were printed before the stream closed them.
_REST: Final = "rest-"
_WINDOW_S: Final = 1
_TRIGGER: Final = "2 seconds"
_LOOK_S: Final = 0.5
_STOP_S: Final = 60.0
_AGAIN_S: Final = 1.0
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SecondWindow:
    """One second of one run. `in_per_s`: deliveries from publishers, or messages that clients sent if the
    broker's links were not recorded. `stall_reason`: of most waiting, but for consumers of empty queues.
    """

    run_id: str
    start_s: int
    events: int
    in_per_s: float | None
    out_per_s: float | None
    stall_side: str
    stall_reason: str
    stall_share: float | None
    confirm_p50_ms: float | None
    confirm_p99_ms: float | None
    end_to_end_p50_ms: float | None
    end_to_end_p99_ms: float | None
    dropped: int


def window_of(run_id: str, start_s: int, cells: Sequence[Cell]) -> SecondWindow:
    sums = Sums(cells, _WINDOW_S)
    side, reason, share = _main_stall(sums)
    return SecondWindow(
        run_id,
        start_s,
        sum(cell.events for cell in cells),
        sums.rate(EventKind.LINK_IN, EventKind.CLIENT_SENT),
        sums.rate(EventKind.LINK_OUT, EventKind.CLIENT_RECEIVED),
        side,
        reason,
        share,
        **percentiles("confirm", sums.counts(sums.first(*CONFIRM_KINDS)), "p50", "p99"),
        **percentiles("end_to_end", sums.counts(EventKind.CLIENT_DELIVERY), "p50", "p99"),
        dropped=sums.n(EventKind.DROPPED) or 0,
    )


def _main_stall(sums: Sums) -> tuple[str, str, float | None]:
    # Side, reason and share of link time of the main obstacle; None: there are no links.
    found: tuple[str, str, float | None] = ("", "", None)
    for kind in (EventKind.LINK_IN, EventKind.LINK_OUT):
        waits = sums.waits(kind)
        total = sum(waits.values())
        if total and found[2] is None:
            found = ("", "", 0.0)
        for reason, elapsed in waits.items():
            share = elapsed / total if total else 0.0
            if reason not in NOT_HELD_UP and share > (found[2] or 0.0):
                found = (SIDES[kind], reason_name(reason), share)
    return found


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def line_of(window: SecondWindow) -> str:
    at = f"{window.start_s // 3600 % 24:02}:{window.start_s // 60 % 60:02}:{window.start_s % 60:02}"
    parts = [f"{at} {window.run_id}: in {_figure(window.in_per_s)}/s, out {_figure(window.out_per_s)}/s"]
    if window.stall_share is not None:
        waits = f"{window.stall_side} wait {window.stall_share:.0%} ({window.stall_reason})"
        parts.append(waits if window.stall_share else "no stall")
    for name, p50, p99 in (
        ("confirm", window.confirm_p50_ms, window.confirm_p99_ms),
        ("end to end", window.end_to_end_p50_ms, window.end_to_end_p99_ms),
    ):
        if p50 is not None and p99 is not None:
            parts.append(f"{name} p50 {p50:.3g} ms p99 {p99:.3g} ms")
    if window.dropped:
        parts.append(f"{window.dropped} events dropped")
    return ", ".join(parts)


def windows_of(columns: dict[str, list[Any]]) -> list[SecondWindow]:
    groups: dict[tuple[int, str], list[Cell]] = {}
    for start_s, cell in zip(columns["start_s"], cells_of(columns), strict=True):
        groups.setdefault((start_s, cell.run_id), []).append(cell)
    return [window_of(run_id, start_s, groups[start_s, run_id]) for start_s, run_id in sorted(groups)]


def windowed(events: DataFrame, late_s: int | None = None) -> DataFrame:
    """Return the cells of each second, for a stream or a batch."""
    from pyspark.sql import functions as F

    # Spark's timestamps are microseconds.
    timed = uncut(events).withColumn("at", F.timestamp_micros(F.expr("ts_ns div 1000")))
    if late_s is not None:
        timed = timed.withWatermark("at", f"{late_s} seconds")
    window = F.window("at", f"{_WINDOW_S} second").alias("window")
    cells = aggregate(timed, window)
    return cells.withColumn("start_s", F.col("window.start").cast("long")).drop("window")


def follow(
    folder: Path,
    output: Path,
    spark: SparkSession,
    progress: ProgressLines,
    *,
    tell: Callable[[str], None],
    late_s: int = LATE_S,
    available_now: bool = False,
) -> None:
    """Print the windows of a recording as they are closed, until ctrl-C or SIGTERM.

    They are stored in ``output/windows``. A second call with the same output continues where the first ended,
    and prints no window twice.

    Args:
        folder: of the recording; it may exist before its first event, and is not written to.
        available_now: end when all existing files have been read.

    Raises `NotARecording` if the folder does not exist, `OtherVersion`, `OutputNotWritable`, and
    `FollowFailed` if Spark has failed.
    """
    check_folder(folder)
    asked = threading.Event()
    with _interrupt_sets(asked):
        if not _wait_for_events(folder, asked):
            progress.say("ended; nothing was recorded")
            return
        make_folder(output / WINDOWS)
        backend = _Keeper(output / WINDOWS, tell)
        with explained(folder):
            query = start(folder, output, spark, backend.keep, late_s=late_s, available_now=available_now)
        progress.say(
            f"following {folder}; a second is told when the events are {late_s} s further; ctrl-C ends it"
        )
        ending, all_told = Ending(folder, late_s), False
        try:
            while query.isActive and not asked.wait(_LOOK_S):
                if available_now or not ending.looks():
                    continue
                open_s = (
                    None if query.status["isTriggerActive"] else first_open_s(output / WINDOWS / CHECKPOINT)
                )
                if ending.due(idle=open_s is not None) and open_s is not None:
                    with explained(folder):
                        backend.close(spark, folder, open_s)
                    progress.say("all runs have ended, and all of them is told; ctrl-C ends it")
                    all_told = True
        except BaseException:
            _stop(query)
            raise
        failed = query.exception()
        if query.isActive:
            progress.say("ending; ctrl-C again does not wait for what is being read")
            _stop(query)
    if backend.failed is not None and not isinstance(backend.failed, spark_errors()):
        raise backend.failed
    if failed is not None:
        raise FollowFailed(*place_and_problem(folder, str(failed))) from failed
    if asked.is_set():
        rest = "" if all_told else "; windows that are open now are told when this is started again"
        progress.say(f"ended{rest}")


def check_folder(folder: Path) -> bool:
    """Check that a folder can be followed; return whether something was recorded there, or is about to be."""
    if not folder.is_dir():
        raise NotARecording(str(folder), "is no folder")
    if (folder / RUNS).is_dir():
        check_layout(folder)
    return (folder / RUNS).is_dir() or (folder / EVENTS).is_dir()


def _wait_for_events(folder: Path, asked: threading.Event) -> bool:
    # Spark needs the folder of the events, which the recorder creates.
    while not (folder / EVENTS).is_dir():
        if asked.wait(_LOOK_S):
            return False
    return True


@contextmanager
def _interrupt_sets(asked: threading.Event) -> Iterator[None]:
    # A KeyboardInterrupt in the middle of a call to the JVM would leave the connection to it unusable: the
    # first signal sets the event, its repetition interrupts.

    first = math.inf

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first
        # A shell may send one ctrl-C twice, to the process and to its group.
        if time.monotonic() > first + _AGAIN_S:
            raise KeyboardInterrupt
        first = min(first, time.monotonic())
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(query: StreamingQuery) -> None:
    # Stop between two batches: Spark reports one that is stopped in its middle as an error, at length.
    end = time.monotonic() + _STOP_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end:
        time.sleep(_LOOK_S / 10)
    query.stop()


def start(
    folder: Path,
    output: Path,
    spark: SparkSession,
    keep: Callable[[DataFrame, int], None],
    *,
    late_s: int,
    available_now: bool,
) -> StreamingQuery:
    # No limit of files per batch: Spark would take them in the order of their times in the file system, which
    # a copied recording has lost, and late events would be omitted.
    events = spark.readStream.schema(event_type()).parquet(str(folder / EVENTS))
    writer = (
        windowed(events, late_s)
        .writeStream.outputMode("append")
        .option("checkpointLocation", str(output / WINDOWS / CHECKPOINT))
        .foreachBatch(keep)
    )
    writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=_TRIGGER)
    return writer.start()


@dataclass(slots=True)
class _Keeper:
    folder: Path
    tell: Callable[[str], None]
    # The error in the stream: Spark would report it with the traces of two languages.
    failed: Exception | None = None
    # Run and second of windows printed before the stream closed them.
    early: set[tuple[str, int]] = field(default_factory=set)
    # The stream has its own thread.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for path in self.folder.glob(f"{_REST}*.parquet"):
            self.early |= read_seconds(path)

    def keep(self, cells: DataFrame, batch: int) -> None:
        # If this raises, the batch is not complete, and the next start repeats it.
        try:
            self._keep(f"batch-{batch:08}.parquet", cells)
        except Exception as error:
            self.failed = error
            raise

    def close(self, spark: SparkSession, folder: Path, first_s: int) -> None:
        # `first_s`: the first second that the stream has left open.
        events = read_events(spark, folder).where(f"ts_ns >= {first_s * _NS}")
        number = sum(1 for _ in self.folder.glob(f"{_REST}*.parquet"))
        self._keep(f"{_REST}{number:08}.parquet", windowed(events), early=True)

    def _keep(self, name: str, cells: DataFrame, *, early: bool = False) -> None:
        windows = windows_of(cells.toArrow().to_pydict())
        with self.lock:
            windows = [each for each in windows if (each.run_id, each.start_s) not in self.early]
            if early:
                self.early |= {(each.run_id, each.start_s) for each in windows}
            try:
                new = keep_windows(self.folder / name, windows)
            except OSError as error:
                raise OutputNotWritable(str(self.folder), error.strerror or str(error)) from error
            for window in windows if new else ():
                self.tell(line_of(window))


def read_seconds(path: Path) -> set[tuple[str, int]]:
    import pyarrow.parquet as pq

    columns = pq.read_table(str(path), columns=["run_id", "start_s"]).to_pydict()
    return set(zip(columns["run_id"], columns["start_s"], strict=True))


def keep_windows(path: Path, windows: Iterable[SecondWindow]) -> bool:
    """Write windows into a file, none if there are none; return whether the file is new.

    A batch that Spark repeats after a crash has the same number and windows, and replaces its file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [asdict(window) for window in windows]
    known = path.exists()
    if not rows:
        return False
    schema = schema_of({"run_id": "string"} | columns_of(SecondWindow))
    growing = path.with_name(f"_{path.name}")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), str(growing), compression="zstd")
    os.replace(growing, path)
    return not known
