"""The group of the metadata, and its store."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amqp10broker.cluster import transactions
from amqp10broker.cluster.system import next_member_change
from amqp10broker.cluster.transactions import (
    CatalogTransaction,
    Origin,
    SystemMachine,
    SystemStore,
    TransactionOutcome,
    found,
    is_member,
    left_alone,
    transaction_of,
)
from amqp10broker.errors import Inequivalent, PreconditionFailed, Unavailable
from amqp10broker.metadata.plan import VhostFacts
from amqp10broker.metadata.queue import NodeFacts, Owner
from amqp10broker.metadata.queue_requests import (
    Bind,
    ConnectionEnded,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    QueueDeclaration,
    Unbind,
)
from amqp10broker.metadata.users import User
from amqp10broker.metadata.vhost_requests import (
    JoinNode,
    NodeStarted,
    PutUser,
    PutVhost,
    RaiseMachines,
    SetClusterName,
    SetParameter,
)
from amqp10broker.queues.commands import DELETE
from amqp10broker.raft import messages
from amqp10broker.raft.ids import member_id
from amqp10broker.routing.exchange import Binding, Destination, ExchangeSpec
from amqp10broker.storage import entry_log
from amqp10broker.storage.catalog_log import CatalogLog, open_catalog_log
from amqp10broker.storage.folder import open_data_folder
from tests.support.disks import PowerLoss, SimDisk
from tests.support.metadata_group import conceal, filled, first_entries
from tests.support.queue_handles import FakeHandle
from tests.support.system_cluster import Cluster, Node

TO_Q = Binding("amq.direct", Destination("queue", "q"), "k")


@pytest.fixture
def world() -> Cluster:
    return Cluster(1)


def follower(world: Cluster) -> Node:
    leader = world.leader()
    assert leader is not None
    return next(node for node in world.nodes if node is not leader)


@pytest.fixture
def node(world: Cluster) -> Node:
    return follower(world)


def queues(node: Node) -> set[str]:
    return set(node.catalog.vhosts["/"].queues)


# --- M1, M3, M4: a change is there when it is answered, and a read asks nobody ------------------------


def test_what_is_declared_at_one_node_is_there_at_all(world: Cluster) -> None:
    for number, node in enumerate(world.nodes):
        assert world.answer(node, DeclareQueue("/", f"q{number}")) == QueueDeclaration(f"q{number}", True)
    world.settle()
    world.check_same()
    assert all(queues(node) == {"q0", "q1", "q2"} for node in world.nodes)


def test_it_is_answered_when_the_own_copy_has_it(world: Cluster, node: Node) -> None:
    """It is not earlier, so a later request finds the queue."""
    ref = node.ask(DeclareQueue("/", "q"))
    while ref not in node.heard:
        assert "q" not in queues(node)
        world.step()
    assert "q" in queues(node)
    world.answer(node, Bind("/", TO_Q))


def test_what_changes_nothing_is_answered_at_once_also_in_minority(world: Cluster, node: Node) -> None:
    world.answer(node, DeclareQueue("/", "q", durable=False))
    world.cut_off(node)
    touched = _handle(node, "q").commands
    ref = node.ask(DeclareQueue("/", "q", durable=False))
    assert node.heard[ref].result() == QueueDeclaration("q", False)
    assert len(touched) == 1, "it counts as used"
    ref = node.ask(DeclareQueue("/", "q"))
    with pytest.raises(Inequivalent):
        node.heard[ref].result()


def _handle(node: Node, name: str) -> FakeHandle:
    handle = node.catalog.vhosts["/"].queues[name].handle
    assert isinstance(handle, FakeHandle)
    return handle


@pytest.mark.rabbitmq("quorum_queue_SUITE", "start_queue_concurrent")
def test_of_two_that_declare_one_name_one_finds_what_the_other_made(world: Cluster) -> None:
    one, other = world.nodes[1:]
    refs = [
        (node, node.ask(DeclareQueue("/", "q", arguments={"x-max-length": length})))
        for length, node in enumerate((one, other), 1)
    ]
    world.settle()
    heard = [node.heard[ref] for node, ref in refs]
    assert sorted(type(each.refusal).__name__ for each in heard) == ["Inequivalent", "NoneType"]
    assert TransactionOutcome.CONFLICT in world.outcomes.values()
    world.check_same()


@pytest.mark.rabbitmq("quorum_queue_SUITE", "delete_immediately_by_resource", "start_queue", "stop_queue")
def test_a_new_queue_of_a_deleted_ones_name_is_another_group(world: Cluster, node: Node) -> None:
    """Otherwise a member of the deleted group, not yet informed, would vote in the new one."""
    given: list[int] = []
    for _ in range(3):
        world.answer(node, DeclareQueue("/", "q"))
        given.append(node.catalog.vhosts["/"].queues["q"].number)
        world.answer(node, DeleteQueue("/", "q"))
    assert given == [1, 2, 3]


# --- M5, M6: no majority ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            DeclareQueue("/", "new"),
            "failed to declare queue 'new' in vhost '/', because the operation timed out",
        ),
        (
            DeclareQueue("/", "new", arguments={"x-queue-type": "quorum"}),
            "Could not declare queue 'new' in vhost '/' because the metadata store operation timed out",
        ),
        (
            DeclareExchange("/", ExchangeSpec("x")),
            "failed to declare exchange 'x' in vhost '/', because the operation timed out",
        ),
        (DeleteQueue("/", "q"), "failed to delete queue 'q' in vhost '/' due to a timeout"),
        (DeleteExchange("/", "e"), "failed to delete exchange 'e' in vhost '/' due to a timeout"),
        (Bind("/", TO_Q), "Could not add binding due to timeout"),
        (Unbind("/", Binding("amq.direct", TO_Q.destination)), "Could not remove binding due to timeout"),
        (PutVhost(VhostFacts("v"), new=True), "no majority of the cluster's nodes can be reached"),
        (PutUser(User("ann"), new=True), "no majority of the cluster's nodes can be reached"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_in_minority_a_change_is_refused_in_half_a_minute(
    world: Cluster, request_: object, text: str
) -> None:
    node = world.nodes[2]
    world.answer(node, DeclareQueue("/", "q"))
    world.answer(node, DeclareExchange("/", ExchangeSpec("e")))
    world.answer(node, Bind("/", Binding("amq.direct", TO_Q.destination)))
    world.cut_off(node)
    ref = node.ask(request_)  # type: ignore[arg-type]
    world.pass_time(29_000)
    assert ref not in node.heard
    world.pass_time(1_200)
    with pytest.raises(Unavailable, match=text):
        node.heard[ref].result()


def test_what_was_refused_for_want_of_time_may_happen_later_and_is_safe_to_repeat(world: Cluster) -> None:
    leader = world.leader()
    assert leader is not None
    world.cut_off(leader)
    ref = leader.ask(DeclareQueue("/", "q"))
    world.pass_time(31_000)
    assert leader.heard[ref].refusal is not None
    world.heal()
    world.settle()
    world.answer(leader, DeclareQueue("/", "q"))
    world.settle()
    world.check_same()


def test_a_majority_goes_on_without_the_leader_and_nobody_asks_twice(world: Cluster) -> None:
    """M7: the node repeats the requests that were under way."""
    leader, node = world.leader(), follower(world)
    assert leader is not None
    refs = [node.ask(DeclareQueue("/", f"q{number}")) for number in range(5)]
    for _ in range(7):
        world.step()
    world.kill(leader)
    world.settle()
    assert [node.heard[ref].result().created for ref in refs] == [True] * 5
    world.restart(leader)
    world.settle()
    world.check_same()


# --- S1, S2, S5: starting ----------------------------------------------------------------------------


def test_a_node_that_starts_has_what_it_missed_before_it_says_so(world: Cluster, node: Node) -> None:
    world.kill(node)
    other = next(each for each in world.nodes if each.up)
    for number in range(20):
        world.answer(other, DeclareQueue("/", f"q{number}"))
    world.restart(node)
    assert not node.caught_up
    while not node.caught_up:
        assert len(queues(node)) in range(21)
        world.pass_time(50)
    assert len(queues(node)) == 20


def test_without_a_majority_a_start_waits(world: Cluster) -> None:
    for node in world.nodes:
        world.kill(node)
    world.restart(world.nodes[2])
    world.pass_time(60_000)
    assert not world.nodes[2].caught_up
    world.restart(world.nodes[1])
    world.settle()
    assert world.nodes[1].caught_up
    assert world.nodes[2].caught_up


def test_a_node_that_was_away_for_long_gets_a_state(world: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state replaces its catalog: another queue of the same name is another queue."""
    monkeypatch.setattr(transactions, "COMPACT_AFTER", 4)
    node = follower(world)
    for name in ("gone", "again", "stays"):
        world.answer(node, DeclareQueue("/", name))
        world.answer(node, Bind("/", Binding("amq.direct", Destination("queue", name), "k")))
    world.answer(node, DeclareExchange("/", ExchangeSpec("e", "fanout")))
    world.answer(node, Bind("/", Binding("e", Destination("queue", "stays"))))
    world.settle()
    before = {name: node.catalog.vhosts["/"].queues[name] for name in ("gone", "again", "stays")}
    world.cut_off(node)
    other = world.nodes[0] if world.nodes[0] is not node else world.nodes[1]
    world.settle()
    world.answer(other, DeleteQueue("/", "gone"))
    world.answer(other, DeleteQueue("/", "again"))
    world.answer(other, DeclareQueue("/", "again"))
    world.answer(other, DeleteExchange("/", "e"))
    world.answer(other, DeclareExchange("/", ExchangeSpec("e", "direct")))
    world.answer(other, Bind("/", Binding("e", Destination("queue", "stays"))))
    for number in range(10):
        world.answer(other, DeclareQueue("/", f"new {number}"))
    left = world.leader()
    assert left.machine.revision(("queue", "/", "new 9")) > 20
    world.heal()
    world.settle()
    world.check_same()
    now = node.catalog.vhosts["/"].queues
    assert now["stays"] is before["stays"]
    assert now["again"] is not before["again"]
    assert isinstance(before["again"].handle, FakeHandle)
    assert before["again"].handle.commands == [DELETE]
    world.kill(node)
    world.restart(node)
    world.settle()
    world.check_same()


