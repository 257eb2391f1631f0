"""Errors of recordings; each contains a remedy."""

from __future__ import annotations

import re
from typing import Final

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


_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# The length of a chosen run name, which leaves room for a number behind it.
NAME_MAX: Final = 120


def check_run_id(name: str, what: str = "run id") -> str:
    """Return a name that is valid as a run id, or as a prefix of files.

    Letters, digits, ``.``, ``_`` and ``-``, at most 128, and a letter or digit first: readers ignore files
    that begin with ``_`` or ``.``. Readers must declare the partition column as text: those that infer types
    take ``2026-01-01`` for a date. Raises `ValueError` if the name is invalid; the message contains the rule.
    """
    if not _SAFE.fullmatch(name):
        raise ValueError(
            f"{what} is {name!r}; it must be 1 to 128 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return name


def check_run_name(name: str) -> str:
    """Return a name that is valid for many runs, each but the first with a number behind it. Raises
    `ValueError` if it is not a run id, or too long for a number.
    """
    check_run_id(name)
    if len(name) > NAME_MAX:
        raise ValueError(
            f"run id has {len(name)} letters; a name for runs must have {NAME_MAX} at most, because the runs "
            "that follow get a number behind it"
        )
    return name


def numbered(name: str, number: int) -> str:
    """Return the id of the n-th run of a name: ``prod``, ``prod-2``, ``prod-3``."""
    return name if number == 1 else f"{name}-{number}"
