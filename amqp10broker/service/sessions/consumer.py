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

from collections.abc import Sequence
from typing import Final

from amqp10broker.amqp10.link import SenderLink
from amqp10broker.amqp10.serial import MASK
from amqp10broker.amqp10.session import Session
from amqp10broker.catalog.catalog import DeclaredQueue
from amqp10broker.catalog.vhost import VOLATILE
from amqp10broker.config import FlowSettings
from amqp10broker.message.convert import all_to_amqp10
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import ConsumerRef, Credit, GiveBack, Settle, Unsubscribe, Verdict
from amqp10broker.queues.effects import CreditReply
from amqp10broker.service.context import Post

ANSWERS_OWED_MAX: Final = 256
"""Flows with echo or drain remembered per link while they cannot be answered. Each gets an answer of
its own; a client that asks more often than that while it takes nothing gets fewer."""

UNSENT_REPLIES_MAX: Final = 65_536
"""Replies that a queue of direct reply-to may hand out ahead of the client's window, instead of
`max_queue_credit`: it keeps nothing, so what the session does not take is lost."""


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
        available: ready messages in the queue when it last answered.
        queue_credit: what the queue may still have out of the last request.
        queue_delivery_count: as the queue counts, up to what was written to the client.
        in_flight: a request to the queue has no answer yet.
    """

    __slots__ = (
        "_asked",
        "_epoch",
        "_owed",
        "_post",
        "_renew_at",
        "_session",
        "_stale",
        "_unsent",
        "address",
        "available",
        "default_verdict",
        "exclusive_queue",
        "in_flight",
        "link",
        "queue",
        "queue_credit",
        "queue_delivery_count",
        "ref",
        "seen",
        "settings",
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
        *,
        default_verdict: Verdict,
        exclusive_queue: bool,
    ) -> None:
        self._session = session
        self._post = post
        self.link = link
        self.queue = queue
        self.ref = ref
        self.address = address
        self.settings = settings
        self.default_verdict = default_verdict
        self.exclusive_queue = exclusive_queue
        self.available = 0
        self.queue_credit = 0
        self.queue_delivery_count = 0
        self.in_flight = False
        self.seen = 0
        self._unsent = 0
        self._epoch = 0
        self._stale = False
        self._owed = 0
        self._asked = 0
        self._renew_at = 0

    @property
    def unsent(self) -> int:
        """Deliveries of the queue that wait in the session."""
        return self._unsent

    # --- from the client --------------------------------------------------------------------------

    def on_flow(self, *, echo: bool) -> None:
        """The client's flow was taken over by the engine: pass it on to the queue."""
        if echo or self.link.credit.drain:
            self._owed = min(self._owed + 1, ANSWERS_OWED_MAX)
        if self._unsent > self.link.credit.link_credit:
            self._give_back()
        if self.in_flight:
            self._stale = True
        else:
            self._request()

    def on_settled(self, keys: Sequence[int], verdict: Verdict) -> None:
        """The client decided on deliveries. Credit does not move."""
        self._post(self.queue.handle, Settle(self.ref, keys, verdict))

    def on_sent(self, deliveries: int) -> None:
        """Deliveries have been written; ask for the next batch when the queue's share is used up."""
        self._unsent -= deliveries
        self._spend(deliveries)
        self._request_next()

    # --- from the queue ---------------------------------------------------------------------------

    def on_deliver(self, keys: Sequence[int], messages: Sequence[Message], epoch: int) -> None:
        """The queue delivers, within the credit that it was given."""
        if epoch != self._epoch:
            return  # handed out before our `GiveBack` reached the queue, which has taken it back
        messages = all_to_amqp10(messages)
        self.seen += len(keys)
        self._unsent += len(keys)
        self._session.queue_deliveries(self.link, keys, messages)
        if self._unsent > self.link.credit.link_credit:
            # The client has lowered its credit while these were on their way.
            self._give_back()
            if not self.in_flight:
                self._request()

    def on_reply(self, reply: CreditReply) -> None:
        """The queue answered: act when everything before the answer has been written."""
        if self.link.pending or self.link.partial is not None:
            self._session.queue_marker(self.link, reply)
        else:
            self.act_on(reply)

    def act_on(self, reply: CreditReply) -> None:
        """The answer's turn has come."""
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
        elif used_up_by_messages and credit.link_credit > 0:
            self._request()  # the queue may have more: another round of the same drain
        else:
            self._asked = max(0, self._asked - 1)
            self._session.drained(self.link, available=self.available)
            self._answer()

    def _answer(self) -> None:
        for _ in range(self._asked):
            self._session.send_flow(self.link, available=self.available)
        self._asked = 0

    # --- to the queue -----------------------------------------------------------------------------

    def _request(self) -> None:
        credit = self.link.credit
        volatile = self.queue.type == VOLATILE
        most = UNSENT_REPLIES_MAX if volatile else self.settings.max_queue_credit
        self.queue_credit = min(credit.link_credit, most)
        # Its credit must not run out as long as the client's has not.
        self._renew_at = most // 2 if volatile else 0
        self.in_flight = True
        self._stale = False
        self._asked += self._owed
        self._owed = 0
        self._post(
            self.queue.handle,
            Credit(self.ref, self.queue_delivery_count, self.queue_credit, credit.drain, self.seen),
        )

    def _request_next(self) -> None:
        left = self.queue_credit
        if left <= self._renew_at and self.link.credit.link_credit > left and not self.in_flight:
            self._request()

    def _give_back(self) -> None:
        """The client allows less than waits here: what is too much goes back to its place.

        "If the link-credit is less than or equal to zero ... the sender MUST NOT send more messages"
        (2.6.7). What is on its way from the queue is not taken any more either: taken after a later
        raise of the credit, it would overtake what goes back now.
        """
        taken = self._session.withdraw(self.link, self.link.credit.link_credit)
        self._unsent -= len(taken)
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

    def leave(self, unsent: Sequence[tuple[int, Message]]) -> None:
        """The link is gone: everything it held goes back or gets the default outcome."""
        self._post(
            self.queue.handle,
            Unsubscribe(
                self.ref,
                [key for key, _ in unsent],
                [message for _, message in unsent],
                self.seen,
                self.default_verdict,
            ),
        )
