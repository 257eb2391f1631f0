"""A queue as a node of a cluster has it that is at another node, or may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from amqp10broker.cluster.remote_queue.home_link import HomeLink
from amqp10broker.cluster.remote_queue.link import QueueLink
from amqp10broker.cluster.remote_queue.links import Client
from amqp10broker.queues.commands import Command, Configure, Delete, Touch
from amqp10broker.queues.counters import QueueCounters
from amqp10broker.queues.queue_status import UP_TO_DATE, QueueProgress, QueueStats, QueueStatus, QueueWeight
from amqp10broker.runtime.queues.queue_task import Participant, QueueTask


class RemoteQueue(Participant):
    """A `QueueHandle` of a queue elsewhere. `member`: the queue's task here; None: no part of it is here."""

    def __init__(self, client: Client, member: QueueTask | None, name_of: Callable[[int], str]) -> None:
        self.client = client
        self.member = member
        self._name_of = name_of

    @property
    def task(self) -> QueueTask | None:
        return self.member

    @property
    def starting(self) -> bool:
        member, client = self.member, self.client
        if member is None or member.starting:
            return member is not None
        return isinstance(client, QueueLink) and not client.ended and not client.opens()

    def decide_within(self, commands: list[Command]) -> None:
        assert self.member is not None, "it takes part"
        self.client.post_all(commands)
        self.member.decide_within(self.member.take_put())

    def post_all(self, commands: list[Command]) -> None:
        if not any(map(_of_the_catalog, commands)):
            self.client.post_all(commands)
            return
        for command in commands:
            if not _of_the_catalog(command):
                self.client.post_all([command])
                continue
            if self.member is not None and type(command) is not Touch:
                self.member.post_all([command])
            if type(command) is Delete:
                self.client.forget()

    @property
    def ready(self) -> int:
        return self.client.available if self.member is None else self.member.ready

    @property
    def unsettled(self) -> int:
        return 0 if self.member is None else self.member.unsettled

    @property
    def down(self) -> str | None:
        client = self.client
        if isinstance(client, HomeLink) and client.down_ms is not None:
            return self._name_of(client.home)
        return None

    def queue_status(self) -> QueueStatus:
        if self.member is not None:
            return self.member.queue_status()
        # Whether anything ever came only the queue knows.
        return QueueStatus(self.client.available, max(1, self.client.available), {})

    def progress(self) -> QueueProgress:
        since_ms = self.client.unled_ms
        if since_ms is not None:
            return QueueProgress(unled_ms=since_ms)
        if self.client.full_ms is not None:
            return QueueProgress(full_ms=self.client.full_ms)
        return UP_TO_DATE if self.member is None else self.member.progress()

    @property
    def counters(self) -> QueueCounters:
        return _NOTHING if self.member is None else self.member.counters

    def figures(self) -> QueueStats:
        if self.member is not None:
            return self.member.figures()
        return QueueStats(messages_ready=self.client.available, consumers=self.client.consumers)

    def weight(self) -> QueueWeight | None:
        return None if self.member is None else self.member.weight()


_NOTHING: Final = QueueCounters()


def _of_the_catalog(command: Command) -> bool:
    kind = type(command)
    return kind is Configure or kind is Touch or (isinstance(command, Delete) and command.request is None)
