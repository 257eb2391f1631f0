"""Transactions and the machine that applies them: bytes, revisions, numbers, what comes twice."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from amqp10broker.cluster.transactions import (
    CatalogTransaction,
    Origin,
    SystemMachine,
    TransactionDecision,
    TransactionOutcome,
    transaction_of,
)
from amqp10broker.errors import InvalidArgument
from amqp10broker.metadata.catalog import CatalogRequest
from amqp10broker.metadata.entry_codec import decoded
from amqp10broker.metadata.plan import NUMBERS, Put, VhostFacts
from amqp10broker.metadata.queue import Owner
from amqp10broker.metadata.queue_requests import Bind, DeclareQueue, DeleteQueue
from amqp10broker.metadata.users import Permission, User
from amqp10broker.metadata.vhost_requests import DeleteUser, DeleteVhost, PutUser, PutVhost, SetPermission
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.metadata_group import conceal, filled, first_entries

APPLIED, CONFLICT, STALE = TransactionOutcome.APPLIED, TransactionOutcome.CONFLICT, TransactionOutcome.STALE


class Node:
    """A machine with the catalog of what it has applied."""

    def __init__(self) -> None:
        first = first_entries(2)
        self.machine = SystemMachine()
        self.machine.found(first, 1)
        self.catalog = filled(first)
        self.index = 1
        self.serial = 0

    def planned(self, request: CatalogRequest[Any], node: int = 1) -> CatalogTransaction:
        self.serial += 1
        plan = request.plan(self.catalog)
        origin = Origin(node, 1, self.serial)
        return transaction_of(origin, plan, self.catalog, self.machine.revision, conceal)

    def apply(self, transaction: CatalogTransaction) -> TransactionOutcome:
        return self.decide(transaction).outcome

    def decide(self, transaction: CatalogTransaction) -> TransactionDecision:
        self.index += 1
        decision = self.machine.apply(self.index, CatalogTransaction.decode(transaction.encode()))
        if decision.outcome is APPLIED:
            puts = [Put(key, decoded(key, value)) for key, value in decision.puts]
            self.catalog.apply(puts, transaction.forgets)
        return decision

    def do(self, request: CatalogRequest[Any]) -> None:
        assert self.apply(self.planned(request)) is APPLIED

    def again(self, transaction: CatalogTransaction) -> CatalogTransaction:
        self.serial += 1
        return replace(transaction, origin=transaction.origin._replace(serial=self.serial))


@pytest.fixture
def node() -> Node:
    return Node()


def binding(queue: str, key: str = "") -> Binding:
    return Binding("amq.direct", Destination("queue", queue), key)


def test_a_transaction_is_the_same_after_its_bytes(node: Node) -> None:
    arguments = {"x-odd": [Decimal("1.5"), b"\xff"], "x-text": "\u00e4"}
    planned = node.planned(DeclareQueue("/", "q", False, Owner(1, 1, 7), True, arguments))
    again = CatalogTransaction.decode(planned.encode())
    assert again == planned
    ((key, value),) = again.puts
    record = decoded(key, value)
    assert record.owner == Owner(1, 1, 7)
    assert record.arguments["x-odd"] == arguments["x-odd"]
    gone = node.planned(DeleteVhost("/"))
    assert CatalogTransaction.decode(gone.encode()) == gone


def test_what_cannot_be_kept_is_refused_before_it_is_proposed(node: Node) -> None:
    with pytest.raises(InvalidArgument, match="cannot be kept"):
        node.planned(DeclareQueue("/", "q", arguments={"x-odd": object()}))


def test_of_two_declarations_of_one_name_the_first_counts(node: Node) -> None:
    one = node.planned(DeclareQueue("/", "q", arguments={"x-max-length": 1}))
    other = node.planned(DeclareQueue("/", "q", arguments={"x-max-length": 2}))
    assert node.apply(other) is APPLIED
    assert node.apply(node.again(one)) is CONFLICT
    assert node.catalog.vhosts["/"].queues["q"].arguments["x-max-length"] == 2


FOUND = (("a", True), ("b", False), ("c", True))


def test_numbers_are_given_where_it_is_applied(node: Node) -> None:
    planned = [node.planned(DeclareQueue("/", name, durable)) for name, durable in FOUND]
    for each in planned:
        assert node.apply(each) is APPLIED
    queues = node.catalog.vhosts["/"].queues
    assert [queues[name].number for name in "abc"] == [1, 2, 3]
    node.do(DeleteQueue("/", "c"))
    node.do(DeclareQueue("/", "c"))
    assert queues["c"].number == 4
    assert dict(node.machine.entries())[NUMBERS] == {"highest": 4}


def test_a_queue_and_what_needs_it(node: Node) -> None:
    """A binding loses to a deletion of its queue, and a deletion to a binding that it has not seen."""
    node.do(DeclareQueue("/", "q"))
    bind = node.planned(Bind("/", binding("q")))
    delete = node.planned(DeleteQueue("/", "q"))
    assert node.apply(bind) is APPLIED
    assert node.apply(delete) is CONFLICT
    node.do(DeleteQueue("/", "q"))
    node.do(DeclareQueue("/", "q"))
    assert node.apply(node.again(bind)) is CONFLICT, "another queue has its name"


def test_nothing_is_left_of_a_user_or_a_virtual_host(node: Node) -> None:
    before = {key: node.machine.kept(key) for key in node.machine}
    node.do(PutUser(User("ann"), new=True))
    node.do(PutVhost(VhostFacts("v"), new=True))
    node.do(SetPermission("ann", "v", Permission()))
    node.do(DeclareQueue("v", "q", False))
    node.do(Bind("v", binding("q")))
    node.do(DeleteUser("ann"))
    node.do(DeleteVhost("v"))
    after = {key: node.machine.kept(key) for key in node.machine}
    changed = {("last", "1"), NUMBERS}
    assert after.keys() - before.keys() == {NUMBERS} - before.keys()
    assert {key: kept for key, kept in after.items() if key not in changed} == {
        key: kept for key, kept in before.items() if key not in changed
    }


def test_what_was_refused_does_not_come_later(node: Node) -> None:
    """Its node has planned again and may have answered: the old bytes must have no effect."""
    declare = node.planned(DeclareQueue("/", "q"))
    other = node.planned(DeclareQueue("/", "q", False))
    assert node.apply(other) is APPLIED
    assert node.apply(node.again(declare)) is CONFLICT
    node.do(DeleteQueue("/", "q"))
    assert node.apply(replace(declare, origin=Origin(1, 1, 3))) is STALE
    assert "q" not in node.catalog.vhosts["/"].queues


def test_what_was_overtaken_is_applied_no_more(node: Node) -> None:
    first, second = node.planned(DeclareQueue("/", "a")), node.planned(DeclareQueue("/", "b"))
    assert node.apply(second) is APPLIED
    assert node.apply(first) is STALE
    assert node.apply(replace(first, origin=Origin(2, 1, 1))) is APPLIED, "nodes do not overtake each other"


def test_a_start_of_a_node_ends_what_its_last_one_proposed(node: Node) -> None:
    late = node.planned(DeclareQueue("/", "a"))
    now = replace(node.planned(DeclareQueue("/", "b")), origin=Origin(1, 2, 1))
    assert node.apply(now) is APPLIED
    assert node.apply(late) is STALE


def test_a_snapshot_is_the_state(node: Node) -> None:
    node.do(DeclareQueue("/", "q"))
    node.do(Bind("/", binding("q")))
    node.do(DeclareQueue("/", "r", False, Owner(1, 1, 1)))
    other = SystemMachine()
    other.found(first_entries(1), 1)
    other.touched.clear()
    other.install(node.machine.snapshot())
    assert other.snapshot() == node.machine.snapshot()
    assert other.touched >= set(node.machine)
    declare = node.planned(DeclareQueue("/", "s"))
    assert other.apply(9, declare) == node.machine.apply(9, declare)
    assert other.snapshot() == node.machine.snapshot()


def test_what_is_kept_key_by_key_is_the_state(node: Node) -> None:
    node.machine.touched.clear()
    node.do(DeclareQueue("/", "q"))
    node.do(DeleteQueue("/", "q"))
    assert ("queue", "/", "q") in node.machine.touched
    assert ("queue", "/", "q") not in node.machine
    kept = {key: node.machine.kept(key) for key in node.machine}
    other = SystemMachine()
    other.restore((key, value) for key, value in kept.items() if value is not None)
    assert other.snapshot() == node.machine.snapshot()


@pytest.mark.parametrize("snapshot", [b"[", b"[1,2,3]", b'[["k"],1]'])
def test_a_snapshot_that_is_none_is_refused(snapshot: bytes) -> None:
    with pytest.raises(ValueError):
        SystemMachine().install(snapshot)
