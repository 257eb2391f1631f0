"""The real process under load from real clients, killed at random moments, again and again on one folder.

After each restart everything that the queues hold is compared with what the clients know
(`tests.support.crash_history`). Set AMQP10BROKER_LONG for 200 rounds and more.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.crash_history import CLASSIC, QUORUM, STREAM, WRITTEN, Kind, QueueHistory
from tests.support.crash_load import (
    DeadWatch,
    Declarer,
    MortalClient,
    PikaConsumer,
    PikaPublisher,
    ProtonConsumer,
    ProtonPublisher,
    Topology,
    connected,
    look,
    look_at_stream,
)
from tests.support.journal_harness import LONG

ROUNDS: Final = 210 if LONG else 6
FILE_BYTES: Final = 150_000
"""Of the journal's files: some are filled and cleaned in each round."""


class Family:
    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.single = QueueHistory(f"{kind.name}.single", kind)
        self.shared = QueueHistory(f"{kind.name}.shared", kind)
        self.dying = QueueHistory(f"{kind.name}.dying", kind)
        self.dead = QueueHistory(f"{kind.name}.dead", kind, ordered=False)
        self.queues = (self.single, self.shared, self.dying, self.dead)

    def clients(self, broker: BrokerProcess, name: str, rng: random.Random) -> list[MortalClient]:
        most = 3000 if rng.random() < 0.2 else 150
        seed = rng.randrange(1 << 30)
        name = f"{name}.{self.kind.name}"
        clients: list[MortalClient] = [
            PikaPublisher(broker, seed, self.single, f"{name}.single", most),
            PikaPublisher(broker, seed, self.shared, f"{name}.pika", most),
            ProtonPublisher(broker, seed, self.shared, f"{name}.proton", most),
            ProtonPublisher(broker, seed, self.dying, f"{name}.dying", most),
            PikaConsumer(broker, seed + 2, self.shared),
            ProtonConsumer(broker, seed + 3, self.shared),
            ProtonConsumer(broker, seed + 4, self.dying, self.dead),
            DeadWatch(broker, seed + 5, self.dead, f"{name}.fence"),
        ]
        if rng.random() < 0.5 or len(self.single.content) > 1000:
            clients.append(PikaConsumer(broker, seed + 1, self.single))
        return clients


class Crashes:
    """Lives of brokers on one folder, and the history of its queues."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.life = 0
        self.counts: Counter[str] = Counter()
        self.topology = Topology()
        self.families = [Family(CLASSIC), Family(QUORUM), Family(WRITTEN)]
        self.stream = QueueHistory("stream", STREAM)
        self.queues = [queue for family in self.families for queue in family.queues]

    def start(self) -> BrokerProcess:
        self.life += 1
        folder = self.folder / f"life{self.life}"
        folder.mkdir()
        for queue in self.queues:
            queue.new_life()
        return BrokerProcess(
            folder,
            *("--data-dir", str(self.folder / "data"), "--auth-failure-delay-ms", "10"),
            program=("-m", "tests.support.crash_serve", str(FILE_BYTES)),
        )

    def declare(self, broker: BrokerProcess) -> None:
        """Declare the queues in the first life, and expect them later."""
        passive = self.life > 1
        with connected(broker) as connection:
            channel = connection.channel()
            for queue in (*self.queues, self.stream):
                arguments = {"x-queue-type": queue.kind.name, **queue.kind.arguments}
                for family in self.families:
                    if queue is family.dying:
                        to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": family.dead.name}
                        arguments |= to
                channel.queue_declare(queue.name, durable=True, arguments=arguments, passive=passive)

    def check(self, broker: BrokerProcess) -> None:
        self.declare(broker)
        self.topology.check(broker)
        for queue in self.queues:
            self._check(queue, look(broker, queue.name))
        sentinel = f"life{self.life}.sentinel:1"
        self._check(self.stream, look_at_stream(broker, self.stream, sentinel))
        for family in self.families:
            both = set(family.dying.content) & set(family.dead.content)
            assert not both, f"dead-lettered, and still in the queue: {sorted(both)}"

    def _check(self, queue: QueueHistory, found: list[tuple[str, bool]]) -> None:
        self.counts["confirmed"] += len(queue.confirmed)
        self.counts["published"] += len(queue.published)
        self.counts["looked at"] += len(found)
        queue.check(found)

    def load(self, broker: BrokerProcess) -> list[MortalClient]:
        name = f"life{self.life}"
        seed = self.rng.randrange(1 << 30)
        clients: list[MortalClient] = [
            # In turn, so that each has its lives.
            *self.families[self.life % len(self.families)].clients(broker, name, self.rng),
            PikaPublisher(broker, seed, self.stream, f"{name}.stream.pika", 150),
            ProtonPublisher(broker, seed, self.stream, f"{name}.stream.proton", 150),
            Declarer(broker, seed + 6, self.topology, name),
        ]
        for client in clients:
            client.start()
        return clients

    def live(self) -> None:
        """Run one life: start, check, work, and be killed, or sometimes stopped in order."""
        broker = self.start()
        clients: list[MortalClient] = []
        in_order = False
        try:
            if self.life > 1 and self.rng.random() < 0.15:
                # Killed while it recovers, or a moment later.
                time.sleep(self.rng.uniform(0, 0.05))
            else:
                # Looking at everything hides how a start left the queues.
                if self.life == 1 or self.rng.random() < 0.7:
                    self.check(broker)
                clients = self.load(broker)
                time.sleep(self.rng.uniform(0.05, 1.0))
                in_order = self.life == 2 or self.rng.random() < 0.1
            if in_order:
                for client in clients:
                    client.stop()
                broker.stop()
        finally:
            if not in_order:
                broker.kill()
            for client in clients:
                client.stop()
        if in_order:
            for queue in self.queues:
                queue.stopped_in_order()
        self.counts["stops" if in_order else "kills"] += 1
        broker.check_log()


@pytest.fixture
def quiet_clients() -> Iterator[None]:
    """Silence clients' logs of the killed broker, which also hold on to all they had."""
    loggers = [logging.getLogger(name) for name in ("pika", "proton")]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    yield
    for logger in loggers:
        logger.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("quiet_clients")
def test_what_was_confirmed_survives_kills(tmp_path: Path) -> None:
    """It uses all queue types and both protocols; `tests.support.crash_history` has the guarantees."""
    began = time.monotonic()
    crashes = Crashes(tmp_path, seed=4)
    for _ in range(ROUNDS):
        crashes.live()
    with crashes.start() as broker:
        crashes.check(broker)
    assert crashes.counts["confirmed"] > 50 * ROUNDS / 4, crashes.counts
    print(f"{time.monotonic() - began:.0f} s: {dict(crashes.counts)}")  # noqa: T201
