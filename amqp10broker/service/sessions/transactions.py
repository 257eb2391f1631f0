"""Transactions of one AMQP 1.0 session: what is done in each, until it is discharged (part 4).

What is posted waits here and nowhere else, and so does what the client decides on deliveries; queues hear of
it when it is committed. What a commit is: `service/commits.py`; how it is asked for: `coordinator.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from amqp10broker.amqp10.disposition import Outcome
from amqp10broker.amqp10.faults import unknown_transaction
from amqp10broker.amqp10.link import ReceiverLink
from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.message.amqp10 import aged
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import ConsumerRef, Publish, PublisherRef, Settle, Verdict
from amqp10broker.service.commits import Part
from amqp10broker.service.moment import Moment


class Holder(Protocol):
    """The consumer of a delivery on which a transaction has decided."""

    @property
    def ref(self) -> ConsumerRef:
        """Under which its queue knows it."""

    @property
    def queue(self) -> DeclaredQueue:
        """Where its deliveries come from."""

    @property
    def default_verdict(self) -> Verdict:
        """What becomes of a delivery that was settled, and whose transaction was rolled back."""

    def decided(self, verdict: Verdict, ids: Sequence[int], outcome: Outcome | None) -> None:
        """A commit has applied a decision.

        Args:
            verdict: in the queue's words, of one delivery.
            ids: of the delivery, if the client has not settled it, and hears about it now.
            outcome: as the client said it.
        """


class Retired(NamedTuple):
    """What is to become of one delivery at the commit."""

    holder: Holder
    delivery_id: int
    verdict: Verdict
    outcome: Outcome | None
    settled: bool
    annotations: bytes = b""


class Acquirer(Protocol):
    """A consuming link that acquires in transactions: `acquisition.Acquisition`."""

    def end(self, transaction: Transaction) -> None:
        """A transaction is over."""

    def roll_back(self, transaction: Transaction, then: Callable[[], None]) -> bool:
        """What was acquired in it goes back, and it is over; returns whether `then` comes later."""


class Transaction:
    """One transaction.

    Attributes:
        id: 8 octets.
        control: the link that declared it.
        began_ms: when.
        due_ms: when it has been open for too long, counted from the first that was done in it; None: it has
            done nothing, or may be open for ever.
        messages: posted in it.
        bytes: of their contents.
        failed: why it can only be rolled back; None: it can be committed.
        discharged: its commit was asked for, and waits for a queue: nothing more is done in it.
        acquirers: links that acquire in it, or have.
    """

    __slots__ = (
        "_posts",
        "_retired",
        "acquirers",
        "began_ms",
        "bytes",
        "control",
        "discharged",
        "due_ms",
        "failed",
        "id",
        "messages",
    )

    def __init__(self, id: bytes, control: ReceiverLink, began_ms: int) -> None:
        self.id = id
        self.control = control
        self.began_ms = began_ms
        self.due_ms: int | None = None
        self.messages = 0
        self.bytes = 0
        self.failed: str | None = None
        self.discharged = False
        self.acquirers: dict[Acquirer, None] = {}
        # Queue, messages, and when they came.
        self._posts: list[tuple[DeclaredQueue, Sequence[Message], int]] = []
        self._retired: dict[tuple[ConsumerRef, int], Retired] = {}

    def fail(self, why: str) -> None:
        """It cannot be committed any more; what was posted is let go."""
        if self.failed is None:
            self.failed = why
        self._posts.clear()

    def post(
        self, queues: Sequence[DeclaredQueue], messages: Sequence[Message], size: int, now_ms: int
    ) -> None:
        """Keep messages for queues."""
        self.messages += len(messages)
        self.bytes += size
        if self.failed is None:
            self._posts += [(queue, messages, now_ms) for queue in queues]

    def retire(self, key: int, retired: Retired) -> None:
        """Keep a decision on a delivery, in place of an earlier one."""
        self._retired[retired.holder.ref, key] = retired

    def let_go(self, ref: ConsumerRef, key: int) -> None:
        """A decision outside of the transaction has come in place of that one."""
        self._retired.pop((ref, key), None)

    def deliveries(self) -> Collection[tuple[ConsumerRef, int]]:
        """Those that it has decided on."""
        return self._retired.keys()

    def parts(self, ref: PublisherRef, now_ms: int) -> list[Part]:
        """What queues are told at the commit: what was posted, in its order, then decisions.

        So what was posted has the room that it had when that was asked, also where deliveries come back.
        Its time to live runs from its arrival.

        Args:
            ref: to which they answer; nobody needs the answers.
            now_ms: the time.
        """
        by_queue: dict[DeclaredQueue, list[Message]] = {}
        for queue, messages, came_ms in self._posts:
            waited_ms = now_ms - came_ms
            by_queue.setdefault(queue, []).extend(aged(messages, waited_ms) if waited_ms > 0 else messages)
        parts: list[Part] = [
            (queue.handle, Publish(ref, range(len(messages)), messages, True))
            for queue, messages in by_queue.items()
        ]
        keys: dict[tuple[ConsumerRef, Verdict, bytes], list[int]] = {}
        queues: dict[ConsumerRef, DeclaredQueue] = {}
        for (holder, key), retired in self._retired.items():
            keys.setdefault((holder, retired.verdict, retired.annotations), []).append(key)
            queues[holder] = retired.holder.queue
        parts += [
            (queues[holder].handle, Settle(holder, numbers, verdict, annotations=annotations))
            for (holder, verdict, annotations), numbers in keys.items()
        ]
        return parts

    def tell_holders(self) -> None:
        """It is committed: what clients have not settled they hear of."""
        for retired in self._retired.values():
            ids = [] if retired.settled else [retired.delivery_id]
            retired.holder.decided(retired.verdict, ids, retired.outcome)

    def undone(self) -> list[Part]:
        """What queues are told when it is rolled back: what the client has settled gets the default outcome.

        What it has not settled stays with it, as if nothing had been said (4.4.4.2).
        """
        keys: dict[ConsumerRef, tuple[Holder, list[int]]] = {}
        for (ref, key), retired in self._retired.items():
            if retired.settled:
                keys.setdefault(ref, (retired.holder, []))[1].append(key)
        return [
            (holder.queue.handle, Settle(ref, numbers, holder.default_verdict))
            for ref, (holder, numbers) in keys.items()
        ]


class TransactionNumbers:
    """Of one connection: ids that no other transaction of this broker's run has, and how many are open.

    Attributes:
        open: transactions of all sessions that are not discharged.
    """

    __slots__ = ("_connection", "_last", "open")

    def __init__(self, connection: int = 0) -> None:
        self._connection = connection
        self._last = 0
        self.open = 0

    def next_id(self) -> bytes:
        """A fresh id."""
        self._last += 1
        return (self._connection % 2**32).to_bytes(4, "big") + (self._last % 2**32).to_bytes(4, "big")


class ConflictError(Exception):
    """A delivery is decided on in a second transaction, which cannot be (part 4, section 4.4.2).

    Attributes:
        transaction: the second one.
    """

    def __init__(self, transaction: Transaction, text: str) -> None:
        super().__init__(text)
        self.transaction = transaction


def _nobody() -> None:
    """Nobody watches the time."""


class Transactions:
    """Those of one session that are open."""

    __slots__ = ("_deciding", "_leaving", "_moment", "_numbers", "_open", "_timeout_ms", "_watch")

    def __init__(
        self,
        numbers: TransactionNumbers | None = None,
        moment: Moment | None = None,
        *,
        timeout_ms: int = 0,
        watch: Callable[[], None] = _nobody,
    ) -> None:
        """Begin without any.

        Args:
            numbers: those of the connection.
            moment: the time of the present wake, and where their ends are counted.
            timeout_ms: for how long one may be open; 0: for ever.
            watch: called when one has a time at which it is due.
        """
        self._numbers = numbers or TransactionNumbers()
        self._moment = moment or Moment()
        self._timeout_ms = timeout_ms
        self._watch = watch
        self._open: dict[bytes, Transaction] = {}
        # Which one has decided on a delivery.
        self._deciding: dict[tuple[ConsumerRef, int], Transaction] = {}
        # Consumers whose links have ended, and which hold what is decided on: how they leave their queues.
        self._leaving: dict[ConsumerRef, Callable[[], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._open.values())

    @property
    def open_in_connection(self) -> int:
        """How many are open in all sessions of the connection."""
        return self._numbers.open

    def declare(self, control: ReceiverLink) -> Transaction:
        """Begin one."""
        self._numbers.open += 1
        transaction = Transaction(self._numbers.next_id(), control, self._moment.ms)
        self._open[transaction.id] = transaction
        return transaction

    def find(self, txn_id: bytes) -> Transaction:
        """One that is open.

        Raises:
            AmqpLinkError: there is none of this id in this session.
        """
        transaction = self._open.get(txn_id)
        if transaction is None or transaction.discharged:
            raise unknown_transaction(txn_id)
        return transaction

    def of(self, control: ReceiverLink) -> list[Transaction]:
        """Those that a link has declared."""
        return [each for each in self._open.values() if each.control is control]

    def committed(self, transaction: Transaction) -> None:
        """It is discharged, and done."""
        self._moment.measures.transactions.committed += 1
        for acquirer in transaction.acquirers:
            acquirer.end(transaction)
        self._forget(transaction)

    def rolled_back(self, transaction: Transaction, then: Callable[[], None] = _nobody) -> int:
        """It is over, and nothing of it is done.

        Args:
            transaction: which one.
            then: called each time that a delivery is aborted which was acquired in it and is sent in part.

        Returns:
            How often `then` will be called.
        """
        ends = self._moment.measures.transactions
        if self._is_overdue(transaction):
            ends.timed_out += 1
        else:
            ends.rolled_back += 1
        aborting = sum(each.roll_back(transaction, then) for each in tuple(transaction.acquirers))
        self._forget(transaction)
        return aborting

    def _forget(self, transaction: Transaction) -> None:
        del self._open[transaction.id]
        self._numbers.open -= 1
        for delivery in transaction.deliveries():
            self._deciding.pop(delivery, None)
        for ref in {ref for ref, _ in transaction.deliveries()} & self._leaving.keys():
            if not self.bound(ref):
                self._leaving.pop(ref)()

    def clear(self) -> None:
        """The session is over, and its consumers give back what they hold."""
        self._moment.measures.transactions.rolled_back += len(self._open)
        self._numbers.open -= len(self._open)
        self._open.clear()
        self._deciding.clear()
        for leave in self._leaving.values():
            leave()
        self._leaving.clear()

    # --- time -------------------------------------------------------------------------------------

    @property
    def due_ms(self) -> int | None:
        """When the first is overdue; None: there is none that ever will be."""
        due = [each.due_ms for each in self._open.values() if each.due_ms is not None]
        return min(due, default=None)

    def overdue(self) -> list[Transaction]:
        """Those that have been open for too long."""
        return [each for each in self._open.values() if self._is_overdue(each)]

    def _is_overdue(self, transaction: Transaction) -> bool:
        return transaction.due_ms is not None and transaction.due_ms <= self._moment.ms

    def watch(self) -> None:
        """Have the session told when the first is overdue, if any ever will be."""
        if self.due_ms is not None:
            self._watch()

    def work(self, transaction: Transaction) -> None:
        """Something is done in it: only then does it hold anything, and its time runs."""
        if transaction.due_ms is None and self._timeout_ms:
            transaction.due_ms = self._moment.ms + self._timeout_ms
            self._watch()

    # --- posting and deciding ---------------------------------------------------------------------

    def post(
        self,
        transaction: Transaction,
        queues: Sequence[DeclaredQueue],
        messages: Sequence[Message],
        size: int,
    ) -> None:
        """A transaction posts messages to queues."""
        self.work(transaction)
        transaction.post(queues, messages, size, self._moment.ms)

    def decided_elsewhere(
        self, transaction: Transaction, ref: ConsumerRef, keys: Iterable[int]
    ) -> Transaction | None:
        """Another transaction that has decided on one of these deliveries; None: there is none."""
        for key in keys:
            other = self._deciding.get((ref, key))
            if other is not None and other is not transaction:
                return other
        return None

    def retire(self, transaction: Transaction, key: int, retired: Retired) -> None:
        """A transaction decides on a delivery."""
        self.work(transaction)
        transaction.retire(key, retired)
        self._deciding[retired.holder.ref, key] = transaction

    def decided_outside(self, ref: ConsumerRef, keys: Iterable[int]) -> None:
        """The client has decided on deliveries, and names no transaction: that counts."""
        for key in keys:
            transaction = self._deciding.pop((ref, key), None)
            if transaction is not None:
                transaction.let_go(ref, key)

    def taken_back(self, ref: ConsumerRef, keys: Iterable[int], why: str) -> bool:
        """A queue has taken deliveries back: no decision on one of them can be carried out any more.

        Returns:
            Whether there was any.
        """
        found = False
        for key in keys:
            transaction = self._deciding.pop((ref, key), None)
            if transaction is not None:
                transaction.let_go(ref, key)
                transaction.fail(why)
                found = True
        return found

    def bound(self, ref: ConsumerRef) -> set[int]:
        """Keys of a consumer's deliveries on which open transactions have decided."""
        return {key for holder, key in self._deciding if holder == ref}

    def leaves(self, ref: ConsumerRef, leave: Callable[[], None]) -> None:
        """A consumer's link has ended, and what is decided on stays with it until its transactions end.

        Args:
            ref: of the consumer.
            leave: has it leave its queue; called when nothing of it is decided on any more.
        """
        self._leaving[ref] = leave

    def lost(self, ref: ConsumerRef, why: str) -> None:
        """A consumer has lost what it held: no decision on any of it can be carried out any more."""
        self._leaving.pop(ref, None)
        self.taken_back(ref, self.bound(ref), why)
