"""Errors of recordings; each contains a remedy."""

from __future__ import annotations

from amqp10broker.errors import BrokerError


class RecordingError(BrokerError):
    """A recording cannot be written or read; the message contains the remedy."""


class ArrowMissing(RecordingError):
    """pyarrow is not installed, which reading and writing Parquet need."""

    def __init__(self) -> None:
        super().__init__(
            "recordings are Parquet files and need pyarrow, which is not installed; "
            "install it with: pip install 'amqp10broker[record]'"
        )


class NotWritable(RecordingError):
    """The system does not allow writing there.

    `problem` is the system's text: "Permission denied".
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: cannot be written: {problem}; "
            "name a folder that this user may write to, on a disk that has room"
        )
        self.path = path
        self.problem = problem


class NotARecording(RecordingError):
    """The path does not contain a valid recording.

    `problem` is a clause: what is missing or wrong.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}; name a folder that `serve --record` or a benchmark has written: "
            "it holds the folders runs.parquet and events"
        )
        self.path = path
        self.problem = problem


class OtherVersion(RecordingError):
    """The files have another layout than this program writes. `found`: the file's version, None if it has
    none.
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
