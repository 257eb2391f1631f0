"""The spool of a queue source: a folder that stores messages before they are settled.

A segment is a file that is written once and never changed: under a temporary name, synced, renamed, the
folder synced. Only then may its messages be settled, and only then is its number given to Spark as an offset;
so whatever is in Spark's checkpoint is on the disk, and the same numbers always mean the same rows.

==========================  ===============================================================================
``spool.json``              owner of the spool, and for a batch query the number of segments when complete
``lock``                    locked by the one process that takes messages
``NUMBER.ROWS.CRC.arrow``   a segment: rows as an Arrow IPC file; the name has their count and CRC-32
``NUMBER.COUNT.CRC.ids``    message-ids of a segment that was removed (`deduplication`)
``*.tmp``                   left by a crash, removed at the next start
==========================  ===============================================================================

Numbers begin with 1, have no gaps and are not reused: the newest segment is never removed. All disk calls go
through `Disk`, for fault tests.
"""

from __future__ import annotations

import json
import os.path
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from amqp10broker.dataclass import dataclass
from amqp10broker.spark.errors import OptionError, SpoolError
from amqp10broker.storage.disk import Disk

MANIFEST: Final = "spool.json"
LOCK: Final = "lock"
TEMPORARY: Final = ".tmp"
FORMAT_VERSION: Final = 1
DIGEST_BYTES: Final = 16
# A segment ends with the message that reaches this size, whatever maxMessagesPerTrigger is: it is in memory.
SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
# The default of the largest message in this broker and in RabbitMQ 4.
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
# The message that ends a segment may arrive when only one byte is left.
SEGMENT_ROOM_BYTES: Final = SEGMENT_BYTES_MAX + MESSAGE_BYTES_MAX
# A query that was just stopped may still have its process, which holds the lock.
LOCK_WAIT_S: Final = 30.0
_LOCK_POLL_S: Final = 0.05
_NAME: Final = re.compile(r"(\d{12})\.(\d+)\.([0-9a-f]{8})\.(arrow|ids)")
_ELSEWHERE: Final = "give each query a spoolLocation of its own"


