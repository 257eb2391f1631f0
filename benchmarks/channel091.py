"""One AMQP 0-9-1 channel of the load generator: its publish loops, its confirms, its consumers.

The publish loops take turns, message by message or burst by burst, and go on where they stopped when the
socket was full: none gets more than its share. Deliveries are acknowledged once for each socket read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import spec, wire091
from benchmarks.blocks091 import ack_block
from benchmarks.confirms091 import Confirms
from benchmarks.consumer091 import Consumer
from benchmarks.errors import PeerError
from benchmarks.publisher091 import Publisher
from benchmarks.scan091 import Contents

if TYPE_CHECKING:
    from benchmarks.peer091 import Peer091


class PeerChannel:
    """One channel; towards the load process it is one producer, however many loops it has."""

    def __init__(self, peer: Peer091, number: int, what: spec.Channel) -> None:
        """Make the channel's records; `opening` has the frames that open it."""
        self.peer = peer
        self.number = number
        self.what = what
        self.confirms = Confirms() if what.confirms else None
        self.publishers = [Publisher(self, one, mark) for mark, one in enumerate(what.publish, 1)]
        self.consumers = [Consumer(self, one, index) for index, one in enumerate(what.consume)]
        self.paused = False
        """The broker has said channel.flow(active=false)."""
        self._by_tag = {
            tag: (consumer, index) for consumer in self.consumers for index, tag in enumerate(consumer.tags)
        }
        self._turn = 0
        self._next_tag = 1
        self._acks = ack_block(number)
        self._ack_each: list[tuple[int, int]] = []
        self._ack_up_to = 0

    def opening(self) -> tuple[bytes, int]:
        """Return the methods that open the channel, and how many answers they get.

        Each queue is declared passively: one that is missing then ends the run, instead of swallowing it.
        """
        groups: list[spec.Publish | spec.Consume] = [*self.what.publish, *self.what.consume]
        queues = dict.fromkeys(queue for group in groups for queue in group.addresses)
        methods = [wire091.method(self.number, wire091.CHANNEL_OPEN, "")]
        methods += [
            wire091.method(self.number, wire091.QUEUE_DECLARE, 0, queue, wire091.DECLARE_PASSIVE, {})
            for queue in queues
        ]
        if self.confirms is not None:
            methods.append(wire091.method(self.number, wire091.CONFIRM_SELECT, 0))
        return b"".join(methods), len(methods)

    # --- publishing ---

    def start(self, now_ns: int) -> None:
        """Begin: rates count from now on."""
        for publisher in self.publishers:
            publisher.pace.started_ns = now_ns

    def due_ns(self) -> int | None:
        """Return when the next message of a fixed-rate group is due, None if there is no such group."""
        due = [ns for ns in (publisher.pace.due_ns() for publisher in self.publishers) if ns is not None]
        return min(due, default=None)

    def produce(self, now_ns: int) -> int:
        """Publish in turns until nothing more may be sent or enough waits for the socket.

        Returns:
            The number of messages.
        """
        if self.paused or self.peer.blocked:
            return 0
        publishers, out, limit = self.publishers, self.peer.out, self.peer.out_bytes_max
        turn, total, idle = self._turn, 0, 0
        while idle < len(publishers) and len(out) < limit:
            count = publishers[turn].produce(now_ns)
            turn = (turn + 1) % len(publishers)
            idle = 0 if count else idle + 1
            total += count
        self._turn = turn
        return total

    def confirmed(self, first: int, last: int, *, multiple: bool, accepted: bool, now_ns: int) -> None:
        """Give each group the confirms that are its own.

        Raises:
            PeerError: the channel is not in confirm mode, or the numbers are wrong.
        """
        if self.confirms is None:
            raise PeerError("basic.ack on a channel without confirms")
        first, marks = self.confirms.take(first, last, multiple=multiple)
        if not marks:
            return
        last = first + len(marks) - 1
        for publisher in self.publishers:
            own = marks.count(publisher.mark)
            if own:
                publisher.pace.confirmed(own, first, last, accepted=accepted, now_ns=now_ns)

    # --- consuming ---

    def delivered(self, run: Contents, data: bytearray, now_ns: int) -> None:
        """Count a run of deliveries and note what to acknowledge.

        Raises:
            PeerError: the delivery-tags do not follow each other, or the consumer is unknown.
        """
        first = run.first_tag
        if first != self._next_tag:
            raise PeerError(f"delivery-tag {first} where {self._next_tag} was due")
        self._next_tag += run.messages
        known = self._by_tag.get(run.arguments[0])
        if known is None:
            raise PeerError(f"a delivery for consumer {run.arguments[0]!r}, which does not exist")
        consumer, index = known
        consumer.delivered(index, run, data, now_ns)
        if not consumer.manual:
            return
        last = self._next_tag - 1
        if consumer.what.settle is spec.Settle.RANGE:
            self._ack_up_to = last
        elif self._ack_each and self._ack_each[-1][1] + 1 == first:
            self._ack_each[-1] = (self._ack_each[-1][0], last)
        else:
            self._ack_each.append((first, last))

    def after_read(self) -> None:
        """Acknowledge what was read, once for one socket read."""
        if not self._ack_each and not self._ack_up_to:
            return
        out = self.peer.out
        for first, last in self._ack_each:
            for some in self._acks.fill(first, last - first + 1):
                out += some
        self._ack_each.clear()
        if self._ack_up_to:
            # Single ones below it have been acknowledged just now: none is acknowledged twice.
            out += wire091.method(self.number, wire091.BASIC_ACK, self._ack_up_to, wire091.ACK_MULTIPLE)
            self._ack_up_to = 0
        for consumer in self.consumers:
            consumer.acked()
