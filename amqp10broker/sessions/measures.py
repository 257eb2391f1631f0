"""Histograms of one connection: how long it was held up, the sizes of its client's messages, and the ends of
its transactions.

A period is counted when it ends, where the change is noticed anyway. Sizes are counted once per batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence, Sized
from typing import Final

DURATIONS_MS: Final = (1, 10, 100, 1_000, 10_000, 60_000, 600_000)
SIZES: Final = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
# So many different sizes are counted separately before they are sorted into buckets.
_SIZES_APART_MAX: Final = 256


class Histogram:
    """A histogram with fixed bounds. `bounds`: upper ends of the buckets, ascending; larger values are in a
    last bucket without an end.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    def count(self, value: int, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def add(self, other: Histogram) -> None:
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


class MessageSizes:
    """The sizes of messages. Sizes repeat: they are counted by size, and sorted into buckets on a query."""

    __slots__ = ("_apart", "_histogram")

    def __init__(self) -> None:
        self._apart: Counter[int] = Counter()
        self._histogram = Histogram(SIZES)

    def count(self, messages: Sequence[Sized]) -> None:
        apart = self._apart
        if len(messages) == 1:
            apart[len(messages[0])] += 1
        elif messages:
            # Most batches are of one size; the test for that costs half of counting each message.
            sizes = list(map(len, messages))
            if sizes.count(sizes[0]) == len(sizes):
                apart[sizes[0]] += len(sizes)
            else:
                apart.update(sizes)
        if len(apart) > _SIZES_APART_MAX:
            self._sort()

    @property
    def histogram(self) -> Histogram:
        self._sort()
        return self._histogram

    def add(self, other: MessageSizes) -> None:
        self._histogram.add(other.histogram)

    def _sort(self) -> None:
        for size, times in self._apart.items():
            self._histogram.count(size, times)
        self._apart.clear()


class TransactionEnds:
    """The number of transactions by their end."""

    __slots__ = ("committed", "rolled_back", "timed_out")

    def __init__(self) -> None:
        self.committed = 0
        self.rolled_back = 0
        self.timed_out = 0

    def add(self, other: TransactionEnds) -> None:
        self.committed += other.committed
        self.rolled_back += other.rolled_back
        self.timed_out += other.timed_out


class Measures:
    """The histograms of one connection, or of all; times are in ms. `receiver_credit_zero`: a client that
    receives had granted no credit; the first is since its attach. `message_sizes`: of messages of the client:
    AMQP 1.0 all sections, AMQP 0-9-1 the body.
    """

    __slots__ = (
        "message_sizes",
        "receiver_credit_zero",
        "remote_window_zero",
        "sender_credit_zero",
        "transactions",
    )

    def __init__(self) -> None:
        self.receiver_credit_zero = Histogram(DURATIONS_MS)
        self.sender_credit_zero = Histogram(DURATIONS_MS)
        self.remote_window_zero = Histogram(DURATIONS_MS)
        self.message_sizes = MessageSizes()
        self.transactions = TransactionEnds()

    def add(self, other: Measures) -> None:
        for name in self.__slots__:
            getattr(self, name).add(getattr(other, name))


class Moment:
    """The present of a session or channel: its task sets it once per step, by the broker's clock."""

    __slots__ = ("measures", "ms")

    def __init__(self, ms: int = 0, measures: Measures | None = None) -> None:
        self.ms = ms
        self.measures = measures or Measures()
