"""Letters of other nodes to a quorum queue, and versions of its commands."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.queues import machine_version
from amqp10broker.queues.commands import (
    Answer,
    AttachPublisher,
    Command,
    Confirmed,
    Credit,
    Delete,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    Purge,
    ReplyTo,
    Subscribe,
    Tick,
    Touch,
)
from amqp10broker.queues.machine_version import NewerMachine
from amqp10broker.queues.quorum.commands import (
    APPLIED,
    COMMANDS,
    INSTALLED,
    PLACES,
    NodeBatch,
    RaiseVersion,
    decode_commands,
    encode_commands,
    entry_head,
    joined,
)
from amqp10broker.queues.quorum.queue import QuorumQueue, decode_snapshot, encode_snapshot
from amqp10broker.queues.quorum.snapshot import version_of
from amqp10broker.queues.settings import QueueSettings
from tests.support import next_version
from tests.support.next_version import VERSION as NEXT
from tests.support.queue_bench import Bench, message
from tests.support.quorum_harness import Harness, Node
from tests.support.selecting import selector

NODE, START = 3, 7
SESSION = ReplyTo(PeerId(NODE, START, 1), "s")
PUBLISHER = SESSION.publisher()


def publish(*bodies: str, session: ReplyTo = SESSION) -> Publish:
    return Publish(session.publisher(), [*range(len(bodies))], [message(each) for each in bodies], False)


def letters(first: int, *commands: Command, last: int | None = None, heard: int = 0) -> NodeBatch:
    return NodeBatch(NODE, START, first, first + len(commands) - 1 if last is None else last, heard, commands)


class Entries(Bench):
    """A queue that gets entries, and tells all its effects."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.index = 0

    def entry(self, command: object) -> list[object]:
        self.index += 1
        self.queue.node_links.entry = self.index
        self.queue.apply(command, self.now)  # type: ignore[arg-type]
        return [each for told in self.queue.take_effects().values() for each in told]

    @property
    def kept(self) -> list[object]:
        link = self.queue.node_links.by_node[NODE, START]
        return [(index, type(effect)) for index, _, effect in link.kept]


def reading() -> tuple[Command, Command]:
    consumer = SESSION.consumer()
    return Subscribe(consumer, False), Credit(consumer, 0, 10, False, 0)


def test_what_others_may_not_say_is_not_carried_out() -> None:
    """A node speaks only for its own sessions of this start."""
    bench = Entries()
    other = [ReplyTo(PeerId(*each), "other") for each in ((NODE + 1, START, 1), (NODE, START - 1, 1))]
    strangers = [publish("x", session=each) for each in other]
    consumers = [each.consumer() for each in other]
    told = bench.entry(
        letters(
            1,
            *strangers,
            *(AttachPublisher(each.publisher()) for each in other),
            *(Subscribe(each, False) for each in consumers),
            *(Purge(each.request()) for each in other),
            *(Delete(each.request()) for each in other),
            *(Inspect(each.request()) for each in other),
            Delete(),
            Touch(),
            Tick(),
            publish("mine"),
        )
    )
    assert [type(each) for each in told] == [Confirmed]
    queue = bench.queue
    assert (queue.ready, queue.consumers, queue.publishers, queue.deleted) == (1, 0, 0, False)
    assert queue.messages.next_index == 3
    assert bench.bodies(bench.entry(letters(queue.link_last(NODE, START) + 1, *reading()))) == ["mine"]


def test_a_question_in_letters_is_answered_in_its_place() -> None:
    bench = Entries()
    question = Inspect(SESSION.request())
    told = bench.entry(letters(1, publish("a"), question, publish("b")))
    assert [each.ready for each in told if isinstance(each, Answer)] == [1]
    bench.queue.follow()
    bench.entry(letters(4, question))
    bench.queue.lead()
    assert not bench.queue.take_effects()
    assert not bench.kept, "a question is asked again"


def test_bytes_of_letters_say_where_messages_lie() -> None:
    first = publish("a", "bc")
    commands = [first, letters(1, publish("d"), Inspect(SESSION.request()), first, last=3), publish("e")]
    encoded = encode_commands(commands, 5, 40)
    payload = b"".join(encoded.pieces)
    assert [(each.first, each.messages) for each in encoded.places] == [(40, 2), (42, 1), (43, 2), (45, 1)]
    assert encoded.end == 46
    queue, other = (QuorumQueue("q", settings=QueueSettings(), now_ms=0) for _ in range(2))
    queue.messages.next_index = 40
    other.messages.next_index = 40
    for each in commands:
        queue.apply(each, 5)
    for decoded in decode_commands(payload).commands:
        other.apply(decoded, 5)
    assert encode_snapshot(queue) == encode_snapshot(other)
    assert queue.messages.next_index == 46
    inner = [len(each.commands) for each in decode_commands(payload).commands if isinstance(each, NodeBatch)]
    assert inner == [2]


def test_letters_in_letters_are_no_entry() -> None:
    payload = b"".join(encode_commands([letters(1, letters(1))], 0, 0).pieces)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        decode_commands(payload)


