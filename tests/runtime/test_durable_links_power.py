"""A publisher whose link survives a restart, on a disk that loses power: each message is there once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.protocols.amqp10.delivery import unsettled_map
from amqp10broker.protocols.amqp10.types import Described, Symbol
from amqp10broker.routing.exchange import Binding, Destination
from amqp10broker.runtime.broker import Broker
from tests.support import rawframes as raw
from tests.support.declaring import bind, declare
from tests.support.journal_harness import LONG
from tests.support.node import Node
from tests.support.trioclient import Client, connect, settle_down

LIVES = 200 if LONG else 6
SEEDS = range(1, 11 if LONG else 2)
ALL = 10_000
ARGUMENTS = {"quorum": {"x-delivery-limit": 1_000_000}}
"""Looking at everything in each life must not be what ends a message."""
FIRST = {Symbol("rabbitmq:stream-offset-spec"): Described(Symbol("rabbitmq:stream-offset-spec"), "first")}


class PublishingNode(Node):
    """A node to whose queues one client publishes numbers, each of them once, over any number of lives.

    Attributes:
        kinds: of the queues; several are those of a fanout.
        second: rcv-settle-mode second.
        done: numbers whose outcome the client has heard.
        pending: delivery-tag -> number, of those whose outcome it has not.
        told: tags with an outcome that the client has not settled.
        restored: how often the broker knew of a delivery whose outcome the client had not heard.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, seed: int, kinds: Sequence[str], *, second: bool
    ) -> None:
        super().__init__(monkeypatch, seed)
        self.names = {f"q{at}": kind for at, kind in enumerate(kinds)}
        self.second = second
        self.done: set[int] = set()
        self.pending: dict[bytes, int] = {}
        self.told: set[bytes] = set()
        self.restored = self.last = 0

    async def _compare(self, broker: Broker, *, look: bool) -> None:
        vhost = broker.catalog.lookup_vhost("/")
        for name, kind in self.names.items():
            if vhost.find(name) is None:
                declare(
                    broker.catalog, "/", name, arguments={"x-queue-type": kind, **ARGUMENTS.get(kind, {})}
                )
            bind(broker.catalog, "/", Binding("amq.fanout", Destination("queue", name)))
        await settle_down()
        for name, kind in self.names.items():
            client = await connect(broker).open()
            source = amqp10.Source(address=f"/queues/{name}", filter=FIRST if kind == "stream" else None)
            await client.send(raw.attach_receiver(1, name, source=source), raw.credit(1, ALL))
            got = [each for each in await client.idle() if isinstance(each.body, amqp10.Transfer)]
            await client.lose()
            found = Counter(int(raw.body_of(each.payload)) for each in got)
            twice = [number for number, count in found.items() if count > 1]
            assert not twice, f"{name} has {twice} more than once"
            assert self.done <= set(found), f"{name} lacks {self.done - set(found)}"
            assert set(found) <= self.done | set(self.pending.values())

    async def _attach(self, client: Client) -> int:
        """Reconnect, and resume or send again all open deliveries; return the next delivery-id."""
        address = "/queues/q0" if len(self.names) == 1 else "/exchanges/amq.fanout"
        target = amqp10.Target(address=address, durable=2, timeout=100_000)
        mode = amqp10.ReceiverSettleMode.SECOND if self.second else amqp10.ReceiverSettleMode.FIRST
        unsettled = {**dict.fromkeys(self.pending), **dict.fromkeys(self.told, amqp10.Accepted())}
        await client.send(
            raw.attach_sender(0, "q", name="mine", target=target, rcv_settle_mode=mode, unsettled=unsettled)
        )
        attach = await client.until(amqp10.Attach)
        granted = attach.target
        assert isinstance(granted, amqp10.Target)
        assert (granted.durable, granted.timeout) == (2, 3600)
        there = unsettled_map(attach)
        self.told.clear()
        number = 0
        for tag, what in list(self.pending.items()):
            if tag in there:
                self.restored += 1
                heard = there[tag] is not None
                resumed = amqp10.Transfer(handle=0, delivery_id=number, delivery_tag=tag, message_format=0)
                resumed.resume, resumed.settled = True, heard
                await client.send(raw.frame(0, resumed, b""))
                if heard:
                    assert there[tag] == amqp10.Accepted()
                    self._hear(tag)
            else:
                await self._send(client, number, tag, what)
            self._tags[number] = tag
            number += 1
        return number

    def _hear(self, tag: bytes) -> None:
        if tag in self.pending:
            self.done.add(self.pending.pop(tag))

    async def _send(self, client: Client, number: int, tag: bytes, what: int) -> None:
        body = amqp10.Header(durable=True).encode() + raw.message(
            str(what).encode() + b" " * (what * 37 % 900)
        )
        await client.send(raw.transfer(0, number, body, raw=True, delivery_tag=tag))

    async def _work(self, broker: Broker, rng: random.Random, steps: int) -> None:
        self._tags: dict[int, bytes] = {}
        client = await connect(broker).open()
        number = await self._attach(client)
        for _ in range(steps):
            for _ in range(rng.randrange(4)):
                self.last += 1
                tag = b"%d" % self.last
                self.pending[tag] = self.last
                self._tags[number] = tag
                await self._send(client, number, tag, self.last)
                number += 1
            if rng.random() < 0.5:
                await self._listen(client, rng)
            if rng.random() < 0.1:
                await client.vanish()
                self._tags.clear()
                client = await connect(broker).open()
                number = await self._attach(client)
        if not steps:
            await self._listen(client, rng)
            assert not self.pending
        assert len(broker.resumable_links) == 1

    async def _listen(self, client: Client, rng: random.Random) -> None:
        for each in await client.idle():
            body = each.body
            if not isinstance(body, amqp10.Disposition):
                continue
            last = body.first if body.last is None else body.last
            assert body.state == amqp10.Accepted()
            assert body.settled is not self.second
            for number in range(body.first, last + 1):
                self._hear(self._tags[number])
                if self.second:
                    self.told.add(self._tags[number])
            if self.second and rng.random() < 0.7:
                await client.send(raw.disposition(body.first, last, role=False, state=amqp10.Accepted()))
                self.told -= {self._tags[number] for number in range(body.first, last + 1)}


@pytest.mark.parametrize(
    ("kinds", "second"),
    [
        *((["classic"], True), (["classic"], False), (["quorum"], True), (["stream"], True)),
        (["classic", "quorum"], True),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_message_of_a_durable_link_is_there_once_after_a_loss_of_power(
    seed: int, kinds: Sequence[str], second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any loss of power the broker's unsettled map names the deliveries that queues have."""
    node = PublishingNode(monkeypatch, seed, kinds, second=second)
    rng = random.Random(seed)
    ended_early = 0
    for _ in range(LIVES):
        calls = len(node.disk.calls)
        node.disk.lose_power_at = calls + rng.randrange(
            20, 300 + 5 * node.last
        )  # a start reads all that there is
        node.live(rng, 20)
        assert node.refused is None, node.refused
        ended_early += len(node.disk.calls) > node.disk.lose_power_at
        node.disk = node.disk.after_power_loss(rng.randrange(1 << 30))
    node.live(rng, 0)
    if LONG:  # that these lives had in them what is looked for; in six of them chance may leave it out
        assert ended_early >= LIVES // 5
        assert node.restored
        assert len(node.done) > LIVES // 2
