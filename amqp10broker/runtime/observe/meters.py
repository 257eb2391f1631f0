"""Measurements of limited resources: this process's memory, and free space on a disk.

Memory is the resident set, as in RabbitMQ. The C library keeps freed memory, so with glibc it must release
its free pages before publishers are blocked. A meter returns None where the system has no figure.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Final

from amqp10broker import portable

_CGROUPS: Final = "/sys/fs/cgroup"


class Meter:
    """The measurements of the broker, replaced in tests."""

    def __init__(self) -> None:
        self._trim: Callable[[int], object] | None = None
        self._asked = False

    def memory_used(self) -> int | None:
        return portable.resident_bytes()

    def memory_total(self) -> int | None:
        return memory_total(read_text)

    def disk_free(self, path: str) -> int | None:
        try:
            return shutil.disk_usage(path).free
        except OSError:
            return None

    def busy_s(self) -> float:
        return time.process_time()

    def give_back(self) -> None:
        """Hand memory that is held free back to the system, as far as that is possible."""
        if not self._asked:
            self._trim = getattr(portable.libc(), "malloc_trim", None)
            self._asked = True
        if self._trim is not None:
            self._trim(0)


def rss_bytes() -> int:
    """Resident memory of this process; 0 if the system has no figure."""
    return portable.resident_bytes() or 0


def memory_total(read: Callable[[str], str]) -> int | None:
    """Bytes that a process may use: the machine's memory, or a lower limit of a control group or
    `ulimit -v`.
    """
    limits = (portable.machine_memory(), _address_space(read), *_control_group_limits(read))
    return min((limit for limit in limits if limit is not None), default=None)


def _address_space(read: Callable[[str], str]) -> int | None:
    limit = portable.limit("RLIMIT_AS")
    if limit is None:
        return None
    figures = read("/proc/self/statm").split()[:2]
    if len(figures) == 2 and all(each.isdigit() for each in figures):
        size, resident = map(int, figures)
        limit -= (size - resident) * portable.page_bytes()
    return max(limit, 1)


def _control_group_limits(read: Callable[[str], str]) -> Iterator[int | None]:
    for line in read("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            root, file = _CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, file = f"{_CGROUPS}/memory", "memory.limit_in_bytes"
        else:
            continue
        relative = PurePosixPath(path.lstrip("/"))
        for group in (relative, *relative.parents):
            written = read(str(PurePosixPath(root) / group / file)).strip()
            # "max" in version 2; version 1 says it with a number near 2**63.
            if written.isascii() and written.isdigit():
                yield int(written)


def read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
