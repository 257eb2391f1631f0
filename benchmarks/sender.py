"""Sending links: credit, turns, rates and batches.

A `Sender` is a group of links of one session that behave alike (`spec.Publish`). It decides how many
messages may go now: the group's own rules (`pace`), each link's credit (part 2 §2.6.7) and the broker's
session window (§2.5.6) must all agree.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from benchmarks import spec, wire
from benchmarks.blocks import Block, LargeTransfer, MixedBlock, TransferBlock
from benchmarks.errors import PeerError
from benchmarks.pace import Pace
from benchmarks.scan import FlowState
from benchmarks.wire import SERIAL_MASK, serial_difference

if TYPE_CHECKING:
    from benchmarks.peer import Peer
    from benchmarks.session import PeerSession


class Sender:
    """A group of links of one session on which we send."""

    def __init__(self, session: PeerSession, what: spec.Publish, first_handle: int, mark: int) -> None:
        """Make the group; its links have the handles from `first_handle` on.

        Args:
            session: the session the links belong to.
            what: how the group behaves.
            first_handle: our handle of the group's first link.
            mark: 1 to 255, the group's number in the session's ring of unconfirmed deliveries.
        """
        self.session = session
        self.what = what
        self.stream = session.peer.streams[what.stream]
        self.pace = Pace(what, session.peer.streams)
        self.first_handle = first_handle
        self.mark = mark
        # Counts since attach, not wrapped; only their difference is ever used.
        self.sent = [0] * len(what.addresses)
        self.limit = [0] * len(what.addresses)
        self.cursor = 0
        self._large: LargeTransfer | None = None
        self._large_progress: tuple[int, int, int] | None = None
        payload = self._message(what.size_bytes)
        self._payload = payload
        self._block: Block
        if what.mixed:
            # 16 sizes in an order that is no ramp: 7 and 16 have no common divisor.
            shares = (0.5 + (place * 7 % 16) / 15 for place in range(16))
            messages = [self._message(round(what.size_bytes * share)) for share in shares]
            self._block = MixedBlock(session.channel, messages, settled=what.settled)
        else:
            stamp_offset = len(payload) - what.size_bytes if what.stamp else None
            self._block = TransferBlock(
                session.channel, payload, settled=what.settled, stamp_offset=stamp_offset
            )

    def _message(self, body_bytes: int) -> bytes:
        what = self.what
        return wire.data_message(bytes(body_bytes), durable=what.durable, sections=what.sections)

    def cut(self, max_frame_size_bytes: int) -> None:
        """Learn the broker's frame size; a message that does not fit is sent in several frames."""
        if self._block.frame_bytes_max <= max_frame_size_bytes:
            return
        if self.what.stamp or self.what.mixed:
            raise PeerError("stamped and mixed messages must fit in one frame")
        self._large = LargeTransfer(
            self.session.channel,
            self._payload,
            settled=self.what.settled,
            max_frame_size_bytes=max_frame_size_bytes,
        )

    def set_credit(self, index: int, flow: FlowState) -> None:
        """Take the broker's credit: link-credit(snd) = delivery-count(rcv) + link-credit(rcv) - ours."""
        if flow.link_credit is None:
            return
        count = self.sent[index] & SERIAL_MASK
        credit = serial_difference((flow.delivery_count or 0) + flow.link_credit & SERIAL_MASK, count)
        self.limit[index] = self.sent[index] + max(0, credit)
        if flow.drain:
            # §2.6.7: use up the credit at once by advancing delivery-count, and say so.
            self.sent[index] = self.limit[index]
            self.session.tell_link(self.first_handle + index, self.sent[index] & SERIAL_MASK, 0, drain=True)

    @property
    def peer(self) -> Peer:
        """The connection the links belong to."""
        return self.session.peer

    def start(self, now_ns: int) -> None:
        """Begin: rates count from now on."""
        self.pace.started_ns = now_ns

    def due_ns(self) -> int | None:
        """Return when the next message of a fixed-rate group is due, None for any other group."""
        return self.pace.due_ns()

    def produce(self, now_ns: int) -> int:
        """Send what may be sent in one turn; return the number of frames."""
        if self._large is not None:
            return self._produce_large(self._large, now_ns)
        allowed = min(self.pace.allowance(now_ns), self.session.remote_window)
        if allowed <= 0:
            return 0
        if len(self.sent) == 1:
            count = min(allowed, self.limit[0] - self.sent[0], self.what.burst, self._block.capacity)
            if count > 0:
                self.sent[0] += count
                self._send(self.first_handle, count, now_ns)
            return max(0, count)
        return self._produce_in_turns(allowed, now_ns)

    def _produce_in_turns(self, allowed: int, now_ns: int) -> int:
        """Give each link with credit one turn, as far as `allowed` reaches; the next call goes on there."""
        sent, limit, burst = self.sent, self.limit, self.what.burst
        ready = [index for index in range(len(sent)) if limit[index] > sent[index]]
        turns = -(-allowed // burst)
        if turns < len(ready):
            start = bisect_left(ready, self.cursor)
            ready = (ready[start:] + ready[:start])[:turns]
            self.cursor = ready[-1] + 1
        total = 0
        if burst == 1:
            for index in ready:
                sent[index] += 1
            handles = bytes([self.first_handle + index for index in ready])
            for start in range(0, len(handles), self._block.capacity):
                some = handles[start : start + self._block.capacity]
                self._send(some, len(some), now_ns)
            return len(handles)
        for index in ready:
            count = min(burst, limit[index] - sent[index], allowed - total, self._block.capacity)
            if count <= 0:
                break
            sent[index] += count
            self._send(self.first_handle + index, count, now_ns)
            total += count
        return total

    def _send(self, handles: int | bytes, count: int, now_ns: int) -> None:
        """Write `count` transfers and count them in session, group and stream."""
        session = self.session
        frames = self._block.fill(handles, session.next_delivery_id, count)
        if self.what.stamp:
            self._block.stamp(self.pace.due_times(count, now_ns))
        session.peer.out += frames
        self._sent_deliveries(count, now_ns)
        session.sent_frames(count)

    def _sent_deliveries(self, count: int, now_ns: int) -> None:
        session = self.session
        if not self.what.settled:
            session.note_unconfirmed(count, self.mark)
        self.pace.sent(session.next_delivery_id, count, now_ns)
        session.next_delivery_id = (session.next_delivery_id + count) & SERIAL_MASK

    def _produce_large(self, large: LargeTransfer, now_ns: int) -> int:
        """Send frames of one message, as many as the window allows; the rest follows later."""
        session = self.session
        if session.remote_window <= 0:
            return 0
        if self._large_progress is None:
            if self.pace.allowance(now_ns) <= 0:
                return 0
            ready = [index for index in range(len(self.sent)) if self.limit[index] > self.sent[index]]
            if not ready:
                return 0
            place = bisect_left(ready, self.cursor) % len(ready)
            self.cursor = ready[place] + 1
            self._large_progress = (ready[place], session.next_delivery_id, 0)
            # Ids are given at the first frame, so that another group's deliveries may lie in between.
            self._sent_deliveries(1, now_ns)
        index, delivery_id, start = self._large_progress
        count = 0
        for piece in large.frames(self.first_handle + index, delivery_id, start):
            if count == session.remote_window:
                break
            session.peer.out += piece
            count += 1
        session.sent_frames(count)
        if start + count == large.frame_count:
            self.sent[index] += 1
            self._large_progress = None
        else:
            self._large_progress = (index, delivery_id, start + count)
        return count
