"""Detects the end of a followed recording, and closes its last seconds.

A stream closes a second when later events have arrived, so its last seconds would stay open for ever. When
each run has its end, and no file has appeared for as long as files may be late, the open seconds are computed
as a batch. If another run begins later, the stream closes the same seconds again, and they are omitted there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from amqp10broker.observe.recording.errors import RecordingError
from amqp10broker.observe.recording.runs import read_runs
from amqp10broker.tools.analysis.inputs import event_files

_LOOK_S: Final = 2.0
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
        """Return whether it is time to look again, since listing the files of a recording is expensive."""
        now = self._clock()
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        return True

    def due(self, *, idle: bool) -> bool:
        """Return whether the recording is over; True once, until another file appears.

        `idle` means that the stream has read all files, and closed as many windows as it could.
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
            # No row yet, or one that is being replaced: the next look finds it.
            return False
        return all(runs.get(run_id) is not None for run_id in event_files(self._folder))


def first_open_s(checkpoint: Path) -> int | None:
    """Return the first second that the stream has not closed, since 1970, or None before its first event.

    Reads the checkpoint, since a query that was started again and is idle has no watermark in its progress:
    the log of offsets has the watermark of a batch, and the log of commits shows that the batch is complete.
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
