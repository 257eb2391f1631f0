"""The stream source against the real broker process: readers as plain objects, no JVM."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from amqp10broker.client.management import Management
from amqp10broker.client.message import Message, Properties, data_message
from amqp10broker.spark.errors import (
    BrokerRefused,
    BrokerUnreachable,
    DataLost,
    FilterRefused,
    OptionError,
    QueueUnusable,
    ReadStalled,
    SparkSourceError,
)
from amqp10broker.spark.options import StreamOptions, parse_source
from amqp10broker.spark.stream import bounds as stream_bounds
from amqp10broker.spark.stream import range as stream_range
from amqp10broker.spark.stream.bounds import (
    ManagedEnds,
    ProbedEnds,
    StreamBounds,
    attach,
    ends_of,
    ends_there,
    offset_of,
)
from amqp10broker.spark.stream.range import StreamRange, read_range
from amqp10broker.spark.stream.source import PushdownReader, StreamReader, StreamStreamReader, batch_reader
from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.spark_streams import body, client_of, declare, fill, offsets, publish, rows, url_of

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

COUNT = 1000
Streaming = Callable[..., StreamStreamReader]
SMALL_SEGMENTS = {"stream_max_segment_size_bytes": 20_000, "max_length_bytes": 50_000}


@pytest.fixture
def stream(broker: BrokerProcess, queue: str) -> str:
    """A stream with the bodies 0 .. 999."""
    declare(broker, queue)
    fill(broker, queue, COUNT)
    return queue


def options(broker: BrokerProcess, stream: str, *, streaming: bool = False, **more: Any) -> StreamOptions:
    given = {"url": url_of(broker), "stream": stream, **{key: str(value) for key, value in more.items()}}
    parsed = parse_source(given, streaming=streaming)
    assert isinstance(parsed, StreamOptions)
    return parsed


def batch(broker: BrokerProcess, stream: str, **more: Any) -> list[Any]:
    reader = batch_reader(options(broker, stream, **more))
    return rows(reader, reader.partitions())


@pytest.fixture
def streaming() -> Iterator[Streaming]:
    """Makes readers of streaming queries, and stops them."""
    made: list[StreamStreamReader] = []

    def make(broker: BrokerProcess, stream: str, **more: Any) -> StreamStreamReader:
        made.append(StreamStreamReader(options(broker, stream, streaming=True, **more)))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


# --- batch ------------------------------------------------------------------------------------------


def test_every_message_once_and_in_order(broker: BrokerProcess, stream: str) -> None:
    found = batch(broker, stream, minPartitions=3)
    assert offsets(found) == list(range(COUNT))
    assert [row["body"] for row in found] == [body(number) for number in range(COUNT)]
    assert {row["stream"] for row in found} == {stream}
    assert found[0]["applicationProperties"] is None


def test_the_row_of_a_message(broker: BrokerProcess, queue: str) -> None:
    declare(broker, queue)
    message = Message(
        b"payload",
        Properties(message_id="id-1", subject="order", creation_time=1_700_000_000_123),
        {"region": "EU", "amount": 12, "paid": True, "note": None},
    )
    before = time.time_ns() // 1_000_000
    publish(broker, queue, [message])
    after = time.time_ns() // 1_000_000
    (row,) = batch(broker, queue)
    enqueued = row["enqueuedTime"]
    assert before - 1000 <= round(enqueued.timestamp() * 1000) <= after + 1000
    assert row == {
        "stream": queue,
        "offset": 0,
        "enqueuedTime": enqueued,
        "messageId": "id-1",
        "subject": "order",
        "body": b"payload",
        "applicationProperties": [("region", "EU"), ("amount", "12"), ("paid", "true"), ("note", None)],
    }


@pytest.mark.parametrize("pieces", [1, 2, 7, 1000])
def test_min_partitions(broker: BrokerProcess, stream: str, pieces: int) -> None:
    reader = StreamReader(options(broker, stream, minPartitions=pieces))
    ranges = reader.partitions()
    assert len(ranges) == pieces
    assert ranges[0].start == 0
    assert ranges[-1].end == COUNT
    assert all(one.end == other.start for one, other in itertools.pairwise(ranges))
    if pieces <= 7:
        assert offsets(rows(reader, ranges)) == list(range(COUNT))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", range(COUNT)),
        ("latest", "latest", range(0)),
        ("10", "13", range(10, 13)),
        ("999", "latest", range(999, 1000)),
        ("5", "5", range(0)),
    ],
)
def test_starting_and_ending_offsets(
    broker: BrokerProcess, stream: str, start: str, end: str, expected: range
) -> None:
    assert offsets(batch(broker, stream, startingOffsets=start, endingOffsets=end)) == list(expected)


def test_an_end_beyond_the_stream(broker: BrokerProcess, stream: str) -> None:
    with pytest.raises(OptionError, match="endingOffsets is 1001, and stream .* ends at 1000"):
        batch(broker, stream, endingOffsets=1001)


def test_a_start_beyond_the_stream(streaming: Streaming, broker: BrokerProcess, stream: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets is 1001, and stream .* ends at 1000"):
        batch(broker, stream, startingOffsets=1001)
    with pytest.raises(OptionError, match="startingOffsets is 1001, and stream .* ends at 1000"):
        streaming(broker, stream, startingOffsets=1001).initialOffset()


def test_an_empty_stream(broker: BrokerProcess, queue: str) -> None:
    declare(broker, queue)
    assert batch(broker, queue) == []
    # Spark reads once all the same, with a partition of its own.
    assert list(StreamReader(options(broker, queue)).read(InputPartition(None))) == []


def test_a_starting_time(broker: BrokerProcess, queue: str) -> None:
    """From the first chunk that is not older, as exact as chunks are."""
    declare(broker, queue)
    fill(broker, queue, 10)
    between = round(max(row["enqueuedTime"].timestamp() for row in batch(broker, queue)) * 1000) + 1
    time.sleep(0.002)  # the times of the two chunks must differ, and the broker has no other clock
    fill(broker, queue, 10, first=10)
    assert offsets(batch(broker, queue, startingTimestamp=between)) == list(range(10, 20))
    assert batch(broker, queue, startingTimestamp=between + 1_000_000) == []
    assert len(batch(broker, queue, startingTimestamp=0)) == 20


@pytest.mark.parametrize("size", [1, 10, 64, 5000])
def test_arrow_batches(broker: BrokerProcess, stream: str, size: int) -> None:
    reader = StreamReader(options(broker, stream, arrowBatchSize=size, linkCredit=100, minPartitions=1))
    sizes = [len(each) for each in reader.read(reader.partitions()[0])]
    assert sum(sizes) == COUNT
    assert max(sizes) <= size
    assert all(each == size for each in sizes[:-1])


@pytest.mark.parametrize("credit", [1, 3, 100_000])
def test_link_credit(broker: BrokerProcess, stream: str, credit: int) -> None:
    found = batch(broker, stream, linkCredit=credit, endingOffsets=200, minPartitions=2)
    assert offsets(found) == list(range(200))


def test_no_more_is_asked_for_than_the_range_has(
    broker: BrokerProcess, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the broker would send beyond it, it would send in vain."""
    receivers = []
    attach = stream_range.attach

    def noted(*arguments: Any, **more: Any) -> Any:
        receivers.append(attach(*arguments, **more))
        return receivers[-1]

    monkeypatch.setattr(stream_range, "attach", noted)
    assert (
        len(list(read_range(options(broker, stream, linkCredit=100), StreamRange(7, 257, True), None))) == 1
    )
    (receiver,) = receivers
    assert receiver.end.received == 250


