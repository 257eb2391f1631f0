"""Nodes that agree on their catalogs, without Raft: what they propose is put into one log, in any order.

`Agreement` has the log and a catalog that never lags. Where a transaction is applied, its request is planned
on that catalog: what comes of it must be what the node had planned on its old copy, and so must the answer.
So the order of the log is one that explains every outcome.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from amqp10broker.cluster.transactions import (
    CatalogTransaction,
    Origin,
    SystemMachine,
    TransactionOutcome,
    Value,
    transaction_of,
)
from amqp10broker.errors import RefusedError
from amqp10broker.metadata.catalog import Catalog, CatalogRequest, entries, restore
from amqp10broker.metadata.entry_codec import decoded, encoded
from amqp10broker.metadata.plan import CLUSTER, NODE_NUMBERS, Key, Plan, Put
from amqp10broker.metadata.queue import ClusterFacts, NodeFacts, Placement
from amqp10broker.metadata.queue_requests import ConnectionEnded
from amqp10broker.metadata.vhost_requests import NodeLost
from tests.support.catalog_log import CheckedCatalog, FakeHost, state


def conceal(record: Any) -> Any:
    return record


def first_entries(nodes: int) -> list[tuple[Key, Value]]:
    catalog = Catalog(FakeHost().start_queue)
    facts = [Put(CLUSTER, ClusterFacts("id", "name")), Put(NODE_NUMBERS, nodes)]
    for number in range(1, nodes + 1):
        name = chr(96 + number)
        facts.append(Put(("node", name), NodeFacts(name, number, "host", number, 1)))
    catalog.apply(facts)
    return [(put.key, encoded(put.key, put.record)) for put in entries(catalog)]


def filled(first: Iterable[tuple[Key, Value]]) -> CheckedCatalog:
    catalog = CheckedCatalog(FakeHost().start_queue)
    catalog.apply([Put(key, decoded(key, value)) for key, value in first])
    return catalog


def check_whole(catalog: Catalog) -> None:
    for vhost in catalog.vhosts.values():
        for binding in vhost.topology.bindings():
            assert vhost.topology.find_exchange(binding.source) is not None, f"{binding} from nowhere"
            destination = binding.destination
            if destination.kind == "queue":
                assert destination.name in vhost.queues, f"{binding} to nowhere"
            else:
                assert vhost.topology.find_exchange(destination.name), f"{binding} to nowhere"
        for queue in vhost:
            assert not queue.home or catalog.node_of(queue.home), f"{queue.name} is at no node"
    for user, vhost_name, _ in catalog.users.permissions():
        assert user in catalog.users, "a permission of nobody"
        assert vhost_name in catalog.vhosts, "a permission for nothing"
    numbers = [queue.number for queue in catalog]
    assert len(set(numbers)) == len(numbers), "two queues have one number"
    assert max(numbers, default=0) <= catalog.highest_number


@dataclass
class Asked:
    """A request, and the attempt at it that is under way."""

    request: CatalogRequest[Any]
    plan: Plan[Any]
    transaction: CatalogTransaction
    attempts: int = 1


class Copy:
    """A node: its machine and its catalog, as far as it has applied the log."""

    def __init__(self, number: int, first: list[tuple[Key, Value]], machine: type[SystemMachine]) -> None:
        self.number = number
        self.machine = machine()
        self.machine.found(first, 1)
        self.catalog = filled(first)
        self.applied = 0
        self.serial = 0
        self.asked: dict[int, Asked] = {}
        self.network: list[bytes] = []
        self.decided: list[CatalogRequest[Any]] = []

    def ask(self, request: CatalogRequest[Any]) -> None:
        """Plan a request, and propose the plan's transaction."""
        try:
            plan = request.plan(self.catalog)
        except RefusedError:
            self.decided.append(request)
            return
        if not plan.puts and not plan.forgets:
            self.decided.append(request)
            return
        self.serial += 1
        origin = Origin(self.number, 1, self.serial)
        transaction = transaction_of(origin, plan, self.catalog, self.machine.revision, conceal)
        self.asked[self.serial] = Asked(request, plan, transaction)
        self.network.append(transaction.encode())

    def again(self, asked: Asked) -> None:
        self.ask(asked.request)


