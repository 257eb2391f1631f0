"""A quorum queue's entries: appended before they are carried out, the same for everybody, and never twice."""

from __future__ import annotations

import pytest

from amqp10broker.errors import DamagedFile
from amqp10broker.message.message import make_head
from amqp10broker.persistence.quorum_records import ENTRY, STATE
from amqp10broker.persistence.quorum_store import QuorumStore, read_entry
from amqp10broker.queues.commands import Configure, Credit, Delete, Publish, Settle, Subscribe, Tick, Verdict
from amqp10broker.queues.effects import Confirmed, Deliver, Rejected
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.quorum.snapshot import encode_snapshot
from amqp10broker.queues.settings import DEFAULTS, Overflow, QueueSettings
from tests.support.askers import new_asker
from tests.support.small_journal import SmallJournal

HEAD = make_head(None, None, "", "q")
HERE = new_asker()
PUBLISHER = HERE.publisher()
NOW_MS = 1000


def opened(
    journal: SmallJournal, settings: QueueSettings = DEFAULTS, now_ms: int = NOW_MS
) -> tuple[QuorumQueue, QuorumStore]:
    store = QuorumStore(7, "q", journal)
    store.restore(journal.records)
    return store.recovered(settings, now_ms), store


def publish(*numbers: int) -> Publish:
    return Publish(PUBLISHER, numbers, [(HEAD, b"%d" % number) for number in numbers], False)


def bodies(queue: QuorumQueue, store: QuorumStore) -> list[bytes]:
    indexes = sorted(queue.live_indexes())
    return [body for _, body in store.bodies.fetch(indexes)] if indexes else []


def test_proposing_changes_nothing() -> None:
    journal = SmallJournal()
    queue, store = opened(journal)
    store.carry_out([publish(1)], NOW_MS)
    state, records = encode_snapshot(queue), len(journal.records)
    one, two = (store.propose([publish(2, 3), Tick()], NOW_MS + 5) for _ in range(2))
    assert b"".join(one.payload) == b"".join(two.payload)
    assert (encode_snapshot(queue), len(journal.records)) == (state, records)
    assert (one.number, one.first, one.end) == (2, 1, 3)


def test_an_entry_is_in_the_journal_before_it_is_carried_out() -> None:
    """Several may be under way, as in a log whose entries wait until others have them."""
    queue, store = opened(SmallJournal())
    queue.take_effects()
    entries = []
    for number in range(3):
        entry = store.propose([publish(number)], NOW_MS)
        entries.append((entry, store.append(entry)))
    assert queue.ready == 0
    assert [entry.first for entry, _ in entries] == [0, 1, 2]
    for entry, file in entries:
        store.applied(entry, file)
    assert bodies(queue, store) == [b"0", b"1", b"2"]
    (told,) = queue.take_effects().values()
    assert [each.ids for each in told if isinstance(each, Confirmed)] == [(0,), (1,), (2,)]


def test_another_member_needs_only_the_bytes() -> None:
    """It has them before the first one has carried them out, and ends in the same state."""
    queue, store = opened(SmallJournal())
    other, follower = opened(SmallJournal())
    other.follow()
    consumer = HERE.consumer()
    for commands in (
        [Subscribe(consumer, False, name="c"), Credit(consumer, 0, 2, False, 0)],
        [publish(1, 2, 3)],
        [Settle(consumer, [0], Verdict.ACCEPT), Settle(consumer, [1], Verdict.REQUEUE_FAILED)],
        [Configure(QueueSettings(delivery_limit=None)), Settle(consumer, [1], Verdict.REQUEUE)],
    ):
        entry = store.propose(commands, NOW_MS)
        found = read_entry(entry.number, b"".join(entry.payload))
        assert (found.end, list(found.places)) == (entry.end, list(entry.places))
        follower.applied(found, follower.append(found))
        store.applied(entry, store.append(entry))
        assert encode_snapshot(other) == encode_snapshot(queue)
        assert not other.take_effects()
    assert bodies(other, follower) == bodies(queue, store)


def test_entries_are_never_of_an_earlier_time() -> None:
    """Over a restart, too, with a clock that was set back."""
    journal = SmallJournal()
    queue, store = opened(journal)
    store.carry_out([publish(1)], NOW_MS + 500)
    assert store.propose([Tick()], NOW_MS).now_ms == NOW_MS + 500
    queue, store = opened(journal.again(), now_ms=3)
    assert queue.now_ms == NOW_MS + 500
    assert store.propose([Tick()], 4).now_ms == NOW_MS + 500
    assert store.propose([Tick()], NOW_MS + 501).now_ms == NOW_MS + 501


