"""Errors of the analysis; each contains a remedy.

A folder that is not a recording is a `observe.recording.errors.RecordingError`.
"""

from __future__ import annotations

from typing import ClassVar

from amqp10broker.errors import BrokerError


class AnalysisError(BrokerError):
    """The analysis cannot be made; the message contains the remedy."""


class _Placed(AnalysisError):
    # `problem` is a clause, or a text of the system ("Permission denied") or of Spark; `advice` replaces the
    # usual remedy.

    what: ClassVar[str] = ""
    advice: ClassVar[str] = ""

    def __init__(self, path: str, problem: str, advice: str | None = None) -> None:
        super().__init__(f"{path}: {self.what}{problem}; {advice or self.advice}")
        self.path = path
        self.problem = problem


class NothingToAnalyse(_Placed):
    """The recording has events, and none counts."""

    advice = "record for longer, or analyse it when the run is over"


class OutputNotWritable(_Placed):
    """The system does not allow writing in that folder."""

    what = "cannot be written: "
    advice = "name another folder with --output"


class SparkFailed(_Placed):
    """Spark could not process the recording, or the file in the message."""

    what = "Spark has given up: "
    advice = "if the file is damaged, move it away and analyse again"


class FollowFailed(_Placed):
    """A recording is no longer followed, because Spark has failed."""

    what = "Spark has given up: "
    advice = "start again: it goes on where it was, or, if a file is damaged, move that file away first"


class CannotStart(AnalysisError):
    """Java or a package is missing, or Java does not start."""
