"""The metadata at random: transactions, the group of nodes, what is kept."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from amqp10broker.cluster.transactions import CatalogTransaction, SystemMachine, TransactionOutcome
from amqp10broker.errors import RefusedError
from amqp10broker.metadata import queue_requests, vhost_requests
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.plan import UserLimits, VhostFacts, VhostLimits
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import Owner, Placed, QueueHandle
from amqp10broker.metadata.users import PasswordAlgorithm, PasswordRecord, Permission, TopicPermission, User
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.routing.exchange import Binding, Destination, ExchangeSpec
from tests.support import declaring
from tests.support.catalog_log import CheckedCatalog, FakeHost, check_log, logged_catalog, restarted, state
from tests.support.examples import tried
from tests.support.journal_harness import LONG
from tests.support.metadata_group import Agreement, Asked, Copy, caught

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
            *[
                queue_requests.DeclareQueue(
                    vhost, queue, flag, owner, arguments={"x-max-length": random_source.randrange(2)}
                )
            ]
            * 3,
            *[queue_requests.DeleteQueue(vhost, queue)] * 2,
            *[queue_requests.DeclareExchange(vhost, fanout)] * 3,
            queue_requests.DeleteExchange(vhost, exchange, flag),
            *[queue_requests.Bind(vhost, binding)] * 5,
            *[queue_requests.Unbind(vhost, binding)] * 4,
            vhost_requests.PutVhost(VhostFacts(vhost), new=True),
            vhost_requests.ChangeVhostLimits(vhost, {"max-queues": random_source.choice([1, 2, -1])}),
            vhost_requests.DeleteVhost(vhost),
            vhost_requests.PutUser(User(user), new=True),
            vhost_requests.ChangeUser(user, {"limits": UserLimits(random_source.randrange(2)).as_dict()}),
            vhost_requests.DeleteUser(user),
            vhost_requests.SetPermission(user, vhost, Permission("x" * flag)),
            vhost_requests.SetPermission(user, vhost, None),
            vhost_requests.SetTopicPermission(user, vhost, exchange, TopicPermission("x" * flag)),
            vhost_requests.ClearTopicPermission(user, vhost, None if flag else exchange),
            vhost_requests.SetPolicy(vhost, Policy("p", "p", {"max-length": 1}, operator=flag)),
            vhost_requests.ClearPolicy(vhost, "p", flag),
            vhost_requests.SetParameter(("parameter", vhost, "c", "n"), flag),
            vhost_requests.JoinNode("d", "host", 4),
            vhost_requests.ForgetNode("d"),
            vhost_requests.SetDraining(random_source.choice("ad"), flag),
            vhost_requests.SetClusterName(random_source.choice("xy")),
        ]
    )


def live(seed: int, **kinds: Any) -> Agreement:
    """Make some hundred requests at random nodes, whose copies lag."""
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
    """Requests are random and of all kinds, and every outcome occurs."""
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
        after = CatalogTransaction(origin, reads, before.puts, before.forgets, before.send_delete)
        self.asked[self.serial] = Asked(asked.request, asked.plan, after)
        self.network.append(after.encode())


def unread(kind: str) -> type[SystemMachine]:
    """Return a machine that ignores keys of this kind if the transaction does not write them."""

    class Careless(SystemMachine):
        def _holds(self, transaction: CatalogTransaction) -> bool:
            touched = {key for key, _ in transaction.puts} | set(transaction.forgets)
            return all(
                self.revision(key) == revision
                for key, revision in transaction.reads
                if key[0] != kind or key in touched
            )

    return Careless


@pytest.mark.parametrize("kinds", [{"machine": Blind}, {"copy": Stubborn}], ids=str)
def test_a_planted_fault_is_found(kinds: Any) -> None:
    assert caught(live, SEEDS, **kinds)


@pytest.mark.parametrize(
    "kind", ["vhost", "user", "exchange", "queue", "node", "in", "in-user", "queues", "bindings", "at"]
)
def test_every_kind_of_read_is_needed(kind: str) -> None:
    assert caught(live, SEEDS, machine=unread(kind))


VHOSTS = ("/", "v")
QUEUES = ("p", "q", "r")
EXCHANGES = ("a", "b", "amq.topic", "amq.headers")
USERS = ("ann", "bob")
PASSWORDS = (
    None,
    PasswordRecord(PasswordAlgorithm.ARGON2ID, "$argon2id$x"),
    PasswordRecord(PasswordAlgorithm.ARGON2ID, "$argon2id$x", rabbit_sha256="A" * 48),
)
ARGUMENTS: tuple[dict[str, object], ...] = ({}, {"n": 1}, {"n": 1.0}, {"n": b"\xff", "x-match": "any"})

vhosts = st.sampled_from(VHOSTS)
users = st.sampled_from(USERS)
ANN, BOB = Owner(1, 1, 1), Owner(1, 1, 2)
owners = st.sampled_from((ANN, BOB))
flags = st.booleans()
destinations = st.one_of(
    st.builds(Destination, st.just("queue"), st.sampled_from(QUEUES)),
    st.builds(Destination, st.just("exchange"), st.sampled_from(EXCHANGES)),
)
bindings = st.builds(
    Binding, st.sampled_from(EXCHANGES), destinations, st.sampled_from(("", "k")), st.sampled_from(ARGUMENTS)
)
patterns = st.sampled_from(("", ".*", "^q"))


class KeptCatalogs(RuleBasedStateMachine):
    """Whatever is refused changes nothing; whatever is done is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.catalog, self.kept = logged_catalog(CheckedCatalog)
        self.numbers: dict[int, tuple[str, str]] = {}
        self.handles: list[QueueHandle] = []

    def vhost(self, name: str) -> VirtualHost:
        return self.catalog.vhosts.get(name) or declaring.add_vhost(self.catalog, name)

    @rule(orderly=flags)
    def restart(self, orderly: bool) -> None:
        """Continue with a catalog that is rebuilt from the kept entries."""
        if orderly:
            self.catalog.changes.give_numbers_back(self.catalog.highest_number)
        self.catalog = restarted(self.kept, CheckedCatalog)
        self.handles.clear()

    @rule(name=vhosts, limit=st.sampled_from((None, 0, 2)), text=st.sampled_from(("", "d")))
    def change_vhost(self, name: str, limit: int | None, text: str) -> None:
        vhost = self.vhost(name)
        declaring.change_vhost(
            self.catalog,
            vhost,
            limits=VhostLimits(max_queues=limit),
            description=text,
            tags=(text,) * len(text),
            metadata={"k": text},
        )

    @rule(name=vhosts)
    def delete_vhost(self, name: str) -> None:
        """Delete it with all contents; its queues may end later."""
        vhost = self.catalog.vhosts.get(name)
        if vhost is not None:
            self.handles += [queue.handle for queue in vhost]
            declaring.delete_vhost(self.catalog, name)

    @rule(owner=owners, name=vhosts)
    def end_connection(self, owner: Owner, name: str) -> None:
        """Its queues end, even when the virtual host has been replaced meanwhile."""
        self.catalog.propose(queue_requests.ConnectionEnded(name, owner))

    @rule(queue=st.sampled_from(QUEUES))
    def end_a_queue_of_before(self, queue: str) -> None:
        """A later queue with the same name stays."""
        for handle in self.handles:
            declared = self.catalog.vhosts.get("v")
            there = None if declared is None else declared.find(queue)
            self.catalog.propose(queue_requests.QueueEnded("v", queue, handle))
            if there is not None and there.handle is not handle:
                assert declared.find(queue) is there

    @rule(name=vhosts, queue=st.sampled_from(QUEUES), durable=flags, auto_delete=flags, exclusive=flags)
    def declare(self, name: str, queue: str, durable: bool, auto_delete: bool, exclusive: bool) -> None:
        owner = ANN if exclusive else None
        with suppress(RefusedError):
            made, new = declaring.declare(
                self.catalog,
                self.vhost(name),
                queue,
                durable=durable,
                auto_delete=auto_delete,
                exclusive_owner=owner,
            )
            if new and made.lasting:
                assert made.number not in self.numbers, "a number was given twice"
                self.numbers[made.number] = name, queue
            assert bool(made.number) is made.lasting

    @rule(name=vhosts, queue=st.sampled_from(QUEUES))
    def remove(self, name: str, queue: str) -> None:
        declaring.remove(self.catalog, self.vhost(name), queue)

    @rule(name=vhosts, exchange=st.sampled_from(EXCHANGES), durable=flags, auto_delete=flags)
    def declare_exchange(self, name: str, exchange: str, durable: bool, auto_delete: bool) -> None:
        with suppress(RefusedError):
            declaring.declare_exchange(
                self.catalog, self.vhost(name), exchange, "headers", durable=durable, auto_delete=auto_delete
            )

    @rule(name=vhosts, exchange=st.sampled_from(EXCHANGES))
    def delete_exchange(self, name: str, exchange: str) -> None:
        with suppress(RefusedError):
            declaring.delete_exchange(self.catalog, self.vhost(name), exchange)

    @rule(name=vhosts, binding=bindings)
    def bind(self, name: str, binding: Binding) -> None:
        with suppress(RefusedError):
            declaring.bind(self.catalog, self.vhost(name), binding)

    @rule(name=vhosts, binding=bindings)
    def unbind(self, name: str, binding: Binding) -> None:
        with suppress(RefusedError):
            declaring.unbind(self.catalog, self.vhost(name), binding)

    @rule(name=users, password=st.sampled_from(PASSWORDS), limit=st.sampled_from((None, 1)))
    def add_or_change_user(self, name: str, password: PasswordRecord | None, limit: int | None) -> None:
        if name not in self.catalog.users:
            declaring.add_user(self.catalog, name, password)
        declaring.set_password(self.catalog, name, password)
        declaring.set_user_limits(self.catalog, name, UserLimits(max_channels=limit))

    @rule(name=users)
    def delete_user(self, name: str) -> None:
        with suppress(RefusedError):
            declaring.delete_user(self.catalog, name)

    @rule(user=users, vhost=vhosts, pattern=patterns, clear=flags)
    def permit(self, user: str, vhost: str, pattern: str, clear: bool) -> None:
        with suppress(RefusedError):
            if clear:
                declaring.clear_permission(self.catalog, user, vhost)
                declaring.clear_topic_permission(self.catalog, user, vhost, "x" if pattern else None)
            else:
                declaring.set_permission(self.catalog, user, vhost, Permission(pattern))
                declaring.set_topic_permission(self.catalog, user, vhost, "x", TopicPermission(pattern))

    @rule(
        name=vhosts,
        policy=st.sampled_from(("p", "q")),
        operator=flags,
        length=st.integers(0, 1),
        delete=flags,
    )
    def change_policy(self, name: str, policy: str, operator: bool, length: int, delete: bool) -> None:
        self.vhost(name)
        with suppress(RefusedError):
            if delete:
                declaring.delete_policy(self.catalog, name, policy, operator=operator)
            else:
                declaring.put_policy(
                    self.catalog, name, Policy(policy, "q", {"max-length": length}, operator=operator)
                )

    @rule(name=vhosts, value=st.sampled_from((1, None, {"a": []})))
    def set_parameter(self, name: str, value: object) -> None:
        self.vhost(name)
        self.catalog.propose(vhost_requests.SetParameter(("parameter", name, "shovel", "s"), value))
        self.catalog.propose(vhost_requests.SetParameter(("global_parameter", "g"), value))

    @invariant()
    def is_replayed(self) -> None:
        """Replaying the applied plans on an empty catalog makes the same catalog."""
        again = Catalog(FakeHost().start_queue)
        for puts, forgets in self.catalog.log[1:]:  # the first is the virtual host that every one has
            again.apply(puts, forgets)
        assert state(again) == state(self.catalog)

    @invariant()
    def is_kept(self) -> None:
        """The log of changes equals the catalog, and a restart at this point restores it."""
        check_log(self.catalog, self.kept)


TestKeptCatalogs = KeptCatalogs.TestCase
TestKeptCatalogs.settings = settings(max_examples=tried(200), stateful_step_count=40, deadline=None)
