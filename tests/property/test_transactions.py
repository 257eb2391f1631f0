"""Nodes propose what they have planned on old copies: every outcome is that of one order, the log's.

`tests.support.metadata_group.Agreement` compares each transaction that is applied with what its request comes
to where it stands in the log; at the end all nodes have the same.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from amqp10broker.cluster.transactions import CatalogTransaction, SystemMachine, TransactionOutcome
from amqp10broker.metadata.node_requests import ForgetNode, JoinNode, SetClusterName, SetDraining
from amqp10broker.metadata.plan import UserLimits, VhostFacts
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import Owner, Placed
from amqp10broker.metadata.queue_requests import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Unbind,
)
from amqp10broker.metadata.users import Permission, TopicPermission, User
from amqp10broker.metadata.vhost_requests import (
    ChangeUser,
    ChangeVhostLimits,
    ClearPolicy,
    ClearTopicPermission,
    DeleteUser,
    DeleteVhost,
    PutUser,
    PutVhost,
    SetParameter,
    SetPermission,
    SetPolicy,
    SetTopicPermission,
)
from amqp10broker.routing.exchange import Binding, Destination, ExchangeSpec
from tests.support.journals import LONG
from tests.support.metadata_group import Agreement, Asked, Copy

SEEDS = 2000 if LONG else 150


class OnTheNewest:
    """Every queue is at the node that joined last."""

    def __call__(self, wanted: Any, definition: Any, nodes: Any, queues: Any, count: int) -> Placed:
        return Placed(max(node.number for node in nodes), incarnation=0 if wanted.lasting else 1)


def some_request(random_source: random.Random) -> Any:
    vhost, user = random_source.choice("//v"), random_source.choice("xy")
    queue, exchange = random_source.choice("pq"), random_source.choice(["a", "b", "amq.topic"])
    destination = random_source.choice(
        [Destination("queue", queue), Destination("exchange", random_source.choice("ab"))]
    )
    binding = Binding(exchange, destination, random_source.choice(["", "k"]))
    owner = random_source.choice([None, None, Owner(1, 1, 1), Owner(2, 1, 1)])
    fanout = ExchangeSpec(
        random_source.choice("ab"), "fanout", random_source.random() < 0.5, auto_delete=True
    )
    flag = random_source.random() < 0.5
    return random_source.choice(
        [
            *[DeclareQueue(vhost, queue, flag, owner, arguments={"x-max-length": random_source.randrange(2)})]
            * 3,
            *[DeleteQueue(vhost, queue)] * 2,
            *[DeclareExchange(vhost, fanout)] * 3,
            DeleteExchange(vhost, exchange, flag),
            *[Bind(vhost, binding)] * 5,
            *[Unbind(vhost, binding)] * 4,
            PutVhost(VhostFacts(vhost), new=True),
            ChangeVhostLimits(vhost, {"max-queues": random_source.choice([1, 2, -1])}),
            DeleteVhost(vhost),
            PutUser(User(user), new=True),
            ChangeUser(user, {"limits": UserLimits(random_source.randrange(2)).as_dict()}),
            DeleteUser(user),
            SetPermission(user, vhost, Permission("x" * flag)),
            SetPermission(user, vhost, None),
            SetTopicPermission(user, vhost, exchange, TopicPermission("x" * flag)),
            ClearTopicPermission(user, vhost, None if flag else exchange),
            SetPolicy(vhost, Policy("p", "p", {"max-length": 1}, operator=flag)),
            ClearPolicy(vhost, "p", flag),
            SetParameter(("parameter", vhost, "c", "n"), flag),
            JoinNode("d", "host", 4),
            ForgetNode("d"),
            SetDraining(random_source.choice("ad"), flag),
            SetClusterName(random_source.choice("xy")),
        ]
    )


def live(seed: int, **kinds: Any) -> Agreement:
    """Some hundred requests at random nodes, whose copies lag."""
    agreement = Agreement(seed, placement=OnTheNewest(), **kinds)
    random_source = agreement.random_source
    for _ in range(150):
        node = random_source.choice(agreement.nodes)
        step = random_source.random()
        if step < 0.4:
            agreement.ask(node, some_request(random_source))
        elif step < 0.7:
            agreement.deliver(node)
        else:
            for _ in range(random_source.randrange(1, 4)):
                agreement.apply(node)
    agreement.finish()
    return agreement


def test_every_outcome_is_that_of_the_logs_order() -> None:
    """For random requests of all kinds; and all of the outcomes occur."""
    met: set[TransactionOutcome] = set()
    for seed in range(SEEDS):
        met.update(live(seed).outcomes)
    assert met == set(TransactionOutcome)


# --- planted faults: numbers 42 and 43 of the cluster's mutants, and one for each kind of read


class Blind(SystemMachine):
    """42: a transaction is applied though a key that it has read has a newer revision."""

    def _holds(self, transaction: CatalogTransaction) -> bool:
        return True


class Stubborn(Copy):
    """43: after a conflict the same is proposed with what the keys' revisions are now."""

    def again(self, asked: Asked) -> None:
        self.serial += 1
        before = asked.transaction
        reads = [(key, self.machine.revision(key)) for key, _ in before.reads]
        origin = before.origin._replace(serial=self.serial)
        after = CatalogTransaction(origin, reads, before.puts, before.forgets, before.farewell)
        self.asked[self.serial] = Asked(asked.request, asked.plan, after)
        self.network.append(after.encode())


def unread(kind: str) -> type[SystemMachine]:
    """A machine that does not look at keys of this kind, if the transaction does not touch them."""

    class Careless(SystemMachine):
        def _holds(self, transaction: CatalogTransaction) -> bool:
            touched = {key for key, _ in transaction.puts} | set(transaction.forgets)
            return all(
                self.revision(key) == revision
                for key, revision in transaction.reads
                if key[0] != kind or key in touched
            )

    return Careless


def caught(**kinds: Any) -> bool:
    for seed in range(SEEDS):
        try:
            live(seed, **kinds)
        except (AssertionError, KeyError):
            return True
    return False


@pytest.mark.parametrize("kinds", [{"machine": Blind}, {"copy": Stubborn}], ids=str)
def test_a_planted_fault_is_found(kinds: Any) -> None:
    assert caught(**kinds)


@pytest.mark.parametrize(
    "kind", ["vhost", "user", "exchange", "queue", "node", "in", "in-user", "queues", "bindings", "at"]
)
def test_every_kind_of_read_is_needed(kind: str) -> None:
    assert caught(machine=unread(kind))
