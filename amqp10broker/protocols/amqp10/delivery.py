"""Deliveries of one link: part 2, sections 2.6.12 to 2.6.14.

When a link is attached again, each end sends its unsettled deliveries as a map from delivery-tag to state;
`resume_as_sender` and `resume_as_receiver` implement the table of section 2.6.13. An incomplete map does not
determine tags that it does not have: they stay as they are until the link is attached with a complete one
(2.7.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from enum import Enum, auto
from typing import Any, Final, Self

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.encoder import encode
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, AmqpSessionError, Condition, DecodeError
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Declared,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
    Transfer,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Described

DELIVERY_TAG_BYTES_MAX: Final = 32
"""Section 2.8.7."""

Parts = tuple[bytes, bytes]
"""A message to send: the part that the sender writes, and the part that it must not change."""


@dataclass(eq=False, slots=True)
class PartialDelivery:
    """A multi-frame delivery of the peer that has begun and not ended. `resumed`: its first transfer has the
    resume flag; later ones may omit it. `txn_id`: its transaction, or None.
    """

    delivery_id: int
    tag: bytes
    message_format: int | None
    settled: bool
    resumed: bool
    txn_id: bytes | None
    chunks: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    held_bytes: int = 0

    @classmethod
    def of(cls, first: Transfer) -> Self:
        """Begin with a first transfer. Raises if it lacks a field that only it can have."""
        if first.delivery_id is None:
            raise AmqpSessionError(
                Condition.INVALID_FIELD, "delivery-id is not set on the first transfer of a delivery"
            )
        if first.delivery_tag is None:
            raise AmqpLinkError(
                Condition.INVALID_FIELD, "delivery-tag is not set on the first transfer of a delivery"
            )
        if len(first.delivery_tag) > DELIVERY_TAG_BYTES_MAX:
            raise AmqpLinkError(
                Condition.INVALID_FIELD,
                f"delivery-tag of {len(first.delivery_tag)} bytes exceeds {DELIVERY_TAG_BYTES_MAX} bytes",
            )
        return cls(
            first.delivery_id,
            first.delivery_tag,
            first.message_format,
            bool(first.settled),
            bool(first.resume),
            first.state.txn_id if type(first.state) is TransactionalState else None,
        )

    def check_continuation(self, transfer: Transfer) -> None:
        """Raises `AmqpLinkError` if a continuation contradicts the first frame (2.7.5)."""
        for name, given, first in (
            ("delivery-id", transfer.delivery_id, self.delivery_id),
            ("delivery-tag", transfer.delivery_tag, self.tag),
            ("message-format", transfer.message_format, self.message_format or 0),
        ):
            if given is not None and given != first:
                shown = [each.hex() if isinstance(each, bytes) else each for each in (given, first)]
                raise AmqpLinkError(
                    Condition.INVALID_FIELD,
                    f"{name} of continuation transfer ({shown[0]}) differs from "
                    f"{name} on first transfer ({shown[1]})",
                )
        if type(transfer.state) is TransactionalState and transfer.state.txn_id != self.txn_id:
            raise AmqpLinkError(
                Condition.INVALID_FIELD,
                f"txn-id of continuation transfer (0x{transfer.state.txn_id.hex()}) differs from that of the "
                f"first transfer ({'none' if self.txn_id is None else '0x' + self.txn_id.hex()})",
            )
        if transfer.settled is not None and transfer.settled != self.settled:
            raise AmqpLinkError(
                Condition.INVALID_FIELD,
                f"field 'settled' of continuation transfer ({str(transfer.settled).lower()}) differs from "
                f"(interpreted) field 'settled' on first transfer ({str(self.settled).lower()})",
            )

    def add(self, payload: bytes) -> None:
        self.chunks.append(payload)
        self.size_bytes += len(payload)


@dataclass(eq=False, slots=True)
class DeliveryBatch:
    """Deliveries that a sender link has yet to send. `keys`: the application's numbers."""

    keys: Sequence[int]
    messages: Sequence[Parts]
    position: int = 0

    def left(self) -> int:
        return len(self.messages) - self.position

    def cut(self, keep: int) -> tuple[Sequence[int], Sequence[Parts]]:
        at = self.position + keep
        keys, messages = self.keys[at:], self.messages[at:]
        self.keys, self.messages = self.keys[:at], self.messages[:at]
        return keys, messages

    def discard(self, keys: Collection[int]) -> int:
        before = self.left()
        left = [
            (key, message)
            for key, message in zip(self.keys[self.position :], self.messages[self.position :], strict=True)
            if key not in keys
        ]
        if len(left) < before:
            self.keys = [key for key, _ in left]
            self.messages = [message for _, message in left]
            self.position = 0
        return before - len(left)


