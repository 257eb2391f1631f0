"""The base of the objects that own a link: a publisher, a consumer, a control link or one half of a
management pair.

The engine reports events that name a link. The session looks up the link's owner, once per event, and calls
it. An event is about a batch of deliveries. An owner may raise the error with which the link
(`AmqpLinkError`) or the session (`AmqpSessionError`) must end.
"""

from __future__ import annotations

from collections.abc import Sequence

from amqp10broker.protocols.amqp10.delivery import Parts
from amqp10broker.protocols.amqp10.link import (
    DeliveriesReceived,
    DeliveriesUpdated,
    DeliveryBegun,
    DeliveryResumed,
    ReceiverLink,
    SenderLink,
)
from amqp10broker.protocols.amqp10.performatives import Flow


class LinkOwner:
    """The events of a link. A subclass overrides those that can occur on its link."""

    __slots__ = ()

    def on_flow(self, flow: Flow) -> None:
        """Handle a flow; the engine has already applied its credit."""

    def on_detached(self, unsent: Sequence[tuple[int, Parts]]) -> None:
        """Handle the end of the link; `unsent` has keys and messages that were not sent."""

    # --- of a link on which the client sends ------------------------------------------------------

    def on_begun(self, event: DeliveryBegun) -> None:
        """Handle the first transfer of a delivery that has several."""

    def on_deliveries(self, event: DeliveriesReceived) -> None:
        """Handle complete deliveries. Raises `AmqpConnectionError`, too."""

    def on_resumed(self, event: DeliveryResumed) -> None:
        """Handle a delivery resumed from before the link was suspended (part 2, section 2.6.13)."""

    def on_settled(self, ids: Sequence[int]) -> None:
        """Handle the client's settlement of deliveries with a known outcome (rcv-settle-mode second)."""

    # --- of a link on which the client receives ---------------------------------------------------

    def on_updated(self, event: DeliveriesUpdated) -> None:
        """Handle a disposition of unsettled deliveries."""

    def on_sent(self, deliveries: int) -> None:
        """Count deliveries that have been written, or begun."""

    def act_on(self, marker: object) -> None:
        """Handle a marker that this owner has queued: everything before it has been written."""


LinkOwners = dict[SenderLink | ReceiverLink, LinkOwner]
