"""What a quorum queue is told beside `queues.commands`: by its own shell, and by who hands on dead messages.

Everything that changes the state of a quorum queue is a command, the passing of time too: these commands
are its log, and the same log makes the same state. What changes nothing (`Inspect`, `Touch`) is in no entry
of it: it is answered between two of them, where its sender put it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.message.batch import BATCH_MAX
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


@dataclass(slots=True, eq=False)
class Letters:
    """What the sessions of one node ask, in one go.

    The node numbers its letters to the queue from 1. They are carried out only if the first of these is the
    next one; else nothing is, and nothing is told: they came twice, or some before them are missing.

    Attributes:
        node: number of the node.
        incarnation: of this start of it.
        first: number of the first letter.
        last: number of the last one; ``first - 1``: there is none, and only `heard` is said.
        heard: index of the last entry whose effects the node has.
        commands: in the order of the letters; their number may be another, for publishes are joined. One
            that is not of a session of this node and start is not carried out.
    """

    node: int
    incarnation: int
    first: int
    last: int
    heard: int
    commands: Sequence[QuorumCommand]


@dataclass(frozen=True, slots=True)
class NodeSuspect:
    """A node is not heard of: its consumers get nothing, and keep what they hold.

    After `QueueSettings.consumer_disconnected_timeout_ms` that comes back, without a failed delivery.

    Attributes:
        node: its number.
        incarnation: which start of it.
    """

    node: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeBack:
    """A node that was suspected is heard of again: its consumers go on."""

    node: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node went away, or began again: its consumers and publishers are gone, as if their connections had
    been lost, and its letters are forgotten. What comes of it later is not carried out.

    Attributes:
        node: its number.
        incarnation: this start of it, and those before; who came with a later one stays.
    """

    node: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class SessionGone:
    """One session is gone with all its consumers and publishers, as if its connection had been lost."""

    session: PeerId


@dataclass(frozen=True, slots=True)
class DlxSettle:
    """Dead messages have been taken by all their target queues.

    Attributes:
        keys: as `QuorumQueue.take_dlx` gave them; unknown ones are ignored.
    """

    keys: Sequence[int]


@dataclass(frozen=True, slots=True)
class RaiseVersion:
    """What stands behind this in the log is carried out, and was encoded, by another version of the machine.

    It is an entry by itself.

    Attributes:
        version: from now on; a lower one than before changes nothing.
    """

    version: int


@dataclass(slots=True)
class Look:
    """What the leader found for one consumer that selects.

    Attributes:
        consumer: which.
        at: its cursor from now on (`selecting.Selection`): before it waits nothing more that it wants.
        taken: line and key of what it gets, in this order; what does not wait there any more is left out, and
            what it may not have any more stands again for everybody.
    """

    consumer: ConsumerRef
    at: Sequence[int]
    taken: Sequence[tuple[int, int]]


@dataclass(slots=True, eq=False)
class Selected:
    """The leader has looked through the queue for consumers that select. Of machine version 2 on."""

    looks: Sequence[Look]


QuorumChange = (
    Change | Letters | NodeSuspect | NodeBack | NodeGone | SessionGone | DlxSettle | RaiseVersion | Selected
)
"""What the log says."""


@dataclass(frozen=True, slots=True)
class Browsing:
    """What a consumer asks that is shown messages and takes none: no part of the state, and of no entry."""

    command: Subscribe | Credit | Settle | GiveBack | Cancel | Unsubscribe


@dataclass(frozen=True, slots=True)
class BrowsersGone:
    """Browsers at a node are gone: it has lost touch with this member, and brings those that there are anew.

    Attributes:
        node: its number.
        incarnation: which start of it.
    """

    node: int
    incarnation: int


QuorumCommand = QuorumChange | Inspect | Touch | Browsing | BrowsersGone

CHANGES_NOTHING: Final = (Inspect, Touch, Browsing, BrowsersGone)
"""Declaring a quorum queue again does not renew its lease, as in RabbitMQ."""


def joined(commands: Iterable[QuorumCommand]) -> list[QuorumCommand]:
    """As `queues.commands.joined`; and letters of one node that follow each other are one."""
    result: list[QuorumCommand] = []
    for command in joined_publishes(commands):
        if type(command) is Letters:
            _join_letters(result, command)
        else:
            result.append(command)
    return result


def _join_letters(result: list[QuorumCommand], letters: Letters) -> None:
    before = result[-1] if result else None
    commands = joined(letters.commands)
    if (
        type(before) is Letters
        and before.node == letters.node
        and before.incarnation == letters.incarnation
        and before.last + 1 == letters.first
    ):
        result.pop()
        first, heard = before.first, max(before.heard, letters.heard)
        commands = joined([*before.commands, *commands])
    else:
        first, heard = letters.first, letters.heard
    result.append(Letters(letters.node, letters.incarnation, first, letters.last, heard, commands))


def split(commands: Sequence[QuorumCommand]) -> Sequence[QuorumCommand]:
    """The same commands, with publishes of more messages than a batch holds in parts."""
    if not any(map(_is_long, commands)):
        return commands
    parts: list[QuorumCommand] = []
    for each in commands:
        if type(each) is Letters:
            inner = split(each.commands)
            parts.append(Letters(each.node, each.incarnation, each.first, each.last, each.heard, inner))
        elif type(each) is Publish:
            for at in range(0, max(1, len(each.messages)), BATCH_MAX):
                part = slice(at, at + BATCH_MAX)
                parts.append(Publish(each.publisher, each.ids[part], each.messages[part], each.settled))
        else:
            parts.append(each)
    return parts


def _is_long(command: QuorumCommand) -> bool:
    if type(command) is Letters:
        return any(map(_is_long, command.commands))
    return type(command) is Publish and len(command.messages) > BATCH_MAX
