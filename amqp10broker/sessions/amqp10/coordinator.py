"""The broker's end of a control link: a client declares and discharges transactions on it (part 4, 4.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.protocols.amqp10.codec import decode
from amqp10broker.protocols.amqp10.delivery import Parts
from amqp10broker.protocols.amqp10.errors import AmqpDeliveryError, AmqpLinkError, Condition, DecodeError
from amqp10broker.protocols.amqp10.link import DeliveriesReceived, ReceiverLink
from amqp10broker.protocols.amqp10.performatives import (
    AMQP_VALUE,
    SECTION_CODES,
    Attach,
    Declare,
    Declared,
    Discharge,
    Rejected,
    as_composite,
)
from amqp10broker.protocols.amqp10.performatives import Coordinator as Target
from amqp10broker.protocols.amqp10.session import Session
from amqp10broker.protocols.amqp10.settling import ACCEPTED, State, to_error
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong
from amqp10broker.queues.commands import RequestRef
from amqp10broker.sessions.amqp10.attach import rcv_settle_mode
from amqp10broker.sessions.amqp10.link_owner import LinkOwner
from amqp10broker.sessions.amqp10.transactions import Transaction
from amqp10broker.sessions.context import SessionContext, ToQueue
from amqp10broker.sessions.messages import NotYet, QueueCommits

CAPABILITIES: Final = (Symbol("amqp:local-transactions"), Symbol("amqp:multi-txns-per-ssn"))

_REJECTED: Final = Symbol("amqp:rejected:list")


@dataclass(eq=False, slots=True)
class Aborting:
    """A rollback that waits until `left` partly sent deliveries are aborted."""

    ref: RequestRef
    _then: Callable[[RequestRef], object]
    left: int = 0

    def one_less(self) -> None:
        self.left -= 1
        if not self.left:
            self._then(self.ref)


_Outcome = tuple[RequestRef | None, State, Transaction | None]


@dataclass(eq=False, slots=True)
class CoordinatorLink(LinkOwner):
    """One control link of a client."""

    _session: Session
    link: ReceiverLink
    _context: SessionContext
    _commits: QueueCommits
    _to_queue: ToQueue
    _take_commands: Callable[[], list[QueueCommand]]
    _half_posted: Callable[[bytes], bool]
    _rejects: bool = field(init=False)
    # Discharges in order: delivery-id, what the answer waits for, the answer, and the transaction of the
    # holders to notify.
    _waiting: deque[tuple[int, RequestRef | None, State, Transaction | None]] = field(default_factory=deque)
    # Commits for which queues are not ready, in order; they are in `_waiting` under the same ref.
    _parked: deque[tuple[RequestRef, Transaction]] = field(default_factory=deque)

    def accept(self, attach: Attach) -> None:
        outcomes = None if attach.source is None else attach.source.outcomes
        self._rejects = not outcomes or _REJECTED in outcomes
        self._session.links.accept(
            self.link,
            source=attach.source,
            target=Target(capabilities=CAPABILITIES),
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode(attach),
            credit_limit=self._context.flow_for(None).link_credit,
            max_message_size=self._context.config.max_message_size_bytes,
        )

    # --- from the client --------------------------------------------------------------------------

    def on_deliveries(self, event: DeliveriesReceived) -> None:
        if event.settled:
            text = "a declare or discharge must not be sent settled: its answer is its outcome"
            raise AmqpLinkError(Condition.NOT_ALLOWED, text)
        if event.txn_id is not None:
            raise AmqpLinkError(Condition.NOT_ALLOWED, "no transactional work on a control link")
        for delivery_id, payload in zip(event.delivery_ids, event.payloads, strict=True):
            try:
                match _request(payload):
                    case Declare() as declare:
                        self._answer(delivery_id, self._declare(declare))
                    case Discharge() as discharge:
                        self._discharge(delivery_id, discharge)
            except AmqpDeliveryError as error:
                if not self._rejects:
                    raise AmqpLinkError(error.condition, error.description) from error
                self._answer_in_turn(delivery_id, Rejected(error=to_error(error)))

    def _declare(self, declare: Declare) -> Declared:
        if declare.global_id is not None:
            text = "distributed transactions (global-id) are not supported"
            raise AmqpDeliveryError(Condition.NOT_IMPLEMENTED, text)
        most = self._context.config.transactions_max_per_connection
        if self._context.transactions.numbers.open >= most:
            text = f"{most} transactions of this connection are open (transactions_max_per_connection)"
            raise AmqpDeliveryError(Condition.RESOURCE_LIMIT_EXCEEDED, f"{text}: discharge one first")
        transaction = self._context.transactions.declare(self.link)
        return Declared(txn_id=transaction.id)

    def _discharge(self, delivery_id: int, discharge: Discharge) -> None:
        try:
            transaction = self._context.transactions.find(discharge.txn_id)
        except AmqpLinkError as error:
            raise AmqpDeliveryError(error.condition, error.description) from error
        if self._half_posted(transaction.id):
            text = "a delivery within the transaction has begun and is not whole (more=true)"
            raise AmqpLinkError(Condition.TRANSACTION_ROLLBACK, text)
        if discharge.fail:
            # Answered when the partly sent deliveries within it are aborted (4.4.3).
            aborting = self._roll_back(transaction)
            self._answer_in_turn(delivery_id, ACCEPTED, aborting.ref if aborting.left else None)
            return
        ref = self._context.reply_to.request()
        # Commits of a link are carried out in their order.
        why = NotYet("one before it waits") if self._parked else self._commit(transaction, ref)
        if isinstance(why, NotYet):
            transaction.discharged = True
            self._parked.append((ref, transaction))
            self._waiting.append((delivery_id, ref, ACCEPTED, transaction))
            return
        self._waiting.append((delivery_id, *self._outcome(transaction, ref, why)))
        self._tell()

    def _commit(self, transaction: Transaction, ref: RequestRef) -> str | None:
        if transaction.failed is not None:
            return transaction.failed
        parts = transaction.parts(self._context.reply_to.publisher(), self._context.moment.ms)
        why = self._commits.commit(self._take_commands(), parts, ref)
        if isinstance(why, NotYet):
            self._commits.when_ready(parts, ref)
        return why

    def _outcome(self, transaction: Transaction, ref: RequestRef, why: str | None) -> _Outcome:
        # Raise if the client cannot be notified of a rollback.
        if why is None:
            self._context.transactions.committed(transaction)
            return None if self._commits.safe else ref, ACCEPTED, transaction
        aborting = self._roll_back(transaction)
        fault = AmqpLinkError(Condition.TRANSACTION_ROLLBACK, f"the transaction was rolled back: {why}")
        if not self._rejects:
            raise fault
        return aborting.ref if aborting.left else None, Rejected(error=to_error(fault)), None

    def _try_parked(self) -> None:
        while self._parked:
            ref, transaction = self._parked[0]
            why = self._commit(transaction, ref)
            if isinstance(why, NotYet):
                break
            self._parked.popleft()
            at = next(at for at, (_, waiting, _, _) in enumerate(self._waiting) if waiting == ref)
            try:
                self._waiting[at] = (self._waiting[at][0], *self._outcome(transaction, ref, why))
            except AmqpLinkError:
                del self._waiting[at]
                raise
        self._tell()

    def _roll_back(self, transaction: Transaction) -> Aborting:
        aborting = Aborting(self._context.reply_to.request(), self.on_committed)
        for handle, command in transaction.undone():
            self._to_queue((handle, command))
        aborting.left = self._context.transactions.rolled_back(transaction, aborting.one_less)
        return aborting

    # --- answers ----------------------------------------------------------------------------------

    def on_committed(self, ref: RequestRef) -> bool:
        """Handle a commit that is stored or can be carried out now; return whether it is one of this link."""
        if self._parked and self._parked[0][0] == ref:
            self._try_parked()
            return True
        for at, (delivery_id, waiting, state, transaction) in enumerate(self._waiting):
            if waiting == ref:
                self._waiting[at] = (delivery_id, None, state, transaction)
                self._tell()
                return True
        return False

    def _answer_in_turn(self, delivery_id: int, state: State, behind: RequestRef | None = None) -> None:
        self._waiting.append((delivery_id, behind, state, None))
        self._tell()

    def _tell(self) -> None:
        while self._waiting and self._waiting[0][1] is None:
            delivery_id, _, state, transaction = self._waiting.popleft()
            # Outcomes of posted messages, and earlier answers, come before it. Joined to one batch, a
            # rejected outcome would come first.
            self._session.settling.flush()
            if transaction is not None:
                transaction.tell_holders()
            self._answer(delivery_id, state)

    def _answer(self, delivery_id: int, state: State) -> None:
        if self.link.attached:
            self._session.settling.settle_received([delivery_id], state)
            self._session.inbound.finish(self.link, 1)

    # --- the link ---------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return not self.link.attached and not self._waiting

    def on_detached(self, unsent: Sequence[tuple[int, Parts]]) -> None:
        parked = {ref for ref, _ in self._parked}
        self._parked.clear()
        self._waiting = deque(each for each in self._waiting if each[1] not in parked)
        for transaction in self._context.transactions.of(self.link):
            self._roll_back(transaction)


def _request(payload: bytes) -> Declare | Discharge:
    # This is the value of the amqp-value section; other sections are ignored.
    found: Any = None
    try:
        pos = 0
        while pos < len(payload):
            section, pos = decode(payload, pos)
            descriptor = section.descriptor if isinstance(section, Described) else None
            code = descriptor if isinstance(descriptor, ULong) else SECTION_CODES.get(str(descriptor))
            if code == AMQP_VALUE:
                found = section.value
        if isinstance(found, Described):
            found = as_composite(found)
    except DecodeError as error:
        raise AmqpDeliveryError(Condition.DECODE_ERROR, error.description) from error
    if not isinstance(found, Declare | Discharge):
        text = "a control link takes declare and discharge, each as an amqp-value, and nothing else"
        raise AmqpDeliveryError(Condition.NOT_ALLOWED, text)
    return found
