"""The entries of a quorum queue's log: the commands, time and first index of messages of a step.

An entry records where its messages begin, so that a message can be read again without decoding the commands.
Every message of an entry has an index, `first` and those behind it, whether the queue accepts it or not:
indexes are known before a command is applied. Commands contain the `PeerId` and handle of their sender, so
that equal commands make equal bytes on every node. Commands without effect are omitted.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.layout import (
    NUMBERS,
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
from amqp10broker.queues import machine_version
from amqp10broker.queues.commands import Publish, Subscribe
from amqp10broker.queues.layouts import CONSUMER, OF_SESSIONS, OF_THE_QUEUE, PEER, SUBSCRIPTION
from amqp10broker.queues.quorum.commands import (
    CHANGES_NOTHING,
    DlxSettle,
    Letters,
    NodeBack,
    NodeGone,
    NodeSuspect,
    QuorumChange,
    QuorumCommand,
    RaiseVersion,
    SearchResult,
    Selected,
    SelectedInLevels,
    SessionGone,
)
from amqp10broker.queues.quorum.ready import FAIR_LEVELS
from amqp10broker.queues.selecting import encoded


class Place(NamedTuple):
    """The position of a run of messages in an entry."""

    first: int
    messages: int
    at: int
    """Offset of the batch from the start of the entry."""
    length: int


@dataclass(slots=True, eq=False)
class Encoded:
    pieces: list[bytes]
    places: list[Place]
    end: int


@dataclass(frozen=True, slots=True)
class EntryCommands:
    now_ms: int
    first: int
    commands: list[QuorumChange]


FILTERS: Final = as_bytes(lambda filters: encoded(filters) or b"", lambda data: data or None)
"""Those of a consumer that selects; the others of a `Subscribe` concern no quorum queue."""
_NODE: Final[dict[str, Field]] = {"node": U32, "incarnation": U32}
_LETTERS: Final[dict[str, Field]] = _NODE | {"first": U64, "last": U64, "heard": U64}
_LETTERS_TAG: Final = 17
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
    "command of a log", _COMMANDS | {_LETTERS_TAG: Layout(Letters, **_LETTERS, commands=Many(_COMMAND))}
)
_LETTERS_HEAD: Final = struct.Struct("<BIIQQQI")
"""The tag of `Letters`, the fields before its commands, and their number."""
_HEAD: Final = struct.Struct("<QQI")
"""The first two fields of an entry, and the number of commands."""
_VERSION: Final = struct.Struct("<I")
_ENTRY: Final[Layout[EntryCommands]] = Layout(EntryCommands, now_ms=U64, first=U64, commands=Many(_LOGGED))


def encode_commands(commands: Sequence[QuorumCommand], now_ms: int, first: int, version: int = 1) -> Encoded:
    """Encode commands as one entry. `commands`: in order. Commands without effect are omitted. `version`: the
    machine version in the log at this place, not the newest of this broker. All versions write alike so far.
    Raises `NewerMachine` if this broker does not support the version.
    """
    machine_version.check(version)
    pieces = [b""]
    places: list[Place] = []
    count, _, end = _encode_all(commands, pieces, places, _HEAD.size, first)
    pieces[0] = _HEAD.pack(now_ms, first, count)
    return Encoded(pieces, places, end)


def _encode_all(
    commands: Sequence[QuorumCommand], pieces: list[bytes], places: list[Place], at: int, first: int
) -> tuple[int, int, int]:
    # Returns how many commands were written, and where the next one and its first message stand.
    writers = _COMMAND.writers
    count = 0
    for command in commands:
        kind = type(command)
        if kind in CHANGES_NOTHING:
            continue
        count += 1
        start = len(pieces)
        if type(command) is Letters:
            pieces.append(b"")
            inner, at, first = _encode_all(command.commands, pieces, places, at + _LETTERS_HEAD.size, first)
            numbers = (command.node, command.incarnation, command.first, command.last, command.heard)
            pieces[start] = _LETTERS_HEAD.pack(_LETTERS_TAG, *numbers, inner)
            continue
        writers[kind](command, pieces)
        at += sum(map(len, pieces[start:]))
        if type(command) is Publish and (messages := len(command.messages)):
            # Behind the fixed fields, the numbers, and the length of the batch.
            batch = sum(map(len, pieces[start + 3 :]))
            places.append(Place(first, messages, at - batch, batch))
            first += messages
    return count, at, first


def decode_commands(payload: bytes) -> EntryCommands:
    """Decode an entry of `encode_commands`. Raises `BadBytes` if the payload is not a valid entry."""
    return _ENTRY.decode(payload)


def entry_head(payload: bytes, at: int) -> tuple[int, int, int]:
    """Return the time, first index and raised version of the entry at an offset. The version is 0 for all
    entries but those of a `RaiseVersion`, which stand alone. Raises `BadBytes` if the entry is cut off.
    """
    try:
        now_ms, first, _ = _HEAD.unpack_from(payload, at)
        at += _HEAD.size
        raised = len(payload) > at and payload[at] == _RAISE
        version: int = _VERSION.unpack_from(payload, at + 1)[0] if raised else 0
    except struct.error as error:
        raise BadBytes(f"an entry is cut off: {error}") from error
    return now_ms, first, version
