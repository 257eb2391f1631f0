"""What the analysis tells while it works: its steps, and how many of Spark's tasks are done.

Spark's own progress bar is off: it overwrites lines of its own console, and knows nothing of our steps.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S: Final = 0.5
_SAY_S: Final = 3.0


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
        told, last = "", time.monotonic()
        while not ended.wait(_LOOK_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None and stage.numTasks]
            if not known or time.monotonic() - last < _SAY_S:
                continue
            done, tasks = (
                sum(stage.numCompletedTasks for stage in known),
                sum(stage.numTasks for stage in known),
            )
            text = f"reading: {done} of {tasks} parts done"
            if text != told:
                self.say(text)
                told, last = text, time.monotonic()
