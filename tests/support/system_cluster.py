"""The system group on several nodes with simulated disks, network and clock; nothing happens by itself."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from amqp10broker.cluster.membership import ByCount
from amqp10broker.cluster.system import System
from amqp10broker.cluster.transactions import (
    CatalogTransaction,
    SystemMachine,
    SystemStore,
    TransactionDecision,
    TransactionOutcome,
    Value,
    found,
    joined,
)
from amqp10broker.errors import RefusedError
from amqp10broker.metadata.catalog import Catalog, CatalogRequest, entries, restore
from amqp10broker.metadata.entry_codec import encoded
from amqp10broker.metadata.plan import CLUSTER, LATER, NODE_NUMBERS, Decided, Key, Plan, Put
from amqp10broker.metadata.queue import ClusterFacts, NodeFacts, Owner
from amqp10broker.metadata.vhost_requests import JoinNode, NodeStarted
from amqp10broker.queues.commands import PeerId, RequestRef
from amqp10broker.raft.groups import Groups, Member
from amqp10broker.raft.ids import SYSTEM_GROUP, member_id, node_of
from amqp10broker.raft.messages import MESSAGE, Add, InstallSnapshot, Promote
from tests.support.catalog_log import CheckedCatalog, FakeHost, state
from tests.support.metadata_group import check_whole, conceal, explain


class MemoryLog:
    """What a node has on disk, as `storage.entry_log.EntryLog` keeps it; what was not synced may be lost."""

    def __init__(self) -> None:
        self._now: dict[Key, Value] = {}
        self._durable: dict[Key, Value] = {}
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._changes: deque[tuple[int, Sequence[tuple[Key, Value]], Sequence[Key]]] = deque()
        self._change = 0

    def __contains__(self, key: object) -> bool:
        return key in self._now

    def get(self, key: Key) -> Value:
        return self._now.get(key)

    def entries(self) -> Iterator[tuple[Key, Value]]:
        return iter(list(self._now.items()))

    def change(self, puts: Sequence[tuple[Key, Value]], forgets: Sequence[Key]) -> None:
        self._change += 1
        self._changes.append((self._change, puts, forgets))
        self._do(self._now, puts, forgets)

    def when_durable(self, told: Callable[[], None]) -> None:
        self._waiting.append((self._change, told))

    def sync(self) -> None:
        durable = self._change
        while self._changes:
            _, puts, forgets = self._changes.popleft()
            self._do(self._durable, puts, forgets)
        while self._waiting and self._waiting[0][0] <= durable:
            self._waiting.popleft()[1]()

    def lose_power(self, random_source: random.Random) -> None:
        """Lose part of what was not synced, from some change on."""
        for _ in range(random_source.randrange(len(self._changes) + 1)):
            _, puts, forgets = self._changes.popleft()
            self._do(self._durable, puts, forgets)
        self._changes.clear()
        self._waiting.clear()
        self._now = dict(self._durable)

    @staticmethod
    def _do(at: dict[Key, Value], puts: Sequence[tuple[Key, Value]], forgets: Sequence[Key]) -> None:
        at.update(puts)
        for key in forgets:
            at.pop(key, None)


class Noting(System):
    """Tells the world what was planned."""

    world: Cluster

    def _propose_plan(self, request: Any, ref: Any, due_ms: Any, plan: Plan[Any]) -> None:
        super()._propose_plan(request, ref, due_ms, plan)
        self.world.planned[self._node, self._incarnation, self._serial] = request, plan


class Node:
    """A node, that may be down."""

    def __init__(self, world: Cluster, number: int) -> None:
        self.world = world
        self.number = number
        self.name = chr(96 + number)
        self.log = MemoryLog()
        self.incarnation = 0
        self.up = False
        self.caught_up = False
        self.open: set[Owner] = set()
        self.gone: set[PeerId] = set()
        self.requests = 0
        self.heard: dict[RequestRef, Decided] = {}
        self.leaderless: set[int] = set()
        self.leaders_known = True

    def start(self) -> None:
        world = self.world
        self.incarnation += 1
        self.up, self.caught_up = True, False
        self.heard.clear()
        self.requests = 0
        store = world.store(self.log)
        self.host = FakeHost()
        self.catalog = CheckedCatalog(self.host.start_queue)
        restore(self.catalog, store.machine.entries())
        self.machine = store.machine
        self.groups = Groups(lambda: world.now_ms, self._send_raft)
        self.system = world.system(
            *(self.number, self.incarnation, store, self.catalog, conceal),
            send=self._send_transaction,
            tell=self._tell,
            now_ms=lambda: world.now_ms,
        )
        self.catalog.placement = ByCount(
            *(self.number, self.incarnation, world.random_source.randrange),
            runs=lambda number: self._reaches(number),
            group_size=1,
        )
        self.system.has_leader = lambda number: self.leaders_known
        self.system.is_open = self.open.__contains__
        self.system.is_asking = lambda peer: peer not in self.gone
        self.system.on_snapshot_wanted = self._send_snapshot
        me = member_id(self.number)
        self.member = Member(SYSTEM_GROUP, me, store, self.system, self.groups, world.random_source.random)
        self.system.member = self.member
        for number in range(1, len(world.nodes) + 1):
            if number != self.number and not self._reaches(number):
                self.groups.suspect(number)
                self.system.node_down(number)
        self.groups.add(self.member)
        self.system.start(NodeStarted(self.name, self.incarnation, "host", self.number), self._started)

    def _started(self) -> None:
        self.caught_up = True

    def _reaches(self, number: int) -> bool:
        if number > len(self.world.nodes):
            return False
        other = self.world.nodes[number - 1]
        return other is self or (other.up and frozenset((self.number, number)) not in self.world.cut)

    def stop(self) -> None:
        """Kill a node; what was not synced may be lost."""
        self.up = False
        self.open.clear()
        self.log.lose_power(self.world.random_source)

    # --- what it sends ------------------------------------------------------------------------------

    def _send_raft(self, node: int, group: int, message: bytes) -> None:
        assert group == SYSTEM_GROUP
        self.world.send(self, node, lambda to: to.groups.received(self.number, [(SYSTEM_GROUP, message)]))

    def _send_transaction(self, node: int, data: bytes) -> bool:
        self.world.send(self, node, lambda to: to.system.proposed(self.number, [data]))
        return self._reaches(node)

    def _send_snapshot(self, to: int) -> None:
        snapshot, me = self.system.snapshot(), self.member.me
        message = MESSAGE.encode(InstallSnapshot(me, to, self.member.raft.hard.term, snapshot))
        member = self.member

        def arrived(other: Node) -> None:
            other.groups.received(self.number, [(SYSTEM_GROUP, message)])
            member.raft.snapshot_done(to, snapshot.point.index)
            member.advance()

        if self._reaches(node_of(to)):
            self.world.send(self, node_of(to), arrived)
        else:
            self.world.later.append(lambda: self._failed(member, to))

    def _failed(self, member: Member, to: int) -> None:
        if self.up and member is self.member:
            member.raft.snapshot_done(to, None)
            member.advance()

    # --- what is asked ------------------------------------------------------------------------------

    def ask(self, request: CatalogRequest[Any]) -> RequestRef:
        """Request as a front end does; the answer arrives in `heard`."""
        self.requests += 1
        ref = RequestRef(PeerId(self.number, self.incarnation, 1), self.requests)
        try:
            answer = self.system.propose(request, ref)
        except RefusedError as refusal:
            self._tell(Decided(ref, refusal=refusal))
        else:
            if answer is not LATER:
                self._tell(Decided(ref, answer))
        return ref

    def _tell(self, decided: Decided) -> None:
        assert decided.ref not in self.heard, f"{decided.ref} is answered twice"
        self.heard[decided.ref] = decided

    def ticks(self) -> None:
        for part in (self.groups, self.system):
            if part.deadline is not None and part.deadline <= self.world.now_ms:
                part.tick()


class Cluster:
    """Several nodes.

    Attributes:
        log: the payloads of the group's log, by index.
        outcomes: likewise, what became of them.
        planned: requests, with the plan that a transaction was made of.
        truth: a catalog to which everything was applied.
    """

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        system: type[System] = System,
        machine: type[SystemMachine] = SystemMachine,
    ) -> None:
        self.random_source = random.Random(seed)
        self.now_ms = 1_000
        self.cut: set[frozenset[int]] = set()
        self.log: dict[int, bytes] = {}
        self.outcomes: dict[int, TransactionOutcome] = {}
        self.planned: dict[tuple[int, int, int], tuple[CatalogRequest[Any], Plan[Any]]] = {}
        self.carried_out: list[CatalogRequest[Any]] = []
        self.explains = True
        self.network: list[tuple[int, int, Callable[[Node], None]]] = []
        self.later: deque[Callable[[], None]] = deque()
        self.nodes = [Node(self, number) for number in range(1, nodes + 1)]
        self._machine = self._watched(machine)
        self._system = system
        self._form()

    def store(self, log: MemoryLog) -> SystemStore:
        store = SystemStore(log)
        machine = self._machine()
        machine.install(store.machine.snapshot())
        machine.touched.clear()
        store.machine = machine
        return store

    def system(self, *given: Any, **named: Any) -> System:
        kind: type[System] = type("Noting", (Noting, self._system), {"world": self})
        return kind(*given, **named)

    def _watched(self, kind: type[SystemMachine]) -> type[SystemMachine]:
        world = self

        class Machine(kind):  # type: ignore[valid-type,misc]
            def apply(self, index: int, transaction: CatalogTransaction) -> TransactionDecision:
                decision: TransactionDecision = super().apply(index, transaction)
                world.applied(index, transaction, decision)
                return decision

        return Machine

    def applied(self, index: int, transaction: CatalogTransaction, decision: TransactionDecision) -> None:
        data = transaction.encode()
        assert self.log.setdefault(index, data) == data, f"another transaction at {index}"
        if index in self.outcomes:
            assert self.outcomes[index] is decision.outcome, f"{index} is decided differently"
            return
        self.outcomes[index] = decision.outcome
        if decision.outcome is not TransactionOutcome.APPLIED:
            return
        request, plan = self.planned[transaction.origin]
        assert not any(each is request for each in self.carried_out), f"{request} is carried out twice"
        self.carried_out.append(request)
        if self.explains:
            explain(self.truth, request, plan, transaction, decision.puts)

    def _form(self) -> None:
        founder = self.nodes[0]
        catalog = Catalog(FakeHost().start_queue)
        catalog.apply(
            [
                Put(CLUSTER, ClusterFacts("id", "name")),
                Put(NODE_NUMBERS, 1),
                Put(("node", "a"), NodeFacts("a", 1, "host", 1)),
            ]
        )
        first = [(put.key, encoded(put.key, put.record)) for put in entries(catalog)]
        self.truth = CheckedCatalog(FakeHost().start_queue)
        restore(self.truth, first)
        found(founder.log, member_id(1), first)
        founder.log.sync()
        founder.start()
        self.settle()
        for node in self.nodes[1:]:
            assert self.answer(founder, JoinNode(node.name, "host", node.number)).number == node.number
            joined(node.log, lambda key: False)
            node.log.sync()
            node.start()
            self.reachable(node)
            for change in (Add(member_id(node.number)), Promote(member_id(node.number))):
                founder.member.change(change)
                founder.member.advance()
                self.settle()
        assert all(node.caught_up for node in self.nodes)

    # --- what happens ---------------------------------------------------------------------------------

    def send(self, sender: Node, to: int, deliver: Callable[[Node], None]) -> None:
        """Put a message in flight if the peer is reachable."""
        if sender._reaches(to):
            self.network.append((sender.number, to, deliver))

    def deliver(self, at: int = 0) -> None:
        """Deliver one message, or lose it with its connection."""
        sender, to, deliver = self.network.pop(at)
        node = self.nodes[to - 1]
        if node.up and self.nodes[sender - 1].up and frozenset((sender, to)) not in self.cut:
            deliver(node)

    def reachable(self, node: Node) -> None:
        """Make a node reachable for all that are not cut off from it."""
        self._notifications(node)

    def _notifications(self, node: Node) -> None:
        for other in self.nodes:
            if other is node:
                continue
            for here, there in ((node, other), (other, node)):
                if not here.up:
                    continue
                if here._reaches(there.number):
                    here.groups.suspect(there.number)
                    here.groups.heard(there.number)
                    here.system.node_up(there.number)
                else:
                    here.groups.suspect(there.number)
                    here.system.node_down(there.number)

    def kill(self, node: Node) -> None:
        node.stop()
        self.network = [each for each in self.network if node.number not in each[:2]]
        self._notifications(node)

    def restart(self, node: Node) -> None:
        node.start()
        self._notifications(node)

    def cut_off(self, node: Node, *, others: Sequence[Node] | None = None) -> None:
        for other in self.nodes if others is None else others:
            if other is not node:
                self.cut.add(frozenset((node.number, other.number)))
        self.network = [each for each in self.network if frozenset(each[:2]) not in self.cut]
        self._notifications(node)

    def heal(self) -> None:
        self.cut.clear()
        for node in self.nodes:
            self._notifications(node)

    def pass_time(self, ms: int) -> None:
        until = self.now_ms + ms
        while self.now_ms < until:
            self.now_ms = min(until, self.now_ms + 50)
            self.quiet()

    def quiet(self) -> None:
        for _ in range(100_000):
            busy = False
            for node in self.nodes:
                if node.up:
                    node.log.sync()
                    due = [part.deadline for part in (node.groups, node.system)]
                    if any(each is not None and each <= self.now_ms for each in due):
                        node.ticks()
                        busy = True
            if self.later:
                self.later.popleft()()
                busy = True
            if self.network:
                self.deliver()
                busy = True
            if not busy and not any(node.log._changes for node in self.nodes if node.up):
                return
        raise AssertionError("it never comes to rest")

    def settle(self) -> None:
        self.pass_time(2_000)

    def step(self) -> None:
        kind = self.random_source.random()
        up = [node for node in self.nodes if node.up]
        if kind < 0.6 and self.network:
            # Each connection keeps its order.
            pair = self.random_source.choice(sorted({each[:2] for each in self.network}))
            self.deliver(next(at for at, each in enumerate(self.network) if each[:2] == pair))
        elif kind < 0.8 and up:
            self.random_source.choice(up).log.sync()
        elif kind < 0.85 and self.later:
            self.later.popleft()()
        else:
            self.now_ms += self.random_source.randrange(20)
            for node in up:
                node.ticks()

    # --- looking --------------------------------------------------------------------------------------

    def leader(self) -> Node | None:
        leading = [node for node in self.nodes if node.up and node.member.leads]
        return max(leading, key=lambda node: node.member.raft.status.term, default=None)

    def answer(self, node: Node, request: CatalogRequest[Any]) -> Any:
        ref = node.ask(request)
        for _ in range(40):
            if ref in node.heard:
                return node.heard[ref].result()
            self.pass_time(1_000)
        raise AssertionError(f"{request} is never decided")

    def check_same(self) -> None:
        """All running nodes have equal and complete state."""
        up = [node for node in self.nodes if node.up]
        for node in up:
            assert node.system.applied == up[0].system.applied
            assert node.machine.snapshot() == up[0].machine.snapshot()
            assert _unordered(state(node.catalog)) == _unordered(state(up[0].catalog))
            again = CheckedCatalog(FakeHost().start_queue)
            restore(again, node.machine.entries())
            same = _unordered(state(again)) == _unordered(state(node.catalog))
            assert same, "the machine has other entries"
            check_whole(node.catalog)
            if self.explains:
                assert _unordered(state(node.catalog)) == _unordered(state(self.truth))


def _unordered(found: dict[str, Any]) -> dict[str, Any]:
    return {name: set(each) if name.startswith("bindings") else each for name, each in found.items()}
