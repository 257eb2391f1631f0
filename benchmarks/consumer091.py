"""Consumers of one AMQP 0-9-1 channel: a prefetch-count, which the broker must never exceed.

A `Consumer` is a group of consumers that behave alike (`spec.Consume`), one for each queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks import spec, wire091
from benchmarks.errors import PeerError
from benchmarks.scan091 import Contents
from benchmarks.stream import read_stamps

if TYPE_CHECKING:
    from benchmarks.channel091 import PeerChannel

_STAMP_BYTES: Final = 8
PREFETCH_MAX: Final = 0xFFFF


class Consumer:
    """A group of consumers of one channel."""

    def __init__(self, channel: PeerChannel, what: spec.Consume, number: int) -> None:
        """Make the group.

        Args:
            channel: the channel it consumes on.
            what: how the group behaves.
            number: of the group in its channel; consumer-tags are made of it.

        Raises:
            PeerError: the prefetch-count is more than the field holds.
        """
        if what.credit > PREFETCH_MAX:
            raise PeerError(f"a prefetch-count of {what.credit} does not fit: at most {PREFETCH_MAX}")
        self.what = what
        self.stream = channel.peer.streams[what.stream]
        self.tags = [f"b{number}.{index}" for index in range(len(what.addresses))]
        self.manual = what.settle is not spec.Settle.PRESETTLED
        self._channel = channel
        self._unacked = [0] * len(what.addresses)
        self._touched: set[int] = set()

    def start(self) -> None:
        """Ask for deliveries: the prefetch-count first, it is for consumers that come after it."""
        out, number = self._channel.peer.out, self._channel.number
        out += wire091.method(number, wire091.BASIC_QOS, 0, self.what.credit, 0)
        bits = 0 if self.manual else wire091.CONSUME_NO_ACK
        arguments = {"x-stream-offset": self.what.offset} if self.what.offset else {}
        for tag, queue in zip(self.tags, self.what.addresses, strict=True):
            out += wire091.method(number, wire091.BASIC_CONSUME, 0, queue, tag, bits, arguments)

    def delivered(self, index: int, run: Contents, data: bytearray, now_ns: int) -> None:
        """Count a run of deliveries to one consumer.

        Raises:
            PeerError: more were sent than the prefetch-count allows.
        """
        self.stream.delivered += run.messages
        if self.manual:
            self._unacked[index] += run.messages
            excess = self._unacked[index] - self.what.credit
            if excess > 0:
                raise PeerError(f"the broker sent {excess} deliveries more than the prefetch-count allows")
            self._touched.add(index)
        else:
            self.stream.settled += run.messages
        if self.what.stamp:
            self._sample(run, data, now_ns)

    def acked(self) -> None:
        """Everything delivered so far has been acknowledged."""
        for index in self._touched:
            self.stream.settled += self._unacked[index]
            self._unacked[index] = 0
        self._touched.clear()

    def _sample(self, run: Contents, data: bytearray, now_ns: int) -> None:
        """Read the stamps of a run of deliveries."""
        if run.position < 0 or run.body_bytes < _STAMP_BYTES:
            raise PeerError("a stamped message came without its stamp in one piece")
        stamps = read_stamps(data, run.position, run.stride, run.messages)
        self.stream.sample_deliveries(stamps, now_ns)
