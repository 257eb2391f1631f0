"""Messages of a quorum queue that are published to be delivered later (docs/queues.md)."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.types import Symbol, Timestamp
from amqp10broker.queues.commands import Answer, Delete, DeliveryOutcome, Inspect, Purge, Refusal
from amqp10broker.queues.quorum import ordered_entries, ready
from amqp10broker.queues.quorum.commands import RaiseVersion
from amqp10broker.queues.quorum.ordered_entries import DueMessage, LaterMessages
from amqp10broker.queues.quorum.ready import Numbers
from amqp10broker.queues.quorum.snapshot import decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import Overflow
from tests.support import quorum_bench
from tests.support.quorum_bench import confirmed, message, only, rejected
from tests.support.selecting import selector


class Bench(quorum_bench.Bench):
    """A queue, with its counts."""

    @property
    def counts(self) -> tuple[int, int | None]:
        figures = self.queue.figures()
        return figures.messages_ready, figures.messages_delayed


def delayed(body: str, ms: int, *, priority: int | None = None, ttl_ms: int | None = None) -> Message:
    """A message that is to be delivered so long after it was published."""
    return message(body, priority=priority, ttl_ms=ttl_ms, delay_ms=ms)


def test_a_message_is_delivered_at_its_time_and_not_before() -> None:
    bench = Bench()
    ref = bench.consumer(5)
    told = bench.publish_all([delayed("b", 100), delayed("a", 50), message("now")])
    assert confirmed(told) == [0, 1, 2], "it is in the queue"
    assert (bench.bodies(told), bench.counts) == (["now"], (0, 2))
    assert bench.bodies(bench.wait(49)) == []
    assert bench.queue.deadline() == bench.now + 1
    queue_status = bench.queue.queue_status()
    assert (queue_status.delayed, queue_status.delayed_until_ms) == (2, bench.now + 1)
    assert bench.bodies(bench.wait(1)) == ["a"]
    assert bench.bodies(bench.wait(50), ref) == ["b"]
    assert (bench.counts, bench.queue.queue_status().delayed_until_ms) == ((0, 0), None)


@pytest.mark.parametrize("limit", [20, None])
def test_what_is_due_goes_behind_all_that_is_there(limit: int | None) -> None:
    bench = Bench(delivery_limit=limit)
    bench.publish_all([delayed("due", 10), message("first")])
    bench.wait(10)
    bench.publish("last")
    assert bench.get(bench.consumer(), 5) == ["first", "due", "last"]


def test_one_of_high_priority_is_of_high_priority_when_it_is_due() -> None:
    """It stands where it was published, also for a consumer that selects and has looked there."""
    bench = Bench()
    bench.publish("low")
    bench.publish_all([delayed("due", 10, priority=9), message("high", priority=9)])
    wants = bench.consumer(filters=selector("JMSPriority = 9"))
    bench.credit(wants, 1)
    found = bench.queue.look(100)
    assert found is not None
    assert bench.bodies(bench.do(found)) == ["high"]
    bench.credit(wants, 1)
    bench.publish("more", priority=9)
    bench.wait(10)
    found = bench.queue.look(100)
    assert found is not None
    assert bench.bodies(bench.do(found)) == ["due"]
    assert bench.get(bench.consumer(), 5) == ["more", "low"]


def test_one_that_comes_back_after_its_time_comes_back_at_once() -> None:
    bench = Bench()
    ref = bench.consumer(5)
    bench.publish_all([delayed("a", 10)])
    bench.wait(10)
    assert bench.bodies(bench.settle(ref, DeliveryOutcome.REQUEUE)) == ["a"]
    when = encode({Symbol("x-opt-delivery-time"): Timestamp(bench.now + 50)})
    assert bench.bodies(bench.settle(ref, DeliveryOutcome.REQUEUE, annotations=when)) == []
    assert bench.counts == (0, 1)
    assert bench.bodies(bench.wait(50)) == ["a"]


def test_a_message_that_expires_before_its_time_is_given_up_then() -> None:
    bench = Bench(dead_letter_exchange="dlx", message_ttl_ms=1_000)
    bench.publish_all([delayed("a", 100, ttl_ms=60), delayed("b", 100, ttl_ms=101), delayed("c", 5_000)])
    bench.wait(59)
    assert (bench.dead(), bench.counts) == ([], (0, 3))
    bench.wait(1)
    assert (bench.dead(), bench.counts) == ([("expired", ["a"])], (0, 2))
    bench.wait(40)
    assert bench.counts == (1, 1)
    bench.wait(1)
    assert (bench.dead(), bench.counts) == ([("expired", ["b"])], (0, 1))
    bench.wait(899)
    assert (bench.dead(), bench.counts) == ([("expired", ["c"])], (0, 0))
    assert bench.queue.counters.document()["expired"] == 3


def test_drop_head_drops_what_is_ready_first_and_then_the_first_due() -> None:
    bench = Bench(max_length=3, dead_letter_exchange="dlx")
    bench.publish_all([delayed("x", 90), delayed("y", 50), message("a"), message("b")])
    assert (bench.dead(), bench.counts) == ([("maxlen", ["a"])], (1, 2))
    bench.publish_all([delayed("z", 70)])
    assert (bench.dead(), bench.counts) == ([("maxlen", ["b"])], (0, 3))
    bench.publish_all([delayed("w", 80)])
    assert (bench.dead(), bench.counts) == ([("maxlen", ["y"])], (0, 3))
    bench.configure(max_length_bytes=2, dead_letter_exchange="dlx")
    assert (bench.dead(), bench.counts) == ([("maxlen", ["z"])], (0, 2))


def test_reject_publish_counts_them_and_a_waiting_consumer_is_no_room_for_them() -> None:
    bench = Bench(max_length=2, overflow=Overflow.REJECT_PUBLISH)
    bench.consumer(10)
    told = bench.publish_all([message("now"), *(delayed(str(n), 10) for n in range(4)), message("no")])
    assert (confirmed(told), rejected(told)) == ([0, 1, 2], [3, 4, 5])
    assert (bench.bodies(told), bench.counts, bench.queue.figures().full) == (["now"], (0, 2), True)
    assert not bench.queue.has_room_for([delayed("a", 10)])
    assert len(bench.bodies(bench.wait(10))) == 2
    assert confirmed(bench.publish_all([delayed("a", 10)])) == [0]


def test_purge_takes_them_along_and_a_queue_with_nothing_else_is_not_empty() -> None:
    bench = Bench()
    bench.publish_all([delayed("a", 50), message("b")])
    (counted,) = only(bench.do(Inspect(bench.request)), Answer)
    assert counted.ready == 1
    (answer,) = only(bench.do(Purge(bench.request)), Answer)
    assert (answer.ready, bench.counts) == (2, (0, 0))
    bench.publish_all([delayed("c", 50)])
    (answer,) = only(bench.do(Delete(bench.request, if_empty=True)), Answer)
    assert (answer.refused, bench.queue.deleted) == (Refusal.NOT_EMPTY, False)
    (answer,) = only(bench.do(Delete(bench.request)), Answer)
    assert (answer.ready, bench.queue.deleted, len(bench.queue.parts()[0].bodies)) == (1, True, 0)


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_entries, "SOON_MAX", 8)
    monkeypatch.setattr(ordered_entries, "PAGE_MAX", 3)


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("seed", range(20))
def test_messages_in_whatever_order_they_come_are_taken_in_that_of_their_times(seed: int) -> None:
    """Also after a snapshot, in which it does not matter where each was."""
    dice = Random(seed)
    here, there = LaterMessages(), []
    index = 0
    for _ in range(40):
        count = dice.randint(0, 12)
        some = [
            DueMessage(
                dice.randint(1, 60), index + at, dice.randint(1, 9), dice.choice([0, 7]), dice.randint(0, 1)
            )
            for at in range(count)
        ]
        index += count
        here.add(some)
        there = sorted([*there, *some])
        now, most = dice.randint(0, 60), dice.randint(1, 9)
        due = [each for each in there if each.when_ms <= now][:most]
        assert here.take_due(now, most) == due
        there = there[len(due) :]
        if there and dice.random() < 0.3:
            assert here.take_first(1) == there[:1]
            del there[0]
        if dice.random() < 0.3:
            columns = here.columns()
            here = LaterMessages()
            here.restore(columns)
            assert here.columns() == columns
        assert (here.count, here.size) == (len(there), sum(each.size for each in there))
        assert here.next_due == (there[0].when_ms if there else None)
        assert sorted(here.indexes()) == sorted(each.key for each in there)


@pytest.mark.usefixtures("short_pages")
def test_a_snapshot_has_them() -> None:
    bench = Bench()
    bench.publish("plain")
    assert b'"later"' not in encode_snapshot(bench.queue)
    dice = Random(3)
    bench.publish_all(
        [
            delayed(
                str(number),
                dice.randint(1, 50),
                priority=dice.choice([None, 9]),
                ttl_ms=dice.choice([None, 30]),
            )
            for number in range(100)
        ]
    )
    state = encode_snapshot(bench.queue)
    restored = decode_snapshot("q", state, bench.queue.parts()[0].bodies)
    assert encode_snapshot(restored) == state
    for at in range(1, 60):
        bench.wait(1)
        restored.apply(RaiseVersion(0), bench.now)
        assert encode_snapshot(restored) == encode_snapshot(bench.queue), at
    assert bench.counts[1] == 0
    assert restored.deadline() == bench.queue.deadline()


def test_many_numbers_in_the_tail_are_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they are packed or not makes no difference, but for memory."""

    def walk(at_least: int) -> list[object]:
        monkeypatch.setattr(ready, "NUMBERS_MIN", at_least)
        bench, dice = Bench(delivery_limit=None), Random(5)
        ref = bench.consumer()
        states: list[object] = []
        for _ in range(150):
            match dice.choice("pwcsgr"):
                case "p":
                    bench.publish_all([delayed("d", dice.randint(0, 9)) for _ in range(dice.randint(1, 90))])
                case "w":
                    bench.wait(dice.randint(1, 5))
                case "c":
                    bench.credit(ref, dice.randint(1, 60))
                case "s" | "g" if held := bench.held(ref):
                    delivery_outcome = dice.choice([DeliveryOutcome.ACCEPT, DeliveryOutcome.REQUEUE])
                    bench.settle(ref, delivery_outcome, dice.sample(held, dice.randint(1, len(held))))
                case "r" if bench.held(ref):
                    bench.leave(ref, DeliveryOutcome.REQUEUE)
                    ref = bench.consumer()
            state = encode_snapshot(bench.queue)
            messages = bench.queue.parts()[0]
            assert encode_snapshot(decode_snapshot("q", state, messages.bodies)) == state
            line = messages.ready
            behind = sorted(line.behind.items())
            states.append((behind, line.indexes_of_tail(), bench.held(ref), bench.counts))
        packed = type(bench.queue.parts()[0].ready.behind) is Numbers
        assert packed is (at_least == 1)
        bench.do(Purge(bench.request))
        bench.settle(ref, DeliveryOutcome.ACCEPT)
        assert not list(bench.queue.messages.ready.behind.items())
        return states

    assert walk(1) == walk(10**9)


@pytest.mark.parametrize("spread", [1, 10**9])
def test_memory_is_some_bytes_of_each(spread: int) -> None:
    dice, count = Random(1), 50_000
    held = LaterMessages()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for first in range(0, count, 500):
            held.add(
                [
                    DueMessage(10**12 + dice.randrange(spread), index, 100, 0, 0)
                    for index in range(first, first + 500)
                ]
            )
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 8192 * 220 + count * 30