@dataclass(eq=False, slots=True)
class ResumedDelivery:
    """A delivery to resume (2.6.13)."""

    key: int
    message: Parts = (b"", b"")
    state: Any = None
    settled: bool = False
    aborted: bool = False

    def abort(self) -> None:
        self.message, self.state, self.settled, self.aborted = (b"", b""), None, True, True


@dataclass(eq=False, slots=True)
class OutgoingDelivery:
    """A multi-frame delivery of this end that has begun and not ended. `txn_id`: the transaction in which it
    is acquired.
    """

    delivery_id: int
    key: int
    message: Parts
    resumed: ResumedDelivery | None = None
    txn_id: bytes | None = None
    aborted: bool = False
    position: int = 0
    size_bytes: int = 0
    _left: list[memoryview] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.size_bytes = sum(map(len, self.message))
        # The rest of both parts; the message may be large, and is not copied.
        self._left = [memoryview(part) for part in self.message if part]

    def abort(self) -> None:
        self.aborted = True
        self._left.clear()
        self.size_bytes = self.position

    def take(self, room: int) -> list[memoryview]:
        pieces = []
        while room and self._left:
            piece = self._left[0][:room]
            if len(piece) == len(self._left[0]):
                del self._left[0]
            else:
                self._left[0] = self._left[0][len(piece) :]
            room -= len(piece)
            self.position += len(piece)
            pieces.append(piece)
        return pieces


Pending = deque[object]
"""The queue of a sender link: `ResumedDelivery` and `DeliveryBatch` objects, and markers."""


UNSETTLED_ENTRIES_MAX: Final = 4096

State = Received | Accepted | Rejected | Released | Modified | Declared | TransactionalState | None
"""The state of an unsettled delivery at one end; None: it is only unsettled."""

UnsettledMap = Mapping[bytes, State]

_STATES: Final = (Received, Accepted, Rejected, Released, Modified, Declared, TransactionalState)
_OUTCOMES: Final = (Accepted, Rejected, Released, Modified)


class NotOurs(Enum):
    ABSENT = auto()


class Resume(Enum):
    """How a delivery is resumed. CONTENT: with its content, from the receiver's position on. OUTCOME: without
    content, and settled.
    """

    CONTENT = auto()
    OUTCOME = auto()


@dataclass(frozen=True, slots=True)
class Resumed:
    """A delivery that the sender must resume. `state`: where the content begins (`Received`; None: at its
    beginning), or the outcome. `apply`: the outcome is the receiver's: act on it.
    """

    tag: bytes
    how: Resume
    state: State
    apply: bool = False


@dataclass(slots=True)
class SenderPlan:
    """A sender's treatment of its unsettled deliveries.

    Attributes:
        unknown: deliveries without an outcome that the receiver does not have: return them without a failed
            attempt.
        settled: deliveries with an outcome that the receiver does not have: remove them.
        open: deliveries that an incomplete map does not determine.
    """

    resumed: list[Resumed] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)
    settled: list[bytes] = field(default_factory=list)
    open: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class ReceiverPlan:
    """A receiver's treatment of its unsettled deliveries. `awaited`: the receiver's state of deliveries that
    the sender will resume: its map in the answer. `open`: deliveries that an incomplete map does not
    determine: retain them, and include them in the map.
    """

    awaited: dict[bytes, State] = field(default_factory=dict)
    settled: list[bytes] = field(default_factory=list)
    open: list[bytes] = field(default_factory=list)


