"""What the analysis tells while it works: its steps, and how many of Spark's tasks are done.

Spark's own progress bar is off: it overwrites lines of its own console, and knows nothing of our steps.
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
_SILENT_S: Final = 8.0
"""After so long something is said although nothing is new: a reader must not think that it has stopped."""


class Progress:
    """Lines with the time since the start.

    Args:
        stream: where to; None says nothing.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Tell one step."""
        if self._stream is not None:
            print(f"[{time.monotonic() - self._began:6.1f} s] {text}", file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """Say what may be a mistake, also to those who want no progress told."""
        print(f"amqp10broker: {text}", file=self._stream or sys.stderr, flush=True)

    @contextmanager
    def watching(self, spark: SparkSession) -> Iterator[None]:
        """Tell every few seconds how many tasks of what runs inside are done."""
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
        parts = Parts()
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


class Parts:
    """How many of Spark's tasks are done: never less than before.

    Spark knows what is active, and forgets what is done. So each stage that was seen stays, and has done all
    its tasks when it is active no more. Further stages make the whole larger.
    """

    def __init__(self) -> None:
        self._stages: dict[int, tuple[int, int]] = {}

    def see(self, active: Iterable[tuple[int, int, int]]) -> None:
        """Look again.

        Args:
            active: the stages that are at work: number, tasks that are done, all its tasks.
        """
        seen = {number: (done, tasks) for number, done, tasks in active}
        for number, (done, tasks) in self._stages.items():
            now, _ = seen.get(number, (tasks, tasks))
            seen[number] = max(done, now), tasks
        self._stages = seen

    def text(self) -> str:
        """For a line of progress."""
        done = sum(done for done, _ in self._stages.values())
        tasks = sum(tasks for _, tasks in self._stages.values())
        return f"reading: {done} of {tasks} parts done" if tasks else "reading: Spark prepares"
