"""Commits: the parts of a transaction in several queues are applied between two awaits, and stored as one
group.

The committing task works for each queue, whose own task is at rest between two awaits of a single-threaded
program. First each queue executes its earlier commands; then each checks its part; then all apply, and the
journal's records are one group (`storage.journal.Journal.together`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Final

from amqp10broker.errors import StorageError
from amqp10broker.metadata.queue import QueueCommand, QueueHandle
from amqp10broker.queues.commands import Command, Publish, RequestRef, Settle
from amqp10broker.runtime.journal.journal_task import JournalTask
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.queues.handles import send_commands
from amqp10broker.runtime.queues.queue_task import Participant, QueueTask
from amqp10broker.sessions.commits import NoRoom, NotYet, Part
from amqp10broker.sessions.messages import Committed, SessionMessage

MESSAGE_BYTES: Final = 64
"""Of a message beyond its contents, and of a decision, in a record: at most."""


class SessionCommits:
    def __init__(self, inbox: Mailbox[SessionMessage], journal_task: JournalTask | None) -> None:
        self._inbox = inbox
        self._journal_task = journal_task
        self.safe = True

    def takes(self, handle: QueueHandle) -> bool:
        task = handle.task if isinstance(handle, Participant) else None
        return task is not None and task.backend.transacts

    def commit(
        self,
        mail: Sequence[QueueCommand],
        parts: Sequence[Part],
        ref: RequestRef | None = None,
        also: Callable[[], None] | None = None,
    ) -> str | None:
        send_commands(list(mail))
        work: dict[Participant, tuple[QueueTask, list[Command]]] = {}
        for handle, command in parts:
            assert isinstance(handle, Participant)
            if handle.task is None:
                return "a queue has left this node"
            work.setdefault(handle, (handle.task, []))[1].append(command)
        for task, _ in work.values():
            task.catch_up()
        starting = next((task for handle, (task, _) in work.items() if handle.starting), None)
        if starting is not None:
            return NotYet(f"queue '{starting.queue.name}' is not ready yet")
        why = self._refusal([*work.values()])
        if why is not None:
            return why
        there = {handle: part for handle, part in work.items() if not part[0].queue.deleted}
        kept = any(task.backend.durable for task, _ in there.values())
        journal = None if self._journal_task is None or not kept else self._journal_task.journal
        with nullcontext() if journal is None else journal.together():
            for each, (_, commands) in there.items():
                each.decide_within(commands)
            if also is not None and journal is not None:
                also()
        for task, _ in there.values():
            task.tell_decided()
        self.safe = journal is None
        if ref is not None and journal is not None and self._journal_task is not None:
            self._journal_task.when_durable(journal.ticket, partial(self._inbox.put, Committed(ref)))
        return None

    def when_ready(self, parts: Sequence[Part], ref: RequestRef) -> None:
        starting = next(each for each, _ in parts if isinstance(each, Participant) and each.starting)
        assert starting.task is not None, "it has one that starts"
        starting.task.awaiting.append(partial(self._inbox.put, Committed(ref)))

    def _refusal(self, work: Sequence[tuple[QueueTask, Sequence[Command]]]) -> str | None:
        size = 0
        for task, commands in work:
            publishes = [command for command in commands if isinstance(command, Publish)]
            name, backend = task.queue.name, task.backend
            messages = [*chain.from_iterable(publish.messages for publish in publishes)]
            if not task.begun.is_set() or task.failed or (publishes and task.queue.deleted):
                return f"queue '{name}' was deleted, or has broken down"
            bytes_ = _bytes_of(commands)
            if not task.queue.deleted and not backend.takes_part(bytes_):
                return f"queue '{name}' cannot write at present"
            if publishes and not task.queue.has_room_for(messages):
                return NoRoom(f"queue '{name}' would exceed its maximum length")
            if backend.durable:
                size += bytes_
        if not size or self._journal_task is None or not self._journal_task.journal.reserve:
            return None
        try:
            admitted = self._journal_task.journal.admits(size, 0)
        except StorageError as error:
            return str(error)
        return None if admitted else "the disk is full"


def _bytes_of(commands: Sequence[Command]) -> int:
    size = 0
    for command in commands:
        if isinstance(command, Publish):
            size += sum(map(len, chain.from_iterable(command.messages)))
            size += MESSAGE_BYTES * len(command.messages)
        elif isinstance(command, Settle):
            size += MESSAGE_BYTES * len(command.keys)
    return size
