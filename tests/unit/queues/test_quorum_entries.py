"""A quorum queue's entries: appended before they are carried out, the same for everybody, and never twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from amqp10broker.errors import DamagedFile
from amqp10broker.message.message import make_head
from amqp10broker.queues.commands import (
    Configure,
    Confirmed,
    Credit,
    Deliver,
    DeliveryOutcome,
    Publish,
    PublishRejected,
    Settle,
    Subscribe,
    Tick,
)
from amqp10broker.queues.quorum.commands import COMMANDS, EMPTY, HARD, STATE, QuorumCommand
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.quorum.snapshot import encode_snapshot
from amqp10broker.queues.settings import DEFAULTS, Overflow, QueueSettings
from amqp10broker.raft.entries import Kind, run_of
from amqp10broker.raft.messages import Ready
from tests.support.askers import new_asker
from tests.support.quorum_alone import Alone, store_on
from tests.support.small_journal import SmallJournal

HEAD = make_head(None, None, "", "q")
HERE = new_asker()
PUBLISHER = HERE.publisher()
NOW_MS = 1000


def opened(
    journal: SmallJournal, settings: QueueSettings = DEFAULTS, now_ms: int = NOW_MS
) -> tuple[QuorumQueue, QuorumStore]:
    store = store_on(journal)
    store.restore(journal.records)
    return store.recovered(settings, now_ms), store


def kinds(journal: SmallJournal) -> list[int]:
    """Of the records, without those with which a group of one begins."""
    return [record.kind for record in journal.records if record.kind not in (HARD, EMPTY)]


def publish(*numbers: int) -> Publish:
    return Publish(PUBLISHER, numbers, [(HEAD, b"%d" % number) for number in numbers], False)


def write(store: QuorumStore, payload: bytes, *, first: int | None = None, term: int = 1) -> None:
    run = run_of(first or store.last + 1, term, Kind.COMMAND, (payload,))
    store.write(Ready(1, None, None, (run,), [], None, (), None), lambda: None)


def append(store: QuorumStore, commands: Sequence[QuorumCommand]) -> int:
    """Propose commands, and have them written; the index of the first message."""
    first = store.next_index
    write(store, store.propose(commands, NOW_MS).payload)
    return first


def bodies(queue: QuorumQueue, store: QuorumStore) -> list[bytes]:
    indexes = sorted(queue.live_indexes())
    return [body for _, body in store.bodies.fetch(indexes)] if indexes else []


def test_an_entry_is_in_the_journal_before_it_is_carried_out() -> None:
    """Several may be under way, as in a log whose entries wait until others have them."""
    queue, store = opened(SmallJournal())
    firsts = [append(store, [publish(number)]) for number in range(3)]
    assert queue.ready == 0
    assert firsts == [0, 1, 2]
    assert store.apply(store.last - 1) is not None
    assert store.apply(store.last - 1) is not None
    assert store.apply(store.last - 1) is None, "the last is not committed"
    assert store.apply(store.last) is not None
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
        [
            Settle(consumer, [0], DeliveryOutcome.ACCEPT),
            Settle(consumer, [1], DeliveryOutcome.REQUEUE_FAILED),
        ],
        [Configure(QueueSettings(delivery_limit=None)), Settle(consumer, [1], DeliveryOutcome.REQUEUE)],
    ):
        append(store, commands)
        write(follower, store.tail[-1].payload)
        assert follower.tail[-1].commands is None
        assert (follower.next_index, follower.now_ms) == (store.next_index, store.now_ms)
        assert follower.apply(follower.last) is not None
        assert store.apply(store.last) is not None
        assert encode_snapshot(other) == encode_snapshot(queue)
        assert not other.take_effects()
    assert bodies(other, follower) == bodies(queue, store)


def test_entries_are_never_of_an_earlier_time() -> None:
    """Over a restart, too, with a clock that was set back."""
    journal = SmallJournal()
    alone = Alone(journal)
    alone.carry_out([publish(1)], NOW_MS + 500)
    assert alone.store.propose([Tick()], NOW_MS).now_ms == NOW_MS + 500
    queue, store = opened(journal.again(), now_ms=3)
    assert queue.now_ms == NOW_MS + 500
    assert store.propose([Tick()], 4).now_ms == NOW_MS + 500
    assert store.propose([Tick()], NOW_MS + 501).now_ms == NOW_MS + 501


def test_messages_that_are_not_taken_use_up_their_indexes() -> None:
    """So all know the index of each message before anybody knows what becomes of it."""
    journal = SmallJournal()
    full = QueueSettings(max_length=2, overflow=Overflow.REJECT_PUBLISH)
    alone = Alone(journal, full)
    alone.carry_out([publish(1, 2, 3), publish(4)], NOW_MS)
    (told,) = alone.queue.take_effects().values()
    assert [each.ids for each in told if isinstance(each, PublishRejected)] == [(3,), (4,)]
    assert alone.store.propose([publish(5)], NOW_MS).places[0].first == 4
    queue, store = opened(journal.again(), full)
    assert bodies(queue, store) == [b"1", b"2"]
    assert store.propose([publish(5)], NOW_MS).places[0].first == 4


def test_a_return_to_the_tail_keeps_its_index_and_needs_no_record() -> None:
    journal = SmallJournal()
    unlimited = QueueSettings(delivery_limit=None)
    alone = Alone(journal, unlimited)
    consumer = HERE.consumer()
    alone.carry_out([publish(1, 2, 3), Subscribe(consumer, False), Credit(consumer, 0, 1, False, 0)], NOW_MS)
    alone.carry_out([Settle(consumer, [0], DeliveryOutcome.REQUEUE), publish(4)], NOW_MS)
    assert set(kinds(journal)) == {STATE, COMMANDS}
    alone = Alone(journal.again(), unlimited)
    consumer = HERE.consumer()
    alone.carry_out([Subscribe(consumer, False), Credit(consumer, 0, 9, False, 0)], NOW_MS)
    (told,) = alone.queue.take_effects().values()
    (delivery,) = [each for each in told if isinstance(each, Deliver)]
    assert list(delivery.keys) == [1, 2, 0, 3]
    assert [body for _, body in delivery.messages] == [b"2", b"3", b"1", b"4"]


def test_an_entry_that_the_queue_fails_at_is_not_carried_out_by_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = SmallJournal()
    alone = Alone(journal)
    alone.carry_out([publish(1)], NOW_MS)

    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    for number in (2, 3):
        append(alone.store, [publish(number)])
    monkeypatch.setattr(QuorumQueue, "_publish", fail)
    with pytest.raises(RuntimeError):
        alone.store.apply(alone.store.last)
    alone.store.abandon()
    # Still there when the broker is started again.
    again = journal.again()
    monkeypatch.undo()
    alone = Alone(again)
    assert bodies(alone.queue, alone.store) == [b"1"]
    alone.carry_out([publish(4)], NOW_MS)
    assert bodies(*opened(again.again())) == [b"1", b"4"]


def test_messages_of_an_entry_that_was_replaced_are_nowhere_when_others_have_their_indexes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when its record is read before any state, because the one before it has been cleaned away."""
    journal = SmallJournal(600)
    alone = Alone(journal)
    while len(journal.files) == 1:
        alone.carry_out([publish(1)], NOW_MS)
    before = alone.store.next_index

    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(QuorumQueue, "_publish", fail)
    with pytest.raises(RuntimeError):
        alone.carry_out([publish(*range(100, 110))], NOW_MS)
    alone.store.abandon()
    monkeypatch.undo()
    journal = journal.again()
    alone = Alone(journal)
    for _ in alone.store.relocate(1):
        pass
    journal.drop_oldest()
    found = [record.kind for record in journal.records]
    assert found.count(STATE) == 1
    assert found.index(STATE) > 2, "the entry and the empty one are before the state"
    alone.carry_out([publish(2, 3, 4)], NOW_MS)
    journal = journal.again()
    alone = Alone(journal)
    queue, store = alone.queue, alone.store
    assert bodies(queue, store) == [b"1"] * before + [b"2", b"3", b"4"]
    consumer = HERE.consumer()
    alone.carry_out([Subscribe(consumer, False), Credit(consumer, 0, 100, False, 0)], NOW_MS)
    alone.carry_out([Settle(consumer, queue.live_indexes(), DeliveryOutcome.ACCEPT)], NOW_MS)
    assert len(store.bodies) == 0, "pages are kept for messages that nobody has"


