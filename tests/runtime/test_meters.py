"""Measuring this process and the machine: what files say, and what is done where they say nothing."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from amqp10broker import portable
from amqp10broker.runtime.observe.meters import Meter, memory_total, rss_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


ADDRESSES = 10_000_000_000
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("limit", "statm", "expected"),
    [
        (resource.RLIM_INFINITY, "1000 100 1", MACHINE),
        (100_000_000, "1000 100 1", 100_000_000 - 900 * PAGE),
        (100_000_000, "", 100_000_000),
        (1_000, "1000 100 1", 1),
    ],
)
def test_an_address_space_that_is_limited_is_a_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int, statm: str, expected: int
) -> None:
    """The limit is ``ulimit -v`` less the used addresses that have no memory in RAM behind them."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, resource.RLIM_INFINITY))
    assert total({"/proc/self/statm": statm}) == expected


def test_a_process_with_a_limited_address_space_knows_it() -> None:
    """A shell sets the limit for the broker that it starts."""
    text = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); "
        "from amqp10broker.runtime.observe.meters import Meter; print(Meter().memory_total())"
    )
    shown = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    assert 0 < int(shown.stdout) <= min(2**30, MACHINE)


def total(files: dict[str, str]) -> int | None:
    return memory_total(lambda path: files.get(path, ""))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, MACHINE),
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "1000\n"}, 1000),
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "max\n"}, MACHINE),
        (
            {
                "/proc/self/cgroup": "0::/a/b\n",
                "/sys/fs/cgroup/a/b/memory.max": "3000\n",
                "/sys/fs/cgroup/a/memory.max": "2000\n",
            },
            2000,
        ),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "7\n"}, 7),
        ({"/proc/self/cgroup": "0::/lost/on/the/host\n", "/sys/fs/cgroup/memory.max": "7\n"}, 7),
        (
            {
                "/proc/self/cgroup": "5:cpu:/x\n4:hugetlb,memory:/m\n0::/\n",
                "/sys/fs/cgroup/memory/m/memory.limit_in_bytes": "4096\n",
            },
            4096,
        ),
        (
            {
                "/proc/self/cgroup": "4:memory:/m\n",
                "/sys/fs/cgroup/memory/m/memory.limit_in_bytes": "9223372036854771712\n",
            },
            MACHINE,
        ),
        (
            {
                "/proc/self/cgroup": "4:memory:/docker/1\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "8192\n",
            },
            8192,
        ),
        ({"/proc/self/cgroup": "nonsense\n::\n", "/sys/fs/cgroup/memory.max": "-1\n"}, MACHINE),
    ],
)
def test_the_smallest_limit_of_machine_and_control_groups_counts(
    files: dict[str, str], expected: int
) -> None:
    """Both cgroup versions and parent groups count; in a container the group is at the root."""
    assert total(files) == expected


def test_of_an_unknown_machine_only_control_groups_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    assert total({}) is None
    assert total({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "7\n"}) == 7
    assert rss_bytes() == 0
    assert Meter().memory_used() is None


def test_this_machine_can_be_measured(tmp_path: Path) -> None:
    meter = Meter()
    used, most = meter.memory_used(), meter.memory_total()
    assert 5_000_000 < used < most <= MACHINE
    free = meter.disk_free(str(tmp_path))
    assert free > 0
    assert meter.disk_free(str(tmp_path / "missing")) is None


@pytest.mark.skipif(
    sys.platform != "linux" or sys.implementation.name != "cpython",
    reason="glibc is Linux's, and PyPy takes no memory of objects from it",
)
def test_freed_memory_leaves_the_resident_set_when_it_is_given_back() -> None:
    """Blocks that malloc serves from its heap stay resident when freed below one that lives."""
    meter = Meter()
    meter.give_back()
    blocks = [bytes(4_000) for _ in range(20_000)]
    lives = bytes(4_001)
    filled = rss_bytes()
    del blocks
    meter.give_back()
    assert filled - rss_bytes() > 60_000_000
    assert len(lives) == 4_001


def test_without_the_function_nothing_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C library may have no malloc_trim."""
    monkeypatch.setattr(portable, "libc", lambda: None)
    Meter().give_back()
