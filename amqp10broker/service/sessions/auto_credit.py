"""Credit that finds its own size: what one link tells its `AutoLimit`.

A client that is held up by credit and nothing else stops exactly where a grant ends. How long it then takes
until it goes on (the round trip of the grant, or confirms that must come first) is for what more credit would
help. A client that stops elsewhere has nothing to send, or waits for its session's window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from amqp10broker.amqp10.credit import ReceiverCredit
from amqp10broker.amqp10.serial import MASK, diff
from amqp10broker.service.auto_limit import AutoLimit


class AutoCredit:
    """Of one link on which a client publishes.

    Attributes:
        auto: its limit.
    """

    __slots__ = ("_changed", "_credit", "_ends", "_stopped_ms", "auto")

    def __init__(self, credit: ReceiverCredit, auto: AutoLimit, changed: Callable[[], None]) -> None:
        """Begin.

        Args:
            credit: of the link; its limit is set, grants are not touched.
            auto: the controller.
            changed: the limit is another; grants may be due by it.
        """
        self._credit = credit
        self._changed = changed
        # delivery-counts at which grants end that the client may not have reached.
        self._ends: deque[int] = deque()
        self._stopped_ms: int | None = None
        self.auto = auto
        self._note()

    def received(self, now_ms: int, count: int, size_bytes: int, *, held_back: bool) -> None:
        """A batch of deliveries has come.

        Args:
            now_ms: the present.
            count: how many.
            size_bytes: of all of them.
            held_back: something else holds the client back as well: an alarm.
        """
        auto, credit, ends = self.auto, self._credit, self._ends
        auto.came(now_ms, count, size_bytes, credit.outstanding)
        stopped_ms, self._stopped_ms = self._stopped_ms, None
        if stopped_ms is not None and now_ms > stopped_ms and not held_back:
            auto.resumed(now_ms, now_ms - stopped_ms)
        # Up to here: what was granted before these came is all that the client can have known.
        reached = credit.delivery_count
        while ends and diff(ends[0], reached) < 0:
            ends.popleft()
        if ends and ends[0] == reached and not held_back:
            self._stopped_ms = now_ms
        self._note()

    def answered(self, now_ms: int, count: int) -> None:
        """Deliveries have their outcome."""
        self.auto.done(now_ms, count, self._credit.outstanding)
        self._note()

    def tighten(self, now_ms: int) -> None:
        """See `AutoLimit`."""
        self.auto.tighten(now_ms)
        self._note()

    def _note(self) -> None:
        """Where the last grant ends, and what the limit is now."""
        credit = self._credit
        if credit.limit != self.auto.limit:
            credit.limit = self.auto.limit
            self._changed()
        grant = credit.last_granted
        if grant is not None:
            end = (grant[0] + grant[1]) & MASK
            if not self._ends or self._ends[-1] != end:
                self._ends.append(end)


class AutoQueueCredit:
    """Of one link on which a client receives: what its queue is asked for at a time.

    A queue in the same process answers at once; one of another node a round trip later. Meanwhile nothing
    comes, if it has used up what it was asked for last.

    Attributes:
        auto: its limit.
    """

    __slots__ = ("_written", "auto")

    def __init__(self, auto: AutoLimit) -> None:
        self._written = 0
        self.auto = auto

    def replied(self, now_ms: int, asked_ms: int, written: int, *, held_up: bool) -> None:
        """The queue has answered.

        Args:
            now_ms: the present.
            asked_ms: when it was asked.
            written: deliveries that went to the client, in all.
            held_up: there was more to be had, and the client could have taken it.
        """
        if held_up and now_ms > asked_ms:
            self.auto.resumed(now_ms, now_ms - asked_ms)
        self.auto.done(now_ms, written - self._written, 0)
        self._written = written
