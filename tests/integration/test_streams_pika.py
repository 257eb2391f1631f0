"""Streams as pika uses them, after RabbitMQ's rabbit_stream_queue_SUITE; and what is left after a SIGKILL."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from tests.support.broker_process import REPOSITORY, BrokerProcess
from tests.support.pika_client import Inbox, Properties, parameters, settle_down, until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

STREAM = {"x-queue-type": "stream"}


def declare(channel: BlockingChannel, queue: str, **arguments: Any) -> None:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    channel.queue_declare(queue, durable=True, arguments=STREAM | given)


def publish(channel: BlockingChannel, queue: str, bodies: Sequence[str], **properties: Any) -> None:
    """Publish with confirms, each waited for."""
    for body in bodies:
        channel.basic_publish("", queue, body.encode(), Properties(**properties) if properties else None)


@pytest.fixture
def stream(channel: BlockingChannel, queue: str) -> str:
    """A stream with the messages 0 .. 9, each confirmed and so in a chunk of its own."""
    declare(channel, queue)
    channel.confirm_delivery()
    publish(channel, queue, [str(number) for number in range(10)])
    channel.basic_qos(prefetch_count=100)
    return queue


def reader(channel: BlockingChannel, queue: str, offset: Any = None, **options: Any) -> Inbox:
    arguments = {} if offset is None else {"x-stream-offset": offset}
    return Inbox(channel, queue, arguments=arguments | options.pop("arguments", {}), **options)


def bodies(inbox: Inbox) -> list[str]:
    return [each.body.decode() for each in inbox.messages]


def refused(channel: BlockingChannel, do: Any) -> tuple[int, str]:
    """Code and text with which the broker closes the channel."""

    def all_of_it() -> None:
        do()
        settle_down(channel)

    with pytest.raises(ChannelClosedByBroker) as caught:
        all_of_it()
    return caught.value.reply_code, caught.value.reply_text


def ends(do: Any) -> tuple[int, str]:
    """Code and text with which the broker closes the connection."""
    with pytest.raises(ConnectionClosedByBroker) as caught:
        do()
    return caught.value.reply_code, caught.value.reply_text


# --- declaring ------------------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE",
    "declare_args",
    "declare_max_age",
    "declare_queue",
    "publish",
    "publish_confirm",
    "queue_size_on_declare",
)
def test_declare_counts_the_messages(channel: BlockingChannel, stream: str) -> None:
    """queue.declare-ok and management say how many there are, and which offsets."""
    found = channel.queue_declare(stream, durable=True, arguments=STREAM).method
    assert (found.message_count, found.consumer_count) == (10, 0)


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "declare_server_named")
def test_declare_without_a_name(channel: BlockingChannel) -> None:
    """406."""
    code, text = refused(channel, lambda: channel.queue_declare("", durable=True, arguments=STREAM))
    assert (code, text.split(" - ")[1]) == (
        406, "Cannot declare a server-named queue for type stream; give it a name"
    )  # fmt: skip


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "declare_delete_same_stream", "delete_queue")
def test_delete_and_declare_again(channel: BlockingChannel, stream: str) -> None:
    """Another stream, from offset 0 on."""
    assert channel.queue_delete(stream).method.message_count == 10
    declare(channel, stream)
    publish(channel, stream, ["new"])
    inbox = reader(channel, stream, "first")
    assert inbox.take()[0].properties.headers == {"x-stream-offset": 0}


# --- what streams refuse --------------------------------------------------------------------------


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "basic_get")
def test_basic_get(channel: BlockingChannel, stream: str) -> None:
    """540."""
    code, text = ends(lambda: channel.basic_get(stream))
    assert code == 540
    assert f"basic.get not supported by stream queues queue '{stream}' in vhost '/'" in text


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "purge")
def test_purge(channel: BlockingChannel, stream: str) -> None:
    """540."""
    code, text = ends(lambda: channel.queue_purge(stream))
    assert code == 540
    assert f"purge not supported by queue '{stream}' in vhost '/'" in text


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "consume_without_qos")
def test_consume_without_prefetch(channel: BlockingChannel, stream: str) -> None:
    """406."""
    channel.basic_qos(prefetch_count=0)
    code, text = refused(channel, lambda: reader(channel, stream, "first"))
    assert (code, text.split(" - ")[1]) == (
        406, f"consumer prefetch count is not set for stream '{stream}' in vhost '/'"
    )  # fmt: skip


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "consume_with_autoack")
def test_consume_without_acknowledgements(channel: BlockingChannel, stream: str) -> None:
    """540."""
    code, text = ends(lambda: reader(channel, stream, "first", auto_ack=True))
    assert code == 540
    assert f"automatic acknowledgement not supported by stream '{stream}' in vhost '/'" in text


# --- consuming ------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("queue_type_SUITE", "stream")
@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE", "consume", "consume_and_ack", "consume_and_nack", "consume_and_reject"
)
def test_every_consumer_gets_everything_with_its_offset(channel: BlockingChannel, stream: str) -> None:
    """Nothing is taken away, whatever becomes of the deliveries."""
    inbox = reader(channel, stream, "first")
    inbox.take(10)
    assert [each.properties.headers["x-stream-offset"] for each in inbox.messages] == [*range(10)]
    assert bodies(inbox) == [str(number) for number in range(10)]
    tags = [each.tag for each in inbox.messages]
    channel.basic_ack(tags[0])
    channel.basic_nack(tags[1], requeue=True)
    channel.basic_nack(tags[2], requeue=False)
    channel.basic_reject(tags[3], requeue=True)
    channel.basic_reject(tags[4], requeue=False)
    channel.basic_ack(tags[9], multiple=True)
    settle_down(channel)
    assert len(inbox.messages) == 10
    channel.basic_qos(prefetch_count=100)
    again = reader(channel, stream, "first")
    again.take(10)
    assert bodies(again) == bodies(inbox)
    assert channel.queue_declare(stream, passive=True).method.message_count == 10


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE", "consume_from_last", "consume_from_relative_time_offset", "consume_offset"
)
@pytest.mark.parametrize(
    ("offset", "first"), [(0, 0), (4, 4), ("first", 0), ("last", 9), ("1h", 0)], ids=str
)  # fmt: skip
def test_consume_from_an_offset(channel: BlockingChannel, stream: str, offset: Any, first: int) -> None:
    """By number, by word, by age."""
    inbox = reader(channel, stream, offset)
    inbox.take(10 - first)
    assert bodies(inbox) == [str(number) for number in range(first, 10)]


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "consume_from_default", "consume_from_next")
@pytest.mark.parametrize("offset", [None, "next", 10, 10**12], ids=str)
def test_consume_from_the_end(channel: BlockingChannel, stream: str, offset: Any) -> None:
    """The default: what is published from now on."""
    inbox = reader(channel, stream, offset)
    settle_down(channel)
    assert bodies(inbox) == []
    publish(channel, stream, ["later"])
    assert inbox.take()[0].properties.headers["x-stream-offset"] == 10


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE", "consume_timestamp_last_offset", "consume_timestamp_offset"
)
def test_consume_from_a_time(channel: BlockingChannel, stream: str) -> None:
    """Seconds in AMQP 0-9-1: all of the past, and nothing of the future."""
    past = reader(channel, stream, datetime.fromtimestamp(time.time() - 60, UTC))
    past.take(10)
    future = reader(channel, stream, datetime.fromtimestamp(time.time() + 60, UTC))
    settle_down(channel)
    assert bodies(future) == []


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE",
    "consume_credit",
    "consume_credit_multiple_ack",
    "consume_credit_out_of_order_ack",
)
def test_an_acknowledgement_is_credit_and_nothing_else(channel: BlockingChannel, stream: str) -> None:
    """Out of order and multiple alike: as many come as were acknowledged."""
    channel.basic_qos(prefetch_count=3)
    inbox = reader(channel, stream, "first")
    inbox.take(3)
    settle_down(channel)
    assert len(inbox.messages) == 3
    channel.basic_ack(inbox.messages[2].tag)
    inbox.take(1)
    settle_down(channel)
    assert bodies(inbox) == ["0", "1", "2", "3"]
    channel.basic_ack(inbox.messages[1].tag, multiple=True)
    inbox.take(2)
    settle_down(channel)
    assert bodies(inbox) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "basic_cancel")
def test_a_cancelled_consumer_gets_nothing_more(channel: BlockingChannel, stream: str) -> None:
    """What it holds may be acknowledged."""
    channel.basic_qos(prefetch_count=2)
    inbox = reader(channel, stream, "first")
    inbox.take(2)
    channel.basic_cancel(inbox.tag)
    channel.basic_ack(0, multiple=True)
    publish(channel, stream, ["more"])
    settle_down(channel)
    assert len(inbox.messages) == 2
    assert channel.queue_declare(stream, passive=True).method.consumer_count == 0


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "receive_basic_cancel_on_queue_deletion")
def test_a_consumer_hears_that_its_stream_is_deleted(channel: BlockingChannel, stream: str) -> None:
    """basic.cancel, as of any queue."""
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    reader(channel, stream, "first").take(10)
    channel.queue_delete(stream)
    until(channel, lambda: cancelled, "basic.cancel")


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "filtering")
def test_messages_are_filtered_by_chunk(channel: BlockingChannel, queue: str) -> None:
    """x-stream-filter: chunks without the value do not come."""
    declare(channel, queue)
    channel.confirm_delivery()
    for number in range(6):
        headers = {"x-stream-filter-value": "eu" if number % 2 else "us"} if number < 4 else None
        publish(channel, queue, [str(number)], headers=headers)
    channel.basic_qos(prefetch_count=100)
    eu = reader(channel, queue, "first", arguments={"x-stream-filter": "eu"})
    both = reader(channel, queue, "first", arguments={"x-stream-filter": ["eu", "us"]})
    rest = reader(
        channel, queue, "first", arguments={"x-stream-filter": "eu", "x-stream-match-unfiltered": True}
    )
    publish(channel, queue, ["end"], headers={"x-stream-filter-value": "eu"})
    until(channel, lambda: all("end" in bodies(inbox) for inbox in (eu, both, rest)), "the end")
    assert bodies(eu) == ["1", "3", "end"]
    assert bodies(both) == ["0", "1", "2", "3", "end"]
    assert bodies(rest) == ["1", "3", "4", "5", "end"]


# --- retention ------------------------------------------------------------------------------------


# --- durability -----------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[[], tuple[BrokerProcess, BlockingChannel]]]:
    """Start a broker with the test's data folder and connect to it; the one before is killed."""
    brokers: list[BrokerProcess] = []
    connections: list[BlockingConnection] = []

    def end() -> None:
        for broker in brokers:
            broker.kill()
        for connection in connections:
            with suppress(AMQPError):
                connection.close()
        connections.clear()

    def run() -> tuple[BrokerProcess, BlockingChannel]:
        end()
        folder = tmp_path / f"broker{len(brokers)}"
        folder.mkdir()
        brokers.append(BrokerProcess(folder, "--data-dir", str(tmp_path / "data")))
        connections.append(BlockingConnection(parameters(brokers[-1])))
        channel = connections[-1].channel()
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=1000)
        return brokers[-1], channel

    yield run
    end()


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "recover", "restart_single_node", "restart_stream")
def test_after_a_kill_everything_confirmed_is_there(runs: Any, tmp_path: Path, queue: str) -> None:
    """And offsets go on; a stream that was deleted is not there, and neither are its files."""
    _, channel = runs()
    declare(channel, queue, x_stream_max_segment_size_bytes=2000)
    declare(channel, "gone")
    publish(channel, queue, [str(number) for number in range(100)])
    publish(channel, "gone", ["x"])
    channel.queue_delete("gone")

    broker, channel = runs()
    assert len(list((tmp_path / "data" / "streams").iterdir())) == 1
    publish(channel, queue, ["100"])
    inbox = reader(channel, queue, "first")
    inbox.take(101)
    assert bodies(inbox) == [str(number) for number in range(101)]
    assert [each.properties.headers["x-stream-offset"] for each in inbox.messages] == [*range(101)]
    status = broker.queue(queue)
    assert status is not None
    assert (status["first_offset"], status["next_offset"]) == (0, 101)
    assert status["segments"] > 3


