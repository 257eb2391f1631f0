"""One session of the load generator: both windows, confirms, settlement.

`PeerSession` keeps the windows by the formulas of part 2 §2.5.6, finds out which group of links a confirm
belongs to, and settles what was delivered, once for each socket read.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from benchmarks import spec, wire
from benchmarks.blocks import DispositionBlock
from benchmarks.errors import PeerError
from benchmarks.receiver import Receiver
from benchmarks.ring import RING, Ring
from benchmarks.scan import FlowState, Run
from benchmarks.sender import Sender
from benchmarks.wire import SERIAL_MASK, serial_difference

if TYPE_CHECKING:
    from benchmarks.peer import Peer


class PeerSession:
    """One session: its two windows and its links."""

    def __init__(self, peer: Peer, channel: int, what: spec.Session) -> None:
        """Make the session's records; `Peer.attach_all` sends the frames."""
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
        self.link_count = handle
        self.sending: dict[int, tuple[Sender, int]] = {}
        self.receiving: dict[int, tuple[Receiver, int]] = {}
        """By the broker's handle: the group and the number of the link in it."""
        unsettled = any(not publish.settled for publish in what.publish)
        self._ring = Ring() if unsettled else None
        self._dispositions = DispositionBlock(channel)
        self._settle_each = any(consume.settle is spec.Settle.EACH for consume in what.consume)
        self._to_settle: list[tuple[int, int]] = []
        self._partial: tuple[int, bool] | None = None
        """delivery-id and settled of a delivery whose last frame has not come yet."""

    # --- sending ---

    def sent_frames(self, count: int) -> None:
        """Count transfer frames against the broker's window."""
        self.next_outgoing_id = (self.next_outgoing_id + count) & SERIAL_MASK
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
        count = ((last - first) & SERIAL_MASK) + 1
        if count > RING or self._ring is None:
            raise PeerError(f"disposition {first}..{last} names deliveries that were never sent")
        owners = self._ring.take(first, count)
        for sender in self.senders:
            own = owners.count(sender.mark)
            if own:
                sender.pace.confirmed(own, first, last, accepted=accepted, now_ns=now_ns)

    # --- receiving ---

    def tell_link(self, handle: int, delivery_count: int, credit: int, *, drain: bool = False) -> None:
        """Send a flow for one link; it re-opens our window as well."""
        self.incoming_window = self.what.incoming_window
        self.peer.out += wire.link_flow_frame(
            self.channel,
            handle,
            delivery_count=delivery_count,
            link_credit=credit,
            next_incoming_id=self.next_incoming_id,
            incoming_window=self.incoming_window,
            next_outgoing_id=self.next_outgoing_id,
            drain=drain,
        )

    def tell_window(self) -> None:
        """Send a flow for the session: our window is open to its full width again."""
        self.incoming_window = self.what.incoming_window
        self.peer.out += wire.session_flow_frame(
            self.channel,
            next_incoming_id=self.next_incoming_id,
            incoming_window=self.incoming_window,
            next_outgoing_id=self.next_outgoing_id,
        )

    def transfers(self, run: Run, now_ns: int) -> None:
        """Count a run of transfer frames in window, links and streams.

        Raises:
            PeerError: window or credit were exceeded, or the handle is unknown.
        """
        self.next_incoming_id = (self.next_incoming_id + run.frames) & SERIAL_MASK
        self.incoming_window -= run.frames
        if self.incoming_window < 0:
            raise PeerError("the broker sent more transfers than our incoming-window allowed")
        settled = run.settled
        first = run.first_delivery_id
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
        last = (first + run.frames - 1) & SERIAL_MASK
        if self._to_settle and (self._to_settle[-1][1] + 1) & SERIAL_MASK == first:
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
                count = ((last - first) & SERIAL_MASK) + 1
                for some in self._dispositions.fill(first, count):
                    self.peer.out += some
            else:
                self.peer.out += wire.disposition_frame(self.channel, receiver=True, first=first, last=last)
        self._to_settle.clear()
        for receiver in self.receivers:
            receiver.top_up()
        if self.incoming_window <= self.what.incoming_window // 2:
            self.tell_window()

    def flow(self, flow: FlowState) -> None:
        """Take the broker's windows and credit (§2.5.6, §2.6.7)."""
        base = flow.next_incoming_id if flow.next_incoming_id is not None else 0
        edge = (base + flow.incoming_window) & SERIAL_MASK
        self.remote_window = max(0, serial_difference(edge, self.next_outgoing_id))
        if flow.handle is not None:
            if flow.handle in self.sending:
                sender, index = self.sending[flow.handle]
                sender.set_credit(index, flow)
            elif flow.handle in self.receiving:
                receiver, index = self.receiving[flow.handle]
                receiver.advance(index, flow)
        if flow.echo:
            self.tell_window()
