"""A client for Trio tests: raw frames over streams in memory, one broker in the same program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import memory_stream_pair

from amqp10broker.config import Config
from amqp10broker.protocols.amqp10.performatives import SaslOutcome
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.connections.sockets import SocketTransport
from amqp10broker.runtime.queues.queue_task import QueueTask
from tests.support.rawframes import FrameCutter, Got, begin, login, open_frame

T = TypeVar("T")

PATIENCE_S = 400.0
"""Virtual seconds a test waits for a frame. Longer than any time-out of the broker's defaults."""


def quiet_config(**settings: Any) -> Config:
    """Return a configuration with any port, no admin socket and no client time-outs."""
    given: dict[str, Any] = {
        "port": 0,
        "tls_port": 0,
        "admin_socket": "",
        "idle_timeout_ms": 0,
        "handshake_timeout_ms": 10_000,
        "container_id": "broker",
    }
    return Config(**{**given, **settings})


@asynccontextmanager
async def running_broker(**settings: Any) -> AsyncIterator[Broker]:
    async with Broker(quiet_config(**settings)) as broker:
        yield broker


class BoundedPipe:
    """One direction of a socket: what does not fit waits, as TCP makes it wait."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.data = bytearray()
        self.ended = False
        self.broken = False
        self._changed = trio.Event()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def write_now(self, data: bytes | bytearray | memoryview) -> int:
        if self.broken or self.ended:
            raise trio.BrokenResourceError("the peer is gone")
        taken = bytes(data[: max(0, self.capacity_bytes - len(self.data))])
        if taken:
            self.data += taken
            self._change()
        return len(taken)

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        view = memoryview(data)
        while True:
            view = view[self.write_now(view) :]
            if not view:
                return
            await self._changed.wait()

    async def read(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self.data:
            if self.broken:
                raise trio.BrokenResourceError("connection reset")
            if self.ended:
                return b""
            await self._changed.wait()
        taken = bytes(self.data[:max_bytes])
        del self.data[:max_bytes]
        self._change()
        return taken

    def end(self, *, reset: bool = False) -> None:
        self.ended = True
        if reset:
            self.broken = True
            self.data.clear()
        self._change()


class PlainPipeStream:
    """The same pipes as a stream that cannot send without waiting, like TLS."""

    def __init__(self, incoming: BoundedPipe, outgoing: BoundedPipe) -> None:
        self.incoming = incoming
        self.outgoing = outgoing

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self.incoming.read(max_bytes or 65_536)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.outgoing.write(data)

    async def aclose(self) -> None:
        self.incoming.end()
        self.outgoing.end()
        await trio.lowlevel.checkpoint()


class PipeTransport(PlainPipeStream, SocketTransport):
    """A `SocketTransport` without a socket, so that the writer's direct sends are tested as well."""

    def try_send(self, data: bytes | bytearray | memoryview) -> int:
        return self.outgoing.write_now(data)

    async def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        for piece in pieces:
            await self.outgoing.write(piece)

    def try_send_pieces(self, pieces: Sequence[bytes | memoryview]) -> int:
        return self.outgoing.write_now(b"".join(pieces))


def pipe_pair(capacity_bytes: int, *, direct: bool = False) -> tuple[PlainPipeStream, Any]:
    """Return a client's and a broker's stream, joined by pipes of this capacity."""
    up, down = BoundedPipe(capacity_bytes), BoundedPipe(capacity_bytes)
    kind = PipeTransport if direct else PlainPipeStream
    return PlainPipeStream(down, up), kind(up, down)


class MemoryClient(ABC):
    """One connection to a broker: what it sends is up to the test, what it gets is kept in order."""

    IDLE_S = 1.0

    def __init__(self, broker: Broker, stream: Any, peer: str) -> None:
        self.broker = broker
        self.stream = stream
        self.peer = peer
        self.waiting: deque[Any] = deque()
        self.ended = False

    @property
    def task(self) -> Any:
        """Return the broker's object for this connection, or None after its end."""
        return next((each for each in self.broker.connections.values() if each.peer == self.peer), None)

    @abstractmethod
    def read(self, data: bytes) -> list[Any]: ...

    @abstractmethod
    async def send(self, *parts: Any, **fields: Any) -> None: ...

    @abstractmethod
    def is_heartbeat(self, got: Any) -> bool: ...

    async def receive(self) -> bytes:
        return bytes(await self.stream.receive_some(65_536))

    async def next(self, *, heartbeats: bool = False) -> Any:
        """Return the next frame; fail when none arrives, or at the end of the stream."""
        got = await self.next_or_end(heartbeats=heartbeats)
        assert got is not None, "the broker closed the socket"
        return got

    async def next_or_end(self, *, heartbeats: bool = False) -> Any:
        """Return the next frame, or None at the end of the stream."""
        with trio.fail_after(PATIENCE_S):
            while True:
                while self.waiting:
                    got = self.waiting.popleft()
                    if heartbeats or not self.is_heartbeat(got):
                        return got
                if self.ended:
                    return None
                data = await self.receive()
                self.ended = not data
                self.waiting.extend(self.read(data))

    async def idle(self, seconds: float | None = None, *, heartbeats: bool = False) -> list[Any]:
        """Return all frames until none has arrived for this many virtual seconds."""
        taken: list[Any] = []
        while True:
            with trio.move_on_after(self.IDLE_S if seconds is None else seconds) as limit:
                got = await self.next_or_end(heartbeats=heartbeats)
                if got is None:
                    return taken
                taken.append(got)
            if limit.cancelled_caught:
                return taken

    async def rest(self) -> list[Any]:
        """Return all frames until the broker closes the socket."""
        taken: list[Any] = []
        while (got := await self.next_or_end()) is not None:
            taken.append(got)
        return taken

    async def submit(self, *parts: Any) -> None:
        """Send, and wait until the broker has completed all the work that follows."""
        await self.send(*parts)
        await settle_down()

    async def vanish(self) -> None:
        await self.stream.aclose()

    async def lose(self) -> None:
        """Lose the connection, and wait until the broker has handled the loss."""
        await self.vanish()
        await settle_down()


