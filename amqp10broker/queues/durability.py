"""The base class of queues' durability backends, which stores nothing itself.

The queue's task (`runtime.queues.queue_task`) calls it in this order, once a step::

    admission   which publishes there is room for
    carry_out   let the machine apply commands
    keep        write what was decided, and see what is durable
    tell        send effects that may be sent by now

No method waits: a completed operation calls `wake`, and the next step goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from amqp10broker.queues.admission import Admission
from amqp10broker.queues.commands import Command, PeerId
from amqp10broker.queues.effects import DeadLetters, Effect
from amqp10broker.queues.journal import Commits
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.outlook import QueueProgress, QueueStatus

MachineT = TypeVar("MachineT", bound=QueueMachine)


class HandOver(Protocol):
    """Sends the results of a queue's step."""

    def __call__(
        self,
        effects: Mapping[PeerId, list[Effect]],
        dead_letters: Sequence[DeadLetters] = (),
        dead: Sequence[Any] = (),
        *,
        index: int = 0,
    ) -> None: ...


class DurabilityBackend(Generic[MachineT]):
    """A backend without storage: effects are sent at once. `by_log`: commands are applied in `keep`, in the
    order of a log; until then the backend holds them. `due_ms`: when `keep` must be called without a command;
    None: not needed.
    """

    __slots__ = ("admission", "due_ms", "hand_over", "kept", "queue", "recovered", "wake")

    by_log: ClassVar[bool] = False
    wake: Callable[[], None]
    hand_over: HandOver

    def __init__(self, queue: MachineT, commits: Commits | None = None) -> None:
        self.queue = queue
        self.admission = Admission(commits, lambda: self.wake())
        self.kept = commits is not None
        self.recovered = not self.kept
        self.due_ms: int | None = None

    @property
    def busy(self) -> bool:
        """Whether there are effects that have not been sent."""
        return False

    def deadline(self) -> int | None:
        """Return when time has to pass for the queue, in ms (`QueueMachine.deadline`)."""
        due_ms: int | None = self.queue.deadline()
        return due_ms

    @property
    def tells(self) -> bool:
        """Whether effects are sent by this node, and not by another one."""
        return True

    @property
    def shared(self) -> bool:
        """Whether other nodes have the queue too, and go on with it if this one cannot."""
        return False

    def carried_out(self, commands: list[Command]) -> Sequence[Command]:
        """Return the commands that were applied in this step, of those that it was given."""
        return commands

    def unanswered(self) -> list[Command]:
        """Return commands that were not applied; the caller has to answer them."""
        return []

    def recover(self, now_ms: int) -> Iterator[int]:
        """Recover the former state, when the journal has been read; yields bytes read, in steps. Raises
        `StorageError` if it is damaged, or cannot be read; the broker must stop.
        """
        return iter(())

    def go_on(self) -> None:
        """Apply what the journal has for a queue with files of its own, when both have been read."""

    def carry_out(self, commands: list[Command], now_ms: int) -> None:
        apply = self.queue.apply
        for command in commands:
            apply(command, now_ms)

    @property
    def transacts(self) -> bool:
        """Whether the queue may take part in a commit over several queues."""
        return True

    @property
    def starting(self) -> bool:
        """Whether it cannot take part yet; the end of this is followed by a step."""
        return False

    def release_reader(self) -> None:
        """Apply pending commands now, so that a commit comes behind them."""

    def takes_part(self, size: int) -> bool:
        """Return whether the next commit can be applied and stored."""
        return not self.admission.holds

    def carry_out_part(self, commands: list[Command], now_ms: int) -> None:
        """Apply and store the queue's part of a commit at once: the journal joins it with the other queues'
        parts.
        """
        self.carry_out(commands, now_ms)
        self.keep(now_ms)

    def delete(self) -> None:
        """Remove everything that is stored of a deleted queue; idempotent."""

    def keep(self, now_ms: int) -> None:
        """Write what was decided, and check what is durable."""

    def tell(self) -> None:
        """Send the effects that may be sent."""
        queue = self.queue
        self.hand_over(queue.take_effects(), queue.take_dead_letters())

    def close(self) -> None:
        """Release resources when the task ends."""

    def end(self) -> None:
        """Release resources of a queue that is gone, or stays down, and has no task any more."""

    def queue_status(self) -> QueueStatus:
        return self.admission.told(self.queue.queue_status())

    def progress(self, *, busy: bool) -> QueueProgress:
        """Return the reasons that keep the queue from going on."""
        return QueueProgress(busy)

    def storage_failed(self) -> None:
        """Refuse publishes that are not safe, since storage has failed."""

    def abandon(self) -> None:
        """Give up the machine after a fault; the queue stays down, and its records are for the next start."""

    def restart(self) -> None:
        """Replace the machine after a fault by another, which `recover` fills.

        Used only for kinds of `runtime.queues.queues.AFTER_FAULT`.
        """
        raise NotImplementedError
