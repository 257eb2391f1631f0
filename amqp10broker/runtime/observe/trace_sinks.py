"""The destinations of a trace's lines: the log, a file, or a client of the admin socket."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import trio

from amqp10broker.errors import StorageError
from amqp10broker.portable import BINARY
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.trace")

FILE_BYTES_MAX: Final = 1024 * 1024 * 1024
"""The limit of a file: a forgotten trace must not fill the disk."""
LINES_WAITING_MAX: Final = 10_000
"""The lines that wait for a terminal; further ones are counted and dropped."""


class LogSink:
    """The broker's log, for ``--trace-frames``."""

    ended: str | None = None

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        for line in lines:
            _log.info(line, peer=peer, connection=number)

    def put(self, lines: Sequence[str]) -> None:
        for line in lines:
            _log.info(line)

    def close(self, reason: str) -> None: ...


class FileSink:
    """A file that only this user can read, because traces may be confidential."""

    def __init__(self, path: str) -> None:
        self.ended: str | None = None
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | BINARY, 0o600)
            self._written = os.fstat(self._file).st_size
        except OSError as error:
            raise StorageError(
                path, f"cannot be opened: {error.strerror}", "name a file that the broker's user may write"
            ) from error

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        self.put(stamped(number, lines))

    def put(self, lines: Sequence[str]) -> None:
        if self.ended is not None:
            return
        data = "".join(f"{line}\n" for line in lines).encode()
        if self._written + len(data) > FILE_BYTES_MAX:
            self._stop(f"the file has {FILE_BYTES_MAX // 1024**2} MiB")
            return
        try:
            self._written += os.write(self._file, data)
        except OSError as error:
            self._stop(f"the file cannot be written: {error.strerror}")

    def close(self, reason: str) -> None:
        if self.ended is None:
            self.ended = reason
            os.close(self._file)

    def _stop(self, reason: str) -> None:
        _log.warning("a trace has ended", reason=reason)
        self.close(reason)


class StreamSink:
    """Lines for one client of the admin socket."""

    def __init__(self) -> None:
        self.ended: str | None = None
        self._lines: deque[str] = deque()
        self._left_out = 0
        self._notifications = trio.Event()

    def write(self, number: int, peer: str, lines: Sequence[str]) -> None:
        self.put(stamped(number, lines))

    def put(self, lines: Sequence[str]) -> None:
        room = LINES_WAITING_MAX - len(self._lines)
        self._left_out += max(len(lines) - room, 0)
        self._lines.extend(lines[:room])
        self._notifications.set()

    def close(self, reason: str) -> None:
        if self.ended is None:
            self.ended = reason
        self._notifications.set()

    async def take(self) -> tuple[list[str], int]:
        """Wait for lines, or the end. Returns the lines, and how many later ones were dropped."""
        await self._notifications.wait()
        lines, left_out = list(self._lines), self._left_out
        self._lines.clear()
        self._left_out = 0
        if self.ended is None:
            self._notifications = trio.Event()
        return lines, left_out


def stamped(number: int, lines: Sequence[str]) -> list[str]:
    """Return lines with time and connection; control characters are escaped."""
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return [
        f"{now} connection {number} "
        + (line if line.isprintable() else line.encode("unicode_escape").decode("ascii"))
        for line in lines
    ]
