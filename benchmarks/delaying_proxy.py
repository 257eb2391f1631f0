"""A TCP proxy on loopback behind which everything takes a while, as on a long way through a network.

Bytes keep their order and their pace, and are handed on so much later in each direction. What waits is
bounded far above what a way of that length holds at the rates of these benchmarks, so that the delay limits
and not the proxy. One thread of the process that measures, which has nothing else to do meanwhile.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Collection
from types import TracebackType
from typing import Final, Self

HELD_BYTES_MAX: Final = 64 * 1024 * 1024
_CHUNK: Final = 262_144


class _Way:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.over = False
        self._ended = False
        self._bytes = 0
        # When something is due, and what; without bytes: the end.
        self._held: deque[tuple[float, memoryview]] = deque()

    @property
    def reads(self) -> bool:
        return not self._ended and self._bytes < HELD_BYTES_MAX

    @property
    def due(self) -> float | None:
        return self._held[0][0] if self._held else None

    def read(self, delay_s: float) -> None:
        try:
            data = self.source.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._ended = not data
        self._bytes += len(data)
        self._held.append((time.monotonic() + delay_s, memoryview(data)))

    def write(self) -> None:
        now = time.monotonic()
        try:
            while self._held and self._held[0][0] <= now:
                at, data = self._held[0]
                if not data:
                    self.over = True
                    self._held.clear()
                    self.target.shutdown(socket.SHUT_WR)
                    return
                sent = self.target.send(data)
                self._bytes -= sent
                if sent < len(data):
                    self._held[0] = at, data[sent:]
                else:
                    self._held.popleft()
        except BlockingIOError:
            return
        except OSError:
            self.over = self._ended = True  # who should get it has gone
            self._held.clear()


class DelayingProxy:
    """Forwards connections to a port on loopback, as long as the `with` block lasts.

    Attributes:
        port: where it listens.
    """

    def __init__(self, target_port: int, delay_s: float) -> None:
        """Begin to listen.

        Args:
            target_port: on loopback.
            delay_s: one way.
        """
        self._target_port = target_port
        self._delay_s = delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._wake, self._woken = socket.socketpair()
        self._closing = False
        self._connections: list[tuple[_Way, _Way]] = []
        self._thread = threading.Thread(target=self._run, name="delaying proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing = True
        self._wake.send(b"\0")
        self._thread.join(10)
        for each in (self._listener, self._wake, self._woken):
            each.close()

    def _run(self) -> None:
        while not self._closing:
            self._turn()
        for connection in self._connections:
            _close(connection)

    def _turn(self) -> None:
        """Wait until there is something to do, and do it."""
        now = time.monotonic()
        timeout_s = 1.0
        readers, writers = {self._woken.fileno(), self._listener.fileno()}, set()
        for connection in self._connections:
            for way in connection:
                if way.reads:
                    readers.add(way.source.fileno())
                if way.due is not None and way.due <= now:
                    writers.add(way.target.fileno())
                elif way.due is not None:
                    timeout_s = min(timeout_s, way.due - now)
        # Not poll, which counts whole milliseconds: one of each way would be a tenth of 20 ms.
        ready = set().union(*select.select(readers, writers, (), timeout_s))
        if self._listener.fileno() in ready:
            self._accept()
        for connection in list(self._connections):
            self._serve(connection, ready)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            target = socket.create_connection(("127.0.0.1", self._target_port), 10)
        except OSError:
            client.close()
            return
        for each in (client, target):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.append((_Way(client, target), _Way(target, client)))

    def _serve(self, connection: tuple[_Way, _Way], ready: Collection[int]) -> None:
        for way in connection:
            if way.reads and way.source.fileno() in ready:
                way.read(self._delay_s)
            if way.due is not None:
                way.write()
        if all(way.over for way in connection):
            self._connections.remove(connection)
            _close(connection)


def _close(connection: tuple[_Way, _Way]) -> None:
    for way in connection:
        way.source.close()
