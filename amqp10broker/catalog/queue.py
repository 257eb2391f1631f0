"""One declared queue, and what the catalog needs of whoever runs it.

The catalog neither starts queues nor talks to them: a `QueueHost`, which the living room implements,
starts one from a `QueueSpec` and gives back the `QueueHandle` by which everybody reaches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from amqp10broker.queues.commands import Command


class QueueType(StrEnum):
    """The kinds of queue, as ``x-queue-type`` names them."""

    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"

    @property
    def module(self) -> str:
        """The kind's name in refusals, which is RabbitMQ's module name: ``rabbit_classic_queue``."""
        return f"rabbit_{self.value}_queue"


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """What a `QueueHost` must know to run a queue.

    Attributes:
        vhost: the virtual host it is in.
        name: unique in the virtual host.
        type: ``classic`` or ``quorum``.
        durable: it survives a restart of the broker.
        exclusive: it goes with the connection that declared it.
        auto_delete: it goes with its last consumer.
        arguments: checked x-arguments by name; ``x-queue-type`` is always among them.
    """

    vhost: str
    name: str
    type: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Mapping[str, Any]


class QueueHandle(Protocol):
    """Where letters to a queue are put. Never waits: what may be outstanding is bounded by credit."""

    def post(self, command: Command) -> None:
        """Put one letter."""

    def counts(self) -> dict[str, Any]:
        """What `status` shows: messages_ready, messages_unsettled, consumers, publishers."""


class QueueHost(Protocol):
    """Who runs queues."""

    def start_queue(self, queue: QueueSpec) -> QueueHandle:
        """Begin to run an empty queue."""


@dataclass(frozen=True, slots=True, eq=False)
class DeclaredQueue:
    """One queue. Compared by identity: one that was deleted and declared anew is another queue.

    Attributes:
        name: unique in the virtual host.
        vhost: name of the virtual host.
        type: ``classic`` or ``quorum``.
        durable: as declared; an exclusive queue never is.
        owner: the connection that has it exclusively, None if anyone may use it.
        auto_delete: it goes with its last consumer.
        arguments: x-arguments by name, ``x-queue-type`` always among them. Not to be changed.
        handle: where its letters go.
    """

    name: str
    vhost: str
    type: str
    durable: bool
    owner: object | None
    auto_delete: bool
    arguments: Mapping[str, Any]
    handle: QueueHandle

    @property
    def exclusive(self) -> bool:
        """Whether one connection has it for itself."""
        return self.owner is not None
