"""Streams: what a load process counts."""

from __future__ import annotations

from array import array
from typing import Final

LATENCY_SAMPLES_MAX: Final = 1_000_000
"""Latencies kept of one stream; those after it are not sampled."""


class Stream:
    """Counters of one stream; only ever grow."""

    __slots__ = ("confirm_ns", "confirmed", "delivered", "delivery_ns", "published", "refused", "settled")

    def __init__(self) -> None:
        """Start at zero."""
        self.published = 0
        self.confirmed = 0
        self.refused = 0
        """Confirmed with another outcome than accepted."""
        self.delivered = 0
        self.settled = 0
        self.confirm_ns = array("q")
        """Time from sending to confirm, of the first message of each batch sent."""
        self.delivery_ns = array("q")
        """Time from when a message was due to its delivery."""

    def forget_latencies(self) -> None:
        """Drop what was sampled so far: the measuring window begins."""
        del self.confirm_ns[:]
        del self.delivery_ns[:]