# --- K7, K8, M8: what ends with a connection or a node --------------------------------------------------


def test_a_connections_queues_end_at_all_nodes(world: Cluster, node: Node) -> None:
    owner = Owner(node.number, node.incarnation, 1)
    node.open.add(owner)
    world.answer(node, DeclareQueue("/", "mine", owner=owner))
    world.settle()
    assert all("mine" in queues(each) for each in world.nodes)
    node.open.remove(owner)
    node.system.submit_request(ConnectionEnded("/", owner))
    world.settle()
    assert not any("mine" in queues(each) for each in world.nodes)


def test_a_queue_that_comes_after_its_connection_went_goes_again(world: Cluster, node: Node) -> None:
    """Its declaration was under way, and may have been refused by a time-out."""
    owner = Owner(node.number, node.incarnation, 1)
    node.open.add(owner)
    node.ask(DeclareQueue("/", "mine", owner=owner))
    node.open.remove(owner)
    node.system.submit_request(ConnectionEnded("/", owner))
    world.settle()
    assert not any("mine" in queues(each) for each in world.nodes)


@pytest.mark.parametrize("refused", [False, True])
def test_a_queue_that_comes_after_its_link_went_or_was_refused_goes(world: Cluster, refused: bool) -> None:
    """Its connection is open, so nothing else would delete it."""
    node = world.leader()
    owner = Owner(node.number, node.incarnation, 1)
    node.open.add(owner)
    wanted = node.ask(DeclareQueue("/", "amq.dyn-wanted", owner=owner, internal=True))
    world.settle()
    others = [each for each in world.nodes if each is not node]
    if refused:
        for other in others:
            world.kill(other)
    late = node.ask(DeclareQueue("/", "amq.dyn-late", owner=owner, internal=True))
    if refused:
        world.pass_time(31_000)
        assert node.heard[late].refusal is not None
        for other in others:
            world.restart(other)
    else:
        node.gone.add(late.reply_to)
    world.settle()
    assert node.heard[wanted].result().created
    assert not any("amq.dyn-late" in queues(each) for each in world.nodes)
    assert "amq.dyn-wanted" in queues(node)


