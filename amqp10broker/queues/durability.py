"""The base class of queues' durability backends, which stores nothing itself.

The queue's task (`runtime.queues.queue_task`) calls five methods: `recover` once, then in each step::

    apply     let the machine apply commands
    flush     write what was decided, and see what is durable
    publish   send effects that may be sent by now

and `close` when it ends. No method waits: a completed operation calls `wake`, and the next step goes on with
it. Commits over several queues call `catch_up`, then `takes_part`, then `apply_part`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from amqp10broker.queues.admission import Admission
from amqp10broker.queues.commands import Command, PeerId
from amqp10broker.queues.effects import DeadLetters, Effect
from amqp10broker.queues.journal import Commits
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.queue_status import QueueProgress, QueueStatus

MachineT = TypeVar("MachineT", bound=QueueMachine)


class EffectBatch(NamedTuple):
    """Effects to send. `dead`: dead letters to hand on at least once. `index`: of the last entry of a log
    that made them; 0: of none.
    """

    effects: dict[PeerId, list[Effect]]
    dead_letters: Sequence[DeadLetters] = ()
    dead: Sequence[Any] = ()
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which is not needed


Wake = Callable[[], None]
PublishEffects = Callable[[EffectBatch], None]


class DurabilityBackend(Generic[MachineT]):
    """A backend without storage: effects are sent at once. `by_log`: commands are applied in `flush`, in the
    order of a log; until then the backend holds them. `durable`: what it stores survives a restart.
    `recovered`: the machine has its former state. `due_ms`: when `flush` must be called without a command.
    """

    by_log: ClassVar[bool] = False

    def __init__(
        self, queue: MachineT, wake: Wake, publish: PublishEffects, commits: Commits | None = None
    ) -> None:
        self.queue = queue
        self.admission = Admission(commits, wake)
        self.durable = commits is not None
        self.recovered = not self.durable
        self.due_ms: int | None = None
        self.wake = wake
        self._publish = publish

    def recover(self, now_ms: int) -> Iterator[int]:
        """Recover the former state, when the journal has been read; yields bytes read, in steps. Raises
        `StorageError` if it is damaged, or cannot be read; the broker must stop.
        """
        return iter(())

    def apply(self, commands: list[Command], now_ms: int) -> None:
        apply = self.queue.apply
        for command in commands:
            apply(command, now_ms)

    def flush(self, now_ms: int) -> None:
        """Write what was decided, and check what is durable."""

    def publish(self) -> None:
        """Send the effects that may be sent."""
        self._publish(EffectBatch(self.queue.take_effects(), self.queue.take_dead_letters()))

    def close(self) -> None:
        """Release resources when the task ends."""

    # --- commits over several queues --------------------------------------------------------------

    @property
    def transacts(self) -> bool:
        """Whether the queue may take part."""
        return True

    @property
    def starting(self) -> bool:
        """Whether it cannot take part yet; the end of this is followed by a step."""
        return False

    def recover_parts(self) -> None:
        """Apply what the journal has for a queue with files of its own, when both have been read."""

    def catch_up(self) -> None:
        """Apply pending commands now, so that a commit comes behind them."""

    def takes_part(self, size: int) -> bool:
        """Return whether the next commit, of so many bytes, can be applied and stored."""
        return not self.admission.holds

    def apply_part(self, commands: list[Command], now_ms: int) -> None:
        """Apply and store the queue's part of a commit: the journal joins it with the others."""
        self.apply(commands, now_ms)
        self.flush(now_ms)

    @property
    def busy(self) -> bool:
        """Whether there are effects that have not been sent."""
        return False

    @property
    def shared(self) -> bool:
        """Whether other nodes have the queue too, and go on with it if this one cannot."""
        return False

    def deadline(self) -> int | None:
        """Return when time has to pass for the queue, in ms (`QueueMachine.deadline`)."""
        due_ms: int | None = self.queue.deadline()
        return due_ms

    def applied_in_step(self, commands: list[Command]) -> Sequence[Command] | None:
        """Return those of the commands that were applied now; None: another node sends their effects."""
        return commands

    def queue_status(self) -> QueueStatus:
        return self.admission.with_waiting(self.queue.queue_status())

    def progress(self, *, busy: bool) -> QueueProgress:
        """Return the reasons that keep the queue from going on."""
        return QueueProgress(busy)

    def delete(self) -> None:
        """Remove everything that is stored of a deleted queue; idempotent."""

    def storage_failed(self) -> None:
        """Refuse publishes that are not safe, since storage has failed."""

    def abandon(self) -> list[Command]:
        """Give up the machine after a fault; the queue stays down, and its records are for the next start.
        Returns commands that were not applied, which the caller has to answer.
        """
        return []

    def restart(self) -> None:
        """Replace the machine after a fault by another, which `recover` fills (`queues.AFTER_FAULT`)."""
        raise AssertionError("a queue of this kind stays down after a fault")
