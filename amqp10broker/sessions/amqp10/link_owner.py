"""The owner of a link: the `Publisher`, the `Consumer` or one end of a pair of management links.

The engine reports events that name a link; the session looks up the link's owner here, once per event, and
calls it. An event is about a batch of deliveries. An owner may raise the error with which the link
(`AmqpLinkError`) or the session (`AmqpSessionError`) is to be ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from amqp10broker.protocols.amqp10.delivery import Parts
from amqp10broker.protocols.amqp10.events import DeliveriesReceived, DeliveriesUpdated
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import Flow


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
