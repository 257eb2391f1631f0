"""Measurements of limited resources, this process's memory and free space on a disk, and of faults of clocks.

Memory is the resident set, as in RabbitMQ. The C library keeps freed memory, so with glibc it must release
its free pages before publishers are blocked. A meter returns None where the system has no figure.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Final

import trio

from amqp10broker import portable
from amqp10broker.queues.quorum.durability import AHEAD_MS_MAX, Clocks, QuorumInLog, difference
from amqp10broker.runtime.context import BrokerContext
from amqp10broker.runtime.log import Log

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
        """Return free memory to the system, as far as that is possible."""
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
            # Version 2 has "max"; version 1 has a number near 2**63.
            if written.isascii() and written.isdigit():
                yield int(written)


def read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


_log = Log("amqp10broker.clock")

LOOK_S: Final = 5


class ClockWatch:
    """Logs faults of the machine's clock and of other nodes' clocks, and queues with a time that an earlier
    leader set ahead. `queues`: those that this node leads and whose time was ahead when it began to.
    """

    def __init__(self, node_context: BrokerContext) -> None:
        self._node_context = node_context
        self._began_s = _apart_s()
        self.others = Clocks()
        self.queues: set[QuorumInLog] = set()

    def notes(self) -> dict[str, str]:
        """Return a sentence for each present fault, by the name of its subject."""
        catalog, now_ms = self._node_context.catalog, self._node_context.clock.now_ms()
        found = self.others.notes({node.number: node.name for node in catalog.nodes.values()})
        ahead = {queue: queue.ahead_ms(now_ms) for queue in self.queues}
        self.queues.difference_update(queue for queue, ahead_ms in ahead.items() if not ahead_ms)
        if (most_ms := max(ahead.values(), default=0)) >= AHEAD_MS_MAX:
            found["time of queues"] = (
                f"the time of quorum queues that this node leads ({len(self.queues)}) is up to "
                f"{difference(most_ms)} the clock, as that of an earlier leader was: it goes on a tenth "
                "slower until the clock is there"
            )
        set_ms = int((_apart_s() - self._began_s) * 1000)
        if abs(set_ms) >= AHEAD_MS_MAX:
            found["clock of the machine"] = (
                f"the machine's clock was set: it is {difference(set_ms)} the time that the broker goes by; "
                "restart it"
            )
        return found

    async def run(self) -> None:
        known: dict[str, str] = {}
        while True:
            notes = self.notes()
            for about, text in notes.items():
                if about not in known:
                    _log.warning("clock is wrong", about=about, reason=text)
            for about in known.keys() - notes.keys():
                _log.warning("clock is right again", about=about)
            known = notes
            await trio.sleep(LOOK_S)


def _apart_s() -> float:
    return time.time() - time.monotonic()
