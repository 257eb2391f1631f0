"""The owner of a link: the `Publisher`, the `Consumer` or the end of a pair of management links.

The engine reports events that name a link. The session looks up the link's owner here, once an event, and
tells it; an event is about a batch of deliveries. An owner may raise the error with which the link
(`AmqpLinkError`) or the session (`AmqpSessionError`) is to be ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from amqp10broker.amqp10.delivery import Parts
from amqp10broker.amqp10.events import DeliveriesReceived, DeliveriesUpdated
from amqp10broker.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.amqp10.performatives import Flow


class LinkOwner(Protocol):
    """What the owner of any link is told."""

    def on_flow(self, flow: Flow) -> None:
        """The client's flow for the link; the engine has taken credit and properties over.

        Raises:
            AmqpLinkError: the link must be detached with it.
        """

    def on_detached(self, unsent: Sequence[tuple[int, Parts]]) -> None:
        """The link has ended, whoever ended it; it is not known any more.

        Args:
            unsent: keys and messages of deliveries that never left.
        """


class ReceiverOwner(LinkOwner, Protocol):
    """The owner of a link on which the client sends."""

    def on_deliveries(self, event: DeliveriesReceived) -> None:
        """Whole deliveries have come.

        Raises:
            AmqpLinkError: the link must be detached with it.
            AmqpSessionError: the session must be ended with it.
            AmqpConnectionError: the connection must be closed with it.
        """


class SenderOwner(LinkOwner, Protocol):
    """The owner of a link on which the client receives."""

    def on_updated(self, event: DeliveriesUpdated) -> None:
        """The client's disposition has reached deliveries that it has not settled before.

        Raises:
            AmqpLinkError: the link must be detached with it.
            AmqpSessionError: the session must be ended with it.
        """

    def on_sent(self, deliveries: int) -> None:
        """So many deliveries have been written, or begun."""

    def act_on(self, marker: object) -> None:
        """All that was handed over before this marker, which the owner made, has been written."""


class LinkOwners:
    """The owners of a session's links.

    Attributes:
        receivers: of links on which the client sends.
        senders: of links on which it receives.
    """

    __slots__ = ("receivers", "senders")

    def __init__(self) -> None:
        self.receivers: dict[ReceiverLink, ReceiverOwner] = {}
        self.senders: dict[SenderLink, SenderOwner] = {}

    def find(self, link: SenderLink | ReceiverLink) -> LinkOwner | None:
        """The owner of a link; None: it has ended."""
        return self.senders.get(link) if isinstance(link, SenderLink) else self.receivers.get(link)

    def take(self, link: SenderLink | ReceiverLink) -> LinkOwner | None:
        """The same, and the link is not known any more."""
        if isinstance(link, SenderLink):
            return self.senders.pop(link, None)
        return self.receivers.pop(link, None)

    def clear(self) -> None:
        """The session is over."""
        self.receivers.clear()
        self.senders.clear()
