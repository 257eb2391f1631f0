"""What clients did and got, in numbers that only grow: of links, channels, sessions and connections.

Counted once a batch, where a batch is handled anyway. What has ended is added to what it was part of.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final, Self

from amqp10broker.queues.commands import Verdict

PUBLISHING: Final = ("published", "confirmed", "rejected", "unroutable", "returned")
CONSUMING: Final = (
    *("delivered", "delivered_settled", "got", "got_settled"),
    *("acknowledged", "requeued", "discarded"),
)


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