def test_what_ends_with_a_node_is_ended_by_the_others_and_its_name_is_free(
    world: Cluster, node: Node
) -> None:
    other = next(each for each in world.nodes if each is not node)
    owner = Owner(node.number, node.incarnation, 1)
    node.open.add(owner)
    world.answer(node, DeclareQueue("/", "exclusive", owner=owner))
    world.answer(node, DeclareQueue("/", "transient", durable=False))
    world.answer(node, DeclareQueue("/", "durable"))
    world.kill(node)
    world.pass_time(1_000)
    assert {"exclusive", "transient", "durable"} == queues(other)
    world.pass_time(1_000)
    assert queues(other) == {"durable"}
    world.answer(other, DeclareQueue("/", "exclusive"))
    world.restart(node)
    world.settle()
    world.check_same()


# --- Y2, Y3: which version of the machines all use ------------------------------------------------------


def upgraded(world: Cluster, node: Node, newest: int = 2) -> None:
    """Restart a node with a broker of a newer version."""
    node.incarnation += 1
    started = NodeStarted(node.name, node.incarnation, "host", node.number, "2.0", (1, newest))
    world.answer(node, started)


def used(world: Cluster) -> set[int]:
    return {node.system.version for node in world.nodes if node.up}


def test_the_version_goes_up_when_every_node_has_said_that_it_can(world: Cluster) -> None:
    """A node that is down counts with its last report; the next version is one that all support."""
    for node, newest in zip(world.nodes[:2], (2, 3), strict=True):
        upgraded(world, node, newest)
        world.answer(node, RaiseMachines())
        world.settle()
        assert used(world) == {1}
    upgraded(world, world.nodes[2])
    world.kill(world.nodes[2])
    world.answer(world.nodes[0], RaiseMachines())
    world.settle()
    assert used(world) == {2}
    world.restart(world.nodes[2])
    world.settle()
    assert used(world) == {2}
    world.answer(world.nodes[1], SetClusterName("another"))
    assert used(world) == {2}


