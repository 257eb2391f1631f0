"""A client of AMQP 0-9-1 that sends nonsense ends its own connection, and nothing else."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import memory_stream_pair

from amqp10broker.metadata.catalog import CHANNELS, USERS
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import HEARTBEAT, content_frames, method_frame
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.protocols.connection import AMQP_091_HEADER
from amqp10broker.runtime.broker import Broker
from tests.runtime.conftest import LogRecorder
from tests.support.trioclient import running_broker, settle_down

CLIENT_PROPERTIES = {
    "capabilities": {
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "authentication_failure_close": True,
    }
}


def conversation() -> list[bytes]:
    properties = encode_properties(
        BasicProperties(content_type="text/plain", headers={"a": 1, "CC": ["other"]}, delivery_mode=2)
    )
    publish = methods.BasicPublish(exchange="", routing_key="q", mandatory=True)
    return [
        method_frame(0, methods.ConnectionStartOk(CLIENT_PROPERTIES, "PLAIN", b"\0guest\0guest", "en_US")),
        method_frame(0, methods.ConnectionTuneOk(2047, 131_072, 60)),
        method_frame(0, methods.ConnectionOpen("/")),
        method_frame(1, methods.ChannelOpen()),
        method_frame(2, methods.ChannelOpen()),
        method_frame(
            1, methods.ExchangeDeclare(exchange="x", type="topic", arguments={"a": [1, {"b": True}]})
        ),
        method_frame(1, methods.QueueDeclare(queue="q", auto_delete=True, arguments={"x-max-length": 5})),
        method_frame(1, methods.QueueBind(queue="q", exchange="x", routing_key="a.#")),
        method_frame(1, methods.ConfirmSelect()),
        content_frames(1, publish, properties, b"one", 131_072),
        content_frames(1, publish, properties, b"one", 131_072),
        content_frames(1, publish, b"\0\0", b"x" * 300, 131_072),
        HEARTBEAT,
        method_frame(2, methods.BasicQos(prefetch_count=2)),
        method_frame(2, methods.BasicConsume(queue="q", consumer_tag="c")),
        method_frame(2, methods.BasicAck(1, False)),
        method_frame(2, methods.BasicNack(0, True, True)),
        method_frame(2, methods.TxSelect()),
        content_frames(2, publish, properties, b"two", 131_072),
        method_frame(2, methods.TxCommit()),
        method_frame(2, methods.BasicGet(queue="q")),
        method_frame(2, methods.BasicCancel("c")),
        method_frame(2, methods.BasicRecover(True)),
        method_frame(1, methods.QueuePurge(queue="q")),
        method_frame(1, methods.QueueDelete(queue="q")),
        method_frame(2, methods.ChannelClose(200, "bye", 0, 0)),
        method_frame(0, methods.ConnectionClose(200, "bye", 0, 0)),
    ]


def spoilt(random_source: random.Random) -> bytes:
    frames = conversation()
    how = random_source.randrange(6)
    # Mostly behind the handshake, where there is more to break.
    first = 0 if random_source.random() < 0.2 else 3
    at = random_source.randrange(first, len(frames))
    if how == 0:
        frames.insert(at, frames[random_source.randrange(len(frames))])
    elif how == 1:
        frames.insert(at, random_source.randbytes(random_source.randrange(1, 40)))
    elif how == 2:
        del frames[at]
    elif how == 3:
        frames[first:] = random_source.sample(frames[first:], len(frames) - first)
    else:
        for _ in range(random_source.randrange(1, 4)):
            frame = bytearray(frames[at])
            frame[random_source.randrange(len(frame))] = random_source.randrange(256)
            frames[at] = bytes(frame)
            at = random_source.randrange(first, len(frames))
    data = b"".join(frames)
    return data[: random_source.randrange(len(data))] if how == 5 else data


async def _talk(broker: Broker, data: bytes, pieces: int) -> None:
    ours, theirs = memory_stream_pair()
    broker.serve(theirs, peer="hostile")
    await ours.send_all(AMQP_091_HEADER)
    step = max(1, len(data) // pieces)
    try:
        for start in range(0, len(data), step):
            await ours.send_all(data[start : start + step])
            await settle_down()
    except trio.BrokenResourceError:
        return  # the broker has closed already
    finally:
        await trio.aclose_forcefully(ours)


@pytest.mark.parametrize("seed", range(12))
async def test_nonsense_never_shows_a_fault_of_ours(log: LogRecorder, seed: int) -> None:
    """For any bytes the broker goes on: no traceback, no queue or connection is left behind."""
    random_source = random.Random(seed)
    async with running_broker(auth_failure_delay_ms=1) as broker:
        for _ in range(25):
            await _talk(broker, spoilt(random_source), random_source.choice((1, 1, 3, 30)))
        await settle_down()
        await trio.sleep(60)
        assert log.of("error") == []
        assert broker.connections == {}
        assert broker.catalog.usage.counts[CHANNELS]["guest"] == 0
        assert broker.catalog.usage.counts[USERS]["guest"] == 0
        # And an honest client is served.
        await _talk(broker, b"".join(conversation()), 1)
        assert log.of("error") == []
