"""A socket whose bytes go in binary messages of a WebSocket.

Messages are masked, as a client's must be, with a mask of zeros: the broker takes it off at its full cost,
and the generator has none. What the broker sends is read where it lies, and closed up over the heads of its
messages.
"""

from __future__ import annotations

import socket
from typing import Any, Final

from benchmarks.errors import PeerError

_REQUEST: Final = (
    b"GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-protocol: amqp\r\n\r\n"
)
_MESSAGE_BYTES_MAX: Final = 131_072
"""Of a message that we send."""
_NO_MASK: Final = bytes(4)
_BINARY: Final = 0x82


class WebSocket(socket.socket):
    """A TCP connection that is a WebSocket from its first byte to its last."""

    def __init__(self, stream: socket.socket) -> None:
        """Take over a connected socket and shake hands, blocking.

        Raises:
            PeerError: the broker wants none.
        """
        timeout_s = stream.gettimeout()
        super().__init__(fileno=stream.detach())
        self.settimeout(timeout_s)
        self._out_head = b""
        self._out_left = 0
        self._in_head = b""
        self._in_left = 0
        try:
            self._shake_hands()
        except BaseException:
            self.close()
            raise

    def _shake_hands(self) -> None:
        super().sendall(_REQUEST)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            octet = super().recv(1)
            answer += octet
            if not octet or not b"HTTP/1.1 101".startswith(answer[:12]):
                raise PeerError(f"the broker wants no WebSocket: {answer!r}")

    def send(self, data: Any, flags: int = 0) -> int:
        """Send what goes; returns how many bytes of the data. The rest is to be sent next."""
        if not self._out_left:
            self._out_left = min(len(data), _MESSAGE_BYTES_MAX)
            self._out_head = _head(self._out_left)
        head = self._out_head
        sent = super().send(head + memoryview(data)[: self._out_left], flags)
        self._out_head = head[sent:]
        went = max(0, sent - len(head))
        self._out_left -= went
        return went

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send everything, blocking."""
        view = memoryview(data)
        while view:
            view = view[self.send(view, flags) :]

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Read some bytes of messages; empty at the end."""
        data = bytearray(size)
        return bytes(data[: self.recv_into(data, size, flags)])

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Read bytes of messages into a buffer; 0 at the end."""
        view = memoryview(buffer)[: nbytes or None]
        while True:
            count = super().recv_into(view, 0, flags)
            filled = self._close_up(view, count)
            if filled or not count:
                return filled

    def _close_up(self, view: memoryview, count: int) -> int:
        """Take the heads of messages out; returns how many bytes are left.

        Raises:
            PeerError: the broker closes, or says something else.
        """
        at = filled = 0
        while at < count:
            if self._in_left:
                size = min(self._in_left, count - at)
                if filled != at:
                    view[filled : filled + size] = bytes(view[at : at + size])
                at, filled = at + size, filled + size
                self._in_left -= size
                continue
            self._in_head += view[at : at + 1]
            at += 1
            head = self._in_head
            if head[0] != _BINARY:
                raise PeerError(f"the broker sends a frame that begins with {head[0]:#x}")
            if len(head) > 1 and len(head) == 2 + {126: 2, 127: 8}.get(head[1], 0):
                self._in_left = int.from_bytes(head[2:], "big") if len(head) > 2 else head[1]
                self._in_head = b""
        return filled


def _head(size: int) -> bytes:
    """What stands before so many bytes."""
    if size < 126:
        return bytes((_BINARY, 0x80 | size)) + _NO_MASK
    if size < 65_536:
        return bytes((_BINARY, 0x80 | 126)) + size.to_bytes(2, "big") + _NO_MASK
    return bytes((_BINARY, 0x80 | 127)) + size.to_bytes(8, "big") + _NO_MASK
