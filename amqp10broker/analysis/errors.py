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

from amqp10broker.errors import BrokerError


class AnalysisError(BrokerError):
    """The analysis cannot be made; the message says what to do."""


class NothingToAnalyse(AnalysisError):
    """There are events, and none counts.

    Args:
        path: of the recording.
        problem: why, as a clause.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}; record for longer, or analyse it when the run is over")
        self.path = path
        self.problem = problem


class OutputNotWritable(AnalysisError):
    """The system does not let us write there.

    Args:
        path: which folder.
        problem: the system's words: "Permission denied".
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: cannot be written: {problem}; name another folder with --output")
        self.path = path
        self.problem = problem


class SparkFailed(AnalysisError):
    """Spark could not do what was asked of it.

    Args:
        path: of the recording, or of the file that Spark named.
        problem: what Spark said.
        advice: what to do.
    """

    def __init__(self, path: str, problem: str, advice: str) -> None:
        super().__init__(f"{path}: Spark has given up: {problem}; {advice}")
        self.path = path
        self.problem = problem


class FollowFailed(AnalysisError):
    """A recording is not followed any more.

    Args:
        path: of the recording.
        problem: what Spark said.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: Spark has given up: {problem}; start again: it goes on where it was, or, if a file is "
            "damaged, move that file away first"
        )
        self.path = path
        self.problem = problem


class CannotStart(AnalysisError):
    """Java or a package is missing, or Java does not start; the message says what to do."""
