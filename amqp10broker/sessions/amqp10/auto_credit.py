"""Credit that adapts to its link: the inputs of one link's `AutoLimit`.

A client that is held up only by credit stops exactly where a grant ends. More credit would save the time
until it continues (the round trip of the grant, or confirms that must come first). A client that stops
elsewhere has nothing to send, or waits for its session's window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from amqp10broker.protocols.amqp10.credit import ReceiverCredit
from amqp10broker.protocols.serial import MASK, diff
from amqp10broker.sessions.auto_limit import AutoLimit


class AutoCredit:
    """The automatic credit of one link on which a client publishes."""

    __slots__ = ("_changed", "_credit", "_ends", "_stopped_ms", "auto")

    def __init__(self, credit: ReceiverCredit, auto: AutoLimit, changed: Callable[[], None]) -> None:
        self._credit = credit
        self._changed = changed
        # The delivery-counts at which grants end that the client may not have reached.
        self._ends: deque[int] = deque()
        self._stopped_ms: int | None = None
        self.auto = auto
        self._note()

    def received(self, now_ms: int, count: int, size_bytes: int, *, held_back: bool) -> None:
        """Count a batch of deliveries; `held_back` if an alarm holds the client back as well."""
        auto, credit, ends = self.auto, self._credit, self._ends
        auto.came(now_ms, count, size_bytes, credit.outstanding)
        stopped_ms, self._stopped_ms = self._stopped_ms, None
        if stopped_ms is not None and now_ms > stopped_ms and not held_back:
            auto.resumed(now_ms, now_ms - stopped_ms)
        # The grants before these deliveries are all that the client can have received.
        reached = credit.delivery_count
        while ends and diff(ends[0], reached) < 0:
            ends.popleft()
        if ends and ends[0] == reached and not held_back:
            self._stopped_ms = now_ms
        self._note()

    def answered(self, now_ms: int, count: int) -> None:
        self.auto.done(now_ms, count, self._credit.outstanding)
        self._note()

    def tighten(self, now_ms: int) -> None:
        self.auto.tighten(now_ms)
        self._note()

    def _note(self) -> None:
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
    """The credit of one link on which a client receives: the size of a request to its queue.

    A queue in the same process answers at once; one of another node a round trip later. Until then no
    delivery comes if the last request is used up.
    """

    __slots__ = ("_written", "auto")

    def __init__(self, auto: AutoLimit) -> None:
        self._written = 0
        self.auto = auto

    def replied(self, now_ms: int, asked_ms: int, written: int, *, held_up: bool) -> None:
        """Count an answer of the queue."""
        if held_up and now_ms > asked_ms:
            self.auto.resumed(now_ms, now_ms - asked_ms)
        self.auto.done(now_ms, written - self._written, 0)
        self._written = written
