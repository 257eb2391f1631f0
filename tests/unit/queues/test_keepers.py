"""Keepers without a task: what is told when, by a journal and syncs that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from amqp10broker.errors import DiskFull
from amqp10broker.message.amqp10 import make_head
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.queues.classic.durability import ClassicInJournal, ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import (
    Answer,
    AttachPublisher,
    Command,
    Confirmed,
    Credit,
    Delete,
    DeliveryOutcome,
    Inspect,
    Publish,
    Settle,
    Subscribe,
    Tick,
    Touch,
    Unconfirmed,
)
from amqp10broker.queues.durability import DurabilityBackend, EffectBatch, PublishEffects, Wake
from amqp10broker.queues.journal import Spool
from amqp10broker.queues.queue_status import QueueProgress
from amqp10broker.queues.quorum.commands import APPLIED, COMMANDS, PLACES, NodeBatch, decode_commands
from amqp10broker.queues.quorum.durability import QuorumInLog, QuorumInMemory
from amqp10broker.queues.quorum.log_store import QuorumStore
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import DEFAULTS, QueueSettings
from amqp10broker.queues.stream.durability import RETRY_MS, StreamBackend, StreamCommits
from amqp10broker.queues.stream.log import MemoryShelf, StreamLog
from amqp10broker.queues.stream.queue import StreamQueue
from amqp10broker.raft.groups import Groups, Member
from tests.support import quorum_harness
from tests.support.memory_journal import MemoryScratch
from tests.support.reply_addresses import new_reply_to

NOW_MS = 1_000
ASKER = new_reply_to("1.1")
PUBLISHER = ASKER.publisher()
MESSAGE = (make_head(None, None, "", "q"), b"a")


class Journal(quorum_harness.Journal):
    """Notes what else is asked of it."""

    def __init__(self) -> None:
        super().__init__(10**9)
        self.left_alone: list[int] = []
        self.soon = 0

    @property
    def entries(self) -> list[bytes]:
        return [record.payload[APPLIED.size :] for record in self.records if record.kind == COMMANDS]

    def sync_all(self) -> None:
        while self.durable < self.ticket:
            self.sync()

    def write_soon(self) -> None:
        self.soon += 1

    def abandoned(self, group: int) -> None:
        self.left_alone.append(group)

    def progress(self, *, busy: bool, waits: bool) -> QueueProgress:
        return QueueProgress(busy, sync_ms=0 if waits else None)


class Bench:
    """Wakes a keeper as `runtime/queues/queue_task.py` does."""

    def __init__(self, make: Callable[[Wake, PublishEffects], DurabilityBackend[Any]]) -> None:
        self.wakes = 0
        self.indexes: list[int] = []
        self.told: list[tuple[str, list[int]]] = []
        backend = self.backend = make(self._wake, self._publish)
        list(backend.recover(NOW_MS))
        self.wake()

    def _wake(self) -> None:
        self.wakes += 1

    def _publish(self, batch: EffectBatch) -> None:
        self.indexes.append(batch.index)
        for effect in batch.effects.get(PUBLISHER.reply_to, ()):
            assert isinstance(effect, Confirmed | Unconfirmed | Answer)
            said = [effect.ready] if isinstance(effect, Answer) else list(effect.ids)
            self.told.append((type(effect).__name__, said))

    def wake(self, *commands: Command, now_ms: int = NOW_MS) -> None:
        self.backend.apply(list(commands), now_ms)
        self.backend.flush(now_ms)
        self.backend.publish()

    def wake_after_sync(self, journal: Journal) -> None:
        journal.sync_all()
        self.wake()

    def publish(self, number: int, now_ms: int = NOW_MS) -> None:
        self.wake(publish(number), now_ms=now_ms)


def publish(number: int) -> Publish:
    return Publish(PUBLISHER, [number], [MESSAGE], False)


def batch(number: int, command: Command | None = None) -> Any:
    return NodeBatch(*ASKER.id[:2], number, number, 0, [command or publish(number)])


class States:
    """Members that were sent the state."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def begin(self, group: int, to: int) -> None:
        self.begun.append(to)

    def stop(self, group: int) -> None:
        """Nothing is on its way."""


def quorum(settings: QueueSettings = DEFAULTS, states: States | None = None) -> tuple[Bench, Journal]:
    journal = Journal()
    store = QuorumStore(7, "q", journal, when_durable=journal.when_durable)
    queue = QuorumQueue("q", settings=settings, now_ms=NOW_MS)
    groups = Groups(lambda: NOW_MS, lambda *_: None)

    def begin(machine: QuorumInLog) -> Member:
        member = Member(7, store.me, store, machine, groups, lambda: 0.5)
        groups.add(member)
        return member

    bench = Bench(
        lambda wake, publish: QuorumInLog(queue, wake, publish, journal, store, begin, states)  # type: ignore[arg-type]
    )
    return bench, journal