class Arrival(Enum):
    """The meaning of a transfer with resume=true to its receiver."""

    IGNORED = auto()
    """The delivery is not in the receiver's map: only its credit is used (2.7.5)."""
    CONTINUED = auto()
    """Its content follows, from the receiver's position on."""
    SETTLED = auto()
    """The sender has the receiver's outcome: remove the delivery."""
    ABORTED = auto()
    REPEATED = auto()
    """The sender does not have the receiver's outcome: send it again, and take no content."""


def unsettled_map(attach: Attach) -> dict[bytes, State]:
    """Return the peer's map; empty if it sent none. Raises `AmqpLinkError`."""
    given: dict[Any, Any] = attach.unsettled or {}
    if len(given) > UNSETTLED_ENTRIES_MAX:
        raise AmqpLinkError(
            Condition.RESOURCE_LIMIT_EXCEEDED,
            f"Attach refused: unsettled has {len(given)} entries, more than {UNSETTLED_ENTRIES_MAX}: attach "
            "with fewer, and incomplete-unsettled",
        )
    return {_tag(tag): _state(tag, state) for tag, state in given.items()}


def _tag(tag: Any) -> bytes:
    if not isinstance(tag, bytes):
        raise AmqpLinkError(
            Condition.INVALID_FIELD,
            f"Attach refused: unsettled has a key of type {type(tag).__name__}: a delivery-tag is binary",
        )
    if len(tag) > DELIVERY_TAG_BYTES_MAX:
        raise AmqpLinkError(
            Condition.RESOURCE_LIMIT_EXCEEDED,
            f"Attach refused: unsettled has a delivery-tag of {len(tag)} bytes, more than "
            f"{DELIVERY_TAG_BYTES_MAX}",
        )
    return tag


def _state(tag: bytes, value: Any) -> State:
    if isinstance(value, Described):
        try:
            value, _ = decode_composite(encode(value))
        except DecodeError as fault:
            raise _no_state(tag, str(fault)) from None
    if value is None or isinstance(value, _STATES):
        return value
    raise _no_state(tag, f"{type(value).__name__} is none")


def _no_state(tag: bytes, reason: str) -> AmqpLinkError:
    return AmqpLinkError(
        Condition.INVALID_FIELD,
        f"Attach refused: unsettled needs null or a delivery-state for delivery-tag 0x{tag.hex()}: {reason}",
    )


def resume_as_sender(ours: UnsettledMap, theirs: UnsettledMap, *, incomplete: bool = False) -> SenderPlan:
    """Plan as the sender. Tags that only the receiver has are ignored, as the sender's map lacks them."""
    plan = SenderPlan()
    for tag, known in ours.items():
        decided = isinstance(known, _OUTCOMES)
        theirs_of_it = theirs.get(tag, NotOurs.ABSENT)
        if isinstance(theirs_of_it, NotOurs):
            (plan.open if incomplete else plan.settled if decided else plan.unknown).append(tag)
        elif decided:
            plan.resumed.append(Resumed(tag, Resume.OUTCOME, known))
        elif isinstance(theirs_of_it, _OUTCOMES):
            plan.resumed.append(Resumed(tag, Resume.OUTCOME, theirs_of_it, apply=True))
        else:
            begin = theirs_of_it if isinstance(theirs_of_it, Received) else None
            plan.resumed.append(Resumed(tag, Resume.CONTENT, begin))
    return plan


def resume_as_receiver(ours: UnsettledMap, theirs: UnsettledMap, *, incomplete: bool = False) -> ReceiverPlan:
    """Plan as the receiver. Tags that only the sender has are not in its map: they are sent anew, or
    dropped.
    """
    plan = ReceiverPlan()
    for tag, known in ours.items():
        if tag in theirs:
            plan.awaited[tag] = known
        else:
            (plan.open if incomplete else plan.settled).append(tag)
    return plan


def on_resumed(known: State | NotOurs, *, settled: bool, aborted: bool) -> Arrival:
    if isinstance(known, NotOurs):
        return Arrival.IGNORED
    if aborted:
        return Arrival.ABORTED
    if not isinstance(known, _OUTCOMES):
        return Arrival.CONTINUED
    return Arrival.SETTLED if settled else Arrival.REPEATED
