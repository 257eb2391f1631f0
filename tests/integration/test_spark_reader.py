"""The stream source against the real broker process: readers as plain objects, no JVM."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from amqp10broker.client.message import Message, Properties
from amqp10broker.spark import errors, stream_source
from amqp10broker.spark.options import StreamOptions, parse_source
from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.cluster_process import free_ports
from tests.support.spark_streams import body, client_of, declare, fill, offsets, publish, rows, url_of

pytestmark = pytest.mark.usefixtures("deadline")

COUNT = 1000
Streaming = Callable[..., stream_source.StreamStreamReader]
SMALL_SEGMENTS = {"stream_max_segment_size_bytes": 20_000, "max_length_bytes": 50_000}


@pytest.fixture
def stream(broker: BrokerProcess, queue: str) -> str:
    declare(broker, queue)
    fill(broker, queue, COUNT)
    return queue


def options(broker: BrokerProcess, stream: str, *, streaming: bool = False, **more: Any) -> StreamOptions:
    given = {"url": url_of(broker), "stream": stream, **{key: str(value) for key, value in more.items()}}
    parsed = parse_source(given, streaming=streaming)
    assert isinstance(parsed, StreamOptions)
    return parsed


def batch(broker: BrokerProcess, stream: str, **more: Any) -> list[Any]:
    reader = stream_source.StreamReader(options(broker, stream, **more))
    return rows(reader, reader.partitions())


@pytest.fixture
def streaming() -> Iterator[Streaming]:
    made: list[stream_source.StreamStreamReader] = []

    def make(broker: BrokerProcess, stream: str, **more: Any) -> stream_source.StreamStreamReader:
        made.append(stream_source.StreamStreamReader(options(broker, stream, streaming=True, **more)))
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


# --- where a stream begins and ends -----------------------------------------------------------------


def test_probing_an_empty_stream_and_one_that_was_cut(broker: BrokerProcess, queue: str) -> None:
    declare(broker, queue, **SMALL_SEGMENTS)
    with client_of(broker) as client:
        probe = stream_source.StreamEnds(client, queue, 5.0)
        assert probe.bounds() == stream_source.StreamBounds(0, 0, dense=False)
        fill(broker, queue, 5000)
        managed = stream_source.ends_of(client, queue, 5.0).bounds()
        found = probe.bounds()
        assert (found.first, found.next) == (managed.first, managed.next) == (managed.first, 5000)
        assert found.first > 0


# --- streaming --------------------------------------------------------------------------------------


def test_a_batch_that_is_repeated_after_retention(
    streaming: Streaming, broker: BrokerProcess, queue: str
) -> None:
    """Even with another option, the remaining rows stay in their partitions, or go into a new one."""
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
            first = stream_source.ends_of(client, queue, 5.0).bounds().first
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
    """Return a stream cut by retention, and its first offset."""
    declare(broker, queue, **SMALL_SEGMENTS)
    fill(broker, queue, 5000)
    with client_of(broker) as client:
        first = stream_source.ends_of(client, queue, 5.0).bounds().first
    assert 0 < first < 4900
    return queue, first


@pytest.mark.parametrize("sql", [None, "p.subject IS NULL"])
def test_loss_is_found_by_tasks(broker: BrokerProcess, short: tuple[str, int], sql: str | None) -> None:
    """Retention was faster than the task: the first message lies above the requested offset."""
    stream, _ = short
    with pytest.raises(errors.DataLost, match="messages of stream"):
        list(stream_source.read_range(options(broker, stream), stream_source.StreamRange(5, 5000, True), sql))


@pytest.mark.parametrize("sql", [None, "p.subject IS NULL"])
def test_loss_that_is_accepted(
    broker: BrokerProcess, short: tuple[str, int], sql: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    stream, first = short
    given = options(broker, stream, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        batches = list(stream_source.read_range(given, stream_source.StreamRange(5, 5000, True), sql))
    assert offsets(row for each in batches for row in each.to_pylist()) == list(range(first, 5000))
    assert f"{first - 5} messages of stream '{stream}' are lost" in caplog.text
    assert offsets(batch(broker, stream, startingOffsets=5, failOnDataLoss="false"))[0] == first


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


@pytest.mark.parametrize("sql", [None, "p.subject = 'rare'", "FALSE"])
def test_the_broker_ends_where_the_range_ends(broker: BrokerProcess, mixed: str, sql: str | None) -> None:
    """The broker answers a drain there, after all deliveries before it and none after it."""
    with client_of(broker) as client:
        receiver = stream_source.attach(client, mixed, 10, sql, end=100)
        assert stream_source.ends_there(receiver)
        receiver.grant(10_000, drain=True)
        assert receiver.wait(10, lambda: receiver.end.drained)
        wanted = {None: range(10, 100), "FALSE": range(0)}.get(sql, range(14, 100, 7))
        assert [stream_source.offset_of(payload) for payload in receiver.take()] == list(wanted)
        assert receiver.exhausted
        assert receiver.end.available == 0


@pytest.mark.parametrize("sql", [None, "p.subject = 'rare'", "FALSE"])
def test_a_broker_that_does_not_know_the_end_is_read_as_well(
    broker: BrokerProcess, mixed: str, sql: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply omits the filter; the reader drops deliveries beyond the range."""
    monkeypatch.setattr(stream_source, "END_OFFSET", "somebody:else")
    found = batch(
        broker, mixed, endingOffsets=100, minPartitions=3, **({} if sql is None else {"filter": sql})
    )
    wanted = {None: range(100), "FALSE": range(0)}.get(sql, range(0, 100, 7))
    assert offsets(found) == list(wanted)


