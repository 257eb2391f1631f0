"""The leader's view of one follower, and its send window.

Three states (as in etcd's raft): *probe*, when the point of agreement is unknown: one message, then wait;
*replicate*: messages are sent without waiting, up to a window; *snapshot*: the needed entries are not in the
log any more, so nothing is sent until the shell has sent a state.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final

WINDOW_MESSAGES: Final = 256
WINDOW_BYTES: Final = 8 << 20
"""Bytes of payloads under way to one follower; one message more than fits may be."""
MESSAGE_BYTES: Final = 1 << 20
"""Bytes of payloads in one append, unless one entry is larger."""


class Flow(enum.Enum):
    """How entries go to a follower."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One follower. `commit`: its commit index, as last reported; -1: not reported. `bare`: the next probe
    takes no entries along, because the last one had no answer.
    """

    __slots__ = (
        "_under_way",
        "_under_way_bytes",
        "active",
        "alive",
        "bare",
        "commit",
        "commit_sent",
        "flow",
        "match",
        "next",
        "round",
        "waiting",
    )

    def __init__(self, next_index: int, *, alive: bool) -> None:
        self.flow = Flow.PROBE
        self.match = 0
        self.next = next_index
        self.commit = -1
        self.commit_sent = -1
        self.alive = alive
        self.active = True
        self.waiting = False
        self.bare = False
        self.round = 0
        self._under_way: deque[tuple[int, int]] | None = None
        self._under_way_bytes = 0

    @property
    def may_send(self) -> bool:
        """The window has room, in `Flow.REPLICATE`."""
        return self._under_way is None or (
            len(self._under_way) < WINDOW_MESSAGES and self._under_way_bytes < WINDOW_BYTES
        )

    def sent(self, last: int, size: int) -> None:
        """An append with entries up to `last`, of `size` bytes, is under way."""
        self.next = last + 1
        if self._under_way is None:
            self._under_way = deque()
        self._under_way.append((last, size))
        self._under_way_bytes += size

    def probe(self, *, bare: bool = False) -> None:
        """Find out anew where the logs agree: from where they are known to, or else from where it was."""
        self._empty_window()
        self.flow = Flow.PROBE
        if self.match:
            self.next = self.match + 1
        self.waiting = False
        self.bare = bare

    def needs_snapshot(self) -> None:
        """Whether the next entries are not in the log any more."""
        self._empty_window()
        self.flow = Flow.SNAPSHOT

    def accepted(self, match: int) -> bool:
        """Its log agrees up to here. True if that is news."""
        advanced = match > self.match
        if advanced:
            self.match = match
        self.next = max(self.next, self.match + 1)
        under_way = self._under_way
        if under_way:
            while under_way and under_way[0][0] <= match:
                self._under_way_bytes -= under_way.popleft()[1]
            if not under_way:
                self._under_way = None
        return advanced

    def replicate(self) -> None:
        """It is known where the logs agree: at `match`."""
        self._empty_window()
        self.flow = Flow.REPLICATE
        self.next = self.match + 1
        self.waiting = False

    def rejected(self, index: int, match: int) -> None:
        """It has refused an append behind `index`; the logs may agree at `match`, which is smaller."""
        if self.flow is Flow.REPLICATE and index > self.match:
            self.probe()
        elif self.flow is Flow.PROBE and index == self.next - 1:
            self.next = max(min(index, match + 1), self.match + 1)
            self.waiting = False

    def retry(self) -> None:
        """Send again after a silence: messages may be lost."""
        if self.flow is Flow.REPLICATE:
            self.probe(bare=True)
        elif self.flow is Flow.PROBE:
            self.waiting = False
            self.bare = True
        self.commit_sent = -1

    def _empty_window(self) -> None:
        self._under_way = None
        self._under_way_bytes = 0
