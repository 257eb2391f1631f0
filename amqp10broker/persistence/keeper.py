"""How a queue keeps what it decides, and when it may tell of it: a `Keeper`, which here keeps nothing.

The queue's task (`tasks.queue_task`) asks it, in this order, once a wake::

    admission   which publishes there is room for
    carry_out   have the machine carry commands out
    keep        have what was decided written, and see what is durable
    tell        hand over what may be told by now

Nothing here waits: what must be waited for calls `wake`, and the next wake goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from amqp10broker.persistence.admission import Admission, Room
from amqp10broker.queues.commands import Command, PeerId
from amqp10broker.queues.effects import DeadLetters, Effect
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.outlook import Outlook, Progress

MachineT = TypeVar("MachineT", bound=QueueMachine)


class Commits(Room, Protocol):
    """The node's journal, for those who have records in it, and when these are durable."""

    def when_durable(self, ticket: int, callback: Callable[[], None]) -> None:
        """Have a function called when a ticket is durable; never, if storage fails."""

    def write_early(self) -> int:
        """Have what was appended written, as far as that can be done now: the ticket up to which it is.

        Call `write_soon` too, or it stays unsynced until somebody asks for more.

        Raises:
            StorageError: the journal cannot be written.
        """

    def write_soon(self) -> None:
        """Something was appended for which nobody waits: it is synced soon."""

    def forget(self, group: int) -> None:
        """A queue is gone."""

    def abandoned(self, group: int) -> None:
        """A queue failed, and its records are for the next start: until then nothing is cleaned."""

    def progress(self, *, busy: bool, waits: bool) -> Progress:
        """What keeps a queue from getting on.

        Args:
            busy: it has letters that it has not come to.
            waits: it waits for something to be durable.
        """


class HandOver(Protocol):
    """Gives what was decided to whom it concerns."""

    def __call__(
        self,
        effects: Mapping[PeerId, list[Effect]],
        dead_letters: Sequence[DeadLetters] = (),
        dead: Sequence[Any] = (),
        *,
        index: int = 0,
    ) -> None:
        """Answers, messages to be handed on at most once, and those to be forwarded at least once.

        Args:
            effects: the answers.
            dead_letters: at most once.
            dead: at least once.
            index: of the log's entry that did all this; 0: there is no log.
        """


class Keeper(Generic[MachineT]):
    """Keeps nothing: what was decided is told at once.

    Attributes:
        by_log: what is asked is carried out when a log says so, in `keep`; until then it is the keeper's.
        queue: the machine.
        admission: what waits for room on the disk.
        kept: what the queue has is there after a restart.
        recovered: it has what it had before the start, and may decide.
        due_ms: when `keep` is to be called without a letter; None: it need not.
        wake: has `keep` and `tell` called soon, though there may be no letter.
        hand_over: tells.
    """

    __slots__ = ("admission", "due_ms", "hand_over", "kept", "queue", "recovered", "wake")

    by_log: ClassVar[bool] = False
    wake: Callable[[], None]
    hand_over: HandOver

    def __init__(self, queue: MachineT, commits: Commits | None = None) -> None:
        """Keep for a queue.

        Args:
            queue: new, or to be recovered.
            commits: has the journal, if it is kept there.
        """
        self.queue = queue
        self.admission = Admission(commits, lambda: self.wake())
        self.kept = commits is not None
        self.recovered = not self.kept
        self.due_ms: int | None = None

    @property
    def busy(self) -> bool:
        """Whether something was decided that has not been told."""
        return False

    def deadline(self) -> int | None:
        """When time is to pass for the queue, in ms (see `QueueMachine.deadline`)."""
        due_ms: int | None = self.queue.deadline()
        return due_ms

    @property
    def tells(self) -> bool:
        """What is decided here is told here: it is not another node's business."""
        return True

    @property
    def shared(self) -> bool:
        """Others have the queue too, and go on with it if this one cannot."""
        return False

    def carried_out(self, commands: list[Command]) -> Sequence[Command]:
        """What was carried out in this wake.

        Args:
            commands: what it was given.
        """
        return commands

    def unheard(self) -> list[Command]:
        """What was asked and is not carried out: whoever asks for it answers it from now on."""
        return []

    def recover(self, now_ms: int) -> Iterator[int]:
        """Begin with what was there before the start, when the journal has been read: bytes read, in steps.

        Raises:
            StorageError: it is damaged, or cannot be read; the broker must stop.
        """
        return iter(())

    def go_on(self) -> None:
        """Begin with what the journal has for a queue with files of its own, when both have been read."""

    def carry_out(self, commands: list[Command], now_ms: int) -> None:
        """Have commands carried out."""
        apply = self.queue.apply
        for command in commands:
            apply(command, now_ms)

    # --- parts of commits over several queues (`service.commits`)

    @property
    def transacts(self) -> bool:
        """Whether the queue may have a part in a commit."""
        return True

    @property
    def starting(self) -> bool:
        """Whether it takes no part because it has to get ready, which it tells in a wake."""
        return False

    def hasten(self) -> None:
        """Carry out what was asked and would be carried out later, so that a commit comes behind it."""

    def takes_part(self, size: int) -> bool:
        """Whether the next commit can be carried out and kept.

        Args:
            size: about its bytes here.
        """
        return not self.admission.holds

    def carry_out_part(self, commands: list[Command], now_ms: int) -> None:
        """Carry out the queue's part of a commit, and have it kept, both now: the journal makes it one with
        the other queues' parts."""
        self.carry_out(commands, now_ms)
        self.keep(now_ms)

    def delete(self) -> None:
        """The queue is gone: nothing of it need be kept. Perhaps again."""

    def keep(self, now_ms: int) -> None:
        """Have what was decided written, and look what is durable."""

    def tell(self) -> None:
        """Hand over what may be told."""
        queue = self.queue
        self.hand_over(queue.take_effects(), queue.take_dead_letters())

    def close(self) -> None:
        """The task ends, for whatever reason."""

    def end(self) -> None:
        """The queue is gone, or stays down: it has no task any more."""

    def outlook(self) -> Outlook:
        """What the queue can tell somebody who waits for it."""
        return self.admission.told(self.queue.outlook())

    def progress(self, *, busy: bool) -> Progress:
        """What keeps the queue from getting on.

        Args:
            busy: it has letters that it has not come to.
        """
        return Progress(busy)

    def storage_failed(self) -> None:
        """Nothing can be kept any more: publishers whose messages are not safe hear so."""

    def abandon(self) -> None:
        """The machine cannot be trusted, and the queue stays down: what is kept is for the next start."""

    def begin_again(self) -> None:
        """The machine cannot be trusted: go on with another, that `recover` fills.

        Asked only of kinds that begin again after a fault (`tasks.queues.AFTER_FAULT`).
        """
        raise NotImplementedError
