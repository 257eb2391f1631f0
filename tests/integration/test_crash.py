"""The real process under load from real clients, killed at random moments, again and again on one folder.

After each restart everything that the queues hold is compared with what the clients know
(`tests.support.crash_history`). Set AMQP10BROKER_LONG for 200 rounds and more.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from pika.adapters.blocking_connection import BlockingConnection

from tests.support.broker_process import BrokerProcess
from tests.support.crash_history import CLASSIC, Kind, QueueHistory
from tests.support.crash_load import (
    Client,
    DeadWatch,
    Declarer,
    PikaConsumer,
    PikaPublisher,
    ProtonConsumer,
    ProtonPublisher,
    Topology,
    look,
)
from tests.support.journals import LONG
from tests.support.pika_client import parameters

pytestmark = [pytest.mark.integration]

ROUNDS: Final = 210 if LONG else 8
FILE_BYTES: Final = 150_000
"""Of the journal's files: some are filled and cleaned in each round."""
QUORUM: Final = Kind(
    "quorum",
    {"x-delivery-limit": -1},
    keeps_transient=True,
    keeps_place=False,
    settles_for_good=True,
)
KINDS: Final = (CLASSIC, QUORUM)


class Crashes:
    """Lives of brokers on one folder, and the history of its queues."""

    def __init__(self, folder: Path, kind: Kind, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.life = 0
        self.counts: Counter[str] = Counter()
        self.topology = Topology()
        self.single = QueueHistory("single", kind)
        self.shared = QueueHistory("shared", kind)
        self.dying = QueueHistory("dying", kind)
        self.dead = QueueHistory("dead", kind, ordered=False)
        self.queues = (self.single, self.shared, self.dying, self.dead)

    def start(self) -> BrokerProcess:
        self.life += 1
        folder = self.folder / f"life{self.life}"
        folder.mkdir()
        return BrokerProcess(
            folder,
            *("--data-dir", str(self.folder / "data"), "--auth-failure-delay-ms", "10"),
            program=("-m", "tests.support.crash_serve", str(FILE_BYTES)),
        )

    def declare(self, broker: BrokerProcess) -> None:
        """The queues, in the first life; later it changes nothing, unless something is missing."""
        connection = BlockingConnection(parameters(broker))
        channel = connection.channel()
        for queue in self.queues:
            arguments = {"x-queue-type": queue.kind.name, **queue.kind.arguments}
            if queue is self.dying:
                arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.dead.name}
            channel.queue_declare(queue.name, durable=True, arguments=arguments, passive=self.life > 1)
        connection.close()

    def check(self, broker: BrokerProcess) -> None:
        """Compare what is there with what was promised."""
        self.declare(broker)
        self.topology.check(broker)
        for queue in self.queues:
            self.counts["confirmed"] += len(queue.confirmed)
            self.counts["published"] += len(queue.published)
            queue.check(look(broker, queue.name))
            self.counts["looked at"] += len(queue.content)
        both = set(self.dying.content) & set(self.dead.content)
        assert not both, f"dead-lettered, and still in the queue: {sorted(both)}"

    def load(self, broker: BrokerProcess) -> list[Client]:
        """Clients at work."""
        name = f"life{self.life}"
        most = 3000 if self.rng.random() < 0.2 else 150
        seed = self.rng.randrange(1 << 30)
        clients: list[Client] = [
            PikaPublisher(broker, seed, self.single, f"{name}.single", most),
            PikaPublisher(broker, seed, self.shared, f"{name}.pika", most),
            ProtonPublisher(broker, seed, self.shared, f"{name}.proton", most),
            ProtonPublisher(broker, seed, self.dying, f"{name}.dying", most),
            PikaConsumer(broker, seed + 1, self.single),
            PikaConsumer(broker, seed + 2, self.shared),
            ProtonConsumer(broker, seed + 3, self.shared),
            ProtonConsumer(broker, seed + 4, self.dying, self.dead),
            DeadWatch(broker, seed + 5, self.dead, f"{name}.fence"),
            Declarer(broker, seed + 6, self.topology, name),
        ]
        for client in clients:
            client.start()
        return clients

    def live(self) -> None:
        """One life: start, look, work, and be killed."""
        broker = self.start()
        clients: list[Client] = []
        try:
            if self.life > 1 and self.rng.random() < 0.15:
                # Killed while it recovers, or a moment later.
                time.sleep(self.rng.uniform(0, 0.05))
            else:
                self.check(broker)
                clients = self.load(broker)
                time.sleep(self.rng.uniform(0.05, 1.0))
        finally:
            broker.kill()
            for client in clients:
                client.joined()
        broker.check_log()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_was_confirmed_survives_kills(kind: Kind, tmp_path: Path) -> None:
    began = time.monotonic()
    crashes = Crashes(tmp_path, kind, seed=4)
    for _ in range(ROUNDS):
        crashes.live()
    with crashes.start() as broker:
        crashes.check(broker)
    assert crashes.counts["confirmed"] > 50 * ROUNDS / 4, crashes.counts
    print(f"{ROUNDS} kills, {time.monotonic() - began:.0f} s: {dict(crashes.counts)}")  # noqa: T201
