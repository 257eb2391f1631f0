"""What clients did and got, in numbers that only grow: of links, channels, sessions, connections; in all.

Counted once a batch, where a batch is handled anyway. What has ended is added to what it was part of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from itertools import chain
from typing import ClassVar, Final, NamedTuple, Protocol, Self

from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.queues.counters import CONSUMING, Consumption

PUBLISHING: Final = ("published", "confirmed", "rejected", "unroutable", "returned")

FORGET_AT_LEAST: Final = 1_000
"""So many combinations of names are kept before it is looked which of them were deleted."""


class Whose(NamedTuple):
    """Whose counters a connection's are; an empty name is nobody's, or was deleted."""

    protocol: str
    vhost: str
    user: str


class Consuming(Protocol):
    """What a consumer has of its queue.

    Attributes:
        queue: of which it is a consumer.
    """

    queue: DeclaredQueue

    def counted(self) -> Consumption:
        """What it got so far."""


class ClientCounters(Consumption):
    """See the module, and `Consumption`.

    Attributes:
        published: messages that the client sent and that were routed, also to no queue.
        confirmed: those that the client was told are taken.
        rejected: those that the client was told are not: a queue was full or broke down, or the address bad.
        unroutable: those for which there was no queue.
        returned: of these, those that the client got back (AMQP 0-9-1, mandatory).
        published_settled: of those published, those on which the client wants no answer. For metrics alone,
            as are the next ones.
        copies: of messages that went to more than one queue, those beyond the first.
        by_type: what is counted of consumers here, by the kind of their queue.
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
        """Count what another one has counted, too."""
        super().add(other)
        if isinstance(other, ClientCounters):
            for queue_type, consumption in other.by_type.items():
                self.of_type(queue_type).add(consumption)

    def of_type(self, queue_type: str) -> Consumption:
        """What consumers of queues of this kind got; to be counted in."""
        found = self.by_type.get(queue_type)
        if found is None:
            found = self.by_type[queue_type] = Consumption()
        return found

    def consumed(self, credits: Iterable[Consuming]) -> Self:
        """Count what consumers that are there have counted, too."""
        for credit in credits:
            counted = credit.counted()
            self.add(counted)
            self.of_type(credit.queue.type).add(counted)
        return self

    @classmethod
    def sum_of(cls, all_of_them: Iterable[Consumption]) -> Self:
        """All together."""
        total = cls()
        for each in all_of_them:
            total.add(each)
        return total


class Totals:
    """What all clients did and got since the start, by protocol, virtual host and user.

    Connections that have ended are added here; those that are there are counted where they are.
    """

    __slots__ = ("_forget_at", "_gone")

    def __init__(self) -> None:
        self._gone: defaultdict[Whose, ClientCounters] = defaultdict(ClientCounters)
        self._forget_at = FORGET_AT_LEAST

    def add(
        self, whose: Whose, counters: ClientCounters, users: Container[str], vhosts: Container[str]
    ) -> None:
        """A connection has ended.

        Args:
            whose: it was.
            counters: of the connection.
            users: those that are there: what others did is counted for the protocol only.
            vhosts: likewise.
        """
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
        """By protocol, by virtual host and by user; see `add`.

        Args:
            present: connections that are there.
            users: those that are there.
            vhosts: likewise.
        """
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
        """Of connections that have ended."""
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