def numbers(found: Sequence[object]) -> list[tuple[int, int, int, int]]:
    return [
        (each.first, each.last, each.heard, len(each.commands))
        for each in found
        if isinstance(each, NodeBatch)
    ]


def test_letters_that_follow_each_other_are_joined() -> None:
    one = letters(1, publish("a"), heard=4)
    source = PUBLISHER
    two = letters(2, *(Publish(source, [n], [message("b")], False) for n in range(2)), heard=6)
    three = letters(4, Publish(source, [2], [message("b")], False), heard=5)
    found = joined([one, two, three])
    assert numbers(found) == [(1, 4, 6, 2)]
    assert numbers([one, two, three]) == [(1, 1, 4, 1), (2, 3, 6, 2), (4, 4, 5, 1)], "others' are not changed"
    assert numbers(joined([one, three])) == [(1, 1, 4, 1), (4, 4, 5, 1)]
    stranger = NodeBatch(NODE + 1, START, 2, 2, 0, [])
    later = NodeBatch(NODE, START + 1, 2, 2, 0, [])
    assert numbers(joined([one, stranger])) == [(1, 1, 4, 1), (2, 2, 0, 0)]
    assert numbers(joined([one, later])) == [(1, 1, 4, 1), (2, 2, 0, 0)]
    assert numbers(joined([one, Tick(), two])) == [(1, 1, 4, 1), (2, 3, 6, 1)]


def test_who_says_to_have_seen_more_than_there_was_gives_nothing_back() -> None:
    bench = Entries()
    consumer = SESSION.consumer()
    bench.entry(letters(1, Subscribe(consumer, False), Credit(consumer, 0, 2, False, 0), publish("a", "b")))
    bench.entry(letters(4, GiveBack(consumer, [], [], 2, 7, 1), Credit(consumer, 2, 1, False, 7)))
    assert (bench.queue.ready, bench.queue.unsettled) == (0, 2)
    assert bench.bodies(bench.entry(letters(6, publish("c")))) == ["c"]
    assert not bench.queue.resume(NODE, START, 0, {consumer: 3}).deliveries


@pytest.fixture
def next_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    next_version.become(monkeypatch.setattr)


def opened(world: Harness, used: int) -> Node:
    use(world, used)
    return world.even_leader()


def use(world: Harness, version: int) -> None:
    for node in world.nodes.values():
        node.usable = version
        node.woken = True


def marks(node: Node) -> list[int]:
    """For each entry of commands in a node's journal: its version, or 0 if it raises the version."""
    found = {}
    for record in node.journal.records:
        if record.kind == COMMANDS:
            payload = record.payload[APPLIED.size :]
            start = PLACES.decode_part(payload)[1]
            raised = entry_head(payload, start)[2]
            marked = payload[start + next_version.HEAD_BYTES :].startswith(next_version.MARK)
            found[record.index] = 0 if raised else 1 + marked
    return [found[index] for index in sorted(found)]


def test_entries_are_written_by_the_version_in_force_where_they_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This covers entries before, at and behind the raise, though it was not applied when they came."""
    next_version.become(monkeypatch.setattr)
    world = Harness(1)
    leader = opened(world, 1)
    world.spread(leader, 2)
    assert {node.backend.version for node in world.nodes.values()} == {1}
    use(world, NEXT)
    leader.work()
    world.publish(leader, 2)
    assert leader.backend.version == 1, "nobody has decided on it yet"
    world.settle_down(world.even)
    world.spread(leader)
    for node in world.nodes.values():
        assert node.backend.version == NEXT
        assert marks(node) == [1, 0, 2, 2]
        assert len(world.bodies(node)) == 5


def test_what_is_carried_out_is_of_the_version_of_its_place_at_all_members(next_broker: None) -> None:
    """Members compare states at each entry; a purge of the next version leaves everything there."""
    world = Harness(2)
    leader = opened(world, 1)
    world.publish(leader, 3)
    leader.work(Purge(world.client.request()))
    use(world, NEXT)
    leader.work()
    world.publish(leader, 3)
    leader.work(Purge(world.client.request()))
    world.settle_down(world.even)
    assert [len(world.bodies(node)) for node in world.nodes.values()] == [3, 3, 3]


def test_a_version_that_is_not_decided_on_goes_with_its_leader(next_broker: None) -> None:
    world = Harness(3)
    old = opened(world, 1)
    world.part(old.number)
    old.usable = NEXT
    old.work()
    assert (old.store.version, old.backend.version) == (NEXT, 1)
    world.settle_down(lambda: not old.leads and world.leader() not in (None, old))
    leader = world.opened()
    world.publish(leader)
    old.usable = 1
    world.heal(old.number)
    world.settle_down(lambda: world.even() and world.confirmed == {0})
    assert (old.store.version, old.backend.version) == (1, 1)
    assert 0 not in marks(leader)


def test_it_is_kept_in_the_journal_and_in_states(next_broker: None) -> None:
    world = Harness(4)
    leader = opened(world, NEXT)
    world.settle_down(lambda: leader.backend.version == NEXT and world.even())
    world.spread(leader, 3)
    follower = next(number for number, node in world.nodes.items() if node is not leader)
    world.crash(follower)
    world.start(follower)
    use(world, NEXT)
    world.settle_down(lambda: world.nodes[follower].backend.version == NEXT and world.even())
    world.crash(follower)
    for _ in range(200):  # its log is cleaned away, so it comes back with a state
        world.spread(leader, 3, size=200)
        leader.journal.clean(leader.store, lambda: None)
    world.start(follower)
    use(world, NEXT)
    world.settle_down(world.even)
    assert world.nodes[follower].backend.version == NEXT
    assert INSTALLED in {record.kind for record in world.nodes[follower].journal.records}


def test_a_member_that_cannot_carry_it_out_stays_behind_and_says_which(
    next_broker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the log, votes and answers, and gives no effects of entries that it cannot apply."""
    world = Harness(5)
    leader = opened(world, 1)
    world.settle_down(world.even)
    old = next(node for node in world.nodes.values() if node is not leader)
    lets = old.store.__class__.newer
    monkeypatch.setattr(
        old.store.__class__,
        "newer",
        property(lambda store: NEXT if store is old.store and _next_is_newer(old) else lets.fget(store)),
    )
    use(world, NEXT)
    leader.work()
    world.publish(leader, 3)
    world.settle_down(lambda: world.confirmed == {0, 1, 2})
    assert (old.backend.version, old.backend.newer) == (1, NEXT)
    world.settle_down(lambda: old.store.last == leader.store.last)
    assert world.bodies(old) == {}
    assert old.backend.applied < leader.backend.applied


