"""Messages of a classic queue that are not to be delivered before their time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amqp10broker.message.message import Message
from amqp10broker.queues.classic.backlog import Store
from amqp10broker.queues.classic.queue import DUE_MAX, ClassicQueue
from amqp10broker.queues.classic.ready import SOON_BYTES_MAX, SOON_MESSAGES_MAX, DelayedMessages
from amqp10broker.queues.commands import TICK, Answer, Inspect, Publish, Purge
from amqp10broker.queues.settings import Overflow, QueueSettings
from tests.support.askers import new_asker
from tests.unit.queues.bench_queue import START_MS, Bench, message

DLX = QueueSettings(dead_letter_exchange="dlx")


def later(text: object, ms: int, *, priority: int | None = None, ttl: int | None = None) -> Message:
    """A message that is due so long after the bench's start."""
    return message(text, due=START_MS + ms, priority=priority, ttl=ttl)


def counts(bench: Bench) -> tuple[int, int | None]:
    figures = bench.queue.figures()
    return figures.messages_ready, figures.messages_delayed


def test_a_message_is_delivered_at_its_time_and_not_before() -> None:
    bench = Bench()
    consumer = bench.consumer(5)
    bench.publish(later("b", 100), later("a", 50), "now")
    assert (consumer.got, counts(bench)) == (["now"], (0, 2))
    assert bench.confirmed == [0, 1, 2], "it is in the queue"
    bench.wait(49)
    bench.do(TICK)
    assert (consumer.got, bench.queue.deadline()) == (["now"], START_MS + 50)
    bench.wait(1)
    assert consumer.got == ["now", "a"]
    bench.wait(50)
    assert (consumer.got, counts(bench)) == (["now", "a", "b"], (0, 0))
    assert bench.queue.deadline() is None


def test_a_time_that_has_passed_delays_nothing() -> None:
    bench = Bench()
    bench.publish(later("a", 0), later("b", -1000), message("c", due=-1))
    assert (bench.consumer(3).got, counts(bench)) == (["a", "b", "c"], (0, 0))


def test_what_is_due_goes_to_the_end_of_its_level() -> None:
    bench = Bench(QueueSettings(max_priority=5))
    bench.publish(later("low", 10), later("high", 10, priority=4), "first", message("high 1", priority=4))
    bench.wait(10)
    bench.publish("last")
    assert bench.consumer(9).got == ["high 1", "high", "first", "low", "last"]


def test_of_what_is_due_the_earlier_time_is_first_and_then_the_earlier_publish() -> None:
    bench = Bench()
    bench.publish(later("c", 20), later("a", 10), later("b", 10), later("d", 20))
    bench.now += 100
    bench.wait(0)
    assert bench.consumer(9).got == ["a", "b", "c", "d"]


def test_a_message_that_expires_before_its_time_is_given_up_then() -> None:
    bench = Bench(DLX)
    bench.publish(later("a", 100, ttl=60), later("b", 100, ttl=100), later("c", 100, ttl=101))
    bench.wait(59)
    assert (bench.dead, counts(bench)) == ([], (0, 3))
    bench.wait(1)
    assert (bench.dead, counts(bench)) == ([("expired", "a")], (0, 2))
    bench.wait(40)
    assert (bench.dead[1:], counts(bench)) == ([("expired", "b")], (1, 0))
    bench.wait(1)
    assert (bench.dead[2:], counts(bench)) == ([("expired", "c")], (0, 0))
    assert bench.queue.counters.document()["expired"] == 3


def test_the_queues_time_to_live_counts_from_the_arrival() -> None:
    bench = Bench(replace(DLX, message_ttl_ms=50))
    bench.publish(later("a", 100), later("b", 10))
    bench.wait(10)
    assert counts(bench) == (1, 1)
    bench.wait(40)
    assert sorted(bench.dead) == [("expired", "a"), ("expired", "b")]


def test_limits_of_length_count_them_and_they_are_dropped_last_the_first_due_first() -> None:
    bench = Bench(replace(DLX, max_length=3))
    bench.publish(later("x", 90), later("y", 50), "a", "b")
    assert (bench.dead, counts(bench)) == ([("maxlen", "a")], (1, 2))
    bench.publish(later("z", 70))
    assert (bench.dead[1:], counts(bench)) == ([("maxlen", "b")], (0, 3))
    bench.publish(later("w", 80))
    assert (bench.dead[2:], counts(bench)) == ([("maxlen", "y")], (0, 3))
    bench.wait(100)
    assert bench.consumer(9).got == ["z", "w", "x"]


