"""The owner of a link: the publisher, the consumer or one end of a pair of management links.

The engine reports events that name a link; the session looks up the link's owner here, once per event, and
calls it. An event is about a batch of deliveries. An owner may raise the error with which the link
(`AmqpLinkError`) or the session (`AmqpSessionError`) is to be ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from amqp10broker.protocols.amqp10.delivery import Parts
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.link import DeliveriesReceived, DeliveriesUpdated, ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import Accepted, Flow, Modified, Rejected, Released
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.queues.commands import DeliveryOutcome


class LinkOwner(ABC):
    """The events of any link."""

    __slots__ = ()

    @abstractmethod
    def on_flow(self, flow: Flow) -> None:
        """Handle a flow; the engine has already applied its credit. Raises `AmqpLinkError`."""

    @abstractmethod
    def on_detached(self, unsent: Sequence[tuple[int, Parts]]) -> None:
        """Handle the end of the link; `unsent` has keys and messages that were not sent."""


class ReceiverOwner(LinkOwner):
    """The owner of a link on which the client sends."""

    __slots__ = ()

    @abstractmethod
    def on_deliveries(self, event: DeliveriesReceived) -> None:
        """Handle complete deliveries. Raises `AmqpLinkError`, `AmqpSessionError`, `AmqpConnectionError`."""


class SenderOwner(LinkOwner):
    """The owner of a link on which the client receives."""

    __slots__ = ()

    @abstractmethod
    def on_updated(self, event: DeliveriesUpdated) -> None:
        """Handle a disposition of unsettled deliveries. Raises `AmqpLinkError`, `AmqpSessionError`."""

    @abstractmethod
    def on_sent(self, deliveries: int) -> None:
        """Count deliveries that have been written, or begun."""

    @abstractmethod
    def act_on(self, marker: object) -> None:
        """Handle a marker that the owner has queued: everything before it has been written."""


class LinkOwners:
    """The owners of a session's links."""

    __slots__ = ("receivers", "senders")

    def __init__(self) -> None:
        self.receivers: dict[ReceiverLink, ReceiverOwner] = {}
        self.senders: dict[SenderLink, SenderOwner] = {}

    def find(self, link: SenderLink | ReceiverLink) -> LinkOwner | None:
        return self.senders.get(link) if isinstance(link, SenderLink) else self.receivers.get(link)

    def take(self, link: SenderLink | ReceiverLink) -> LinkOwner | None:
        if isinstance(link, SenderLink):
            return self.senders.pop(link, None)
        return self.receivers.pop(link, None)

    def clear(self) -> None:
        self.receivers.clear()
        self.senders.clear()


ANSWERS_OWED_MAX: Final = 256
"""The most unanswered flows with echo or drain per link or pair; further ones get no answer of their own."""

TXN_ID: Final = Symbol("txn-id")


def check_no_transaction(flow: Flow) -> None:
    """Raise `AmqpLinkError` for a flow with a transaction that is not supported (part 4, 4.4.3)."""
    if flow.properties and flow.properties.get(TXN_ID) is not None:
        text = "flow names a transaction (txn-id): messages of this link cannot be acquired in one"
        raise AmqpLinkError(Condition.NOT_IMPLEMENTED, text)


def default_delivery_outcome(outcome: Any) -> DeliveryOutcome:
    """Return the decision on a delivery settled without an outcome (3.5.3): released by default."""
    return to_outcome(outcome) or DeliveryOutcome.REQUEUE


def to_outcome(state: Any) -> DeliveryOutcome | None:
    """Translate a delivery state; None when it is not an outcome."""
    match state:
        case Accepted():
            return DeliveryOutcome.ACCEPT
        case Rejected():
            # "delivery-count is incremented" (3.4.2): the consumer of the dead letter sees it.
            return DeliveryOutcome.DISCARD_FAILED
        case Released():
            return DeliveryOutcome.REQUEUE
        case Modified(undeliverable_here=True):
            # As RabbitMQ: the message is not offered to other consumers either, but dead-lettered.
            return DeliveryOutcome.DISCARD_FAILED if state.delivery_failed else DeliveryOutcome.DISCARD
        case Modified():
            return DeliveryOutcome.REQUEUE_FAILED if state.delivery_failed else DeliveryOutcome.REQUEUE
        case _:
            return None
