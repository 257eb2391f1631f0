"""Staged stalls in which bytes are short, and neither messages nor credit: nobody takes large messages.

A queue hands out no more when the room of a request is used up. Status names what holds the client up, never
the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import BasicProperties

from amqp10broker.protocols.amqp10.performatives import Begin, Source, Transfer
from amqp10broker.protocols.amqp10.types import Described, Symbol
from amqp10broker.queues.commands import ROOM_BYTES
from tests.support import rawframes as raw
from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import Connect
from tests.support.rawprocess import RawSocket
from tests.support.stalls import consumer_waits, waits

pytestmark = pytest.mark.integration

KINDS = ("classic", "quorum", "stream")
MESSAGES = 10
MESSAGE_BYTES = ROOM_BYTES // 2
FRAME_BYTES = 65_536
OFFSET = Symbol("rabbitmq:stream-offset-spec")


@pytest.fixture
def connect_raw(broker: BrokerProcess) -> Iterator[Any]:
    """Raw clients with an incoming-window, and little room in their sockets if they are not going to read."""
    opened: list[RawSocket] = []

    def connect(window: int, **options: Any) -> RawSocket:
        client = RawSocket(broker.port, **options)
        opened.append(client)
        client.send(
            raw.login(), raw.open_frame(max_frame_size=FRAME_BYTES), raw.begin(0, incoming_window=window)
        )
        client.until(Begin)
        return client

    yield connect
    for each in opened:
        each.close()


def fill(channel: BlockingChannel, queue: str, kind: str) -> None:
    """More bytes than several requests may have, in fewer messages than one may."""
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    channel.confirm_delivery()
    for _ in range(MESSAGES):
        channel.basic_publish("", queue, bytes(MESSAGE_BYTES), BasicProperties(delivery_mode=2))


def attach(peer: RawSocket, queue: str, **fields: Any) -> None:
    """Receive from the beginning, with credit for a hundred."""
    source = Source(address=queue, filter={OFFSET: Described(OFFSET, "first")})
    peer.send(raw.attach_receiver(0, queue, source=source), raw.credit(0, 100, **fields))


@pytest.mark.parametrize("kind", KINDS)
def test_the_window_of_a_receiver_is_closed(
    broker: BrokerProcess, channel: BlockingChannel, connect_raw: Any, queue: str, kind: str
) -> None:
    """It reads what it allows, the beginning of the first message; then it opens, and all come."""
    fill(channel, queue, kind)
    peer = connect_raw(2)
    attach(peer, queue, incoming_window=2)
    assert all(peer.until(Transfer).body.more for _ in range(2))
    link = waits(broker, "peer-window-closed", address=queue, says=("a delivery was sent in part",))
    assert link["credit"] > MESSAGES
    peer.send(raw.flow(next_incoming_id=2))
    ends = 0
    while ends < MESSAGES:
        ends += not peer.until(Transfer).body.more
    waits(broker, "stream-end" if kind == "stream" else "unsettled-here", address=queue)


@pytest.mark.parametrize("kind", KINDS)
def test_the_socket_of_a_consumer_is_not_read(
    connect: Connect, broker: BrokerProcess, channel: BlockingChannel, queue: str, kind: str
) -> None:
    """Its prefetch is not full, and the queue is not empty. Nobody turns pika's loop."""
    fill(channel, queue, kind)
    lazy = connect().channel()
    lazy.basic_qos(prefetch_count=50)
    arguments = {"x-stream-offset": "first"} if kind == "stream" else {}
    lazy._impl.basic_consume(queue, print, consumer_tag=queue, arguments=arguments)
    lazy.connection.process_data_events(0)
    consumer = consumer_waits(broker, "writer-blocked", queue, says=("the client does not read its socket",))
    assert consumer["unacknowledged"] + consumer["unsent"] < MESSAGES