def test_a_node_of_an_older_version_neither_joins_nor_starts_then(world: Cluster) -> None:
    """The error has both numbers and the remedy."""
    for node in world.nodes:
        upgraded(world, node)
    world.answer(world.nodes[0], RaiseMachines())
    world.settle()
    refused = "carries out machine versions 1 to 1, and the cluster uses version 2: install a newer broker"
    with pytest.raises(PreconditionFailed, match=f"node 'd' {refused} at node 'd'"):
        world.answer(world.nodes[0], JoinNode("d", "host", 4, "1.0", (1, 1)))
    with pytest.raises(PreconditionFailed, match=f"node 'b' {refused}"):
        world.answer(world.nodes[1], NodeStarted("b", 9, "host", 2, "1.0", (1, 1)))
    with pytest.raises(PreconditionFailed, match="uses version 2: install an older broker"):
        world.answer(world.nodes[0], JoinNode("d", "host", 4, "3.0", (3, 4)))
    assert world.answer(world.nodes[0], JoinNode("d", "host", 4, "2.0", (2, 3))).number == 4


@pytest.mark.parametrize("raised_first", [True, False])
@pytest.mark.parametrize("older", ["joins", "starts"])
def test_of_an_older_node_and_a_newer_version_at_once_one_is_refused(
    world: Cluster, older: str, raised_first: bool
) -> None:
    """The first in the log, which is the leader's, takes effect; the other is refused."""
    for node in world.nodes:
        upgraded(world, node)
    world.settle()
    leader, other = world.leader(), follower(world)
    assert leader is not None
    raising, telling = (leader, other) if raised_first else (other, leader)
    ref = telling.ask(JoinNode("d", "host", 4) if older == "joins" else NodeStarted("b", 9, "host", 2))
    raising.ask(RaiseMachines())
    world.settle()
    assert (used(world), telling.heard[ref].refusal is None) == (
        ({2}, False) if raised_first else ({1}, True)
    )
    ranges = [node.machines for node in leader.catalog.nodes.values()]
    assert ((1, 1) in ranges) is not raised_first


