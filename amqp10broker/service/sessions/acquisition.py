"""Deliveries that are acquired within transactions (part 4, section 4.4.3), of one link that consumes.

A flow names the transaction; what is sent from then on belongs to it. A commit changes nothing of that: a
delivery on which nothing was decided is the client's as any other. A rollback gives it back to its queue,
also one of which only a part has been sent: its rest is aborted, and the rollback is answered behind that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from amqp10broker.amqp10.link import SenderLink
from amqp10broker.amqp10.sending import Outbound
from amqp10broker.amqp10.serial import diff
from amqp10broker.service.sessions.transactions import Transaction


class Giver(Protocol):
    """The consumer of the link."""

    def give_up(self, ids: Sequence[int]) -> None:
        """Deliveries that were sent, and that the client has not settled, go back to their queue."""


class Aborted:
    """Stands behind a delivery that is aborted: a marker of the link.

    Attributes:
        then: what waits for it.
    """

    __slots__ = ("then",)

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then


class Acquisition:
    """See the module."""

    __slots__ = ("_aborted", "_first", "_giver", "_link", "_outbound", "_spans", "_within")

    def __init__(self, outbound: Outbound, link: SenderLink, giver: Giver) -> None:
        self._outbound = outbound
        self._link = link
        self._giver = giver
        self._within: Transaction | None = None
        # Of the transaction in which it acquires now: the first delivery-id.
        self._first = 0
        # Those in which it has acquired and that are open: first delivery-ids, and those behind the last.
        self._spans: dict[Transaction, list[tuple[int, int]]] = {}
        self._aborted: list[Aborted] = []

    def enter(self, transaction: Transaction) -> None:
        """What is sent from now on belongs to a transaction, and to no other."""
        if transaction is self._within:
            return
        self.leave()
        self._within, self._first = transaction, self._outbound.next_delivery_id
        self._spans.setdefault(transaction, [])
        transaction.acquirers[self] = None
        self._outbound.name_transaction(self._link, transaction.id)

    def leave(self) -> None:
        """What is sent from now on belongs to none."""
        if self._within is None:
            return
        self._spans[self._within].append((self._first, self._outbound.next_delivery_id))
        self._within = None
        self._outbound.name_transaction(self._link, None)

    def transaction_of(self, delivery_id: int) -> Transaction | None:
        """In which one a delivery was acquired, if that is open."""
        within = self._within
        if within is not None and diff(delivery_id, self._first) >= 0:
            return within
        return next((each for each in self._spans if self._has(each, delivery_id)), None)

    def _has(self, transaction: Transaction, delivery_id: int) -> bool:
        spans = self._spans[transaction]
        return any(diff(delivery_id, first) >= 0 > diff(delivery_id, end) for first, end in spans)

    def end(self, transaction: Transaction) -> None:
        """A transaction is over: the link acquires in none, and keeps its credit."""
        if self._within is transaction:
            self.leave()
        self._spans.pop(transaction, None)

    def roll_back(self, transaction: Transaction, then: Callable[[], None]) -> bool:
        """What was acquired in a transaction goes back; it is over.

        Args:
            transaction: which one.
            then: called when what has been sent in part is aborted, or gone with the link.

        Returns:
            Whether that is later.
        """
        if self._within is transaction:
            self.leave()
        unsettled = self._outbound.unsettled
        owned = [number for number, (link, _) in unsettled.items() if link is self._link]
        ids = [number for number in owned if self._has(transaction, number)]
        self.end(transaction)
        partial = self._link.partial
        self._giver.give_up(ids)
        if partial is None or partial.delivery_id not in ids:
            return False
        marker = Aborted(then)
        self._aborted.append(marker)
        self._outbound.abort(self._link, marker)
        return True

    def on_aborted(self, marker: Aborted) -> None:
        """The delivery in front of it is aborted."""
        self._aborted.remove(marker)
        marker.then()

    def gone(self) -> None:
        """The link has ended, and what it held goes back."""
        for transaction in self._spans:
            transaction.acquirers.pop(self, None)
        self._spans.clear()
        self._within = None
        for marker in self._aborted:
            marker.then()
        self._aborted.clear()
