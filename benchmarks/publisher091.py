"""Publish loops of one AMQP 0-9-1 channel.

A `Publisher` is a group of loops that behave alike (`spec.Publish`), each to a queue of its own through the
default exchange. There is no credit: the group's own rules and the socket are all that holds it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import spec
from benchmarks.blocks091 import PublishBlock
from benchmarks.pace import Pace

if TYPE_CHECKING:
    from benchmarks.channel091 import PeerChannel


class Publisher:
    """A group of publish loops of one channel."""

    def __init__(self, channel: PeerChannel, what: spec.Publish, mark: int) -> None:
        """Make the group; `prepare` makes its frames.

        Args:
            channel: the channel it publishes on.
            what: how the group behaves.
            mark: 1 to 255, the group's number among the channel's confirms.
        """
        self.what = what
        self.mark = mark
        self.pace = Pace(what, channel.peer.streams)
        self._channel = channel
        self._block: PublishBlock | None = None
        self._queue = 0
        """The queue whose turn it is."""

    def prepare(self, frame_max: int) -> None:
        """Make the group's frames, none larger than the broker takes."""
        self._block = PublishBlock(self._channel.number, self.what, frame_max)

    def produce(self, now_ns: int) -> int:
        """Publish what may be published in one turn, to one queue; return the number of messages."""
        block = self._block
        assert block is not None, "the frames are made when the connection is open"
        channel, what = self._channel, self.what
        count = min(self.pace.allowance(now_ns), what.burst, block.capacity)
        first = 0
        if channel.confirms is not None:
            count = min(count, channel.confirms.room)
            first = channel.confirms.next
        if count <= 0:
            return 0
        queue = self._queue
        self._queue = (queue + 1) % len(what.addresses)
        if what.stamp:
            block.stamp(queue, self.pace.due_times(count, now_ns))
        channel.peer.out += block.fill(queue, count)
        if channel.confirms is not None:
            channel.confirms.note(count, self.mark)
        self.pace.sent(first, count, now_ns)
        return count
