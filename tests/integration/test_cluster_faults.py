"""Three real nodes under load from clients of four libraries, hurt at random, again and again.

Every client knows all nodes and goes on at the next when it has lost one. Then the nodes are healed, and what
the queue holds, what was delivered and what was declared is compared with what the clients know. Set
AMQP10BROKER_LONG for 200 faults.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import pytest

from tests.support.cluster_history import TotalQueue
from tests.support.cluster_load import (
    ClusterClient,
    MetadataClient,
    OwnConsumer,
    OwnPublisher,
    PikaConsumer,
    PikaPublisher,
    ProtonConsumer,
    ProtonPublisher,
    Publisher,
    RabbitPublisher,
    stop_all,
)
from tests.support.cluster_process import ClusterNode, ClusterProcess
from tests.support.crash_load import connected
from tests.support.journals import LONG
from tests.support.linearizable import Operation, check

pytestmark = pytest.mark.integration

ROUNDS: Final = 200 if LONG else 2
CONFIRMS: Final = 1000 if LONG else 150
"""Wanted between two faults."""


def killed(cluster: ClusterProcess, node: ClusterNode) -> Callable[[], None]:
    node.kill()
    return node.start


def stopped(cluster: ClusterProcess, node: ClusterNode) -> Callable[[], None]:
    node.stop()
    return node.start


def paused(cluster: ClusterProcess, node: ClusterNode) -> Callable[[], None]:
    node.pause()
    return node.resume


FAULTS: Final = (killed, stopped, paused)


class Load:
    """Clients at all nodes, and what they know of one queue and of some names."""

    def __init__(self, cluster: ClusterProcess, queue: str, seed: int) -> None:
        self.cluster = cluster
        self.notes = TotalQueue(queue)
        self.histories: dict[str, list[Operation]] = {}
        nodes = cluster.nodes
        kinds = (PikaPublisher, ProtonPublisher, OwnPublisher, RabbitPublisher)
        takers = (PikaConsumer, ProtonConsumer, OwnConsumer)
        turned = [[*nodes[at:], *nodes[:at]] for at in range(len(nodes))]
        self.publishers: list[Publisher] = [
            kind(turned[at % 3], f"{kind.__name__}", self.notes, seed + at) for at, kind in enumerate(kinds)
        ]
        self.consumers: list[ClusterClient] = [
            kind(turned[at % 3], f"{kind.__name__}", self.notes, seed + 10 + at)
            for at, kind in enumerate(takers)
        ]
        self.declarers = [
            MetadataClient(turned[at], f"{queue}.{at}", self.histories, seed + 20 + at) for at in range(3)
        ]
        self.clients = [*self.publishers, *self.consumers, *self.declarers]

    def leader(self) -> str:
        """The name of the node that leads the queue, as one that answers has it."""
        node = next(node for node in self.cluster.nodes if node.accepts)
        rows = self.cluster.ask(node, "queue", "list", "name", "leader")
        (leader,) = (row["leader"] for row in rows if row["name"] == self.notes.queue)
        return str(leader)

    def work(self, confirms: int) -> None:
        """Wait until so much more was confirmed, and some more names were asked for."""
        wanted = len(self.notes.confirmed) + confirms
        asked = sum(map(len, self.histories.values())) + confirms // 10

        def done() -> bool:
            for client in self.clients:
                if client.failure is not None:
                    raise AssertionError(f"{client.name} has failed") from client.failure
            return len(self.notes.confirmed) >= wanted and sum(map(len, self.histories.values())) >= asked

        self.cluster.wait_until(done, f"{confirms} confirms more", timeout_s=120)


def test_faults_one_after_the_other(
    cluster: ClusterProcess, queue: str, record_property: Callable[[str, object], None]
) -> None:
    """E1 to E11, C1, S2, S5, M1 to M7, P1 to P3: nothing confirmed is lost, doubled, or out of its order."""
    seed = random.randrange(1 << 30) if LONG else 13
    rng = random.Random(seed)
    record_property("seed", seed)
    with connected(cluster.nodes[0]) as connection:
        arguments = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
        connection.channel().queue_declare(queue, durable=True, arguments=arguments)
    load = Load(cluster, queue, seed)
    began = time.monotonic()
    for client in load.clients:
        client.start()
    leaders = []
    try:
        for number in range(ROUNDS):
            load.work(CONFIRMS)
            leaders.append(load.leader())
            # The leader first: it is what must be lost for the run to count.
            victim = cluster.node(leaders[-1]) if number == 0 else rng.choice(cluster.nodes)
            mend = rng.choice(FAULTS[: 2 if number == 0 else 3])(cluster, victim)
            load.work(CONFIRMS)
            leaders.append(load.leader())
            mend()
            cluster.wait_until_up()
    finally:
        for client in load.clients:
            client.stopping.set()
    seconds = time.monotonic() - began
    stop_all(load.clients)
    load.notes.require_load(seconds, sum(one != other for one, other in pairwise(leaders)))
    load.notes.look(cluster.look(cluster.nodes[rng.randrange(3)], load.notes))
    load.notes.check()
    check(load.histories)
