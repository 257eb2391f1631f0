"""What the state of every kind of queue has alike: how it is driven, who publishes to it, and how it ends.

A machine is changed by commands alone, each with its time, and says what follows as effects. The passing of
time is a command too (`Tick`). So a machine can be led by a log, and run without a task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from amqp10broker.message.message import Message
from amqp10broker.queues.commands import (
    ANSWERED_WHEN_GONE,
    DELETE,
    AttachPublisher,
    ConsumerRef,
    Delete,
    PeerId,
    Publish,
    PublisherRef,
    RequestRef,
)
from amqp10broker.queues.counters import QueueCounters
from amqp10broker.queues.effects import (
    Answer,
    DeadLetters,
    Effect,
    QueueDeleted,
    Refusal,
    Unconfirmed,
)
from amqp10broker.queues.figures import QueueFigures, QueueWeight
from amqp10broker.queues.outbox import Outbox
from amqp10broker.queues.outlook import Outlook


class QueueMachine(ABC):
    """The state of one queue. `apply` is the only way to change it, but for what a kind says of its store.

    Attributes:
        name: the queue's name.
        deleted: it is gone; nothing is accepted any more.
        failed: it is gone because of a fault; publishers hear the difference.
        counters: what became of messages.
    """

    def __init__(self, name: str, counters: QueueCounters | None = None) -> None:
        """Nobody is attached.

        Args:
            name: the queue's name.
            counters: to go on with, of a state before this one; None: all are 0.
        """
        self.name = name
        self.counters = counters or QueueCounters()
        self.deleted = False
        self.failed = False
        self._publishers: dict[PublisherRef, None] = {}
        self._outbox = Outbox()
        self._tell = self._outbox.tell

    # --- what it looks like -----------------------------------------------------------------------

    @property
    @abstractmethod
    def ready(self) -> int:
        """Messages waiting for a consumer; of a stream, those that can be read."""

    @property
    def not_handed_out(self) -> int:
        """Messages that go with the queue, beside those that consumers hold."""
        return self.ready

    @property
    @abstractmethod
    def unsettled(self) -> int:
        """Messages handed out and not settled."""

    @property
    @abstractmethod
    def consumers(self) -> int:
        """Links and AMQP 0-9-1 consumers that may get messages."""

    @property
    def publishers(self) -> int:
        """Links whose fixed target this queue is."""
        return len(self._publishers)

    @abstractmethod
    def outlook(self) -> Outlook:
        """What it can tell somebody who waits for it."""

    @abstractmethod
    def figures(self) -> QueueFigures:
        """How the queue stands."""

    def weight(self) -> QueueWeight | None:
        """Bytes of its messages; None: this kind of queue has no such figures."""
        return None

    # --- driving it -------------------------------------------------------------------------------

    @abstractmethod
    def apply(self, command: Any, now_ms: int) -> None:
        """Change the state; effects wait in `take_effects`.

        Args:
            command: what somebody asks: a `Command`, or another that this kind knows.
            now_ms: wall clock. Time never runs back: a time before that of the command before counts as that.
        """

    @abstractmethod
    def deadline(self) -> int | None:
        """When the next `Tick` is due, in ms: 0, which is always past, at once; None: none is."""

    def has_room_for(self, messages: Sequence[Message]) -> bool:
        """Whether it would take all of these now, in one publish."""
        return True

    def take_effects(self) -> dict[PeerId, list[Effect]]:
        """Effects since the last call, in order for each who asked."""
        return self._outbox.take()

    def take_dead_letters(self) -> list[DeadLetters]:
        """Messages to be handed on at most once since the last call, in order."""
        return []

    # --- the end ----------------------------------------------------------------------------------

    def break_down(self, at_work: Iterable[object]) -> None:
        """End because of a fault: nobody can trust the state any more.

        Args:
            at_work: commands of which nobody has heard what became: now they are answered as too late,
                before anybody hears that the queue is gone.
        """
        self.take_effects()
        self.failed = self.deleted = True
        self._break_off()
        for command in at_work:
            if isinstance(command, ANSWERED_WHEN_GONE):
                self.apply(command, 0)
        self._end()

    def _break_off(self) -> None:  # noqa: B027, most kinds have nothing to do
        """A fault has ended this state: what waits to be safe is refused, what is kept is left alone."""

    @abstractmethod
    def _let_go(self) -> None:
        """The queue is gone: consumers are told, and all is forgotten."""

    def _end(self) -> None:
        self.deleted = True
        self._let_go()
        for publisher in self._publishers:
            self._tell(publisher.reply_to, QueueDeleted(publisher, self.name))
        self._publishers.clear()

    def _delete(self, command: Delete = DELETE) -> None:
        refused = None
        if self.deleted:
            refused = Refusal.GONE
        elif command.if_unused and self.consumers:
            refused = Refusal.IN_USE
        elif command.if_empty and self.not_handed_out:
            refused = Refusal.NOT_EMPTY
        if command.request is not None:
            self._answer(command.request, self.not_handed_out, refused)
        if refused is None:
            self._end()

    # --- what all answer alike ----------------------------------------------------------------------

    def _attach(self, command: AttachPublisher) -> None:
        if not self._is_gone_for(command.publisher):
            self._publishers[command.publisher] = None

    def _is_gone_for(self, ref: ConsumerRef | PublisherRef) -> bool:
        """Whether the queue is gone; then whoever comes hears so."""
        if self.deleted:
            self._tell(ref.reply_to, QueueDeleted(ref, self.name))
        return self.deleted

    def _refuse(self, command: Publish, *, failed: bool = False) -> None:
        """A publish comes too late, or cannot be kept.

        Args:
            command: the publish.
            failed: storage did; a queue that did says so anyway.
        """
        publisher, failed = command.publisher, failed or self.failed
        self._tell(
            publisher.reply_to, Unconfirmed(publisher, command.ids, command.settled, failed, self.name)
        )

    @property
    def next_offset(self) -> int | None:
        """Of a stream: of the next message that is published."""
        return None

    def _answer(self, request: RequestRef, count: int, refused: Refusal | None = None) -> Answer:
        """Answer a question about a number of messages; refused in any case if the queue is gone."""
        refused = Refusal.GONE if self.deleted else refused
        answer = Answer(request, count, self.consumers, refused, self.next_offset)
        self._tell(request.reply_to, answer)
        return answer
