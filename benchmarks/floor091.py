"""The floor's AMQP 0-9-1 side: a peer that takes and gives messages and is no broker.

It answers the handshake, counts what is published, confirms with one basic.ack a read, and sends back as
many messages of a queue as it has counted in, as far as each consumer's prefetch-count reaches. It keeps no
message, routes nothing and remembers no delivery. Its queues are those of `floor`: one client may publish
in one protocol and another count in the other, though the bytes are then not the publisher's.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import method_frame
from amqp10broker.protocols.connection import AMQP_091_HEADER
from benchmarks import spec
from benchmarks.blocks import TagBlock, deliver_block
from benchmarks.errors import WireError
from benchmarks.floor_counts import Floor, FloorConnection
from benchmarks.peer091 import CHANNEL_MAX
from benchmarks.scan091 import Contents, Scanner091

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


class FloorConnection091(FloorConnection):
    """One client of the floor peer that speaks AMQP 0-9-1."""

    def __init__(self, floor: Floor, stream: socket.socket) -> None:
        """Take over an accepted socket, in which the client's protocol header still waits."""
        super().__init__(floor, stream)
        self.out += method_frame(0, methods.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US"))
        self._scanner = Scanner091(self, alike_in_size=floor.kept is not None)
        self._greeted = False
        self._channels: dict[int, _FloorChannel] = {}

    def scan(self, data: bytearray, position: int, end: int) -> int:
        """Pass over the protocol header, and act on every whole frame."""
        if not self._greeted:
            self._greeted = True
            position += len(AMQP_091_HEADER)
        return self._scanner.scan(data, position, end)

    def answer(self) -> None:
        """Confirm all that was published, at once."""
        for number, channel in self._channels.items():
            if channel.confirming and channel.confirmed < channel.published:
                channel.confirmed = channel.published
                self.out += method_frame(number, methods.BasicAck(channel.confirmed, multiple=True))

    def sending(self) -> Iterator[Callable[[], bool]]:
        """Yield a step for each consumer."""
        for number, channel in self._channels.items():
            for consumer in channel.consumers:
                yield partial(self._deliver_to, number, channel, consumer)

    def _deliver_to(self, number: int, channel: _FloorChannel, consumer: _FloorConsumer) -> bool:
        wanted = min(consumer.room, self.floor.waiting(consumer.queue))
        if wanted <= 0:
            return False
        first = channel.next_tag
        kept = self.floor.next_kept(consumer.queue)
        if kept is not None:
            count, block = 1, deliver_block(number, consumer.tag, consumer.queue, kept)
        else:
            size = self.floor.size(consumer.queue)
            if consumer.block is None or consumer.block[0] != size:
                made = deliver_block(number, consumer.tag, consumer.queue, bytes(size))
                consumer.block = (size, made)
            block = consumer.block[1]
            count = min(wanted, block.capacity)
        for some in block.fill(first, count):
            self.out += some
        channel.next_tag += count
        if consumer.room < UNLIMITED:
            consumer.room -= count
            channel.unacked.append((first, first + count - 1, consumer))
        self.floor.sent(consumer.queue, count)
        return True

    # --- what the scanner reports ---

    def on_contents(self, run: Contents) -> None:
        """Count messages in."""
        assert isinstance(run.method, methods.BasicPublish)
        floor, queue = self.floor, run.method.routing_key
        floor.came(queue, run.messages, run.body_bytes)
        self._channels[run.channel].published += run.messages
        if floor.kept is not None:
            assert run.position >= 0, "stamped messages are small"
            for place in range(run.position, run.position + run.messages * run.stride, run.stride):
                floor.kept[queue].append(bytes(self.data[place : place + run.body_bytes]))

    def on_acks(self, channel: int, first: int, last: int, *, multiple: bool, accepted: bool) -> None:
        """Give room again to the consumers."""
        self._channels[channel].settle(0 if multiple else first, last)

    def on_method(self, channel: int, method: methods.Method) -> None:
        """Answer set-up and ending methods."""
        answer = self._answer(channel, method)
        if answer is not None:
            self.out += method_frame(channel, answer)

    def _answer(self, channel: int, method: methods.Method) -> methods.Method | None:
        match method:
            case methods.ConnectionStartOk():
                return methods.ConnectionTune(CHANNEL_MAX, spec.MAX_FRAME_SIZE_BYTES, 0)
            case methods.ConnectionTuneOk():
                return None
            case methods.ConnectionOpen():
                return methods.ConnectionOpenOk()
            case methods.ConnectionClose():
                self.finished = True
                return methods.ConnectionCloseOk()
            case methods.ChannelOpen():
                self._channels[channel] = _FloorChannel()
                return methods.ChannelOpenOk()
            case methods.QueueDeclare():
                return methods.QueueDeclareOk(method.queue, self.floor.ready[method.queue], 0)
            case methods.QueuePurge():
                return methods.QueuePurgeOk(self.floor.ready.pop(method.queue, 0))
            case methods.BasicQos():
                self._channels[channel].prefetch = method.prefetch_count
                return methods.BasicQosOk()
            case methods.BasicConsume():
                mine = self._channels[channel]
                room = UNLIMITED if method.no_ack or not mine.prefetch else mine.prefetch
                mine.consumers.append(_FloorConsumer(method.consumer_tag, method.queue, room))
                return methods.BasicConsumeOk(method.consumer_tag)
            case methods.ConfirmSelect():
                self._channels[channel].confirming = True
                return methods.ConfirmSelectOk()
            case _:
                raise WireError(f"the floor peer does not know {method.NAME}")
