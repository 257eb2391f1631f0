"""Time for suspended links: each ends when it has been kept for as long as was granted."""

from __future__ import annotations

import math

import trio

from amqp10broker.errors import DamagedFile
from amqp10broker.metadata.plan import Key as PlanKey
from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.protocols.amqp10.errors import AmqpError
from amqp10broker.protocols.amqp10.performatives import Target
from amqp10broker.queues.commands import ReplyTo
from amqp10broker.queues.durable_links import ResumableLinksInJournal
from amqp10broker.runtime.context import BrokerContext
from amqp10broker.runtime.journal.journal_task import JournalTask
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.queues.handles import send_commands
from amqp10broker.sessions.amqp10.resumable_links import (
    ResumableConsumer,
    ResumableLink,
    ResumableLinks,
    ResumablePublisher,
    survivor,
)

_log = Log("amqp10broker.keeping")


class SuspendedLinks:
    """The broker around `ResumableLinks`, and the task that looks at what has run out."""

    def __init__(self, node_context: BrokerContext) -> None:
        self._node_context = node_context
        self._sooner = trio.Event()
        self.links = ResumableLinks(self)

    def open(self, label: str, box: ResumableLink) -> ReplyTo:
        return self._node_context.reply_registry.open(label, box)

    def close(self, reply_to: ReplyTo) -> None:
        self._node_context.reply_registry.close(reply_to)

    def post(self, commands: list[QueueCommand]) -> None:
        send_commands(commands)

    def now_ms(self) -> int:
        return self._node_context.clock.now_ms()

    def timer_started(self) -> None:
        self._sooner.set()

    def has_account(self, user: str) -> bool:
        return user in self._node_context.catalog.users

    def left(self, key: PlanKey) -> None:
        """A user or a virtual host has been deleted (`Catalog.on_left`)."""
        if key[0] == "user":
            self.links.revoke(user=key[1])
        else:
            self.links.revoke(vhost=key[1])

    def begin(self, journal_task: JournalTask) -> None:
        """Have what is granted to survive a restart kept in the journal, which is still to be read."""
        records = ResumableLinksInJournal(journal_task.journal, journal_task.write_soon)
        journal_task.add(records)
        self.links.records = records

    def restore(self) -> None:
        """Restore the links of the journal, after queues and before clients.

        A link without its virtual host or user is ended: its end may not have been durable before a power
        failure.

        Raises:
            DamagedFile: what it had of one cannot be understood.
        """
        records, vhosts = self.links.records, self._node_context.catalog.vhosts
        if records is None:
            return
        for number, document, tags in records.found():
            try:
                found = survivor(document)
            except (ValueError, TypeError, AmqpError) as error:
                raise DamagedFile(
                    "the journal",
                    f"what it says of link {number} cannot be understood: {error}",
                    "start the version that wrote it, or restore the data folder from a copy",
                ) from error
            if found.key.vhost not in vhosts or (found.account and not self.has_account(found.key.user)):
                records.end(number)
                continue
            resumable: ResumableLink
            if isinstance(found.terminus, Target):
                resumable = ResumablePublisher(found.key, self, found.terminus)
                resumable.restore(tags)
            else:
                resumable = ResumableConsumer(found.key, self.links, found.terminus)
            self.links.restore(resumable, number, found.terms, found.deadline_ms)
        if len(self.links):
            _log.info("suspended links restored", links=len(self.links))
        self.links.expire()

    async def run(self) -> None:
        while True:
            self._sooner = trio.Event()
            due_ms = self.links.deadline_ms
            due = math.inf if due_ms is None else self._node_context.clock.trio_time(due_ms)
            with trio.move_on_at(due):
                await self._sooner.wait()
            self.links.expire()
