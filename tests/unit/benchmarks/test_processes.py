"""What is read of processes, folders and disks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.processes import SyncTime, children_cpu_s

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


def test_the_time_of_a_sync_is_measured_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Median and 99th percentile of real syncs."""
    sync = SyncTime.measure(tmp_path, size_bytes=100, count=5)
    assert 0.0 < sync.p50_ms <= sync.p99_ms
    assert list(tmp_path.iterdir()) == []