def test_large_messages_end_a_batch_early(
    broker: BrokerProcess, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several frames each; a batch has not many bytes more than allowed."""
    monkeypatch.setattr(stream_range, "BATCH_BYTES_MAX", 2_500_000)
    declare(broker, queue)
    bodies = [bytes([number]) * 1_200_000 for number in range(8)]
    publish(broker, queue, map(data_message, bodies))
    batches = list(read_range(options(broker, queue), StreamRange(0, 8, True), None))
    assert [row["body"] for each in batches for row in each.to_pylist()] == bodies
    assert max(len(each) for each in batches) <= 3


def test_what_is_published_meanwhile_is_not_read(broker: BrokerProcess, stream: str) -> None:
    """The end is decided by the driver."""
    reader = StreamReader(options(broker, stream, minPartitions=2))
    ranges = reader.partitions()
    fill(broker, stream, 50, first=COUNT)
    assert offsets(rows(reader, ranges)) == list(range(COUNT))
    assert offsets(rows(reader, ranges)) == list(range(COUNT))


# --- where a stream begins and ends -----------------------------------------------------------------


def test_both_ways_find_the_same_ends(broker: BrokerProcess, stream: str) -> None:
    """This broker's management says them; probing finds them at any broker."""
    with client_of(broker) as client:
        managed = ends_of(client, stream, 5.0)
        assert isinstance(managed, ManagedEnds)
        bounds = managed.bounds()
        assert bounds == StreamBounds(0, COUNT, dense=True, declaration_id=bounds.declaration_id)
        assert bounds.declaration_id is not None
        assert ProbedEnds(client, stream, 5.0).bounds() == StreamBounds(0, COUNT, dense=False)


def test_probing_an_empty_stream_and_one_that_was_cut(broker: BrokerProcess, queue: str) -> None:
    declare(broker, queue, **SMALL_SEGMENTS)
    with client_of(broker) as client:
        probe = ProbedEnds(client, queue, 5.0)
        assert probe.bounds() == StreamBounds(0, 0, dense=False)
        fill(broker, queue, 5000)
        managed = ends_of(client, queue, 5.0).bounds()
        found = probe.bounds()
        assert (found.first, found.next) == (managed.first, managed.next) == (managed.first, 5000)
        assert found.first > 0


def test_a_broker_without_offsets_in_its_management(
    streaming: Streaming, broker: BrokerProcess, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As RabbitMQ 4: the same rows, batch and streaming."""
    ask = stream_range.ends_of.__globals__["queue_entry"]

    def without(management: Any, queue: str) -> dict[Any, Any]:
        entry = dict(ask(management, queue))
        del entry["next_offset"], entry["first_offset"]
        return entry

    monkeypatch.setitem(stream_range.ends_of.__globals__, "queue_entry", without)
    reader = StreamReader(options(broker, stream, minPartitions=3, linkCredit=100))
    ranges = reader.partitions()
    assert not ranges[0].dense
    assert offsets(rows(reader, ranges)) == list(range(COUNT))
    query = streaming(broker, stream)
    end = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    assert end[stream] == COUNT
    fill(broker, stream, 5, first=COUNT)
    assert query.latestOffset(end, ReadAllAvailable())[stream] == COUNT + 5


# --- streaming --------------------------------------------------------------------------------------


def test_micro_batches(streaming: Streaming, broker: BrokerProcess, stream: str) -> None:
    reader = streaming(broker, stream)
    start = reader.initialOffset()
    assert start[stream] == 0
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end[stream] == COUNT
    assert offsets(rows(reader, reader.partitions(start, end))) == list(range(COUNT))
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert reader.partitions(end, end) == []
    fill(broker, stream, 7, first=COUNT)
    later = reader.latestOffset(end, ReadAllAvailable())
    assert offsets(rows(reader, reader.partitions(end, later))) == list(range(COUNT, COUNT + 7))
    assert reader.reportLatestOffset() == {stream: COUNT + 7}
    reader.commit(end)
    reader.stop()
    # Asked again after a stop, as a new query is: it connects again.
    assert reader.latestOffset(later, ReadAllAvailable()) == later


def test_latest_is_where_the_stream_ends(streaming: Streaming, broker: BrokerProcess, stream: str) -> None:
    assert streaming(broker, stream, startingOffsets="latest").initialOffset()[stream] == COUNT
    assert streaming(broker, stream, startingOffsets="17").initialOffset()[stream] == 17


def test_max_offsets_per_trigger(streaming: Streaming, broker: BrokerProcess, stream: str) -> None:
    reader = streaming(broker, stream, maxOffsetsPerTrigger=300)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(300)
    at = reader.initialOffset()
    ends = []
    while (end := reader.latestOffset(at, limit)) != at:
        ends.append(end[stream])
        at = end
    assert ends == [300, 600, 900, 1000]
    assert isinstance(streaming(broker, stream).getDefaultReadLimit(), ReadAllAvailable)


def test_available_now_ends_where_the_stream_ended(
    streaming: Streaming, broker: BrokerProcess, stream: str
) -> None:
    reader = streaming(broker, stream)
    reader.prepareForTriggerAvailableNow()
    fill(broker, stream, 50, first=COUNT)
    assert reader.latestOffset({stream: 0}, ReadMaxRows(999))[stream] == 999
    assert reader.latestOffset({stream: 999}, ReadAllAvailable())[stream] == COUNT
    assert reader.latestOffset({stream: COUNT}, ReadAllAvailable()) == {stream: COUNT}


def test_a_checkpoint_of_another_stream(streaming: Streaming, broker: BrokerProcess, stream: str) -> None:
    with pytest.raises(SparkSourceError, match="the checkpoint belongs to 'other'"):
        streaming(broker, stream).latestOffset({"other": 3}, ReadAllAvailable())


def test_a_stream_that_was_declared_again(streaming: Streaming, broker: BrokerProcess, stream: str) -> None:
    """Its offsets begin at 0 again, and the checkpoint is beyond its end."""
    with pytest.raises(QueueUnusable, match="deleted and declared again"):
        streaming(broker, stream).latestOffset({stream: COUNT + 1}, ReadAllAvailable())


def test_a_stream_that_was_declared_again_and_is_longer(
    streaming: Streaming, broker: BrokerProcess, queue: str
) -> None:
    """The checkpoint lies within the new one, and means messages of the old one."""
    declare(broker, queue)
    fill(broker, queue, 100)
    reader = streaming(broker, queue)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    with client_of(broker) as client:
        assert Management(client).ask("DELETE", f"/queues/{queue}")[0] == 200
    declare(broker, queue)
    fill(broker, queue, 300, first=1000)
    with pytest.raises(QueueUnusable, match="deleted and declared again since the checkpoint was written"):
        streaming(broker, queue).latestOffset(end, ReadAllAvailable())
    tolerant = streaming(broker, queue, failOnDataLoss="false")
    later = tolerant.latestOffset(end, ReadAllAvailable())
    found = rows(tolerant, tolerant.partitions(end, later))
    assert [row["body"] for row in found] == [body(number) for number in range(1000, 1300)]
    assert tolerant.latestOffset(later, ReadAllAvailable()) == later


def test_a_batch_that_is_repeated_after_retention(
    streaming: Streaming, broker: BrokerProcess, queue: str
) -> None:
    """With another option, too: what is left is in the partitions in which it was, or in a new one."""
    # A segment ends with the chunk that reaches its size, and a chunk is whatever came at once: 170 messages
    # at most. So small, a segment never holds all of the 800.
    declare(broker, queue, **SMALL_SEGMENTS | {"stream_max_segment_size_bytes": 5_000})
    fill(broker, queue, 800)
    query = streaming(broker, queue, minPartitions=8)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    before = [offsets(rows(query, [piece])) for piece in query.partitions(start, end)]
    assert [len(each) for each in before] == [100] * 8
    first, filled = 0, 800
    while first < 150:  # retention goes by segments, whose size in messages is the broker's affair
        fill(broker, queue, 50, first=filled)
        filled += 50
        with client_of(broker) as client:
            first = ends_of(client, queue, 5.0).bounds().first
    assert first < 800
    again = streaming(broker, queue, minPartitions=3, failOnDataLoss="false")
    after = [offsets(rows(again, [piece])) for piece in again.partitions(again.initialOffset(), end)]
    cut = first // 100
    assert after[:8] == [[]] * cut + [[] if first % 100 else before[cut]] + before[cut + 1 :]
    assert [row for each in after[8:] for row in each] == list(range(first, (cut + 1) * 100)) * bool(
        first % 100
    )
    assert len(after) == (8 + cut + 1 if first % 100 else 8)


# --- loss -------------------------------------------------------------------------------------------


@pytest.fixture
def short(broker: BrokerProcess, queue: str) -> tuple[str, int]:
    """A stream that retention has cut, and its first offset."""
    declare(broker, queue, **SMALL_SEGMENTS)
    fill(broker, queue, 5000)
    with client_of(broker) as client:
        first = ends_of(client, queue, 5.0).bounds().first
    assert 0 < first < 4900
    return queue, first


def test_loss_is_found_before_tasks_run(
    streaming: Streaming, broker: BrokerProcess, short: tuple[str, int]
) -> None:
    stream, first = short
    with pytest.raises(DataLost, match=f"{first - 5} messages of stream .* the stream begins at {first}"):
        batch(broker, stream, startingOffsets=5)
    reader = streaming(broker, stream)
    with pytest.raises(DataLost, match="set failOnDataLoss to false"):
        reader.partitions({stream: 5}, {stream: 5000})


@pytest.mark.parametrize("sql", [None, "p.subject IS NULL"])
def test_loss_is_found_by_tasks(broker: BrokerProcess, short: tuple[str, int], sql: str | None) -> None:
    """Retention was faster than the task: the first message lies above the offset asked for."""
    stream, _ = short
    with pytest.raises(DataLost, match="messages of stream"):
        list(read_range(options(broker, stream), StreamRange(5, 5000, True), sql))


@pytest.mark.parametrize("sql", [None, "p.subject IS NULL"])
def test_loss_that_is_accepted(
    broker: BrokerProcess, short: tuple[str, int], sql: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest is read, and how many are missing is logged."""
    stream, first = short
    given = options(broker, stream, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        batches = list(read_range(given, StreamRange(5, 5000, True), sql))
    assert offsets(row for each in batches for row in each.to_pylist()) == list(range(first, 5000))
    assert f"{first - 5} messages of stream '{stream}' are lost" in caplog.text
    assert offsets(batch(broker, stream, startingOffsets=5, failOnDataLoss="false"))[0] == first


def test_a_range_that_is_gone_altogether(
    streaming: Streaming, broker: BrokerProcess, short: tuple[str, int]
) -> None:
    """Nothing of it is read, and the next batch is not empty again because of a limit."""
    stream, first = short
    reader = streaming(broker, stream, failOnDataLoss="false")
    assert reader.partitions({stream: 0}, {stream: 1}) == []
    assert reader.latestOffset({stream: 0}, ReadMaxRows(10))[stream] == first + 10
    given = options(broker, stream, failOnDataLoss="false")
    assert list(read_range(given, StreamRange(0, 1, True), None)) == []


def test_a_range_beyond_the_end(broker: BrokerProcess, stream: str) -> None:
    """The stream lost its newest messages, as a memory-only broker does: not passed over in silence."""
    given = options(broker, stream)
    for sql in (None, "p.subject IS NULL"):
        with pytest.raises(DataLost, match="the stream ends at 1000"):
            list(read_range(given, StreamRange(990, 1010, True), sql))


# --- filters ----------------------------------------------------------------------------------------


@pytest.fixture
def mixed(broker: BrokerProcess, queue: str) -> str:
    """Every seventh message of 700 has the subject ``rare``."""
    declare(broker, queue)
    publish(
        broker,
        queue,
        (
            Message(
                body(number),
                Properties(subject="rare" if number % 7 == 0 else "often", message_id=f"{number}"),
            )
            for number in range(700)
        ),
    )
    return queue


@pytest.mark.parametrize("pieces", [1, 3])
def test_the_broker_filters(broker: BrokerProcess, mixed: str, pieces: int) -> None:
    """All matches, in every piece, although nothing comes behind the last one."""
    found = batch(broker, mixed, filter="p.subject = 'rare'", minPartitions=pieces, linkCredit=9)
    assert offsets(found) == list(range(0, 700, 7))


@pytest.mark.parametrize("sql", [None, "p.subject = 'rare'", "FALSE"])
def test_the_broker_ends_where_the_range_ends(broker: BrokerProcess, mixed: str, sql: str | None) -> None:
    """A drain is answered there, with everything before it and nothing of what follows."""
    with client_of(broker) as client:
        receiver = attach(client, mixed, 10, sql, end=100)
        assert ends_there(receiver)
        receiver.grant(10_000, drain=True)
        assert receiver.wait(10, lambda: receiver.end.drained)
        wanted = {None: range(10, 100), "FALSE": range(0)}.get(sql, range(14, 100, 7))
        assert [offset_of(payload) for payload in receiver.take()] == list(wanted)
        assert receiver.exhausted
        assert receiver.end.available == 0


@pytest.mark.parametrize("sql", [None, "p.subject = 'rare'", "FALSE"])
def test_a_broker_that_does_not_know_the_end_is_read_as_well(
    broker: BrokerProcess, mixed: str, sql: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the filter out of its reply; what it sends beyond the range is dropped."""
    monkeypatch.setattr(stream_bounds, "END_OFFSET", "somebody:else")
    found = batch(
        broker, mixed, endingOffsets=100, minPartitions=3, **({} if sql is None else {"filter": sql})
    )
    wanted = {None: range(100), "FALSE": range(0)}.get(sql, range(0, 100, 7))
    assert offsets(found) == list(wanted)


def test_a_range_without_a_match_costs_what_it_has(
    broker: BrokerProcess, mixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is asked to end with the range, so that no range looks at the rest of the stream."""
    asked: list[tuple[int, int]] = []

    def noted(client: Any, stream: str, spec: Any, sql: str | None = None, *, end: int | None = None) -> Any:
        receiver = attach(client, stream, spec, sql, end=end)
        assert ends_there(receiver)
        assert end is not None
        asked.append((spec, end))
        return receiver

    monkeypatch.setattr(stream_range, "attach", noted)
    assert batch(broker, mixed, filter="FALSE", minPartitions=7) == []
    assert asked == [(start, start + 100) for start in range(0, 700, 100)]


def test_a_filter_that_nothing_matches(broker: BrokerProcess, mixed: str) -> None:
    started = time.monotonic()
    assert batch(broker, mixed, filter="p.subject = 'never'", minPartitions=2) == []
    assert time.monotonic() - started < 10  # known by a drain, not by waiting for idleTimeout


def test_a_filter_that_is_looked_at_for_long(broker: BrokerProcess, queue: str) -> None:
    """Nothing comes for longer than `idleTimeout`, since nothing matches: the broker is at work."""
    declare(broker, queue)
    fill(broker, queue, 120_000)
    never = " OR ".join(f"p.message_id = '{number}' OR p.subject LIKE '%{number}_'" for number in range(10))
    assert batch(broker, queue, filter=never, idleTimeout="1ms", minPartitions=1) == []


def test_a_filter_in_a_streaming_query(streaming: Streaming, broker: BrokerProcess, mixed: str) -> None:
    reader = streaming(broker, mixed, filter="p.subject = 'rare'")
    found = rows(reader, reader.partitions({mixed: 1}, {mixed: 15}))
    assert offsets(found) == [7, 14]


def test_a_filter_with_a_mistake(broker: BrokerProcess, mixed: str) -> None:
    with pytest.raises(FilterRefused, match="does not apply the filter 'p.subject ='"):
        batch(broker, mixed, filter="p.subject =")


def test_conditions_of_the_query_are_pushed_down(broker: BrokerProcess, mixed: str) -> None:
    reader = batch_reader(options(broker, mixed, pushdown="true", filter="p.message_id LIKE '%1'"))
    assert isinstance(reader, PushdownReader)
    given = [
        GreaterThanOrEqual(("offset",), 100),
        LessThan(("offset",), 500),
        EqualTo(("subject",), "rare"),
        EqualTo(("body",), b"x"),
    ]
    assert list(reader.pushFilters(given)) == given[2:]
    expected = [n for n in range(100, 500) if n % 7 == 0 and n % 10 == 1]
    assert offsets(rows(reader, reader.partitions())) == expected


@pytest.mark.parametrize("message_id", ["21", "0x0102", "0xabcd", "0xABCD", "it's"])
def test_pushed_message_ids_of_all_types(broker: BrokerProcess, queue: str, message_id: str) -> None:
    """The column is text; the condition must find whatever type it was."""
    declare(broker, queue)
    ids = ["21", 21, "0x0102", b"\x01\x02", "0xabcd", b"\xab\xcd", "0xABCD", "it's", "other"]
    from amqp10broker.protocols.amqp10.types import ULong

    typed = [ULong(each) if isinstance(each, int) else each for each in ids]
    publish(broker, queue, (Message(b"", Properties(message_id=each)) for each in typed))
    everything = [row["offset"] for row in batch(broker, queue) if row["messageId"] == message_id]
    reader = batch_reader(options(broker, queue, pushdown="true"))
    list(reader.pushFilters([EqualTo(("messageId",), message_id)]))
    assert offsets(rows(reader, reader.partitions())) == everything


# --- what goes wrong --------------------------------------------------------------------------------


def test_no_such_stream(broker: BrokerProcess) -> None:
    with pytest.raises(QueueUnusable, match="there is no stream 'missing': declare it first"):
        batch(broker, "missing")
    with pytest.raises(QueueUnusable, match="there is no queue or stream 'missing'"):
        list(read_range(options(broker, "missing"), StreamRange(0, 1, True), None))


def test_a_classic_queue(broker: BrokerProcess, queue: str) -> None:
    """It is no stream, and what is in it stays there: deliveries to us are settled."""
    with client_of(broker) as client:
        client.sender(queue).send_many([data_message(b"mine")] * 5)
    with pytest.raises(QueueUnusable, match="a classic queue and no stream: read it with the option queue"):
        batch(broker, queue)
    with pytest.raises(QueueUnusable, match="is a classic or quorum queue and no stream"):
        list(read_range(options(broker, queue), StreamRange(0, 1, True), None))
    broker.wait_for_counts(queue, ready=5)


def test_bad_password(broker: BrokerProcess, stream: str) -> None:
    given = {"url": f"amqp://guest:wrong@{broker.host}:{broker.port}", "stream": stream}
    reader = batch_reader(parse_source(given, streaming=False))  # type: ignore[arg-type]
    with pytest.raises(BrokerRefused, match="options username, password"):
        reader.partitions()


def test_the_permission_to_read_is_enough(start_broker: StartBroker) -> None:
    """To configure or write is not needed; without it the query is refused."""
    broker = start_broker("--user", "guest:guest", "--user", "reader:secret")
    declare(broker, "s")
    fill(broker, "s", 10)
    given = {"url": f"amqp://reader:secret@{broker.host}:{broker.port}", "stream": "s"}
    reader = batch_reader(parse_source(given, streaming=False))  # type: ignore[arg-type]
    assert broker.run_command("set-permissions", "reader", "^$", "^$", "^s$").returncode == 0
    assert len(rows(reader, reader.partitions())) == 10
    assert broker.run_command("set-permissions", "reader", "^$", "^$", "^$").returncode == 0
    with pytest.raises(BrokerRefused, match="read access to queue 's' .* refused for user 'reader'"):
        reader.partitions()


def test_nobody_answers() -> None:
    given = {"url": "amqp://127.0.0.1:1", "stream": "s", "retryTimeout": "100ms"}
    reader = batch_reader(parse_source(given, streaming=False))  # type: ignore[arg-type]
    with pytest.raises(BrokerUnreachable, match="start the broker"):
        reader.partitions()


def reading(broker: BrokerProcess) -> list[dict[str, Any]]:
    """The connections of tasks that read."""
    found = broker.status()["connections"]
    return [each for each in found if (each["container_id"] or "").startswith("spark-source-")]


@pytest.fixture
def no_others(broker: BrokerProcess) -> None:
    """Readers of the tests before have left the broker."""
    broker.wait_until(lambda: not reading(broker), "the end of earlier readers")


@pytest.mark.usefixtures("no_others")
def test_a_connection_that_breaks_in_the_middle(broker: BrokerProcess, stream: str) -> None:
    """The task goes on behind the last row, and no row comes twice."""
    # No multiple of each other: something waits to become a batch when the connection breaks.
    given = options(broker, stream, arrowBatchSize=130, linkCredit=100)
    batches = read_range(given, StreamRange(0, COUNT, True), None)
    found = next(batches).to_pylist()
    (entry,) = reading(broker)
    closed = broker.run_command("close-connection", str(entry["id"]))
    assert closed.returncode == 0, closed.stderr
    for each in batches:
        found += each.to_pylist()
    assert offsets(found) == list(range(COUNT))


def test_a_reader_that_is_given_up_leaves_no_connection(broker: BrokerProcess, stream: str) -> None:
    """Spark closes a generator whose rows it does not want (limit)."""
    batches = read_range(options(broker, stream, arrowBatchSize=10), StreamRange(0, COUNT, True), None)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    broker.wait_until(lambda: not reading(broker), "the end of the reader's connection")


def test_a_broker_that_is_killed_and_started_again(tmp_path: Path) -> None:
    """The task waits, and goes on behind the last row: every offset once."""
    data = ("--data-dir", str(tmp_path / "data"))
    first = BrokerProcess(tmp_path, *data)
    try:
        declare(first, "s")
        fill(first, "s", 20_000)
        given = options(first, "s", arrowBatchSize=100, linkCredit=100, retryTimeout="60s")
        batches = read_range(given, StreamRange(0, 20_000, True), None)
        found = offsets(next(batches).to_pylist())
    finally:
        first.kill()
    (again := tmp_path / "again").mkdir()
    with BrokerProcess(again, "--port", str(first.port), *data):
        for each in batches:
            found += offsets(each.to_pylist())
    assert found == list(range(20_000))


def test_the_driver_finds_a_broker_that_was_started_again(streaming: Streaming, tmp_path: Path) -> None:
    """The connection that it keeps between two batches is gone, and nobody has told it."""
    data = ("--data-dir", str(tmp_path / "data"))
    with BrokerProcess(tmp_path, *data) as first:
        declare(first, "s")
        fill(first, "s", 10)
        reader = streaming(first, "s")
        for _ in range(3):
            assert reader.latestOffset({"s": 0}, ReadAllAvailable())["s"] == 10
    (again := tmp_path / "again").mkdir()
    with BrokerProcess(again, "--port", str(first.port), *data) as second:
        fill(second, "s", 5, first=10)
        assert reader.latestOffset({"s": 10}, ReadAllAvailable())["s"] == 15
        reader.stop()


@pytest.mark.parametrize(
    ("sql", "kind", "words"),
    [
        (None, ReadStalled, "nothing came from stream 's' for 2.5 s, but offsets"),
        # With a filter the stream's ends are asked for after each batch, over a new connection in the end.
        ("p.subject IS NULL", BrokerUnreachable, "does not answer .tried 2 times in 0.5 s.: no answer"),
    ],
)
def test_a_broker_that_hangs(
    start_broker: StartBroker, sql: str | None, kind: type[SparkSourceError], words: str
) -> None:
    """Silence is told after `idleTimeout`, whatever the query reads."""
    broker = start_broker()
    declare(broker, "s")
    fill(broker, "s", 5000)
    given = options(
        broker, "s", arrowBatchSize=100, linkCredit=100, idleTimeout="2500ms", retryTimeout="500ms"
    )
    batches = read_range(given, StreamRange(0, 5000, True), sql)
    next(batches)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        with pytest.raises(kind, match=words):
            list(batches)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_messages_of_amqp_091(broker: BrokerProcess, queue: str) -> None:
    """Converted by the broker: properties, headers as application properties. The time is the broker's."""
    declare(broker, queue)
    parameters = pika.ConnectionParameters(broker.host, broker.port)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    properties = pika.BasicProperties(
        message_id="m-1", timestamp=1_700_000_000, headers={"region": "EU", "count": 3}
    )
    for _ in range(20):
        channel.basic_publish("", queue, b"from 0-9-1", properties)
    connection.close()
    found = batch(broker, queue)
    assert offsets(found) == list(range(20))
    row = found[7]
    assert (row["body"], row["messageId"]) == (b"from 0-9-1", "m-1")
    assert row["enqueuedTime"] > datetime.fromtimestamp(1_700_000_000, UTC)
    assert dict(row["applicationProperties"]) == {"region": "EU", "count": "3"}
