"""What clients did and got, in numbers that only grow: of links, channels, sessions, connections; in all.

Counted once a batch, where a batch is handled anyway. What has ended is added to what it was part of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from itertools import chain
from typing import Final, NamedTuple, Self

from amqp10broker.queues.commands import Verdict

PUBLISHING: Final = ("published", "confirmed", "rejected", "unroutable", "returned")
CONSUMING: Final = (
    *("delivered", "delivered_settled", "got", "got_settled"),
    *("acknowledged", "requeued", "discarded"),
)


FORGET_AT_LEAST: Final = 1_000
"""So many combinations of names are kept before it is looked which of them were deleted."""


class Whose(NamedTuple):
    """Whose counters a connection's are; an empty name is nobody's, or was deleted."""

    protocol: str
    vhost: str
    user: str


class ClientCounters:
    """See the module.

    Attributes:
        published: messages that the client sent and that were routed, also to no queue.
        confirmed: those that the client was told are taken.
        rejected: those that the client was told are not: a queue was full or broke down, or the address bad.
        unroutable: those for which there was no queue.
        returned: of these, those that the client got back (AMQP 0-9-1, mandatory).
        delivered: to be settled, or acknowledged, by the client.
        delivered_settled: with nothing to come from the client.
        got: delivered to basic.get, to be acknowledged.
        got_settled: delivered to basic.get, without.
        acknowledged: accepted by the client.
        requeued: returned to the queue by the client.
        discarded: rejected by the client for good.
    """

    __slots__ = (*PUBLISHING, *CONSUMING)

    def __init__(self) -> None:
        self.published = 0
        self.confirmed = 0
        self.rejected = 0
        self.unroutable = 0
        self.returned = 0
        self.delivered = 0
        self.delivered_settled = 0
        self.got = 0
        self.got_settled = 0
        self.acknowledged = 0
        self.requeued = 0
        self.discarded = 0

    @classmethod
    def sum_of(cls, all_of_them: Iterable[Self]) -> Self:
        """All together."""
        total = cls()
        for each in all_of_them:
            total.add(each)
        return total

    @property
    def decided(self) -> int:
        """Deliveries on which the client has decided."""
        return self.acknowledged + self.requeued + self.discarded

    def settled(self, verdict: Verdict, deliveries: int) -> None:
        """Count what the client has decided on deliveries."""
        if verdict is Verdict.ACCEPT:
            self.acknowledged += deliveries
        elif verdict in (Verdict.DISCARD, Verdict.DISCARD_FAILED):
            self.discarded += deliveries
        else:
            self.requeued += deliveries

    def add(self, other: ClientCounters) -> None:
        """Count what another one has counted, too."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def document(self, names: Container[str] = frozenset((*PUBLISHING, *CONSUMING))) -> dict[str, int | None]:
        """As `status` has it.

        Args:
            names: those that mean something here; the others are null.
        """
        return {name: getattr(self, name) if name in names else None for name in self.__slots__}


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

    def _forget(self, users: Container[str], vhosts: Container[str]) -> None:
        for whose in [each for each in self._gone if each.user not in users or each.vhost not in vhosts]:
            user = whose.user if whose.user in users else ""
            vhost = whose.vhost if whose.vhost in vhosts else ""
            if (known := whose._replace(user=user, vhost=vhost)) != whose:
                self._gone[known].add(self._gone.pop(whose))
