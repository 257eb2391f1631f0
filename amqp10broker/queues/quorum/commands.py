"""Commands of a quorum queue beside those of `queues.commands`, from its runtime and from its dead-lettering.

Everything that changes the state of a quorum queue is a command, the passing of time included: these commands
are its log, and the same log makes the same state. Commands that change nothing (`Inspect`, `Touch`) are in
no entry: they are answered between two of them, in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import (
    Cancel,
    Change,
    ConsumerRef,
    Credit,
    GiveBack,
    Inspect,
    PeerId,
    Settle,
    Subscribe,
    Touch,
    Unsubscribe,
)
from amqp10broker.queues.commands import joined as joined_publishes


@dataclass(slots=True, eq=False)
class Letters:
    """A batch of commands of the sessions of one node.

    The node numbers its commands to the queue from 1. The batch is applied only if its first number is the
    next one; otherwise it is ignored without effects, as a repetition or because earlier ones are missing.

    Attributes:
        incarnation: of this start of the node.
        last: number of the last one; ``first - 1``: there is none, and the batch contains `heard` only.
        heard: index of the last entry of which the node has the effects.
        commands: in order; their count may differ from the numbers, since publishes are joined. A command
            that is not of a session of this node and start is not applied.
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
    `QueueSettings.consumer_disconnected_timeout_ms` these are returned, without a failed delivery.
    """

    node: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeBack:
    """A suspected node is reachable again: its consumers go on."""

    node: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node went away, or began again: its consumers and publishers are removed as if their connections had
    been lost, and the numbers of its commands are forgotten. Later commands of it are not applied.
    `incarnation`: this start and those before; consumers and publishers of a later one stay.
    """

    node: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class SessionGone:
    """A session is gone with its consumers and publishers, as if its connection had been lost."""

    session: PeerId


@dataclass(frozen=True, slots=True)
class DlxSettle:
    """Dead messages have been accepted by all their target queues. `keys`: from `QuorumQueue.take_dlx`;
    unknown ones are ignored.
    """

    keys: Sequence[int]


@dataclass(frozen=True, slots=True)
class RaiseVersion:
    """The entries behind this one in the log are encoded and applied by another machine version. It is an
    entry by itself. `version`: from now on; a lower one than before changes nothing.
    """

    version: int


@dataclass(slots=True)
class SearchResult:
    """The leader's search result for one consumer that selects. `at`: its cursor from now on
    (`selecting.Selection`): no message before it is wanted and waits. `taken`: line and key of the messages
    that it gets, in this order; messages that no longer wait there are left out, and those that it may not
    have any more are offered again to all consumers.
    """

    consumer: ConsumerRef
    at: Sequence[int]
    taken: Sequence[tuple[int, int]]


@dataclass(slots=True, eq=False)
class Selected:
    """The leader's search results for consumers that select."""

    looks: Sequence[SearchResult]


@dataclass(slots=True, eq=False)
class SelectedInLevels(Selected):
    """The same for a queue with another number of priorities than two, whose cursors are as much longer."""


QuorumChange = (
    Change | Letters | NodeSuspect | NodeBack | NodeGone | SessionGone | DlxSettle | RaiseVersion | Selected
)


@dataclass(frozen=True, slots=True)
class Browsing:
    """A command of a browsing consumer: not part of the state, and in no entry."""

    command: Subscribe | Credit | Settle | GiveBack | Cancel | Unsubscribe


@dataclass(frozen=True, slots=True)
class BrowsersGone:
    """A node lost contact with this member: its browsers are gone, and it attaches those that exist anew."""

    node: int
    incarnation: int


QuorumCommand = QuorumChange | Inspect | Touch | Browsing | BrowsersGone

CHANGES_NOTHING: Final = (Inspect, Touch, Browsing, BrowsersGone)
"""Declaring a quorum queue again does not renew its lease, as in RabbitMQ."""


def joined(commands: Iterable[QuorumCommand]) -> list[QuorumCommand]:
    """As `queues.commands.joined`, and consecutive `Letters` of one node become one."""
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
