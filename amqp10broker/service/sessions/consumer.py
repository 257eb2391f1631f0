"""A client that consumes: our sender link and the queue's credit for it, coupled.

There are two credit states. The client's is the engine's (`link.credit`). The queue sees at most
`max_queue_credit` of it at a time, so that a client that grants four thousand million and closes
its window cannot fill our memory. Both have a delivery-count; they part after a drain, because the
client's is advanced by all its credit and the queue's by one batch only.

One request to the queue is under way at most; a flow that comes meanwhile is remembered and acted
on when the answer is there. Answers to the client (echo, drain) are written when every delivery the
queue made before answering has been written, so that a flow never overtakes a transfer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol, assert_never

from amqp10broker.amqp10.delivery import Parts
from amqp10broker.amqp10.disposition import RELEASED, Outcome
from amqp10broker.amqp10.events import DeliveriesUpdated
from amqp10broker.amqp10.link import SenderLink
from amqp10broker.amqp10.performatives import Flow
from amqp10broker.amqp10.serial import MASK
from amqp10broker.amqp10.session import Session
from amqp10broker.amqp10.types import Symbol
from amqp10broker.catalog.last_error import LastError
from amqp10broker.catalog.queue import DeclaredQueue, QueueType
from amqp10broker.catalog.vhost import VOLATILE
from amqp10broker.config import FlowSettings
from amqp10broker.message.convert import all_to_amqp10
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import (
    NO_BOUND,
    ROOM_BYTES,
    ConsumerRef,
    Credit,
    GiveBack,
    Settle,
    Unsubscribe,
    Verdict,
)
from amqp10broker.queues.effects import ActiveChanged, CreditReply, Settled, TimedOut
from amqp10broker.service.context import ClientLog, Post
from amqp10broker.service.counters import ClientCounters
from amqp10broker.service.moment import Moment
from amqp10broker.service.sessions.outcomes import check_no_transaction, decide
from amqp10broker.service.sessions.times import ConsumerTimes

ANSWERS_OWED_MAX: Final = 256
"""Flows with echo or drain remembered per link while they cannot be answered. Each gets an answer of
its own; a client that asks more often than that while it takes nothing gets fewer."""

ACTIVE: Final = Symbol("rabbitmq:active")
"""Link state property by which a client hears whether it is the single active consumer."""

UNSENT_REPLIES_MAX: Final = 65_536
"""Replies that a queue of direct reply-to may hand out ahead of the client's window, instead of
`max_queue_credit`: it keeps nothing, so what the session does not take is lost."""


class ConsumerLinks(Protocol):
    """What a consumer asks of the links of its session."""

    def drop_consumer(self, consumer: Consumer, unsent: Sequence[tuple[int, Parts]]) -> None:
        """Its link has ended: forget it, and let it `leave`."""


class Consumer:
    """One consuming link.

    Attributes:
        link: our end.
        queue: where its deliveries come from.
        ref: under which the queue knows it.
        address: as the client attached it.
        settings: the flow settings in force for it.
        default_verdict: for deliveries unsettled when the link goes (source's default-outcome).
        exclusive_queue: delete the queue with the link (a dynamic source).
        resuming: the client's attach gave an incomplete unsettled map: no new deliveries (2.7.3).
        available: ready messages in the queue when it last answered.
        queue_credit: what the queue may still have out of the last request.
        queue_delivery_count: as the queue counts, up to what was written to the client.
        in_flight: a request to the queue has no answer yet.
        settled: deliveries on which the client has decided, in all.
        last_error: why deliveries were taken back from it last.
        times: when what happened last.
    """

    __slots__ = (
        "_active_told",
        "_answers",
        "_asked",
        "_counters",
        "_epoch",
        "_expired",
        "_links",
        "_log",
        "_owed",
        "_post",
        "_renew_at",
        "_returned",
        "_session",
        "_spent",
        "_stale",
        "_stream",
        "_tells_active",
        "_unsent",
        "address",
        "available",
        "default_verdict",
        "exclusive_queue",
        "in_flight",
        "last_error",
        "link",
        "queue",
        "queue_credit",
        "queue_delivery_count",
        "ref",
        "resuming",
        "seen",
        "settings",
        "settled",
        "times",
    )

    def __init__(
        self,
        session: Session,
        link: SenderLink,
        queue: DeclaredQueue,
        ref: ConsumerRef,
        address: str,
        settings: FlowSettings,
        post: Post,
        links: ConsumerLinks,
        *,
        moment: Moment,
        default_verdict: Verdict,
        exclusive_queue: bool,
        log: ClientLog,
        resuming: bool = False,
    ) -> None:
        is_quorum = queue.type == QueueType.QUORUM
        self._session = session
        self._post = post
        self._links = links
        self._log = log
        # A stream keeps the encoding of AMQP 1.0, and no two of its deliveries have the same head.
        self._stream = queue.type == QueueType.STREAM
        self.link = link
        self.queue = queue
        self.ref = ref
        self.address = address
        self.settings = settings
        self.default_verdict = default_verdict
        self.exclusive_queue = exclusive_queue
        self.resuming = resuming
        self.available = 0
        self.queue_credit = 0
        self.queue_delivery_count = 0
        self.in_flight = False
        self.seen = 0
        self.settled = 0
        self.last_error: LastError | None = None
        self._counters = ClientCounters()
        self.times = ConsumerTimes(moment)
        self._returned = 0
        self._unsent = 0
        self._epoch = 0
        self._stale = False
        # The queue hands out no more of what was asked for: its room is used up.
        self._spent = False
        self._owed = 0
        self._asked = 0
        self._renew_at = 0
        # What the client has not settled and waits to hear that its decision is durable, in order.
        self._answers: deque[tuple[Sequence[int], Outcome | None]] = deque()
        # Delivery-ids of what went back to the queue after too long a time.
        self._expired: set[int] = set()
        self._tells_active = is_quorum and queue.effective.settings.single_active_consumer
        self._active_told: bool | None = None

    @property
    def ready(self) -> int:
        """Messages that the queue could deliver now: of a stream those behind this consumer's position,
        as of its last answer."""
        if self._stream:
            return self.available
        return self.queue.handle.ready

    @property
    def unsent(self) -> int:
        """Deliveries of the queue that wait in the session."""
        return self._unsent

    @property
    def sent(self) -> int:
        """Deliveries written, in all."""
        return self.seen - self._unsent - self._returned

    def counted(self) -> ClientCounters:
        """What it got, and what the client decided."""
        if self.link.settled:
            self._counters.delivered_settled = self.sent
        else:
            self._counters.delivered = self.sent
        return self._counters

    # --- from the client --------------------------------------------------------------------------

    def on_flow(self, flow: Flow) -> None:
        """The client's flow was taken over by the engine: pass it on to the queue.

        Raises:
            AmqpLinkError: it names a transaction.
        """
        check_no_transaction(flow)
        if flow.link_credit is None and not flow.echo:
            return
        self.times.on_flow(self.link.credit)
        if flow.echo or self.link.credit.drain:
            self._owed = min(self._owed + 1, ANSWERS_OWED_MAX)
        if self._unsent > self.link.credit.link_credit:
            self._give_back()
        if self.in_flight:
            self._stale = True
        else:
            self._request()

    def on_updated(self, event: DeliveriesUpdated) -> None:
        """The client decided on deliveries. Credit does not move.

        One that has not settled them yet waits to hear that we have: at once, or when a quorum queue has
        made the decision durable.

        Raises:
            AmqpLinkError: the client may not decide so.
            AmqpSessionError: that is no decision.
        """
        decision = decide(event.state, settled=event.settled, default=self.default_verdict)
        if decision is None:
            return
        keys, ids = event.keys, event.delivery_ids
        if self._expired:
            keys, ids = self._without_expired(event)
            if not keys:
                # Of nothing that the queue still waits for; but it hands out nothing until it hears of us.
                self._post(self.queue.handle, Settle(self.ref, (), Verdict.ACCEPT))
        quorum = self.queue.type == QueueType.QUORUM
        answer = quorum and not event.settled and bool(keys)
        self.settled += len(keys)
        self._counters.settled(decision.verdict, len(keys))
        self.times.settled()
        if keys:
            annotations = decision.annotations if quorum else b""
            self._post(
                self.queue.handle,
                Settle(self.ref, keys, decision.verdict, annotations=annotations, answer=answer),
            )
        if answer:
            self._answers.append((ids, event.state))
        elif not event.settled:
            self._settle(ids, event.state)

    def _without_expired(self, event: DeliveriesUpdated) -> tuple[list[int], list[int]]:
        """Keys and ids that the client may still decide on; the others are answered.

        The key of a delivery that went back to the queue may be that of another one by now.
        """
        keys: list[int] = []
        ids: list[int] = []
        expired: list[int] = []
        for key, number in zip(event.keys, event.delivery_ids, strict=True):
            if number in self._expired:
                expired.append(number)
            else:
                keys.append(key)
                ids.append(number)
        self._expired.difference_update(expired)
        if not event.settled:
            self._settle(expired, event.state)
        return keys, ids

    def _settle(self, ids: Sequence[int], state: Outcome | None) -> None:
        if ids:
            self._session.settling.settle_sent(ids, state)

    def on_sent(self, deliveries: int) -> None:
        """Deliveries have been written; ask for the next batch when the queue's share is used up."""
        self._unsent -= deliveries
        self.times.on_sent(self.link.credit)
        self._spend(deliveries)
        self._request_next()

    # --- from the queue ---------------------------------------------------------------------------

    def on_deliver(
        self, keys: Sequence[int], messages: Sequence[Message], epoch: int, *, spent: bool = False
    ) -> None:
        """The queue delivers, within the credit that it was given."""
        if epoch != self._epoch:
            return  # handed out before our `GiveBack` reached the queue, which has taken it back
        self._spent = spent
        if not self._stream:
            messages = all_to_amqp10(messages)
        self.seen += len(keys)
        if not self._unsent:
            self.times.handed_over()
        self._unsent += len(keys)
        self._session.outbound.queue_deliveries(self.link, keys, messages)
        if self._unsent > self.link.credit.link_credit:
            # The client has lowered its credit while these were on their way.
            self._give_back()
            if not self.in_flight:
                self._request()

    def on_reply(self, reply: CreditReply) -> None:
        """The queue answered: act when everything before the answer has been written."""
        self._spent = reply.credit == 0
        self._in_turn(reply)

    def on_effect(self, effect: Settled | ActiveChanged | TimedOut) -> None:
        """What else queues say, most of them never."""
        match effect:
            case Settled():
                ids, state = self._answers.popleft()
                # The client may have settled them meanwhile; then nobody waits.
                unsettled = self._session.outbound.unsettled
                self._settle([number for number in ids if number in unsettled], state)
            case ActiveChanged():
                if self._tells_active:
                    self._in_turn(effect)
            case TimedOut():
                self._on_timed_out(effect.keys)
            case _:
                assert_never(effect)

    def _on_timed_out(self, keys: Sequence[int]) -> None:
        """The queue has taken deliveries back. The client hears so, and still settles them."""
        expired = frozenset(keys)
        self.last_error = self._log.warning(
            "deliveries taken back: the consumer held them for too long",
            link=self.link.name,
            address=self.address,
            queue=self.queue.name,
            deliveries=len(expired),
            text="released",
        )
        self._expired.update(self._session.settling.tell_sent(self.link, expired, RELEASED))
        never_sent = self.link.discard(expired)
        if never_sent:
            self._unsent -= never_sent
            self._returned += never_sent
            self._spend(never_sent)
            self._request_next()

    def _in_turn(self, marker: CreditReply | ActiveChanged) -> None:
        if self.link.pending or self.link.partial is not None:
            self._session.outbound.queue_marker(self.link, marker)
        else:
            self.act_on(marker)

    def act_on(self, marker: object) -> None:
        """What the queue said behind deliveries: they have been written now."""
        if isinstance(marker, CreditReply):
            self._act_on_reply(marker)
            return
        assert isinstance(marker, ActiveChanged)
        if marker.active is not self._active_told:
            self._active_told = marker.active
            self._session.send_flow(self.link, available=self.available, properties={ACTIVE: marker.active})

    def _act_on_reply(self, reply: CreditReply) -> None:
        self.available = reply.available
        self.in_flight = False
        if reply.epoch != self._epoch:
            self._request()  # overtaken by our `GiveBack`: ask again, from there
            return
        if reply.drain:
            self._act_on_drain(reply)
        else:
            self._answer()
        if self.in_flight:
            return
        if self._stale:
            self._request()
        else:
            self._request_next()

    def _act_on_drain(self, reply: CreditReply) -> None:
        # Everything the queue delivered before is counted (written or given back), so that what the
        # queue's count is ahead of ours is what it forfeited.
        credit = self.link.credit
        used_up_by_messages = reply.delivery_count == self.queue_delivery_count
        self.queue_delivery_count = reply.delivery_count
        self.queue_credit = 0
        if not credit.drain:
            # A later flow has taken the drain back before it was done: tell the state, and go on.
            self._answer()
        elif used_up_by_messages and self._wanted > 0:
            self._request()  # the queue may have more: another round of the same drain
        else:
            self._asked = max(0, self._asked - 1)
            self._session.drained(self.link, available=self.available, properties=self._inactive())
            self.times.on_drained(credit)
            self._answer()

    def _answer(self) -> None:
        news = self._inactive()
        for _ in range(self._asked or news is not None):
            self._session.send_flow(self.link, available=self.available, properties=news)
            news = None
        self._asked = 0

    def _inactive(self) -> dict[Symbol, bool] | None:
        """What a client must hear with its first answer whom the queue has not made the active one."""
        if not self._tells_active or self._active_told is not None:
            return None
        self._active_told = False
        return {ACTIVE: False}

    # --- to the queue -----------------------------------------------------------------------------

    @property
    def _wanted(self) -> int:
        """New deliveries that may be sent on the link."""
        return 0 if self.resuming else self.link.credit.link_credit

    def _request(self) -> None:
        credit = self.link.credit
        volatile = self.queue.type == VOLATILE
        most = UNSENT_REPLIES_MAX if volatile else self.settings.max_queue_credit
        self.queue_credit = min(self._wanted, most)
        # Its credit must not run out as long as the client's has not.
        self._renew_at = most // 2 if volatile else 0
        self.in_flight = True
        self.times.requested()
        self._stale = False
        self._asked += self._owed
        self._owed = 0
        self._post(
            self.queue.handle,
            Credit(
                self.ref,
                self.queue_delivery_count,
                self.queue_credit,
                credit.drain,
                self.seen,
                NO_BOUND if volatile else ROOM_BYTES,
            ),
        )

    def _request_next(self) -> None:
        if self._spent and not self._unsent:
            self.queue_credit = 0
        left = self.queue_credit
        if left <= self._renew_at and self._wanted > left and not self.in_flight:
            self._request()

    def _give_back(self) -> None:
        """The client allows less than waits here: what is too much goes back to its place.

        "If the link-credit is less than or equal to zero ... the sender MUST NOT send more messages"
        (2.6.7). What is on its way from the queue is not taken any more either: taken after a later
        raise of the credit, it would overtake what goes back now.
        """
        taken = self.link.withdraw(self.link.credit.link_credit)
        self._unsent -= len(taken)
        self._returned += len(taken)
        self._spend(len(taken))
        self._epoch += 1
        self._post(
            self.queue.handle,
            GiveBack(
                self.ref,
                [key for key, _ in taken],
                [message for _, message in taken],
                (self.queue_delivery_count + self._unsent) & MASK,
                self.seen,
                self._epoch,
            ),
        )

    def _spend(self, deliveries: int) -> None:
        self.queue_delivery_count = (self.queue_delivery_count + deliveries) & MASK
        self.queue_credit = max(0, self.queue_credit - deliveries)

    def on_detached(self, unsent: Sequence[tuple[int, Parts]]) -> None:
        """The link has ended, and nothing else."""
        self._links.drop_consumer(self, unsent)

    def leave(self, unsent: Sequence[tuple[int, Message]], *, lost: bool) -> None:
        """The link is gone: everything it held goes back or gets the default outcome.

        Args:
            unsent: keys and messages that never left.
            lost: with its session or connection. A quorum queue counts that as a failed attempt.
        """
        verdict = self.default_verdict
        if lost and verdict is Verdict.REQUEUE and self.queue.type == QueueType.QUORUM:
            verdict = Verdict.REQUEUE_FAILED
        self._post(
            self.queue.handle,
            Unsubscribe(
                self.ref,
                [key for key, _ in unsent],
                [message for _, message in unsent],
                self.seen,
                verdict,
            ),
        )
