"""A client that consumes: it connects a sender link of the session with the credit of its queue.

The client's credit is the engine's (`link.credit`). The queue gets a part of it at a time
(`sessions/credit.py`). After a drain the two delivery-counts differ: the client's advances by all its credit,
the queue's by one batch. A flow that comes while a request to the queue is open is applied when the queue has
answered. The session answers the client when every delivery before the queue's answer has been written, so
that a flow never overtakes a transfer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, assert_never

from amqp10broker.config import FlowSettings
from amqp10broker.dataclass import dataclass
from amqp10broker.message.convert import all_to_amqp10
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue, LastError
from amqp10broker.metadata.queue_requests import Subscription
from amqp10broker.protocols.amqp10.credit import Grant, SenderCredit
from amqp10broker.protocols.amqp10.delivery import Parts, Resume, ResumedDelivery, SenderPlan
from amqp10broker.protocols.amqp10.encoder import encode
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.link import DeliveriesUpdated, SenderLink
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Declared,
    Flow,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
)
from amqp10broker.protocols.amqp10.session import Session
from amqp10broker.protocols.amqp10.settling import RELEASED, Outcome
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.queues.commands import (
    ActiveChanged,
    ConsumerRef,
    CreditReply,
    Deliver,
    DeliveryOutcome,
    Settle,
    Settled,
    TimedOut,
)
from amqp10broker.sessions.amqp10.link_owner import LinkOwner
from amqp10broker.sessions.amqp10.resumable_links import ResumableConsumer
from amqp10broker.sessions.amqp10.transactions import Aborted, Acquisition, ConflictError, Retired
from amqp10broker.sessions.context import SessionContext
from amqp10broker.sessions.counters import Moment
from amqp10broker.sessions.credit import AutoLimit, QueueCredit
from amqp10broker.sessions.messages import no_part_text

TXN_ID: Final = Symbol("txn-id")


def to_outcome(state: Any) -> DeliveryOutcome | None:
    match state:
        case Accepted():
            return DeliveryOutcome.ACCEPT
        case Rejected():
            # "delivery-count is incremented" (3.4.2): the consumer of the dead letter sees it.
            return DeliveryOutcome.DISCARD_FAILED
        case Released():
            return DeliveryOutcome.REQUEUE
        case Modified(undeliverable_here=True):
            # As in RabbitMQ, the message is not offered to other consumers either, but dead-lettered.
            return DeliveryOutcome.DISCARD_FAILED if state.delivery_failed else DeliveryOutcome.DISCARD
        case Modified():
            return DeliveryOutcome.REQUEUE_FAILED if state.delivery_failed else DeliveryOutcome.REQUEUE
        case _:
            return None


def decide(
    state: Any, *, settled: bool, default: DeliveryOutcome, annotates: bool
) -> tuple[DeliveryOutcome, bytes] | None:
    """Translate a client's disposition, with or without a state, to the decision and annotations.

    The annotations are an encoded map for the message-annotations, empty unless `annotates`. Returns None
    when the disposition contains no decision. Raises `AmqpLinkError` for annotations that clients may not
    set, and `AmqpSessionError` for a state that receivers may not set.
    """
    if state is None:
        return (default, b"") if settled else None
    annotations = b""
    if isinstance(state, Modified) and state.message_annotations:
        if not all(isinstance(key, Symbol) and key.startswith("x-") for key in state.message_annotations):
            raise AmqpLinkError(
                Condition.INVALID_FIELD,
                "reserved_annotation_key: message-annotations of modified must have symbol keys that start "
                "with x-",
            )
        if annotates:
            annotations = encode(state.message_annotations)
    delivery_outcome = to_outcome(state)
    if delivery_outcome is None:
        raise AmqpSessionError(
            Condition.INVALID_FIELD, f"Unrecognised state: {type(state).__name__.lower()} in DISPOSITION"
        )
    return delivery_outcome, annotations


ANSWERS_OWED_MAX: Final = 256
"""The most unanswered flows with echo or drain per link or pair; further ones get no answer of their own."""

ACTIVE: Final = Symbol("rabbitmq:active")
"""Link state property that states whether a client is the single active consumer."""


@dataclass(eq=False, slots=True)
class ConsumerTimes:
    """The times of events on a link on which a client receives; None: not yet. `granted_ms`: the last flow
    that left credit. The consumer sets `settled_ms` (the client's last decision), `unsent_ms` (the first
    delivery that waits to be written) and `request_ms` (the last request to the queue).
    """

    _moment: Moment
    credit_ms: int = field(init=False)
    unsent_ms: int = field(init=False)
    request_ms: int = field(init=False)
    flow_ms: int | None = None
    granted_ms: int | None = None
    sent_ms: int | None = None
    settled_ms: int | None = None
    _has_credit: bool = False
    _last: Grant | None = None

    def __post_init__(self) -> None:
        self.credit_ms = self.unsent_ms = self.request_ms = self._moment.ms

    def on_flow(self, credit: SenderCredit) -> None:
        if credit.last is self._last:
            return
        self._last = credit.last
        self.flow_ms = self._moment.ms
        if credit.link_credit:
            self.granted_ms = self._moment.ms
        self.note(credit)

    def on_sent(self, credit: SenderCredit) -> None:
        self.sent_ms = self._moment.ms
        self.note(credit)

    def note(self, credit: SenderCredit) -> None:
        has_credit = credit.link_credit > 0
        if has_credit is not self._has_credit:
            self._has_credit = has_credit
            now_ms = self._moment.ms
            if has_credit:
                self._moment.measures.receiver_credit_zero.count(now_ms - self.credit_ms)
            self.credit_ms = now_ms

    @property
    def idle_ms(self) -> int:
        """The earliest time from which the client could have received its next delivery."""
        return self.credit_ms if self.sent_ms is None else max(self.credit_ms, self.sent_ms)


@dataclass(eq=False, slots=True)
class LinkConsumer(LinkOwner):
    """One link on which a client consumes.

    Attributes:
        address: as given by the client; for a queue made for the link, the address of that queue.
        resuming: the client's attach gave an incomplete unsettled map: no new deliveries (2.7.3).
        closed: the client has closed its link, so nothing of it survives the detach.
        browse: it takes no message from its queue.
        selects: it gets only messages that match its filter.
        dynamic: its queue was made for the link, and ends with it.
        _drop: removes the consumer from its session after its link has ended, and calls its `leave`.
        resumable: the state that survives this end of the link; None if no state does.
        queue_credit: the most that it requests of its queue at a time.
        auto_limit: adapts `queue_credit`; None: it is fixed.
    """

    _session: Session
    link: SenderLink
    credit: QueueCredit
    address: str
    settings: FlowSettings
    _context: SessionContext
    _drop: Callable[[LinkConsumer, Sequence[tuple[int, Parts]]], None]
    resumable: ResumableConsumer | None
    resuming: bool
    default_delivery_outcome: DeliveryOutcome
    browse: bool
    selects: bool
    dynamic: bool
    exclusive: bool
    subscription: Subscription | None
    queue: DeclaredQueue = field(init=False)
    queue_credit: int = field(init=False)
    auto_limit: AutoLimit | None = None
    _counted: int = 0  # deliveries whose writing `auto_limit` has counted
    last_error: LastError | None = None
    closed: bool = False
    # The first epoch of this end. Answers of an older epoch belong to another end of a resumable link.
    _since: int = field(init=False)
    # Deliveries to resume when a quorum queue has made the decisions on them durable.
    _resumed: deque[ResumedDelivery] = field(default_factory=deque)
    times: ConsumerTimes = field(init=False)
    # Decisions that a quorum queue has yet to make durable, in the order of its answers; and deliveries that
    # the queue has taken back after a timeout, on which the client may still decide. They are created on
    # demand: few links ever have any, and empty ones take 800 bytes.
    _undurable: deque[tuple[Sequence[int], Outcome | None]] | None = None
    _expired: set[int] | None = None
    # Created when a flow names a transaction.
    _acquisition: Acquisition | None = None
    # Whether the client gets the link state property `ACTIVE`, and its value when it was last sent.
    tells_active: bool = field(init=False)
    _active_told: bool | None = None
    # Whether a flow came since the last request to the queue; the number of flows to be answered that the
    # last request covers; the number of later ones.
    _unasked: bool = False
    _answers_asked: int = 0
    _answers_owed: int = 0

    def __post_init__(self) -> None:
        queue = self.queue = self.credit.queue
        self.queue_credit = self.settings.queue_credit
        self._since = self.credit.epoch
        self.times = ConsumerTimes(self._context.moment)
        single = queue.effective.settings.single_active_consumer and not self.browse
        self.tells_active = queue.kind.tells_active and single

    @property
    def ref(self) -> ConsumerRef:
        return self.credit.ref

    @property
    def ready(self) -> int:
        """The number of messages that the queue could deliver to the consumer, by its last answer."""
        if self.credit.kind.replays or self.browse or self.selects:
            return self.credit.available
        return self.queue.handle.ready

    def on_flow(self, flow: Flow) -> None:
        if flow.properties is not None:
            self._acquire_in(flow.properties.get(TXN_ID))
        if flow.link_credit is None and not flow.echo:
            return
        self.times.on_flow(self.link.credit)
        if flow.echo or self.link.credit.drain:
            self._answers_owed = min(self._answers_owed + 1, ANSWERS_OWED_MAX)
        credit = self.credit
        if credit.waiting > self._room:
            self._give_back()
        if credit.in_flight:
            self._unasked = True
        else:
            self._request()

    def _acquire_in(self, txn_id: object) -> None:
        # The properties of a flow replace all properties of the link: without a transaction, they end
        # acquisition (part 4, section 4.4.3).
        if txn_id is not None and not isinstance(txn_id, bytes):
            text = f"property txn-id of a flow must be binary, and is {txn_id!r}"
            raise AmqpLinkError(Condition.INVALID_FIELD, text)
        if txn_id is None:
            if self._acquisition is not None:
                self._acquisition.leave()
            return
        transactions = self._context.transactions
        transaction = transactions.find(txn_id)
        why = None
        if self.link.settled:
            why = "its deliveries are sent settled"
        elif self.browse or self.queue.kind.replays:
            why = "it takes none from its queue"
        elif self.resumable is not None:
            why = "it outlives its session"
        if why is not None:
            text = f"link '{self.link.name}' cannot acquire messages in a transaction: {why}"
            raise AmqpLinkError(Condition.NOT_IMPLEMENTED, text)
        if not self._context.transacts(self.queue):
            raise AmqpLinkError(Condition.NOT_IMPLEMENTED, no_part_text(self.queue))
        if self._acquisition is None:
            self._acquisition = Acquisition(self._session.outbound, self.link, self.give_up)
        transactions.work(transaction)
        self._acquisition.enter(transaction)

    def give_up(self, ids: Sequence[int]) -> None:
        unsettled = self._session.outbound.unsettled
        found = [unsettled[number][1] for number in ids]
        keys, _, _ = self._without_expired(found, list(ids))
        if keys:
            self.credit.counters.settled(DeliveryOutcome.REQUEUE, len(keys))
            self.credit.post(Settle(self.credit.ref, keys, DeliveryOutcome.REQUEUE))
        partial = self.link.partial
        half = None if partial is None else partial.delivery_id
        self._settle([number for number in ids if number != half], RELEASED)

    def on_updated(self, event: DeliveriesUpdated) -> None:
        """Apply the client's decisions on deliveries. The session settles those that the client has not
        settled: at once, or when a quorum queue has made the decision durable. Raises as `decide`.
        """
        if event.settled and self.resumable is not None:
            self.resumable.forget(event.keys)
        if isinstance(event.state, TransactionalState):
            self._decide_within(event.state, event)
            return
        transactions = self._context.transactions
        if transactions.open:
            transactions.decided_outside(self.ref, event.keys)
        decision = self._decide(event.state, settled=event.settled)
        if decision is None:
            return
        delivery_outcome, annotations = decision
        keys, ids, expired = self._without_expired(event.keys, event.delivery_ids)
        if expired:
            if not event.settled:
                self._settle(expired, event.state)
            if not keys:
                # The queue does not wait for them, but it delivers nothing more until it receives a command.
                self.credit.post(Settle(self.credit.ref, (), DeliveryOutcome.ACCEPT))
        self.credit.counters.settled(delivery_outcome, len(keys))
        self.times.settled_ms = self._context.moment.ms
        answer = self.credit.kind.answers_settlements and not event.settled and bool(keys)
        if keys:
            self.credit.post(
                Settle(self.credit.ref, keys, delivery_outcome, annotations=annotations, answer=answer)
            )
        if answer:
            if self._undurable is None:
                self._undurable = deque()
            self._undurable.append((ids, event.state))
        elif not event.settled:
            self._settle(ids, event.state)

    def _decide(self, state: Any, *, settled: bool) -> tuple[DeliveryOutcome, bytes] | None:
        default, annotates = self.default_delivery_outcome, self.credit.kind.keeps_annotations
        return decide(state, settled=settled, default=default, annotates=annotates)

    def _decide_within(self, state: TransactionalState, event: DeliveriesUpdated) -> None:
        # The decision takes effect with the commit (part 4, section 4.4.2).
        transactions = self._context.transactions
        transaction = transactions.find(state.txn_id)
        if state.outcome is None and not event.settled:
            return
        if not self._context.transacts(self.queue):
            raise AmqpLinkError(Condition.NOT_IMPLEMENTED, no_part_text(self.queue))
        outcome = state.outcome
        decision = self._decide(outcome, settled=event.settled)
        assert decision is not None
        assert not isinstance(outcome, Declared), "it is no decision, and was refused"
        other = transactions.decided_elsewhere(transaction, self.ref, event.keys)
        if other is None and self._acquisition is not None:
            within = {self._acquisition.transaction_of(number) for number in event.delivery_ids}
            other = next(iter(within - {None, transaction}), None)
        if other is not None:
            other_id = other.id.hex()
            raise ConflictError(transaction, f"a delivery belongs to transaction 0x{other_id} already")
        keys, ids, expired = self._without_expired(event.keys, event.delivery_ids)
        if expired:
            transaction.fail(self._taken_back)
            if not event.settled:
                self._settle(expired, RELEASED)
            self.credit.post(Settle(self.credit.ref, (), DeliveryOutcome.ACCEPT))
        delivery_outcome, annotations = decision
        for key, number in zip(keys, ids, strict=True):
            retired = Retired(self, number, delivery_outcome, outcome, event.settled, annotations)
            transactions.retire(transaction, key, retired)

    def _without_expired(self, keys: list[int], ids: list[int]) -> tuple[list[int], list[int], list[int]]:
        # Return keys and ids of deliveries that still count, and ids of the expired ones. The expired are
        # removed here, because a queue may reuse the key of a delivery that went back to it.
        if not self._expired:
            return keys, ids, []
        valid = [(key, number) for key, number in zip(keys, ids, strict=True) if number not in self._expired]
        expired = [number for number in ids if number in self._expired]
        self._expired.difference_update(expired)
        return [key for key, _ in valid], [number for _, number in valid], expired

    @property
    def _taken_back(self) -> str:
        return f"a delivery of link '{self.link.name}' was held for too long, and is another consumer's"

    def decided(self, delivery_outcome: DeliveryOutcome, ids: Sequence[int], outcome: Outcome | None) -> None:
        self.credit.counters.settled(delivery_outcome, 1)
        self.times.settled_ms = self._context.moment.ms
        unsettled = self._session.outbound.unsettled
        self._settle([number for number in ids if number in unsettled], outcome)

    def _settle(self, ids: Sequence[int], state: Outcome | None) -> None:
        if not ids:
            return
        if self.resumable is not None:
            unsettled = self._session.outbound.unsettled
            self.resumable.forget([unsettled[number][1] for number in ids if number in unsettled])
        self._session.settling.settle_sent(ids, state)

    def on_sent(self, deliveries: int) -> None:
        self.times.on_sent(self.link.credit)
        self._request_next(deliveries)

    # --- from the queue ---------------------------------------------------------------------------

    def on_deliver(self, effect: Deliver) -> None:
        credit, room = self.credit, self._room
        if not credit.waiting:
            self.times.unsent_ms = self._context.moment.ms
        if not credit.on_deliver(effect):
            return
        keys, messages = effect.keys, effect.messages
        # Deliveries of a stream do not share a head, and are encoded in their final form.
        if not credit.kind.keeps_encoding:
            messages = all_to_amqp10(messages)
        if self.resumable is not None:
            self.resumable.delivered(keys, messages)
        self._session.outbound.queue_deliveries(self.link, keys, messages)
        if credit.waiting > room:
            # The client has lowered its credit while these deliveries were on their way.
            self._give_back()
            if not credit.in_flight:
                self._request()

    def on_reply(self, reply: CreditReply) -> None:
        if reply.epoch < self._since:
            return
        self.credit.on_reply(reply)
        if self.auto_limit is not None:
            self._count_reply(self.auto_limit, reply)
        self._in_turn(reply)

    def _count_reply(self, auto: AutoLimit, reply: CreditReply) -> None:
        # A queue in the same process answers at once, a queue on another node a round trip later. Until then
        # no delivery comes if the last request is used up. The limit holds the link up only if the request
        # was smaller than the number of messages in the queue and the client's credit.
        now_ms, asked_ms = self._context.moment.ms, self.times.request_ms
        held_up = not reply.credit and reply.available > 0 and self._wanted > self.credit.waiting
        if held_up and now_ms > asked_ms:
            auto.resumed(now_ms, now_ms - asked_ms)
        written = self.credit.written
        auto.done(now_ms, written - self._counted, 0)
        self._counted = written
        self.queue_credit = auto.limit

    def on_effect(self, effect: Settled | ActiveChanged | TimedOut) -> None:
        match effect:
            case Settled():
                if self.resumable is not None and self.resumable.stale:
                    self.resumable.stale -= 1
                    return
                if self._resumed:
                    # A quorum queue has made the client's decision on a resumed delivery durable.
                    self._session.outbound.queue_resumed(self.link, [self._resumed.popleft()])
                    if not self._resumed:
                        self._request_next()
                    return
                assert self._undurable is not None
                ids, state = self._undurable.popleft()
                # The client may have settled them meanwhile, and then needs no answer.
                unsettled = self._session.outbound.unsettled
                self._settle([number for number in ids if number in unsettled], state)
            case ActiveChanged():
                if self.resumable is not None:
                    self.resumable.active = effect.active
                if self.tells_active:
                    self._in_turn(effect)
            case TimedOut():
                self._on_timed_out(effect.keys)
            case _:
                assert_never(effect)

    def _on_timed_out(self, keys: Sequence[int]) -> None:
        expired = frozenset(keys)
        self.last_error = self._context.log.warning(
            "deliveries taken back: the consumer held them for too long",
            link=self.link.name,
            address=self.address,
            queue=self.queue.name,
            deliveries=len(expired),
            text="released",
        )
        told = self._session.settling.tell_sent(self.link, expired, RELEASED)
        self._expired = {*(self._expired or ()), *told}
        if self._context.transactions.taken_back(self.ref, keys, self._taken_back):
            # The client has decided on some of them, and sends nothing more about those that it has settled.
            self.credit.post(Settle(self.credit.ref, (), DeliveryOutcome.ACCEPT))
        if self.resumable is not None:
            self.resumable.forget(expired)
        never_sent = self.link.discard(expired)
        if never_sent:
            self.credit.drop(never_sent, oldest=True)
            self._request_next()

    def _in_turn(self, marker: CreditReply | ActiveChanged) -> None:
        if self.link.pending or self.link.partial is not None:
            self._session.outbound.queue_marker(self.link, marker)
        else:
            self.act_on(marker)

    def act_on(self, marker: object) -> None:
        """Act on an effect of the queue, after the deliveries before it have been written."""
        if isinstance(marker, CreditReply):
            self._act_on_reply(marker)
            return
        if isinstance(marker, Aborted):
            assert self._acquisition is not None
            self._acquisition.on_aborted(marker)
            return
        assert isinstance(marker, ActiveChanged)
        if marker.active is not self._active_told:
            self._active_told = marker.active
            self._send_flow({ACTIVE: marker.active})

    def _act_on_reply(self, reply: CreditReply) -> None:
        if not self.credit.answered(reply):
            self._request()  # overtaken by a `GiveBack` of this consumer: request again, from there
            return
        if reply.drain:
            self._act_on_drain()
        else:
            self._answer()
        if self.credit.in_flight:
            return
        if self._unasked:
            self._request()
        else:
            self._request_next()

    def _act_on_drain(self) -> None:
        credit = self.link.credit
        if not credit.drain:
            # A later flow has ended the drain before it was complete: answer with the state, and continue.
            self._answer()
        elif not self.credit.forfeited and self._wanted > 0:
            self._request()  # messages have used up the request: request again for the same drain
        else:
            self._answers_asked = max(0, self._answers_asked - 1)
            self._session.drained(self.link, available=self.credit.available)
            self.times.note(credit)
            self._answer()

    def _answer(self) -> None:
        asked, self._answers_asked = self._answers_asked, 0
        for _ in range(asked):
            self._send_flow()

    def _send_flow(self, change: dict[Symbol, bool] | None = None) -> None:
        self._session.send_flow(self.link, available=self.credit.available, properties=change)

    # --- to the queue -----------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        # Resumed deliveries use the client's credit first.
        return max(0, self.link.credit.link_credit - self.link.resuming)

    @property
    def _wanted(self) -> int:
        return 0 if self.resuming or self._resumed else self._room

    def _request(self) -> None:
        drain = self.link.credit.drain
        self.credit.request(self._wanted, self.queue_credit, drain=drain)
        self._on_requested()

    def _on_requested(self) -> None:
        # The request covers all flows so far.
        self.times.request_ms = self._context.moment.ms
        self._unasked = False
        self._answers_asked += self._answers_owed
        self._answers_owed = 0

    def _request_next(self, written: int = 0) -> None:
        # `written`: deliveries that `credit` does not count as written yet.
        wanted = self._wanted
        if written:
            self.credit.sent(written)
        if wanted and self.credit.top_up(wanted, self.queue_credit, drain=self.link.credit.drain):
            self._on_requested()

    def _give_back(self) -> None:
        # "If the link-credit is less than or equal to zero ... the sender MUST NOT send more messages"
        # (2.6.7). Deliveries on their way from the queue are refused as well. If they were taken after a
        # later raise of the credit, they would overtake those that go back now.
        taken = self.link.withdraw(self._room)
        self._return(taken)

    def _return(self, taken: Sequence[tuple[int, Message]]) -> None:
        # `taken`: keys and messages of deliveries that were not sent.
        keys = [key for key, _ in taken]
        if self.resumable is not None:
            self.resumable.forget(keys)
        self.credit.give_back(keys, [message for _, message in taken])

    # --- a link that is kept ----------------------------------------------------------------------

    def resume(self, plan: SenderPlan, keys: Mapping[bytes, int]) -> None:
        """Resume a link after both ends have stated what is unsettled: apply the client's decisions, and send
        the rest again. Raises `AmqpLinkError` if the client may not make one of its decisions.
        """
        resumable = self.resumable
        assert resumable is not None
        back = [keys[tag] for tag in plan.unknown]
        resumed: list[ResumedDelivery] = []
        for each in plan.resumed:
            key = keys[each.tag]
            message = resumable.held[key]
            if each.how is Resume.OUTCOME:
                self._decide_resumed(key, each.state, resumed)
            elif message is None:
                back.append(key)
                resumed.append(ResumedDelivery(key, state=None, settled=True, aborted=True))
            else:
                begin = Received(section_number=0, section_offset=0) if each.state is not None else None
                resumed.append(ResumedDelivery(key, message, state=begin, settled=False))
        if back:
            resumable.forget(back)
            self.credit.post(Settle(self.ref, back, DeliveryOutcome.REQUEUE))
        if self.tells_active and resumable.active is not None:
            self._in_turn(ActiveChanged(self.ref, resumable.active))
        if resumed:
            self._session.outbound.queue_resumed(self.link, resumed)

    def _decide_resumed(self, key: int, state: Any, resumed: list[ResumedDelivery]) -> None:
        # The client is notified that the broker has settled the delivery.
        decision = self._decide(state, settled=True)
        assert decision is not None
        assert self.resumable is not None
        self.resumable.forget((key,))
        delivery_outcome, annotations = decision
        self.credit.counters.settled(delivery_outcome, 1)
        answer = self.credit.kind.answers_settlements
        self.credit.post(Settle(self.ref, [key], delivery_outcome, annotations=annotations, answer=answer))
        (self._resumed if answer else resumed).append(ResumedDelivery(key, state=state, settled=True))

    def end_acquisition(self) -> None:
        if self._acquisition is not None:
            self._acquisition.gone()

    def suspend(self, unsent: Sequence[tuple[int, Message]]) -> None:
        """Suspend a link: unsent deliveries go back, the others stay acquired."""
        resumable = self.resumable
        assert resumable is not None
        transactions = self._context.transactions
        if transactions.open:
            transactions.lost(self.ref, f"link '{self.link.name}', which is kept, was suspended")
        self._return(unsent)
        stale = len(self._undurable or ()) + len(self._resumed)
        resumable.suspended(self.credit, self.default_delivery_outcome, stale)

    def on_detached(self, unsent: Sequence[tuple[int, Parts]]) -> None:
        self._drop(self, unsent)

    def leave(self, unsent: Sequence[tuple[int, Message]], *, lost: bool) -> None:
        """Leave the queue. Held deliveries go back or get the default outcome, as failed if `lost`."""
        delivery_outcome = self.default_delivery_outcome
        bound = self._context.transactions.bound(self.ref)
        if bound and self.resumable is None:
            self._leave_later(unsent, bound, delivery_outcome)
            return
        if bound:
            self._context.transactions.lost(self.ref, f"link '{self.link.name}', which was kept, has ended")
        if lost and delivery_outcome is DeliveryOutcome.REQUEUE and self.credit.kind.counts_lost_as_failed:
            delivery_outcome = DeliveryOutcome.REQUEUE_FAILED
        self.credit.leave([key for key, _ in unsent], [message for _, message in unsent], delivery_outcome)

    def _leave_later(
        self, unsent: Sequence[tuple[int, Message]], bound: set[int], delivery_outcome: DeliveryOutcome
    ) -> None:
        # Deliveries on which transactions have decided stay until these end; all others go back now.
        self._return(unsent)
        left = [key for key in self.link.left if key not in bound]
        if left:
            self.credit.post(Settle(self.ref, left, delivery_outcome))
        self.credit.cancel()
        self._context.transactions.leaves(self.ref, lambda: self.credit.leave((), (), delivery_outcome))
