"""The stream's state machine: positions, credit, confirms, retention, one rule a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amqp10broker.message.amqp10 import decode_head, make_head
from amqp10broker.message.convert import data_section
from amqp10broker.message.filters import stream_filters
from amqp10broker.message.filters.filter_set import Filters, from_amqp10
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.types import Described, Symbol
from amqp10broker.queues.commands import (
    DELETE,
    TICK,
    Answer,
    AttachPublisher,
    Cancel,
    Credit,
    Delete,
    Deliver,
    DeliveryOutcome,
    Inspect,
    Publish,
    Purge,
    QueueDeleted,
    Refusal,
    Settle,
    Subscribe,
    Unconfirmed,
    Unsubscribe,
)
from amqp10broker.queues.settings import QueueSettings
from amqp10broker.queues.stream import queue as stream_module
from amqp10broker.queues.stream.queue import FILTER_WORK
from tests.support.disks import SimDisk
from tests.support.inventories import ShelfAlone
from tests.support.streams import NOW_MS, Bench, confirmed_of, number_of, offset_of


def sql(expression: str) -> Filters:
    described = Described(Symbol("amqp:sql-filter"), expression)
    return from_amqp10({Symbol("sql-filter"): described}).filters


# --- publishing -------------------------------------------------------------------------------------


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_publish_is_confirmed_when_its_chunk_is_committed_and_read_then_only(bench: Bench) -> None:
    bench.slow = True
    reader = bench.reader()
    bench.do(Credit(reader.ref, 0, 10, False, 0))
    assert bench.publish(3) == []
    assert bench.queue.ready == 0
    bench.commit()
    effects = bench.do()
    assert confirmed_of(effects) == [0, 1, 2]
    assert [offset for offset, _ in reader.listen(effects)] == [0, 1, 2]


def test_a_large_publish_is_cut_into_chunks_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    monkeypatch.setattr(stream_module, "CHUNK_MESSAGES_MAX", 4)
    bench.publish(10)
    chunks, _ = bench.log.read(bench.log.find(0))
    assert [(chunk.first, chunk.end) for chunk in chunks] == [(0, 4), (4, 8), (8, 10)]
    monkeypatch.setattr(stream_module, "CHUNK_BYTES_MAX", 12)
    bench.publish(5)
    chunks, _ = bench.log.read(bench.log.find(10))
    assert [(chunk.first, chunk.end) for chunk in chunks] == [(10, 12), (12, 14), (14, 15)]


def test_the_chunks_of_a_burst_grow_so_that_the_last_is_not_the_whole(bench: Bench) -> None:
    """The sizes are those seen in RabbitMQ 4.3.6 for one burst."""
    bench.publish(100)
    assert bench.log.last_chunk() == 96
    bench.publish(2000)
    chunks, _ = bench.log.read(bench.log.find(100))
    assert [chunk.end - chunk.first for chunk in chunks] == [32, 64, 128, 256, 512, 512, 496]
    bench.publish(3)
    assert bench.log.last_chunk() == 2100


def test_a_message_of_amqp_0_9_1_is_kept_in_the_encoding_of_amqp_1_0() -> None:
    from amqp10broker.message import amqp091

    bench = Bench()
    head = amqp091.make_head("", "s", b"\x00\x00")
    bench.do(Publish(bench.publisher, [0], [(head, b"body")], False))
    reader = bench.reader()
    reader.read(1)
    [(_, (delivered_head, content))] = reader.taken
    assert delivered_head[0] == 0
    assert content == data_section(b"body")


# --- where a consumer begins --------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE", "consume_from_last", "consume_from_relative_time_offset", "consume_offset"
)
@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (stream_filters.OffsetWord.FIRST, 0),
        (stream_filters.Offset(0), 0),
        (stream_filters.Offset(4), 4),
        (stream_filters.Offset(5), 5),
        (stream_filters.OffsetWord.LAST, 6),
        (stream_filters.AtTime(0), 0),
        (stream_filters.AtTime(NOW_MS), 0),
        (stream_filters.AtTime(NOW_MS + 1), 3),
        (stream_filters.AtTime(NOW_MS + 1000), 3),
        (stream_filters.AtTime(NOW_MS + 1001), 6),
        (stream_filters.Interval(2000), 0),
        (stream_filters.Interval(1000), 3),
        (stream_filters.Interval(0), 6),
    ],
)
def test_a_consumer_begins_where_it_asks(
    position: stream_filters.OffsetSpec, expected: int, bench: Bench
) -> None:
    for _ in range(3):
        bench.publish(3)
        bench.now_ms += 1000
    bench.now_ms -= 1000
    reader = bench.reader(position)
    assert reader.read(100) == list(range(expected, 9))


# --- delivering -------------------------------------------------------------------------------------


def test_a_delivery_says_which_offset_it_has(bench: Bench) -> None:
    bench.publish(300)
    reader = bench.reader()
    reader.read(300)
    assert all(offset_of(message) == offset == number_of(message) for offset, message in reader.taken)


@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "sync_get_settled_stream", "sync_get_unsettled_2_stream", "sync_get_unsettled_stream"
)
@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "async_notify_settled_stream",
    "async_notify_unsettled_stream",
    "receive_many_made_available_over_time_stream",
    "receive_many_auto_flow_stream",
)
def test_no_more_is_delivered_than_credit_allows(bench: Bench) -> None:
    bench.publish(10)
    reader = bench.reader()
    assert reader.read(3) == [0, 1, 2]
    assert reader.listen(bench.publish(1)) == []
    assert reader.read(2) == [3, 4]
    assert reader.replies[-1].credit == 0


@pytest.mark.rabbitmq("amqp_client_SUITE", "available_messages_stream")
def test_available_is_what_is_committed_and_not_yet_consumed(bench: Bench) -> None:
    bench.publish(10)
    reader = bench.reader()
    reader.read(4)
    assert reader.replies[-1].available == 6
    reader.read(100)
    assert reader.replies[-1].available == 0


def test_a_reader_at_the_end_finds_its_chunk_among_many_small_ones(bench: Bench) -> None:
    readers = [bench.reader(stream_filters.OffsetWord.NEXT) for _ in range(3)]
    for reader in readers:
        reader.read(1000)
    for number in range(600):
        effects = bench.publish(1)
        for reader in readers:
            assert [offset for offset, _ in reader.listen(effects)] == [number]
    assert len(bench.queue._recent) <= 256
    late = bench.reader(stream_filters.Offset(450))
    assert late.read(1000) == list(range(450, 600))


def test_consumers_take_turns_within_a_wake(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    monkeypatch.setattr(stream_module, "_TURN_MAX", 4)
    bench.publish(8)
    one, two = bench.reader(), bench.reader()
    effects = bench.do(Credit(one.ref, 0, 0, False, 0), Credit(two.ref, 0, 8, False, 0))
    bench.publish(0, [])
    effects = bench.do(Credit(one.ref, 0, 8, False, 0))
    assert [len(effect.keys) for effect in effects if isinstance(effect, Deliver)] == [4, 4]
    bench.publish(8)
    bench.do(Credit(one.ref, 8, 0, False, 8), Credit(two.ref, 8, 0, False, 8))
    bench.queue.apply(Credit(one.ref, 8, 8, False, 8), NOW_MS)
    order = [
        effect.consumer == one.ref
        for effect in bench.do(Credit(two.ref, 8, 8, False, 8))
        if isinstance(effect, Deliver)
    ]
    assert sorted(order) == [False, False, True, True]


def test_a_drain_is_answered_after_the_last_wake_that_it_takes(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    monkeypatch.setattr(stream_module, "WORK_MAX", 10)
    bench.publish(100)
    reader = bench.reader(filters=sql("FALSE"))
    assert reader.read(5, drain=True) == []
    assert len(reader.replies) == 1
    assert reader.replies[-1].delivery_count == 5
    assert reader.replies[-1].available == 0


# --- an end -----------------------------------------------------------------------------------------


def test_a_drain_does_not_look_beyond_the_end(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    """A filter that matches nothing costs the messages below the end, not the whole stream."""
    monkeypatch.setattr(stream_module, "WORK_MAX", FILTER_WORK * 10)
    bench.publish(1000)
    before = bench.wakes
    reader = bench.reader(stream_filters.Offset(20), replace(sql("FALSE"), end=40))
    assert reader.read(5, drain=True) == []
    assert reader.replies[-1].delivery_count == 5
    assert bench.wakes - before < 8


@pytest.mark.parametrize("end", [0, 3, 4])
def test_a_consumer_that_begins_at_or_behind_its_end_gets_nothing(end: int, bench: Bench) -> None:
    bench.publish(9)
    reader = bench.reader(stream_filters.Offset(4), Filters(end=end))
    assert reader.read(100) == []
    assert reader.read(100, drain=True) == []
    assert reader.replies[-1].available == 0


# --- filters ----------------------------------------------------------------------------------------


def with_value(value: str | None, number: int) -> tuple[bytes, bytes]:
    annotations = {} if value is None else {Symbol("x-stream-filter-value"): value}
    return make_head(None, annotations, "", "s"), data_section(b"%d" % number)


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "filtering")
def test_chunks_without_a_wanted_filter_value_are_passed_over(bench: Bench) -> None:
    bench.publish(2, [with_value("eu", 0), with_value("eu", 1)])
    bench.publish(2, [with_value("us", 2), with_value("us", 3)])
    bench.publish(2, [with_value(None, 4), with_value("eu", 5)])
    wants_eu = bench.reader(filters=Filters(bloom=stream_filters.BloomFilter(("eu",))))
    assert wants_eu.read(100) == [0, 1, 4, 5]
    assert wants_eu.replies[-1].available == 0


def test_chunks_without_filter_values_come_if_the_consumer_says_so(bench: Bench) -> None:
    bench.publish(1, [with_value(None, 0)])
    bench.publish(1, [with_value("us", 1)])
    bench.publish(1, [with_value("eu", 2)])
    assert bench.reader(filters=Filters(bloom=stream_filters.BloomFilter(("eu",), True))).read(100) == [0, 2]
    assert bench.reader(filters=Filters(bloom=stream_filters.BloomFilter(("eu",)))).read(100) == [2]


def test_the_size_of_a_chunks_filter_is_the_queues_setting() -> None:
    bench = Bench(QueueSettings(filter_bytes=33))
    bench.publish(1, [with_value("eu", 0)])
    bench.publish(1, [with_value(None, 0)])
    chunks, _ = bench.log.read(bench.log.find(0))
    assert [len(chunk.filter) for chunk in chunks] == [33, 0]


# --- giving back, settling, leaving -----------------------------------------------------------------


def test_giving_back_answers_a_drain_that_was_not_done(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    monkeypatch.setattr(stream_module, "WORK_MAX", 10)
    bench.publish(100)
    reader = bench.reader(filters=sql("FALSE"))
    bench.queue.apply(Credit(reader.ref, 0, 5, True, 0), NOW_MS)
    reader.listen(bench.queue.take_effects().get(bench.reply_to.id, []))
    assert reader.replies == []
    reader.listen(reader.give_back(0))
    assert [(reply.drain, reply.epoch) for reply in reader.replies] == [(True, 0)]


def test_settling_takes_nothing_away_and_gives_no_credit(bench: Bench) -> None:
    bench.publish(4)
    reader = bench.reader()
    assert reader.read(2) == [0, 1]
    assert bench.queue.unsettled == 2
    for delivery_outcome, key in ((DeliveryOutcome.REQUEUE, 0), (DeliveryOutcome.DISCARD, 1)):
        assert bench.do(Settle(reader.ref, [key], delivery_outcome)) == []
    assert bench.queue.unsettled == 0
    assert bench.queue.ready == 4
    assert reader.read(10) == [2, 3]


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "basic_cancel")
@pytest.mark.parametrize("leave", [Cancel, lambda ref: Unsubscribe(ref, [], [], 0, DeliveryOutcome.REQUEUE)])
def test_a_consumer_that_left_gets_nothing_more(leave: type[Cancel], bench: Bench) -> None:
    reader, other = bench.reader(), bench.reader()
    reader.read(10)
    other.read(10)
    bench.do(leave(reader.ref))
    assert bench.queue.consumers == 1
    effects = bench.publish(3)
    assert [effect.consumer for effect in effects if isinstance(effect, Deliver)] == [other.ref]
    stranger = bench.reply_to.consumer()
    assert bench.do(Settle(reader.ref, [1], DeliveryOutcome.ACCEPT), leave(stranger)) == []


# --- retention --------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "max_length_bytes")
def test_the_oldest_segments_go_when_there_are_too_many_bytes() -> None:
    bench = Bench(QueueSettings(segment_bytes=100, max_length_bytes=1000))
    for _ in range(100):
        bench.publish(1)
    assert bench.log.size_bytes <= 1000
    assert bench.queue.ready == 100 - bench.log.first_offset < 20


def test_a_segment_that_is_not_full_stays_however_large_and_old_it_is() -> None:
    bench = Bench(QueueSettings(max_length_bytes=0, max_age_ms=1))
    bench.publish(50)
    bench.now_ms += 1_000_000
    bench.queue.apply(TICK, bench.now_ms)
    assert bench.queue.ready == 50
    assert bench.queue.deadline() is None


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "max_age")
def test_segments_go_when_they_are_too_old() -> None:
    bench = Bench(QueueSettings(segment_bytes=1, max_age_ms=5000))
    for _ in range(3):
        bench.publish(1)
        bench.now_ms += 1000
    assert bench.queue.deadline() == NOW_MS + 5001
    bench.now_ms = NOW_MS + 5000
    bench.queue.apply(TICK, bench.now_ms)
    assert bench.log.first_offset == 0
    bench.now_ms += 1
    bench.queue.apply(TICK, bench.now_ms)
    assert bench.log.first_offset == 1
    assert bench.queue.deadline() == NOW_MS + 6001


# --- questions and the end --------------------------------------------------------------------------


@pytest.mark.rabbitmq("management_SUITE", "purge_stream")
def test_a_stream_says_how_many_messages_it_has_and_cannot_be_purged(bench: Bench) -> None:
    bench.publish(3)
    bench.reader()
    request = bench.reply_to.request()
    assert bench.do(Inspect(request)) == [Answer(request, 3, 1, next_offset=3)]
    assert bench.do(Purge(request)) == [Answer(request, 3, 1, Refusal.NOT_SUPPORTED, next_offset=3)]
    assert bench.queue.ready == 3


@pytest.mark.parametrize(
    ("consumers", "messages", "delete", "refusal"),
    [
        (1, 0, {"if_unused": True}, Refusal.IN_USE),
        (0, 1, {"if_empty": True}, Refusal.NOT_EMPTY),
        (1, 1, {}, None),
    ],
)
def test_a_stream_is_deleted_unless_a_condition_is_not_met(
    consumers: int, messages: int, delete: dict[str, bool], refusal: Refusal | None, bench: Bench
) -> None:
    bench.publish(messages)
    for _ in range(consumers):
        bench.reader()
    request = bench.reply_to.request()
    [answer, *_] = bench.do(Delete(request, **delete))
    assert answer == Answer(request, messages, consumers, refusal, next_offset=messages)
    assert bench.queue.deleted is (refusal is None)


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "receive_basic_cancel_on_queue_deletion")
def test_everybody_hears_of_the_end_and_nothing_is_accepted_any_more(bench: Bench) -> None:
    bench.slow = True
    reader = bench.reader()
    bench.do(AttachPublisher(bench.publisher))
    waiting = bench.publishing(2)
    bench.do(waiting)
    effects = bench.do(DELETE)
    assert [type(effect) for effect in effects] == [Unconfirmed, QueueDeleted, QueueDeleted]
    assert QueueDeleted(reader.ref, "s") in effects
    assert QueueDeleted(bench.publisher, "s") in effects
    request = bench.reply_to.request()
    late = bench.publishing(1)
    ref = bench.reply_to.consumer()
    links = (late, Subscribe(ref, False), AttachPublisher(bench.publisher))
    for each in (*links, Inspect(request), Purge(request), Delete(request)):
        bench.queue.apply(each, NOW_MS)
    effects = bench.queue.take_effects()[bench.reply_to.id]
    assert [type(effect) for effect in effects] == [Unconfirmed, QueueDeleted, QueueDeleted] + [Answer] * 3
    assert all(effect.refused is Refusal.GONE for effect in effects if isinstance(effect, Answer))


# --- when messages were enqueued --------------------------------------------------------------------


def time_of(message: Message) -> int | None:
    found: int | None = decode_head(message[0])[1].get(Symbol("x-opt-enqueued-time"))
    return found


def chunks_at(bench: Bench, *times_ms: int) -> None:
    for time_ms in times_ms:
        bench.now_ms = time_ms
        bench.publish(2)


def test_the_time_is_the_same_at_the_end_and_given_back_and_after_a_restart() -> None:
    """Waiting readers get chunks from memory, others read them from the log: the bytes are the same."""
    disk = SimDisk()
    disk.make_folder("/streams")
    bench = Bench(shelf=ShelfAlone(disk, "/streams", 1))
    waiting = bench.reader(enqueued_time=True)
    waiting.read(100)
    for time_ms in (5000, 7000, 6000):  # the clock goes back, and the log's time does not
        bench.now_ms = time_ms
        waiting.listen(bench.publish(2))
    assert [time_of(each) for _, each in waiting.taken] == [5000, 5000, 7000, 7000, 7000, 7000]
    wanted = list(waiting.taken)
    waiting.give_back(3)
    waiting.read(100)
    assert waiting.taken == wanted
    bench.log.shelf.close()
    restarted = Bench(shelf=ShelfAlone(disk, "/streams", 1))
    restarted.now_ms = 60_000
    for position in (0, 3):
        late = restarted.reader(stream_filters.Offset(position), enqueued_time=True)
        late.read(100)
        assert late.taken == wanted[position:]


def test_a_position_by_time_agrees_with_the_times_that_are_told(bench: Bench) -> None:
    chunks_at(bench, 5000, 6000, 9000)
    everything = bench.reader(enqueued_time=True)
    everything.read(100)
    for time_ms in (4000, 5000, 5001, 6000, 8999, 9000, 9001):
        reader = bench.reader(stream_filters.AtTime(time_ms), enqueued_time=True)
        reader.read(100)
        assert reader.taken == [each for each in everything.taken if (time_of(each[1]) or 0) >= time_ms]


def test_a_fault_refuses_what_nobody_has_heard_of_before_it_ends_the_links(bench: Bench) -> None:
    bench.slow = True
    bench.publish(1)
    reader = bench.reader()
    bench.queue.break_down([bench.publishing(1)])
    effects = bench.queue.take_effects()[bench.reply_to.id]
    assert [type(effect) for effect in effects] == [Unconfirmed, Unconfirmed, QueueDeleted]
    assert all(effect.failed for effect in effects if isinstance(effect, Unconfirmed))
    assert effects[-1] == QueueDeleted(reader.ref, "s")