def opened(settings: QueueSettings = DEFAULTS, states: States | None = None) -> tuple[Bench, Journal]:
    bench, journal = quorum(settings, states)
    bench.wake_after_sync(journal)
    assert not bench.backend.busy
    return bench, journal


def test_a_settlement_during_a_sync_is_synced_soon_though_a_publish_waits_for_that_sync() -> None:
    """The sync began before it, and no other command requests another sync."""
    journal = Journal()
    store = ClassicStore(7, journal, Spool(MemoryScratch))  # type: ignore[arg-type]
    bench = Bench(
        lambda wake, publish: ClassicInJournal(
            lambda before: ClassicQueue("q", durable=True, store=store),
            *(wake, publish, journal, store),  # type: ignore[arg-type]
        )
    )
    consumer = new_reply_to("1.2").consumer()
    bench.wake(Subscribe(consumer, False), Credit(consumer, 0, 10, False, 0))
    durable = (make_head(Header(durable=True), None, "", "q"), b"a")
    for number in (1, 2):
        bench.wake(Publish(PUBLISHER, [number], [durable], False))
    assert ([ticket for ticket, _ in journal.waiting], journal.durable) == ([1], 0)
    soon, last = journal.soon, journal.ticket
    bench.wake(Settle(consumer, [0], DeliveryOutcome.ACCEPT))
    assert journal.ticket == last + 1
    assert journal.soon == soon + 1
    journal.sync(last)
    bench.wake()
    assert bench.told == [("Confirmed", [1]), ("Confirmed", [2])]
    assert journal.soon == soon + 1  # nothing came after it


def test_a_quorum_queue_tells_what_is_durable_and_in_the_order_in_which_it_was_asked() -> None:
    bench, journal = opened()
    tickets = []
    for number in (1, 2, 3):
        bench.publish(number)
        tickets.append(journal.ticket)
    assert bench.backend.queue.ready == 0, "carried out when it is committed"
    assert bench.told == []
    status = bench.backend.queue_status()
    assert (status.unconfirmed, status.unconfirmed_ms) == (3, NOW_MS)
    assert bench.backend.busy
    wakes = bench.wakes
    journal.sync(tickets[1])
    assert bench.wakes > wakes
    bench.wake()
    assert bench.told == [("Confirmed", [1]), ("Confirmed", [2])]
    assert bench.backend.busy
    journal.sync(tickets[2])
    bench.wake()
    assert bench.told[2:] == [("Confirmed", [3])]
    assert not bench.backend.busy
    assert bench.backend.queue_status().unconfirmed_ms is None


def test_what_is_asked_before_the_group_has_begun_waits_for_it() -> None:
    bench, journal = quorum()
    bench.publish(1)
    bench.wake(Inspect(ASKER.request()))
    assert (bench.told, journal.entries) == ([], [])
    assert bench.backend.busy
    assert bench.backend.deadline() is None
    bench.wake_after_sync(journal)
    bench.wake_after_sync(journal)
    assert bench.told == [("Confirmed", [1]), ("Answer", [1])]


def test_time_that_is_on_its_way_through_the_log_is_not_sent_again() -> None:
    bench, journal = opened(replace(DEFAULTS, message_ttl_ms=100))
    bench.publish(1)
    bench.wake_after_sync(journal)
    assert bench.backend.deadline() == NOW_MS + 100
    bench.wake(Tick(), now_ms=NOW_MS + 99)
    assert bench.backend.deadline() == NOW_MS + 100, "that was too early"
    bench.wake(Tick(), now_ms=NOW_MS + 100)
    assert bench.backend.deadline() is None
    journal.sync_all()
    assert bench.backend.queue.ready == 1
    bench.wake(now_ms=NOW_MS + 100)
    assert (bench.backend.queue.ready, bench.backend.deadline()) == (0, None)


def test_what_was_asked_behind_the_end_of_a_queue_is_answered_as_too_late() -> None:
    bench, journal = opened()
    bench.wake(Delete(ASKER.request()))
    bench.publish(1)
    assert not bench.backend.queue.deleted, "not before it is committed"
    bench.wake_after_sync(journal)
    assert bench.backend.queue.deleted
    assert bench.told == [("Answer", [0]), ("Unconfirmed", [1])]
    bench.backend.delete()
    assert not bench.backend.busy


