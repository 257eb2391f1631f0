"""Errors of the analysis; each says what to do.

::

    BrokerError
    `-- AnalysisError
        |-- NothingToAnalyse    the recording is whole, and nothing in it counts
        |-- OutputNotWritable   report and tables cannot be written
        |-- SparkFailed         Spark has given up in the middle
        |-- FollowFailed        likewise, while a recording was followed
        `-- CannotStart         something that the analysis needs is not installed

A folder that is no recording is a `recording.errors.RecordingError`.
"""

from __future__ import annotations

from typing import ClassVar

from amqp10broker.errors import BrokerError


class AnalysisError(BrokerError):
    """The analysis cannot be made; the message says what to do."""


class _Placed(AnalysisError):
    """An error about a file or a folder.

    Args:
        path: which.
        problem: what is wrong: a clause, or the words of the system ("Permission denied") or of Spark.
        advice: what to do, if not what helps with this error mostly.
    """

    what: ClassVar[str] = ""
    advice: ClassVar[str] = ""

    def __init__(self, path: str, problem: str, advice: str | None = None) -> None:
        super().__init__(f"{path}: {self.what}{problem}; {advice or self.advice}")
        self.path = path
        self.problem = problem


class NothingToAnalyse(_Placed):
    """There are events, and none counts."""

    advice = "record for longer, or analyse it when the run is over"


class OutputNotWritable(_Placed):
    """The system does not let us write in that folder."""

    what = "cannot be written: "
    advice = "name another folder with --output"


class SparkFailed(_Placed):
    """Spark could not do what was asked of it with the recording, or with the file that it named."""

    what = "Spark has given up: "
    advice = "if the file is damaged, move it away and analyse again"


class FollowFailed(_Placed):
    """A recording is not followed any more, for Spark has given up."""

    what = "Spark has given up: "
    advice = "start again: it goes on where it was, or, if a file is damaged, move that file away first"


class CannotStart(AnalysisError):
    """Java or a package is missing, or Java does not start; the message says what to do."""
