"""All queues of a broker: created at declaration, run in one nursery, handled after a fault.

An internal error in a queue ends that state of it, and no other queue: `AFTER_FAULT` defines the consequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from random import random
from typing import Any, Final, cast

import trio

from amqp10broker.errors import DiskFull, StorageError
from amqp10broker.metadata.queue import CLASSIC, KINDS, QUORUM, STREAM, LastError, QueueSpec
from amqp10broker.metadata.queue_arguments import misspelt, selector_in
from amqp10broker.metadata.queue_requests import QueueEnded
from amqp10broker.operations.running import AlarmCause
from amqp10broker.queues import machine_version
from amqp10broker.queues.classic.durability import ClassicInJournal, ClassicStore
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import DELETE, Command
from amqp10broker.queues.durability import DurabilityBackend, PublishEffects, Wake
from amqp10broker.queues.quorum.commands import DlxSettle
from amqp10broker.queues.quorum.durability import QuorumInLog, QuorumInMemory
from amqp10broker.queues.quorum.log_store import FOUNDER, QuorumStore
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.quorum.state_transfer import Snapshots
from amqp10broker.queues.settings import ConfirmWhen
from amqp10broker.queues.stream.durability import StreamBackend, StreamCommits
from amqp10broker.queues.stream.log import MemoryShelf, StreamLog
from amqp10broker.queues.stream.queue import StreamQueue
from amqp10broker.raft.groups import Groups, Member
from amqp10broker.raft.ids import is_first, node_of
from amqp10broker.runtime.clock import utc_text
from amqp10broker.runtime.context import BrokerContext
from amqp10broker.runtime.journal.journal_task import JournalTask
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe.meters import ClockWatch
from amqp10broker.runtime.queues.dead_letter_worker import DeadLetterSender, DeadLetterWorker
from amqp10broker.runtime.queues.queue_task import QueueTask
from amqp10broker.sessions.dead_letters import DeadLetterTarget

_log = Log("amqp10broker.queues")

COMMIT_WAIT_MS: Final = 100
"""How long the index of committed entries may wait for the next entry to a queue's followers."""


class QueueContext(BrokerContext):
    """The context of queues. `set_disk_alarm`: adds a cause to the alarm of the disk, or removes it."""

    dead_letters: DeadLetterSender
    clock_watch: ClockWatch
    set_disk_alarm: Callable[[AlarmCause, bool], None]


class AfterFault(Enum):
    """The consequence of an internal error in a queue, as logged."""

    GONE = "is gone"
    DOWN = "stays down until the broker is started again"
    """Its clients are notified as if it were deleted. Its data and its name stay."""
    AGAIN = "begins again"
    """It restarts with its data; at the sixth fault within a minute it is `DOWN`."""


AFTER_FAULT: Final[Mapping[tuple[str, bool], AfterFault]] = {
    (CLASSIC.name, False): AfterFault.GONE,
    (CLASSIC.name, True): AfterFault.AGAIN,
    (QUORUM.name, False): AfterFault.GONE,
    # Its log would lead to the same fault: the entry at which the state failed is given up at the next start.
    (QUORUM.name, True): AfterFault.DOWN,
    (STREAM.name, False): AfterFault.GONE,
    (STREAM.name, True): AfterFault.DOWN,
}
"""The consequence by kind, and whether the queue is in the data folder. A fault of storage stops the broker:
no message could be confirmed or served any more, and a restart of the queue would read the same file.
"""

RESTARTS_MAX: Final = 5
"""The faults of one queue within `RESTARTS_S`, beyond which it stays down."""
RESTARTS_S: Final = 60.0

SLIPS_MAX: Final = 100
"""The misspelt arguments that are logged; clients may invent any number."""

SETTLE_S: Final = 5.0
"""How long queues may take to handle waiting commands when the broker stops."""


