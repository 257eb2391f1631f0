"""A TCP proxy before a broker that loses connections when the test says so.

``cut()`` loses all that are open; ``cut_after`` loses the next ones by themselves, after so many bytes from
the client or from the broker, so that a test can go through every place where a connection may break.
"""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Final, Self

_CHUNK: Final = 65_536


class CuttingProxy:
    """Listens on loopback and forwards to a broker.

    Attributes:
        port: where it listens.
        connections: accepted so far.
        cut_after: for each connection to come, in order: (bytes from the client, bytes from the broker) after
            which it is lost; None for no limit. Connections beyond the list are kept.
        forwarded: for each connection, (from the client, from the broker) bytes so far.
    """

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        self.cut_after: list[tuple[int | None, int | None]] = []
        self.forwarded: list[list[int]] = []
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self) -> None:
        """Lose all open connections."""
        with self._lock:
            for each in self._open:
                _shut(each)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _shut(self._listener)
        self._listener.close()
        self.cut()
        for thread in list(self._threads):
            thread.join(10)
        for each in self._open:
            each.close()

    def _start(self, target: object, *arguments: object) -> None:
        assert callable(target)
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                number = self.connections
                self.connections += 1
                self._open += [client, broker]
                self.forwarded.append([0, 0])
            limits = self.cut_after[number] if number < len(self.cut_after) else (None, None)
            self._start(self._forward, client, broker, number, 0, limits[0])
            self._start(self._forward, broker, client, number, 1, limits[1])

    def _forward(
        self, source: socket.socket, target: socket.socket, number: int, way: int, limit: int | None
    ) -> None:
        try:
            while data := source.recv(_CHUNK):
                if limit is not None:
                    data = data[: limit - self.forwarded[number][way]]
                target.sendall(data)
                self.forwarded[number][way] += len(data)
                if limit is not None and self.forwarded[number][way] >= limit:
                    break
        except OSError:
            pass  # the other way has been cut
        _shut(source)
        _shut(target)


def _shut(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is over already
