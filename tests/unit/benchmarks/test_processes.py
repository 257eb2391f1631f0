"""What is read of processes, folders and disks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.errors import BrokerError
from benchmarks.processes import SyncTime, children_cpu_s, folder_bytes, process_rss_bytes, reserved_port

BUSY = "import time\nwhile time.process_time() < 0.15: pass\nprint(flush=True)\ninput()"
PARENT = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_the_processor_time_of_children_is_theirs_while_they_run() -> None:
    """The helper that syncs is a child of the broker and is not counted in its own time."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # The system counts in steps of 10 ms, user and system time each.
        assert children_cpu_s(process.pid) >= 0.12
        process.communicate(b"\n")
    assert children_cpu_s(process.pid) == 0.0


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this Python has no os.waitid")
def test_a_process_that_has_ended_has_no_memory() -> None:
    """Its entry is still there until its parent has asked for it."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(BrokerError, match="has ended"):
            process_rss_bytes(process.pid)


def test_the_room_of_a_folder_is_that_of_all_files_below_it(tmp_path: Path) -> None:
    """Holes take none: a file that was only made longer counts for nothing."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "data").write_bytes(os.urandom(100_000))
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(10_000_000)
    os.sync()
    assert 100_000 <= folder_bytes(tmp_path) < 200_000


def test_the_time_of_a_sync_is_measured_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Median and 99th percentile of real syncs."""
    sync = SyncTime.measure(tmp_path, size_bytes=100, count=5)
    assert 0.0 < sync.p50_ms <= sync.p99_ms
    assert list(tmp_path.iterdir()) == []


def test_a_reserved_port_is_given_to_who_asks_for_it_and_to_nobody_else() -> None:
    """Others take many of those that are free, and a server takes this one."""
    with reserved_port() as port, ExitStack() as others:
        for _ in range(200):
            other = others.enter_context(socket.socket())
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", 0))
            assert other.getsockname()[1] != port
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(("127.0.0.1", port)),
        ):
            server.accept()[0].close()
