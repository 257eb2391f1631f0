"""A limit that finds its own size: the controller behind ``auto``. Pure: it is told times, reads no clock.

It is asked to grow only by what the limit itself holds up. Whether more of it brings more is measured, not
guessed: the limit is doubled, and stays so if more is done in the same time; else it goes back. It shrinks
when what it lets through takes much longer than when its size was last found worth it (a queue that does not
follow), and when memory is tight. It is never below the default, and never above its bounds.

Judged by epochs of some round trips, 100 ms at least; nothing here is done once a message. See docs/adr/0103.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

ROUNDS: Final = 4
"""An epoch lasts at least so many times from being held up to being held up again."""
EPOCH_MS_MIN: Final = 100
EPOCH_MS_MAX: Final = 1_000
"""An epoch without being held up ends after this."""
HELD_PART: Final = 8
"""One part in so many of the time held up is worth a try: less cannot bring what `GAIN` asks for."""
GAIN: Final = 1.15
"""Twice the limit is kept if it brings so many times as much."""
SLOWER: Final = 2
"""The limit shrinks when the wait is so many times what it was, ..."""
SLOWER_MS: Final = 10
"""... and this longer: less may be the processor's turns."""
RETRY_MS_MIN: Final = 1_000
RETRY_MS_MAX: Final = 60_000
"""A try that brought nothing is repeated after a pause, which doubles from the one to the other."""


class Why(StrEnum):
    """Why an automatic limit is what it is. The set is closed."""

    DEFAULT = "default"
    """It is the default, which holds nothing up, or not enough."""
    GROWING = "growing"
    """It was doubled, and what that brings is being measured."""
    GROWN = "grown"
    """It was doubled, and that has brought more."""
    NO_GAIN = "no-gain"
    """Twice as much was tried and has brought no more; it is tried again later."""
    CONFIRMS_SLOW = "confirms-slow"
    """It was halved: confirms take much longer than before."""
    MEMORY_TIGHT = "memory-tight"
    """It is the default again, because of memory or an alarm."""
    MESSAGES_BOUND = "messages-bound"
    """It holds something up, and auto_credit_max allows no more."""
    BYTES_BOUND = "bytes-bound"
    """Messages are so large that auto_credit_max_bytes allows no more."""


class Bounds(NamedTuple):
    """How large a limit may become. It may always be the default."""

    base: int
    """The default, where it begins."""
    most: int
    """Messages."""
    most_bytes: int
    """Of as many messages as the limit allows, by the size of those that came."""


class _Before(NamedTuple):
    """What is compared with."""

    limit: int
    per_ms: float


