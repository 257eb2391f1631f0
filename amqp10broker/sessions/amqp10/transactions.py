"""The transactions of one AMQP 1.0 session and the work in each until it is discharged (part 4).

Published messages and the client's decisions on deliveries wait here only; queues receive them with the
commit. `sessions/messages.py` has the interface of the commit, `coordinator.py` the control link.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field
from typing import NamedTuple, Protocol

from amqp10broker.dataclass import dataclass
from amqp10broker.message.amqp10 import aged
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.links import Outbound
from amqp10broker.protocols.amqp10.settling import Outcome
from amqp10broker.protocols.serial import diff
from amqp10broker.queues.commands import ConsumerRef, DeliveryOutcome, Publish, PublisherRef, Settle
from amqp10broker.sessions.counters import Moment
from amqp10broker.sessions.messages import Part


class Holder(Protocol):
    """The consumer of a delivery on which a transaction has decided."""

    queue: DeclaredQueue
    default_delivery_outcome: DeliveryOutcome

    @property
    def ref(self) -> ConsumerRef: ...

    def decided(self, delivery_outcome: DeliveryOutcome, ids: Sequence[int], outcome: Outcome | None) -> None:
        """Handle a decision that a commit has applied. `ids`: empty if the client has settled the
        delivery.
        """


class Retired(NamedTuple):
    """A decision on one delivery that takes effect with the commit."""

    holder: Holder
    delivery_id: int
    delivery_outcome: DeliveryOutcome
    outcome: Outcome | None
    settled: bool
    annotations: bytes = b""


@dataclass(eq=False, slots=True)
class Transaction:
    """One transaction. `due_ms`: when it times out; the time runs from the first work in it. `failed`: why it
    can only be rolled back.
    """

    id: bytes
    control: ReceiverLink
    began_ms: int
    due_ms: int | None = None
    messages: int = 0
    bytes: int = 0
    failed: str | None = None
    discharged: bool = False
    acquirers: dict[Acquisition, None] = field(default_factory=dict)
    # Queue, messages, and the time at which they were received.
    _posts: list[tuple[DeclaredQueue, Sequence[Message], int]] = field(default_factory=list)
    _retired: dict[tuple[ConsumerRef, int], Retired] = field(default_factory=dict)

    def fail(self, why: str) -> None:
        if self.failed is None:
            self.failed = why
        self._posts.clear()

    def post(
        self, queues: Sequence[DeclaredQueue], messages: Sequence[Message], size: int, now_ms: int
    ) -> None:
        self.messages += len(messages)
        self.bytes += size
        if self.failed is None:
            self._posts += [(queue, messages, now_ms) for queue in queues]

    def retire(self, key: int, retired: Retired) -> None:
        self._retired[retired.holder.ref, key] = retired

    def let_go(self, ref: ConsumerRef, key: int) -> None:
        self._retired.pop((ref, key), None)

    def deliveries(self) -> Collection[tuple[ConsumerRef, int]]:
        return self._retired.keys()

    def parts(self, ref: PublisherRef, now_ms: int) -> list[Part]:
        """Return the parts of the commit: first the messages in order, with their time to live from their
        arrival, then the decisions, so that a message has the room that was there when it was checked.
        """
        by_queue: dict[DeclaredQueue, list[Message]] = {}
        for queue, messages, came_ms in self._posts:
            waited_ms = now_ms - came_ms
            by_queue.setdefault(queue, []).extend(aged(messages, waited_ms) if waited_ms > 0 else messages)
        parts: list[Part] = [
            (queue.handle, Publish(ref, range(len(messages)), messages, True))
            for queue, messages in by_queue.items()
        ]
        keys: dict[tuple[ConsumerRef, DeliveryOutcome, bytes], list[int]] = {}
        queues: dict[ConsumerRef, DeclaredQueue] = {}
        for (holder, key), retired in self._retired.items():
            keys.setdefault((holder, retired.delivery_outcome, retired.annotations), []).append(key)
            queues[holder] = retired.holder.queue
        parts += [
            (queues[holder].handle, Settle(holder, numbers, delivery_outcome, annotations=annotations))
            for (holder, delivery_outcome, annotations), numbers in keys.items()
        ]
        return parts

    def tell_holders(self) -> None:
        for retired in self._retired.values():
            ids = [] if retired.settled else [retired.delivery_id]
            retired.holder.decided(retired.delivery_outcome, ids, retired.outcome)

    def undone(self) -> list[Part]:
        """Return the parts of a rollback: deliveries that the client has settled get the default outcome,
        others stay with it, as if there had been no decision (4.4.4.2).
        """
        keys: dict[ConsumerRef, tuple[Holder, list[int]]] = {}
        for (ref, key), retired in self._retired.items():
            if retired.settled:
                keys.setdefault(ref, (retired.holder, []))[1].append(key)
        return [
            (holder.queue.handle, Settle(ref, numbers, holder.default_delivery_outcome))
            for ref, (holder, numbers) in keys.items()
        ]


@dataclass(eq=False, slots=True)
class TransactionNumbers:
    """The transaction ids of one connection. `open`: the number of transactions that are not discharged."""

    _connection: int = 0
    _last: int = 0
    open: int = 0

    def next_id(self) -> bytes:
        self._last += 1
        return (self._connection % 2**32).to_bytes(4, "big") + (self._last % 2**32).to_bytes(4, "big")


class ConflictError(Exception):
    """Another transaction has already decided on a delivery (part 4, section 4.4.2)."""

    def __init__(self, transaction: Transaction, text: str) -> None:
        super().__init__(text)
        self.transaction = transaction


@dataclass(eq=False, slots=True)
class Transactions:
    """The transactions of one session. `_timeout_ms`: how long one may be open; 0: no limit. `_watch`: called
    when the time of a transaction begins to run.
    """

    numbers: TransactionNumbers = field(default_factory=TransactionNumbers)
    _moment: Moment = field(default_factory=Moment)
    _timeout_ms: int = 0
    _watch: Callable[[Transactions], None] = lambda transactions: None
    open: dict[bytes, Transaction] = field(default_factory=dict)
    # The transaction that has decided on a delivery.
    _deciding: dict[tuple[ConsumerRef, int], Transaction] = field(default_factory=dict)
    # Consumers without links that hold deliveries on which transactions have decided, with the function by
    # which they leave their queues.
    _leaving: dict[ConsumerRef, Callable[[], None]] = field(default_factory=dict)

    def declare(self, control: ReceiverLink) -> Transaction:
        self.numbers.open += 1
        transaction = Transaction(self.numbers.next_id(), control, self._moment.ms)
        self.open[transaction.id] = transaction
        return transaction

    def find(self, txn_id: bytes) -> Transaction:
        transaction = self.open.get(txn_id)
        if transaction is None or transaction.discharged:
            raise AmqpLinkError(
                Condition.UNKNOWN_TRANSACTION,
                f"no transaction of this session has the id 0x{txn_id.hex()}: declare one",
            )
        return transaction

    def of(self, control: ReceiverLink) -> list[Transaction]:
        return [each for each in self.open.values() if each.control is control]

    def committed(self, transaction: Transaction) -> None:
        self._moment.measures.transactions["committed"] += 1
        for acquirer in transaction.acquirers:
            acquirer.end(transaction)
        self._forget(transaction)

    def rolled_back(self, transaction: Transaction, then: Callable[[], None] = lambda: None) -> int:
        """Roll a transaction back. `then`: called when a delivery that was acquired in it and partly sent is
        aborted. Returns the number of these deliveries.
        """
        end = "timed-out" if self._is_overdue(transaction) else "rolled-back"
        self._moment.measures.transactions[end] += 1
        aborting = sum(each.roll_back(transaction, then) for each in tuple(transaction.acquirers))
        self._forget(transaction)
        return aborting

    def _forget(self, transaction: Transaction) -> None:
        del self.open[transaction.id]
        self.numbers.open -= 1
        for delivery in transaction.deliveries():
            self._deciding.pop(delivery, None)
        for ref in {ref for ref, _ in transaction.deliveries()} & self._leaving.keys():
            if not self.bound(ref):
                self._leaving.pop(ref)()

    def clear(self) -> None:
        """Drop all transactions when the session ends."""
        self._moment.measures.transactions["rolled-back"] += len(self.open)
        self.numbers.open -= len(self.open)
        self.open.clear()
        self._deciding.clear()
        for leave in self._leaving.values():
            leave()
        self._leaving.clear()

    # --- time -------------------------------------------------------------------------------------

    @property
    def due_ms(self) -> int | None:
        due = [each.due_ms for each in self.open.values() if each.due_ms is not None]
        return min(due, default=None)

    def overdue(self) -> list[Transaction]:
        return [each for each in self.open.values() if self._is_overdue(each)]

    def _is_overdue(self, transaction: Transaction) -> bool:
        return transaction.due_ms is not None and transaction.due_ms <= self._moment.ms

    def watch(self) -> None:
        if self.due_ms is not None:
            self._watch(self)

    def work(self, transaction: Transaction) -> None:
        """Note work in a transaction, which starts its timeout."""
        if transaction.due_ms is None and self._timeout_ms:
            transaction.due_ms = self._moment.ms + self._timeout_ms
            self._watch(self)

    # --- posting and deciding ---------------------------------------------------------------------

    def post(
        self,
        transaction: Transaction,
        queues: Sequence[DeclaredQueue],
        messages: Sequence[Message],
        size: int,
    ) -> None:
        self.work(transaction)
        transaction.post(queues, messages, size, self._moment.ms)

    def decided_elsewhere(
        self, transaction: Transaction, ref: ConsumerRef, keys: Iterable[int]
    ) -> Transaction | None:
        """Return another transaction that has decided on one of these deliveries."""
        for key in keys:
            other = self._deciding.get((ref, key))
            if other is not None and other is not transaction:
                return other
        return None

    def retire(self, transaction: Transaction, key: int, retired: Retired) -> None:
        self.work(transaction)
        transaction.retire(key, retired)
        self._deciding[retired.holder.ref, key] = transaction

    def decided_outside(self, ref: ConsumerRef, keys: Iterable[int]) -> None:
        """Drop decisions that the client has replaced by decisions outside of transactions."""
        for key in keys:
            transaction = self._deciding.pop((ref, key), None)
            if transaction is not None:
                transaction.let_go(ref, key)

    def taken_back(self, ref: ConsumerRef, keys: Iterable[int], why: str) -> bool:
        """Fail the transactions with decisions on these deliveries; return whether there were any."""
        found = False
        for key in keys:
            transaction = self._deciding.pop((ref, key), None)
            if transaction is not None:
                transaction.let_go(ref, key)
                transaction.fail(why)
                found = True
        return found

    def bound(self, ref: ConsumerRef) -> set[int]:
        """Return the keys of a consumer's deliveries on which open transactions have decided."""
        return {key for holder, key in self._deciding if holder == ref}

    def leaves(self, ref: ConsumerRef, leave: Callable[[], None]) -> None:
        """Note that a consumer's link has ended before the transactions that have decided on its deliveries.
        `leave`: lets the consumer leave its queue when these have ended.
        """
        self._leaving[ref] = leave

    def lost(self, ref: ConsumerRef, why: str) -> None:
        self._leaving.pop(ref, None)
        self.taken_back(ref, self.bound(ref), why)