def test_a_filter_that_is_looked_at_for_long(broker: BrokerProcess, queue: str) -> None:
    """No message matches for longer than `idleTimeout`, but the broker is at work."""
    declare(broker, queue)
    fill(broker, queue, 120_000)
    assert batch(broker, queue, filter="FALSE", idleTimeout="1ms", minPartitions=1) == []


# --- what goes wrong --------------------------------------------------------------------------------


def test_the_permission_to_read_is_enough(start_broker: StartBroker) -> None:
    """Configure and write permissions are not needed; without read the query is refused."""
    broker = start_broker("--user", "guest:guest", "--user", "reader:secret")
    declare(broker, "s")
    fill(broker, "s", 10)
    given = {"url": f"amqp://reader:secret@{broker.host}:{broker.port}", "stream": "s"}
    reader = stream_source.StreamReader(parse_source(given, streaming=False))  # type: ignore[arg-type]
    assert broker.run_command("permission", "set", "reader", "^$", "^$", "^s$").returncode == 0
    assert len(rows(reader, reader.partitions())) == 10
    assert broker.run_command("permission", "set", "reader", "^$", "^$", "^$").returncode == 0
    with pytest.raises(errors.BrokerRefused, match="read access to queue 's' .* refused for user 'reader'"):
        reader.partitions()


def reading(broker: BrokerProcess) -> list[dict[str, Any]]:
    found = broker.status()["connections"]
    return [each for each in found if (each["container_id"] or "").startswith("spark-source-")]


@pytest.fixture
def no_others(broker: BrokerProcess) -> None:
    """Wait until the readers of earlier tests have left the broker."""
    broker.wait_until(lambda: not reading(broker), "the end of earlier readers")


@pytest.mark.usefixtures("no_others")
def test_a_connection_that_breaks_in_the_middle(broker: BrokerProcess, stream: str) -> None:
    """The task resumes behind the last row, and no row comes twice."""
    # No multiple of each other: something waits to become a batch when the connection breaks.
    given = options(broker, stream, arrowBatchSize=130, linkCredit=100)
    batches = stream_source.read_range(given, stream_source.StreamRange(0, COUNT, True), None)
    found = next(batches).to_pylist()
    (entry,) = reading(broker)
    closed = broker.run_command("connection", "close", str(entry["id"]))
    assert closed.returncode == 0, closed.stderr
    for each in batches:
        found += each.to_pylist()
    assert offsets(found) == list(range(COUNT))


def test_the_driver_finds_a_broker_that_was_started_again(streaming: Streaming, tmp_path: Path) -> None:
    """The connection that the driver keeps between two batches is lost without notice."""
    arguments = ("--port", str(free_ports(1)), "--data-dir", str(tmp_path / "data"))
    with BrokerProcess(tmp_path, *arguments) as first:
        declare(first, "s")
        fill(first, "s", 10)
        reader = streaming(first, "s")
        for _ in range(3):
            assert reader.latestOffset({"s": 0}, ReadAllAvailable())["s"] == 10
    (again := tmp_path / "again").mkdir()
    with BrokerProcess(again, *arguments) as second:
        fill(second, "s", 5, first=10)
        assert reader.latestOffset({"s": 10}, ReadAllAvailable())["s"] == 15
        reader.stop()


@pytest.mark.parametrize(
    ("sql", "kind", "words"),
    [
        (None, errors.ReadStalled, "nothing came from stream 's' for 2.5 s, but offsets"),
        # With a filter the stream's ends are asked for after each batch, over a new connection in the end.
        (
            "p.subject IS NULL",
            errors.BrokerUnreachable,
            "does not answer .tried 2 times in 0.5 s.: no answer",
        ),
    ],
)
def test_a_broker_that_hangs(
    start_broker: StartBroker, sql: str | None, kind: type[errors.SparkSourceError], words: str
) -> None:
    """The error comes after `idleTimeout`, whatever the query reads."""
    broker = start_broker()
    declare(broker, "s")
    fill(broker, "s", 5000)
    given = options(
        broker, "s", arrowBatchSize=100, linkCredit=100, idleTimeout="2500ms", retryTimeout="500ms"
    )
    batches = stream_source.read_range(given, stream_source.StreamRange(0, 5000, True), sql)
    next(batches)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        with pytest.raises(kind, match=words):
            list(batches)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
