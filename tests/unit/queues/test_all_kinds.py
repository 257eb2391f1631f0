"""What holds for queues of every kind: counters, status, room, faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, ValuesView
from typing import Any

import pytest

from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.filters.stream_filters import OffsetWord
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.queues import commands
from amqp10broker.queues.classic.dispatch import Serving
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.queue_status import ConsumerStatus, LengthLimits, QueueStatus
from amqp10broker.queues.quorum.messages import Messages
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import Overflow, QueueSettings
from amqp10broker.queues.stream.log import MemoryShelf, StreamLog
from amqp10broker.queues.stream.queue import StreamConsumer, StreamQueue
from tests.support.channel_harness import Harness
from tests.support.queue_bench import BOTH, Bench, only
from tests.support.reply_addresses import new_reply_to
from tests.support.steps import steps_of
from tests.support.streams import Bench as StreamBench
from tests.support.streams import text

REJECT = Overflow.REJECT_PUBLISH


# --- classic --------------------------------------------------------------------------------------


@pytest.mark.parametrize("overflow", [REJECT, Overflow.REJECT_PUBLISH_DLX])
def test_a_classic_queue_counts_what_it_refuses(overflow: Overflow) -> None:
    bench = Bench("classic", max_length=1, overflow=overflow, dead_letter_exchange="dlx")
    bench.publish("a", "b", "c")
    bench.publish("d")
    dead_lettered = {"dead_lettered": 3} if overflow is Overflow.REJECT_PUBLISH_DLX else {}
    assert bench.counters == {"published": 1, "rejected": 3, **dead_lettered}


def test_a_classic_queue_is_full_at_its_limit() -> None:
    """One message less is not full; messages that consumers hold do not count."""
    bench = Bench("classic", max_length=2, overflow=REJECT)
    bench.publish("a")
    assert bench.queue.figures().limits == LengthLimits(2, None, "reject-publish")
    assert not bench.queue.figures().full
    bench.publish("b")
    assert bench.queue.figures().full
    bench.consumer(1)
    assert not bench.queue.figures().full


# --- quorum ---------------------------------------------------------------------------------------


def test_a_quorum_queue_counts_what_it_refuses_and_is_full_until_there_is_room_again() -> None:
    """The queue accepts publishes again at 80 % of its limit, not before."""
    bench = Bench(max_length=5, overflow=REJECT)
    bench.publish("a", "b", "c", "d")
    assert not bench.queue.figures().full
    bench.publish("e", "f")
    bench.publish("g")
    assert bench.counters == {"published": 5, "rejected": 2}
    assert bench.queue.figures().full
    consumer = bench.consumer(1)
    bench.settle(consumer, commands.DeliveryOutcome.ACCEPT)
    assert bench.queue.ready == 4
    assert not bench.queue.figures().full


def test_a_quorum_queue_counts_what_dies() -> None:
    bench = Bench(delivery_limit=1)
    bench.publish("a", ttl_ms=10)
    bench.wait(20)
    bench.publish("b", "c")
    consumer = bench.consumer(1)
    bench.settle(consumer, commands.DeliveryOutcome.DISCARD)
    for _ in range(2):
        bench.credit(consumer, 1)
        bench.settle(consumer, commands.DeliveryOutcome.REQUEUE_FAILED)
    assert bench.counters == {"published": 3, "expired": 1, "discarded": 1, "delivery_limit": 1}


def test_replaying_the_log_counts_nothing() -> None:
    bench = Bench(max_length=1)
    bench.queue.follow()
    bench.publish("a", "b")
    bench.configure(max_length=1, overflow=REJECT)
    bench.publish("c")
    bench.queue.lead()
    assert bench.counters == {}
    bench.publish("d")
    assert bench.counters == {"rejected": 1}


# --- stream ---------------------------------------------------------------------------------------


def test_a_stream_counts_what_it_takes_and_what_retention_drops() -> None:
    bench = StreamBench(QueueSettings(segment_bytes=1, max_length_bytes=300))
    for _ in range(8):
        bench.publish(2)
    dropped = bench.queue.log.first_offset
    assert dropped > 0
    assert bench.counters == {"published": 16, "dropped": dropped}


class Looked(dict[commands.ConsumerRef, ConsumerStatus]):
    """Counts how often all consumers are looked at."""

    def __init__(self, parts: Iterator[ConsumerStatus]) -> None:
        super().__init__((part.ref, part) for part in parts)
        self.times = 0

    def values(self) -> ValuesView[ConsumerStatus]:  # type: ignore[override]
        self.times += 1
        return super().values()


def test_all_consumers_are_looked_at_once_however_many_ask() -> None:
    """A status of 6 000 consumers of one queue took seconds when each consumer looked at all others."""
    reply_to = new_reply_to("1.1")
    parts = Looked(
        ConsumerStatus(reply_to.consumer(), 1, priority=number % 3, held=number) for number in range(9)
    )
    queue_status = QueueStatus(0, 1, parts)
    asked = list(parts)
    ahead = [queue_status.ahead_of(ref) for ref in asked]
    assert [len(queue_status.holders) for _ in asked] == [8] * 9
    assert parts.times == 1
    first = parts[asked[2]]
    assert ahead == [first, first, None] * 3
    assert [part.held for part in queue_status.holders] == [8, 7, 6, 5, 4, 3, 2, 1]


def test_nobody_is_ahead_without_credit_or_away_or_where_one_is_active() -> None:
    low, high = (new_reply_to("1.1").consumer() for _ in range(2))
    parts = {low: ConsumerStatus(low, 5, priority=1), high: ConsumerStatus(high, 0, priority=9)}
    assert QueueStatus(0, 1, parts).ahead_of(low) is None
    parts[high] = ConsumerStatus(high, 1, priority=9)
    assert QueueStatus(0, 1, parts).ahead_of(low) == parts[high]
    assert QueueStatus(0, 1, parts, single=True).ahead_of(low) is None
    assert QueueStatus(0, 1, parts).ahead_of(high) is None
    away = parts | {high: ConsumerStatus(high, 1, priority=9, away=True)}
    assert QueueStatus(0, 1, away).ahead_of(low) is None
    assert QueueStatus(0, 1, parts).ahead_of(new_reply_to("2.1").consumer()) is None


NOW_MS = 1000
HERE = new_reply_to("1.1")
MESSAGE = (make_head(None, None, "", "q"), b"a")
SINGLE = QueueSettings(single_active_consumer=True)
MAKERS: dict[str, Callable[[], Any]] = {
    "classic": lambda: ClassicQueue("q", durable=True, auto_delete=True, now_ms=NOW_MS),
    "classic, single active": lambda: ClassicQueue("q", durable=True, settings=SINGLE, now_ms=NOW_MS),
    "quorum": lambda: QuorumQueue("q", now_ms=NOW_MS),
    "quorum, single active": lambda: QuorumQueue("q", settings=SINGLE, now_ms=NOW_MS),
    "stream": lambda: StreamQueue("q", StreamLog(MemoryShelf())),
}


def broken(*given: object, **options: object) -> None:
    raise RuntimeError("out of order")


@pytest.mark.parametrize(
    ("kind", "reader", "method"),
    [("classic", Serving, "serve"), ("quorum", Messages, "read"), ("stream", StreamConsumer, "take")],
)
def test_who_was_served_hears_that_the_queue_is_gone_and_who_publishes_that_it_failed(
    kind: str, reader: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = MAKERS[kind]()
    publisher = HERE.publisher()
    queue.apply(commands.Publish(publisher, [0, 1], [MESSAGE, MESSAGE], False), NOW_MS)
    if isinstance(queue, StreamQueue):
        queue.write(NOW_MS)
        queue.log.commit(queue.log.write())
        queue.commit(NOW_MS)
    monkeypatch.setattr(reader, method, broken)
    consumers = [HERE.consumer(), HERE.consumer()]
    for consumer in consumers:
        queue.apply(commands.Subscribe(consumer, False, position=OffsetWord.FIRST), NOW_MS)
    at_work: list[commands.Command] = [commands.Credit(consumer, 0, 1, False, 0) for consumer in consumers]
    at_work.append(commands.Publish(publisher, [7], [MESSAGE], False))
    with pytest.raises(RuntimeError):
        queue.apply(at_work[0], NOW_MS)

    queue.break_down(at_work)

    effects = queue.take_effects()[HERE.id]
    assert [each.ids for each in effects if isinstance(each, commands.Unconfirmed) and each.failed] == [[7]]
    assert [each.ref for each in effects if isinstance(each, commands.QueueDeleted)] == consumers


FEW, MANY = 50, 2_000


def stepping(queue: Any) -> Callable[[commands.Command], None]:
    """Return a function that gives the queue a command and ends the wake."""

    def apply(command: commands.Command) -> None:
        queue.apply(command, NOW_MS)
        queue.deadline()
        queue.take_effects()

    return apply


@pytest.mark.parametrize("leaves_by", ["cancel", "detach"])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_queue_takes_one_more_and_lets_one_go_in_steps_of_which_there_is_an_end(
    kind: str, leaves_by: str
) -> None:
    """The first consumer (the active one) and one in the middle subscribe with credit and leave."""
    apply = stepping(MAKERS[kind]())
    refs: list[commands.ConsumerRef] = []

    def join() -> None:
        ref = new_reply_to("somebody").consumer()
        refs.append(ref)
        apply(commands.Subscribe(ref, False))
        apply(commands.Credit(ref, 0, 10, False, 0))

    def leave(at: int) -> Callable[[], None]:
        ref = refs.pop(at)
        if leaves_by == "cancel":
            return lambda: apply(commands.Cancel(ref))
        return lambda: apply(commands.Unsubscribe(ref, [], [], 0, commands.DeliveryOutcome.REQUEUE))

    steps: dict[int, list[int]] = {}
    for count in (FEW, MANY):
        while len(refs) < count:
            join()
        steps[count] = [steps_of(join), steps_of(leave(0)), steps_of(leave(len(refs) // 2))]
    for few, many in zip(steps[FEW], steps[MANY], strict=True):
        assert many < 2 * few, steps


def test_a_channel_takes_one_more_and_lets_one_go_in_steps_of_which_there_is_an_end() -> None:
    """The steps are basic.consume and basic.cancel of AMQP 0-9-1, with the queue's answers."""
    channel = Harness(strict=False).channel()
    channel.call(methods.QueueDeclare("q", durable=True))
    tags = 0

    def consume() -> None:
        nonlocal tags
        tags += 1
        assert type(channel.call(methods.BasicConsume("q", str(tags)))) is methods.BasicConsumeOk

    def cancel(tag: int) -> Any:
        assert type(channel.call(methods.BasicCancel(str(tag)))) is methods.BasicCancelOk

    steps: dict[int, list[int]] = {}
    for count in (FEW, MANY):
        while tags < count:
            consume()
        steps[count] = [steps_of(consume), steps_of(lambda: cancel(tags // 2))]
    for few, many in zip(steps[FEW], steps[MANY], strict=True):
        assert many < 2 * few, steps


HEAD = b"\x91" + bytes(9)


class Wire:
    """A queue of any kind, and one consumer's end of the credit."""

    def __init__(self, kind: str, **settings: Any) -> None:
        self.bench: Any = StreamBench() if kind == "stream" else Bench(kind, **settings)
        self.had = 0

    def consumer(self) -> commands.ConsumerRef:
        ref: commands.ConsumerRef = self.bench.reply_to.consumer()
        self.bench.do(commands.Subscribe(ref, False))
        return ref

    def publish(self, *sizes: int) -> list[Any]:
        if isinstance(self.bench, Bench):
            return self.bench.publish_all([(HEAD, b"x" * size) for size in sizes])
        return list(self.bench.publish(len(sizes), [_ten(size) for size in sizes]))

    def ask(self, ref: commands.ConsumerRef, credit: int, room: int) -> list[Any]:
        return list(self.bench.do(commands.Credit(ref, self.had, credit, False, self.had, room)))

    def got(self, effects: list[Any]) -> tuple[int, bool]:
        """Return the deliveries, and whether the last one reported that the room is used up."""
        delivers = only(effects, commands.Deliver)
        count = sum(len(each.keys) for each in delivers)
        self.had += count
        assert not any(each.spent for each in delivers[:-1])
        return count, bool(delivers) and delivers[-1].spent


def _ten(size: int) -> Message:
    return text(0)[0], b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + b"x" * size


def reply_of(effects: list[Any]) -> commands.CreditReply:
    (reply,) = only(effects, commands.CreditReply)
    return reply


@pytest.fixture(params=["classic", "quorum", "stream"])
def wire(request: pytest.FixtureRequest) -> Wire:
    return Wire(request.param)


def test_a_batch_ends_with_the_message_that_uses_up_the_room(wire: Wire) -> None:
    """With ten messages of 300 kB and room for 1 MB, four are sent, and no more until the next request."""
    ref = wire.consumer()
    for _ in range(10):
        wire.publish(300_000)
    effects = wire.ask(ref, 256, 1_000_000)
    assert wire.got(effects) == (4, True)
    assert reply_of(effects).credit == 0
    assert wire.got(wire.publish(10)) == (0, False)
    assert wire.got(wire.ask(ref, 256, 1_000_000)) == (4, True)
    assert wire.got(wire.ask(ref, 256, 1_000_000)) == (3, False)
    assert reply_of(wire.ask(ref, 256, 1_000_000)).credit == 256


def test_a_message_larger_than_the_room_is_handed_out(wire: Wire) -> None:
    """Such messages are sent one at a time for any room, also after smaller ones."""
    ref = wire.consumer()
    for size in (5_000_000, 5_000_000, 10, 5_000_000):
        wire.publish(size)
    assert wire.got(wire.ask(ref, 256, 1)) == (1, True)
    assert wire.got(wire.ask(ref, 256, 1000)) == (1, True)
    assert wire.got(wire.ask(ref, 256, 1000)) == (2, True)


@BOTH
def test_another_consumer_gets_what_one_has_no_room_for(kind: str) -> None:
    """Credit without room does not hold messages back from others."""
    wire = Wire(kind)
    first, second = wire.consumer(), wire.consumer()
    wire.ask(first, 256, 1_000)
    wire.publish(2_000)
    wire.bench.do(commands.Credit(second, 0, 256, False, 0, 1_000_000))
    effects = wire.publish(2_000, 2_000)
    delivers = only(effects, commands.Deliver)
    assert {each.consumer for each in delivers} == {second}
    assert sum(len(each.keys) for each in delivers) == 2


@BOTH
def test_messages_that_came_back_use_up_room_like_others(kind: str) -> None:
    """They keep their order, and a batch continues from them to messages never delivered before."""
    wire = Wire(kind)
    ref = wire.consumer()
    wire.publish(*[600] * 6)
    effects = wire.ask(ref, 4, commands.NO_BOUND)
    keys = [key for each in only(effects, commands.Deliver) for key in each.keys]
    assert wire.got(effects) == (4, False)
    wire.bench.do(commands.Settle(ref, keys[:3], commands.DeliveryOutcome.REQUEUE))
    assert wire.got(wire.ask(ref, 256, 1_000)) == (2, True)
    assert wire.got(wire.ask(ref, 256, 1_500)) == (3, True)


def test_priorities_and_expiring_messages_keep_to_the_room() -> None:
    wire = Wire("classic", max_priority=2, message_ttl_ms=60_000)
    ref = wire.consumer()
    wire.publish(*[600] * 6)
    assert wire.got(wire.ask(ref, 256, 1_000)) == (2, True)
    assert wire.got(wire.ask(ref, 256, 1_201)) == (3, True)
    assert wire.bench.queue.ready == 1