def test_a_question_to_a_quorum_queue_is_answered_in_its_place_and_is_not_in_the_journal() -> None:
    """It keeps its sender's order; it is answered once the state that it counts is durable."""
    bench, journal = opened()
    at_rest = journal.ticket
    bench.wake(Inspect(ASKER.request()), Touch())
    assert bench.told == [("Answer", [0])], "nothing waits for the disk"
    bench.wake(publish(1), Inspect(ASKER.request()), publish(2), Inspect(ASKER.request()))
    bench.wake(Inspect(ASKER.request()))
    assert journal.ticket == at_rest + 1
    assert len(bench.told) == 1, "messages that may get lost are not counted for anybody"
    journal.sync(journal.ticket)
    bench.wake()
    assert bench.told[1:] == [
        *(("Confirmed", [1]), ("Answer", [1])),
        *(("Confirmed", [2]), ("Answer", [2])),
        ("Answer", [2]),
    ]
    assert not bench.backend.busy


def test_what_came_of_several_entries_is_told_as_of_the_last() -> None:
    """The last applied index comes with all of its effects, or a link could forget some of them."""
    bench, journal = opened()
    queue = bench.backend.queue
    for number in (1, 2):
        bench.wake(batch(number))
    bench.wake_after_sync(journal)
    assert bench.told == [("Confirmed", [1]), ("Confirmed", [2])]
    assert bench.indexes == [queue.node_links.entry]
    bench.wake(batch(3, AttachPublisher(PUBLISHER)))
    bench.wake_after_sync(journal)
    assert bench.indexes[1:] == [queue.node_links.entry], "that it was carried out is told, too"


def test_a_part_of_a_commit_is_told_to_links_and_sent_to_members_when_it_is_committed() -> None:
    """The state of a cluster queue's only member is ahead of the results that may be published."""
    states = States()
    bench, journal = opened(states=states)
    backend, key = bench.backend, ASKER.id[:2]
    assert isinstance(backend, QuorumInLog)
    assert backend.transacts
    bench.wake(batch(1))
    before = journal.ticket
    backend.apply_part([batch(2)], NOW_MS)
    backend.publish()
    backend.snapshot_for(5)
    assert (backend.queue.link_last(*key), backend.ahead, backend.done(*key)) == (2, True, 0)
    assert (bench.told, states.begun) == ([], [])
    journal.sync(before)
    backend.publish()
    assert (bench.told, backend.done(*key), states.begun) == ([("Confirmed", [1])], 1, [])
    journal.sync_all()
    backend.publish()
    assert bench.told[1:] == [("Confirmed", [2])]
    assert (backend.ahead, backend.done(*key), states.begun) == (False, 2, [5])


def test_a_question_waits_for_what_was_decided_before_though_there_was_nothing_to_tell() -> None:
    bench, journal = opened()
    bench.wake(AttachPublisher(PUBLISHER))
    bench.wake(Inspect(ASKER.request()))
    assert (bench.told, bench.backend.busy) == ([], True)
    wakes = bench.wakes
    journal.sync(journal.ticket)
    assert bench.wakes > wakes
    bench.wake()
    assert bench.told == [("Answer", [0])]


def test_what_is_due_happens_before_a_question_is_answered() -> None:
    """Time advances with the question while it is in the log; the entry says only that time passed."""
    settings = replace(DEFAULTS, message_ttl_ms=100)
    in_journal, journal = opened(settings)
    queue = QuorumQueue("q", settings=settings, now_ms=NOW_MS)
    for bench in (in_journal, Bench(lambda wake, publish: QuorumInMemory(queue, wake, publish))):
        bench.publish(1)
        journal.sync_all()
        bench.wake()
        for late, count in ((99, 1), (100, 0)):
            bench.wake(Inspect(ASKER.request()), now_ms=NOW_MS + late)
            journal.sync(journal.ticket)
            bench.wake(now_ms=NOW_MS + late)
            assert bench.told[-1] == ("Answer", [count])
    entries = [decode_commands(each[PLACES.decode_part(each)[1] :]).commands for each in journal.entries]
    assert [type(each) for (each,) in entries] == [Publish, Tick]


@pytest.mark.parametrize("end", ["storage_failed", "abandon"])
def test_what_a_quorum_queue_has_not_told_is_refused_when_it_cannot_be_kept(end: str) -> None:
    bench, journal = opened()
    bench.publish(1)
    first = journal.ticket
    bench.publish(2)
    journal.sync(first)
    bench.backend.flush(NOW_MS)
    if end == "storage_failed":
        bench.backend.publish()
        bench.backend.storage_failed()
    else:
        (unanswered,) = bench.backend.abandon()
        assert isinstance(unanswered, Publish)
        assert unanswered.ids == [2]
    # What was durable is told all the same, and first.
    assert bench.told == [("Confirmed", [1]), ("Unconfirmed", [2])][: 1 if end == "abandon" else 2]
    assert not bench.backend.busy
    assert journal.left_alone == ([7] if end == "abandon" else [])


