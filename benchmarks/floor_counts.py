"""What the floor peer remembers of its queues: numbers, and message bytes only where latency needs them."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

ENDLESS: Final = "endless"
"""Prefix of addresses that never run empty."""


class Floor:
    """Every connection of the floor peer; messages are counted, not kept."""

    def __init__(self, credit: int, endless_bytes: int, keep: bool) -> None:
        """Make the floor.

        Args:
            credit: granted to every sending client link, topped up at half.
            endless_bytes: body size of messages from endless addresses.
            keep: keep each message's bytes and send just these, as latency stamps need it.
        """
        self.credit = credit
        self.kept: defaultdict[str, deque[bytes]] | None = defaultdict(deque) if keep else None
        self.endless_bytes = endless_bytes
        self.ready: defaultdict[str, int] = defaultdict(int)
        self.size_bytes: dict[str, int] = {}
        """Bytes of an encoded message of each address, as they came in."""
