"""A quorum queue with several members: what is confirmed stays, and all have the same state."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.queues import commands
from amqp10broker.queues.durability import EffectBatch
from amqp10broker.queues.quorum import log_store as quorum_store
from amqp10broker.queues.quorum.commands import NodeBatch, QuorumCommand
from amqp10broker.queues.quorum.durability import LATE_BYTES, LATE_ENTRIES
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.queues.settings import DEFAULTS
from amqp10broker.raft import messages
from amqp10broker.raft.groups import LATER_MS
from amqp10broker.raft.ids import member_id
from tests.support.memory_journal import MemoryJournal
from tests.support.quorum_harness import GROUP, HEAD, Harness, Journal, Node
from tests.support.quorum_single import at_once


def numbers(world: Harness, node: Node) -> list[int]:
    return [int(body.rstrip(b".")) for body in world.bodies(node).values()]


def even_world(seed: int) -> tuple[Harness, Node]:
    world = Harness(seed)
    return world, world.even_leader()


def followers(world: Harness, leader: Node) -> list[Node]:
    return [node for node in world.nodes.values() if node is not leader]


def change(leader: Node, what: messages.Change) -> None:
    leader.member.change(what)
    leader.member.advance()


def added(world: Harness, leader: Node, file_bytes: int = 3000) -> int:
    member = world.join(4, file_bytes)
    change(leader, messages.Add(member))
    return member


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_store, "STAGED_BYTES", 100)


def leaders_heard(world: Harness) -> list[int]:
    """Record the numbers of the nodes that send effects, from now on."""
    told: list[int] = []
    for node in world.nodes.values():
        node.publish = lambda _, node=node: told.append(node.number)  # type: ignore[method-assign, misc]
    return told


def found_by_leaders(world: Harness) -> list[list[int]]:
    found: list[list[int]] = []
    for node in world.nodes.values():
        node.on_lead = lambda leads, node=node: found.append(numbers(world, node))  # type: ignore[method-assign, misc]
    return found


def test_what_nodes_have_published_and_is_not_committed_is_unconfirmed() -> None:
    world = Harness(1)
    leader = world.opened()
    peer = commands.PeerId(7, 1, 1)
    publish = commands.Publish(commands.PublisherRef(peer, 1), [1, 2], [(HEAD, b"x")] * 2, settled=False)
    leader.work(NodeBatch(7, 1, 1, 1, 0, [publish]))  # type: ignore[arg-type]
    assert leader.backend.queue_status().unconfirmed == 2
    world.settle_down(world.even)
    assert leader.backend.queue_status().unconfirmed == 0


def test_followers_tell_nothing() -> None:
    world = Harness(1)
    leader = world.opened()
    told = leaders_heard(world)
    world.consume(leader, 10)
    world.spread(leader)
    assert set(told) == {leader.number}


def test_a_leader_that_was_deposed_tells_nothing() -> None:
    world, old = even_world(1)
    world.part(old.number)
    world.settle_down(lambda: not old.leads and world.leader() is not None)
    world.heal(old.number)
    leader = world.opened()
    assert leader is not old
    told = leaders_heard(world)
    world.spread(leader, 3)
    assert set(told) == {leader.number}


def behind(world: Harness, leader: Node) -> list[int]:
    """Return how many committed entries each follower has not applied yet."""
    others = followers(world, leader)
    assert {node.member.raft.hard.commit for node in others} == {leader.store.last}
    return [leader.store.last - node.store.point.index for node in others]


def test_a_follower_carries_out_several_entries_with_one_wake() -> None:
    """No client waits for it: it applies them when they are many enough, or after some time."""
    world, leader = even_world(1)
    world.pass_time(LATER_MS)
    for number in range(1, LATE_ENTRIES):
        world.publish(leader)
        world.work_off()
        assert behind(world, leader) == [number, number]
    assert len(world.confirmed) == LATE_ENTRIES - 1, "the leader carries out at once"
    world.publish(leader)
    world.work_off()
    assert behind(world, leader) == [0, 0]
    world.publish(leader)
    world.work_off()
    assert behind(world, leader) == [1, 1]
    world.pass_time(LATER_MS)
    world.work_off()
    assert behind(world, leader) == [0, 0]


@pytest.mark.parametrize("slow", [False, True], ids=["quick disk", "slow disk"])
def test_a_follower_answers_before_it_carries_out(*, slow: bool) -> None:
    """The leader waits for that answer. A slow disk delays it, and not the entries committed already."""
    world, leader = even_world(1)
    world.work_off()
    follower = followers(world, leader)[0]
    world.publish(leader, size=LATE_BYTES)
    leader.journal.sync()
    while world.deliver():
        pass
    follower.journal.sync()
    world.deliver()
    assert leader.woken, "it is committed"
    world.flying.clear()  # so that what comes next brings the news
    world.publish(leader)
    while world.deliver():
        pass
    assert not follower.woken
    if slow:
        world.pass_time(LATER_MS)
    else:
        follower.journal.sync()
        assert len(world.flying) == 1
    assert follower.woken


def test_who_leads_has_carried_out_what_it_left_for_later() -> None:
    world, old = even_world(1)
    world.publish(old, 3)
    world.work_off()
    assert world.confirmed == {0, 1, 2}
    assert behind(world, old) == [1, 1]
    found = found_by_leaders(world)
    world.crash(old.number)
    world.settle_down(lambda: bool(found))
    assert found == [[0, 1, 2]]


def test_who_leads_has_applied_all_that_was_confirmed_before() -> None:
    """Its log has the entries when it is elected, but its commit index may not cover them."""
    world, old = even_world(1)
    world.publish(old, 3)
    while world.confirmed != {0, 1, 2}:
        world.deliver()
        for node in world.nodes.values():
            node.journal.sync()
        old.work()
    assert [numbers(world, node) for node in followers(world, old)] == [[], []], "they do not know it yet"
    found = found_by_leaders(world)
    world.crash(old.number)
    world.settle_down(lambda: bool(found))
    assert found == [[0, 1, 2]]


@pytest.mark.usefixtures("small_parts")
def test_parts_of_another_state_are_refused() -> None:
    """A part of a state that was given up arrives between those of the next one."""
    world = Harness(8)
    leader = world.opened()
    world.spread(leader, 50)
    added(world, leader)
    late: list[Any] = []
    new = world.nodes[4]
    received = new.snapshots.received

    def after_it(node: int, group: int, body: bytes, answer: bool) -> None:
        if len(late) == 3:
            transfer = bytes(8)
            received(node, group, transfer + body[8:], answer)
        late.append(answer)
        received(node, group, body, answer)

    new.snapshots.received = after_it  # type: ignore[method-assign]
    world.settle_down(world.even)
    assert len(late) > 4
    assert numbers(world, new) == list(range(50))


def test_without_a_majority_nothing_is_confirmed_and_the_leader_stops() -> None:
    world, leader = even_world(2)
    others = followers(world, leader)
    for node in others:
        world.part(node.number)
    world.publish(leader)
    world.step_all()
    assert (world.confirmed, leader.backend.queue.ready) == (set(), 0)
    world.settle_down(lambda: not leader.leads)
    for node in others:
        world.heal(node.number)
    leader = world.opened()
    world.publish(leader)
    world.settle_down(lambda: 1 in world.confirmed and world.even())


def test_what_a_leader_without_majority_wrote_goes_for_what_the_others_agreed_on() -> None:
    """Its messages had the indexes that the others' messages have now."""
    world = Harness(3)
    old = world.opened()
    world.spread(old)
    world.part(old.number)
    world.publish(old, 5)
    old.journal.sync()
    world.settle_down(lambda: world.leader() not in (None, old))
    leader = world.opened()
    world.publish(leader, 2)
    world.settle_down(lambda: {6, 7} <= world.confirmed)
    world.heal(old.number)
    world.settle_down(world.even)
    assert numbers(world, old) == numbers(world, leader) == [0, 6, 7]
    assert world.bodies(old).keys() == world.bodies(leader).keys()


