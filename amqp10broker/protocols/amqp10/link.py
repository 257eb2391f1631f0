"""Links (part 2, section 2.6): the state of a link end, and the events that the engine reports to its owner.

Events are made once per batch or less often, except that a message of many frames has its own
`DeliveriesReceived`.

A `TransferLayout` is the common part of a sender's transfers, learned from one and checked, byte for byte, on
every later one; a `TransferHead` is one sender link's frame head. Delivery-id, delivery-tag and payload vary.
On CPython 3.11, decoding takes 1.1 us a frame by the generated tables and 0.4 by a layout; encoding 1.5 us by
the generated class and 0.1 by a head.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from enum import Enum, auto
from struct import Struct
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
from amqp10broker.protocols.amqp10.encoder import write_uint
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
    TransactionalState,
    Transfer,
)

FRAME_HEADER_BYTES: Final = 8
_LIST8: Final = 0xC0
_LIST32_CODE: Final = 0xD0
_UINT0: Final = 0x43
_SMALLUINT: Final = 0x52
_UINT: Final = 0x70
_VBIN8: Final = 0xA0
KEY8_BYTES: Final = 13
"""Bytes 4..16 of the frame: doff, type, channel, descriptor, list8 head, handle or role, delivery-id code."""
SHORT_KEY_BYTES: Final = 12
"""The same if handle or role is one byte, and so is the delivery-id: it must not be in the key."""
KEY32_BYTES: Final = 19
"""The same for a list32, which has a head longer by six bytes."""


@dataclass(eq=False, slots=True)
class TransferRun:
    """Adjacent single-frame transfers of one channel, link, format, settled flag and transaction.

    It is filled while parsing: the three lists take 0.1 us a transfer, against 0.3 us for a record of each.
    """

    handle: int
    message_format: int | None
    settled: bool | None
    txn_id: bytes | None = None
    delivery_ids: list[int] = field(default_factory=list)
    tags: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)


def handles_of(items: Sequence[object]) -> set[int] | None:
    handles: set[int] = set()
    for item in items:
        if type(item) is not TransferRun or item.txn_id is not None:
            return None
        handles.add(item.handle)
    return handles


def by_link(runs: Sequence[TransferRun]) -> list[TransferRun]:
    """Group the transfers by link, and merge runs that are alike."""
    result: list[TransferRun] = []
    last: dict[int, TransferRun] = {}
    for run in runs:
        before = last.get(run.handle)
        if before is None or before.settled is not run.settled or before.message_format != run.message_format:
            before = last[run.handle] = TransferRun(run.handle, run.message_format, run.settled)
            result.append(before)
        before.delivery_ids += run.delivery_ids
        before.tags += run.tags
        before.payloads += run.payloads
    return result


@dataclass(eq=False, slots=True)
class TransferFrame:
    performative: Transfer
    payload: bytes


@dataclass(eq=False, slots=True)
class TransferLayout:
    unpack_from: Callable[..., tuple[Any, ...]]
    tag_code: bytes
    suffix: bytes
    head_bytes: int
    channel: int
    handle: int
    message_format: int | None
    settled: bool | None
    txn_id: bytes | None


LIST32: Final = TransferLayout(Struct(">I").unpack_from, b"", b"", 1 << 62, 0, 0, None, None, None)
"""The entry of a short key for frames with a list32: the reader repeats the search with the longer key."""


def learn(buf: bytes, pos: int, transfer: Transfer, payload_pos: int) -> dict[bytes, TransferLayout] | None:
    """Return the layout of a transfer frame just decoded, under the keys by which the reader finds it. Only a
    complete, ordinary delivery has a layout. Each transaction has a separate one, which replaces the one
    before.
    """
    if (
        transfer.more
        or transfer.aborted
        or transfer.resume
        or not (
            transfer.state is None
            or (type(transfer.state) is TransactionalState and transfer.state.outcome is None)
        )
        or transfer.rcv_settle_mode is not None
        or transfer.delivery_id is None
        or transfer.delivery_tag is None
        or len(transfer.delivery_tag) > 32
        or buf[pos + 8 : pos + 11] != b"\x00\x53\x14"
    ):
        return None
    code = buf[pos + 11]
    if code == _LIST8:
        at, key_bytes = pos + 14, KEY8_BYTES
    elif code == _LIST32_CODE:
        at, key_bytes = pos + 20, KEY32_BYTES
    else:
        return None
    if buf[at] == _UINT0:
        at += 1
    elif buf[at] == _SMALLUINT:
        at += 2
    else:
        return None
    id_code = buf[at]
    if id_code not in (_UINT, _SMALLUINT):
        return None
    at += 1
    # Everything before the delivery-id's value must be in the key; otherwise the key would not prove it.
    if at > pos + 4 + key_bytes:
        return None
    if id_code == _SMALLUINT and at == pos + 4 + SHORT_KEY_BYTES:
        key_bytes = SHORT_KEY_BYTES
    id_format = "I" if id_code == _UINT else "B"
    tag_pos = at + (4 if id_code == _UINT else 1)
    if buf[tag_pos] != _VBIN8:
        return None
    tag_bytes = buf[tag_pos + 1]
    suffix_pos = tag_pos + 2 + tag_bytes
    layout = TransferLayout(
        Struct(f">I{at - pos - 4}x{id_format}2s{tag_bytes}s{payload_pos - suffix_pos}s").unpack_from,
        buf[tag_pos : tag_pos + 2],
        buf[suffix_pos:payload_pos],
        payload_pos - pos,
        int.from_bytes(buf[pos + 6 : pos + 8], "big"),
        transfer.handle,
        transfer.message_format,
        transfer.settled,
        transfer.state.txn_id if isinstance(transfer.state, TransactionalState) else None,
    )
    learned = {buf[pos + 4 : pos + 4 + key_bytes]: layout}
    if code == _LIST32_CODE:
        learned[buf[pos + 4 : pos + 4 + KEY8_BYTES]] = LIST32
    return learned


class TransferHead:
    """Frame heads for the single-frame deliveries of one sender link.

    ``pack(size, before, delivery_id, between, tag, after)`` returns the whole head; `size` is `head_bytes`
    plus the payload's length. The tag is the 4-byte big-endian delivery key.
    """

    __slots__ = ("after", "before", "between", "head_bytes", "pack")

    def __init__(
        self, channel: int, handle: int, *, settled: bool, tag_bytes: int = 4, txn_id: bytes | None = None
    ) -> None:
        encoded_handle = write_uint(handle)
        # These are five fields: handle, delivery-id, delivery-tag, message-format 0, settled.
        fields = 5
        self.after = b"\x43\x41" if settled else b"\x43\x42"
        if txn_id is not None:
            # These are three more: more and rcv-settle-mode, which are null, and state.
            fields = 8
            self.after += b"\x40\x40" + TransactionalState(txn_id=txn_id).encode()
        fields_bytes = len(encoded_handle) + 5 + 2 + tag_bytes + len(self.after)
        self.before = (
            b"\x02\x00"
            + channel.to_bytes(2, "big")
            + bytes((0x00, 0x53, 0x14, _LIST8, fields_bytes + 1, fields))
            + encoded_handle
            + b"\x70"
        )
        self.between = bytes((_VBIN8, tag_bytes))
        packer = Struct(f">I{len(self.before)}sI2s{'I' if tag_bytes == 4 else 'Q'}{len(self.after)}s")
        self.pack = packer.pack
        self.head_bytes = packer.size


def delivery_tag(key: int) -> bytes:
    """Return the tag of a key: 4 bytes big-endian, 8 above 2**32 - 1."""
    return key.to_bytes(4 if key <= 0xFFFF_FFFF else 8, "big")


def payload_bytes(items: Sequence[object]) -> int:
    total = 0
    for item in items:
        if type(item) is TransferRun:
            total += sum(map(len, item.payloads))
        elif type(item) is TransferFrame:
            total += len(item.payload)
    return total


class LinkState(Enum):
    DETACHED = auto()
    ATTACH_SENT = auto()
    ATTACH_RECEIVED = auto()
    ATTACHED = auto()
    DETACH_SENT = auto()
    """This end detached; frames for the handle are discarded until the peer's detach."""
    DETACH_RECEIVED = auto()


