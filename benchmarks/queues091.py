"""Queues by way of AMQP 0-9-1: declare, count, empty. What benchmarks do before and after a load.

Every broker of the article speaks it, so that its tables can be made for any of them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from benchmarks import spec, wire091
from benchmarks.errors import PeerError
from benchmarks.peer091 import expect, handshake091, read_method

_CHANNEL: Final = 1
_NOT_FOUND: Final = 404


class Queues:
    """A connection of its own with one channel, to be used in a `with` statement."""

    def __init__(self, endpoint: spec.Endpoint) -> None:
        """Remember whom to ask; entering connects."""
        self._endpoint = endpoint
        self._socket = socket.socket()

    def __enter__(self) -> Self:
        """Connect and open the channel.

        Raises:
            PeerError: the broker refused it, or does not speak AMQP 0-9-1.
            OSError: nobody listens.
        """
        self._socket.close()
        self._socket = handshake091(self._endpoint).socket
        self._open_channel()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the connection in order, if it still answers."""
        try:
            if error is None:
                self._socket.sendall(wire091.method(0, wire091.CONNECTION_CLOSE, 200, "done", 0, 0))
                expect(self._socket, wire091.CONNECTION_CLOSE_OK)
        finally:
            self._socket.close()

    def _open_channel(self) -> None:
        self._socket.sendall(wire091.method(_CHANNEL, wire091.CHANNEL_OPEN, ""))
        expect(self._socket, wire091.CHANNEL_OPEN_OK)

    def _ask(self, wanted: int, code: int, *values: Any) -> list[Any] | None:
        """Send a method and return its answer's arguments; None if the queue does not exist.

        Raises:
            PeerError: the broker refused it for another reason.
        """
        self._socket.sendall(wire091.method(_CHANNEL, code, *values))
        answered, found = read_method(self._socket)
        if answered == wanted:
            return found
        if answered == wire091.CHANNEL_CLOSE and found[0] == _NOT_FOUND:
            self._socket.sendall(wire091.method(_CHANNEL, wire091.CHANNEL_CLOSE_OK))
            self._open_channel()
            return None
        why = wire091.reason(found) if answered in (wire091.CHANNEL_CLOSE, wire091.CONNECTION_CLOSE) else ""
        raise PeerError(f"the broker answered with method {answered >> 16}.{answered & 0xFFFF}: {why}")

    def declare(self, types: Mapping[str, str]) -> None:
        """Make sure that queues exist; one that does is left as it is.

        Args:
            types: name and `x-queue-type` of each; it is made durable.

        Raises:
            PeerError: the broker refused one.
        """
        for queue, queue_type in types.items():
            if self._passive(queue) is None:
                arguments = {"x-queue-type": queue_type}
                bits = wire091.DECLARE_DURABLE
                self._ask(wire091.QUEUE_DECLARE_OK, wire091.QUEUE_DECLARE, 0, queue, bits, arguments)

    def counts(self, queues: Iterable[str]) -> dict[str, int]:
        """Return the messages ready in each queue, without those that are delivered and unacknowledged.

        Raises:
            PeerError: a queue is missing.
        """
        found: dict[str, int] = {}
        for queue in queues:
            answer = self._passive(queue)
            if answer is None:
                raise PeerError(f"there is no queue {queue!r}")
            found[queue] = answer[1]
        return found

    def purge(self, queues: Iterable[str]) -> None:
        """Drop the messages ready in each queue; one that is missing has none."""
        for queue in queues:
            self._ask(wire091.QUEUE_PURGE_OK, wire091.QUEUE_PURGE, 0, queue, 0)

    def _passive(self, queue: str) -> list[Any] | None:
        return self._ask(
            wire091.QUEUE_DECLARE_OK, wire091.QUEUE_DECLARE, 0, queue, wire091.DECLARE_PASSIVE, {}
        )