@pytest.mark.rabbitmq("quorum_queue_SUITE", "gh_12635")
def test_a_member_that_was_away_takes_a_state_behind_what_was_held_and_purged() -> None:
    """It has a consumer with credit in the middle, which its node never heard of."""
    world, leader = even_world(9)
    away = followers(world, leader)[0].number
    world.crash(away)
    world.publish(leader, 2)
    world.settle_down(lambda: world.confirmed == {0, 1})
    consumer = world.consume(leader, 100)
    world.spread(leader)
    assert leader.backend.queue.figures().messages_unsettled == 3
    leader.work(commands.Unsubscribe(consumer, [], [], 3, commands.DeliveryOutcome.REQUEUE))
    for _ in range(30):
        world.publish(leader, 2)
        leader.work(commands.Purge(world.client.request()))
        world.settle_down(world.even)
        leader.journal.clean(leader.store, lambda: None)
    world.start(away)
    before = world.nodes[away].backend.queue
    world.settle_down(world.even)
    assert world.nodes[away].backend.queue is not before, "no state was taken"
    assert [numbers(world, node) for node in world.nodes.values()] == [[], [], []]
    world.crash(next(number for number in world.nodes if number not in (away, leader.number)))
    world.publish(leader)
    last = world.published - 1
    world.settle_down(lambda: last in world.confirmed and world.even())
    assert numbers(world, world.nodes[away]) == [last]