def test_what_stands_behind_a_lost_file_that_was_given_up_is_there() -> None:
    """Each message has the index that its entry says, whatever is missing before it."""
    journal = SmallJournal(10**6)
    alone = Alone(journal)
    for number in range(3):
        alone.carry_out([publish(number)], NOW_MS)
    assert kinds(journal) == [STATE, COMMANDS, COMMANDS, COMMANDS]
    del journal.files[1][-2]
    queue, store = opened(journal.again())
    assert queue.live_indexes() == [0, 2]
    assert bodies(queue, store) == [b"0", b"2"]
    assert store.propose([publish(3)], NOW_MS).places[0].first == 3


def test_entries_out_of_order_are_damage() -> None:
    journal = SmallJournal(10**6)
    alone = Alone(journal)
    for number in range(3):
        alone.carry_out([publish(number)], NOW_MS)
    records = journal.files[1]
    records.append(replace(records[-2], term=2))
    with pytest.raises(DamagedFile, match=r"entry 4 of term 2 does not follow entry 4"):
        opened(journal.again())


@pytest.mark.parametrize("file_bytes", range(250, 1_050, 50))
def test_power_that_goes_between_a_state_and_what_stands_behind_it_again(file_bytes: int) -> None:
    """The next start writes both: what is needed behind a state must not be in files before it.

    The file that has the torn state may begin with entries that a later state includes: their messages count.
    """
    journal = SmallJournal(file_bytes)
    queue, store = opened(journal)
    last = None
    for number in range(6):
        last = append(store, [publish(number)])
    assert last == 5
    store._write_state(queue)
    records = journal.files[max(journal.files)]
    while records and records[-1].kind != STATE:
        records.pop()
        if not records:
            del journal.files[max(journal.files)], journal.live[max(journal.live)]
            records = journal.files[max(journal.files)]
    first = records[-1].file
    journal = journal.again()
    alone = Alone(journal)
    assert len(bodies(alone.queue, alone.store)) == 6
    for file in range(1, first):
        for _ in alone.store.relocate(file):
            pass
        journal.drop_oldest()
    assert bodies(*opened(journal.again())) == [b"%d" % number for number in range(6)]
