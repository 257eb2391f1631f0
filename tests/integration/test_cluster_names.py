"""Many clients at all nodes declare and delete the same few names, while nodes and their network are hurt.

What they saw is judged by porcupine, in longer histories than our own checker can exhaust. It takes minutes.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.cluster_load import MetadataClient, started, stop_all, wait_for
from tests.support.cluster_network import CutCluster
from tests.support.cluster_process import ClusterNode, healed
from tests.support.linearizable import Answer, Kind, Operation
from tests.support.porcupine_check import check

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("go") is None, reason="no go here to build the program around porcupine"),
]

ROUNDS: Final = 20
OPERATIONS: Final = 150
"""Wanted between two faults."""
FAULTS: Final = ("kill", "stop", "pause", "cut", "mute", "deaf", "delay", "reset")
PLAIN: Final = ("kill", "stop", "pause")


def hurt(cluster: CutCluster, what: str, node: ClusterNode) -> Callable[[], object]:
    network = cluster.network
    others = cluster.others(node)
    if what in PLAIN:
        {"kill": node.kill, "stop": node.stop, "pause": node.pause}[what]()
        return node.resume if what == "pause" else node.start
    for other in others:
        if what in ("cut", "mute"):
            network.cut_way(node.name, other.name)
        if what in ("cut", "deaf"):
            network.cut_way(other.name, node.name)
        if what == "delay":
            network.delay(node.name, other.name, 0.2)
        if what == "reset":
            network.reset(node.name, other.name)
    return network.mend


def test_what_clients_see_of_names_has_an_explanation(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """M1, M3, M4: changes have one order, and each node shows a beginning of it that never goes back."""
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    record_property("seed", seed)
    histories: dict[str, list[Operation]] = {}
    with CutCluster(tmp_path) as cluster, healed(cluster):
        clients = []
        for at in range(6):
            nodes = [*cluster.nodes[at % 3 :], *cluster.nodes[: at % 3]]
            clients.append(MetadataClient(nodes, f"names.{at}", histories, seed + at, on_a_name=300))
        started(clients)

        def asked() -> int:
            return sum(map(len, histories.values()))

        def work() -> None:
            wanted = asked() + OPERATIONS
            wait_for(cluster, clients, lambda: asked() >= wanted, f"{OPERATIONS} operations more", 120)

        try:
            for _ in range(ROUNDS):
                work()
                mend = hurt(cluster, rng.choice(FAULTS), rng.choice(cluster.nodes))
                work()
                mend()
                cluster.wait_until_up()
        finally:
            for client in clients:
                client.stopping.set()
        stop_all(clients)
    operations = [each for history in histories.values() for each in history]
    answers = Counter((each.kind, each.answer) for each in operations)
    record_property("operations", str(answers))
    # A run in which nothing is contested shows nothing.
    assert answers[Kind.PUT, Answer.DONE] > ROUNDS
    assert answers[Kind.PUT, Answer.REFUSED] > ROUNDS
    check(histories)
