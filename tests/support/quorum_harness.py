"""Nodes with one quorum queue, its real machine and stores, on journals and a network that a test moves.

Nothing happens by itself: a test says which message arrives, which journal is synced, which node crashes or
is cut off, and what time it is. What nodes tell clients is noted, and members are compared at each wake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.traits import X_OPT_DELIVERY_DELAY
from amqp10broker.protocols.amqp10.types import Long
from amqp10broker.queues import machine_version
from amqp10broker.queues.commands import (
    TICK,
    Command,
    Confirmed,
    ConsumerRef,
    Credit,
    Deliver,
    Effect,
    PeerId,
    Publish,
    ReplyTo,
    Subscribe,
)
from amqp10broker.queues.durability import EffectBatch
from amqp10broker.queues.queue_status import QueueProgress
from amqp10broker.queues.quorum.durability import Clocks, QuorumInLog
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.queues.quorum.queue import QuorumQueue, encode_snapshot
from amqp10broker.queues.quorum.state_transfer import Snapshots
from amqp10broker.queues.settings import DEFAULTS, QueueSettings
from amqp10broker.raft.groups import Groups, Member
from amqp10broker.raft.ids import is_first, member_id, node_of
from amqp10broker.raft.messages import Message
from tests.support.memory_journal import MemoryJournal

GROUP = 7
HEAD = make_head(None, None, "", "q")


class Journal(MemoryJournal):
    """Only what was synced survives a loss of power, and perhaps some of the rest.

    Attributes:
        durable: everything with this ticket is.
        reserves: nothing has to wait for room.
    """

    reserves = False

    def __init__(self, file_bytes: int) -> None:
        super().__init__(file_bytes)
        self.durable = 0
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        self._dropped: list[tuple[int, int, list[Any]]] = []

    @property
    def journal(self) -> Journal:
        return self

    def when_durable(self, ticket: int, callback: Callable[[], None]) -> None:
        if ticket <= self.durable:
            callback()
        else:
            self.waiting.append((ticket, callback))

    def sync(self, ticket: int | None = None) -> None:
        """Sync everything, or what was appended up to a ticket."""
        durable = self.durable = self.ticket if ticket is None else ticket
        ready = [callback for asked, callback in self.waiting if asked <= durable]
        self.waiting = [each for each in self.waiting if each[0] > durable]
        for callback in ready:
            callback()
        self._dropped = [each for each in self._dropped if each[0] > durable]

    def clean(self, store: QuorumStore, step: Callable[[], None]) -> None:
        """Clean the oldest file, with a call of `step` between the parts."""
        file = min(self.files)
        if file == max(self.files):
            return
        for _ in store.relocate(file):
            step()
        if store.group == GROUP:
            assert self.live[file] == 0, "something of the file is needed that was not appended again"
            # Until all that was appended before is durable, it comes back with a loss of power.
            self._dropped.append((self.ticket, file, self.files[file]))
            self.drop_oldest()

    def after_power_loss(self, dice: Random) -> Journal:
        found = Journal(self._file_bytes)
        files = {file: records for _, file, records in self._dropped}
        files.update(self.files)
        records = [(file, record) for file in sorted(files) for record in files[file]]
        lost = self.ticket - self.durable
        keep = len(records) - dice.randint(0, lost)
        found.files = {file: [] for file in sorted(files)}
        for file, record in records[:keep]:
            found.files[file].append(record)
        last = max((file for file in found.files if found.files[file]), default=1)
        found.files = {file: each for file, each in found.files.items() if file <= last} or {1: []}
        found.live = dict.fromkeys(found.files, 0)
        found.ticket = found.durable = self.ticket
        tail = found.files[max(found.files)]
        found._end = tail[-1].offset + tail[-1].length if tail else 0
        return found

    def write_soon(self) -> None:
        """The test does."""

    def forget(self, group: int) -> None:
        """It is cleaned away some day."""

    def abandoned(self, group: int) -> None:
        raise AssertionError("no machine fails here")

    def progress(self, *, busy: bool, waits: bool) -> QueueProgress:
        return QueueProgress(busy)


class Node:
    """One node with its member; `leads` is the keeper's, `usable` the cluster's machine version."""

    def __init__(self, world: Harness, me: int, journal: Journal) -> None:
        self.world = world
        self.number = node_of(me)
        self.me = me
        self.journal = journal
        self.store = QuorumStore(
            GROUP, "q", journal, when_durable=journal.when_durable, me=me,
            members=[member for member in world.members if is_first(member)], joins=not is_first(me),
            node=self.number,
        )  # fmt: skip
        self.groups = Groups(lambda: world.now, self._send)
        self.groups.on_unknown = self._on_unknown
        others = set(world.numbers) - {self.number}
        self.groups.suspected |= {each for each in others if not world.connected(self.number, each)}
        self.snapshots = Snapshots(self.groups, self._send_frame, world.dice.random)
        self.leads = self.woken = False
        self.usable = machine_version.NEWEST
        self.applied = 0
        self.backend = QuorumInLog(
            QuorumQueue("q", settings=world.settings, now_ms=0), self._wake,
            lambda batch: self.publish(batch), journal, self.store, self._begin,
            self.snapshots, world.clocks[self.number], lambda: self.usable,
        )  # fmt: skip
        self.backend.serve(lambda leads: self.on_lead(leads), lambda *_: None, lambda: None)
        self.store.restore(journal.records)
        list(self.backend.recover(world.now))

    def _begin(self, machine: QuorumInLog) -> Member:
        first = self.me == self.world.members[0]
        member = Member(GROUP, self.me, self.store, machine, self.groups, self.world.dice.random, first=first)
        self.snapshots.add(GROUP, self.store)
        self.groups.add(member)
        return member

    @property
    def now(self) -> int:
        return self.world.now + self.world.skew_ms.get(self.number, 0)

    @property
    def member(self) -> Member:
        found = self.groups.get(GROUP)
        assert found is not None
        return found

    def _send(self, to: int, group: int, message: bytes) -> None:
        self.world.send(self.number, to, lambda node: node.groups.received(self.number, [(group, message)]))

    def _send_frame(self, to: int, group: int, body: bytes, answer: bool) -> bool:
        assert len(body) < (1 << 20) + 64
        if not self.world.connected(self.number, to):
            return False
        self.world.send_in_order(
            self.number, to, lambda node: node.snapshots.received(self.number, group, body, answer)
        )
        return True

    def _on_unknown(self, node: int, group: int, message: Message) -> None:
        """It is for a member that was here before, or will be."""

    def on_lead(self, leads: bool) -> None:
        assert leads != self.leads
        self.leads = leads

    def _wake(self) -> None:
        self.woken = True

    def publish(self, batch: EffectBatch) -> None:
        for effects in batch.effects.values():
            for effect in effects:
                self.world.heard(self, effect)

    def work(self, *commands: Command) -> None:
        self.woken = False
        asked = list(commands)
        due = self.backend.deadline()
        if due is not None and due <= self.now:
            asked.append(TICK)
        self.backend.apply(asked, self.now)
        self.backend.flush(self.now)
        self.backend.publish()
        self.world.compare(self)


class Harness:
    """All nodes, and the network between them.

    Attributes:
        now: ms.
        skew_ms: by how much the clock of a node is ahead of that.
        clocks: what nodes know of each other's clocks.
        nodes: those that run, by number.
        members: ids of all members there are.
        confirmed: numbers of messages that a client was told are safe.
        delivered: numbers of messages that were handed out, by key.
    """

    def __init__(
        self, seed: int, count: int = 3, *, settings: QueueSettings = DEFAULTS, file_bytes: int = 3000
    ) -> None:
        self.dice = Random(seed)
        self.now = 1_000_000
        self.settings = settings
        self.skew_ms: dict[int, int] = {}
        self.clocks: defaultdict[int, Clocks] = defaultdict(Clocks)
        self.members = [member_id(number) for number in range(1, count + 1)]
        self.nodes: dict[int, Node] = {}
        self.down: dict[int, Journal] = {}
        self.cut: set[int] = set()
        self.flying: list[tuple[int, int, Callable[[Node], None]]] = []
        self.bulk: dict[tuple[int, int], list[Callable[[Node], None]]] = {}
        self.confirmed: set[int] = set()
        self.keys: dict[int, bytes] = {}
        self.states: dict[int, bytes] = {}
        self.published = 0
        self.client = ReplyTo(PeerId(9, 1, 1), "client")
        self.publisher = self.client.publisher()
        for member in self.members:
            self.nodes[node_of(member)] = Node(self, member, Journal(file_bytes))

    @property
    def numbers(self) -> list[int]:
        return [node_of(member) for member in self.members]

    # --- the network

    def connected(self, one: int, other: int) -> bool:
        return not {one, other} & self.cut and not {one, other} & self.down.keys()

    def send(self, sender: int, to: int, deliver: Callable[[Node], None]) -> None:
        if self.connected(sender, to):
            self.flying.append((sender, to, deliver))

    def send_in_order(self, sender: int, to: int, deliver: Callable[[Node], None]) -> None:
        self.bulk.setdefault((sender, to), []).append(deliver)

    def deliver(self, *, loss: float = 0.0, in_order: bool = False) -> bool:
        """Deliver or lose one message; return False if none is in flight."""
        lanes = [key for key, waiting in self.bulk.items() if waiting]
        if lanes and (not self.flying or self.dice.random() < 0.5):
            sender, to = self.dice.choice(lanes)
            deliver = self.bulk[sender, to].pop(0)
        elif self.flying:
            sender, to, deliver = self.flying.pop(
                0 if in_order else self.dice.randrange(min(len(self.flying), 8))
            )
            if self.dice.random() < loss:
                return True
        else:
            return False
        if to in self.nodes and self.connected(sender, to):
            deliver(self.nodes[to])
        return True

    def part(self, number: int) -> None:
        """Cut a node off from all others; both sides notice."""
        self.cut.add(number)
        self._lost(number)

    def heal(self, number: int) -> None:
        self.cut.discard(number)
        self._found(number)

    def _lost(self, number: int) -> None:
        for key in [key for key in self.bulk if number in key]:
            del self.bulk[key]
        for node in list(self.nodes.values()):
            others = self.numbers if node.number == number else [number]
            for other in others:
                if other != node.number:
                    node.groups.suspect(other)
                    node.snapshots.disconnected(other)

    def _found(self, number: int) -> None:
        for node in list(self.nodes.values()):
            others = set(self.numbers) - {node.number} if node.number == number else {number}
            for other in sorted(others):
                if self.connected(node.number, other):
                    node.groups.suspect(other)
                    node.groups.heard(other)

    def crash(self, number: int) -> None:
        node = self.nodes.pop(number)
        self.down[number] = node.journal.after_power_loss(self.dice)
        self._lost(number)

    def start(self, number: int) -> None:
        journal = self.down.pop(number)
        (me,) = [member for member in self.members if node_of(member) == number]
        self.nodes[number] = Node(self, me, journal)
        if number not in self.cut:
            self._found(number)

    def join(self, number: int, file_bytes: int = 3000) -> int:
        """Start a member on a node; the group is informed later."""
        member = member_id(number, 1)
        self.members.append(member)
        self.nodes[number] = Node(self, member, Journal(file_bytes))
        return member

    # --- what clients see

    def leader(self) -> Node | None:
        """Return the node that accepts clients' requests, or None."""
        leading = [node for node in self.nodes.values() if node.leads and node.number not in self.cut]
        return leading[-1] if leading else None

    def opened(self) -> Node:
        """Wait for a leader, and return it."""
        self.settle_down(lambda: self.leader() is not None)
        leader = self.leader()
        assert leader is not None
        return leader

    def even_leader(self) -> Node:
        """Wait until all members have applied every entry; return the leader."""
        self.settle_down(lambda: self.leader() is not None and self.even())
        return self.opened()

    def spread(self, node: Node, count: int = 1, size: int = 30, delay_ms: int = 0) -> None:
        """Publish as a client, and have all members apply it."""
        self.publish(node, count, size, delay_ms)
        self.settle_down(self.even)

    def consume(self, node: Node, credit: int) -> ConsumerRef:
        """Subscribe a client through a node and grant credit."""
        consumer = self.client.consumer()
        node.work(Subscribe(consumer, False), Credit(consumer, 0, credit, False, 0))
        return consumer

    def publish(self, node: Node, count: int = 1, size: int = 30, delay_ms: int = 0) -> None:
        """Publish through a node, with a delay if one is given."""
        ids = range(self.published, self.published + count)
        self.published += count
        head = make_head(None, {X_OPT_DELIVERY_DELAY: Long(delay_ms)}, "", "q") if delay_ms else HEAD
        messages = [(head, b"%d" % number + b"." * size) for number in ids]
        node.work(Publish(self.publisher, ids, messages, False))

    def heard(self, node: Node, effect: Effect) -> None:
        if isinstance(effect, Confirmed):
            self.confirmed.update(effect.ids)
        elif isinstance(effect, Deliver):
            for key, (_, body) in zip(effect.keys, effect.messages, strict=True):
                assert self.keys.setdefault(key, body) == body

    # --- checking

    def compare(self, node: Node) -> None:
        """Members with equal index have equal state bytes, whatever their history."""
        index, queue = node.store.point.index, node.backend.queue
        assert index >= node.applied, "what was applied is not applied any more"
        node.applied = index
        state = encode_snapshot(queue)
        assert self.states.setdefault(index, state) == state, f"members differ at entry {index}"

    def settle_down(self, wanted: Callable[[], bool], ms: int = 60_000) -> None:
        """All members run and are connected; advance time until the condition holds."""
        end = self.now + ms
        while not wanted():
            assert self.now < end, "nothing comes of it"
            self.step_all()

    def step_all(self) -> None:
        """Deliver, sync and process all that is under way; then advance time."""
        self.work_off(in_order=False)
        self.pass_time(20)

    def work_off(self, *, in_order: bool = True) -> None:
        """Deliver, sync and process all that is under way, without advancing time."""
        for _ in range(1000):
            busy = self.deliver(in_order=in_order)
            for node in list(self.nodes.values()):
                if node.journal.durable < node.journal.ticket:
                    node.journal.sync()
                    busy = True
                if node.woken:
                    node.work()
                    busy = True
            if not busy:
                break

    def pass_time(self, ms: int) -> None:
        self.now += ms
        for node in list(self.nodes.values()):
            if (due := node.groups.deadline) is not None and due <= self.now:
                node.groups.tick()
            if (due := node.snapshots.deadline) is not None and due <= self.now:
                node.snapshots.tick()
            if (due := node.backend.deadline()) is not None and due <= node.now:
                node.work()

    def even(self) -> bool:
        ends = {node.store.last for node in self.nodes.values()}
        return len(ends) == 1 and all(
            node.store.point.index == node.store.last for node in self.nodes.values()
        )

    def bodies(self, node: Node) -> dict[int, bytes]:
        indexes = sorted(node.backend.queue.live_indexes())
        found = node.store.bodies.fetch(indexes) if indexes else []
        return {index: body for index, (_, body) in zip(indexes, found, strict=True)}