class Agreement:
    """The log, and all nodes."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        machine: type[SystemMachine] = SystemMachine,
        copy: type[Copy] = Copy,
        placement: Placement | None = None,
    ) -> None:
        self.random_source = random.Random(seed)
        first = first_entries(nodes)
        self.nodes = [copy(number, first, machine) for number in range(1, nodes + 1)]
        self.truth = filled(first)
        for catalog in (self.truth, *(node.catalog for node in self.nodes)):
            catalog.placement = placement
        self.log: list[bytes] = []
        self.outcomes: list[TransactionOutcome] = []
        self.asked: dict[tuple[int, int], Asked] = {}

    def ask(self, node: Copy, request: CatalogRequest[Any]) -> None:
        node.ask(request)
        self._note(node)

    def _note(self, node: Copy) -> None:
        self.asked.update({(node.number, serial): each for serial, each in node.asked.items()})

    def deliver(self, node: Copy) -> None:
        """Append a node's proposal to the log, usually its oldest; it may be appended twice."""
        if node.network:
            at = 0 if self.random_source.random() < 0.8 else self.random_source.randrange(len(node.network))
            message = node.network[at]
            self.log.append(message)
            if self.random_source.random() < 0.9:
                del node.network[at]

    def apply(self, node: Copy) -> None:
        if node.applied == len(self.log):
            return
        index = node.applied + 2
        transaction = CatalogTransaction.decode(self.log[node.applied])
        node.applied += 1
        decision = node.machine.apply(index, transaction)
        if len(self.outcomes) < node.applied:
            self.outcomes.append(decision.outcome)
            if decision.outcome is TransactionOutcome.APPLIED:
                self._explain(transaction, decision.puts)
        assert self.outcomes[node.applied - 1] is decision.outcome, "nodes decide differently"
        if decision.outcome is TransactionOutcome.APPLIED:
            _change(node.catalog, decision.puts, transaction)
            check_whole(node.catalog)
        if transaction.origin.node == node.number:
            asked = node.asked.pop(transaction.origin.serial, None)
            if asked is not None and decision.outcome is not TransactionOutcome.APPLIED:
                node.again(asked)
                self._note(node)

    def _explain(self, transaction: CatalogTransaction, puts: Any) -> None:
        """Require that the request gives the same plan at this point of the log."""
        asked = self.asked[transaction.origin.node, transaction.origin.serial]
        done = self.nodes[transaction.origin.node - 1].decided
        assert not any(each is asked.request for each in done), f"{asked.request} was answered before"
        done.append(asked.request)
        explain(self.truth, asked.request, asked.plan, transaction, puts)

    def finish(self) -> None:
        """Deliver every proposal to all nodes, which are then equal."""
        while any(node.network or node.applied < len(self.log) for node in self.nodes):
            for node in self.nodes:
                self.deliver(node)
                self.apply(node)
        for node in self.nodes:
            assert not node.asked, "something was never decided"
            assert state(node.catalog) == state(self.truth)
            assert node.machine.snapshot() == self.nodes[0].machine.snapshot()
            check_whole(node.catalog)
            again = CheckedCatalog(FakeHost().start_queue)
            restore(again, node.machine.entries())
            assert state(again) == state(node.catalog), "the machine has other entries"


def explain(
    truth: Catalog,
    request: CatalogRequest[Any],
    planned: Plan[Any],
    transaction: CatalogTransaction,
    puts: Any,
) -> None:
    """Planning a request where its transaction is applied gives the same transaction."""
    try:
        plan = request.plan(truth)
    except RefusedError as refusal:
        raise AssertionError(f"{request} is applied where it is refused") from refusal
    assert plan.answer == planned.answer, f"{request}: {planned.answer} and {plan.answer}"
    if isinstance(request, ConnectionEnded | NodeLost):
        # What has come since is ended by another.
        assert set(plan.forgets) >= set(transaction.forgets), f"{request} forgets what is not its own"
    else:
        assert sorted(plan.forgets) == sorted(transaction.forgets), f"{request} forgets otherwise"
    now = {put.key: _unnumbered(encoded(put.key, put.record, conceal)) for put in plan.puts}
    then = {key: _unnumbered(value) for key, value in transaction.puts}
    assert now == then, f"{request} puts {then} instead of {now}"
    _change(truth, puts, transaction)


def _change(catalog: Catalog, puts: Any, transaction: CatalogTransaction) -> None:
    catalog.apply(
        [Put(key, decoded(key, value)) for key, value in puts],
        transaction.forgets,
        send_delete=transaction.send_delete,
    )


def _unnumbered(value: Any) -> Any:
    """Leave out values decided when it is applied, and a queue's place, which may be older."""
    if not isinstance(value, dict):
        return value
    left_out = ("number", "home", "members", "incarnation")
    return {name: each for name, each in value.items() if name not in left_out}


def caught(live: Callable[..., object], seeds: int, **kinds: Any) -> bool:
    """Return whether a run of one of the seeds fails with these kinds of its parts."""
    for seed in range(seeds):
        try:
            live(seed, **kinds)
        except (AssertionError, KeyError):
            return True
    return False
