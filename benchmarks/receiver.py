"""Receiving links: credit granted, set again at half, and never to be exceeded by the broker.

A `Receiver` is a group of links of one session that behave alike (`spec.Consume`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import spec
from benchmarks.errors import PeerError
from benchmarks.scan import FlowState, Run
from benchmarks.stream import read_stamps
from benchmarks.wire import SERIAL_MASK, serial_difference

if TYPE_CHECKING:
    from benchmarks.session import PeerSession


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
        self._low = what.credit // 2
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
        if left <= self._low:
            self._wanting.add(index)

    def advance(self, index: int, flow: FlowState) -> None:
        """Take the sender's delivery-count from a flow (it moves on by itself when drained)."""
        if flow.delivery_count is not None:
            jump = serial_difference(flow.delivery_count, self.delivery_count[index] & SERIAL_MASK)
            if jump > 0:
                self.delivery_count[index] += jump
                self.credit[index] = max(0, self.credit[index] - jump)

    def top_up(self) -> None:
        """Grant full credit again on every link that has used half of it."""
        for index in self._wanting:
            self.credit[index] = self.what.credit
            count = self.delivery_count[index] & SERIAL_MASK
            self.session.tell_link(self.first_handle + index, count, self.what.credit)
        self._wanting.clear()

    def sample(self, data: bytearray, run: Run, handle: int, now_ns: int) -> None:
        """Read the stamps of those deliveries of a run that came on one handle of the broker's."""
        place = run.position + run.stride - self.what.size_bytes
        stamps = read_stamps(data, place, run.stride, run.frames)
        if not isinstance(run.handles, int):
            stamps = [stamp for stamp, other in zip(stamps, run.handles, strict=True) if other == handle]
        self.stream.sample_deliveries(stamps, now_ns)
