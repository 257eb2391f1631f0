"""A TCP proxy that does to connections what networks do, when the test says so.

It behaves as a path of TCP does. While a direction is cut its packets vanish: what was sent waits, and comes
when the cut is mended, the end of the connection too, and nothing new is connected; what nobody takes fills a
window, and then the sender waits. A direction may be slow. All connections may be reset, and each may be lost
by itself after so many bytes, so that a test can go through every place where one may break.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import Final, Self

_POLLRDHUP: Final = getattr(select, "POLLRDHUP", 0x2000)
"""PyPy has no name for it; this is Linux's."""

TO_TARGET: Final = 0
"""The direction from who has connected to the proxy."""
BACK: Final = 1
WAYS: Final = (TO_TARGET, BACK)
WINDOW_BYTES: Final = 262_144
_CHUNK: Final = 65_536
_RESET: Final = struct.pack("ii", 1, 0)
"""Of SO_LINGER: what is closed is reset."""


class CuttingProxy:
    """Listens on loopback and forwards to a port there, by one thread of its own.

    Attributes:
        port: where it listens.
        connections: accepted so far.
        cut_after: for each connection to come, in order: (bytes from the client, bytes from the target) after
            which it is lost; None for no limit. Connections beyond the list are kept.
    """

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        self.cut_after: list[tuple[int | None, int | None]] = []
        self._is_cut = [False, False]
        self._delay_s = [0.0, 0.0]
        self._resets = self._mends = 0
        self._closing = False
        self._wake, self._woken = socket.socketpair()
        self._open: list[_Connection] = []
        self._thread = threading.Thread(target=self._run, name=f"proxy to {target_port}", daemon=True)
        self._thread.start()

    def cut(self, *ways: int) -> None:
        """Drop packets in these directions, or in both."""
        for way in ways or WAYS:
            self._is_cut[way] = True
        self._wake.send(b"\0")

    def mend(self) -> None:
        """Pass all packets at once, including those sent before."""
        self._is_cut[:] = False, False
        self._delay_s[:] = 0.0, 0.0
        self._mends += 1
        self._wake.send(b"\0")

    def delay(self, seconds: float, *ways: int) -> None:
        """Delay what is sent from now on in these directions, or in both."""
        for way in ways or WAYS:
            self._delay_s[way] = seconds
        self._wake.send(b"\0")

    def reset(self) -> None:
        self._resets += 1
        self._wake.send(b"\0")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the proxy and all connections; a second call does nothing."""
        if not self._closing:
            self._closing = True
            self._wake.send(b"\0")
            self._thread.join(10)
            for each in (self._listener, self._wake, self._woken):
                each.close()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        resets = mends = 0
        while not self._closing:
            if resets != self._resets:
                resets = self._resets
                for connection in self._open:
                    connection.reset()
            elif mends != self._mends:
                mends = self._mends
                for connection in self._open:
                    for way in connection.ways:
                        way.hurry()
            else:
                self._turn()
            self._open = [each for each in self._open if not each.is_over]
        for connection in self._open:
            connection.reset()

    def _turn(self) -> None:
        """Wait for the next event, and handle it."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        # A connection is made only if both directions are open.
        if not any(self._is_cut):
            poll.register(self._listener, select.POLLIN)
        now = time.monotonic()
        timeout_s: float | None = None
        wanted: dict[int, int] = {}
        for connection in self._open:
            for way in connection.ways:
                if way.reads:
                    wanted[way.source.fileno()] = wanted.get(way.source.fileno(), 0) | select.POLLIN
                if way.due is not None and not self._is_cut[way.number]:
                    if way.due <= now:
                        wanted[way.target.fileno()] = wanted.get(way.target.fileno(), 0) | select.POLLOUT
                    else:
                        timeout_s = min(way.due - now, timeout_s or way.due - now)
        for number, events in wanted.items():
            poll.register(number, events)
        ready = {number for number, _ in poll.poll(None if timeout_s is None else 1000 * timeout_s + 1)}
        if self._woken.fileno() in ready:
            self._woken.recv(_CHUNK)
        if self._listener.fileno() in ready and not any(self._is_cut):
            self._accept()
        for connection in self._open:
            connection.turn(ready, self._is_cut, self._delay_s)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if _has_ended(client):
            client.close()  # it came while there was a cut, and has not waited for its end
            return
        try:
            target = socket.create_connection(("127.0.0.1", self._target), 10)
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.close()
            return
        limits = self.cut_after[self.connections] if self.connections < len(self.cut_after) else (None, None)
        self.connections += 1
        self._open.append(_Connection(client, target, limits))


class _Way:
    """One direction of one connection; `left` is the bytes until it is lost, None for never."""

    def __init__(self, number: int, source: socket.socket, target: socket.socket, left: int | None) -> None:
        self.number = number
        self.source = source
        self.target = target
        self.left = left
        self._held: deque[tuple[float, memoryview]] = deque()
        self._held_bytes = 0
        self._ended_at: float | None = None
        self.is_over = False

    @property
    def reads(self) -> bool:
        return self._ended_at is None and self._held_bytes < WINDOW_BYTES

    @property
    def due(self) -> float | None:
        """Return when there is something to forward; None: nothing has arrived."""
        if self.is_over:
            return None
        return self._held[0][0] if self._held else self._ended_at

    def hurry(self) -> None:
        self._held = deque((0.0, data) for _, data in self._held)
        if self._ended_at is not None:
            self._ended_at = 0.0

    def read(self, delay_s: float) -> None:
        try:
            data = self.source.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        at = time.monotonic() + delay_s
        if data:
            self._held.append((at, memoryview(data)))
            self._held_bytes += len(data)
        else:
            self._ended_at = at

    def write(self) -> bool:
        """Forward what is due; return False if the connection is to be cut."""
        try:
            while self._held and self._held[0][0] <= time.monotonic():
                data = self._held[0][1] if self.left is None else self._held[0][1][: self.left]
                count = self.target.send(data)
                self._held_bytes -= count
                self._held[0] = self._held[0][0], self._held[0][1][count:]
                if not self._held[0][1]:
                    self._held.popleft()
                if self.left is not None:
                    self.left -= count
                    if not self.left:
                        return False
            if not self._held and self._ended_at is not None and self._ended_at <= time.monotonic():
                self.is_over = True
                self.target.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self.is_over = True  # who should get it has gone, which the other direction tells the sender
            self._held.clear()
        return True


class _Connection:
    def __init__(
        self, client: socket.socket, target: socket.socket, limits: tuple[int | None, int | None]
    ) -> None:
        for each in (client, target):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ends = (client, target)
        self.ways = (_Way(TO_TARGET, client, target, limits[0]), _Way(BACK, target, client, limits[1]))
        self.is_over = False

    def turn(self, ready: Collection[int], is_cut: Collection[bool], delay_s: Collection[float]) -> None:
        for way, cut, seconds in zip(self.ways, is_cut, delay_s, strict=True):
            if way.reads and way.source.fileno() in ready:
                way.read(seconds)
            if way.due is not None and not cut and not way.write():
                self._close()
                return
        if all(way.is_over for way in self.ways):
            self._close()

    def reset(self) -> None:
        for each in self._ends:
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._close()

    def _close(self) -> None:
        self.is_over = True
        for each in self._ends:
            each.close()


def _has_ended(each: socket.socket) -> bool:
    """Return whether the peer has closed it, though unread bytes may remain."""
    poll = select.poll()
    poll.register(each, _POLLRDHUP)
    return bool(poll.poll(0))