class LinkInput(Enum):
    SEND_ATTACH = auto()
    RECEIVE_ATTACH = auto()
    SEND_DETACH = auto()
    RECEIVE_DETACH = auto()


# Sections 2.6.3 to 2.6.6, for both roles. An absent pair is refused: from the peer it is an error of the
# session, from this end a broken invariant.
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
        remote_handle: the peer's; None until its attach arrived.
        peer_max_message_size: the bytes of the largest message that the peer accepts; 0 for no limit.
        address: that of the node at this end; None for an anonymous terminus, and for a coordinator.
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
    """The end that sends deliveries. `head`: that of single-frame deliveries; None until attached."""

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
    """The end that receives deliveries.

    Attributes:
        max_message_size: the bytes of the largest accepted message; 0 for no limit.
        manages: the client sends management requests: in whole frames, and a fault ends the session.
        looks_ahead: its owner gets `DeliveryBegun`.
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
    """The peer has answered this end's attach."""

    link: SenderLink | ReceiverLink
    attach: Attach


@dataclass(frozen=True, slots=True)
class LinkDetached:
    """A link has ended: by the peer (answer with `Session.links.detach`), or, with a `fault`, by the engine,
    which has sent the detach; then `unsent` has key and message of each delivery that was never begun.
    """

    link: SenderLink | ReceiverLink
    closed: bool
    error: Error | None
    fault: AmqpError | None
    unsent: Sequence[tuple[int, Parts]] = ()


