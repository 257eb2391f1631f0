"""An AMQP 0-9-1 client for Trio tests: methods over streams in memory, one broker in the same program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import trio
from trio.testing import memory_stream_pair

from amqp10broker.protocols.amqp091 import content, methods
from amqp10broker.protocols.amqp091.connection import FrameReader
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.runtime.broker import Broker
from tests.support.channel_harness import each_of
from tests.support.trioclient import MemoryClient

HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES = ("consumer_cancel_notify", "connection.blocked", "authentication_failure_close")

M = TypeVar("M", bound=methods.Method)
Got = tuple[int, Any]
"""Channel, and what came on it: a method, a content or a heartbeat."""


def message(channel: int, key: str, body: bytes = b"", exchange: str = "", **properties: Any) -> bytes:
    encoded = encode_properties(BasicProperties(**properties))
    return content.content_frames(channel, methods.BasicPublish(exchange, key), encoded, body, 131_072)


def start_ok(
    *,
    user: str = "guest",
    password: str = "guest",
    mechanism: str = "PLAIN",
    capabilities: tuple[str, ...] = CAPABILITIES,
) -> methods.ConnectionStartOk:
    properties: dict[str, Any] = {"capabilities": dict.fromkeys(capabilities, True), "product": "test"}
    return methods.ConnectionStartOk(properties, mechanism, f"\0{user}\0{password}".encode(), "en_US")


class Client091(MemoryClient):
    """One connection of AMQP 0-9-1."""

    IDLE_S = 0.5

    def __init__(self, broker: Broker, stream: Any, peer: str) -> None:
        super().__init__(broker, stream, peer)
        self.reader = FrameReader(0)

    async def receive(self) -> bytes:
        try:
            return await super().receive()
        except trio.BrokenResourceError:
            return b""

    def read(self, data: bytes) -> list[Got]:
        return [got for item in self.reader.feed(data) for got in each_of(item)] if data else []

    def is_heartbeat(self, got: Got) -> bool:
        return isinstance(got[1], content.Heartbeat)

    async def send_bytes(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def send(self, channel: int, *parts: methods.Method | bytes) -> None:
        data = [part if isinstance(part, bytes) else content.method_frame(channel, part) for part in parts]
        await self.stream.send_all(b"".join(data))

    async def publish(self, exchange: str, routing_key: str, body: bytes, **properties: Any) -> None:
        await self.send(1, message(1, routing_key, body, exchange, **properties))

    async def expect(self, kind: type[M], *, channel: int | None = None) -> M:
        number, got = await self.next()
        assert isinstance(got, kind), f"expected {kind.__name__}, got {got}"
        assert channel is None or channel == number
        return got

    async def until(self, kind: type[M]) -> M:
        while True:
            _, got = await self.next()
            if isinstance(got, kind):
                return got

    async def call(self, channel: int, method: methods.Method | bytes, kind: type[M]) -> M:
        await self.send(channel, method)
        return await self.expect(kind, channel=channel)

    async def begin(self) -> methods.ConnectionStart:
        await self.send_bytes(HEADER)
        return await self.expect(methods.ConnectionStart, channel=0)

    async def start(self, mechanism: str, response: bytes, **properties: Any) -> None:
        await self.begin()
        named = {"capabilities": dict.fromkeys(CAPABILITIES, True), **properties}
        await self.send(0, methods.ConnectionStartOk(named, mechanism, response, "en_US"))

    async def tune(self) -> None:
        tune = await self.expect(methods.ConnectionTune)
        await self.send(0, methods.ConnectionTuneOk(tune.channel_max, tune.frame_max, 0))

    async def login(self, **fields: Any) -> methods.ConnectionTune:
        await self.begin()
        await self.send(0, start_ok(**fields))
        return await self.expect(methods.ConnectionTune)

    async def open(
        self, *, channels: int = 1, vhost: str = "/", heartbeat: int = 0, **fields: Any
    ) -> Client091:
        """Log in, open, and open channels 1 .. `channels`."""
        tune = await self.login(**fields)
        await self.send(
            0,
            methods.ConnectionTuneOk(tune.channel_max, tune.frame_max, heartbeat),
            methods.ConnectionOpen(vhost),
        )
        await self.expect(methods.ConnectionOpenOk)
        for number in range(1, channels + 1):
            await self.call(number, methods.ChannelOpen(), methods.ChannelOpenOk)
        return self


_names = iter(range(1, 1_000_000))


def connect091(
    broker: Broker, *, pair: Callable[[], tuple[Any, Any]] = memory_stream_pair, peer: str = ""
) -> Client091:
    ours, theirs = pair()
    peer = peer or f"client091-{next(_names)}"
    broker.serve(theirs, peer=peer)
    return Client091(broker, ours, peer)


def names(got: list[Got]) -> list[str]:
    return [type(each.method if isinstance(each, content.Content) else each).__name__ for _, each in got]


def bodies(got: list[Got]) -> list[bytes]:
    return [each.body for _, each in got if isinstance(each, content.Content)]
