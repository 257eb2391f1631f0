"""One consumer of a channel, and the credit by which its queue delivers to it.

A queue knows credit, as for AMQP 1.0; a 0-9-1 consumer knows prefetch. The two meet here: what the
queue may hand out is what the prefetch leaves, and never more than `UNSENT_MAX` beyond what has been
written to the socket, so that a client that does not read leaves the messages in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from amqp10broker.amqp10.serial import MASK
from amqp10broker.catalog.queue import DeclaredQueue
from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import ConsumerRef, Settle, Verdict
from amqp10broker.queues.effects import CreditReply, Deliver
from amqp10broker.service.channels.times import ConsumerTimes
from amqp10broker.service.moment import Moment
from amqp10broker.service.queue_credit import QueueCredit

UNSENT_MAX: Final = 200
"""Deliveries of one consumer that the channel holds and has not written (RabbitMQ's unsent limit)."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a consumer consumes.

    Attributes:
        no_ack: deliveries count as acknowledged when they are written.
        tag: the consumer tag; empty for a fetcher.
        number: in the order in which the channel's consumers came; 0: of a fetcher.
        prefetch: deliveries it may hold unacknowledged; 0: no limit, or that of the queue's kind.
        timeout_ms: how long it asked to be allowed to hold one; None: it did not ask.
        exclusive: the queue may have no other consumer; for those who look.
        arguments: x-arguments that it gave; for those who look.
    """

    no_ack: bool
    tag: str = ""
    number: int = 0
    prefetch: int = 0
    timeout_ms: int | None = None
    exclusive: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)


class Consumer:
    """What basic.consume made, or a fetcher for basic.get.

    Attributes:
        terms: how it consumes.
        credit: with its queue.
        times: when what happened last.
        unacked: deliveries written and not acknowledged.
        keys: the queue's numbers for deliveries that are not written.
        messages: as many.
    """

    __slots__ = ("credit", "keys", "messages", "terms", "times", "unacked")

    def __init__(self, terms: Terms, credit: QueueCredit, moment: Moment) -> None:
        self.terms = terms
        self.credit = credit
        self.times = ConsumerTimes(moment)
        self.unacked = 0
        self.keys: list[int] = []
        self.messages: list[Message] = []

    @property
    def queue(self) -> DeclaredQueue:
        """Where deliveries come from."""
        return self.credit.queue

    @property
    def ref(self) -> ConsumerRef:
        """Under which the queue knows it."""
        return self.credit.ref

    @property
    def cancelled(self) -> bool:
        """Whether it gets no more."""
        return self.credit.closed

    @property
    def unsent(self) -> int:
        """Deliveries that wait here for the socket."""
        return len(self.keys)

    @property
    def holds_max(self) -> int | None:
        """Deliveries that it may hold: its prefetch, or the limit of its queue's kind; None: no limit."""
        terms = self.terms
        if terms.no_ack:
            return None
        return terms.prefetch or self.credit.kind.held_max

    @property
    def full(self) -> bool:
        """Whether it holds as many deliveries as it may, and gets more when the client acknowledges."""
        most = self.holds_max
        return most is not None and self.holds >= most

    @property
    def holds(self) -> int:
        """Deliveries that count against a prefetch: written or waiting to be."""
        return self.unacked + len(self.keys)

    def request(self, limit: int | None = None) -> None:
        """Ask the queue for what may be handed out now, if that is more than it may already.

        Args:
            limit: deliveries that the channel's own limit leaves to this consumer; None: no limit.
        """
        wanted = MASK
        most = self.holds_max
        if most is not None:
            wanted = most - self.unacked
        if limit is not None:
            wanted = min(wanted, limit)
        # With a prefetch each acknowledgement makes room for a delivery, which must not wait for
        # others. Without one, asking for more at half is often enough.
        limited = self.terms.prefetch or limit is not None
        if self.credit.top_up(wanted, UNSENT_MAX, renew_at=UNSENT_MAX if limited else UNSENT_MAX // 2):
            self.times.asked()

    def fetch(self) -> None:
        """Ask the queue for one message now or none (basic.get)."""
        self.credit.request(1, 1, drain=True)
        self.times.asked()

    # --- from the queue ---------------------------------------------------------------------------

    def on_deliver(self, effect: Deliver) -> None:
        """The queue delivers, within what it was asked for."""
        if self.credit.on_deliver(effect):
            self.keys.extend(effect.keys)
            self.messages.extend(effect.messages)

    def on_reply(self, reply: CreditReply) -> None:
        """The queue has answered the last request."""
        self.credit.on_reply(reply)
        self.credit.answered(reply)

    # --- settlement -------------------------------------------------------------------------------

    def take(self, count: int) -> tuple[list[int], list[Message]]:
        """Take deliveries to write them."""
        keys, messages = self.keys, self.messages
        if count < len(keys):
            self.keys, self.messages = keys[count:], messages[count:]
            keys, messages = keys[:count], messages[:count]
        else:
            self.keys, self.messages = [], []
        self.credit.sent(len(keys))
        return keys, messages

    def settle(self, keys: Sequence[int], verdict: Verdict) -> None:
        """The client decided on deliveries that it holds."""
        prefetch = self.terms.prefetch
        self.times.settled(was_full=0 < prefetch <= self.holds)
        self.unacked -= len(keys)
        self.credit.post(Settle(self.credit.ref, keys, verdict))

    def give_back(self) -> None:
        """What waits here goes back to its place, and so does what is on its way."""
        self.credit.give_back(*self._take_all())

    def forget(self) -> None:
        """The queue is gone, or did not take the consumer; and what waits here with it."""
        self.credit.drop(len(self._take_all()[0]))
        self.credit.closed = True

    def cancel(self) -> None:
        """No more deliveries; what the client holds it may still acknowledge."""
        self.give_back()
        self.credit.cancel()

    def leave(self) -> None:
        """The channel is gone: everything goes back, and what the client had counts as a failed attempt."""
        keys, messages = self._take_all()
        self.credit.drop(len(keys))
        self.credit.leave(keys, messages, Verdict.REQUEUE_FAILED)

    def _take_all(self) -> tuple[list[int], list[Message]]:
        taken = self.keys, self.messages
        self.keys, self.messages = [], []
        return taken
