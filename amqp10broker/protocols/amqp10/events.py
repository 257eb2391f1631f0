"""The events that the engine reports to its owner.

Session events come from `session.Session.receive` and `session.Session.pump`, connection events from
`connection.Connection.receive`. All of them are made once per batch or more rarely, except that a message of
many frames makes one `DeliveriesReceived` of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.delivery import Parts
from amqp10broker.protocols.amqp10.errors import AmqpError
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    Begin,
    Close,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslOutcome,
    SaslResponse,
)

# --- session -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkAttaching:
    """The peer requests a link: answer with `Session.links.accept` or `Session.links.refuse` (2.6.3)."""

    link: SenderLink | ReceiverLink
    attach: Attach


@dataclass(frozen=True, slots=True)
class LinkAttached:
    """The peer has answered our attach."""

    link: SenderLink | ReceiverLink
    attach: Attach


@dataclass(frozen=True, slots=True)
class LinkDetached:
    """A link has ended: by the peer, or by the engine because the peer broke a rule of the link.

    When the peer detached, answer with `Session.detach`. When `fault` is set the engine has sent the detach
    already, and `unsent` has key and message of each delivery that was never begun.
    """

    link: SenderLink | ReceiverLink
    closed: bool
    error: Error | None
    fault: AmqpError | None
    unsent: Sequence[tuple[int, Parts]] = ()


@dataclass(frozen=True, slots=True)
class LinkFlowed:
    """The peer sent its link state. Session fields and credit have been applied already.

    On a sender link the owner answers `echo` and `drain` (`Session.send_flow`, `Session.drained`), since only
    it has the number of available deliveries; on a receiver link the engine has answered.
    """

    link: SenderLink | ReceiverLink
    flow: Flow


@dataclass(eq=False, slots=True)
class DeliveriesReceived:
    """Complete deliveries on a receiver link, in order. One per run: a plain slotted class.

    `txn_id` identifies the transaction to which they belong; None: they do not belong to one.
    """

    link: ReceiverLink
    delivery_ids: Sequence[int]
    tags: Sequence[bytes]
    payloads: Sequence[bytes]
    settled: bool
    message_format: int
    txn_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class DeliveryBegun:
    """The first of several transfers of a delivery has come, with this payload, on a link that `looks_ahead`.

    Refuse the delivery now if the sender may not send it: the rest is not stored then.
    """

    link: ReceiverLink
    payload: bytes


@dataclass(frozen=True, slots=True)
class DeliveryResumed:
    """The peer has resumed a delivery on a receiver link that `resumes`; its content is not taken.

    It has used its credit. Pass its delivery-id to `receiving.Inbound.note_unsettled` if it is to be settled.
    """

    link: ReceiverLink
    delivery_id: int
    tag: bytes
    settled: bool
    aborted: bool


@dataclass(eq=False, slots=True)
class DeliveriesUpdated:
    """The peer's disposition reached deliveries that we sent. `keys`: the application's numbers, ascending by
    delivery-id. `settled`: the peer has settled; the deliveries are gone from the unsettled map.
    """

    link: SenderLink
    keys: list[int]
    delivery_ids: list[int]
    state: Any
    settled: bool


@dataclass(eq=False, slots=True)
class DeliveriesSettled:
    """The peer's disposition reached deliveries that we received."""

    link: ReceiverLink
    delivery_ids: list[int]
    state: Any
    settled: bool


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is over: by the peer's end, or by the engine because the peer broke a rule.

    When the peer ended, answer with `Session.end`. When `fault` is set the engine has sent the end.
    """

    error: Error | None
    fault: AmqpError | None


@dataclass(slots=True, eq=False)
class DeliveriesSent:
    """Deliveries of a sender link have been written, or begun if they take several frames."""

    link: SenderLink
    deliveries: int


@dataclass(slots=True, eq=False)
class MarkerReached:
    """All deliveries that were handed over before this marker have been written."""

    link: SenderLink
    marker: Any


SessionEvent = (
    LinkAttaching
    | LinkAttached
    | LinkDetached
    | LinkFlowed
    | DeliveriesReceived
    | DeliveryBegun
    | DeliveryResumed
    | DeliveriesUpdated
    | DeliveriesSettled
    | SessionEnded
)
PumpEvent = DeliveriesSent | MarkerReached | LinkDetached

# --- connection ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeginReceived:
    """The peer begins a session on its channel; `remote_channel` is ours if it answers."""

    channel: int
    performative: Begin


@dataclass(eq=False, slots=True)
class FramesReceived:
    """Bodies of frames for one session, in order; `ended` when an end is the last of them."""

    channel: int
    items: list[object]
    ended: bool


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """The peer broke a rule of the connection; the engine has written an error as far as possible.

    Write the result of `take_output`, then close the socket.
    """

    fault: AmqpError


ConnectionEvent = (
    SaslInit | SaslResponse | SaslOutcome | Open | BeginReceived | FramesReceived | Close | ConnectionFailed
)
"""Performatives of the peer: answer SASL init and response with `sasl_outcome` or `sasl_challenge`, open with
`open` and close with `close`, unless ours went first.
"""
