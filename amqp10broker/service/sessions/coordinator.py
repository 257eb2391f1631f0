"""The broker's end of a control link, on which transactions are declared and discharged (part 4, 4.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from amqp10broker.amqp10.codec import decode
from amqp10broker.amqp10.delivery import Parts
from amqp10broker.amqp10.disposition import ACCEPTED, State
from amqp10broker.amqp10.errors import AmqpDeliveryError, AmqpLinkError, Condition, DecodeError
from amqp10broker.amqp10.events import DeliveriesReceived
from amqp10broker.amqp10.faults import to_error
from amqp10broker.amqp10.link import ReceiverLink
from amqp10broker.amqp10.performatives import (
    AMQP_VALUE,
    Attach,
    Declare,
    Declared,
    Discharge,
    Flow,
    Rejected,
    as_composite,
)
from amqp10broker.amqp10.performatives import Coordinator as Target
from amqp10broker.amqp10.sections import SECTION_CODES
from amqp10broker.amqp10.session import Session
from amqp10broker.amqp10.types import Described, Symbol, ULong
from amqp10broker.catalog.queue import QueueHandle
from amqp10broker.queues.commands import Command, RequestRef
from amqp10broker.service.commits import Commits
from amqp10broker.service.context import Post, SessionContext
from amqp10broker.service.sessions.attach import rcv_settle_mode
from amqp10broker.service.sessions.transactions import Transaction, Transactions

CAPABILITIES: Final = (Symbol("amqp:local-transactions"), Symbol("amqp:multi-txns-per-ssn"))
"""What this coordinator can: nothing over several sessions, or resource managers."""

_REJECTED: Final = Symbol("amqp:rejected:list")


class Aborting:
    """Deliveries that a rollback gives up although they are sent in part.

    Attributes:
        ref: under which its answer waits for them.
        left: how many are not aborted yet.
    """

    __slots__ = ("_then", "left", "ref")

    def __init__(self, ref: RequestRef, then: Callable[[RequestRef], object]) -> None:
        self.ref = ref
        self.left = 0
        self._then = then

    def one_less(self) -> None:
        """One of them is aborted, or has gone with its link."""
        self.left -= 1
        if not self.left:
            self._then(self.ref)


class Coordinator:
    """One control link.

    Attributes:
        link: our end.
    """

    __slots__ = (
        "_commits",
        "_context",
        "_half_posted",
        "_post",
        "_rejects",
        "_session",
        "_take_mail",
        "_transactions",
        "_waiting",
        "link",
    )

    def __init__(
        self,
        session: Session,
        link: ReceiverLink,
        attach: Attach,
        context: SessionContext,
        commits: Commits,
        *,
        post: Post,
        take_mail: Callable[[], list[tuple[QueueHandle, Command]]],
        half_posted: Callable[[bytes], bool],
    ) -> None:
        """Answer the attach.

        Args:
            session: the engine.
            link: our end of the link.
            attach: the client's.
            context: the broker around the session; has its transactions.
            commits: carries them out.
            post: puts a letter to a queue.
            take_mail: gives the letters that were put and are not sent.
            half_posted: whether a delivery of several frames has begun within a transaction and not ended.
        """
        self.link = link
        self._session = session
        self._context = context
        self._commits = commits
        self._post = post
        self._take_mail = take_mail
        self._half_posted = half_posted
        self._transactions: Transactions = context.transactions
        outcomes = None if attach.source is None else attach.source.outcomes
        self._rejects = not outcomes or _REJECTED in outcomes
        # Discharges in order: the answer to one that is not told is None until it is safe.
        self._waiting: deque[tuple[int, RequestRef | None, State, Transaction | None]] = deque()
        session.links.accept(
            link,
            source=attach.source,
            target=Target(capabilities=CAPABILITIES),
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode(attach),
            credit_limit=context.flow_for(None).link_credit,
            max_message_size=context.config.max_message_size_bytes,
        )

    # --- from the client --------------------------------------------------------------------------

    def on_deliveries(self, event: DeliveriesReceived) -> None:
        """Declare and discharge.

        Raises:
            AmqpLinkError: the link must be detached with it, and its transactions are rolled back.
        """
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
        if self._transactions.open_in_connection >= most:
            text = f"{most} transactions of this connection are open (transactions_max_per_connection)"
            raise AmqpDeliveryError(Condition.RESOURCE_LIMIT_EXCEEDED, f"{text}: discharge one first")
        transaction = self._transactions.declare(self.link)
        return Declared(txn_id=transaction.id)

    def _discharge(self, delivery_id: int, discharge: Discharge) -> None:
        try:
            transaction = self._transactions.find(discharge.txn_id)
        except AmqpLinkError as error:
            raise AmqpDeliveryError(error.condition, error.description) from error
        if self._half_posted(transaction.id):
            text = "a delivery within the transaction has begun and is not whole (more=true)"
            raise AmqpLinkError(Condition.TRANSACTION_ROLLBACK, text)
        if discharge.fail:
            self._answer_behind(self._roll_back(transaction), delivery_id, ACCEPTED)
            return
        why = transaction.failed
        if why is None:
            ref = self._context.reply_to.request()
            parts = transaction.parts(self._context.reply_to.publisher(), self._context.moment.ms)
            why = self._commits.commit(self._take_mail(), parts, ref)
            if why is None:
                self._transactions.committed(transaction)
                waits_for = None if self._commits.safe else ref
                self._waiting.append((delivery_id, waits_for, ACCEPTED, transaction))
                self._tell()
                return
        aborting = self._roll_back(transaction)
        fault = AmqpLinkError(Condition.TRANSACTION_ROLLBACK, f"the transaction was rolled back: {why}")
        if not self._rejects:
            raise fault
        self._answer_behind(aborting, delivery_id, Rejected(error=to_error(fault)))

    def _roll_back(self, transaction: Transaction) -> Aborting:
        aborting = Aborting(self._context.reply_to.request(), self.on_committed)
        for handle, command in transaction.undone():
            self._post(handle, command)
        aborting.left = self._transactions.rolled_back(transaction, aborting.one_less)
        return aborting

    # --- answers ----------------------------------------------------------------------------------

    def on_committed(self, ref: RequestRef) -> bool:
        """A commit is safe; returns whether it was one of this link."""
        for at, (delivery_id, waiting, state, transaction) in enumerate(self._waiting):
            if waiting == ref:
                self._waiting[at] = (delivery_id, None, state, transaction)
                self._tell()
                return True
        return False

    def _answer_behind(self, aborting: Aborting, delivery_id: int, state: State) -> None:
        """A rollback is answered when what was sent in part within it is aborted (4.4.3)."""
        if aborting.left:
            self._waiting.append((delivery_id, aborting.ref, state, None))
        else:
            self._answer_in_turn(delivery_id, state)

    def _answer_in_turn(self, delivery_id: int, state: State) -> None:
        """Discharges are answered in their order; one waits for those before it."""
        self._waiting.append((delivery_id, None, state, None))
        self._tell()

    def _tell(self) -> None:
        while self._waiting and self._waiting[0][1] is None:
            delivery_id, _, state, transaction = self._waiting.popleft()
            # Outcomes of what was posted, and earlier answers, stand in front of it: in one batch with them
            # a rejected one would be the first.
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
        """Whether the link has ended, and nothing is to be told any more."""
        return not self.link.attached and not self._waiting

    def on_flow(self, flow: Flow) -> None:
        """Its credit is all that a client can say of it, and the engine has taken that over."""

    def on_detached(self, unsent: Sequence[tuple[int, Parts]]) -> None:
        """The link has ended: what was declared on it is rolled back."""
        for transaction in self._transactions.of(self.link):
            self._roll_back(transaction)


def _request(payload: bytes) -> Declare | Discharge:
    """What a message asks for: the value of its amqp-value section; other sections count for nothing.

    Raises:
        AmqpDeliveryError: it is neither declare nor discharge.
    """
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