# A flow names the transaction; deliveries sent after it belong to the transaction. A commit does not change
# them: an unsettled delivery is the client's as any other. A rollback returns it to its queue. If only a part
# of a delivery has been sent, its rest is aborted, and the rollback is answered after that.


@dataclass(eq=False, slots=True)
class Aborted:
    """A marker behind a delivery that is aborted."""

    then: Callable[[], None]


@dataclass(eq=False, slots=True)
class Acquisition:
    """The transactions in which one link acquires. `_give_up`: returns unsettled deliveries to the queue."""

    _outbound: Outbound
    _link: SenderLink
    _give_up: Callable[[Sequence[int]], None]
    _within: Transaction | None = None
    # The first delivery-id of the transaction in which the link acquires now.
    _first: int = 0
    # Open transactions in which the link has acquired: first delivery-ids, and the ids after the last ones.
    _spans: dict[Transaction, list[tuple[int, int]]] = field(default_factory=dict)
    _aborted: list[Aborted] = field(default_factory=list)

    def enter(self, transaction: Transaction) -> None:
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
        self._give_up(ids)
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
        for transaction in self._spans:
            transaction.acquirers.pop(self, None)
        self._spans.clear()
        self._within = None
        for marker in self._aborted:
            marker.then()
        self._aborted.clear()
