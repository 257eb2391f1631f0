"""What the system tells of a process and of a folder: processor time, memory, disk, the time of a sync.

Everything here is read from outside, so that looking costs the broker nothing.
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.errors import BrokerError

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# The system counts a file's room in units of this size, whatever the file system's own are (stat(2)).
_BLOCK_BYTES: Final = 512


def _stat_fields(pid: int | str) -> list[str]:
    # The command's name stands in parentheses and may hold anything; fields are counted behind it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def process_cpu_s(pid: int) -> float:
    """Return user plus system time of all threads of a process, from /proc (10 ms steps)."""
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _everything() -> Iterator[tuple[int, list[str]]]:
    """Yield each process that runs and its fields."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                yield int(entry), _stat_fields(entry)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended after the directory was read


def descendants(pid: int) -> set[int]:
    """Return the processes that came of a process, and of those."""
    parents = {child: int(fields[1]) for child, fields in _everything()}
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {pid}


def children_cpu_s(pid: int) -> float:
    """Return user plus system time of all processes that a process has started and that still run."""
    found = [fields for _, fields in _everything() if int(fields[1]) == pid]
    return sum(int(fields[11]) + int(fields[12]) for fields in found) / _TICKS_PER_S


def process_rss_bytes(pid: int) -> int:
    """Return the resident memory of a process (VmRSS).

    Raises:
        BrokerError: the process has ended.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise BrokerError(f"process {pid} has no memory: it has ended")


def folder_bytes(folder: Path) -> int:
    """Return the room that the files of a folder take on the disk; files may go while it is counted."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(path, name)).st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                continue  # the broker has removed it since
    return total


@contextmanager
def reserved_port() -> Iterator[int]:
    """Inside, a TCP port of the loopback interface that nobody gets who leaves the choice to the system.

    Who asks for this very port gets it, with SO_REUSEADDR, which servers set: nobody listens here.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@dataclass(frozen=True, slots=True)
class SyncTime:
    """How long a sync of appended bytes takes, in milliseconds."""

    p50_ms: float
    p99_ms: float

    @classmethod
    def measure(cls, folder: Path | None, size_bytes: int = 4096, count: int = 200) -> SyncTime:
        """Append to a new file and sync it, again and again, as a journal does; nothing else is done.

        Args:
            folder: on the disk in question; None is the system's folder for temporary files.
            size_bytes: appended before each sync.
            count: of syncs.
        """
        took_ms: list[float] = []
        data = os.urandom(size_bytes)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            for _ in range(count):
                file.write(data)
                began = time.perf_counter()
                os.fdatasync(file.fileno())
                took_ms.append((time.perf_counter() - began) * 1e3)
        took_ms.sort()
        return cls(statistics.median(took_ms), took_ms[min(count - 1, int(count * 0.99))])
