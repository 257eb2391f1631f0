"""Receivers that ask when messages were enqueued, and those that do not, against the real process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from amqp10broker.client.blocking import BulkEnd, BulkReceiver, Management
from amqp10broker.client.message import Message, Properties, decode_message
from amqp10broker.client.session import ClientSession
from amqp10broker.protocols.amqp10.link import ReceiverLink
from amqp10broker.protocols.amqp10.performatives import Attach
from amqp10broker.protocols.amqp10.types import Described, Symbol, Timestamp
from amqp10broker.spark.options import StreamOptions, parse_source
from amqp10broker.spark.stream_source import StreamReader
from tests.support.broker_process import BrokerProcess
from tests.support.spark_streams import client_of, declare, offsets, publish, rows, url_of

pytestmark = pytest.mark.usefixtures("deadline")

ASK = "amqp10broker:enqueued-time"
ENQUEUED = Symbol("x-opt-enqueued-time")
LONG_AGO = Timestamp(1_000)
TWO = [Message(b"x", message_annotations={ENQUEUED: LONG_AGO}), Message(b"y")]
SLACK_MS = 60_000
"""The broker has taken the time of day when it started, minutes ago if it is shared: it may be set since."""
OFFSET_SPEC = "rabbitmq:stream-offset-spec"


class AskingEnd(BulkEnd):
    """Knows what the broker offers."""

    def __init__(
        self, session: ClientSession, link: ReceiverLink, address: str | None, credit_limit: int
    ) -> None:
        super().__init__(session, link, address, credit_limit)
        self.offered: tuple[str, ...] = ()

    def on_attached(self, attach: Attach) -> None:
        super().on_attached(attach)
        self.offered = tuple(map(str, attach.offered_capabilities or ()))


def read(
    broker: BrokerProcess, queue: str, count: int, desired: Sequence[str] = ()
) -> tuple[tuple[str, ...], list[bytes]]:
    """Return the offered capabilities and messages, from the first on for a stream."""
    with client_of(broker) as client:
        end = client.session.receiver(
            f"/queues/{queue}",
            settled=True,
            filters={OFFSET_SPEC: Described(Symbol(OFFSET_SPEC), "first")},
            desired_capabilities=desired,
            end_type=AskingEnd,
        )
        client.attach(end)
        assert isinstance(end, AskingEnd)
        receiver = BulkReceiver(client, end)
        receiver.grant(count)
        assert receiver.wait(20.0, lambda: end.received == count)
        return end.offered, receiver.take()


def times(payloads: list[bytes]) -> list[Any]:
    return [(decode_message(each).message_annotations or {}).get(ENQUEUED) for each in payloads]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def rows_of(broker: BrokerProcess, stream: str, **more: object) -> list[Any]:
    given = {"url": url_of(broker), "stream": stream, **{key: str(value) for key, value in more.items()}}
    parsed = parse_source(given, streaming=False)
    assert isinstance(parsed, StreamOptions)
    reader = StreamReader(parsed)
    return rows(reader, reader.partitions())


def test_who_asks_a_stream_is_offered_it_and_told_the_time(broker: BrokerProcess, queue: str) -> None:
    """The broker's time replaces a publisher's, and the next reader is told the same."""
    declare(broker, queue)
    before = now_ms()
    publish(broker, queue, TWO)
    after = now_ms()
    offered, payloads = read(broker, queue, 2, ["no:such-thing", ASK])
    assert offered[-1] == ASK
    assert "no:such-thing" not in offered
    told = times(payloads)
    assert all(type(each) is Timestamp for each in told)
    assert before - SLACK_MS <= told[0] <= told[1] <= after + SLACK_MS
    assert read(broker, queue, 2, [ASK]) == (offered, payloads)


def test_who_does_not_ask_gets_what_was_published(broker: BrokerProcess, queue: str) -> None:
    declare(broker, queue)
    publish(broker, queue, TWO)
    offered, payloads = read(broker, queue, 2)
    assert ASK not in offered
    assert times(payloads) == [LONG_AGO, None]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_queues_do_not_offer_what_they_do_not_keep(broker: BrokerProcess, queue: str, kind: str) -> None:
    """No time is made up at delivery: a redelivery would tell another one."""
    with client_of(broker) as client:
        given = {"durable": True, "arguments": {"x-queue-type": kind}}
        assert Management(client).ask("PUT", f"/queues/{queue}", given)[0] == 201
    publish(broker, queue, TWO)
    offered, payloads = read(broker, queue, 2, [ASK])
    assert offered == ()
    assert times(payloads) == [LONG_AGO, None]


def test_spark_reads_the_brokers_time_and_begins_where_it_says(broker: BrokerProcess, queue: str) -> None:
    """`startingTimestamp` uses the same clock as the column, whatever the publishers' clocks are."""
    declare(broker, queue)
    for _ in range(3):
        later = now_ms() + 2
        while now_ms() < later:
            pass  # chunks must have different times, and the broker has no other clock
        publish(broker, queue, [Message(b"x", Properties(creation_time=1_000))] * 10)
    found = rows_of(broker, queue)
    assert offsets(found) == list(range(30))
    ms = [round(row["enqueuedTime"].timestamp() * 1000) for row in found]
    assert ms == sorted(ms)
    assert len(set(ms)) >= 3
    for start in sorted(set(ms)):
        for starting in (start, start - 1):
            again = rows_of(broker, queue, startingTimestamp=starting)
            wanted = [row for row, each in zip(found, ms, strict=True) if each >= starting]
            assert again == wanted
    with_filter = rows_of(broker, queue, filter="p.creation_time = 1000", minPartitions=3)
    assert with_filter == found
