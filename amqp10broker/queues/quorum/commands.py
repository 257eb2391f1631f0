"""What a quorum queue is told beside `queues.commands`: by its own shell, and by who hands on dead messages.

Everything that changes the state of a quorum queue is a command, the passing of time too: these commands
are its log, and the same log makes the same state. What changes nothing (`Inspect`, `Touch`) is in no entry
of it: it is answered between two of them, where its sender put it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from amqp10broker.message.message import Message
from amqp10broker.queues.commands import Change, Inspect, PeerId, Publish, Touch


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node went away, or began again: its consumers and publishers are gone, as if their connections had
    been lost.

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


QuorumChange = Change | NodeGone | SessionGone | DlxSettle
"""What the log says."""

QuorumCommand = QuorumChange | Inspect | Touch

CHANGES_NOTHING: Final = (Inspect, Touch)
"""Declaring a quorum queue again does not renew its lease, as in RabbitMQ."""

JOINED_MAX: Final = 4096
"""Publishes are joined until they have so many messages."""


def joined(commands: Iterable[QuorumCommand]) -> list[QuorumCommand]:
    """The same commands, with publishes of one publisher that follow each other as one.

    To the queue that is the same, and each command costs as much as some tens of messages do.
    """
    result: list[QuorumCommand] = []
    last: Publish | None = None
    ids: list[int] = []
    messages: list[Message] = []
    for command in commands:
        if type(command) is not Publish:
            last = None
        elif (
            last is not None
            and command.publisher == last.publisher
            and command.settled is last.settled
            and len(last.messages) < JOINED_MAX
        ):
            if last.messages is not messages:
                # What others gave is not changed.
                ids, messages = [*last.ids], [*last.messages]
                last = result[-1] = Publish(last.publisher, ids, messages, last.settled)
            ids += command.ids
            messages += command.messages
            continue
        else:
            last = command
        result.append(command)
    return result