def test_the_id_of_a_stream_stays_as_long_as_the_stream(runs: Any, queue: str) -> None:
    """Over a kill; declared again, it is another one."""

    def declaration_id(broker: BrokerProcess) -> str:
        listed = broker.run_command("queue", "list", "name", "declaration_id", "--format", "json")
        (row,) = [row for row in json.loads(listed.stdout) if row["name"] == queue]
        return str(row["declaration_id"])

    broker, channel = runs()
    declare(channel, queue)
    publish(channel, queue, ["x"])
    first = declaration_id(broker)
    assert len(first) == 16
    broker, channel = runs()
    declare(channel, queue)
    assert declaration_id(broker) == first
    channel.queue_delete(queue)
    declare(channel, queue)
    publish(channel, queue, ["x"])
    second = declaration_id(broker)
    assert second not in ("None", first)
    broker, _ = runs()
    assert declaration_id(broker) == second


def test_a_damaged_segment_stops_the_start(runs: Any, tmp_path: Path, queue: str) -> None:
    """The broker ends and says which file, where, and what to do; it has changed nothing."""
    broker, channel = runs()
    declare(channel, queue, x_stream_max_segment_size_bytes=100)
    publish(channel, queue, ["x" * 50] * 5)
    broker.kill()
    damaged = sorted((tmp_path / "data" / "streams").glob("*/*.log"))[1]
    content = bytearray(damaged.read_bytes())
    content[90] ^= 1
    damaged.write_bytes(content)
    command = [sys.executable, "-m", "amqp10broker", "serve", "--port", "0", "--admin-socket", ""]
    ended = subprocess.run(
        [*command, "--data-dir", str(tmp_path / "data")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert f"{damaged} at offset 32: the record is damaged" in ended.stderr
    assert "restore the data folder from a copy" in ended.stderr
    assert damaged.read_bytes() == content
