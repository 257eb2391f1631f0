"""Progress of the analysis: its steps, and how many of Spark's tasks are done.

Spark's own progress bar is off: it overwrites lines of its own console, and does not include the other steps.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S: Final = 0.5
_SAY_S: Final = 3.0
# After such a silence a line is repeated, so that the program does not seem to have stopped.
_SILENT_S: Final = 8.0


class ProgressLines:
    """Writes lines with the time since the start. `stream`: None for no output."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        if self._stream is not None:
            print(f"[{time.monotonic() - self._began:6.1f} s] {text}", file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """Write a warning, even without output of progress."""
        print(f"amqp10broker: {text}", file=self._stream or sys.stderr, flush=True)

    @contextmanager
    def watching(self, spark: SparkSession) -> Iterator[None]:
        """Write every few seconds how many tasks of Spark inside the context are done."""
        if self._stream is None:
            yield
            return
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(spark, ended), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, spark: SparkSession, ended: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        parts = TaskProgress()
        told, last = "", time.monotonic()
        while not ended.wait(_LOOK_S):
            stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
            parts.see(
                (stage.stageId, stage.numCompletedTasks, stage.numTasks)
                for stage in stages
                if stage is not None
            )
            text, silent_s = parts.text(), time.monotonic() - last
            if silent_s >= _SILENT_S or (text != told and silent_s >= _SAY_S):
                self.say(text)
                told, last = text, time.monotonic()


class TaskProgress:
    """Counts Spark's tasks that are done; the count never decreases.

    Spark reports only active stages. So each stage that was seen is kept, and counts as done when it is no
    longer active. Further stages enlarge the total.
    """

    def __init__(self) -> None:
        self._stages: dict[int, tuple[int, int]] = {}

    def see(self, active: Iterable[tuple[int, int, int]]) -> None:
        """Update with the active stages: number, tasks that are done, all its tasks."""
        seen = {number: (done, tasks) for number, done, tasks in active}
        for number, (done, tasks) in self._stages.items():
            now, _ = seen.get(number, (tasks, tasks))
            seen[number] = max(done, now), tasks
        self._stages = seen

    def text(self) -> str:
        done = sum(done for done, _ in self._stages.values())
        tasks = sum(tasks for _, tasks in self._stages.values())
        return f"reading: {done} of {tasks} parts done" if tasks else "reading: Spark prepares"