class AutoLimit:
    """See the module.

    Attributes:
        limit: now.
        highest: that it has been.
        why: it is that.
        since_ms: since when it is that.
    """

    __slots__ = (
        "_area",
        "_at_ms",
        "_before",
        "_began_ms",
        "_bounds",
        "_done",
        "_held_ms",
        "_in_flight",
        "_is_tight",
        "_retry_at_ms",
        "_retry_ms",
        "_round_ms",
        "_rounds",
        "_settled_ms",
        "_size",
        "_usual_ms",
        "highest",
        "limit",
        "since_ms",
        "why",
    )

    def __init__(self, bounds: Bounds, now_ms: int, is_tight: Callable[[], bool] = lambda: False) -> None:
        """Begin with the default.

        Args:
            bounds: see there.
            now_ms: the present.
            is_tight: whether memory is; asked once an epoch.
        """
        self._bounds = bounds
        self._is_tight = is_tight
        self.limit = self.highest = bounds.base
        self.why = Why.DEFAULT
        self.since_ms = now_ms
        # What was there before a try; None: there is none.
        self._before: _Before | None = None
        self._retry_ms = RETRY_MS_MIN
        self._retry_at_ms = now_ms
        # How long what is let through took when the limit was last found worth it.
        self._usual_ms = 0.0
        # Bytes of a message: at once those of a larger one, slowly those of smaller ones.
        self._size = 1
        self._in_flight = 0
        self._at_ms = self._round_ms = now_ms
        self._restart(now_ms, now_ms)

    def _restart(self, now_ms: int, settled_ms: int) -> None:
        """Begin an epoch, or one that begins when the limit has its effect."""
        self._began_ms = now_ms
        self._settled_ms = settled_ms
        self._done = self._held_ms = self._rounds = self._area = 0

    @property
    def top(self) -> int:
        """The most that it may be now."""
        bounds = self._bounds
        return max(bounds.base, min(bounds.most, bounds.most_bytes // self._size))

    # --- what happens -----------------------------------------------------------------------------

    def came(self, now_ms: int, count: int, size_bytes: int, in_flight: int) -> None:
        """Messages have come.

        Args:
            now_ms: the present.
            count: how many, 1 at least.
            size_bytes: of all of them.
            in_flight: those that are not done, these included.
        """
        size = size_bytes // count + 1
        self._size = size if size > self._size else (7 * self._size + size) // 8
        self._note(now_ms, in_flight)
        top = self.top
        if self.limit > top:
            self._change(top, Why.BYTES_BOUND, now_ms, 0)

    def resumed(self, now_ms: int, held_ms: int) -> None:
        """They come again, after nothing but this limit had held them up for so long."""
        self._held_ms += held_ms
        self._rounds += 1
        self._round_ms = now_ms
        if self._settled_ms > self._began_ms:
            if now_ms >= self._settled_ms:
                self._restart(now_ms, now_ms)
        elif self._rounds >= ROUNDS and now_ms - self._began_ms >= EPOCH_MS_MIN:
            self._judge(now_ms)

    def done(self, now_ms: int, count: int, in_flight: int) -> None:
        """So many are done with; so many are not."""
        self._note(now_ms, in_flight)
        self._done += count
        began_ms = self._began_ms
        if self._settled_ms > began_ms:
            # Nothing holds it up any more: there is no better moment.
            if now_ms >= 2 * self._settled_ms - began_ms:
                self._restart(now_ms, now_ms)
        elif now_ms - max(began_ms, self._round_ms) >= EPOCH_MS_MAX:
            self._judge(now_ms)

    def tighten(self, now_ms: int) -> None:
        """Memory is short: back to the default, at once."""
        if self.limit > self._bounds.base:
            self._change(self._bounds.base, Why.MEMORY_TIGHT, now_ms, 0)
            self._pause(now_ms)

    def _note(self, now_ms: int, in_flight: int) -> None:
        self._area += self._in_flight * (now_ms - self._at_ms)
        self._at_ms = now_ms
        self._in_flight = in_flight

    # --- what follows -----------------------------------------------------------------------------

    def _judge(self, now_ms: int) -> None:
        """An epoch is over."""
        elapsed = now_ms - self._began_ms
        loop_ms = elapsed // self._rounds if self._rounds else 0
        per_ms = self._done / elapsed
        # Little's law: what is in flight on average, by what is done in a time, is how long one takes.
        wait_ms = self._area / self._done if self._done else 0.0
        base = self._bounds.base
        if self._is_tight():
            self.tighten(now_ms)
            self._restart(now_ms, now_ms)
            return
        before, self._before = self._before, None
        if before is not None and per_ms < GAIN * before.per_ms:
            self._change(before.limit, Why.NO_GAIN, now_ms, loop_ms)
            self._pause(now_ms)
            return
        if before is not None:
            self._tell(Why.GROWN, now_ms)
            self._retry_ms = RETRY_MS_MIN
            self._usual_ms = wait_ms
        elif self.limit == base:
            self._usual_ms = wait_ms
        elif wait_ms > SLOWER * self._usual_ms + SLOWER_MS:
            self._change(max(base, self.limit // 2), Why.CONFIRMS_SLOW, now_ms, loop_ms)
            self._pause(now_ms)
            return
        if self._held_ms * HELD_PART >= elapsed and now_ms >= self._retry_at_ms:
            self._try_more(now_ms, loop_ms, per_ms)
        else:
            self._restart(now_ms, now_ms)

    def _try_more(self, now_ms: int, loop_ms: int, per_ms: float) -> None:
        top, limit = self.top, self.limit
        if limit >= top:
            self._tell(Why.MESSAGES_BOUND if top == self._bounds.most else Why.BYTES_BOUND, now_ms)
            self._restart(now_ms, now_ms)
            return
        self._change(min(2 * limit, top), Why.GROWING, now_ms, loop_ms)
        self._before = _Before(limit, per_ms)

    def _change(self, limit: int, why: Why, now_ms: int, loop_ms: int) -> None:
        """Another limit from now on, whose effect is there a round trip later."""
        self.limit = limit
        self.highest = max(self.highest, limit)
        self._before = None
        self._tell(why, now_ms)
        self._restart(now_ms, now_ms + loop_ms)

    def _tell(self, why: Why, now_ms: int) -> None:
        if why is not self.why or why is Why.GROWING:
            self.why = why
            self.since_ms = now_ms

    def _pause(self, now_ms: int) -> None:
        """Try nothing for a while, the longer the oftener it was in vain."""
        self._retry_at_ms = now_ms + self._retry_ms
        self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)
