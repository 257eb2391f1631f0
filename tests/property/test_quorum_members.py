"""Random lives of a quorum queue with three members: lost messages, cuts, losses of power, cleaning.

After everything, members that have applied as much have the same bytes of state (`World.compare`); in the end
what was confirmed is there, or was settled, and all go on.
"""

from __future__ import annotations

import pytest

from amqp10broker.queues.commands import Credit, DeliveryOutcome, Settle, Subscribe
from amqp10broker.queues.quorum import log_store as quorum_store
from amqp10broker.queues.settings import QueueSettings
from tests.support.quorum_nodes import World

SETTINGS = [
    QueueSettings(delivery_limit=3),
    QueueSettings(delivery_limit=None),
    QueueSettings(message_ttl_ms=5_000, consumer_timeout_ms=60_000),
]


class Life:
    """A world, and clients that use its queue."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, settings=SETTINGS[seed % 3], file_bytes=1500)
        self.dice = self.world.dice
        self.consumer = self.world.client.consumer()
        self.settled: set[int] = set()
        self.world.settle_down(lambda: self.world.leader() is not None)
        leader = self.world.leader()
        assert leader is not None
        leader.work(Subscribe(self.consumer, False))
        self.world.settle_down(self.world.even)

    def step(self) -> None:
        world, dice = self.world, self.dice
        deed = dice.random()
        node = dice.choice(list(world.nodes.values()))
        if deed < 0.45:
            world.deliver(loss=0.02)
        elif deed < 0.60:
            node.journal.sync()
        elif deed < 0.75:
            node.work()
        elif deed < 0.90:
            self.ask()
        elif deed < 0.93:
            node.journal.clean(node.store, lambda: dice.random() < 0.5 and node.work())
        elif deed < 0.96:
            world.pass_time(dice.choice([5, 50, 400]))
        elif deed < 0.97 and not world.down and not world.cut:
            world.crash(node.number)
        elif deed < 0.98 and not world.down and not world.cut:
            world.part(node.number)
        elif deed < 0.99:
            for number in list(world.cut):
                world.heal(number)
        elif world.down:
            world.start(next(iter(world.down)))

    def ask(self) -> None:
        world, dice = self.world, self.dice
        leading = [node for node in world.nodes.values() if node.leads]
        if not leading:
            return
        leader = dice.choice(leading)
        held = leader.backend.queue.parts()[1].by_ref.get(self.consumer)
        match dice.choice("pppppsc"):
            case "p":
                delay_ms = dice.choice([0, 0, 0, 20, 300, 5_000])
                world.publish(leader, dice.choice([1, 2, 5]), dice.choice([10, 100]), delay_ms)
            case "c":
                seen = len(world.keys)
                leader.work(Credit(self.consumer, seen, 10, False, seen))
            case "s" if held is not None and held.unsettled:
                keys = dice.sample(list(held.unsettled), 1)
                delivery_outcome = dice.choice(
                    [DeliveryOutcome.ACCEPT, DeliveryOutcome.REQUEUE, DeliveryOutcome.REQUEUE_FAILED]
                )
                # A message that fails too often is dropped, too.
                self.settled.update(number_of(body) for _, body in leader.store.bodies.fetch(keys))
                leader.work(Settle(self.consumer, keys, delivery_outcome))

    def finish(self) -> None:
        """All faults end: everything that is open is decided, and members are the same."""
        world = self.world
        for number in list(world.cut):
            world.heal(number)
        for number in list(world.down):
            world.start(number)
        for _ in range(20):
            world.settle_down(lambda: world.leader() is not None)
            leader = world.leader()
            assert leader is not None
            world.publish(leader)
            world.settle_down(world.even)
            if world.published - 1 in world.confirmed:
                break  # what an old leader took may have been lost
        assert world.published - 1 in world.confirmed
        contents = [world.bodies(node) for node in world.nodes.values()]
        assert contents == contents[:1] * 3
        self.check(contents[0])

    def check(self, contents: dict[int, bytes]) -> None:
        if self.world.settings.message_ttl_ms is not None:
            return
        there = set(map(number_of, contents.values()))
        assert self.world.confirmed <= there | self.settled
        assert len(there) == len(contents), "a message is there twice"


def number_of(body: bytes) -> int:
    return int(body.rstrip(b"."))


@pytest.mark.parametrize("seed", range(12))
def test_members_are_the_same_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_store, "STAGED_BYTES", 200)
    monkeypatch.setattr(quorum_store, "SNAPSHOT_AFTER_BYTES", 3000)
    life = Life(seed)
    for _ in range(3):
        for _ in range(400):
            life.step()
        life.finish()