@pytest.mark.usefixtures("small_parts")
def test_a_new_member_begins_with_the_leaders_state() -> None:
    """No part is longer than a frame may be, and four are under way."""
    world = Harness(6)
    leader = world.opened()
    world.spread(leader, 50)
    consumer = world.consume(leader, 5)
    leader.work(commands.Settle(consumer, [0, 1, 2], commands.DeliveryOutcome.ACCEPT))
    member = added(world, leader)
    world.settle_down(world.even)
    assert numbers(world, world.nodes[4]) == numbers(world, leader) == list(range(3, 50))
    change(leader, messages.Promote(member))
    world.settle_down(world.even)
    # It has it for good, and counts.
    world.crash(4)
    world.start(4)
    world.crash(next(number for number in (1, 2, 3) if number != leader.number))
    world.publish(leader)
    world.settle_down(lambda: 50 in world.confirmed and world.even())


@pytest.mark.usefixtures("small_parts")
def test_a_message_that_is_settled_while_the_state_is_sent_is_there_until_it_is_sent() -> None:
    world = Harness(7)
    leader = world.opened()
    world.spread(leader, 60)
    added(world, leader)
    while not any(4 in key for key in world.bulk):
        world.deliver()
        leader.journal.sync()
    consumer = world.consume(leader, 60)
    leader.work(commands.Settle(consumer, list(range(60)), commands.DeliveryOutcome.ACCEPT))
    world.settle_down(world.even)
    assert numbers(world, leader) == numbers(world, world.nodes[4]) == []
    assert len(leader.store.bodies) == 0, "what was kept for the transfer is gone"


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("when", range(1, 12))
def test_a_crash_while_the_state_comes_leaves_no_mixture(when: int) -> None:
    world = Harness(100 + when)
    leader = world.opened()
    world.spread(leader, 30)
    added(world, leader)
    count = 0
    while count < when:
        count += any(key[1] == 4 and waiting for key, waiting in world.bulk.items())
        world.deliver()
        leader.journal.sync()
        if leader.woken:
            leader.work()
        if world.dice.random() < 0.5:
            world.nodes[4].journal.sync()
    world.crash(4)
    # Another state comes after the start: what has come of the first is nobody's.
    consumer = world.consume(leader, 10)
    leader.work(commands.Settle(consumer, list(range(10)), commands.DeliveryOutcome.ACCEPT))
    world.start(4)
    world.settle_down(world.even)
    assert numbers(world, world.nodes[4]) == numbers(world, leader) == list(range(10, 30))


