"""How many messages a group may publish now, by its own rules, and how long their confirms took.

The rules of `spec.Publish` are the same in both protocols: messages in flight, batches, a count, a rate,
another stream to follow. What the protocol allows (credit and window, or the socket) comes on top and is
the business of `session` and `channel091`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from amqp10broker.observe.flow_events import EventKind
from benchmarks import spec
from benchmarks.ring import RING
from benchmarks.stream import LATENCY_SAMPLES_MAX, Stream

if TYPE_CHECKING:
    from benchmarks.client_events import ClientEvents

_NUMBER_MASK = 0xFFFFFFFF


class Pace:
    """One group's own rules, and what it has in flight."""

    __slots__ = (
        "_batch_left",
        "_followed",
        "_samples",
        "_sent",
        "_stream",
        "_what",
        "started_ns",
        "unconfirmed",
    )

    def __init__(self, what: spec.Publish, streams: list[Stream]) -> None:
        """Make the rules of one group; `started_ns` is set when the load begins."""
        self._what = what
        self._stream = streams[what.stream]
        self._followed = None if what.follow is None else streams[what.follow]
        self._batch_left = 0
        self._samples: deque[tuple[int, int]] = deque()
        self._sent: deque[tuple[int, int]] = deque()
        """Of a recorded run: how many messages wait for their confirm, and when they were sent."""
        self.started_ns = 0
        self.unconfirmed = 0

    def due_ns(self) -> int | None:
        """Return when the next message of a fixed-rate group is due, None for any other group."""
        rate = self._what.rate_per_s
        return None if not rate else self.started_ns + int(self._stream.published / rate * 1e9)

    def allowance(self, now_ns: int) -> int:
        """Return how many messages the group's own rules allow now."""
        what = self._what
        allowed = RING
        if not what.settled:
            allowed = min(what.in_flight_max, RING // 2) - self.unconfirmed
            if what.batch:
                if self._batch_left == 0 and self.unconfirmed == 0:
                    self._batch_left = what.batch
                allowed = min(allowed, self._batch_left)
        if what.count_max:
            allowed = min(allowed, what.count_max - self._stream.published)
        if self._followed is not None:
            allowed = min(allowed, self._followed.delivered + what.outstanding - self._stream.published)
        if what.rate_per_s:
            due = int((now_ns - self.started_ns) * what.rate_per_s / 1e9) + 1
            allowed = min(allowed, due - self._stream.published)
        return allowed

    def due_times(self, count: int, now_ns: int) -> list[int]:
        """Return when the next messages were due: a late message's wait counts as latency."""
        if not self._what.rate_per_s:
            return [now_ns] * count
        step = 1e9 / self._what.rate_per_s
        published = self._stream.published
        return [self.started_ns + int((published + index) * step) for index in range(count)]

    def sent(self, first: int, count: int, now_ns: int) -> None:
        """Count messages just published, numbered from `first` on."""
        self._stream.published += count
        if not self._what.settled:
            self.unconfirmed += count
            self._batch_left = max(0, self._batch_left - count)
            self._samples.append((first, now_ns))
            if self._stream.events is not None:
                self._sent.append((count, now_ns))

    def confirmed(self, count: int, first: int, last: int, *, accepted: bool, now_ns: int) -> None:
        """Count confirms, and sample the latency of batches whose first message is among them.

        Args:
            count: how many of the group's messages the confirm spoke of.
            first: the first number it named, whoever's it was.
            last: the last number it named; numbers wrap at 2**32.
            accepted: whether the broker took the messages.
            now_ns: when the confirm came.
        """
        self.unconfirmed -= count
        self._stream.confirmed += count
        if not accepted:
            self._stream.refused += count
        if self._stream.events is not None:
            self._tell(self._stream.events, count, now_ns)
        samples = self._samples
        span = (last - first) & _NUMBER_MASK
        while samples and (samples[0][0] - first) & _NUMBER_MASK <= span:
            _, sent_ns = samples.popleft()
            if len(self._stream.confirm_ns) < LATENCY_SAMPLES_MAX:
                self._stream.confirm_ns.append(now_ns - sent_ns)

    def _tell(self, events: ClientEvents, count: int, now_ns: int) -> None:
        """Tell the latencies of `count` confirms as events: those that were sent first are first."""
        sent = self._sent
        while count > 0 and sent:
            batch, sent_ns = sent[0]
            confirmed = min(batch, count)
            if confirmed == batch:
                sent.popleft()
            else:
                sent[0] = (batch - confirmed, sent_ns)
            events.add(now_ns, EventKind.CLIENT_CONFIRM, self._stream.number, confirmed, now_ns - sent_ns)
            count -= confirmed
