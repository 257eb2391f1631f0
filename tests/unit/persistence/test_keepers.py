"""Keepers without a task: what is told when, by a journal and syncs that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from amqp10broker.errors import DiskFull
from amqp10broker.message.message import make_head
from amqp10broker.persistence.keeper import Keeper
from amqp10broker.persistence.quorum_keeper import QuorumInJournal, QuorumInMemory
from amqp10broker.persistence.quorum_records import ENTRY
from amqp10broker.persistence.quorum_store import QuorumStore, read_entry
from amqp10broker.persistence.stream_keeper import RETRY_MS, StreamKeeper
from amqp10broker.queues.commands import AttachPublisher, Command, Inspect, PeerId, Publish, Tick, Touch
from amqp10broker.queues.effects import Answer, Confirmed, DeadLetters, Effect, Unconfirmed
from amqp10broker.queues.outlook import Progress
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import DEFAULTS, QueueSettings
from amqp10broker.queues.stream.queue import StreamQueue
from amqp10broker.storage.stream_log import StreamLog
from amqp10broker.storage.stream_memory import MemoryShelf
from tests.support.askers import new_asker

NOW_MS = 1_000
ASKER = new_asker("1.1")
PUBLISHER = ASKER.publisher()
MESSAGE = (make_head(None, None, "", "q"), b"a")


class Journal:
    """Both what a store appends to, and what says what is durable."""

    reserves = False

    def __init__(self) -> None:
        self.ticket = self.durable = 0
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        self.left_alone: list[int] = []
        self.entries: list[bytes] = []

    def append(self, group: int, kind: int, index: int, payload: Sequence[bytes]) -> tuple[int, int, int]:
        self.ticket += 1
        if kind == ENTRY:
            self.entries.append(b"".join(payload))
        return self.ticket, 1, self.ticket

    @property
    def journal(self) -> Journal:
        return self

    def sync(self, ticket: int) -> None:
        self.durable = ticket
        ready = [callback for asked, callback in self.waiting if asked <= ticket]
        self.waiting = [each for each in self.waiting if each[0] > ticket]
        for callback in ready:
            callback()

    def when_durable(self, ticket: int, callback: Callable[[], None]) -> None:
        self.waiting.append((ticket, callback))

    def write_soon(self) -> None:
        """Nobody waits."""

    def add_live(self, file: int, length: int) -> None:
        """Not counted."""

    def add_dead(self, file: int, length: int) -> None:
        """Not counted."""

    def abandoned(self, group: int) -> None:
        self.left_alone.append(group)

    def progress(self, *, busy: bool, waits: bool) -> Progress:
        return Progress(busy, sync_ms=0 if waits else None)


class Bench:
    """Wakes a keeper as `tasks/queue_task.py` does."""

    def __init__(self, keeper: Keeper[Any]) -> None:
        self.keeper = keeper
        self.wakes = 0
        self.told: list[tuple[str, list[int]]] = []
        keeper.wake = self._wake
        keeper.hand_over = self._hand_over
        list(keeper.recover(NOW_MS))
        self.wake()

    def _wake(self) -> None:
        self.wakes += 1

    def _hand_over(
        self,
        effects: Mapping[PeerId, list[Effect]],
        dead_letters: Sequence[DeadLetters] = (),
        dead: Sequence[object] = (),
    ) -> None:
        for effect in effects.get(PUBLISHER.reply_to, ()):
            assert isinstance(effect, Confirmed | Unconfirmed | Answer)
            said = [effect.ready] if isinstance(effect, Answer) else list(effect.ids)
            self.told.append((type(effect).__name__, said))

    def wake(self, *commands: Command, now_ms: int = NOW_MS) -> None:
        self.keeper.carry_out(list(commands), now_ms)
        self.keeper.keep(now_ms)
        self.keeper.tell()

    def publish(self, number: int, now_ms: int = NOW_MS) -> None:
        self.wake(Publish(PUBLISHER, [number], [MESSAGE], False), now_ms=now_ms)


def quorum(settings: QueueSettings = DEFAULTS) -> tuple[Bench, Journal]:
    journal = Journal()
    store = QuorumStore(7, "q", journal)
    queue = QuorumQueue("q", settings=settings, now_ms=NOW_MS)
    return Bench(QuorumInJournal(queue, journal, store)), journal  # type: ignore[arg-type]


def test_a_quorum_queue_tells_what_is_durable_and_in_the_order_in_which_it_was_decided() -> None:
    bench, journal = quorum()
    tickets = []
    for number in (1, 2, 3):
        bench.publish(number)
        tickets.append(journal.ticket)
    assert bench.keeper.queue.ready == 3, "applied at once"
    assert bench.told == []
    assert bench.keeper.busy
    wakes = bench.wakes
    journal.sync(tickets[1])
    assert bench.wakes > wakes
    bench.wake()
    assert bench.told == [("Confirmed", [1]), ("Confirmed", [2])]
    assert bench.keeper.owed == tickets[2]
    journal.sync(tickets[2])
    bench.wake()
    assert bench.told[2:] == [("Confirmed", [3])]
    assert (bench.keeper.busy, bench.keeper.owed) == (False, None)


def test_a_question_to_a_quorum_queue_is_answered_in_its_place_and_is_not_in_the_journal() -> None:
    """Behind what its sender sent before, before what it sent after; told when what it counts is durable."""
    bench, journal = quorum()
    journal.sync(journal.ticket)
    bench.wake()
    at_rest = journal.ticket
    bench.wake(Inspect(ASKER.request()), Touch())
    assert bench.told == [("Answer", [0])], "nothing waits for the disk"
    publishes = [Publish(PUBLISHER, [number], [MESSAGE], False) for number in (1, 2)]
    bench.wake(publishes[0], Inspect(ASKER.request()), publishes[1], Inspect(ASKER.request()))
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
    assert (bench.keeper.busy, bench.keeper.owed) == (False, None)


def test_a_question_waits_for_what_was_decided_before_though_there_was_nothing_to_tell() -> None:
    bench, journal = quorum()
    bench.wake(AttachPublisher(PUBLISHER))
    assert not bench.keeper.busy
    bench.wake(Inspect(ASKER.request()))
    assert (bench.told, bench.keeper.owed) == ([], journal.ticket)
    wakes = bench.wakes
    journal.sync(journal.ticket)
    assert bench.wakes > wakes
    bench.wake()
    assert bench.told == [("Answer", [0])]


def test_what_is_due_happens_before_a_question_is_answered() -> None:
    """As time passed with the question while that was in the log; the entry says only that it passed."""
    settings = replace(DEFAULTS, message_ttl_ms=100)
    in_journal, journal = quorum(settings)
    for bench in (in_journal, Bench(QuorumInMemory(QuorumQueue("q", settings=settings, now_ms=NOW_MS)))):
        bench.publish(1)
        for late, count in ((99, 1), (100, 0)):
            bench.wake(Inspect(ASKER.request()), now_ms=NOW_MS + late)
            journal.sync(journal.ticket)
            bench.wake(now_ms=NOW_MS + late)
            assert bench.told[-1] == ("Answer", [count])
    entries = [read_entry(number, payload).commands for number, payload in enumerate(journal.entries)]
    assert [type(each) for (each,) in entries] == [Publish, Tick]


@pytest.mark.parametrize("end", ["storage_failed", "abandon"])
def test_what_a_quorum_queue_has_not_told_is_refused_when_it_cannot_be_kept(end: str) -> None:
    bench, journal = quorum()
    bench.publish(1)
    first = journal.ticket
    bench.publish(2)
    journal.sync(first)
    if end == "storage_failed":
        bench.wake()
    getattr(bench.keeper, end)()
    # What was durable is told all the same, and first.
    assert bench.told == [("Confirmed", [1]), ("Unconfirmed", [2])]
    assert not bench.keeper.busy
    assert journal.left_alone == ([7] if end == "abandon" else [])


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
    keeper = StreamKeeper(StreamQueue("s", log), log, syncs, lambda _, error: full.append(error is not None))
    return Bench(keeper), syncs, full


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
    assert (full, bench.keeper.due_ms) == ([True], NOW_MS + RETRY_MS)
    shelf.full = False
    bench.wake(now_ms=NOW_MS + RETRY_MS - 1)
    assert syncs.asked == []
    bench.wake(now_ms=NOW_MS + RETRY_MS)
    assert len(syncs.asked) == 1
    assert full == [True, False]


def test_a_stream_that_ends_while_the_disk_is_full_takes_the_alarm_with_it_and_no_sync_is_heard() -> None:
    shelf = FullShelf()
    bench, syncs, full = stream(shelf)
    bench.publish(1)
    bench.keeper.close()
    assert syncs.asked == []
    bench, syncs, full = stream(shelf)
    shelf.full = True
    bench.publish(1)
    bench.keeper.end()
    assert full == [True, False]