# --- Q4: a quorum queue needs a leader -------------------------------------------------------------------

QUORUM = {"x-queue-type": "quorum"}


def test_a_quorum_queue_is_declared_when_it_has_a_leader(world: Cluster, node: Node) -> None:
    node.leaders_known = False
    ref = node.ask(DeclareQueue("/", "q", arguments=QUORUM))
    world.pass_time(1_000)
    assert "q" in queues(node)
    assert ref not in node.heard
    node.system.leader_is(node.catalog.vhosts["/"].queues["q"].number)
    assert node.heard[ref].result() == QueueDeclaration("q", True)
    world.pass_time(10_000)
    assert "q" in queues(node)


def test_without_a_leader_nothing_is_left_of_it(world: Cluster, node: Node) -> None:
    """Most of its nodes are absent: the error says so after a few seconds."""
    node.leaders_known = False
    ref = node.ask(DeclareQueue("/", "q", arguments=QUORUM))
    node.system.node_down(node.number)
    world.pass_time(1_000)
    handles = [_handle(each, "q") for each in world.nodes]
    world.pass_time(6_000)
    a = node.name
    text = (
        f"Cannot declare quorum queue 'q' in vhost '/' on node '{a}' with leader on node '{a}': no leader "
        f"was elected within 5 s; start more of its nodes: '{a}' cannot be reached"
    )
    with pytest.raises(Unavailable, match=text):
        node.heard[ref].result()
    world.settle()
    assert not any("q" in queues(each) for each in world.nodes)
    assert all(handle.commands == [DELETE] for handle in handles)


# --- and ------------------------------------------------------------------------------------------------


def test_a_queue_that_is_to_hear_of_its_end_from_who_asked_hears_of_it_in_any_case(world: Cluster) -> None:
    node = follower(world)
    world.answer(node, DeclareQueue("/", "q"))
    world.settle()
    handles = [_handle(each, "q") for each in world.nodes]
    world.answer(node, DeleteQueue("/", "q", send_delete=False))
    world.settle()
    assert all(handle.commands == [] for handle in handles)
    world.pass_time(10_000)
    assert all(handle.commands == [DELETE] for handle in handles)


def test_a_transaction_of_another_node_is_not_taken_from_this_one(world: Cluster) -> None:
    leader = world.leader()
    assert leader is not None
    with pytest.raises(ValueError, match="not of node 2"):
        leader.system.proposed(2, [CatalogTransaction(Origin(3, 1, 1), []).encode()])
    with pytest.raises(ValueError, match="no transaction"):
        leader.system.proposed(2, [b"x"])


ME = member_id(1)
FIRST = first_entries(1)


