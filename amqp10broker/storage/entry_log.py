"""A durable key-value map in one file of changes, rewritten when most of it is out of date.

Values are JSON. A record is one atomic change. The present entries are in memory as the bytes of the file, so
that it can be rewritten at any time.

A change is written when it is made, so it survives the process. It survives a loss of power when the
descriptors of `fds_to_sync` have been synced; nothing that depends on it may be confirmed before. A rewritten
file has another name at first and gets every change as the old one does, until a sync has covered both. Then
it takes the old one's name, which the next sync makes durable. So no caller waits for the disk.
"""

from __future__ import annotations

import json
import os.path
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from amqp10broker.errors import DamagedFile, DiskFull, StorageError, StorageFailed
from amqp10broker.storage.disk import Disk, sync_folder
from amqp10broker.storage.logfile import LogFile
from amqp10broker.storage.record import HEADER_BYTES, FileHeader, FileReader, KnownFile, Purpose, Record

ASIDE: Final = ".new"
"""The suffix of a file that is being rewritten."""

PUT: Final = 1
"""A record of entries: a line ``[key,value]`` for each."""
FORGET: Final = 2
"""A record of removed keys: a line for each."""
CHANGE: Final = 3
"""A record of both: a line ``[key,value]`` for each entry, and ``[key]`` for each removed key."""

ALLOCATED_BYTES: Final = 256 * 1024
"""The room for changes after the end of the file."""

SPARE_BYTES: Final = 1024 * 1024
"""The file is rewritten when it is longer than twice its live bytes by more than this."""
_RECORD_BYTES_MAX: Final = 256 * 1024
_NEWER: Final = "nothing was changed; start the newer version of the broker that wrote it"
_json: Final = json.JSONEncoder(separators=(",", ":")).encode
_read_json: Final = json.JSONDecoder().raw_decode

Key = tuple[str, ...]
Value = Any


