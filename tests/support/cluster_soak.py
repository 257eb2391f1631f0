"""A cluster for a long time: one fault after the other under load, and what it costs the nodes.

``python -m tests.support.cluster_soak --minutes 60`` goes in rounds, each with queues of its own that are
looked at and deleted at its end (`cluster_nemesis`). Memory, descriptors and files of each node are noted
after every fault; the report has the highest of each quarter of the time, which should not grow.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.cluster_nemesis import Nemesis, finish, is_allowed, quiet_clients, run
from tests.support.cluster_network import CutCluster
from tests.support.cluster_process import ClusterNode

_log: Final = logging.getLogger(__name__)
ROUND_S: Final = 300.0
FAULT_EACH_S: Final = 20.0
PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """What a node takes.

    Attributes:
        at: by the monotonic clock.
        rss_kib: of its process, without helpers.
        descriptors: that are open.
        files: in its folder.
        folder_kib: of them.
    """

    at: float
    rss_kib: int
    descriptors: int
    files: int
    folder_kib: int

    def row(self) -> str:
        """For people."""
        return (
            f"{self.rss_kib / 1024:.0f} MiB, {self.descriptors} descriptors, {self.files} files of "
            f"{self.folder_kib / 1024:.0f} MiB"
        )


def cost(node: ClusterNode) -> Cost | None:
    """What it takes now; None: it does not run."""
    pid = node.pid
    if pid is None:
        return None
    sizes: list[int] = []
    for path in node.folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file() and path.name != "log":
                sizes.append(path.stat().st_blocks // 2)
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    (rss,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
    return Cost(time.monotonic(), int(rss), descriptors, len(sizes), sum(sizes))


def highest(costs: Iterable[Cost]) -> Cost:
    """The highest of each."""
    given = list(costs)
    return Cost(
        max(each.at for each in given),
        max(each.rss_kib for each in given),
        max(each.descriptors for each in given),
        max(each.files for each in given),
        max(each.folder_kib for each in given),
    )


class Soak:
    """A run.

    Attributes:
        costs: by name of the node, in order of time.
        faults: how often each was done.
        confirmed, deliveries: of all rounds.
    """

    def __init__(self, cluster: CutCluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.costs: dict[str, list[Cost]] = {node.name: [] for node in cluster.nodes}
        self.faults: dict[str, int] = {}
        self.confirmed = 0
        self.deliveries = 0
        self.rounds = 0

    def go(self, seconds: float) -> None:
        """Rounds until the time is over, then a report."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            left = seconds - (time.monotonic() - began)
            seed = self.rng.randrange(1 << 30)
            nemesis = run(
                self.cluster,
                f"soak-{self.rounds}",
                seed,
                min(ROUND_S, left),
                each_s=FAULT_EACH_S,
                pace_s=0.4,
                on_fault=self.note,
            )
            finish(self.cluster, nemesis)
            self._count(nemesis)
            nemesis.clear()
            self.note()
            self.report(began)

    def note(self) -> None:
        """What the nodes take now."""
        for node in self.cluster.nodes:
            found = cost(node)
            if found is not None:
                self.costs[node.name].append(found)

    def report(self, began: float) -> None:
        """Say how it stands."""
        now = time.monotonic()
        _log.info(
            "%d rounds in %.0f min: %d messages confirmed, %d deliveries; faults: %s",
            self.rounds,
            (now - began) / 60,
            self.confirmed,
            self.deliveries,
            self.faults,
        )
        for name, costs in self.costs.items():
            for part, some in enumerate(_parts(costs, began, now), 1):
                if some:
                    _log.info("%s, part %d of %d: at most %s", name, part, PARTS, highest(some).row())

    def _count(self, nemesis: Nemesis) -> None:
        self.rounds += 1
        self.confirmed += sum(len(notes.confirmed) for notes in nemesis.notes.values())
        self.deliveries += sum(len(notes.deliveries) for notes in nemesis.notes.values())
        for what, count in nemesis.hurt.count.items():
            self.faults[what] = self.faults.get(what, 0) + count


def _parts(costs: Sequence[Cost], began: float, ended: float) -> list[list[Cost]]:
    parts: list[list[Cost]] = [[] for _ in range(PARTS)]
    for each in costs:
        parts[min(PARTS - 1, int(PARTS * (each.at - began) / (ended - began)))].append(each)
    return parts


def main() -> int:
    """A soak on a cluster of its own; what happened goes to standard error."""
    parser = argparse.ArgumentParser(description="Hurt a cluster for long, and see what it costs its nodes.")
    parser.add_argument("--seed", type=int, default=None, help="(default: a new one)")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--keep", type=Path, help="folder that the nodes' folders and logs are left in")
    given = parser.parse_args()
    quiet_clients()
    seed = random.randrange(1 << 30) if given.seed is None else given.seed
    _log.info("soak of seed %d", seed)
    with tempfile.TemporaryDirectory() as folder:
        directory = given.keep or Path(folder)
        directory.mkdir(parents=True, exist_ok=True)
        with CutCluster(directory, given.nodes, small_disks=True) as cluster:
            Soak(cluster, seed).go(60 * given.minutes)
            cluster.check_logs(is_allowed)
    _log.info("all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
