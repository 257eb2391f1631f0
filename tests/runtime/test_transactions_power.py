"""Transactions of a whole broker whose disk loses power: each commit is there whole, or not at all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Discharge,
    Header,
    Source,
    TransactionalState,
    Transfer,
)
from amqp10broker.protocols.amqp10.settling import ACCEPTED
from amqp10broker.protocols.amqp10.types import Described, Symbol
from amqp10broker.runtime.broker import Broker
from tests.support.declaring import declare
from tests.support.journal_harness import LONG
from tests.support.node import Node
from tests.support.rawframes import attach_receiver, body_of, credit, disposition, message, transfer
from tests.support.transacting import LINKS, start
from tests.support.trioclient import connect, settle_down
from tests.support.trioclient091 import connect091
from tests.support.trioclient091 import message as content

LIVES = 200 if LONG else 4
SEEDS = range(1, 11 if LONG else 2)
ALL = 10_000
KINDS = [
    *(("classic", "classic"), ("classic", "quorum"), ("quorum", "quorum")),
    *(("classic", "stream"), ("quorum", "stream")),
]
ARGUMENTS: dict[str, dict[str, object]] = {
    "classic": {},
    # Looking at everything in each life must not be what ends a message.
    "quorum": {"x-delivery-limit": 1_000_000},
    "stream": {"x-stream-max-segment-size-bytes": 20_000},
}
PLAIN = 0
"""What is posted beside the transactions, and may get lost: a commit comes behind what is not durable yet."""


class TransactingNode(Node):
    """A node whose client posts a number to two queues at once, or takes it out of both at once.

    Nothing is taken out of a stream: with one, it only posts.

    Attributes:
        kinds: of the queues.
        posted: numbers whose posting was accepted, and whose taking was not asked for.
        taken: numbers whose taking was accepted.
        asked: numbers of commits that were asked for, and whose answer did not come.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int, kinds: Sequence[str]) -> None:
        super().__init__(monkeypatch, seed)
        self.kinds = dict(zip(LINKS, kinds, strict=True))
        self.takes = "stream" not in kinds
        self.posted: set[int] = set()
        self.taken: set[int] = set()
        self.asked: set[int] = set()
        self.commits = 0
        self.last = 0

    async def _compare(self, broker: Broker, *, look: bool) -> None:
        found = [await self._numbers(broker, name) for name in LINKS]
        assert found[0] == found[1], "half a commit is there"
        there = set(found[0])
        assert all(count == 1 for count in found[0].values())
        assert self.posted <= there, f"accepted, and lost: {self.posted - there}"
        assert not (there & self.taken), f"taken, and there again: {there & self.taken}"
        assert there <= self.posted | self.asked
        self.posted, self.asked = there, set()

    async def _numbers(self, broker: Broker, name: str) -> Counter[int]:
        if broker.catalog.lookup_vhost("/").find(name) is None:
            kind = self.kinds[name]
            declare(broker.catalog, "/", name, arguments={"x-queue-type": kind, **ARGUMENTS[kind]})
            await settle_down()
        client = await connect(broker).open()
        filters = {
            Symbol("rabbitmq:stream-offset-spec"): Described(Symbol("rabbitmq:stream-offset-spec"), "first")
        }
        source = Source(address=f"/queues/{name}", filter=filters if self.kinds[name] == "stream" else None)
        await client.send(attach_receiver(1, name, source=source), credit(1, ALL))
        got = [each for each in await client.idle() if isinstance(each.body, Transfer)]
        await client.lose()
        return Counter(number for each in got if (number := int(body_of(each.payload))) != PLAIN)

    async def _work(self, broker: Broker, rng: random.Random, steps: int) -> None:
        session = await start(broker)
        client = session.client
        held: dict[int, list[int]] = {}
        for handle, name in enumerate(LINKS if self.takes else (), 8):
            source = Source(address=f"/queues/{name}")
            await client.send(attach_receiver(handle, name, source=source), credit(handle, ALL))
        for _ in range(steps):
            for each in await client.idle():
                if isinstance(each.body, Transfer) and (number := int(body_of(each.payload))) != PLAIN:
                    held.setdefault(number, []).append(each.body.delivery_id)
            txn_id = await session.declare()
            whole = [number for number, ids in held.items() if len(ids) == 2]
            fail = rng.random() < 0.3
            if whole and rng.random() < 0.5:
                number = rng.choice(whole)
                state = TransactionalState(txn_id=txn_id, outcome=Accepted())
                for delivery_id in held[number]:
                    await client.send(disposition(delivery_id, state=state, settled=False))
                if not fail:
                    self.posted.discard(number)
                    del held[number]
                taking = True
            else:
                self.last = number = self.last + 1
                body = Header(durable=True).encode() + message(
                    str(number).encode() + b" " * rng.randrange(2_000)
                )
                for handle in LINKS.values():
                    given: dict[str, Any] = {"state": TransactionalState(txn_id=txn_id), "settled": True}
                    await client.send(transfer(handle, session.take_id(), body, raw=True, **given))
                taking = False
            if rng.random() < 0.5:
                plain = transfer(
                    rng.choice([*LINKS.values()]), session.take_id(), b"%d" % PLAIN, settled=True
                )
                await client.send(plain)
            if not fail:
                self.asked.add(number)
            assert await session.ask(Discharge(txn_id=txn_id, fail=fail)) == ACCEPTED
            self.commits += 1
            if not fail:
                self.asked.discard(number)
                (self.taken if taking else self.posted).add(number)


