"""One session of the load generator and its links: windows, credit, turns, confirms, settlement.

`PeerSession` keeps the windows by the formulas of part 2 §2.5.6, finds out which group of links a confirm
belongs to, and settles what was delivered, once for each socket read. A `Sender` is a group of links that
send alike (`spec.Publish`). It decides how many messages may go now: the group's own rules (`pace`), each
link's credit (part 2 §2.6.7) and the broker's session window (§2.5.6) must all agree. A `Receiver` is a group
that receives alike (`spec.Consume`): credit is granted, set again at half, and never to be exceeded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from amqp10broker.protocols.amqp10.performatives import Begin, Flow
from amqp10broker.protocols.serial import MASK, diff, limit_left
from benchmarks import spec, wire
from benchmarks.blocks import DispositionBlock, LargeTransfer, TransferBlock
from benchmarks.errors import PeerError
from benchmarks.pace import Pace
from benchmarks.ring import RING, Ring
from benchmarks.scan import Run
from benchmarks.stream import read_stamps

if TYPE_CHECKING:
    from benchmarks.peer import Connection


class CreditTaker(Protocol):
    """What sends on links."""

    def set_credit(self, index: int, flow: Flow) -> None: ...


class Sender:
    """A group of links of one session on which we send."""

    def __init__(self, session: PeerSession, what: spec.Publish, first_handle: int, mark: int) -> None:
        """Make the group; its links have the handles from `first_handle` on.

        `mark` is 1 to 255, the group's number in the session's ring of unconfirmed deliveries.
        """
        self.session = session
        self.peer = session.peer
        self.what = what
        self.stream = session.peer.streams[what.stream]
        self.pace = Pace(what, session.peer.streams)
        self.paces = (self.pace,)
        self.first_handle = first_handle
        self.mark = mark
        # Counts since attach, not wrapped; only their difference is ever used.
        self.sent = [0] * len(what.addresses)
        self.limit = [0] * len(what.addresses)
        self.cursor = 0
        self._large: LargeTransfer | None = None
        self._large_progress: tuple[int, int, int] | None = None
        """Of a message of which not all frames are sent: index of its link, delivery-id, frames sent."""
        self._payload, *others = [
            wire.data_message(bytes(size), durable=what.durable, sections=what.sections)
            for size in what.sizes
        ]
        stamp_at = len(self._payload) - what.size_bytes if what.stamp else None
        self._block = TransferBlock(
            session.channel, self._payload, *others, settled=what.settled, stamp_offset=stamp_at
        )

    def cut(self, max_frame_size_bytes: int) -> None:
        """Learn the broker's frame size; a message that does not fit is sent in several frames."""
        if self._block.frame_bytes_max <= max_frame_size_bytes:
            return
        if self.what.stamp or self.what.mixed:
            raise PeerError("stamped and mixed messages must fit in one frame")
        channel, settled = self.session.channel, self.what.settled
        self._large = LargeTransfer(
            channel, self._payload, settled=settled, max_frame_size_bytes=max_frame_size_bytes
        )

    def set_credit(self, index: int, flow: Flow) -> None:
        """Take the broker's credit: link-credit(snd) = delivery-count(rcv) + link-credit(rcv) - ours."""
        if flow.link_credit is None:
            return
        credit = limit_left(flow.delivery_count or 0, flow.link_credit, self.sent[index] & MASK)
        self.limit[index] = self.sent[index] + credit
        if flow.drain:
            # §2.6.7: use up the credit at once by advancing delivery-count, and say so.
            self.sent[index] = self.limit[index]
            count = self.sent[index] & MASK
            self.session.tell(
                handle=self.first_handle + index, delivery_count=count, link_credit=0, drain=True
            )

    def _ready(self) -> list[int]:
        """Return the links that have credit."""
        sent, limit = self.sent, self.limit
        return [index for index in range(len(sent)) if limit[index] > sent[index]]

    def produce(self, now_ns: int) -> int:
        """Send what may be sent: give each link with credit one turn; return the number of frames.

        Where there are not enough messages for all of them, the next call goes on with the next link.
        """
        if self._large is not None:
            return self._produce_large(self._large, now_ns)
        allowed = min(self.pace.allowance(now_ns), self.session.remote_window)
        if allowed <= 0:
            return 0
        sent, limit, burst, most = self.sent, self.limit, self.what.burst, self._block.capacity
        ready = self._ready()
        turns = -(-allowed // burst)
        if turns < len(ready):
            start = bisect_left(ready, self.cursor)
            ready = (ready[start:] + ready[:start])[:turns]
            self.cursor = ready[-1] + 1
        if burst == 1:
            for index in ready:
                sent[index] += 1
            handles = bytes([self.first_handle + index for index in ready])
            for start in range(0, len(handles), most):
                some = handles[start : start + most]
                self._send(some, len(some), now_ns)
            return len(handles)
        total = 0
        for index in ready:
            count = min(burst, limit[index] - sent[index], allowed - total, most)
            if count <= 0:
                break
            sent[index] += count
            self._send(self.first_handle + index, count, now_ns)
            total += count
        return total

    def _send(self, handles: int | bytes, count: int, now_ns: int) -> None:
        """Write `count` transfers and count them in session, group and stream."""
        frames = self._block.fill(handles, self.session.next_delivery_id, count)
        if self.what.stamp:
            self._block.stamp(self.pace.due_times(count, now_ns))
        self.peer.out += frames
        self._number(count, now_ns)
        self.session.sent_frames(count)

    def _number(self, count: int, now_ns: int) -> None:
        """Give `count` deliveries their ids."""
        session = self.session
        if not self.what.settled:
            session.note_unconfirmed(count, self.mark)
        self.pace.sent(session.next_delivery_id, count, now_ns)
        session.next_delivery_id = (session.next_delivery_id + count) & MASK

    def _produce_large(self, large: LargeTransfer, now_ns: int) -> int:
        """Send frames of one message, as many as the window allows; the rest follows later."""
        session = self.session
        if session.remote_window <= 0:
            return 0
        if self._large_progress is None:
            ready = self._ready()
            if not ready or self.pace.allowance(now_ns) <= 0:
                return 0
            place = bisect_left(ready, self.cursor) % len(ready)
            self.cursor = ready[place] + 1
            self._large_progress = (ready[place], session.next_delivery_id, 0)
            # Ids are given at the first frame, so that another group's deliveries may lie in between.
            self._number(1, now_ns)
        index, delivery_id, start = self._large_progress
        count = min(session.remote_window, large.frame_count - start)
        for piece in large.frames(self.first_handle + index, delivery_id, start, start + count):
            self.peer.out += piece
        session.sent_frames(count)
        whole = start + count == large.frame_count
        self.sent[index] += whole
        self._large_progress = None if whole else (index, delivery_id, start + count)
        return count


class Receiver:
    """A group of links of one session on which we receive."""

    def __init__(self, session: PeerSession, what: spec.Consume, first_handle: int) -> None:
        """Make the group; its links have the handles from `first_handle` on."""
        self.session = session
        self.what = what
        self.stream = session.peer.streams[what.stream]
        self.first_handle = first_handle
        self.credit = [0] * len(what.addresses)
        self.delivery_count = [0] * len(what.addresses)
        self._wanting: set[int] = set()

    def start(self) -> None:
        """Grant the first credit on every link."""
        self._wanting.update(range(len(self.credit)))

    def delivered(self, index: int, count: int) -> None:
        """Count deliveries on one link.

        Raises:
            PeerError: more were sent than we had granted.
        """
        left = self.credit[index] - count
        if left < 0:
            raise PeerError(f"the broker sent {-left} deliveries more than link-credit allowed")
        self.credit[index] = left
        self.delivery_count[index] += count
        self.stream.delivered += count
        if left <= self.what.credit // 2:
            self._wanting.add(index)

    def advance(self, index: int, flow: Flow) -> None:
        """Take the sender's delivery-count from a flow (it moves on by itself when drained)."""
        if flow.delivery_count is not None:
            jump = diff(flow.delivery_count, self.delivery_count[index] & MASK)
            if jump > 0:
                self.delivery_count[index] += jump
                self.credit[index] = max(0, self.credit[index] - jump)

    def top_up(self) -> None:
        """Grant full credit again on every link that has used half of it."""
        for index in self._wanting:
            self.credit[index] = self.what.credit
            count, credit = self.delivery_count[index] & MASK, self.what.credit
            self.session.tell(handle=self.first_handle + index, delivery_count=count, link_credit=credit)
        self._wanting.clear()

    def sample(self, data: bytearray, run: Run, handle: int, now_ns: int) -> None:
        """Read the stamps of those deliveries of a run that came on one handle of the broker's."""
        place = run.position + run.stride - self.what.size_bytes
        stamps = read_stamps(data, place, run.stride, run.frames)
        if not isinstance(run.handles, int):
            stamps = [stamp for stamp, other in zip(stamps, run.handles, strict=True) if other == handle]
        self.stream.sample_deliveries(stamps, now_ns)


class PeerSession:
    """One session: its two windows and its links."""

    def __init__(self, peer: Connection, channel: int, what: spec.Session) -> None:
        """Make the session's records; `Peer.open` sends the frames."""
        self.peer = peer
        self.channel = channel
        self.what = what
        self.next_outgoing_id = 0
        self.next_delivery_id = 0
        self.remote_window = 0
        self.next_incoming_id = 0
        self.incoming_window = what.incoming_window
        self.senders: list[Sender] = []
        self.receivers: list[Receiver] = []
        handle = 0
        for publish in what.publish:
            self.senders.append(Sender(self, publish, handle, len(self.senders) + 1))
            handle += len(publish.addresses)
        for consume in what.consume:
            self.receivers.append(Receiver(self, consume, handle))
            handle += len(consume.addresses)
        if handle > spec.LINKS_PER_SESSION_MAX:
            raise PeerError(f"{handle} links in a session, at most {spec.LINKS_PER_SESSION_MAX} fit")
        self.sending: dict[int, tuple[CreditTaker, int]] = {}
        self.receiving: dict[int, tuple[Receiver, int]] = {}
        """By the broker's handle: the group and the number of the link in it."""
        self._ring = None if all(publish.settled for publish in what.publish) else Ring()
        self._dispositions = DispositionBlock(channel)
        self._settle_each = any(consume.settle is spec.Settle.EACH for consume in what.consume)
        self._to_settle: list[tuple[int, int]] = []
        self._partial: tuple[int, bool] | None = None
        """delivery-id and settled of a delivery whose last frame has not come yet."""

    def begin(self, handle_max: int) -> Begin:
        """Return what begins the session."""
        window = self.what.incoming_window
        return Begin(next_outgoing_id=0, incoming_window=window, outgoing_window=MASK, handle_max=handle_max)

    def tell(self, **link: int | bool) -> None:
        """Send a flow, of a link with what is told of it; it opens our window to its width."""
        self.incoming_window = self.what.incoming_window
        flow = Flow(
            next_incoming_id=self.next_incoming_id,
            incoming_window=self.incoming_window,
            next_outgoing_id=self.next_outgoing_id,
            outgoing_window=MASK,
            **link,  # type: ignore[arg-type]
        )
        self.peer.out += wire.frame(flow, channel=self.channel)

    def flow(self, flow: Flow) -> None:
        """Take the broker's windows and credit (§2.5.6, §2.6.7)."""
        window = flow.incoming_window
        self.remote_window = limit_left(flow.next_incoming_id or 0, window, self.next_outgoing_id)
        if flow.handle in self.sending:
            sender, index = self.sending[flow.handle]
            sender.set_credit(index, flow)
        elif flow.handle in self.receiving:
            receiver, index = self.receiving[flow.handle]
            receiver.advance(index, flow)
        if flow.echo:
            self.tell()

    # --- sending ---

    def sent_frames(self, count: int) -> None:
        """Count transfer frames against the broker's window."""
        self.next_outgoing_id = (self.next_outgoing_id + count) & MASK
        self.remote_window -= count

    def note_unconfirmed(self, count: int, mark: int) -> None:
        """Remember whose the next `count` delivery-ids are."""
        assert self._ring is not None, "only unsettled deliveries are noted"
        self._ring.note(self.next_delivery_id, count, mark)

    def confirm(self, first: int, last: int, *, accepted: bool, now_ns: int) -> None:
        """Give each group the confirms that are its own; ids that wait for none are passed over.

        Raises:
            PeerError: the range is longer than anything we can have in flight.
        """
        count = ((last - first) & MASK) + 1
        if count > RING or self._ring is None:
            raise PeerError(f"disposition {first}..{last} names deliveries that were never sent")
        owners = self._ring.take(first, count)
        for sender in self.senders:
            own = owners.count(sender.mark)
            if own:
                sender.pace.confirmed(own, first, last, accepted=accepted, now_ns=now_ns)

    # --- receiving ---

    def transfers(self, run: Run, now_ns: int) -> None:
        """Count a run of transfer frames in window, links and streams.

        Raises:
            PeerError: window or credit were exceeded, or the handle is unknown.
        """
        self.next_incoming_id = (self.next_incoming_id + run.frames) & MASK
        self.incoming_window -= run.frames
        if self.incoming_window < 0:
            raise PeerError("the broker sent more transfers than our incoming-window allowed")
        first, settled = run.first_delivery_id, run.settled
        if self._partial is not None:
            # A continuation may leave out what the first frame said (§2.7.5).
            first, settled = self._partial
            self._partial = None
        assert first is not None, "the first transfer of a delivery has a delivery-id"
        if run.more:
            self._partial = (first, settled)
            return
        if isinstance(run.handles, int):
            self._delivered(run.handles, run.frames, run, settled, now_ns)
        else:
            for handle, count in Counter(run.handles).items():
                self._delivered(handle, count, run, settled, now_ns)
        if settled:
            return
        last = (first + run.frames - 1) & MASK
        if self._to_settle and (self._to_settle[-1][1] + 1) & MASK == first:
            first, _ = self._to_settle.pop()
        self._to_settle.append((first, last))

    def _delivered(self, handle: int, count: int, run: Run, settled: bool, now_ns: int) -> None:
        known = self.receiving.get(handle)
        if known is None:
            raise PeerError(f"transfer on handle {handle}, which is not attached")
        receiver, index = known
        receiver.delivered(index, count)
        if not settled and receiver.what.settle is spec.Settle.PRESETTLED:
            raise PeerError("the broker sent an unsettled transfer on a link of mode settled")
        receiver.stream.settled += count
        if receiver.what.stamp:
            receiver.sample(self.peer.data, run, handle, now_ns)

    def after_read(self) -> None:
        """Settle what was read, grant credit, open the window: once for one socket read."""
        for first, last in self._to_settle:
            if self._settle_each:
                count = ((last - first) & MASK) + 1
                for some in self._dispositions.fill(first, count):
                    self.peer.out += some
            else:
                self.peer.out += wire.disposition_frame(self.channel, receiver=True, first=first, last=last)
        self._to_settle.clear()
        for receiver in self.receivers:
            receiver.top_up()
        if self.incoming_window <= self.what.incoming_window // 2:
            self.tell()
