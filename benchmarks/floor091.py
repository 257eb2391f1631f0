"""The floor's AMQP 0-9-1 side: a peer that takes and gives messages and is no broker.

It answers the handshake, counts what is published, confirms with one basic.ack a read, and sends back as
many messages of a queue as it has counted in, as far as each consumer's prefetch-count reaches. It keeps no
message, routes nothing and remembers no delivery. Its queues are those of `floor`: one client may publish
in one protocol and another count in the other, though the bytes are then not the publisher's.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks import spec, wire091
from benchmarks.blocks091 import TagBlock, deliver_block
from benchmarks.floor_counts import ENDLESS, Floor
from benchmarks.scan091 import Contents, Scanner091

OUT_BYTES_MAX: Final = 256 * 1024
READ_BYTES: Final = 2 * spec.MAX_FRAME_SIZE_BYTES
CHANNEL_MAX: Final = 2047
UNLIMITED: Final = 1 << 30


@dataclass(slots=True)
class _FloorConsumer:
    tag: str
    queue: str
    room: int
    """Messages the prefetch-count still allows; `UNLIMITED` for one that acknowledges nothing."""
    block: tuple[int, TagBlock] | None = None
    """Ready-made deliveries, and the size of body they are for."""


class _FloorChannel:
    """One channel: its consumers, what they have unacknowledged, what is to be confirmed."""

    def __init__(self) -> None:
        self.consumers: list[_FloorConsumer] = []
        self.prefetch = 0
        self.next_tag = 1
        self.confirming = False
        self.published = 0
        self.confirmed = 0
        self.unacked: list[tuple[int, int, _FloorConsumer]] = []
        """First and last delivery-tag of runs that wait for acknowledgement, oldest first."""

    def settle(self, first: int, last: int) -> None:
        """Give room again for the deliveries acknowledged.

        Args:
            first: the lowest tag meant; all from here to `last` that wait are acknowledged.
            last: the highest tag meant.
        """
        kept: list[tuple[int, int, _FloorConsumer]] = []
        for start, end, consumer in self.unacked:
            low, high = max(first, start), min(last, end)
            if low > high:
                kept.append((start, end, consumer))
                continue
            consumer.room += high - low + 1
            if start < low:
                kept.append((start, low - 1, consumer))
            if high < end:
                kept.append((high + 1, end, consumer))
        self.unacked = kept


class FloorConnection091:
    """One client of the floor peer that speaks AMQP 0-9-1."""

    def __init__(self, floor: Floor, stream: socket.socket) -> None:
        """Take over an accepted socket, in which the client's protocol header still waits."""
        self.socket = stream
        self.out = bytearray(wire091.method(0, wire091.CONNECTION_START, 0, 9, {}, b"PLAIN", b"en_US"))
        self.finished = False
        self._floor = floor
        self._data = bytearray(READ_BYTES)
        self._view = memoryview(self._data)
        self._filled = 0
        self._scanner = Scanner091(self, alike_in_size=floor.kept is not None)
        self._greeted = False
        self._channels: dict[int, _FloorChannel] = {}

    def read(self) -> bool:
        """Read once; return False when the client has gone."""
        try:
            count = self.socket.recv_into(self._view[self._filled :])
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        if count == 0:
            return False
        end = self._filled + count
        position = 0
        if not self._greeted:
            self._greeted = True
            position = len(wire091.PROTOCOL_HEADER)
        position = self._scanner.scan(self._data, position, end)
        self._filled = end - position
        if self._filled:
            self._view[: self._filled] = bytes(self._view[position:end])
        for number, channel in self._channels.items():
            if channel.confirming and channel.confirmed < channel.published:
                channel.confirmed = channel.published
                self.out += wire091.method(number, wire091.BASIC_ACK, channel.confirmed, wire091.ACK_MULTIPLE)
        return True

    def deliver(self) -> None:
        """Send what prefetch-counts and the counted messages allow."""
        for number, channel in self._channels.items():
            for consumer in channel.consumers:
                while len(self.out) < OUT_BYTES_MAX and self._deliver_some(number, channel, consumer):
                    pass

    def _deliver_some(self, number: int, channel: _FloorChannel, consumer: _FloorConsumer) -> bool:
        floor = self._floor
        endless = consumer.queue.startswith(ENDLESS)
        wanted = min(consumer.room, UNLIMITED if endless else floor.ready[consumer.queue])
        if wanted <= 0:
            return False
        first = channel.next_tag
        kept = floor.kept
        if kept is not None and not endless:
            count = 1
            body = kept[consumer.queue].popleft()
            (only,) = self._made(number, consumer, body).fill(first, 1)
            self.out += only
        else:
            size = floor.endless_bytes if endless else floor.size_bytes[consumer.queue]
            if consumer.block is None or consumer.block[0] != size:
                consumer.block = (size, self._made(number, consumer, bytes(size)))
            block = consumer.block[1]
            count = min(wanted, block.capacity)
            for some in block.fill(first, count):
                self.out += some
        channel.next_tag += count
        if consumer.room < UNLIMITED:
            consumer.room -= count
            channel.unacked.append((first, first + count - 1, consumer))
        if not endless:
            floor.ready[consumer.queue] -= count
        return True

    @staticmethod
    def _made(number: int, consumer: _FloorConsumer, body: bytes) -> TagBlock:
        limit = spec.MAX_FRAME_SIZE_BYTES
        return deliver_block(number, consumer.tag, consumer.queue, body, wire091.properties(), limit)

    def flush(self) -> bool:
        """Write as much as the socket takes; return whether bytes are left."""
        if self.out:
            try:
                del self.out[: self.socket.send(self.out)]
            except BlockingIOError:
                return True
            except (BrokenPipeError, ConnectionResetError):
                self.finished = True
                self.out.clear()
        return bool(self.out)

    # --- what the scanner reports ---

    def on_contents(self, run: Contents) -> None:
        """Count messages in."""
        _, _, queue, _ = run.arguments
        floor = self._floor
        floor.ready[queue] += run.messages
        floor.size_bytes[queue] = run.body_bytes
        self._channels[run.channel].published += run.messages
        if floor.kept is not None:
            assert run.position >= 0, "stamped messages are small"
            for place in range(run.position, run.position + run.messages * run.stride, run.stride):
                floor.kept[queue].append(bytes(self._data[place : place + run.body_bytes]))

    def on_acks(self, channel: int, first: int, last: int, *, multiple: bool, accepted: bool) -> None:
        """Give room again to the consumers."""
        self._channels[channel].settle(0 if multiple else first, last)

    def on_method(self, channel: int, code: int, arguments: list[Any]) -> None:
        """Answer set-up and ending methods."""
        answer = _ANSWERS[code](self, channel, arguments)
        if answer is not None:
            self.out += wire091.method(channel, *answer)

    def _tune(self, channel: int, arguments: list[Any]) -> tuple[Any, ...]:
        return wire091.CONNECTION_TUNE, CHANNEL_MAX, spec.MAX_FRAME_SIZE_BYTES, 0

    def _open_channel(self, channel: int, arguments: list[Any]) -> tuple[Any, ...]:
        self._channels[channel] = _FloorChannel()
        return wire091.CHANNEL_OPEN_OK, b""

    def _declare(self, channel: int, arguments: list[Any]) -> tuple[Any, ...]:
        queue = arguments[1]
        return wire091.QUEUE_DECLARE_OK, queue, self._floor.ready[queue], 0

    def _purge(self, channel: int, arguments: list[Any]) -> tuple[Any, ...]:
        return wire091.QUEUE_PURGE_OK, self._floor.ready.pop(arguments[1], 0)

    def _qos(self, channel: int, arguments: list[Any]) -> tuple[Any, ...]:
        self._channels[channel].prefetch = arguments[1]
        return (wire091.BASIC_QOS_OK,)

    def _consume(self, channel: int, arguments: list[Any]) -> tuple[Any, ...]:
        _, queue, tag, bits, _ = arguments
        mine = self._channels[channel]
        limited = mine.prefetch and not bits & wire091.CONSUME_NO_ACK
        room = mine.prefetch if limited else UNLIMITED
        mine.consumers.append(_FloorConsumer(tag, queue, room))
        return wire091.BASIC_CONSUME_OK, tag

    def _confirm(self, channel: int, arguments: list[Any]) -> tuple[Any, ...]:
        self._channels[channel].confirming = True
        return (wire091.CONFIRM_SELECT_OK,)

    def _close(self, channel: int, arguments: list[Any]) -> tuple[Any, ...]:
        self.finished = True
        return (wire091.CONNECTION_CLOSE_OK,)


_Answer = Callable[[FloorConnection091, int, list[Any]], tuple[Any, ...] | None]
_ANSWERS: Final[Mapping[int, _Answer]] = {
    wire091.CONNECTION_START_OK: FloorConnection091._tune,
    wire091.CONNECTION_TUNE_OK: lambda connection, channel, arguments: None,
    wire091.CONNECTION_OPEN: lambda connection, channel, arguments: (wire091.CONNECTION_OPEN_OK, ""),
    wire091.CONNECTION_CLOSE: FloorConnection091._close,
    wire091.CHANNEL_OPEN: FloorConnection091._open_channel,
    wire091.QUEUE_DECLARE: FloorConnection091._declare,
    wire091.QUEUE_PURGE: FloorConnection091._purge,
    wire091.BASIC_QOS: FloorConnection091._qos,
    wire091.BASIC_CONSUME: FloorConnection091._consume,
    wire091.CONFIRM_SELECT: FloorConnection091._confirm,
}
