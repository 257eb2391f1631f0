"""The unsettled deliveries of a link on which a client receives that survives its session (2.6.13).

They stay acquired: the consumer remains at its queue under the link's own reply address, but requests
nothing. A delivery without a decision is sent again with its content, which is held within a limit for each
user; without its content it is aborted, and goes back to its queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.protocols.amqp10.delivery import Parts
from amqp10broker.protocols.amqp10.performatives import Source
from amqp10broker.protocols.amqp10.resumption import UNSETTLED_ENTRIES_MAX
from amqp10broker.protocols.amqp10.transfer import delivery_tag
from amqp10broker.queues.commands import ConsumerRef, DeliveryOutcome, Settle, Unsubscribe
from amqp10broker.queues.effects import (
    ActiveChanged,
    Effect,
    QueueDeleted,
    QueueDown,
    Settled,
    SubscribeRefused,
    TimedOut,
)
from amqp10broker.sessions.amqp10.resumable_links import Key, ResumableLink, ResumableLinks

if TYPE_CHECKING:
    from amqp10broker.sessions.queue_credit import QueueCredit


class ResumableConsumer(ResumableLink):
    """A link on which a client receives.

    Attributes:
        held: key -> message of each delivery that the client has not settled, in the order of delivery; None:
            its content is not held.
        credit: of the last end that has gone; None before.
        stale: answers to decisions of an earlier end that are still to come.
    """

    def __init__(self, key: Key, links: ResumableLinks, source: Source) -> None:
        super().__init__(key, links.host)
        self._links = links
        self._bytes = 0
        self.terminus: Source = source
        self.ref: ConsumerRef = self.reply_to.consumer()
        self.held: dict[int, Parts | None] = {}
        self.credit: QueueCredit | None = None
        self.default_delivery_outcome = DeliveryOutcome.REQUEUE
        self.stale = 0
        self.active: bool | None = None

    @property
    def unsettled(self) -> int:
        return len(self.held)

    def ours(self) -> dict[bytes, int]:
        """Return the key of each unsettled delivery by its delivery-tag."""
        return {delivery_tag(key): key for key in self.held}

    # --- attached ---------------------------------------------------------------------------------

    def delivered(self, keys: Sequence[int], messages: Sequence[Parts]) -> None:
        for key, message in zip(keys, messages, strict=True):
            if key in self.held:
                self.forget((key,))  # it has gone back to its queue meanwhile
            size = len(message[0]) + len(message[1])
            retained = self._links.retain(self.key.user, size)
            self._bytes += size if retained else 0
            self.held[key] = message if retained else None

    def forget(self, keys: Iterable[int]) -> None:
        freed = 0
        for key in keys:
            message = self.held.pop(key, None)
            if message is not None:
                freed += len(message[0]) + len(message[1])
        self._free(freed)

    def _free(self, size: int) -> None:
        self._bytes -= size
        self._links.release(self.key.user, size)

    def suspended(self, credit: QueueCredit, delivery_outcome: DeliveryOutcome, stale: int) -> None:
        """Take over the state of an end that has gone, and that has returned its unsent deliveries."""
        self.credit, self.default_delivery_outcome = credit, delivery_outcome
        self.stale += stale
        # An attach may not list more.
        excess = list(self.held)[UNSETTLED_ENTRIES_MAX:]
        if excess:
            self.forget(excess)
            credit.post(Settle(self.ref, excess, DeliveryOutcome.REQUEUE))

    # --- suspended --------------------------------------------------------------------------------

    def take(self, effect: Effect) -> None:
        match effect:
            case TimedOut():
                self.forget(effect.keys)
            case Settled():
                self.stale -= 1
            case ActiveChanged():
                self.active = effect.active
            case QueueDeleted() | QueueDown() | SubscribeRefused():
                self.credit = None  # the queue is gone
                self._links.end(self)
            case _:
                return

    def give_up(self) -> list[QueueCommand]:
        self.held.clear()
        self._free(self._bytes)
        credit = self.credit
        if credit is None:
            return []
        delivery_outcome = self.default_delivery_outcome
        if delivery_outcome is DeliveryOutcome.REQUEUE and credit.kind.counts_lost_as_failed:
            delivery_outcome = DeliveryOutcome.REQUEUE_FAILED
        over: list[Any] = []
        return [(credit.queue.handle, Unsubscribe(self.ref, over, over, credit.seen, delivery_outcome))]
