"""Resumption of deliveries after a link is attached again: part 2, section 2.6.13.

Each end sends its unsettled deliveries at attach, as a map from delivery-tag to state. `resume_as_sender` and
`resume_as_receiver` implement the table of that section. An incomplete map does not determine tags that it
does not have: such deliveries stay as they are until the link is attached with a complete one (2.7.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum, auto
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.delivery import DELIVERY_TAG_BYTES_MAX
from amqp10broker.protocols.amqp10.encoder import encode
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, Condition, DecodeError
from amqp10broker.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Declared,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Described

UNSETTLED_ENTRIES_MAX: Final = 4096
"""The most entries that an unsettled map of the peer may have."""

State = Received | Accepted | Rejected | Released | Modified | Declared | TransactionalState | None
"""The state of an unsettled delivery at one end; None: it is only unsettled."""

UnsettledMap = Mapping[bytes, State]
"""Delivery-tag -> state, in the order in which the deliveries were made."""

_STATES: Final = (Received, Accepted, Rejected, Released, Modified, Declared, TransactionalState)
_OUTCOMES: Final = (Accepted, Rejected, Released, Modified)


class NotOurs(Enum):
    ABSENT = auto()


class Resume(Enum):
    CONTENT = auto()
    """With its content, from the receiver's position on, and then as any delivery."""
    OUTCOME = auto()
    """Without content, and settled: both have an outcome."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A delivery that the sender must resume. `state`: where the content begins (`Received`; None: at its
    beginning), or the outcome. `apply`: the outcome is the receiver's, and new to us: act on it.
    """

    tag: bytes
    how: Resume
    state: State
    apply: bool = False


@dataclass(slots=True)
class SenderPlan:
    """A sender's treatment of its unsettled deliveries.

    Attributes:
        unknown: tags that the receiver does not have and that have no decision: it never got them, or forgot
            them. Return them without a failed attempt.
        settled: tags that the receiver does not have and that have an outcome: remove them.
    """

    resumed: list[Resumed] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)
    settled: list[bytes] = field(default_factory=list)
    open: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class ReceiverPlan:
    """A receiver's treatment of its unsettled deliveries. `awaited`: tag -> our state, of deliveries that the
    sender will resume: our map in the answer. `open`: tags that an incomplete map does not determine: retain
    them, and include them in our map.
    """

    awaited: dict[bytes, State] = field(default_factory=dict)
    settled: list[bytes] = field(default_factory=list)
    open: list[bytes] = field(default_factory=list)


class Arrival(Enum):
    """The meaning of a transfer with resume=true to its receiver."""

    IGNORED = auto()
    """Not in our map: its credit is used, nothing else (2.7.5)."""
    CONTINUED = auto()
    """Its content follows, from our position on."""
    SETTLED = auto()
    """The sender has our outcome: remove the delivery. It was acted on before, and is not again."""
    ABORTED = auto()
    """The sender gave it up: drop our part of it."""
    REPEATED = auto()
    """We have an outcome and the sender does not: send it again, and take no content."""


def unsettled_map(attach: Attach) -> dict[bytes, State]:
    """Return the peer's map; empty if it sent none. Raises `AmqpLinkError` if it is invalid."""
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
    """Tags that only the receiver has are ignored: our map shows it that we do not have them. `ours`: an
    outcome is one that we have acted on.
    """
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
    """Tags that only the sender has are not in our map: it sends them anew, or forgets them. `ours`:
    `Received` states how much of a delivery is here, an outcome was acted on.
    """
    plan = ReceiverPlan()
    for tag, known in ours.items():
        if tag in theirs:
            plan.awaited[tag] = known
        else:
            (plan.open if incomplete else plan.settled).append(tag)
    return plan


def on_resumed(known: State | NotOurs, *, settled: bool, aborted: bool) -> Arrival:
    """Classify a transfer with resume=true, by our state of its tag."""
    if isinstance(known, NotOurs):
        return Arrival.IGNORED
    if aborted:
        return Arrival.ABORTED
    if not isinstance(known, _OUTCOMES):
        return Arrival.CONTINUED
    return Arrival.SETTLED if settled else Arrival.REPEATED