@dataclass(frozen=True, slots=True)
class SpoolOwner:
    """The query that owns a spool; another owner is refused."""

    use: str
    queue: str
    broker: str
    vhost: str


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A segment, or the message-ids of one, as in its file name. `count` is of rows or message-ids."""

    number: int
    count: int
    crc: int
    kind: str = "arrow"

    @property
    def name(self) -> str:
        return f"{self.number:012d}.{self.count}.{self.crc:08x}.{self.kind}"


class QueueSpool:
    """An open spool, locked by this process. Made by `open_spool`.

    Its methods raise SpoolError if the disk fails, or a file is missing or damaged. `segments`: those on the
    disk, ascending and without a gap. `sealed`: number of segments that a batch query has in all; None while
    it is incomplete.
    """

    def __init__(self, path: str, disk: Disk, owner: SpoolOwner, lock: int) -> None:
        self.path = path
        self.id = ""
        self.segments: list[SpoolFile] = []
        self.ids: list[SpoolFile] = []
        self.sealed: int | None = None
        self._disk = disk
        self._owner = owner
        self._lock: int | None = lock
        self._failed = False

    @property
    def newest(self) -> int:
        """Return the number of the newest segment, 0 if there has never been one."""
        return self.segments[-1].number if self.segments else 0

    @property
    def oldest(self) -> int:
        """Return the number of the oldest segment on the disk, 1 if there has never been one."""
        return self.segments[0].number if self.segments else 1

    def between(self, start: int, end: int) -> list[SpoolFile]:
        """Return the segments after `start` up to and including `end`."""
        found = [segment for segment in self.segments if start < segment.number <= end]
        if len(found) != max(0, end - start):
            have = {segment.number for segment in found}
            missing = next(number for number in range(start + 1, end + 1) if number not in have)
            raise SpoolError(
                f"{self.path}: segment {missing} is gone, and with it messages that Spark's checkpoint still "
                "asks for: restore the folder from a copy, or begin anew with another checkpointLocation and "
                "another spoolLocation, without those messages"
            )
        return found

    def file_path(self, file: SpoolFile) -> str:
        return os.path.join(self.path, file.name)

    def check_room(self) -> None:
        """Check that the disk has room for a segment; called before messages are taken."""
        with _translated(self.path, "use"):
            free = self._disk.free_bytes(self.path)
        if free < SEGMENT_ROOM_BYTES:
            raise SpoolError(
                f"the file system of {self.path} has {free // 1_000_000} MB left, and a segment may need "
                f"{SEGMENT_ROOM_BYTES // 1_000_000}: make room and start the query again; nothing was taken "
                "from the queue"
            )

    def append(self, pieces: Sequence[bytes], rows: int) -> SpoolFile:
        """Write the next segment, which survives a loss of power when this returns. Raises `SpoolError` if
        the segment may or may not exist; open the spool again to find out.
        """
        segment = SpoolFile(self.newest + 1, rows, zlib.crc32(b"".join(pieces)))
        self._write(segment.name, pieces)
        self.segments.append(segment)
        return segment

    def remove_through(self, number: int, ids_of: Callable[[SpoolFile], bytes] | None = None) -> None:
        """Remove segments that will not be read again, except the newest. `ids_of`: returns the message-ids
        of a segment, to store in its place; None to store none.
        """
        while len(self.segments) > 1 and self.segments[0].number <= number:
            segment = self.segments[0]
            if ids_of is not None and (digests := ids_of(segment)):
                kept = SpoolFile(segment.number, len(digests) // DIGEST_BYTES, zlib.crc32(digests), "ids")
                self._write(kept.name, [digests])
                self.ids.append(kept)
            self._unlink(segment.name)
            del self.segments[0]

    def remove_ids(self, file: SpoolFile) -> None:
        self._unlink(file.name)
        self.ids.remove(file)

    def seal(self) -> None:
        """Record that a batch query has all its segments."""
        self._write_manifest(len(self.segments))
        self.sealed = len(self.segments)

    def read(self, file: SpoolFile) -> bytes:
        """Return the bytes of a segment or of message-ids."""
        with _translated(self.file_path(file), "read"):
            data = _read_all(self._disk, self.file_path(file))
        check(self.file_path(file), data, file.crc)
        return data

    def close(self) -> None:
        if self._lock is not None:
            self._disk.close(self._lock)
            self._lock = None

    # --- opening ------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the folder. Called by `open_spool`."""
        with _translated(self.path, "read"):
            names = self._disk.list_folder(self.path)
        for name in names:
            if name.endswith(TEMPORARY) and _ours(name):
                self._unlink(name)
        if MANIFEST in names:
            self._read_manifest()
        else:
            self.id = f"{self._disk.fresh_id():016x}"
            self._sync_folder(os.path.dirname(self.path) or ".")
            self._write_manifest(None)
        # A rename that was not synced before a crash must not be relied on: Spark would record its number,
        # and a later loss of power could remove the segment.
        self._sync_folder(self.path)
        parts = sorted(
            (int(found[1]), int(found[2]), int(found[3], 16), found[4])
            for name in names
            if (found := _NAME.fullmatch(name))
        )
        files = [SpoolFile(*each) for each in parts]
        self.ids = [file for file in files if file.kind == "ids"]
        segments = [file for file in files if file.kind == "arrow"]
        # Removals are not synced: a loss of power may undo some of them. Segments below a gap are not needed.
        start = len(segments) - 1
        while start > 0 and segments[start - 1].number == segments[start].number - 1:
            start -= 1
        for leftover in segments[: max(start, 0)]:
            self._unlink(leftover.name)
        self.segments = segments[max(start, 0) :]

    def _read_manifest(self) -> None:
        path = os.path.join(self.path, MANIFEST)
        with _translated(path, "read"):
            data = _read_all(self._disk, path)
        try:
            found: dict[str, Any] = json.loads(data)
            version, self.id, self.sealed = found["format"], found["id"], found["sealed"]
            owner = SpoolOwner(found["use"], found["queue"], found["broker"], found["vhost"])
        except (ValueError, KeyError, TypeError) as error:
            raise SpoolError(
                f"{path} is damaged: restore it from a copy, or take another spoolLocation; the segments "
                "beside it are Arrow IPC files that any tool can read"
            ) from error
        if version != FORMAT_VERSION:
            raise SpoolError(
                f"{path} has format {version}, and this version of amqp10broker reads 1: upgrade it"
            )
        if owner != self._owner:
            raise SpoolError(
                f"{self.path} is the spool of {_described(owner)}, and this is {_described(self._owner)}: "
                f"{_ELSEWHERE}. If it is the same broker under a new address, correct {path}"
            )

    def _write_manifest(self, sealed: int | None) -> None:
        found = {"format": FORMAT_VERSION, "id": self.id, **asdict(self._owner), "sealed": sealed}
        self._write(MANIFEST, [json.dumps(found, indent=1).encode()])

    # --- the disk -----------------------------------------------------------------------------------

    def _write(self, name: str, pieces: Sequence[bytes]) -> None:
        if self._failed:
            raise SpoolError(f"{self.path}: a write failed before; start the query again")
        path = os.path.join(self.path, name)
        # Cleared on success: after a failed sync the state of the disk is unknown.
        self._failed = True
        with _translated(path, "write"):
            fd = self._disk.create(path + TEMPORARY)
            try:
                self._disk.write(fd, 0, pieces)
                self._disk.sync(fd)
            finally:
                self._disk.close(fd)
            self._disk.rename(path + TEMPORARY, path)
        self._sync_folder(self.path)
        self._failed = False

    def _unlink(self, name: str) -> None:
        path = os.path.join(self.path, name)
        with _translated(path, "remove"):
            self._disk.unlink(path)

    def _sync_folder(self, path: str) -> None:
        with _translated(path, "sync"):
            fd = self._disk.open_folder(path)
            try:
                self._disk.sync(fd)
            finally:
                self._disk.close(fd)