def test_a_queue_that_the_catalog_has_forgotten_ends_at_every_member_by_itself() -> None:
    """A member that is cut off waits for no other; the leader notifies consumers and waiting clients."""
    world, leader = even_world(9)
    consumer = world.client.consumer()
    leader.work(commands.Subscribe(consumer, False))
    world.settle_down(world.even)
    told: dict[int, list[object]] = {number: [] for number in world.nodes}
    for node in world.nodes.values():
        node.publish = told_to(told[node.number])
        world.part(node.number)
    world.publish(leader)
    for node in list(world.nodes.values()):
        node.backend.apply([commands.DELETE], world.now)
        assert node.backend.queue.deleted
        node.backend.flush(world.now)
        node.backend.publish()
        node.backend.delete()
        assert sum(node.journal.live.values()) == 0
        assert node.groups.get(GROUP) is None
    kinds = {number: {type(each) for each in effects} for number, effects in told.items()}
    assert kinds.pop(leader.number) == {commands.QueueDeleted, commands.Unconfirmed}
    assert set().union(*kinds.values()) == set()


def told_to(told: list[object]) -> Any:
    def publish(batch: EffectBatch) -> None:
        for effects in batch.effects.values():
            told.extend(effects)

    return publish


def test_a_member_whose_machine_fails_is_left_out_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, leader = even_world(10)
    world.spread(leader)

    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    world.publish(leader)
    monkeypatch.setattr(leader.backend.queue, "apply", fail)
    leader.backend._commits.abandoned = lambda group: None  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        world.step_all()
    assert leader.backend.shared
    leader.backend.abandon()
    assert not leader.leads
    number = leader.number
    world.part(number)
    del world.nodes[number]
    world.down[number] = leader.journal.after_power_loss(world.dice)
    other = world.opened()
    world.publish(other)
    world.settle_down(lambda: 2 in world.confirmed)
    # Nothing of it is lost: it goes on when the fault is mended.
    world.cut.clear()
    world.start(number)
    world.settle_down(world.even)
    assert numbers(world, world.nodes[number]) == numbers(world, other) == [0, 1, 2]


def test_the_member_that_is_to_lead_a_new_group_does_so_without_waiting() -> None:
    """The others may begin a moment later: their nodes first answer that they have no such member."""
    world = Harness(12)
    start = world.now
    for _ in range(1000):
        if not world.deliver():
            for node in world.nodes.values():
                node.journal.sync()
                node.work()
            world.pass_time(0)
    assert (world.opened().number, world.now) == (1, start)
    world = Harness(13)
    for number in (2, 3):
        world.part(number)
    for _ in range(100):
        world.deliver()
    assert world.leader() is None
    for number in (2, 3):
        world.heal(number)
    start = world.now
    assert world.opened().number == 1
    assert world.now < start + 50


def test_a_node_that_became_one_of_a_cluster_knows_its_sessions_of_before_are_gone() -> None:
    journal = Journal(10**6)
    store = QuorumStore(GROUP, "q", journal, when_durable=at_once)
    queue = store.recovered(DEFAULTS, 1000)
    here = commands.ReplyTo(commands.PeerId(0, 4, 1), "s")
    carry_out(store, commands.Subscribe(here.consumer(), False))
    assert queue.consumers == 1
    store = QuorumStore(GROUP, "q", journal.again(), when_durable=at_once, me=store.me, node=1, incarnation=5)
    store.restore(journal.records)
    assert store.recovered(DEFAULTS, 1000).consumers == 0


def test_term_and_vote_outlive_the_file_that_they_were_written_to() -> None:
    """Otherwise a member could vote twice in a term."""
    journal = Journal(2000)
    store = store_of(journal)
    write(store, hard=messages.Hard(5, member_id(2), 0))
    assert len(journal.files) == 1
    fill(journal, 2)
    list(store.relocate(1))
    journal.drop_oldest()
    hard = store_of(journal.again()).stored.hard
    assert (hard.term, hard.vote) == (5, member_id(2))


