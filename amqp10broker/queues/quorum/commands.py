"""The commands of a quorum queue, the entries of its log, and its records in the journal.

Every change of a quorum queue's state is a command, the passing of time included. These commands are its log,
and the same log makes the same state. Commands that change nothing (`Inspect`, `Touch`) are in no entry: they
are answered between two entries, in the order in which they were sent.

An entry has the commands, time and first index of messages of a step, so that a message can be read again
without decoding the commands. Every message has an index, whether the queue accepts it or not: indexes are
known before a command is applied. Equal commands make equal bytes on every node.

The records, kinds 16 to 47, with integers in little-endian:

==============  ======================  =========================================================
kind            index                   payload
==============  ======================  =========================================================
`EMPTY`,        of the entry in its     ``applied u64``, of the last entry that the queue had
`COMMANDS`,     group's log; the        applied then: what a start may apply again while it reads;
`CONFIG`        record's term is its    of `COMMANDS`: `PLACES` and `encode_commands`; of `CONFIG`:
                                        `raft.messages.CONFIG`
`HARD`          0                       `raft.messages.HARD`
`STATE`         of the last entry       `raft.messages.POINT`, then what `queue.encode_snapshot` returns
                in it
`RELOCATED`     of the first message;   `PLACES`; batches of messages
                the record's term is
                what was applied
`STAGED`        number of the transfer  as `RELOCATED`, of a state that the leader sends
`INSTALLED`     of the last entry       ``transfer u64``, then as `STATE`: all that is staged of the
                in it                   transfer, and this, take the place of all there was
`BEGINS`        0: it has nothing yet;  ``member u64``: a member that was added to the group begins
                1: repeated
==============  ======================  =========================================================

An entry whose index is not above that of the entry before, with another term, replaces that one and all later
ones. With the same term it is the same entry, appended again because its file was cleaned. A state's record
is followed by everything else that a start needs.

Staged records of one transfer count only when its `INSTALLED` follows, and not if records of another transfer
come between.

A node may have had another member of the group before. Records before the `BEGINS` of an added member belong
to that earlier member. Before a repeated `BEGINS` (after cleaning), messages are the present member's. Term
and vote, and the state, follow it again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.layout import (
    NUMBERS,
    REST,
    TEXT,
    U8,
    U32,
    U64,
    BadBytes,
    Field,
    Layout,
    Many,
    OneOf,
    as_bytes,
    row,
)
from amqp10broker.message.filters.filter_set import Filters, encode_wanted
from amqp10broker.queues import machine_version
from amqp10broker.queues.commands import (
    Cancel,
    Change,
    ConsumerRef,
    Credit,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    Settle,
    Subscribe,
    Touch,
    Unsubscribe,
)
from amqp10broker.queues.commands import joined as joined_publishes
from amqp10broker.queues.layouts import CONSUMER, OF_SESSIONS, OF_THE_QUEUE, PEER, SUBSCRIPTION
from amqp10broker.queues.quorum.bodies import BodyPlace
from amqp10broker.queues.quorum.ready import FAIR_LEVELS
from amqp10broker.raft.messages import POINT, Kind


@dataclass(slots=True, eq=False)
class NodeBatch:
    """A batch of commands of the sessions of one node, which numbers them from 1.

    It is applied only if its first number is the next one. Otherwise it is a repetition, or earlier ones are
    missing. A command of another node or start is not applied.

    Attributes:
        last: ``first - 1``: the batch contains `heard` only.
        heard: the index of the last entry whose effects the node has.
        commands: their count may differ from the numbers, because publishes are joined.
    """

    node: int
    incarnation: int
    first: int
    last: int
    heard: int
    commands: Sequence[QuorumCommand]


@dataclass(frozen=True, slots=True)
class NodeSuspect:
    """A node is unreachable: its consumers get nothing, and keep their deliveries. After
    `QueueSettings.consumer_disconnected_timeout_ms` these are returned, and do not count as failed.
    """

    node: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeBack:
    node: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node has left, or was restarted: its consumers and publishers are removed as if their connections had
    been lost, and the numbers of its commands are dropped. `incarnation`: this start and those before.
    """

    node: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class SessionGone:
    """A session has ended; its consumers and publishers are removed as if its connection had been lost."""

    session: PeerId


@dataclass(frozen=True, slots=True)
class DlxSettle:
    """Dead messages have been accepted by all their target queues; unknown keys are ignored."""

    keys: Sequence[int]