def opened(disk: SimDisk) -> CatalogLog:
    folder = open_data_folder(disk, "/data", "test")
    return open_catalog_log(disk, folder, folder.inventory.part("catalog"))


def sync(disk: SimDisk, log: CatalogLog) -> None:
    fds = log.fds_to_sync()
    for fd in fds:
        disk.sync(fd)
    if fds:
        log.synced()


def ready(**given: Any) -> messages.Ready:
    fields: dict[str, Any] = {
        "ticket": 1, "hard": None, "snapshot": None, "entries": (), "messages": [], "commit": None,
        "snapshots_to": (), "status": None,
    }  # fmt: skip
    return messages.Ready(**{**fields, **given})


def commands(first: int, term: int, *payloads: bytes) -> messages.Run:
    return messages.run_of(first, term, messages.Kind.COMMAND, payloads)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def log(disk: SimDisk) -> CatalogLog:
    log = opened(disk)
    log.put([*FIRST, (("furnished",), {})])
    found(log, ME, FIRST)
    return log


def test_the_founder_keeps_what_it_had(log: CatalogLog, disk: SimDisk) -> None:
    assert is_member(log)
    store = SystemStore(log)
    assert store.stored.point == messages.Point(1, 0, messages.Configuration((ME,)))
    assert store.applied == 1
    assert dict(store.machine.entries()) == dict(FIRST)
    assert all(store.machine.revision(key) == 1 for key, _ in FIRST)
    assert dict(left_alone(log)).items() >= dict(FIRST).items()
    assert log.get(("furnished",)) == {}
    assert log.get(("vhost", "/")) is None, "it stands there once"
    again = SystemStore(opened(disk.after_kill()))
    assert again.machine.snapshot() == store.machine.snapshot()


def test_entries_are_read_in_runs_as_far_as_the_size_goes(log: CatalogLog, disk: SimDisk) -> None:
    """A run has one term and kind; this also holds after a restart, with terms and configurations."""
    config = messages.Configuration((ME,), (member_id(2),))
    runs = (
        messages.run_of(2, 1, messages.Kind.EMPTY, (b"",)),
        commands(3, 1, b"a", b"\xff"),
        messages.run_of(5, 1, messages.Kind.CONFIG, (messages.CONFIG.encode(config),)),
        commands(6, 2, b"cc", b"d"),
    )
    told: list[int] = []
    store = SystemStore(log)
    store.write(ready(entries=runs, hard=messages.Hard(2, ME, 3)), lambda: told.append(1))
    assert told == []
    sync(disk, log)
    assert told == [1]
    again = SystemStore(opened(disk.after_power_loss(1)))
    for each in (store, again):
        assert tuple(each.read(2, 7, 1000)) == runs
        assert each.read(3, 7, 2) == [runs[1]]
        assert each.read(6, 7, 1) == [commands(6, 2, b"cc")]
        assert each.read(7, 7, 0) == [commands(7, 2, b"d")]
    stored = again.stored
    assert (stored.last, stored.hard) == (7, messages.Hard(2, ME, 3))
    assert (stored.terms, stored.configs) == (((2, 1), (6, 2)), ((5, config),))


def test_entries_that_are_replaced_are_gone_with_all_behind_them(log: CatalogLog, disk: SimDisk) -> None:
    store = SystemStore(log)
    store.write(ready(entries=(commands(2, 1, b"a", b"b", b"c"),)), lambda: None)
    store.write(ready(entries=(commands(3, 2, b"x"),)), lambda: None)
    again = SystemStore(opened(disk.after_kill()))
    for each in (store, again):
        assert each.read(2, 3, 1000) == [commands(2, 1, b"a"), commands(3, 2, b"x")]
    assert again.stored.last == 3


