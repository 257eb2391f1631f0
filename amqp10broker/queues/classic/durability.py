"""The durability backend of a durable classic queue: messages are confirmed when they are durable.

With another `confirm_when` they are confirmed when they have been written, and survive the end of the process
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from amqp10broker.queues.classic.journal_store import ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.durability import DurabilityBackend, PublishEffects, Wake
from amqp10broker.queues.journal import Commits
from amqp10broker.queues.queue_status import QueueProgress
from amqp10broker.queues.settings import ConfirmWhen

MakeQueue = Callable[[ClassicQueue | None], ClassicQueue]
"""Makes an empty machine, with the settings and counters of one that failed, if it is given."""


class ClassicInJournal(DurabilityBackend[ClassicQueue]):
    def __init__(
        self,
        make: MakeQueue,
        wake: Wake,
        publish: PublishEffects,
        commits: Commits,
        store: ClassicStore,
        confirm_when: ConfirmWhen = ConfirmWhen.SYNCED,
    ) -> None:
        super().__init__(make(None), wake, publish, commits)
        self._make = make
        self._commits = commits
        self._store = store
        self._confirm_when = confirm_when
        self._asked_for = 0  # the ticket that wakes the queue when it is durable

    def recover(self, now_ms: int) -> Iterator[int]:
        self.queue.recover(self._store.backlogs())
        self.recovered = True
        return iter(())

    def delete(self) -> None:
        self._store.delete()
        self._commits.forget(self._store.group)

    def flush(self, now_ms: int) -> None:
        wrote = self._store.flush()
        ticket = self.queue.safe_up_to(self._commits.journal.durable)
        confirm_when = self.queue.settings.confirm_when or self._confirm_when
        if ticket is not None and confirm_when is ConfirmWhen.WRITTEN:
            ticket, wrote = self.queue.safe_up_to(self._commits.write_early()), True
        if ticket is not None and ticket > self._asked_for:
            self._asked_for = ticket
            self._commits.when_durable(ticket, self.wake)
        elif wrote:
            # Also during a sync, which may not cover this.
            self._commits.write_soon()

    def progress(self, *, busy: bool) -> QueueProgress:
        waits = bool(self.admission.waiting) or self.queue.intake.waits
        return self._commits.progress(busy=busy, waits=waits)

    def storage_failed(self) -> None:
        self.queue.refuse_unsafe()
        self.publish()

    def restart(self) -> None:
        self.queue = self._make(self.queue)
        self.recovered = False