@dataclass(frozen=True, slots=True)
class RaiseVersion:
    """Entries after this one in the log are encoded and applied by another machine version, if that is
    higher. The command is alone in its entry.
    """

    version: int


@dataclass(slots=True)
class SearchResult:
    """The result of the leader's search for one consumer that selects.

    Attributes:
        at: its cursor from now on (`selecting.Selection`): no waiting message before it is wanted.
        taken: line and key of the messages that it gets, in this order. Messages that no longer wait there
            are left out; those that it may not have any more are offered again to all consumers.
    """

    consumer: ConsumerRef
    at: Sequence[int]
    taken: Sequence[tuple[int, int]]


@dataclass(slots=True, eq=False)
class Selected:
    looks: Sequence[SearchResult]


@dataclass(slots=True, eq=False)
class SelectedInLevels(Selected):
    """`Selected` for another number of priorities than two, with correspondingly longer cursors."""


QuorumChange = (
    Change | NodeBatch | NodeSuspect | NodeBack | NodeGone | SessionGone | DlxSettle | RaiseVersion | Selected
)


@dataclass(frozen=True, slots=True)
class Browsing:
    """A command of a browsing consumer: not part of the state, and in no entry."""

    command: Subscribe | Credit | Settle | GiveBack | Cancel | Unsubscribe


@dataclass(frozen=True, slots=True)
class BrowsersGone:
    """A node lost contact with this member; it attaches its browsers again."""

    node: int
    incarnation: int


QuorumCommand = QuorumChange | Inspect | Touch | Browsing | BrowsersGone

CHANGES_NOTHING: Final = (Inspect, Touch, Browsing, BrowsersGone)
"""Declaring a quorum queue again does not renew its lease, as in RabbitMQ."""


def joined(commands: Iterable[QuorumCommand]) -> list[QuorumCommand]:
    """Join as `queues.commands.joined`; consecutive `NodeBatch` of one node become one, too."""
    result: list[QuorumCommand] = []
    for command in joined_publishes(commands):
        if type(command) is NodeBatch:
            _join_batches(result, command)
        else:
            result.append(command)
    return result


def _join_batches(result: list[QuorumCommand], batch: NodeBatch) -> None:
    before = result[-1] if result else None
    commands = joined(batch.commands)
    if (
        type(before) is NodeBatch
        and before.node == batch.node
        and before.incarnation == batch.incarnation
        and before.last + 1 == batch.first
    ):
        result.pop()
        first, heard = before.first, max(before.heard, batch.heard)
        commands = joined([*before.commands, *commands])
    else:
        first, heard = batch.first, batch.heard
    result.append(NodeBatch(batch.node, batch.incarnation, first, batch.last, heard, commands))


@dataclass(slots=True, eq=False)
class Encoded:
    pieces: list[bytes]
    places: list[BodyPlace]
    end: int


@dataclass(frozen=True, slots=True)
class EntryCommands:
    now_ms: int
    first: int
    commands: list[QuorumChange]


def encoded(filters: object | None) -> bytes | None:
    """Return a consumer's filters as the log contains them; None if it wants all messages."""
    if filters is None or isinstance(filters, bytes):
        return filters
    assert isinstance(filters, Filters)
    return None if filters.messages is None else encode_wanted(filters)


FILTERS: Final = as_bytes(lambda filters: encoded(filters) or b"", lambda data: data or None)
_NODE: Final[dict[str, Field]] = {"node": U32, "incarnation": U32}
_BATCH: Final[dict[str, Field]] = _NODE | {"first": U64, "last": U64, "heard": U64}
_BATCH_TAG: Final = 17
_RAISE: Final = 20


def _looks(cursor: Field) -> Many:
    return Many(Layout(SearchResult, consumer=CONSUMER, at=cursor, taken=Many(row(U8, U64))))


