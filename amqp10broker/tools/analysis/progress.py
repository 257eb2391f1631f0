"""Progress of the analysis: a line for each of its steps. Spark's own progress bar is off."""

from __future__ import annotations

import sys
import time
from typing import TextIO


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
