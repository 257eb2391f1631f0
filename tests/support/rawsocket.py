"""A blocking client of raw frames, for the real broker."""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import Any, Self

from amqp10broker.protocols.amqp10.performatives import SaslOutcome
from tests.support.rawframes import FrameCutter, Got, begin, login, open_frame

PATIENCE_S = 30.0


class RawSocket:
    def __init__(self, port: int, *, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(("127.0.0.1", port))
        self.cutter = FrameCutter()
        self.waiting: deque[Got] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset_on_close(self) -> None:
        """Discard data in flight in both directions at the close."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def send(self, *frames: bytes) -> None:
        """Send all bytes, or as many as the broker reads before it closes."""
        try:
            self.socket.sendall(b"".join(frames))
        except (BrokenPipeError, ConnectionResetError):
            pass

    def half_close(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def next(self) -> Got | None:
        """Return the next frame that is no heartbeat; None at the end."""
        while True:
            while self.waiting:
                got = self.waiting.popleft()
                if got.body is not None:
                    return got
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.waiting.extend(self.cutter.feed(data))

    def until(self, kind: type) -> Got:
        """Skip frames up to the next of a kind."""
        while True:
            got = self.next()
            assert got is not None, f"the broker closed before {kind.__name__}"
            if type(got.body) is kind:
                return got

    def rest(self) -> list[Got]:
        taken = []
        while (got := self.next()) is not None:
            taken.append(got)
        return taken

    def open(self, *, channels: int = 1, **fields: Any) -> Self:
        self.send(login())
        assert self.until(SaslOutcome).body.code == 0
        self.send(open_frame(**fields), *[begin(channel) for channel in range(channels)])
        for _ in range(1 + channels):
            assert self.next() is not None
        return self