_COMMANDS: Final = {
    **OF_SESSIONS,
    **OF_THE_QUEUE,
    5: Layout(
        Subscribe,
        **SUBSCRIPTION,
        name=TEXT,
        filters=FILTERS,
    ),
    14: Layout(DlxSettle, keys=NUMBERS),
    15: Layout(NodeGone, **_NODE),
    16: Layout(SessionGone, session=PEER),
    18: Layout(NodeSuspect, **_NODE),
    19: Layout(NodeBack, **_NODE),
    _RAISE: Layout(RaiseVersion, version=U32),
    21: Layout(Selected, looks=_looks(row(*[U64] * (FAIR_LEVELS + 3)))),
    22: Layout(SelectedInLevels, looks=_looks(Many(U64, tuple))),
}
_COMMAND: Final[OneOf[QuorumChange]] = OneOf("command", _COMMANDS)
_LOGGED: Final[OneOf[QuorumChange]] = OneOf(
    "command of a log",
    _COMMANDS | {_BATCH_TAG: Layout(NodeBatch, **_BATCH, commands=Many(_COMMAND))},
)
_BATCH_HEAD: Final = struct.Struct("<BIIQQQI")
"""The tag of `NodeBatch`, the fields before its commands, and their number."""
_HEAD: Final = struct.Struct("<QQI")
"""The first two fields of an entry, and the number of commands."""
_VERSION: Final = struct.Struct("<I")
_ENTRY: Final[Layout[EntryCommands]] = Layout(EntryCommands, now_ms=U64, first=U64, commands=Many(_LOGGED))


def encode_commands(commands: Sequence[QuorumCommand], now_ms: int, first: int, version: int = 1) -> Encoded:
    """Encode commands as one entry, without those that change nothing. `version`: the machine version in the
    log at this place. All versions encode alike so far. Raises `NewerMachine`.
    """
    if version != machine_version.NEWEST:
        machine_version.check(version)
    pieces = [b""]
    places: list[BodyPlace] = []
    count, _, end = _encode_all(commands, pieces, places, _HEAD.size, first)
    pieces[0] = _HEAD.pack(now_ms, first, count)
    return Encoded(pieces, places, end)


def _encode_all(
    commands: Sequence[QuorumCommand], pieces: list[bytes], places: list[BodyPlace], at: int, first: int
) -> tuple[int, int, int]:
    # Return how many commands were written, and where the next command and its first message are.
    writers = _COMMAND.writers
    count = 0
    for command in commands:
        kind = type(command)
        if kind in CHANGES_NOTHING:
            continue
        count += 1
        start = len(pieces)
        if type(command) is NodeBatch:
            pieces.append(b"")
            inner, at, first = _encode_all(command.commands, pieces, places, at + _BATCH_HEAD.size, first)
            numbers = (command.node, command.incarnation, command.first, command.last, command.heard)
            pieces[start] = _BATCH_HEAD.pack(_BATCH_TAG, *numbers, inner)
            continue
        writers[kind](command, pieces)
        at += sum(map(len, pieces[start:]))
        if type(command) is Publish and (messages := len(command.messages)):
            # The batch follows the fixed fields, the numbers, and its length.
            batch = sum(map(len, pieces[start + 3 :]))
            places.append(BodyPlace(first, messages, at - batch, batch))
            first += messages
    return count, at, first


def decode_commands(payload: bytes) -> EntryCommands:
    return _ENTRY.decode(payload)


def entry_head(payload: bytes, at: int) -> tuple[int, int, int]:
    """Return the time, first index and raised version of the entry at an offset. The version is 0 except for
    a `RaiseVersion`, which is alone in its entry. Raises `BadBytes`.
    """
    try:
        now_ms, first, _ = _HEAD.unpack_from(payload, at)
        at += _HEAD.size
        raised = len(payload) > at and payload[at] == _RAISE
        version: int = _VERSION.unpack_from(payload, at + 1)[0] if raised else 0
    except struct.error as error:
        raise BadBytes(f"an entry is cut off: {error}") from error
    return now_ms, first, version


RELOCATED: Final = 16

ENTRIES: Final = 32
EMPTY: Final = ENTRIES + Kind.EMPTY
COMMANDS: Final = ENTRIES + Kind.COMMAND
CONFIG: Final = ENTRIES + Kind.CONFIG
HARD: Final = 35
STATE: Final = 36
STAGED: Final = 37
INSTALLED: Final = 38
BEGINS: Final = 39

APPLIED: Final = struct.Struct("<Q")
TRANSFER: Final = struct.Struct("<Q")
MEMBER: Final = struct.Struct("<Q")

PLACES: Final[Many] = Many(Layout(BodyPlace, first=U64, messages=U32, at=U32, length=U32))
STATE_OF: Final = row(POINT, REST)
"""The point in the log whose state this is, and the state."""