class Client(MemoryClient):
    """One connection of AMQP 1.0."""

    def __init__(self, broker: Broker, stream: Any, peer: str) -> None:
        super().__init__(broker, stream, peer)
        self.cutter = FrameCutter()

    def read(self, data: bytes) -> list[Got]:
        return self.cutter.feed(data)

    def is_heartbeat(self, got: Got) -> bool:
        return got.body is None

    async def send(self, *frames: bytes) -> None:
        await self.stream.send_all(b"".join(frames))

    async def expect(self, kind: type[T], *, channel: int | None = None) -> T:
        got = await self.next()
        assert type(got.body) is kind, f"expected {kind.__name__}, got {got}"
        assert channel is None or got.channel == channel
        return got.body  # type: ignore[no-any-return]

    async def until(self, kind: type[T]) -> T:
        while True:
            got = await self.next()
            if type(got.body) is kind:
                return got.body  # type: ignore[no-any-return]

    async def call(self, kind: type[T], *frames: bytes) -> T:
        await self.send(*frames)
        return await self.until(kind)

    async def take(self, kind: type, count: int) -> list[Got]:
        """Return the next `count` frames of a kind; others are skipped."""
        taken: list[Got] = []
        while len(taken) < count:
            got = await self.next()
            if type(got.body) is kind:
                taken.append(got)
        return taken

    async def open(self, *, channels: int = 1, **fields: Any) -> Client:
        """Log in, open, and begin sessions on channels 0 .. `channels` - 1."""
        assert (await self.call(SaslOutcome, login())).code == 0
        await self.send(open_frame(**fields), *[begin(channel) for channel in range(channels)])
        kinds = sorted([type((await self.next()).body).__name__ for _ in range(1 + channels)])
        assert kinds == ["Begin"] * channels + ["Open"], kinds
        return self


_names = iter(range(1, 1_000_000))


def connect(
    broker: Broker, *, pair: Callable[[], tuple[Any, Any]] = memory_stream_pair, peer: str | None = None
) -> Client:
    """Connect to a broker over memory; with `peer` several connections share an address."""
    ours, theirs = pair()
    peer = peer or f"client-{next(_names)}"
    broker.serve(theirs, peer=peer)
    return Client(broker, ours, peer)


async def eventually(
    condition: Callable[[], object], *, timeout_s: float = 20.0, every_s: float = 0.001
) -> None:
    """Poll for a change without a notice, as in another thread or at a real socket's peer."""
    with trio.fail_after(timeout_s):
        while True:
            if condition():
                return
            await trio.sleep(every_s)


@asynccontextmanager
async def alongside(*tasks: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Run tasks for as long as the block runs; its end cancels them."""
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)
        yield
        nursery.cancel_scope.cancel()


async def settle_down() -> None:
    """Let every task of this program run until all wait."""
    await trio.testing.wait_all_tasks_blocked()


def queue_counts(broker: Broker, name: str) -> tuple[int, int]:
    found = broker.catalog.lookup_vhost("/").find(name)
    return found.handle.ready, found.handle.unsettled


class Brake:
    """A queue's task that stands still while the brake is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broker: Any, name: str) -> None:
        self.handle = broker.catalog.lookup_vhost("/").find(name).handle
        self.kept: list[Any] = []
        self.on = True
        original = QueueTask.post_all

        def post_all(queue: QueueTask, commands: Any) -> None:
            if queue is self.handle and self.on:
                self.kept.append(commands)
            else:
                original(queue, commands)

        monkeypatch.setattr(QueueTask, "post_all", post_all)

    @property
    def messages(self) -> int:
        return sum(len(getattr(each, "messages", ())) for commands in self.kept for each in commands)

    def release(self) -> None:
        self.on = False
        for commands in self.kept:
            self.handle.post_all(commands)
        self.kept = []