def _next_is_newer(node: Node) -> bool:
    return bool(node.store.tail) and node.store.tail[0].version == NEXT


def test_a_state_that_it_cannot_read_is_left_and_asked_for_later(
    next_broker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Harness(6)
    leader = opened(world, NEXT)
    world.publish(leader, 3)
    world.settle_down(lambda: world.even() and leader.backend.version == NEXT)
    state = encode_snapshot(leader.backend.queue)
    monkeypatch.setattr(machine_version, "NEWEST", 1)
    old = next(node for node in world.nodes.values() if node is not leader)
    with pytest.raises(
        NewerMachine, match=f"has machine version {NEXT}, and this broker carries out versions 1 to 1"
    ):
        old.store.staged(7, state)
    assert old.backend.newer == NEXT


def test_an_older_broker_leaves_the_journal_as_it_is(
    next_broker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is one sentence with both numbers, and does not advise to restore a copy."""
    world = Harness(7, 1)
    leader = opened(world, NEXT)
    world.publish(leader, 2)
    world.settle_down(lambda: world.confirmed == {0, 1})
    world.crash(1)
    monkeypatch.setattr(machine_version, "NEWEST", 1)
    with pytest.raises(
        StorageError, match=rf"machine version {NEXT}, .* versions 1 to 1; nothing was .*newer"
    ) as found:
        world.start(1)
    assert not isinstance(found.value, DamagedFile)


def test_a_state_of_a_newer_version_is_refused() -> None:
    state = encode_snapshot(QuorumQueue("q", now_ms=5))
    assert version_of(state) == 1
    with pytest.raises(NewerMachine):
        decode_snapshot("q", NEXT.to_bytes(4, "little") + state[4:])


def test_an_older_broker_cannot_read_what_the_next_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So an entry that was written too soon does not go unnoticed."""
    monkeypatch.setattr(machine_version, "NEWEST", NEXT)
    entry = b"".join(next_version.encode_commands([RaiseVersion(NEXT)], 1, 1, NEXT).pieces)
    with pytest.raises(ValueError, match="254 is not the tag"):
        decode_commands(entry)
    assert next_version.decode_commands(entry).commands == [RaiseVersion(NEXT)]


ALL = selector("JMSPriority IS NOT NULL")


def test_what_comes_first_in_a_new_queue_is_of_the_version_that_the_cluster_uses(next_broker: None) -> None:
    """A queue begins with version 1; the first request to it may need a newer version."""
    world = Harness(10)
    leader = opened(world, 1)
    world.settle_down(world.even)
    leader.usable = NEXT
    world.publish(leader)
    assert marks(leader) == [0, 2]
    world.settle_down(lambda: world.confirmed == {0})


def test_another_leader_looks_on_where_the_one_before_was() -> None:
    """Matches that the previous leader found and no entry decided are found again."""
    world = Harness(9)
    old = opened(world, 1)
    ref = world.client.consumer()
    old.work(Subscribe(ref, False, filters=ALL), Credit(ref, 0, 2, False, 0))
    world.publish(old, 4)
    world.settle_down(lambda: len(world.keys) == 2 and world.even())
    world.part(old.number)
    old.work(Credit(ref, 2, 5, False, 2))
    world.settle_down(lambda: not old.leads and world.leader() not in (None, old))
    leader = world.leader()
    leader.work(Credit(ref, 2, 5, False, 2))
    world.settle_down(lambda: len(world.keys) == 4)
    world.heal(old.number)
    world.settle_down(world.even)
    assert sorted(world.keys) == list(old.backend.queue.parts()[1].by_ref[ref].unsettled)
