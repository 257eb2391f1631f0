"""Links (part 2, section 2.6): the state of a link end, and the events that the engine reports to its owner.

A link is a one-way route between two nodes; each peer holds one end. `SenderLink` is the end from which
deliveries leave, `ReceiverLink` the end at which they arrive; the broker's end depends on the client's role.

Session events come from `session.Session.receive` and `session.Session.pump`, connection events from
`connection.Connection.receive`. All of them are made once per batch or more rarely, except that a message of
many frames makes one `DeliveriesReceived` of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import field
from enum import Enum, auto
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.credit import ReceiverCredit, SenderCredit
from amqp10broker.protocols.amqp10.delivery import (
    DeliveryBatch,
    OutgoingDelivery,
    PartialDelivery,
    Parts,
    Pending,
    ResumedDelivery,
)
from amqp10broker.protocols.amqp10.errors import AmqpError
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
    SenderSettleMode,
)
from amqp10broker.protocols.amqp10.transfer import TransferHead


class LinkState(Enum):
    DETACHED = auto()
    ATTACH_SENT = auto()
    ATTACH_RECEIVED = auto()
    ATTACHED = auto()
    DETACH_SENT = auto()
    """We detached; frames for the handle are discarded until the peer's detach."""
    DETACH_RECEIVED = auto()


class LinkInput(Enum):
    SEND_ATTACH = auto()
    RECEIVE_ATTACH = auto()
    SEND_DETACH = auto()
    RECEIVE_DETACH = auto()


# Sections 2.6.3 to 2.6.6. A pair that is absent is refused: from the peer it is an error of the session (a
# handle used as it must not be), from ourselves a broken invariant. The table is the same for both roles, and
# does not cover deliveries, which the session handles.
LINK_TRANSITIONS: Final[dict[tuple[LinkState, LinkInput], LinkState]] = {
    (LinkState.DETACHED, LinkInput.SEND_ATTACH): LinkState.ATTACH_SENT,
    (LinkState.DETACHED, LinkInput.RECEIVE_ATTACH): LinkState.ATTACH_RECEIVED,
    (LinkState.ATTACH_SENT, LinkInput.RECEIVE_ATTACH): LinkState.ATTACHED,
    (LinkState.ATTACH_RECEIVED, LinkInput.SEND_ATTACH): LinkState.ATTACHED,
    (LinkState.ATTACHED, LinkInput.SEND_DETACH): LinkState.DETACH_SENT,
    (LinkState.ATTACHED, LinkInput.RECEIVE_DETACH): LinkState.DETACH_RECEIVED,
    (LinkState.DETACH_SENT, LinkInput.RECEIVE_DETACH): LinkState.DETACHED,
    (LinkState.DETACH_RECEIVED, LinkInput.SEND_DETACH): LinkState.DETACHED,
    # A pipelined detach crosses the peer's attach, which then has no effect.
    (LinkState.ATTACH_SENT, LinkInput.SEND_DETACH): LinkState.DETACH_SENT,
    (LinkState.DETACH_SENT, LinkInput.RECEIVE_ATTACH): LinkState.DETACH_SENT,
}


@dataclass(eq=False, slots=True)
class Link:
    """The state common to both kinds of end.

    Attributes:
        remote_handle: the peer's number in frames it sends; None until its attach arrived.
        peer_max_message_size: bytes the peer takes; 0 for no limit.
        address: of the node at our end; None for an anonymous terminus, and for a coordinator.
    """

    name: str
    handle: int
    remote_handle: int | None = None
    state: LinkState = LinkState.DETACHED
    snd_settle_mode: int = int(SenderSettleMode.MIXED)
    rcv_settle_mode: int = 0
    remote_attach: Attach | None = None
    peer_max_message_size: int = 0
    peer_available: int | None = None
    peer_properties: Any = None
    address: Any = None

    def move(self, step: LinkInput) -> None:
        self.state = LINK_TRANSITIONS[self.state, step]

    @property
    def attached(self) -> bool:
        return self.state is LinkState.ATTACHED


@dataclass(eq=False, slots=True)
class SenderLink(Link):
    """The end from which deliveries leave. `head`: of single-frame deliveries; None until attached."""

    credit: SenderCredit = field(default_factory=SenderCredit)
    pending: Pending = field(default_factory=deque)
    resuming: int = 0
    partial: OutgoingDelivery | None = None
    head: TransferHead | None = None
    settled: bool = False
    queued: bool = False
    left: Sequence[int] = ()
    txn_id: bytes | None = None

    def withdraw(self, keep: int) -> list[tuple[int, Parts]]:
        """Take back all but the first `keep` deliveries that have not begun: keys and messages."""
        taken: list[tuple[int, Parts]] = []
        for entry in self.pending:
            if type(entry) is not DeliveryBatch:
                continue
            left = entry.left()
            if left <= keep:
                keep -= left
                continue
            keys, messages = entry.cut(keep)
            taken.extend(zip(keys, messages, strict=True))
            keep = 0
        return taken

    def discard(self, keys: Collection[int]) -> int:
        """Remove (or abort, if resumed) deliveries that have not begun; return how many."""
        count = 0
        for entry in self.pending:
            if type(entry) is DeliveryBatch:
                count += entry.discard(keys)
            elif type(entry) is ResumedDelivery and entry.key in keys:
                entry.abort()
        return count


@dataclass(eq=False, slots=True)
class ReceiverLink(Link):
    """The end at which deliveries arrive.

    Attributes:
        max_message_size: bytes we take; 0 for no limit.
        manages: the client sends requests of management: in whole frames, and a fault ends the session.
        resumes: its owner handles deliveries that the peer resumes; else they are ignored.
    """

    credit: ReceiverCredit = field(default_factory=lambda: ReceiverCredit(0, 0))
    max_message_size: int = 0
    partial: PartialDelivery | None = None
    drain: bool = False
    manages: bool = False
    looks_ahead: bool = False
    resumes: bool = False


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