@dataclass(frozen=True, slots=True)
class LinkFlowed:
    """The peer sent its link state, which the engine has applied. On a sender link the owner answers `echo`
    and `drain` (`Session.send_flow`, `Session.drained`), because only it has the number of available
    deliveries.
    """

    link: SenderLink | ReceiverLink
    flow: Flow


@dataclass(eq=False, slots=True)
class DeliveriesReceived:
    """Complete deliveries on a receiver link, in order. `txn_id`: their transaction, or None."""

    link: ReceiverLink
    delivery_ids: Sequence[int]
    tags: Sequence[bytes]
    payloads: Sequence[bytes]
    settled: bool
    message_format: int
    txn_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class DeliveryBegun:
    """The first of several transfers of a delivery has come, on a link that `looks_ahead`. Refuse the
    delivery now if the sender may not send it: the rest is not stored then.
    """

    link: ReceiverLink
    payload: bytes


@dataclass(frozen=True, slots=True)
class DeliveryResumed:
    """The peer has resumed a delivery on a receiver link that `resumes`: it has used its credit, and its
    content is not taken. Pass its delivery-id to `Inbound.note_unsettled` if it must be settled.
    """

    link: ReceiverLink
    delivery_id: int
    tag: bytes
    settled: bool
    aborted: bool


@dataclass(eq=False, slots=True)
class DeliveriesUpdated:
    """The peer's disposition reached deliveries that this end sent. `keys`: the application's numbers.
    `settled`: the peer has settled; the deliveries are not in the unsettled map any more.
    """

    link: SenderLink
    keys: list[int]
    delivery_ids: list[int]
    state: Any
    settled: bool


@dataclass(eq=False, slots=True)
class DeliveriesSettled:
    """The peer's disposition reached deliveries that this end received."""

    link: ReceiverLink
    delivery_ids: list[int]
    state: Any
    settled: bool


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is over: by the peer's end (answer with `Session.end`), or, with a `fault`, by the engine,
    which has sent the end.
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
    """The peer begins a session on its channel; `remote_channel` is this end's if it answers."""

    channel: int
    performative: Begin


@dataclass(eq=False, slots=True)
class FramesReceived:
    """Bodies of frames for one session; `ended`: an end is the last of them."""

    channel: int
    items: list[object]
    ended: bool


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """The peer broke a rule of the connection. Write the result of `take_output`, then close the socket."""

    fault: AmqpError


ConnectionEvent = (
    SaslInit | SaslResponse | SaslOutcome | Open | BeginReceived | FramesReceived | Close | ConnectionFailed
)
"""Performatives of the peer: answer SASL init and response with `sasl_outcome` or `sasl_challenge`, open with
`open` and close with `close`, unless this end sent its own first.
"""