def test_messages_that_are_not_taken_use_up_their_indexes() -> None:
    """So all know the index of each message before anybody knows what becomes of it."""
    journal = SmallJournal()
    full = QueueSettings(max_length=2, overflow=Overflow.REJECT_PUBLISH)
    queue, store = opened(journal, full)
    store.carry_out([publish(1, 2, 3), publish(4)], NOW_MS)
    (told,) = queue.take_effects().values()
    assert [each.ids for each in told if isinstance(each, Rejected)] == [(3,), (4,)]
    entry = store.propose([publish(5)], NOW_MS)
    assert entry.first == 4
    queue, store = opened(journal.again(), full)
    assert bodies(queue, store) == [b"1", b"2"]
    assert store.propose([publish(5)], NOW_MS).first == 4


def test_messages_behind_a_deletion_use_up_their_indexes() -> None:
    queue, store = opened(SmallJournal())
    store.carry_out([publish(1), Delete(HERE.request()), publish(2, 3)], NOW_MS)
    assert queue.next_index == 3


def test_a_return_to_the_tail_keeps_its_index_and_needs_no_record() -> None:
    journal = SmallJournal()
    unlimited = QueueSettings(delivery_limit=None)
    queue, store = opened(journal, unlimited)
    consumer = HERE.consumer()
    store.carry_out([publish(1, 2, 3), Subscribe(consumer, False), Credit(consumer, 0, 1, False, 0)], NOW_MS)
    store.carry_out([Settle(consumer, [0], Verdict.REQUEUE), publish(4)], NOW_MS)
    assert {record.kind for record in journal.records} == {STATE, ENTRY}
    queue, store = opened(journal.again(), unlimited)
    consumer = HERE.consumer()
    store.carry_out([Subscribe(consumer, False), Credit(consumer, 0, 9, False, 0)], NOW_MS)
    (told,) = queue.take_effects().values()
    (delivery,) = [each for each in told if isinstance(each, Deliver)]
    assert list(delivery.keys) == [1, 2, 0, 3]
    assert [body for _, body in delivery.messages] == [b"2", b"3", b"1", b"4"]


def test_an_entry_that_the_queue_fails_at_is_not_carried_out_by_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = SmallJournal()
    queue, store = opened(journal)
    store.carry_out([publish(1)], NOW_MS)

    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(QuorumQueue, "_publish", fail)
    with pytest.raises(RuntimeError):
        store.carry_out([publish(2)], NOW_MS)
    store.abandon()
    # Still there when the broker is started again.
    again = journal.again()
    monkeypatch.undo()
    queue, store = opened(again)
    assert bodies(queue, store) == [b"1"]
    store.carry_out([publish(3)], NOW_MS)
    assert bodies(*opened(again.again())) == [b"1", b"3"]


def test_messages_of_an_entry_that_was_replaced_are_nowhere_when_others_have_their_indexes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when its record is read before any state, because the one before it has been cleaned away."""
    journal = SmallJournal(600)
    _, store = opened(journal)
    while len(journal.files) == 1:
        store.carry_out([publish(1)], NOW_MS)
    before = store.propose([], NOW_MS).first

    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(QuorumQueue, "_publish", fail)
    with pytest.raises(RuntimeError):
        store.carry_out([publish(*range(100, 110))], NOW_MS)
    store.abandon()
    monkeypatch.undo()
    journal = journal.again()
    _, store = opened(journal)
    for _ in store.relocate(1):
        pass
    journal.drop_oldest()
    kinds = [record.kind for record in journal.records]
    assert kinds.count(STATE) == 1
    assert kinds.index(STATE) > 2, "the entry and the empty one are before the state"
    store.carry_out([publish(2, 3, 4)], NOW_MS)
    journal = journal.again()
    queue, store = opened(journal)
    assert bodies(queue, store) == [b"1"] * before + [b"2", b"3", b"4"]
    consumer = HERE.consumer()
    store.carry_out([Subscribe(consumer, False), Credit(consumer, 0, 100, False, 0)], NOW_MS)
    store.carry_out([Settle(consumer, queue.live_indexes(), Verdict.ACCEPT)], NOW_MS)
    assert len(store.bodies) == 0, "pages are kept for messages that nobody has"


def test_what_stands_behind_a_lost_file_that_was_given_up_is_there() -> None:
    """Each message has the index that its entry says, whatever is missing before it."""
    journal = SmallJournal(10**6)
    _, store = opened(journal)
    for number in range(3):
        store.carry_out([publish(number)], NOW_MS)
    assert [record.kind for record in journal.records] == [STATE, ENTRY, ENTRY, ENTRY]
    del journal.files[1][2]
    queue, store = opened(journal.again())
    assert queue.live_indexes() == [0, 2]
    assert bodies(queue, store) == [b"0", b"2"]
    assert store.propose([publish(3)], NOW_MS).first == 3


def test_entries_out_of_order_are_damage() -> None:
    journal = SmallJournal(10**6)
    _, store = opened(journal)
    for number in range(3):
        store.carry_out([publish(number)], NOW_MS)
    journal.files[1].append(journal.files[1][1])
    with pytest.raises(DamagedFile, match="entry 1 with message 0 does not follow entry 2"):
        opened(journal.again())
