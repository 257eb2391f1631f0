"""The search of a selecting or browsing consumer through a classic queue.

It looks from its cursor on, a window at a time: as many messages as it may have, more while none of them
matches. The places of messages that match beyond its credit are remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from amqp10broker.message.message import Message
from amqp10broker.queues.classic.backlog import Window, content_bytes
from amqp10broker.queues.classic.cursor import Cursor
from amqp10broker.queues.classic.ready import Keyed, Level, ReadyMessages
from amqp10broker.queues.round_robin import that_fill

WINDOW_MAX: Final = 128
"""Messages that are examined in one batch."""


def has_more(waiting: ReadyMessages, cursor: Cursor) -> bool:
    """Return whether a cursor has something to look at, which may be gone already."""
    for which, level in enumerate(waiting.levels):
        if level.count and (cursor.behind[which] or cursor.at[which] < level.backlog.next):
            return True
    return False


def has_passed(waiting: ReadyMessages, cursor: Cursor, ends: Sequence[int]) -> bool:
    """Return whether a cursor has looked at everything before these positions, one a level."""
    return not has_more(waiting, cursor) or (
        not any(cursor.behind) and all(at >= end for at, end in zip(cursor.at, ends, strict=True))
    )


class Search:
    """One search of a consumer through a queue."""

    __slots__ = (
        "_budget",
        "_count",
        "_cursor",
        "_now_ms",
        "_room",
        "_waiting",
        "again",
        "expired",
        "keys",
        "looked_at",
        "messages",
        "size",
    )

    def __init__(
        self, waiting: ReadyMessages, cursor: Cursor, count: int, room: int, budget: int, now_ms: int
    ) -> None:
        """Search a queue. `room`: bytes of contents; the message that uses it up is the last."""
        self._waiting = waiting
        self._cursor = cursor
        self._count = count
        self._room = room
        self._budget = budget
        self._now_ms = now_ms
        self.keys: list[int] = []
        self.messages: list[Message] = []
        self.size = 0
        self.expired: list[Keyed] = []
        self.again = False
        self.looked_at = 0
        for which, level in enumerate(waiting.levels):
            if not (self._look_behind(which, level) and self._look_on(which, level)):
                break
        cursor.looked_at += self.looked_at
        cursor.passed += len(self.keys)

    @property
    def _goes_on(self) -> bool:
        return len(self.keys) < self._count and self.size < self._room and self.looked_at < self._budget

    def _look_behind(self, which: int, level: Level) -> bool:
        # Returns whether all places behind the cursor were looked at.
        behind = self._cursor.behind[which]
        while behind:
            if not self._goes_on:
                return False
            position = heappop(behind)
            window = level.window(position, 1)
            # Otherwise it was taken meanwhile.
            if window is not None and window.positions[0] == position:
                self._look_through(which, level, window)
        return True

    def _look_on(self, which: int, level: Level) -> bool:
        # Returns whether the end of the level was reached.
        cursor = self._cursor
        end = level.backlog.next
        step = self._count - len(self.keys)
        while cursor.at[which] < end:
            if not self._goes_on:
                return False
            most = min(step, WINDOW_MAX, self._budget - self.looked_at)
            window = level.window(cursor.at[which], most) if level.count else None
            if window is None:
                cursor.at[which] = end
                break
            cursor.at[which] = window.positions[-1] + 1
            found = self._look_through(which, level, window)
            step = max(1, self._count - len(self.keys)) if found else 2 * step
        return True

    def _look_through(self, which: int, level: Level, window: Window) -> bool:
        # Returns whether the consumer wants any of these messages.
        self.looked_at += len(window.messages)
        wanted = self._cursor.wanted
        places: Sequence[int] = range(len(window.messages))
        if wanted is not None:
            places = wanted.matching(window.messages, self._now_ms)
        if not places:
            return False
        positions, messages = window.positions, window.messages
        left = self._count - len(self.keys)
        chosen = places[:left]
        sizes = [len(messages[place][1]) for place in chosen]
        room = self._room - self.size
        if sum(sizes) > room:
            chosen = chosen[: that_fill(sizes, room)]
        for place in places[len(chosen) :]:
            heappush(self._cursor.behind[which], positions[place])
        self.again = self.again or window.again
        self._have(level, window, chosen)
        return True

    def _have(self, level: Level, window: Window, chosen: Sequence[int]) -> None:
        waiting = self._waiting
        if self._cursor.takes:
            taken = waiting.take_out(level, window, chosen)
        else:
            taken = waiting.seen(level, window, chosen)
        if waiting.may_expire:
            taken = self._without_expired(window, chosen, taken)
        self.keys += [key for key, _ in taken]
        had = [message for _, message in taken]
        self.messages += had
        self.size += content_bytes(had)

    def _without_expired(self, window: Window, chosen: Sequence[int], taken: list[Keyed]) -> list[Keyed]:
        # The expiry is checked when a message is its consumer's next, as for other consumers.
        times = window.expiries
        kept: list[Keyed] = []
        for place, keyed in zip(chosen, taken, strict=True):
            # The expiry of a message that was handed out before is stored by key.
            expiry = (0 if times is None else times[place]) or self._waiting.expiries.get(keyed[0], 0)
            if not expiry or expiry >= self._now_ms:
                kept.append(keyed)
            elif self._cursor.takes:
                self.expired.append(keyed)
        return kept