def open_spool(
    location: str, owner: SpoolOwner, *, disk: Disk | None = None, lock_wait_s: float | None = None
) -> QueueSpool:
    """Lock a spool for this process, and create it if it does not exist.

    Args:
        disk: the files; the system's own if None.
        lock_wait_s: how long to wait for another process to release it; None for `LOCK_WAIT_S`.

    Raises:
        OptionError: the location is not a folder of this machine.
        SpoolError: another process has locked it, it belongs to another query, it is damaged, or the disk
            failed.
    """
    disk = disk or Disk()
    path = local_path(location)
    with _translated(path, "make"):
        if not disk.is_folder(path):
            if not disk.is_folder(os.path.dirname(path)):
                raise SpoolError(
                    f"there is no folder {os.path.dirname(path)} for the spool {os.path.basename(path)}: "
                    "make it, on a file system that the driver and all workers see, or correct the option "
                    "spoolLocation"
                )
            disk.make_folder(path)
        names = disk.list_folder(path)
    if MANIFEST not in names and not all(map(_ours, names)):
        raise SpoolError(
            f"{path} holds other files and no spool: give a spoolLocation that is empty or not there"
        )
    lock = _lock(path, disk, LOCK_WAIT_S if lock_wait_s is None else lock_wait_s)
    spool = QueueSpool(path, disk, owner, lock)
    try:
        spool.load()
    except BaseException:
        spool.close()
        raise
    return spool


def local_path(location: str) -> str:
    """Return the folder that the option spoolLocation names; raise OptionError if it is not a local path."""
    allowed = (
        "must be an absolute path, or file:///path, of a file system that the driver and all workers see"
    )
    path = location
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", location):
        parts = urlsplit(location)
        if parts.scheme.lower() != "file":
            raise OptionError(
                "spoolLocation",
                f"is '{location}'",
                f"{allowed}: object stores neither sync nor rename, which nothing lost depends on",
            )
        if parts.netloc not in ("", "localhost"):
            raise OptionError("spoolLocation", f"is '{location}', which names a host", allowed)
        path = unquote(parts.path)
    if not os.path.isabs(path):
        raise OptionError("spoolLocation", f"is '{location}'", allowed)
    return os.path.normpath(path)


def check(path: str, data: bytes, crc: int) -> None:
    """Raise SpoolError unless the bytes have this CRC-32."""
    if zlib.crc32(data) != crc:
        raise SpoolError(
            f"{path} is damaged: its bytes are not those that were written. Restore it from a copy; without "
            "one, begin anew with another checkpointLocation and another spoolLocation"
        )


def _ours(name: str) -> bool:
    name = name.removesuffix(TEMPORARY)
    return name in (LOCK, MANIFEST) or _NAME.fullmatch(name) is not None


def _lock(path: str, disk: Disk, wait_s: float) -> int:
    name = os.path.join(path, LOCK)
    with _translated(name, "lock"):
        try:
            fd = disk.create(name)
        except FileExistsError:
            fd = disk.open(name, write=True)
        deadline = time.monotonic() + wait_s
        try:
            while not disk.lock(fd):
                if time.monotonic() >= deadline:
                    raise SpoolError(
                        f"another query uses the spool {path}: {_ELSEWHERE}, or stop the other query"
                    )
                time.sleep(_LOCK_POLL_S)
        except BaseException:
            disk.close(fd)
            raise
    return fd


@contextmanager
def _translated(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpoolError(
            f"cannot {what} {path}: {error.strerror or error}; what was not settled is still in the queue. "
            "Mend that (room, permissions, the mount) and start the query again"
        ) from error


def _read_all(disk: Disk, path: str) -> bytes:
    fd = disk.open(path)
    try:
        return disk.read(fd, 0, disk.size(fd))
    finally:
        disk.close(fd)


def _described(owner: SpoolOwner) -> str:
    vhost = f", virtual host '{owner.vhost}'" if owner.vhost else ""
    return f"a {owner.use} query of queue '{owner.queue}' at {owner.broker}{vhost}"
