"""The socket as the reader and the writer use it.

A prototype found `trio.SocketStream` to cost 5 us a call more than the socket itself, twice per message
of a synchronous publisher, so the connection uses the non-blocking socket and trio's readiness calls.
Any other `trio.abc.Stream` (TLS, memory streams in tests) does as well, without `try_send`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Final, Protocol

import trio

from amqp10broker.portable import send_pieces

READ_BYTES: Final = 65_536

CLOSE_WAIT_S: Final = 2.0
"""How long a connection or a WebSocket that we closed waits for the peer's close, and the socket of one that
was never open for its client to close it."""

LINGER_S: Final = 30.0
"""How long the socket of a connection that is over waits for its client to close it, as RabbitMQ's does."""

LINGER_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Of what a client sends meanwhile: two of the largest messages that may be allowed."""

UNSENT_BYTES: Final = 131_072
"""What the kernel may hold that was not sent yet. A frame waits behind no more than this in the
kernel, where Linux would otherwise let several megabytes pile up."""

UNSENT_BYTES_MAX: Final = 1024 * 1024
"""The same where the peer takes them fast, so that a socket has something to send for the turns of others."""

UNSENT_FAST_S: Final = 0.005
"""A full socket that takes bytes again within this may have twice as many of them."""

UNSENT_SLOW_S: Final = 0.02
"""One that takes longer may have half."""

PIECES_MAX: Final = 1024
"""Buffers that the system takes in one call (IOV_MAX)."""


class Stream(Protocol):
    """The transport of a connection."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Wait for bytes; empty at the end."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None: ...

    async def aclose(self) -> None: ...


class SocketTransport:
    """A connected TCP socket. `moved_at`: when it took a part of what `send_all` had to wait with, last, by
    Trio's clock. `unsent_max`: limit of unsent bytes in the kernel, where supported.
    """

    __slots__ = ("_closed", "_socket", "moved_at", "unsent_max")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._hold_unsent(UNSENT_BYTES)
        self.moved_at = 0.0
        self._closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes; empty at the end. Raises `trio.BrokenResourceError`, as all here."""
        # Waiting first, not after a failed attempt: it is the checkpoint that a task must make
        # anyway, and a fast peer's bytes are there when it returns.
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(max_bytes or READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(f"receiving: {error}") from error

    async def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send everything, without joining it."""
        left = pieces
        while left:
            sent = self.try_send_pieces(left)
            left = unsent(left, sent)
            if left:
                await self._wait_writable(moved=sent > 0)

    def try_send_pieces(self, pieces: Sequence[bytes | memoryview]) -> int:
        """As `try_send`, of several buffers that are not joined; of very many only the first."""
        try:
            return send_pieces(self._socket, pieces[:PIECES_MAX])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(f"sending: {error}") from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while len(view):
            sent = self.try_send(view)
            view = view[sent:]
            if len(view):
                await self._wait_writable(moved=sent > 0)

    async def _wait_writable(self, *, moved: bool) -> None:
        began = trio.current_time()
        if moved:
            self.moved_at = began
        await trio.lowlevel.wait_writable(self._socket)
        took_s = trio.current_time() - began
        if took_s < UNSENT_FAST_S and self.unsent_max < UNSENT_BYTES_MAX:
            self._hold_unsent(2 * self.unsent_max)
        elif took_s > UNSENT_SLOW_S and self.unsent_max > UNSENT_BYTES:
            self._hold_unsent(self.unsent_max // 2)

    def _hold_unsent(self, most: int) -> None:
        self.unsent_max = most
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, most)

    def try_send(self, data: bytes | bytearray | memoryview) -> int:
        """Send what goes without waiting; returns the number of bytes."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(f"sending: {error}") from error

    def reset_at_close(self) -> None:
        """Make the close a reset: unsent bytes are dropped, and the peer gets no end of stream."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()


def unsent(pieces: Sequence[bytes | memoryview], sent: int) -> Sequence[bytes | memoryview]:
    """Return the rest of some buffers after so many bytes of them were sent."""
    for at, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[at + 1 :]]
        sent -= len(piece)
    return []
