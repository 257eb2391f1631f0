"""The protocol-independent part of a connection: a stream, a writer, and the order in which it ends.

::

    connection nursery
    |-- writer                     outlives sessions and channels, so that it can send their last words
    |-- keepalive                  heartbeats out, silence in
    `-- inner nursery
        |-- reader                 (this task's own body)
        `-- one task a session or channel

The reader ends first, whatever the reason: the client's close, a lost socket, a fault, a shutdown. Then
sessions or channels stop, then the connection's own last frame is written, then the writer ends.
`Connections.linger` closes the stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import trio

from amqp10broker.runtime.connections.socket_transport import Stream
from amqp10broker.runtime.connections.websocket_transport import WebSocketTransport
from amqp10broker.runtime.connections.writer import OutputBuffer, Writer
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.connection")

READ_BYTES: Final = 65_536

READ_BYTES_MAX: Final = 512 * 1024
"""Of one read while large frames come, of a client with one session or channel: half of what a session may
write of large messages in a turn (`sessions.session_step`)."""

LARGE_FRAME_BYTES: Final = 8192
"""Of a frame, on average over a read, for the next read to be larger: it is about 128 frames at most then."""
CLOSE_WAIT_S: Final = 2.0
"""How long a connection that we closed waits for the peer's close, and the socket of one that was never
open for its client to close it."""

LINGER_S: Final = 30.0
"""How long the socket of a connection that is over waits for its client to close it, as RabbitMQ's does."""

LINGER_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Of what a client sends meanwhile: two of the largest messages that may be allowed."""


class Tap(Protocol):
    """An observer of a connection's bytes, see `tracing`."""

    def received(self, data: bytes) -> None: ...

    def sent(self, data: bytes | memoryview) -> None:
        """Bytes for the writer: whole frames."""


class Speaker(Protocol):
    """The protocol's part of a connection's lifecycle."""

    async def read(self) -> None:
        """The reader: until the connection is over, for whatever reason."""

    def stop_parts(self) -> None:
        """Stop sessions or channels; the reader has ended."""

    def write_last(self) -> None:
        """All parts are over: the connection's own last frame."""

    def take_rest(self, data: bytes) -> None:
        """Bytes that come while the peer's close is awaited."""

    @property
    def awaits_close(self) -> bool:
        """Whether the peer's close is still to come."""


class ConnectionLifecycle:
    """One connection's stream and tasks."""

    def __init__(self, stream: Stream, first_bytes: bytes, writer_buffer_bytes: int) -> None:
        self.stream = stream
        self.writer = Writer(stream)
        self.lane = OutputBuffer(self.writer, None, writer_buffer_bytes)
        self.reading = trio.CancelScope()
        self.end = "by the client"
        self.bytes_received = 0
        self._first_bytes = first_bytes
        self._read_bytes = READ_BYTES
        self._tap: Tap | None = None
        self._inner: trio.Nursery | None = None
        self._outer: trio.Nursery | None = None

    async def run(self, speaker: Speaker) -> None:
        """Serve until the connection is over; the stream stays open."""
        async with trio.open_nursery() as outer:
            self._outer = outer
            outer.start_soon(self._run_writer)
            async with trio.open_nursery() as inner:
                self._inner = inner
                with self.reading:
                    await speaker.read()
                speaker.stop_parts()
            speaker.write_last()
            # A client that does not read must not keep its connection alive for ever.
            outer.cancel_scope.deadline = trio.current_time() + CLOSE_WAIT_S
            await self._await_peer_close(speaker)

    @property
    def tap(self) -> Tap | None:
        """The observer of this connection (see `tracing`); None without one."""
        return self._tap

    @tap.setter
    def tap(self, tap: Tap | None) -> None:
        self._tap = tap
        self.writer.on_put = None if tap is None else tap.sent

    async def receive(self) -> bytes:
        """Wait for bytes; empty at the end.

        Raises:
            trio.BrokenResourceError: the peer reset the connection.
        """
        if self._first_bytes:
            data, self._first_bytes = self._first_bytes, b""
        else:
            data = bytes(await self.stream.receive_some(self._read_bytes))
        self.bytes_received += len(data)
        if self._tap is not None:
            self._tap.received(data)
        return data

    def read_on(self, given: int, frames: int, parts: int) -> None:
        """Adapt the size of the next read to the last one: it may double while large frames fill it.

        Sessions or channels queue up to four messages each of what is read, and process them in one step: so
        reads shrink with their number, and with small frames do not exceed `READ_BYTES`.
        """
        if given < READ_BYTES or frames * LARGE_FRAME_BYTES > given:
            self._read_bytes = READ_BYTES
        else:
            self._read_bytes = max(READ_BYTES, min(2 * given, READ_BYTES_MAX // max(1, parts)))

    def take_at_most(self, frame_bytes: int) -> None:
        """Set the largest frame that the peer accepts; 0: any."""
        if frame_bytes and isinstance(self.stream, WebSocketTransport):
            self.stream.take_at_most(frame_bytes)

    def start_part(self, run: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Run a session's or channel's task; it ends before the connection's last frame."""
        assert self._inner is not None
        self._inner.start_soon(run, *arguments)

    def start_companion(self, run: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Run a task beside the reader, to the end of the connection."""
        assert self._outer is not None
        self._outer.start_soon(run, *arguments)

    def stop(self) -> None:
        """End the reader, and with it the connection."""
        self.reading.cancel()

    async def _run_writer(self) -> None:
        try:
            await self.writer.run()
        except trio.BrokenResourceError as error:
            self.end = f"lost: {error}"
            self.reading.cancel()
        except trio.ClosedResourceError:
            self.reading.cancel()
        assert self._outer is not None
        self._outer.cancel_scope.cancel()

    async def _await_peer_close(self, speaker: Speaker) -> None:
        # After our close: read and throw away until the peer's close, the end, or the deadline.
        try:
            while speaker.awaits_close and not self.writer.broken:
                data = await self.receive()
                if not data:
                    break
                speaker.take_rest(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            _log.debug("connection lost while closing", reason=str(error))
        self.writer.finish(self.lane)
