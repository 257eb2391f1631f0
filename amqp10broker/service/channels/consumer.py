"""One consumer of a channel, and the credit by which its queue delivers to it.

A queue knows credit, as for AMQP 1.0; a 0-9-1 consumer knows prefetch. The two meet here: what the
queue may hand out is what the prefetch leaves, and never more than `UNSENT_MAX` beyond what has been
written to the socket, so that a client that does not read leaves the messages in the queue. One
request to the queue is under way at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from amqp10broker.amqp10.serial import MASK
from amqp10broker.catalog.queue import DeclaredQueue, QueueType
from amqp10broker.catalog.vhost import VOLATILE
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import (
    NO_BOUND,
    ROOM_BYTES,
    Cancel,
    ConsumerRef,
    Credit,
    GiveBack,
    Settle,
    Unsubscribe,
    Verdict,
)
from amqp10broker.queues.effects import CreditReply
from amqp10broker.service.channels.context import Post
from amqp10broker.service.moment import Moment

UNSENT_MAX: Final = 200
"""Deliveries of one consumer that the channel holds and has not written (RabbitMQ's unsent limit)."""

UNSENT_REPLIES_MAX: Final = 1_000_000
"""Likewise of direct reply-to: its queue keeps nothing, so what the channel does not take is lost."""


QUORUM_PREFETCH_MAX: Final = 2_000
"""Deliveries of a quorum queue that a consumer without prefetch may hold (RabbitMQ's limit)."""


class Consumer:
    """What basic.consume made, or a fetcher for basic.get.

    Attributes:
        tag: the consumer tag; empty for a fetcher.
        queue: where deliveries come from.
        ref: under which the queue knows it.
        no_ack: deliveries count as acknowledged when they are written.
        number: in the order in which the channel's consumers came; 0: of a fetcher.
        prefetch: deliveries it may hold unacknowledged; 0: no limit.
        timeout_ms: how long it asked to be allowed to hold one; None: it did not ask.
        unacked: deliveries written and not acknowledged.
        cancelled: it gets no more.
        in_flight: a request to the queue has no answer yet.
        keys: the queue's numbers for deliveries that are not written.
        messages: as many.
        moved_ms: when deliveries were written last; before the first, when it began.
        asked_ms: when the queue was asked for some last.
        settled_ms: when the client decided on some last; None: it never did.
    """

    __slots__ = (
        "_ahead",
        "_epoch",
        "_granted",
        "_moment",
        "_post",
        "_returned",
        "_room_ms",
        "_seen",
        "asked_ms",
        "cancelled",
        "in_flight",
        "keys",
        "messages",
        "moved_ms",
        "no_ack",
        "number",
        "prefetch",
        "queue",
        "ref",
        "settled_ms",
        "tag",
        "timeout_ms",
        "unacked",
    )

    def __init__(
        self,
        tag: str,
        queue: DeclaredQueue,
        ref: ConsumerRef,
        post: Post,
        *,
        no_ack: bool,
        prefetch: int,
        moment: Moment,
    ) -> None:
        self._post = post
        self._moment = moment
        self._room_ms = self.moved_ms = self.asked_ms = moment.ms
        self.settled_ms: int | None = None
        self._ahead = 0
        self._epoch = 0
        self._granted = 0
        self._returned = 0
        self._seen = 0
        self.tag = tag
        self.queue = queue
        self.ref = ref
        self.no_ack = no_ack
        self.number = 0
        self.prefetch = 0 if no_ack else prefetch
        self.timeout_ms: int | None = None
        self.unacked = 0
        self.cancelled = False
        self.in_flight = False
        self.keys: list[int] = []
        self.messages: list[Message] = []

    @property
    def unsent(self) -> int:
        """Deliveries that wait here for the socket."""
        return len(self.keys)

    @property
    def written(self) -> int:
        """Deliveries written, in all."""
        return self._seen - len(self.keys) - self._returned

    @property
    def granted(self) -> int:
        """Deliveries that the queue may still hand out of the last request."""
        return self._granted

    @property
    def full(self) -> bool:
        """Whether it holds as many deliveries as it may, and gets more when the client acknowledges."""
        if self.prefetch:
            return self.holds >= self.prefetch
        quorum = self.queue.type == QueueType.QUORUM and not self.no_ack
        return quorum and self.holds >= QUORUM_PREFETCH_MAX

    @property
    def holds(self) -> int:
        """Deliveries that count against a prefetch: written or waiting to be."""
        return self.unacked + len(self.keys)

    @property
    def idle_ms(self) -> int:
        """Since when it could have had the next delivery, if its queue had any."""
        return max(self.moved_ms, self._room_ms)

    def request(self, limit: int | None = None) -> None:
        """Ask the queue for what may be handed out now, if that is more than it may already.

        Args:
            limit: deliveries that the channel's own limit leaves to this consumer; None: no limit.
        """
        if self.in_flight or self.cancelled:
            return
        volatile = self.queue.type == VOLATILE
        if self.keys and not volatile:
            return  # each request is bounded in bytes: one behind the other, so is what waits here
        unsent_max = UNSENT_REPLIES_MAX if volatile else UNSENT_MAX
        room = unsent_max - len(self.keys)
        if self.prefetch:
            room = min(room, self.prefetch - self.holds)
        elif self.queue.type == QueueType.QUORUM and not self.no_ack:
            room = min(room, QUORUM_PREFETCH_MAX - self.holds)
        if limit is not None:
            room = min(room, limit)
        limited = self.prefetch or limit is not None
        # With a prefetch each acknowledgement makes room for a delivery, which must not wait for
        # others. Without one, asking for more at half is often enough.
        if room > self._granted and (limited or self._granted <= unsent_max // 2):
            self._ask(room, drain=False)

    def fetch(self) -> None:
        """Ask the queue for one message now or none (basic.get)."""
        self._ask(1, drain=True)

    def _ask(self, credit: int, *, drain: bool) -> None:
        self._granted = credit
        self.in_flight = True
        self.asked_ms = self._moment.ms
        count = (self._seen + self._ahead) & MASK
        room = NO_BOUND if self.queue.type == VOLATILE else ROOM_BYTES
        self._post(self.queue.handle, Credit(self.ref, count, credit, drain, self._seen, room))

    # --- from the queue ---------------------------------------------------------------------------

    def on_deliver(
        self, keys: Sequence[int], messages: Sequence[Message], epoch: int, *, spent: bool = False
    ) -> None:
        """The queue delivers, within what it was asked for."""
        if epoch != self._epoch or self.cancelled:
            return  # handed out before our `GiveBack` reached the queue, which has taken it back
        self._seen += len(keys)
        # Of a request that is under way the answer says what is left.
        self._granted = 0 if spent else self._granted - len(keys)
        self.keys.extend(keys)
        self.messages.extend(messages)

    def on_reply(self, reply: CreditReply) -> None:
        """The queue has answered the last request."""
        self.in_flight = False
        if reply.epoch != self._epoch:
            return  # overtaken by our `GiveBack`, which took all credit and set the queue's count anew
        self._granted = reply.credit
        # A drain that found nothing has advanced the queue's count, and not ours.
        self._ahead = reply.delivery_count - self._seen

    # --- to the queue -----------------------------------------------------------------------------

    def forget_unsent(self) -> None:
        """The queue is gone, and what waits here with it."""
        self._returned += len(self.keys)
        self.take(len(self.keys))

    def take(self, count: int) -> tuple[list[int], list[Message]]:
        """Take deliveries to write them."""
        keys, messages = self.keys, self.messages
        if count >= len(keys):
            self.keys, self.messages = [], []
            return keys, messages
        self.keys, self.messages = keys[count:], messages[count:]
        return keys[:count], messages[:count]

    def settle(self, keys: Sequence[int], verdict: Verdict) -> None:
        """The client decided on deliveries that it holds."""
        self.settled_ms = now_ms = self._moment.ms
        if self.prefetch and self.unacked + len(self.keys) >= self.prefetch:
            self._room_ms = now_ms
        self.unacked -= len(keys)
        self._post(self.queue.handle, Settle(self.ref, keys, verdict))

    def give_back(self) -> None:
        """What waits here goes back to its place, and so does what is on its way."""
        keys, messages = self.take(len(self.keys))
        self._returned += len(keys)
        self._epoch += 1
        self._granted = 0
        count = (self._seen + self._ahead) & MASK
        self._post(self.queue.handle, GiveBack(self.ref, keys, messages, count, self._seen, self._epoch))

    def cancel(self) -> None:
        """No more deliveries; what the client holds it may still acknowledge."""
        self.give_back()
        self.cancelled = True
        self._post(self.queue.handle, Cancel(self.ref))

    def leave(self) -> None:
        """The channel is gone: everything goes back, and what the client had counts as a failed attempt."""
        keys, messages = self.take(len(self.keys))
        self._returned += len(keys)
        self._post(
            self.queue.handle, Unsubscribe(self.ref, keys, messages, self._seen, Verdict.REQUEUE_FAILED)
        )
