"""One consumer of a channel, and the credit by which its queue delivers to it.

Queues use credit, as for AMQP 1.0; AMQP 0-9-1 has prefetch. The queue may deliver what the prefetch leaves,
and never more than `UNSENT_MAX` beyond what has been written to the socket, so that the messages of a client
that does not read stay in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.protocols.serial import MASK
from amqp10broker.queues.commands import ConsumerRef, DeliveryOutcome, Settle
from amqp10broker.queues.effects import CreditReply, Deliver
from amqp10broker.sessions.measures import Moment
from amqp10broker.sessions.queue_credit import QueueCredit

# Noted once per batch, never per message. All times are of `Moment`, in ms.


class ChannelConsumerTimes:
    """The times of one consumer. `settled_ms`: the client's last decision; None: there was none."""

    __slots__ = ("_moment", "_room_ms", "asked_ms", "moved_ms", "settled_ms")

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._room_ms = self.moved_ms = self.asked_ms = moment.ms
        self.settled_ms: int | None = None

    def asked(self) -> None:
        self.asked_ms = self._moment.ms

    def moved(self) -> None:
        self.moved_ms = self._moment.ms

    def settled(self, *, was_full: bool) -> None:
        """Note decisions; `was_full` if it held as many deliveries as it may until then."""
        self.settled_ms = self._moment.ms
        if was_full:
            self._room_ms = self._moment.ms

    @property
    def idle_ms(self) -> int:
        """The earliest time from which it could have got the next delivery, if its queue had any."""
        return max(self.moved_ms, self._room_ms)


UNSENT_MAX: Final = 200
"""The most deliveries of one consumer that the channel has not written (RabbitMQ's unsent limit)."""


@dataclass(frozen=True, slots=True)
class ConsumerTerms:
    """The parameters of a consumer.

    Attributes:
        number: in the order in which the channel's consumers came; 0: of a fetcher.
        prefetch: deliveries it may hold unacknowledged; 0: no limit, or that of the queue's kind.
        timeout_ms: how long it requested to hold one; None: it did not.
    """

    no_ack: bool
    tag: str = ""
    number: int = 0
    prefetch: int = 0
    timeout_ms: int | None = None
    exclusive: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)


class ChannelConsumer:
    """A consumer of basic.consume, or a fetcher for basic.get."""

    __slots__ = ("credit", "keys", "messages", "terms", "times", "unacked")

    def __init__(self, terms: ConsumerTerms, credit: QueueCredit, moment: Moment) -> None:
        self.terms = terms
        self.credit = credit
        self.times = ChannelConsumerTimes(moment)
        self.unacked = 0
        self.keys: list[int] = []
        self.messages: list[Message] = []

    @property
    def queue(self) -> DeclaredQueue:
        return self.credit.queue

    @property
    def ref(self) -> ConsumerRef:
        return self.credit.ref

    @property
    def cancelled(self) -> bool:
        return self.credit.closed

    @property
    def unsent(self) -> int:
        return len(self.keys)

    @property
    def holds_max(self) -> int | None:
        """The most deliveries that it may hold, by its prefetch or its queue's kind; None: no limit."""
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
        """The number of deliveries that count against a prefetch: written or waiting to be."""
        return self.unacked + len(self.keys)

    def request(self, limit: int | None = None) -> None:
        """Request more from the queue; `limit` is what the channel's own limit leaves, None if it has
        none.
        """
        wanted = MASK
        most = self.holds_max
        if most is not None:
            wanted = most - self.unacked
        if limit is not None:
            wanted = min(wanted, limit)
        # With a prefetch each acknowledgement makes room for a delivery, which must not wait for others.
        # Without one, a request when half is left is enough.
        limited = self.terms.prefetch or limit is not None
        if self.credit.top_up(wanted, UNSENT_MAX, renew_at=UNSENT_MAX if limited else UNSENT_MAX // 2):
            self.times.asked()

    def fetch(self) -> None:
        self.credit.request(1, 1, drain=True)
        self.times.asked()

    def on_deliver(self, effect: Deliver) -> None:
        if self.credit.on_deliver(effect):
            self.keys.extend(effect.keys)
            self.messages.extend(effect.messages)

    def on_reply(self, reply: CreditReply) -> None:
        self.credit.on_reply(reply)
        self.credit.answered(reply)

    # --- settlement -------------------------------------------------------------------------------

    def take(self, count: int) -> tuple[list[int], list[Message]]:
        keys, messages = self.keys, self.messages
        if count < len(keys):
            self.keys, self.messages = keys[count:], messages[count:]
            keys, messages = keys[:count], messages[:count]
        else:
            self.keys, self.messages = [], []
        self.credit.sent(len(keys))
        return keys, messages

    def settle(self, keys: Sequence[int], delivery_outcome: DeliveryOutcome) -> None:
        prefetch = self.terms.prefetch
        self.times.settled(was_full=0 < prefetch <= self.holds)
        self.unacked -= len(keys)
        self.credit.post(Settle(self.credit.ref, keys, delivery_outcome))

    def give_back(self) -> None:
        """Return waiting deliveries, and those on their way, to their places in the queue."""
        self.credit.give_back(*self._take_all())

    def forget(self) -> None:
        """Drop waiting deliveries, after the queue is gone or did not accept the consumer."""
        self.credit.drop(len(self._take_all()[0]))
        self.credit.closed = True

    def cancel(self) -> None:
        self.give_back()
        self.credit.cancel()

    def leave(self) -> None:
        """Leave with the channel: everything goes back, and unacknowledged deliveries count as failed."""
        keys, messages = self._take_all()
        self.credit.drop(len(keys))
        self.credit.leave(keys, messages, DeliveryOutcome.REQUEUE_FAILED)

    def _take_all(self) -> tuple[list[int], list[Message]]:
        taken = self.keys, self.messages
        self.keys, self.messages = [], []
        return taken
