"""Errors of recordings; each says what to do.

::

    BrokerError
    `-- RecordingError        the folder of a recording cannot be used; says which, and why
        |-- ArrowMissing      pyarrow is not installed
        |-- NotWritable       the folder or a file in it cannot be written; also when the disk is full
        |-- NotARecording     there is nothing that looks like a recording, or a file is damaged
        `-- OtherVersion      it was written with another layout of events
"""

from __future__ import annotations

from amqp10broker.errors import BrokerError


class RecordingError(BrokerError):
    """A recording cannot be written or read; the message says what to do."""


class ArrowMissing(RecordingError):
    """pyarrow is not installed, and Parquet is neither written nor read without it."""

    def __init__(self) -> None:
        super().__init__(
            "recordings are Parquet files and need pyarrow, which is not installed; "
            "install it with: pip install 'amqp10broker[record]'"
        )


class NotWritable(RecordingError):
    """The system does not let us write there.

    Args:
        path: which folder or file.
        problem: the system's words: "Permission denied".
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: cannot be written: {problem}; "
            "name a folder that this user may write to, on a disk that has room"
        )
        self.path = path
        self.problem = problem


class NotARecording(RecordingError):
    """Nothing there looks like a recording.

    Args:
        path: which folder or file.
        problem: what is missing or wrong, as a clause.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}; name a folder that `serve --record` or a benchmark has written: "
            "it holds the folders runs.parquet and events"
        )
        self.path = path
        self.problem = problem


class OtherVersion(RecordingError):
    """The files have another layout than this program writes.

    Args:
        path: which file.
        found: its version, None if it has none.
        known: ours.
    """

    def __init__(self, path: str, found: int | None, known: int) -> None:
        what = "has no version of recordings" if found is None else f"was recorded with layout {found}"
        super().__init__(
            f"{path}: {what}, this program reads layout {known}; "
            "read it with the version of amqp10broker that recorded it, or record anew"
        )
        self.path = path
        self.found = found
        self.known = known
