"""The counters of clients, updated once per batch: of links, channels, sessions and connections, and in
total.

The counters of a part that has ended are added to those of the object that contained it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence, Sized
from itertools import chain
from typing import ClassVar, Final, NamedTuple, Self

from amqp10broker.queues.queue_status import CONSUMING, Consumption

PUBLISHING: Final = ("published", "confirmed", "rejected", "unroutable", "returned")

FORGET_AT_LEAST: Final = 1_000
"""When there are so many combinations of names, those of deleted objects are removed."""


class Whose(NamedTuple):
    """The owner of a connection's counters; an empty name means none, or a deleted one."""

    protocol: str
    vhost: str
    user: str


class ClientCounters(Consumption):
    """The counters of a client; see also `Consumption`.

    Attributes:
        published: messages that the client sent and that were routed, also to no queue.
        rejected: messages that were refused because a queue was full or failed, or the address was bad.
        returned: of the unroutable, those that the client got back (AMQP 0-9-1, mandatory).
        published_settled: of those published, those for which the client wants no outcome.
        copies: for messages routed to more than one queue, the copies beyond the first.
    """

    __slots__ = (*PUBLISHING, "by_type", "copies", "published_settled")

    names: ClassVar[tuple[str, ...]] = (*PUBLISHING, *CONSUMING)
    unnamed: ClassVar[tuple[str, ...]] = ("credit_requests", "published_settled", "copies")

    def __init__(self) -> None:
        super().__init__()
        self.published = 0
        self.confirmed = 0
        self.rejected = 0
        self.unroutable = 0
        self.returned = 0
        self.published_settled = 0
        self.copies = 0
        self.by_type: dict[str, Consumption] = {}

    def add(self, other: Consumption) -> None:
        super().add(other)
        if isinstance(other, ClientCounters):
            for queue_type, consumption in other.by_type.items():
                self.of_type(queue_type).add(consumption)

    def of_type(self, queue_type: str) -> Consumption:
        found = self.by_type.get(queue_type)
        if found is None:
            found = self.by_type[queue_type] = Consumption()
        return found

    @classmethod
    def sum_of(cls, all_of_them: Iterable[Consumption]) -> Self:
        total = cls()
        for each in all_of_them:
            total.add(each)
        return total


class Totals:
    """The counters of connections that have ended."""

    __slots__ = ("_forget_at", "_gone")

    def __init__(self) -> None:
        self._gone: defaultdict[Whose, ClientCounters] = defaultdict(ClientCounters)
        self._forget_at = FORGET_AT_LEAST

    def add(
        self, whose: Whose, counters: ClientCounters, users: Container[str], vhosts: Container[str]
    ) -> None:
        """Add the counters of an ended connection; those of deleted users and vhosts by protocol only."""
        self._gone[whose].add(counters)
        if len(self._gone) >= self._forget_at:
            self._forget(users, vhosts)
            self._forget_at = max(FORGET_AT_LEAST, 2 * len(self._gone))

    def by(
        self,
        present: Iterable[tuple[Whose, ClientCounters]],
        users: Container[str],
        vhosts: Container[str],
    ) -> tuple[dict[str, ClientCounters], ...]:
        """Return the counters by protocol, virtual host and user, including those of present connections."""
        self._forget(users, vhosts)
        sums: tuple[defaultdict[str, ClientCounters], ...] = tuple(
            defaultdict(ClientCounters) for _ in Whose._fields
        )
        for whose, counters in chain(self._gone.items(), present):
            for name, total in zip(whose, sums, strict=True):
                if name:
                    total[name].add(counters)
        return tuple(map(dict, sums))

    def by_protocol(self) -> dict[str, ClientCounters]:
        sums: defaultdict[str, ClientCounters] = defaultdict(ClientCounters)
        for whose, counters in self._gone.items():
            sums[whose.protocol].add(counters)
        return dict(sums)

    def _forget(self, users: Container[str], vhosts: Container[str]) -> None:
        for whose in [each for each in self._gone if each.user not in users or each.vhost not in vhosts]:
            user = whose.user if whose.user in users else ""
            vhost = whose.vhost if whose.vhost in vhosts else ""
            if (known := whose._replace(user=user, vhost=vhost)) != whose:
                self._gone[known].add(self._gone.pop(whose))


DURATIONS_MS: Final = (1, 10, 100, 1_000, 10_000, 60_000, 600_000)
SIZES: Final = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
# So many different sizes are counted separately before they are sorted into buckets.
_SIZES_APART_MAX: Final = 256


class Histogram:
    """A histogram. `bounds`: the upper ends of the buckets, ascending; a last bucket has no upper end."""

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


class Measures:
    """The histograms of one connection, or of all. Times are in ms. `message_sizes`: for AMQP 1.0 all
    sections, for AMQP 0-9-1 the body. `transactions`: by end: committed, rolled-back, timed-out.
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
        self.transactions: Counter[str] = Counter()

    def add(self, other: Measures) -> None:
        self.receiver_credit_zero.add(other.receiver_credit_zero)
        self.sender_credit_zero.add(other.sender_credit_zero)
        self.remote_window_zero.add(other.remote_window_zero)
        self.message_sizes.add(other.message_sizes)
        self.transactions.update(other.transactions)


class Moment:
    """The time of a session's or channel's present step, by the broker's clock."""

    __slots__ = ("measures", "ms")

    def __init__(self, ms: int = 0, measures: Measures | None = None) -> None:
        self.ms = ms
        self.measures = measures or Measures()