class EntryLog:
    """The entries of one file.

    Attributes:
        durable_changes: the number of the last change that survives a loss of power.
        reader: that of the opened file.
        when_written: called after each written change, which must be synced.
        trouble: why the last write failed.
        failed: why nothing can be written any more: the broker must stop.
    """

    def __init__(
        self, disk: Disk, path: str, purpose: Purpose, when_written: Callable[[], None] = lambda: None
    ) -> None:
        self.path = path
        self.changes = 0
        self.durable_changes = 0
        self.reader: FileReader | None = None
        self.trouble: StorageError | None = None
        self.failed: StorageFailed | None = None
        self._disk = disk
        self._purpose = purpose
        self._folder = os.path.dirname(path)
        self.when_written = when_written
        self._live: dict[Key, bytes] = {}
        self._live_bytes = 0
        self._written_changes = 0
        self._file: LogFile | None = None
        # The file that will replace this one, and the folder while the new name is not durable.
        self._aside: LogFile | None = None
        self._folder_fd: int | None = None
        # The bytes of the file and of the new one, and the last change in them.
        self._syncing = (0, 0, 0)
        self._rewrite_at = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def __contains__(self, key: object) -> bool:
        return key in self._live

    def __len__(self) -> int:
        return len(self._live)

    def get(self, key: Key) -> Value:
        """Return the entry of a key, or None. Raises `StorageError` if a newer version wrote it."""
        encoded = self._live.get(key)
        if encoded is None:
            return None
        try:
            _, value = json.loads(encoded)
        except ValueError as error:
            raise StorageError(self.path, f"the entry {key} cannot be understood: {error}", _NEWER) from error
        return value

    def entries(self) -> Iterator[tuple[Key, Value]]:
        for key in self._live:
            yield key, self.get(key)

    def store(self, entries: Sequence[tuple[Key, Value]]) -> None:
        """Put entries, all of them or none. Raises `StorageError` if they cannot be written."""
        changed: list[tuple[Key, bytes]] = []
        for key, value in dict(entries).items():
            encoded = _encoded([key, value])
            if self._live.get(key) != encoded:
                changed.append((key, encoded))
        if not changed:
            return
        # Earlier changes are written first. As long as that fails, nothing more is collected.
        self.flush()
        self._append(PUT, [encoded for _, encoded in changed])
        self._undoing(changed)
        for key, encoded in changed:
            self._replace(key, encoded)
        self.when_written()

    def forget(self, keys: Sequence[Key]) -> None:
        """Remove entries atomically: now, or else with the next change, or by `flush`."""
        gone = [key for key in dict.fromkeys(keys) if key in self._live]
        if not gone:
            return
        self._append(FORGET, [_encoded(key) for key in gone])
        for key in gone:
            self._live_bytes -= len(self._live.pop(key))
        try:
            self.flush()
        except StorageError:
            # The broker checks `trouble`. Deletions must continue: they make room on a full disk.
            return
        self.when_written()

    def change(self, puts: Sequence[tuple[Key, Value]], forgets: Sequence[Key]) -> None:
        put = {key: _encoded([key, value]) for key, value in puts}
        gone = [key for key in dict.fromkeys(forgets) if key in self._live]
        if not put and not gone:
            return
        self._append(CHANGE, [*put.values(), *(_encoded([key]) for key in gone)])
        for key, encoded in put.items():
            self._replace(key, encoded)
        for key in gone:
            self._live_bytes -= len(self._live.pop(key))
        try:
            self.flush()
        except StorageError:
            pass  # it is in `trouble`, and the next sync tries again
        self.when_written()

    def flush(self) -> None:
        if self.failed is not None:
            raise self.failed
        try:
            self._opened.write()
        except StorageError as error:
            self.trouble = error
            raise
        self.trouble = None
        self._written_changes = self.changes
        self._allocate()
        if self._aside is not None:
            try:
                self._aside.write()
            except StorageError:
                self._give_up_aside()

    def _allocate(self) -> None:
        # There must be room for more changes when the disk is full, too: deletions make room.
        file = self._opened
        if file.allocated < file.end + ALLOCATED_BYTES // 2:
            try:
                if not file.allocate(file.end + ALLOCATED_BYTES):
                    file.allocated = sys.maxsize  # this file system cannot allocate
            except StorageError:
                return  # with the next change

    def _undoing(self, changed: Sequence[tuple[Key, bytes]]) -> None:
        # If the record of `store` cannot be written, a record that reverses it is collected.
        try:
            self.flush()
        except StorageError:
            old = [self._live[key] for key, _ in changed if key in self._live]
            if old:
                self._append(PUT, old)
            new = [_encoded(key) for key, _ in changed if key not in self._live]
            if new:
                self._append(FORGET, new)
            raise

    def when_durable(self, told: Callable[[], None]) -> None:
        """Call a function once when all changes so far survive a loss of power, in the order of these calls;
        never, if storage fails.
        """
        self._waiting.append((self.changes, told))

    def _tell(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= self.durable_changes:
            waiting.popleft()[1]()

    def fds_to_sync(self) -> list[int]:
        """Return the descriptors to sync; call `synced` then."""
        file = self._opened
        if self.trouble is not None:
            try:
                self.flush()
            except StorageError:
                # It waits for the next time. Confirmed changes do not depend on it.
                pass
        fds = [file.fileno()] if file.written > file.synced else []
        if self._aside is not None:
            fds.append(self._aside.fileno())
        if self._folder_fd is not None:
            fds.append(self._folder_fd)
        self._syncing = file.written, 0 if self._aside is None else self._aside.written, self._written_changes
        return fds

    def synced(self) -> None:
        """Note that the descriptors of `fds_to_sync` were synced, and rewrite the file if it pays. Writing
        blocks: 100 000 bindings, which have 22 MB, took 0.14 to 0.3 s. Raises `StorageFailed` if it is
        unknown which of the two files is on the disk.
        """
        size, aside_size, changes = self._syncing
        self._opened.synced_to(size)
        self.durable_changes = max(self.durable_changes, changes)
        self._close_folder()
        if self._aside is not None and aside_size:
            self._aside.synced_to(aside_size)
            self._replace_file()
            self.when_written()
        elif self._aside is None and self._opened.written > self._rewrite_at:
            try:
                self._write_aside()
                self.when_written()
            except StorageError:
                pass  # the old file is valid
        self._tell()

    def sync(self) -> None:
        """Write and sync everything, which blocks. Raises `StorageFailed` if it may not be on the disk."""
        self.flush()
        file = self._opened
        if file.written > file.synced:
            self._sync(file.fileno())
            file.synced_to(file.written)
        if self._folder_fd is not None:
            self._sync(self._folder_fd)
            self._close_folder()
        self.durable_changes = self._written_changes

    @property
    def place(self) -> tuple[int, int]:
        return self._opened.header.file_id, self._opened.synced

    @property
    def size_bytes(self) -> int:
        return self._opened.written

    @property
    def live_bytes(self) -> int:
        return HEADER_BYTES + self._live_bytes

    def close(self) -> None:
        try:
            self.sync()
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close the file without a sync."""
        self._give_up_aside()
        self._close_folder()
        if self._file is not None:
            self._file.close()

    def _close_folder(self) -> None:
        if self._folder_fd is not None:
            self._disk.close(self._folder_fd)
            self._folder_fd = None

    @property
    def _opened(self) -> LogFile:
        assert self._file is not None, "the log is opened by open_catalog_log"
        return self._file

    def _write_aside(self) -> None:
        file = LogFile(self._disk, self.path + ASIDE, FileHeader(self._purpose, 0, self._disk.fresh_id()))
        self._aside = file
        try:
            file.make()
            # Headers are synced before records are written, so that a torn file can be distinguished from a
            # damaged one. This file does not count before all of it is synced and renamed.
            file.synced_to(HEADER_BYTES)
            for chunk in _chunks(self._live.values()):
                file.append(0, PUT, self.changes, (b"\n".join(chunk),))
            # This writes a marker after all of it: a fault before it is damage, not a torn end.
            file.synced_to(file.end)
            file.mark()
            file.write()
        except BaseException:
            self._give_up_aside()
            raise

    def _give_up_aside(self) -> None:
        # When the file has grown further there may be room for another one.
        if self._aside is not None:
            self._aside.close()
            self._aside = None
            self.remove_aside()
            if self._file is not None:
                self._rewrite_at = self._file.written + SPARE_BYTES

    def _replace_file(self) -> None:
        file, old = self._aside, self._file
        assert file is not None
        # Windows does not rename or replace open files.
        file.close()
        if old is not None:
            old.close()
        try:
            self._disk.rename(file.path, self.path)
            self._folder_fd = self._disk.open_folder(self._folder)
        except OSError as error:
            raise self._failed("replaced", error) from error
        file.path = self.path
        self._file, self._aside = file, None
        self._rewrite_at = 2 * file.written + SPARE_BYTES
        self._allocate()

    def _rewrite(self) -> None:
        self._write_aside()
        file = self._aside
        assert file is not None
        try:
            self._sync(file.fileno())
            file.synced_to(file.written)
            self._replace_file()
            assert self._folder_fd is not None
            self._sync(self._folder_fd)
            self._close_folder()
        except BaseException:
            self._give_up_aside()
            raise
        self._written_changes = self.durable_changes = self.changes

    def remove_aside(self) -> None:
        try:
            if os.path.basename(self.path) + ASIDE in self._disk.list_folder(self._folder):
                self._disk.unlink(self.path + ASIDE)
        except OSError:
            # The next attempt that needs the name, or the next start, removes it.
            return

    def _sync(self, fd: int) -> None:
        try:
            self._disk.sync(fd)
        except OSError as error:
            raise self._failed("synced", error) from error

    def _failed(self, what: str, error: OSError) -> StorageFailed:
        # The content of the disk is unknown: nothing is written from now on.
        self.failed = StorageFailed(
            self.path,
            f"cannot be {what}: {error.strerror}",
            "look at the disk (dmesg names its errors); then start again",
        )
        return self.failed

    def _append(self, kind: int, items: Sequence[bytes]) -> None:
        self.changes += 1
        record = (b"\n".join(items),)
        self._opened.append(0, kind, self.changes, record)
        if self._aside is not None:
            self._aside.append(0, kind, self.changes, record)

    def _replace(self, key: Key, encoded: bytes) -> None:
        self._live_bytes += len(encoded) - len(self._live.get(key, b""))
        self._live[key] = encoded

    def make(self) -> None:
        self.remove_aside()
        self._rewrite()

    def open(self, known: KnownFile | None = None) -> None:
        """Read the existing file, cut a torn end off, and sync it. Raises `DamagedFile`."""
        self.remove_aside()
        reader = self.read(known)
        assert reader.header is not None
        file = LogFile(self._disk, self.path, reader.header, size=reader.end)
        try:
            if reader.torn is not None:
                self._disk.truncate(file.fileno(), reader.end)
        except OSError as error:
            raise StorageError(
                self.path, f"cannot be cut: {error.strerror}", "check that it is yours to write"
            ) from error
        # Records that a killed broker wrote count as confirmed from now on.
        self._sync(file.fileno())
        try:
            sync_folder(self._disk, self._folder)
        except OSError as error:
            raise self._failed("synced with its folder", error) from error
        file.synced_to(reader.end)
        self._file = file
        self._written_changes = self.durable_changes = self.changes
        self._rewrite_at = 2 * self.live_bytes + SPARE_BYTES
        if file.written > self._rewrite_at:
            try:
                self._rewrite()
            except DiskFull:
                pass  # the old file is valid
        self._allocate()

    def read(self, known: KnownFile | None = None) -> FileReader:
        """Read the existing file without changing it. Raises `DamagedFile`."""
        self.reader = reader = FileReader(self._disk, self.path, purpose=self._purpose, number=0, last=True)
        if reader.header is None:
            raise DamagedFile(
                self.path,
                "the file is empty, and it never was",
                "nothing was changed; restore the data folder from a copy",
                offset=0,
            )
        if known is not None and known.file_id == reader.header.file_id:
            # Otherwise it was rewritten since.
            reader.synced = known.synced
        for batch in reader.batches():
            for record in batch:
                self._take(record)
        return reader

    def _take(self, record: Record) -> None:
        self.changes = record.index
        kind = record.kind
        if kind not in (PUT, FORGET, CHANGE):
            raise self._not_ours(record, f"is of kind {kind}, which this version does not have")
        try:
            for line in record.payload.split(b"\n"):
                text = line.decode("ascii")
                key = _key(text, 0 if kind == FORGET else 1)
                if kind == FORGET or (kind == CHANGE and text[_read_json(text, 1)[1]] == "]"):
                    self._live_bytes -= len(self._live.pop(key, b""))
                else:
                    self._replace(key, line)  # the value is decoded on request
        except (ValueError, TypeError, IndexError) as error:
            raise self._not_ours(record, f"cannot be understood: {error}") from error

    def _not_ours(self, record: Record, problem: str) -> DamagedFile:
        return DamagedFile(
            self.path,
            f"the record is whole, but {problem}",
            _NEWER,
            offset=record.offset,
        )


def _encoded(value: Any) -> bytes:
    # The result is one line: line ends in texts are escaped, as all characters that are not ASCII.
    return _json(value).encode()


def _key(line: str, at: int) -> Key:
    key, _ = _read_json(line, at)
    if type(key) is not list or not key or not all(type(part) is str for part in key):
        raise ValueError(f"{line[:60]!r} has no key")
    return tuple(key)


def _chunks(items: Iterable[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += len(item)
        if size >= _RECORD_BYTES_MAX:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
