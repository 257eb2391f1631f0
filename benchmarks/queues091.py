"""Queues by way of AMQP 0-9-1: declare, count, empty, delete. What benchmarks do before and after a load.

Every broker of the article speaks it, so that its tables can be made for any of them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from typing import Final, Self

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import method_frame
from benchmarks import spec
from benchmarks.errors import PeerError
from benchmarks.peer091 import GOOD_BYE, expect, handshake091, read_method
from benchmarks.wire091 import reason

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
                self._socket.sendall(GOOD_BYE)
                expect(self._socket, methods.ConnectionCloseOk)
        finally:
            self._socket.close()

    def _open_channel(self) -> None:
        self._socket.sendall(method_frame(_CHANNEL, methods.ChannelOpen()))
        expect(self._socket, methods.ChannelOpenOk)

    def _ask(self, method: methods.Method) -> methods.Method | None:
        """Send a method and return its answer; None if the queue does not exist.

        Raises:
            PeerError: the broker refused it for another reason.
        """
        self._socket.sendall(method_frame(_CHANNEL, method))
        answer = read_method(self._socket)
        if isinstance(answer, methods.ChannelClose) and answer.reply_code == _NOT_FOUND:
            self._socket.sendall(method_frame(_CHANNEL, methods.ChannelCloseOk()))
            self._open_channel()
            return None
        if isinstance(answer, methods.ChannelClose | methods.ConnectionClose):
            raise PeerError(f"the broker refused {method.NAME}: {reason(answer)}")
        return answer

    def declare(self, types: Mapping[str, str]) -> None:
        """Make sure that queues exist; one that does is left as it is.

        Args:
            types: name and `x-queue-type` of each; it is made durable.

        Raises:
            PeerError: the broker refused one.
        """
        for queue, queue_type in types.items():
            if self._ask(methods.QueueDeclare(queue, passive=True)) is None:
                self._ask(methods.QueueDeclare(queue, durable=True, arguments={"x-queue-type": queue_type}))

    def counts(self, queues: Iterable[str]) -> dict[str, int]:
        """Return the messages ready in each queue, without those that are delivered and unacknowledged.

        Raises:
            PeerError: a queue is missing.
        """
        found: dict[str, int] = {}
        for queue in queues:
            answer = self._ask(methods.QueueDeclare(queue, passive=True))
            if not isinstance(answer, methods.QueueDeclareOk):
                raise PeerError(f"there is no queue {queue!r}")
            found[queue] = answer.message_count
        return found

    def purge(self, queues: Iterable[str]) -> None:
        """Drop the messages ready in each queue; one that is missing has none."""
        for queue in queues:
            self._ask(methods.QueuePurge(queue))

    def delete(self, queues: Iterable[str]) -> None:
        """Delete queues with all that is in them; one that is missing is gone already."""
        for queue in queues:
            self._ask(methods.QueueDelete(queue))