class TransactingNode091(TransactingNode):
    """The same by a channel of AMQP 0-9-1, which posts, and acknowledges what it gets of both queues."""

    async def _work(self, broker: Broker, rng: random.Random, steps: int) -> None:
        client = await connect091(broker).open()
        await client.call(1, methods.TxSelect(), methods.TxSelectOk)
        held: dict[int, list[int]] = {}

        async def ask(method: methods.Method, kind: type[methods.Method]) -> None:
            await client.send(1, method)
            while True:
                got = (await client.next())[1]
                if isinstance(got, kind):
                    return
                assert isinstance(got, Content)
                assert isinstance(got.method, methods.BasicDeliver)
                held.setdefault(int(got.body), []).append(got.method.delivery_tag)

        for name in LINKS:
            await ask(methods.BasicConsume(name), methods.BasicConsumeOk)
        for _ in range(steps):
            whole = [number for number, tags in held.items() if len(tags) == 2]
            fail = rng.random() < 0.3
            taking = bool(whole) and rng.random() < 0.5
            if taking:
                number = rng.choice(whole)
                await client.send(1, *(methods.BasicAck(tag, False) for tag in held[number]))
            else:
                self.last = number = self.last + 1
                body = str(number).encode() + b" " * rng.randrange(2_000)
                await client.send(1, *(content(1, name, body, delivery_mode=2) for name in LINKS))
            if fail:
                await ask(methods.TxRollback(), methods.TxRollbackOk)
                continue
            if taking:
                self.posted.discard(number)
                del held[number]
            self.asked.add(number)
            await ask(methods.TxCommit(), methods.TxCommitOk)
            self.commits += 1
            if taking:
                # Of what is only acknowledged commit-ok says nothing of the disk.
                continue
            self.asked.discard(number)
            self.posted.add(number)


def lose_power(node: TransactingNode, seed: int) -> None:
    rng = random.Random(seed)
    ended_early = 0
    for _ in range(LIVES):
        calls = len(node.disk.calls)
        # A start reads each segment of a stream.
        node.disk.lose_power_at = calls + rng.randrange(20, 400 if node.takes else 1_000)
        node.live(rng, 20)
        assert node.refused is None, node.refused
        ended_early += len(node.disk.calls) > node.disk.lose_power_at
        node.disk = node.disk.after_power_loss(rng.randrange(1 << 30))
    node.live(rng, 0)
    assert ended_early >= LIVES // 3
    assert node.commits > LIVES


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_commit_is_there_whole_or_not_after_a_loss_of_power(
    seed: int, kinds: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever power fails, both queues have the same messages; accepted commits stay done."""
    lose_power(TransactingNode(monkeypatch, seed, kinds), seed)


@pytest.mark.parametrize("kinds", [("classic", "quorum")])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_commit_of_amqp_0_9_1_is_there_whole_or_not_after_a_loss_of_power(
    seed: int, kinds: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_power(TransactingNode091(monkeypatch, seed, kinds), seed)
