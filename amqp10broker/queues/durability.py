"""The base class of queues' durability backends, which stores nothing itself, and the admission of publishes.

The queue's task (`runtime.queues.queue_task`) calls five methods: `recover` once, then in each step::

    apply     let the machine apply commands
    flush     write the decisions, and check what is durable
    publish   send effects that may be sent by now

and `close` when it ends. No method waits: a completed operation calls `wake`, and the next step continues
with it. Commits over several queues call `catch_up`, then `takes_part`, then `apply_part`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

from amqp10broker.queues.classic.backlog import content_bytes
from amqp10broker.queues.commands import Command, DeadLetters, Effect, PeerId, Publish
from amqp10broker.queues.journal import Commits
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.queue_status import QueueProgress, QueueStatus
from amqp10broker.queues.quorum.commands import NodeBatch, QuorumCommand


class Admission:
    """Holds publishes while the disk is full, and lets all other commands pass.

    Published messages need room permanently. Settlements, credit and other records help to make room, and
    have a reserve (`storage.journal`).
    """

    __slots__ = ("_asked", "_room", "_since_ms", "_wake", "waiting")

    def __init__(self, room: Commits | None, wake: Callable[[], None]) -> None:
        self.waiting: list[Publish] = []
        self._room = room
        self._wake = wake
        self._asked = False  # a wake-up is registered
        self._since_ms = 0

    def admitted(self, commands: list[Command], now_ms: int) -> list[Command]:
        """Return the commands that may be applied now, including those that waited. Raises `StorageError`."""
        room = self._room
        if room is None or not room.journal.reserve:
            return commands
        asking = [command for command in commands if isinstance(command, Publish)]
        before = len(self.waiting)
        if not (asking or before):
            return commands
        if before:
            asking = [*self.waiting, *asking]
        count = size = 0
        for publish in asking:
            last = content_bytes(publish.messages)
            size += last
            if not room.journal.admits(size, last):
                break
            count += 1
        admitted: list[Command] = [*asking[: min(before, count)]]
        self.waiting = asking[count:]
        if not self.waiting:
            return [*admitted, *commands] if before else commands
        if not before:
            self._since_ms = now_ms
        self._ask_for_room(room)
        left = max(0, count - before)
        for command in commands:
            if isinstance(command, Publish):
                left -= 1
                if left < 0:
                    continue
            admitted.append(command)
        return admitted

    @property
    def holds(self) -> bool:
        return bool(self.waiting)

    def _ask_for_room(self, room: Commits) -> None:
        if not self._asked:
            self._asked = True
            room.when_room(self._room_again)

    def _room_again(self) -> None:
        self._asked = False
        if self.waiting:
            self._wake()

    def with_waiting(self, queue_status: QueueStatus) -> QueueStatus:
        if not self.waiting:
            return queue_status
        since_ms = queue_status.unconfirmed_ms
        return replace(
            queue_status,
            unconfirmed=queue_status.unconfirmed + sum(len(publish.ids) for publish in self.waiting),
            unconfirmed_ms=self._since_ms if since_ms is None else min(self._since_ms, since_ms),
        )

    def take(self) -> list[Publish]:
        """Remove and return all waiting publishes of a queue that was deleted or fails."""
        waiting, self.waiting = self.waiting, []
        if waiting and self._room is not None:
            # The refused request may have been this one. Other waiting queues repeat theirs.
            self._room.journal.withdraw()
        return waiting


# The commands of a node are applied in order, or not at all (`NodeBatch`). So the leader does not hold
# publishes back itself, with all commands behind them. It drops batches with publishes and all later batches
# of that node, and the node holds its publishes back and sends the rest again.


class LinkAdmission(Admission):
    """The admission of a queue with members on several nodes. `on_refused`: called with node, incarnation and
    number of the first dropped command.
    """

    __slots__ = ("_dropped", "_refuses", "on_refused", "on_room")

    def __init__(self, room: Commits | None, wake: Callable[[], None]) -> None:
        super().__init__(room, wake)
        self.on_refused: Callable[[int, int, int], None] = lambda node, incarnation, first: None
        self.on_room: Callable[[], None] = lambda: None
        self._refuses = False
        # (Node, incarnation) -> the number of the batch with which the node has to continue.
        self._dropped: dict[tuple[int, int], int] = {}

    @property
    def holds(self) -> bool:
        return self._refuses or super().holds

    def admitted(self, commands: list[Command], now_ms: int) -> list[Command]:
        room = self._room
        posted = cast("list[QuorumCommand]", commands)
        if room is None or not room.journal.reserve or not any(type(each) is NodeBatch for each in posted):
            return super().admitted(commands, now_ms)
        size = 0
        refused: dict[tuple[int, int], int] = {}
        taken: list[QuorumCommand] = []
        for command in posted:
            if type(command) is NodeBatch:
                link = command.node, command.incarnation
                if self._dropped.get(link, command.first) != command.first:
                    continue
                more = _published_bytes(command.commands)
                size += more
                if more and not room.journal.admits(size, more):
                    size -= more
                    refused[link] = self._dropped[link] = command.first
                    continue
                self._dropped.pop(link, None)
            taken.append(command)
        if refused:
            self._refuses = True
            self._ask_for_room(room)
            for link, first in refused.items():
                self.on_refused(*link, first)
        return super().admitted(cast("list[Command]", taken), now_ms)

    def _room_again(self) -> None:
        super()._room_again()
        if self._refuses:
            self._refuses = False
            self.on_room()

    def follow(self) -> None:
        self._dropped.clear()
        if self._refuses:
            self._refuses = False
            if self._room is not None:
                self._room.journal.withdraw()

    def take(self) -> list[Publish]:
        self.follow()
        return super().take()


def _published_bytes(commands: Sequence[QuorumCommand]) -> int:
    return sum(content_bytes(each.messages) for each in commands if type(each) is Publish)


MachineT = TypeVar("MachineT", bound=QueueMachine)


class EffectBatch(NamedTuple):
    """Effects to send. `dead`: dead letters to forward at least once. `index`: that of the last log entry
    that made them; 0: none.
    """

    effects: dict[PeerId, list[Effect]]
    dead_letters: Sequence[DeadLetters] = ()
    dead: Sequence[Any] = ()
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which is not needed


Wake = Callable[[], None]
PublishEffects = Callable[[EffectBatch], None]


class DurabilityBackend(Generic[MachineT]):
    """A backend without storage: effects are sent at once.

    Attributes:
        by_log: commands are applied in `flush`, in the order of a log.
        durable: what it stores survives a restart.
        recovered: the machine has its former state.
        due_ms: when `flush` must be called without a command.
    """

    __slots__ = ("_publish", "admission", "due_ms", "durable", "queue", "recovered", "wake")

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
        """Recover the former state, when the journal has been read; yield the number of bytes read, in steps.
        Raises `StorageError`; the broker must stop then.
        """
        return iter(())

    def apply(self, commands: list[Command], now_ms: int) -> None:
        apply = self.queue.apply
        for command in commands:
            apply(command, now_ms)

    def flush(self, now_ms: int) -> None:
        """Write the decisions, and check what is durable."""

    def publish(self) -> None:
        self._publish(EffectBatch(self.queue.take_effects(), self.queue.take_dead_letters()))

    def close(self) -> None: ...

    # --- commits over several queues --------------------------------------------------------------

    @property
    def transacts(self) -> bool:
        """Whether the queue may take part."""
        return True

    @property
    def starting(self) -> bool:
        """Whether the queue cannot take part yet; a step runs when that ends."""
        return False

    def recover_parts(self) -> None:
        """Apply what the journal has for a queue with files of its own, when both have been read."""

    def catch_up(self) -> None:
        """Apply pending commands now, so that a commit follows them."""

    def takes_part(self, size: int) -> bool:
        """Return whether the next commit, of so many bytes, can be applied and stored."""
        return not self.admission.holds

    def apply_part(self, commands: list[Command], now_ms: int) -> None:
        """Apply and store the queue's part of a commit: the journal joins it with the others."""
        self.apply(commands, now_ms)
        self.flush(now_ms)

    @property
    def busy(self) -> bool:
        return False

    @property
    def shared(self) -> bool:
        """Whether other nodes have the queue too, and continue with it if this node cannot."""
        return False

    def deadline(self) -> int | None:
        due_ms: int | None = self.queue.deadline()
        return due_ms

    def applied_in_step(self, commands: list[Command]) -> Sequence[Command] | None:
        """Return those of the commands that were applied now; None: another node sends their effects."""
        return commands

    def queue_status(self) -> QueueStatus:
        return self.admission.with_waiting(self.queue.queue_status())

    def progress(self, *, busy: bool) -> QueueProgress:
        return QueueProgress(busy)

    def delete(self) -> None: ...

    def storage_failed(self) -> None:
        """Refuse publishes that are not durable, because storage has failed."""

    def abandon(self) -> list[Command]:
        """Give up the machine after a fault. Its records are left to the next start. Returns commands that
        were not applied, which the caller has to answer.
        """
        return []

    def restart(self) -> None:
        """Replace the machine after a fault by another, which `recover` fills (`queues.AFTER_FAULT`)."""
        raise AssertionError("a queue of this kind stays down after a fault")
