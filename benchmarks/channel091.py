"""One AMQP 0-9-1 channel of the load generator: its publish loops, its confirms, its consumers.

A `Publisher` is a group of loops that behave alike (`spec.Publish`), each to a queue of its own through the
default exchange. There is no credit: the group's own rules and the socket are all that holds it back. The
loops take turns, message by message or burst by burst, and go on where they stopped when the socket was
full: none gets more than its share. `Confirms` counts publishes from 1; the broker acknowledges singly, in
any order, or all up to a number at once. A `Consumer` is a group that consumes alike (`spec.Consume`), one
for each queue, with a prefetch-count that the broker must never exceed. Deliveries are acknowledged once for
each socket read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import method_frame
from benchmarks import spec
from benchmarks.blocks import PublishBlock, ack_block
from benchmarks.errors import PeerError
from benchmarks.pace import Pace
from benchmarks.ring import RING, Ring
from benchmarks.scan091 import Contents
from benchmarks.stream import read_stamps

if TYPE_CHECKING:
    from benchmarks.peer091 import Peer091

_STAMP_BYTES: Final = 8
PREFETCH_MAX: Final = 0xFFFF


class Confirms:
    """The sequence numbers of one channel."""

    __slots__ = ("_low", "_ring", "next")

    def __init__(self) -> None:
        """Start at 1, with nothing unconfirmed."""
        self._ring = Ring()
        self._low = 1
        """The lowest number that may still wait."""
        self.next = 1
        """The next publish gets this number."""

    @property
    def room(self) -> int:
        """How many messages may be published before the ring is full."""
        return RING - (self.next - self._low)

    def note(self, count: int, mark: int) -> None:
        """Give the next `count` numbers to a group, by its mark."""
        self._ring.note(self.next, count, mark)
        self.next += count

    def take(self, first: int, last: int, *, multiple: bool) -> tuple[int, bytes]:
        """Take a confirm.

        Args:
            first: first number of a run of single confirms.
            last: its last number; with `multiple`, everything up to here, and 0 is everything sent.
            multiple: as in basic.ack.

        Returns:
            The lowest number named, and the marks of the groups from there to the last one.

        Raises:
            PeerError: a number was never published, or is confirmed a second time.
        """
        if multiple:
            first = self._low
            last = last or self.next - 1
        if last >= self.next:
            raise PeerError(f"the broker confirmed number {last}, only {self.next - 1} were published")
        if last < first or (not multiple and first < self._low):
            if multiple:
                return first, b""
            raise PeerError(f"the broker confirmed number {first} a second time")
        marks = self._ring.take(first, last - first + 1)
        if not multiple and 0 in marks:
            raise PeerError(f"the broker confirmed number {first + marks.index(0)} a second time")
        if first == self._low:
            self._low = last + 1
            while self._low < self.next and not self._ring.waits(self._low):
                self._low += 1
        return first, marks


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
        out += method_frame(number, methods.BasicQos(prefetch_count=self.what.credit))
        arguments = {"x-stream-offset": self.what.offset} if self.what.offset else {}
        for tag, queue in zip(self.tags, self.what.addresses, strict=True):
            consume = methods.BasicConsume(queue, tag, no_ack=not self.manual, arguments=arguments)
            out += method_frame(number, consume)

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


class PeerChannel:
    """One channel; towards the load process it is one producer, however many loops it has."""

    def __init__(self, peer: Peer091, number: int, what: spec.Channel) -> None:
        """Make the channel's records; `opening` has the frames that open it."""
        self.peer = peer
        self.number = number
        self.what = what
        self.confirms = Confirms() if what.confirms else None
        self.publishers = [Publisher(self, one, mark) for mark, one in enumerate(what.publish, 1)]
        self.paces = [publisher.pace for publisher in self.publishers]
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
        asked: list[methods.Method] = [methods.ChannelOpen()]
        asked += [methods.QueueDeclare(queue, passive=True) for queue in queues]
        if self.confirms is not None:
            asked.append(methods.ConfirmSelect())
        return b"".join(method_frame(self.number, one) for one in asked), len(asked)

    # --- publishing ---

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
        assert isinstance(run.method, methods.BasicDeliver)
        known = self._by_tag.get(run.method.consumer_tag)
        if known is None:
            raise PeerError(f"a delivery for consumer {run.method.consumer_tag!r}, which does not exist")
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
            out += method_frame(self.number, methods.BasicAck(self._ack_up_to, multiple=True))
            self._ack_up_to = 0
        for consumer in self.consumers:
            consumer.acked()