def test_a_state_from_the_leader_takes_the_place_of_everything(log: CatalogLog, disk: SimDisk) -> None:
    leader = StoreWorld(SimDisk())
    leader.begin()
    for _ in range(3):
        leader.apply()
    point = messages.Point(20, 3, messages.Configuration((ME, member_id(2))))
    snapshot = messages.Snapshot(point, leader.store.machine.snapshot())
    store = SystemStore(log)
    before = store.machine.snapshot()
    store.write(ready(entries=(commands(2, 1, b"a"),)), lambda: None)
    store.write(ready(snapshot=snapshot, entries=(commands(21, 3, b"b"),)), lambda: None)
    assert store.machine.snapshot() == before, "it is the machine's when it is durable"
    again = SystemStore(opened(disk.after_kill()))
    store.take()
    for each in (store, again):
        assert (each.applied, each.received) == (20, None)
        assert each.machine.snapshot() == snapshot.data
        assert each.read(21, 21, 10) == [commands(21, 3, b"b")]
    assert (again.stored.point, again.stored.last) == (point, 21)


def test_applied_entries_go_when_there_are_many(
    log: CatalogLog, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "COMPACT_AFTER", 2)
    told: list[int] = []
    store = SystemStore(log)
    store.on_compact = told.append
    store.write(ready(entries=(commands(2, 1, *[b"x"] * 6),)), lambda: None)
    store.keep(4)
    assert store.to_compact is None
    store.keep(5)
    assert store.to_compact == 3
    store.compact(messages.Point(3, 1, messages.Configuration((ME,))))
    assert told == [3]
    again = SystemStore(opened(disk.after_kill()))
    assert (again.stored.point.index, again.stored.last, again.applied) == (3, 7, 5)
    assert again.read(4, 7, 1000) == [commands(4, 1, *[b"x"] * 4)]


# --- losses of power --------------------------------------------------------------------------------