def test_a_state_that_is_taken_while_a_file_is_cleaned_has_nothing_in_that_file() -> None:
    """The staged messages belong to the queue from then on, and the file is removed."""
    leader = store_of(Journal(10**6), 1)
    give(leader, 20)
    point, state, records, done = leader.snapshot()
    journal = Journal(4000)
    follower = store_of(journal, 2)
    give(follower, 2)
    for record in records:
        follower.stage(9, record)
    done()
    data = follower.staged(9, state)
    assert list(journal.files) == [1]
    fill(journal, 2)
    cleaning = follower.relocate(1)
    next(cleaning)
    write(follower, snapshot=messages.Snapshot(point, data))
    list(cleaning)
    assert journal.live[1] == 0
    journal.drop_oldest()
    assert store_of(journal.again(), 2).point.index == point.index


def test_the_file_of_settled_messages_goes_when_it_is_known_that_they_are() -> None:
    """The state still has them; the next start must see that the entry which settles them counts."""
    journal = Journal(4000)
    store = store_of(journal, 2)

    def clean(file: int) -> None:
        list(store.relocate(file))
        assert journal.live[file] == 0
        journal.drop_oldest()

    fill(journal, 2)
    give(store, 2)
    fill(journal, 3)
    clean(1)
    carry_out(store, commands.Purge(commands.RequestRef(commands.PeerId(1, 1, 1), 7)))
    clean(2)
    assert store_of(journal.again(), 2).point.index == store.point.index


def store_of(journal: MemoryJournal, node: int = 1) -> QuorumStore:
    members = [member_id(each) for each in (1, 2, 3)]
    me = members[node - 1]
    store = QuorumStore(GROUP, "q", journal, when_durable=at_once, members=members, me=me, node=node)
    store.restore([record for record in journal.records if record.group == GROUP])
    store.recovered(DEFAULTS, 0)
    return store


def fill(journal: MemoryJournal, files: int) -> None:
    while len(journal.files) < files:
        journal.append(GROUP + 1, 1, 0, [b"x" * 100])


def write(
    store: QuorumStore,
    *runs: messages.Run,
    hard: messages.Hard | None = None,
    snapshot: messages.Snapshot | None = None,
) -> None:
    store.write(messages.Ready(1, hard, snapshot, runs, [], None, (), None), lambda: None)


def give(store: QuorumStore, count: int) -> None:
    publisher = commands.PublisherRef(commands.PeerId(1, 1, 1), 1)
    carry_out(
        store, commands.Publish(publisher, list(range(count)), [(HEAD, b"x" * 20)] * count, settled=False)
    )


def carry_out(store: QuorumStore, command: QuorumCommand) -> None:
    payload = store.propose([command], 1000).payload
    write(store, messages.run_of(store.last + 1, 1, messages.Kind.COMMAND, (payload,)))
    store.apply(store.last)


def start_of(journal: Journal, me: int) -> QuorumStore:
    found = journal.again()
    store = QuorumStore(GROUP, "q", found, when_durable=at_once, me=me, joins=True, node=4)
    store.restore(found.records)
    store.recovered(DEFAULTS, 0)
    return store


@pytest.mark.parametrize("durable", [False, True])
def test_a_member_that_is_added_again_has_nothing_of_the_one_before(durable: bool) -> None:
    """Messages of the node's first member are cleaned away and its state stands; then the power fails."""
    world = Harness(21)
    leader = world.opened()
    first = added(world, leader, 300)
    for _ in range(4):
        world.spread(leader, 4)
    journal, store = world.nodes[4].journal, world.nodes[4].store
    assert store.stored is not None
    assert store.point.index > 1
    store.delete()
    again = QuorumStore(GROUP, "q", journal, when_durable=at_once, me=first + 1, joins=True, node=4)
    if durable:
        again.recovered(DEFAULTS, 0)
    journal.files.pop(min(journal.files))
    found = start_of(journal, first + 1)
    assert (found.point.index, found.last, found.stored.hard) == (0, 0, messages.Hard(0, None, 0))
    assert len(found.bodies) == 0


