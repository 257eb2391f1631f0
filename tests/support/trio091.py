"""An AMQP 0-9-1 client for Trio tests: frames by `pamqp`, over any stream, one broker in the same program."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import trio
from pamqp import commands
from pamqp import frame as frames
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Connection
from pamqp.header import ContentHeader
from trio.testing import memory_stream_pair

from amqp10broker.protocols.preface import AMQP_091_HEADER
from amqp10broker.runtime.broker import Broker
from tests.support.trioclient import PATIENCE_S

T = TypeVar("T")


@dataclass(frozen=True)
class Delivered:
    """One content: its method, properties and body."""

    method: Any
    properties: Basic.Properties
    body: bytes


class Client091:
    """One connection. What the broker sent is kept in order, whole contents as `Delivered`."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.waiting: deque[tuple[int, Any]] = deque()
        self.ended = False
        self._rest = b""
        self._parts: list[Any] = []

    async def send(self, *methods: Any, channel: int = 1) -> None:
        """Methods, or content headers and bodies, in one write."""
        await self.stream.send_all(b"".join(frames.marshal(method, channel) for method in methods))

    async def publish(
        self, exchange: str, routing_key: str, body: bytes, *, channel: int = 1, **properties: Any
    ) -> None:
        """basic.publish of a body that fits into one frame."""
        await self.send(
            Basic.Publish(exchange=exchange, routing_key=routing_key),
            ContentHeader(body_size=len(body), properties=Basic.Properties(**properties)),
            ContentBody(body),
            channel=channel,
        )

    async def next_or_end(self) -> tuple[int, Any] | None:
        """The next method or content that is no heartbeat; None at the end."""
        with trio.fail_after(PATIENCE_S):
            while not self.waiting:
                if self.ended:
                    return None
                try:
                    data = await self.stream.receive_some(65_536)
                except trio.BrokenResourceError:
                    data = b""
                self.ended = not data
                self._cut(bytes(data))
        return self.waiting.popleft()

    def _cut(self, data: bytes) -> None:
        buf = self._rest + data
        while len(buf) >= 7:
            size = int.from_bytes(buf[3:7], "big") + 8
            if len(buf) < size:
                break
            _, channel, value = frames.unmarshal(buf[:size])
            buf = buf[size:]
            self._take(channel, value)
        self._rest = buf

    def _take(self, channel: int, value: Any) -> None:
        name = type(value).__name__
        if name == "Heartbeat":
            return
        if isinstance(value, Basic.Deliver | Basic.GetOk | Basic.Return):
            self._parts = [value]
        elif isinstance(value, ContentHeader):
            self._parts.append(value)
            self._whole(channel)
        elif isinstance(value, ContentBody):
            self._parts.append(value.value)
            self._whole(channel)
        else:
            self.waiting.append((channel, value))

    def _whole(self, channel: int) -> None:
        method, header, *bodies = self._parts
        body = b"".join(bodies)
        if len(body) == header.body_size:
            self.waiting.append((channel, Delivered(method, header.properties, body)))

    async def expect(self, kind: type[T]) -> T:
        """The next method or content, which must be of this kind."""
        got = await self.next_or_end()
        assert got is not None, f"the broker closed the socket before {kind.__name__}"
        assert type(got[1]) is kind, f"expected {kind.__name__}, got {got}"
        return got[1]  # type: ignore[no-any-return]

    # --- the way in -------------------------------------------------------------------------------

    async def start(self, mechanism: str, response: bytes, **properties: Any) -> Connection.Start:
        """Header, start, start-ok."""
        await self.stream.send_all(AMQP_091_HEADER)
        start = await self.expect(Connection.Start)
        capabilities = {"authentication_failure_close": True, "consumer_cancel_notify": True}
        await self.send(
            Connection.StartOk(
                client_properties={"capabilities": capabilities, **properties},
                mechanism=mechanism,
                response=response.decode("latin-1"),
                locale="en_US",
            ),
            channel=0,
        )
        return start

    async def open(
        self, user: str = "guest", password: str = "guest", *, vhost: str = "/", channels: int = 1
    ) -> Client091:
        """Log in by PLAIN, open, and open channels 1 .. `channels`."""
        await self.start("PLAIN", f"\0{user}\0{password}".encode())
        await self.tune()
        await self.send(Connection.Open(virtual_host=vhost), channel=0)
        await self.expect(Connection.OpenOk)
        for number in range(1, channels + 1):
            await self.send(Channel.Open(), channel=number)
            await self.expect(Channel.OpenOk)
        return self

    async def tune(self) -> None:
        """Take what the broker offers, without heartbeats."""
        tune = await self.expect(Connection.Tune)
        await self.send(
            Connection.TuneOk(channel_max=tune.channel_max, frame_max=tune.frame_max, heartbeat=0), channel=0
        )


def connect091(
    broker: Broker, *, pair: Callable[[], tuple[Any, Any]] = memory_stream_pair, peer: str = "client-091"
) -> Client091:
    """A new connection to a broker, over memory."""
    ours, theirs = pair()
    broker.serve(theirs, peer=peer)
    return Client091(ours)


__all__ = ["Basic", "Channel", "Client091", "Connection", "Delivered", "commands", "connect091"]
