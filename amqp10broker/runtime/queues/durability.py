"""The durability backend of each queue: its machine, with a place in memory, in the journal, or in files of
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from random import random
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.errors import DiskFull
from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.metadata.queue_arguments import selector_in
from amqp10broker.metadata.queue_kind import CLASSIC, QUORUM, STREAM
from amqp10broker.operations.alarms import AlarmCause
from amqp10broker.queues import machine_version
from amqp10broker.queues.classic.durability import ClassicInJournal
from amqp10broker.queues.classic.journal_store import ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.durability import DurabilityBackend, PublishEffects, Wake
from amqp10broker.queues.quorum.durability import QuorumInLog, QuorumInMemory
from amqp10broker.queues.quorum.log_store import FOUNDER, QuorumStore
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import ConfirmWhen
from amqp10broker.queues.stream.commits import StreamCommits
from amqp10broker.queues.stream.durability import StreamBackend
from amqp10broker.queues.stream.log import MemoryShelf, StreamLog
from amqp10broker.queues.stream.queue import StreamQueue
from amqp10broker.raft.groups import Groups, Member
from amqp10broker.raft.ids import is_first, node_of
from amqp10broker.runtime.context import BrokerContext
from amqp10broker.runtime.journal.journal_task import JournalTask
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe.clock_watch import ClockWatch
from amqp10broker.runtime.queues.dead_letters import DeadLetterOffice

if TYPE_CHECKING:
    from amqp10broker.queues.quorum.state_transfer import Snapshots

_log = Log("amqp10broker.queues")

COMMIT_WAIT_MS: Final = 100
"""So long the news of what is committed may wait for the next entry on its way to a queue's followers: they
only carry it out, and sessions hear of it from the leader."""


class QueueContext(BrokerContext):
    """For queues. `set_disk_alarm`: gives the alarm of the disk a cause, or takes it away."""

    dead_letters: DeadLetterOffice
    clock_watch: ClockWatch
    set_disk_alarm: Callable[[AlarmCause, bool], None]


class Backends:
    def __init__(
        self,
        node_context: QueueContext,
        groups: Groups | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        """`groups`, `snapshots`: of the node; None: it is in no cluster."""
        self._node_context = node_context
        self._groups = groups
        self._snapshots = snapshots
        self._full_streams: set[DurabilityBackend[Any]] = set()
        self._makers = {CLASSIC.name: self._classic, QUORUM.name: self._quorum, STREAM.name: self._stream}

    def make(
        self, spec: QueueSpec, journal_task: JournalTask | None, wake: Wake, publish: PublishEffects
    ) -> DurabilityBackend[Any]:
        return self._makers[spec.type](spec, journal_task, wake, publish)

    def _classic(
        self, spec: QueueSpec, journal_task: JournalTask | None, wake: Wake, publish: PublishEffects
    ) -> DurabilityBackend[Any]:
        if journal_task is None:
            return DurabilityBackend(self._classic_queue(spec, None), wake, publish)
        store = ClassicStore(spec.number, journal_task.journal, journal_task.spool)
        journal_task.add(store)
        return ClassicInJournal(
            lambda before: self._classic_queue(spec, store, before),
            wake,
            publish,
            journal_task,
            store,
            ConfirmWhen(self._node_context.config.classic_confirm),
        )

    def _quorum(
        self, spec: QueueSpec, journal_task: JournalTask | None, wake: Wake, publish: PublishEffects
    ) -> DurabilityBackend[Any]:

        queue = QuorumQueue(spec.name, settings=spec.settings, now_ms=self._node_context.clock.now_ms())
        queue.browsers.scan_max = self._node_context.config.selector_scan_max
        queue.dead_letter_prefetch = self._node_context.config.dead_letter_prefetch
        if journal_task is None:
            queue.version = machine_version.NEWEST  # nobody else carries out what it is told
            return QuorumInMemory(queue, wake, publish)
        if self._groups is None:
            # Without a cluster each group is of one, which sends nothing.
            self._groups = Groups(self._node_context.clock.now_ms, lambda *_: None)
        groups, snapshots = self._groups, self._snapshots
        reply_registry = self._node_context.reply_registry
        me = next((member for member in spec.members if node_of(member) == reply_registry.node), FOUNDER)
        store = QuorumStore(
            spec.number,
            spec.name,
            journal_task.journal,
            journal_task.spool,
            when_durable=journal_task.when_durable,
            write_soon=journal_task.write_soon,
            me=me,
            members=[member for member in spec.members if is_first(member)],
            joins=not is_first(me),
            node=reply_registry.node,
            incarnation=reply_registry.incarnation,
        )
        journal_task.add(store)

        def begin(machine: QuorumInLog) -> Member:
            first = spec.members[:1] in ((), (me,))
            member = Member(
                spec.number, me, store, machine, groups, random, first=first, commit_wait_ms=COMMIT_WAIT_MS
            )
            if snapshots is not None:
                snapshots.add(spec.number, store)
            groups.add(member)
            return member

        watch, catalog = self._node_context.clock_watch, self._node_context.catalog

        def usable() -> int:
            if snapshots is None:
                return machine_version.NEWEST
            return 0 if catalog.cluster is None else catalog.cluster.version

        return QuorumInLog(
            *(queue, wake, publish, journal_task, store, begin),
            *(snapshots, watch.others, usable, watch.queues.add),
        )

    def _stream(
        self, spec: QueueSpec, journal_task: JournalTask | None, wake: Wake, publish: PublishEffects
    ) -> DurabilityBackend[Any]:

        log = StreamLog(MemoryShelf() if journal_task is None else journal_task.stream(spec.number))
        queue = StreamQueue(spec.name, log, settings=spec.settings)
        if journal_task is None:
            return StreamBackend(queue, wake, publish, log, None, self._on_stream_full)
        parts = StreamCommits(spec.number, journal_task.journal)
        journal_task.add(parts)
        return StreamBackend(
            *(queue, wake, publish, log, journal_task.stream_syncs),
            *(self._on_stream_full, journal_task, parts),
        )

    def _on_stream_full(self, stream: DurabilityBackend[Any], error: DiskFull | None) -> None:
        name = stream.queue.name
        if error is not None:
            _log.error("no room for what was published to a stream", queue=name, reason=str(error))
            self._full_streams.add(stream)
        else:
            _log.warning("there is room again for a stream", queue=name)
            self._full_streams.discard(stream)
        self._node_context.set_disk_alarm(AlarmCause.STREAMS, bool(self._full_streams))

    def _classic_queue(
        self, spec: QueueSpec, store: ClassicStore | None, before: ClassicQueue | None = None
    ) -> ClassicQueue:
        return ClassicQueue(
            spec.name,
            durable=spec.lasting,
            auto_delete=spec.auto_delete,
            settings=spec.settings if before is None else before.settings,
            store=store,
            now_ms=self._node_context.clock.now_ms(),
            counters=None if before is None else before.counters,
            selector=selector_in(spec.arguments),
            scan_max=self._node_context.config.selector_scan_max,
        )