def test_a_member_that_was_added_is_there_when_the_file_with_its_beginning_is_cleaned() -> None:
    world = Harness(22)
    leader = world.opened()
    added(world, leader, 600)
    for _ in range(4):
        world.spread(leader, 4)
    node = world.nodes[4]
    began = min(node.journal.files)
    while min(node.journal.files) == began:
        node.journal.clean(node.store, lambda: None)
        world.spread(leader)
    world.crash(4)
    world.start(4)
    assert world.nodes[4].store.point.index > 1, "it has what it had"
    world.settle_down(world.even)
    assert numbers(world, world.nodes[4]) == numbers(world, leader)


def entry(store: QuorumStore, number: int) -> bytes:
    client = commands.ReplyTo(commands.PeerId(9, 1, 1), "client")
    publish = commands.Publish(client.publisher(), [number], [(HEAD, b"%d" % number)], settled=False)
    return store.propose([publish], 1000).payload


def written(
    store: QuorumStore, number: int, *, term: int, first: int, hard: messages.Hard | None = None
) -> None:
    run = messages.run_of(first, term, messages.Kind.COMMAND, (entry(store, number),))
    write(store, run, hard=hard)


def test_entries_that_stand_there_again_cut_nothing_off() -> None:
    """The power fails while a file is cleaned: of three entries one was appended again."""
    journal = MemoryJournal(10**6)
    store = store_of(journal)
    for number in (2, 3, 4):
        written(store, number, term=1, first=number)
    journal.files[2], journal.live[2] = [], 0
    next(store.relocate(1))
    del journal.files[2][1:]
    assert journal.files[2][0].index == 2
    found = store_of(journal.again())
    assert (found.last, found.point.index) == (4, 1)


def test_what_is_said_to_be_committed_with_entries_is_not_taken_for_what_they_replace() -> None:
    """The term reaches the disk with the leader's commit index; the entry that it refers to does not."""
    journal = MemoryJournal(10**6)
    store = store_of(journal)
    written(store, 1, term=1, first=2)
    written(store, 2, term=2, first=2, hard=messages.Hard(2, None, 2))
    assert journal.files[1].pop().index == 2
    found = store_of(journal.again())
    assert (found.point.index, found.last, found.stored.hard.commit) == (1, 2, 1)


def test_a_state_has_the_configuration_of_its_place() -> None:
    """The entries that changed it are cleaned away, and it is not that with which the group began."""
    journal = MemoryJournal(10**6)
    store = store_of(journal)
    config = messages.Configuration(tuple(member_id(each) for each in (1, 2, 3)), (member_id(4, 1),))
    write(store, messages.run_of(2, 1, messages.Kind.CONFIG, (messages.CONFIG.encode(config),)))
    assert store.apply(2) is not None
    journal.files[2], journal.live[2] = [], 0
    list(store.relocate(1))
    journal.drop_oldest()
    found = store_of(journal.again())
    assert found.stored.point == messages.Point(2, 1, config)


def test_the_task_of_a_queue_wakes_when_its_member_leads_or_leads_no_more_and_for_no_other_election() -> None:
    """With thousands of queues, a wake for each step of an election takes longer than the election."""
    world, leader = even_world(1)
    follower = followers(world, leader)[0]
    for node in (follower, leader):
        node.woken = False
        for role in (messages.Role.PRE_CANDIDATE, messages.Role.CANDIDATE, messages.Role.FOLLOWER):
            node.backend.status(messages.Status(role, 9, None, False))
        assert node.woken is (node is leader)
        assert not node.leads
    follower.backend.status(messages.Status(messages.Role.LEADER, 9, follower.me, True))
    assert follower.woken