def test_a_full_queue_rejects_them_and_is_full_of_them() -> None:
    bench = Bench(QueueSettings(max_length=2, overflow=Overflow.REJECT_PUBLISH))
    bench.publish(later("a", 50), later("b", 60), later("c", 70), "d")
    assert (bench.confirmed, bench.rejected) == ([0, 1], [2, 3])
    assert bench.queue.figures().full
    assert not bench.queue.has_room_for([message("e")])


def test_a_purge_takes_them_along_and_counts_them() -> None:
    bench = Bench()
    asker = new_asker("manager")
    bench.publish(later("a", 50), "b")
    bench.queue.apply(Inspect(asker.request()), bench.now)
    bench.queue.apply(Purge(asker.request()), bench.now)
    answers = [each for each in bench.queue.take_effects()[asker.id] if isinstance(each, Answer)]
    assert [answer.ready for answer in answers] == [1, 2], "not ready, and purged"
    assert (counts(bench), bench.queue.deadline()) == ((0, 0), None)


def test_somebody_who_waits_hears_of_them() -> None:
    bench = Bench()
    bench.publish(later("a", 50), later("b", 40))
    queue_status = bench.queue.queue_status()
    assert (queue_status.delayed, queue_status.delayed_until_ms) == (2, START_MS + 40)


def test_many_that_are_due_at_once_go_in_parts() -> None:
    """Others run between them: a queue with a million of them holds nobody up."""
    queue = ClassicQueue("q", durable=False, now_ms=START_MS)
    messages = [later(number, 5) for number in range(2 * DUE_MAX + 1)]
    queue.apply(Publish(new_asker("p").publisher(), range(len(messages)), messages, True), START_MS)
    for ready in (DUE_MAX, 2 * DUE_MAX, 2 * DUE_MAX + 1):
        assert queue.deadline() == START_MS + 5
        queue.apply(TICK, START_MS + 5)
        assert queue.ready == ready
    assert queue.deadline() is None


class CountingStore(Store):
    """Says how many messages are in pages."""

    def __init__(self) -> None:
        self.packed = 0

    def pack(self, level: int, messages: object, expiries: object) -> object:
        self.packed += len(messages)  # type: ignore[arg-type]
        return super().pack(level, messages, expiries)  # type: ignore[arg-type]

    def page_in(self, handle: object) -> object:  # type: ignore[override]
        found = super().page_in(handle)
        self.packed -= len(found[0])
        return found


@pytest.mark.parametrize("step", [7919, 1, 0, -1], ids=["at random", "growing", "all at once", "falling"])
def test_memory_holds_some_thousands_of_them_in_whatever_order_they_come(step: int) -> None:
    store = CountingStore()
    line = DelayedMessages(store)
    count = 3 * SOON_MESSAGES_MAX
    times = [number * step % 10_007 + 1 for number in range(count)]
    for start in range(0, count, 64):
        part = range(start, start + 64)
        line.add([(b"h", b"%d" % number) for number in part], times[start : start + 64], None)
        assert line.count - store.packed <= SOON_MESSAGES_MAX
    found = []
    while line.count:
        found += [(each.when_ms, int(each.message[1])) for each in line.take_due(10**9, 100)]
        assert line.count - store.packed <= SOON_MESSAGES_MAX
    assert found == sorted((when, number) for number, when in enumerate(times))


def test_memory_holds_so_many_bytes_of_them_and_one_message() -> None:
    store = CountingStore()
    line = DelayedMessages(store)
    large = bytes(SOON_BYTES_MAX // 3)
    for number in range(20):
        line.add([(b"h", large)], [100 - number], None)
        assert line.count - store.packed <= 4
    line.add([(b"h", bytes(2 * SOON_BYTES_MAX))], [1], None)
    assert line.count - store.packed <= 4
    assert line.size == 20 * len(large) + 2 * SOON_BYTES_MAX
    assert [each.when_ms for each in line.take_due(200, 50)] == [1, *range(81, 101)]
    assert (line.size, line.count, store.packed) == (0, 0, 0)