class Queues:
    """All queues of a broker. `journal_task`: stores durable queues' messages; None: in memory only.
    `groups`, `snapshots`: those of the node's cluster; None: it is not in one.
    """

    def __init__(
        self,
        node_context: QueueContext,
        nursery: trio.Nursery,
        journal_task: JournalTask | None,
        groups: Groups | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.journal_task = journal_task
        self._node_context = node_context
        self._nursery = nursery
        self._running: set[QueueTask] = set()
        self._groups = groups
        self._snapshots = snapshots
        self._full_streams: set[DurabilityBackend[Any]] = set()
        self._makers = {CLASSIC.name: self._classic, QUORUM.name: self._quorum, STREAM.name: self._stream}
        self._slips: set[str] = set()
        self._closed = False
        self._leaving: dict[QueueTask, Callable[[], None]] = {}

    @property
    def child_tasks(self) -> frozenset[trio.lowlevel.Task]:
        return self._nursery.child_tasks

    def start(self, spec: QueueSpec) -> QueueTask:
        for warning in spec.warnings:
            _log.warning(warning, vhost=spec.vhost)
        self._warn_of_slip(spec)
        node_context = self._node_context
        journal_task = self.journal_task if spec.number and spec.lasting else None
        injection = node_context.config.fault_injection
        running = QueueTask(
            partial(self._makers[spec.type], spec, journal_task),
            node_context.reply_registry,
            node_context.clock,
            lambda gone: self._forget(spec, gone),
            lambda given_up: node_context.dead_letters.post(spec.vhost, spec.name, given_up),
            lambda running, destination: self._start_worker(spec, running, destination),
            journal_task=journal_task,
            own_files=KINDS[spec.type].own_files,
            confirm_delay_ms=injection.confirm_delay_ms_for(spec.name) if injection.confirm_delay_ms else 0,
        )
        # A queue that is declared elsewhere while this broker stops begins at its next start.
        if not self._closed:
            self._running.add(running)
            self._nursery.start_soon(self._run, spec, running, name=f"{KINDS[spec.type].noun} {spec.name}")
        return running

    def end_member(self, running: QueueTask, then: Callable[[], None]) -> None:
        """Remove this node's member of a queue with its data; the queue stays."""
        if running in self._running:
            self._leaving[running] = then
            running.post(DELETE)
        else:
            then()

    def storage_failed(self) -> None:
        for running in list(self._running):
            running.storage_failed()

    async def begun(self, *, replicated: bool = True) -> None:
        """Wait until every queue has its former content, or a fault has ended it."""
        for running in list(self._running):
            if replicated or not running.backend.by_log:
                await running.begun.wait()

    async def settle(self) -> None:
        if self.journal_task is not None and not self.journal_task.recovered.is_set():
            return  # they wait for it, but nothing waits for them
        with trio.move_on_after(SETTLE_S):
            while any(running.busy for running in self._running):  # noqa: ASYNC110
                await trio.sleep(0.002)

    def close(self) -> None:
        """Start no more tasks, because the broker stops."""
        self._closed = True

    def finish(self) -> None:
        """Decide and store all commands that were put before the tasks ended."""
        for running in self._running:
            running.finish()

    def _start_worker(
        self, spec: QueueSpec, queue: QueueTask, destination: DeadLetterTarget
    ) -> DeadLetterWorker:

        def settle(keys: Sequence[int]) -> None:
            queue.post_all(cast("list[Command]", [DlxSettle(keys)]))

        node_context = self._node_context
        worker = DeadLetterWorker(
            node_context.catalog,
            spec.vhost,
            spec.name,
            destination,
            settle,
            node_context.reply_registry,
            node_context.clock,
        )
        self._nursery.start_soon(self._run_worker, spec, worker, name=f"dead letters of {spec.name}")
        return worker

    async def _run_worker(self, spec: QueueSpec, worker: DeadLetterWorker) -> None:
        try:
            await worker.run()
        except Exception as error:
            _log.error(
                "dead letters of a quorum queue stay in it until the broker is started again, "
                "by a fault in the broker",
                queue=spec.name,
                vhost=spec.vhost,
                exc_info=error,
            )

    def _warn_of_slip(self, spec: QueueSpec) -> None:
        slip = misspelt(spec.arguments)
        if slip is not None and slip[0] not in self._slips and len(self._slips) < SLIPS_MAX:
            self._slips.add(slip[0])
            _log.warning(
                f"no queue knows argument '{slip[0]}', it means nothing; did you mean {slip[1]}?",
                queue=spec.name,
                vhost=spec.vhost,
            )

    # --- faults -----------------------------------------------------------------------------------

    async def _run(self, spec: QueueSpec, running: QueueTask) -> None:
        faults: list[float] = []
        again = True
        while again:
            try:
                await running.run()
                again = False
            except StorageError as error:
                assert self.journal_task is not None
                self.journal_task.failed(error)
                again = False
            except Exception as error:
                again = self._after_fault(spec, running, faults, error)
        # If it was cancelled, `finish` needs it.
        self._running.discard(running)
        if running in self._leaving:
            self._leaving.pop(running)()

    def _after_fault(
        self, spec: QueueSpec, running: QueueTask, faults: list[float], error: Exception
    ) -> bool:
        after = AFTER_FAULT[spec.type, running.backend.durable]
        now = trio.current_time()
        if after is AfterFault.AGAIN and len(faults) == RESTARTS_MAX and now - faults[0] < RESTARTS_S:
            after = AfterFault.DOWN
        faults.append(now)
        del faults[:-RESTARTS_MAX]
        self._note(spec, error)
        _log.error(
            f"{KINDS[spec.type].noun} failed by a fault in the broker and {after.value}",
            queue=spec.name,
            vhost=spec.vhost,
            exc_info=error,
        )
        if after is AfterFault.AGAIN:
            running.restart()
            return True
        if after is AfterFault.GONE:
            self._forget(spec, running)
        running.fail()
        return False

    def _note(self, spec: QueueSpec, error: Exception) -> None:
        vhost = self._node_context.catalog.vhosts.get(spec.vhost)
        declared = None if vhost is None else vhost.find(spec.name)
        if declared is not None:
            text = f"{type(error).__name__}; the log has its cause"
            declared.last_error = LastError(
                utc_text(), "queue failed by a fault in the broker", {"text": text}
            )

    def _forget(self, spec: QueueSpec, running: QueueTask) -> None:
        if running in self._leaving:
            return  # only this node's part of it is deleted
        self._node_context.catalog.see_to(QueueEnded(spec.vhost, spec.name, spec.number or running))

    # --- durability backends ----------------------------------------------------------------------

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
            queue.version = machine_version.NEWEST  # no other node applies its commands
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
