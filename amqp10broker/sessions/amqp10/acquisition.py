"""Deliveries of one consuming link that are acquired within transactions (part 4, section 4.4.3).

A flow names the transaction; deliveries sent from then on belong to it. A commit does not change them: one
without a decision belongs to the client as any other. A rollback returns it to its queue, also one of which
only a part has been sent: its rest is aborted, and the rollback is answered after that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.link import SenderLink
from amqp10broker.protocols.amqp10.sending import Outbound
from amqp10broker.protocols.serial import diff
from amqp10broker.sessions.amqp10.transactions import Transaction


class Giver(Protocol):
    """The consumer of the link."""

    def give_up(self, ids: Sequence[int]) -> None:
        """Return unsettled deliveries that were sent to their queue."""


@dataclass(eq=False, slots=True)
class Aborted:
    """A marker of the link, queued behind a delivery that is aborted."""

    then: Callable[[], None]


class Acquisition:
    """The transactions in which one link acquires."""

    __slots__ = ("_aborted", "_first", "_giver", "_link", "_outbound", "_spans", "_within")

    def __init__(self, outbound: Outbound, link: SenderLink, giver: Giver) -> None:
        self._outbound = outbound
        self._link = link
        self._giver = giver
        self._within: Transaction | None = None
        # Of the transaction in which it acquires now: the first delivery-id.
        self._first = 0
        # Open transactions in which it has acquired: first delivery-ids, and those behind the last.
        self._spans: dict[Transaction, list[tuple[int, int]]] = {}
        self._aborted: list[Aborted] = []

    def enter(self, transaction: Transaction) -> None:
        """Acquire in this transaction from now on, and in no other."""
        if transaction is self._within:
            return
        self.leave()
        self._within, self._first = transaction, self._outbound.next_delivery_id
        self._spans.setdefault(transaction, [])
        transaction.acquirers[self] = None
        self._outbound.name_transaction(self._link, transaction.id)

    def leave(self) -> None:
        if self._within is None:
            return
        self._spans[self._within].append((self._first, self._outbound.next_delivery_id))
        self._within = None
        self._outbound.name_transaction(self._link, None)

    def transaction_of(self, delivery_id: int) -> Transaction | None:
        within = self._within
        if within is not None and diff(delivery_id, self._first) >= 0:
            return within
        return next((each for each in self._spans if self._has(each, delivery_id)), None)

    def _has(self, transaction: Transaction, delivery_id: int) -> bool:
        spans = self._spans[transaction]
        return any(diff(delivery_id, first) >= 0 > diff(delivery_id, end) for first, end in spans)

    def end(self, transaction: Transaction) -> None:
        if self._within is transaction:
            self.leave()
        self._spans.pop(transaction, None)

    def roll_back(self, transaction: Transaction, then: Callable[[], None]) -> bool:
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
        self._aborted.remove(marker)
        marker.then()

    def gone(self) -> None:
        """End with the link; what it held goes back."""
        for transaction in self._spans:
            transaction.acquirers.pop(self, None)
        self._spans.clear()
        self._within = None
        for marker in self._aborted:
            marker.then()
        self._aborted.clear()
