"""What the floor peer's connections share: what it remembers of its queues, and how they read and write.

It remembers numbers, and message bytes only where latency needs them.
"""

from __future__ import annotations

import socket
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.peer import OUT_BYTES_MAX, Connection
from benchmarks.stream import Stream

ENDLESS: Final = "endless"
"""Prefix of addresses that never run empty."""


class Floor:
    """Every connection of the floor peer; messages are counted, not kept."""

    def __init__(self, credit: int, endless_bytes: int, keep: bool) -> None:
        """Make the floor.

        Args:
            credit: granted to every sending client link, topped up at half.
            endless_bytes: body size of messages from endless addresses.
            keep: keep each message's bytes and send just these, as latency stamps need it.
        """
        self.credit = credit
        self.kept: defaultdict[str, deque[bytes]] | None = defaultdict(deque) if keep else None
        self.endless_bytes = endless_bytes
        self.ready: defaultdict[str, int] = defaultdict(int)
        self.size_bytes: dict[str, int] = {}
        """Bytes of an encoded message of each address, as they came in."""

    def waiting(self, address: str) -> int:
        """Return how many messages there are to send from an address."""
        return 1 << 20 if address.startswith(ENDLESS) else self.ready[address]

    def size(self, address: str) -> int:
        """Return the size of the next message of an address."""
        return self.endless_bytes if address.startswith(ENDLESS) else self.size_bytes[address]

    def next_kept(self, address: str) -> bytes | None:
        """Return the bytes of the next message of an address, if messages are kept."""
        return None if self.kept is None or address.startswith(ENDLESS) else self.kept[address].popleft()

    def came(self, address: str, count: int, size_bytes: int) -> None:
        """Count messages in."""
        self.ready[address] += count
        self.size_bytes[address] = size_bytes

    def sent(self, address: str, count: int) -> None:
        """Count messages out."""
        if not address.startswith(ENDLESS):
            self.ready[address] -= count


class FloorConnection(Connection):
    """One client of the floor peer, whatever it speaks."""

    def __init__(self, floor: Floor, stream: socket.socket) -> None:
        """Take over an accepted socket, in which the client's protocol header still waits."""
        super().__init__()
        self.socket = stream
        self.floor = floor
        self.streams = [Stream()]
        self.finished = False

    def scan(self, data: bytearray, position: int, end: int) -> int:
        """Act on every whole frame; return where the first that is not whole begins."""
        raise NotImplementedError

    def answer(self) -> None:
        """Confirm and grant, once for one read."""
        raise NotImplementedError

    def sending(self) -> Iterator[Callable[[], bool]]:
        """Yield, for each link or consumer, what sends some messages, and returns whether there were any."""
        raise NotImplementedError

    def read(self) -> bool:
        """Read once; return False when the client has gone."""
        try:
            there = self.receive(self.scan)
        except ConnectionResetError:
            return False
        if there:
            self.answer()
        return there

    def deliver(self) -> None:
        """Send what the client has room for and the counted messages allow."""
        for send_some in self.sending():
            while len(self.out) < OUT_BYTES_MAX and send_some():
                pass

    def flush(self) -> bool:
        """Write as much as the socket takes; return whether bytes are left."""
        try:
            return self.send()
        except (BrokenPipeError, ConnectionResetError):
            self.finished = True
            self.out.clear()
            return False