def test_what_is_committed_after_storage_has_failed_is_not_carried_out() -> None:
    """Its senders were refused: applied without their commands, it would make a wrong state."""
    bench, journal = opened()
    bench.publish(1)
    applied = bench.backend.applied
    bench.backend.storage_failed()
    bench.wake_after_sync(journal)
    assert bench.backend.applied == applied
    assert bench.told == [("Unconfirmed", [1])]


class Syncs:
    """One file at a time."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []

    def when_synced(self, fds: Sequence[int], callback: Callable[[], None]) -> None:
        self.asked.append(callback)

    def withdraw(self, callback: Callable[[], None]) -> None:
        self.asked = [each for each in self.asked if each != callback]


class FullShelf(MemoryShelf):
    """A disk that may have no room."""

    full = False

    def write(self) -> None:
        if self.full:
            raise DiskFull("log", "no room", "make room")
        super().write()


def stream(shelf: MemoryShelf | None = None) -> tuple[Bench, Syncs, list[bool]]:
    log, syncs, full = StreamLog(shelf or MemoryShelf()), Syncs(), []
    bench = Bench(
        lambda wake, publish: StreamBackend(
            *(StreamQueue("s", log), wake, publish, log),
            *(syncs, lambda _, error: full.append(error is not None)),
        )
    )
    return bench, syncs, full


def test_a_stream_has_one_sync_under_way_and_what_comes_meanwhile_makes_the_next_chunk() -> None:
    bench, syncs, _ = stream()
    for number in (1, 2, 3):
        bench.publish(number)
    assert (len(syncs.asked), bench.told) == (1, [])
    syncs.asked.pop()()
    bench.wake()
    assert bench.told == [("Confirmed", [1])]
    assert len(syncs.asked) == 1
    syncs.asked.pop()()
    bench.wake()
    assert bench.told[1:] == [("Confirmed", [2]), ("Confirmed", [3])]


def test_a_stream_without_room_says_when_it_tries_again_and_does_not_before() -> None:
    shelf = FullShelf()
    bench, syncs, full = stream(shelf)
    shelf.full = True
    bench.publish(1)
    assert (full, bench.backend.due_ms) == ([True], NOW_MS + RETRY_MS)
    shelf.full = False
    bench.wake(now_ms=NOW_MS + RETRY_MS - 1)
    assert syncs.asked == []
    bench.wake(now_ms=NOW_MS + RETRY_MS)
    assert len(syncs.asked) == 1
    assert full == [True, False]


def test_a_part_of_a_commit_is_written_to_a_stream_when_the_journal_has_the_commit() -> None:
    """Before that, a loss of power would leave it without the other queues' parts. It is its own chunk."""
    log, syncs, journal = StreamLog(MemoryShelf()), Syncs(), Journal()
    commits = StreamCommits(7, journal)
    bench = Bench(
        lambda wake, publish: StreamBackend(
            *(StreamQueue("s", log), wake, publish, log),
            *(syncs, lambda _, error: None, cast("Any", journal), commits),
        )
    )
    backend = bench.backend
    backend.apply_part([Publish(PUBLISHER, [1, 2], [MESSAGE, MESSAGE], True)], NOW_MS)
    journal.ticket += 1  # the end of the commit
    backend.publish()
    bench.wake()
    assert (backend.busy, log.next_offset, syncs.asked) == (True, 0, [])
    journal.sync(journal.ticket - 1)
    bench.wake()
    assert log.next_offset == 0
    journal.sync(journal.ticket)
    bench.wake()
    assert (log.next_offset, log.committed, log.number) == (2, 0, 1)
    assert commits.bytes > 0
    syncs.asked.pop()()
    bench.wake()
    assert (log.committed, commits.bytes, backend.busy) == (2, 0, False)
    assert bench.told == [("Confirmed", [1, 2])]


def test_a_stream_that_ends_while_the_disk_is_full_takes_the_alarm_with_it_and_no_sync_is_heard() -> None:
    shelf = FullShelf()
    bench, syncs, full = stream(shelf)
    bench.publish(1)
    bench.backend.close()
    assert syncs.asked == []
    bench, syncs, full = stream(shelf)
    shelf.full = True
    bench.publish(1)
    bench.backend.abandon()
    assert full == [True, False]