class StoreWorld:
    """A store that is changed at random, and what may be found of it after the power went."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.possible: list[Any] = []
        """How it has been since the last sync."""
        self.serial = 0

    def begin(self) -> None:
        log = self.log = opened(self.disk)
        if not is_member(log):
            assert not self.possible, "the group is lost"
            found(log, ME, FIRST)
            sync(self.disk, log)
        self.store = SystemStore(log)
        self.last = self.store.stored.last
        self.config = self.store.stored.point.config
        now = self.now()
        assert not self.possible or now in self.possible, "what was found is none of the states since"
        self.possible = [now]
        self.watch(log)
        self.serial = int(self.last_of(1)[1]) + 1000 * (1 + self.serial // 1000)

    def watch(self, log: CatalogLog) -> None:
        """Record every state; any may be the last that is found."""
        change = log.change

        def watched(*given: Any) -> None:
            try:
                change(*given)
            finally:
                self.possible.append(self.now())

        log.change = watched  # type: ignore[method-assign]

    def last_of(self, node: int) -> Any:
        return self.store.machine.kept(("last", str(node)))[1]

    def now(self) -> Any:
        """Return all that must be the same after a start."""
        store = SystemStore(self.log)
        indexes = range(store.stored.point.index + 1, store.stored.last + 1)
        entries = {index: store.read(index, index, 1) for index in indexes}
        return store.stored, entries, store.applied, store.machine.snapshot()

    def transaction(self) -> bytes:
        self.serial += 1
        machine = self.store.machine
        catalog = filled(FIRST)
        plan = SetParameter(("parameter", "/", "c", str(self.serial % 5)), self.serial).plan(catalog)
        return transaction_of(Origin(1, 1, self.serial), plan, catalog, machine.revision, conceal).encode()

    def apply(self) -> None:
        index = self.store.applied + 1
        if index > self.last:
            self.store.write(ready(entries=(commands(index, 1, self.transaction()),)), lambda: None)
            self.last = index
        ((run),) = self.store.read(index, index, 1)
        if run.kind is messages.Kind.COMMAND:
            found = CatalogTransaction.decode(run.payloads[0])
            self.store.machine.apply(index, found)
        self.store.keep(index)

    def walk(self, rng: random.Random, steps: int) -> None:
        self.begin()
        for _ in range(steps):
            kind = rng.randrange(7)
            store = self.store
            if kind < 2:
                run = commands(self.last + 1, 1, *(self.transaction() for _ in range(rng.randrange(1, 4))))
                store.write(ready(entries=(run,), hard=messages.Hard(1, ME, store.applied)), lambda: None)
                self.last = run.last
            elif kind == 2 and self.last > store.applied:
                first = rng.randrange(store.applied + 1, self.last + 1)
                store.write(ready(entries=(commands(first, 2, self.transaction()),)), lambda: None)
                self.last = first
            elif kind == 3:
                self.apply()
            elif kind == 4 and store.to_compact is not None:
                store.compact(messages.Point(store.to_compact, 1, self.config))
            elif kind == 5 and rng.random() < 0.3:
                other = SystemMachine()
                other.install(store.machine.snapshot())
                value = {"name": "g", "value": self.serial}
                change = CatalogTransaction(
                    Origin(1, 1, self.serial), [], [(("global_parameter", "g"), value)]
                )
                assert other.apply(self.last + 5, change).outcome is not TransactionOutcome.CONFLICT
                point = messages.Point(self.last + 5, 2, self.config)
                store.write(ready(snapshot=messages.Snapshot(point, other.snapshot())), lambda: None)
                store.take()
                self.last = point.index
            elif kind == 6:
                sync(self.disk, self.log)
                self.possible = [self.now()]


def walked(seed: int, lose_power_at: int | None) -> StoreWorld:
    """Walk with a group that was founded before; the power fails at the n-th call from then on."""
    world = StoreWorld(SimDisk(seed))
    world.begin()
    world.log.close()
    world.disk = world.disk.after_kill()
    world.disk.calls.clear()
    world.disk.lose_power_at = lose_power_at
    try:
        world.walk(random.Random(seed), 25)
    except PowerLoss:
        pass
    return world


@pytest.mark.parametrize("seed", range(4))
def test_after_a_loss_of_power_it_is_as_it_was_at_one_moment_since_the_last_sync(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any call may lose power, with several possible states of the disk, and again some changes later."""
    monkeypatch.setattr(entry_log, "SPARE_BYTES", 100)
    monkeypatch.setattr(transactions, "COMPACT_AFTER", 2)
    calls = len(walked(seed, None).disk.calls)
    assert calls > 20
    for at in range(calls):
        for state in range(2):
            world = walked(seed, at)
            world.disk = world.disk.after_power_loss(1000 * at + state)
            world.walk(random.Random(at), 5)
            world.disk = world.disk.after_power_loss(state)
            world.walk(random.Random(at), 0)


A, B, C = (member_id(number) for number in (1, 2, 3))


def facts(number: int, incarnation: int = 1) -> NodeFacts:
    return NodeFacts("abcdefghij"[number - 1], number, "h", number, incarnation)


def test_a_new_node_is_a_learner_first() -> None:
    assert next_member_change(messages.Configuration((A,)), [facts(1), facts(2, 0)], {}, 5) == messages.Add(B)


def test_it_votes_when_it_has_caught_up_and_told_of_its_start() -> None:
    config = messages.Configuration((A,), (B,))
    assert next_member_change(config, [facts(1), facts(2)], {B: 900}, 1000) is None
    assert next_member_change(config, [facts(1), facts(2, 0)], {B: 1000}, 1000) is None
    assert next_member_change(config, [facts(1), facts(2)], {B: 990}, 1000) == messages.Promote(B)


def test_a_node_that_was_forgotten_goes_even_if_it_leads() -> None:
    assert next_member_change(
        messages.Configuration((A, B, C)), [facts(1), facts(3)], {}, 5
    ) == messages.Remove(B)
    assert next_member_change(messages.Configuration((A, B)), [facts(2)], {}, 5) == messages.Remove(A)
