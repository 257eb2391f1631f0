"""All queues of a broker: made when they are declared, run in one nursery, seen to when one fails.

A fault of ours in a queue ends that state of it, and nobody else. A durable queue with a data folder begins
again with what is on the disk; any other is gone, as if it had been deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from amqp10broker.alarms import Cause
from amqp10broker.catalog.last_error import LastError
from amqp10broker.catalog.queue import QueueSpec, QueueType
from amqp10broker.catalog.queue_arguments import misspelt
from amqp10broker.catalog.queue_requests import QueueEnded
from amqp10broker.errors import StorageError
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.counters import QueueCounters
from amqp10broker.service.at_least_once_dead_letters import Destination
from amqp10broker.tasks.clock import utc_text
from amqp10broker.tasks.dead_letter import DeadLetterWorker
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.queue import RunningQueue

if TYPE_CHECKING:
    from amqp10broker.persistence.classic_store import ClassicStore
    from amqp10broker.tasks.broker import Broker
    from amqp10broker.tasks.keeping import Keeping
    from amqp10broker.tasks.quorum_queue import RunningQuorum
    from amqp10broker.tasks.stream_queue import RunningStream

    Running: TypeAlias = RunningQueue | RunningStream | RunningQuorum

_log = Log("amqp10broker.queues")

RESTARTS_MAX: Final = 5
"""Faults of one queue within `RESTARTS_S`; then it stays down until the broker is started again."""
RESTARTS_S: Final = 60.0

SLIPS_MAX: Final = 100
"""Misspelt arguments that the log has told of: clients may invent as many as they like."""

SETTLE_S: Final = 5.0
"""How long queues may take to work off what was put when the broker stops."""


class Queues:
    """See the module.

    Attributes:
        keeping: where durable queues keep messages; None: in memory only.
    """

    def __init__(self, broker: Broker, nursery: trio.Nursery, keeping: Keeping | None) -> None:
        self.keeping = keeping
        self._broker = broker
        self._nursery = nursery
        self._running: set[RunningQueue | RunningQuorum] = set()
        self._streams: set[RunningStream] = set()
        self._full_streams: set[RunningStream] = set()
        self._slips: set[str] = set()

    @property
    def child_tasks(self) -> frozenset[trio.lowlevel.Task]:
        """Of the queues that run."""
        return self._nursery.child_tasks

    def start(self, spec: QueueSpec) -> Running:
        """Begin to run a queue (see `catalog.QueueHost`)."""
        for warning in spec.warnings:
            _log.warning(warning, vhost=spec.vhost)
        self._warn_of_slip(spec)
        if spec.type == QueueType.STREAM:
            return self._start_stream(spec)
        if spec.type == QueueType.QUORUM:
            return self._start_quorum(spec)
        broker = self._broker
        store = None
        if self.keeping is not None and spec.lasting and spec.number:
            store = self.keeping.classic(spec.number)
        running = RunningQueue(
            self._make(spec, store),
            broker.askers,
            broker.clock,
            lambda gone: self._forget(spec, gone),
            lambda given_up: broker.dead_letters.post(spec.vhost, spec.name, given_up),
            confirm_delay_ms=broker.config.fault_injection.confirm_delay_ms_for(spec.name),
            keeping=self.keeping,
            store=store,
        )
        self._running.add(running)
        self._nursery.start_soon(self._run, spec, running, store, name=f"queue {spec.name}")
        return running

    def storage_failed(self) -> None:
        """Nothing can be kept any more."""
        for running in list(self._running):
            running.storage_failed()
        for stream in list(self._streams):
            stream.storage_failed()

    async def begun(self) -> None:
        """Wait until every queue has what it had before the start, or a fault has ended it."""
        for running in (*self._running, *self._streams):
            await running.begun.wait()

    async def settle(self) -> None:
        """Let queues work off what was put into them, dead letters of each other too, before they end."""
        if self.keeping is not None and not self.keeping.recovered.is_set():
            return  # they wait for it, and nobody does for them
        with trio.move_on_after(SETTLE_S):
            while any(running.busy for running in (*self._running, *self._streams)):  # noqa: ASYNC110
                await trio.sleep(0.002)

    def finish(self) -> None:
        """The tasks are over because the broker stops: what was put before is still decided and kept."""
        for running in self._running:
            running.finish()

    def _start_quorum(self, spec: QueueSpec) -> RunningQuorum:
        # Imported for the first of its kind: without quorum queues and streams the broker starts sooner.
        from amqp10broker.persistence.quorum_store import QuorumStore
        from amqp10broker.persistence.spool import SpoolPacks
        from amqp10broker.queues.quorum.queue import QuorumQueue
        from amqp10broker.tasks.quorum_queue import RunningQuorum

        broker = self._broker
        clock = broker.clock
        store = None
        if self.keeping is not None and spec.number:
            packs = SpoolPacks(self.keeping.spool)
            store = QuorumStore(spec.number, spec.name, self.keeping.journal, packs)
            self.keeping.add(store)
        running = RunningQuorum(
            QuorumQueue(spec.name, settings=spec.settings, now_ms=clock.now_ms()),
            broker.askers,
            clock,
            lambda gone: self._forget(spec, gone),
            lambda given_up: broker.dead_letters.post(spec.vhost, spec.name, given_up),
            lambda destination, settle: self._start_worker(spec, destination, settle),
            confirm_delay_ms=broker.config.fault_injection.confirm_delay_ms_for(spec.name),
            keeping=self.keeping,
            store=store,
        )
        self._running.add(running)
        self._nursery.start_soon(self._run_quorum, spec, running, name=f"queue {spec.name}")
        return running

    def _start_worker(
        self, spec: QueueSpec, destination: Destination, settle: Callable[[Sequence[int]], None]
    ) -> DeadLetterWorker:
        broker = self._broker
        worker = DeadLetterWorker(
            broker.catalog, spec.vhost, spec.name, destination, settle, broker.askers, broker.clock
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

    async def _run_quorum(self, spec: QueueSpec, running: RunningQuorum) -> None:
        try:
            await running.run()
        except StorageError as error:
            assert self.keeping is not None
            self.keeping.failed(error)
        except Exception as error:
            durable = self.keeping is not None and spec.number
            what = "stays down until the broker is started again" if durable else "is gone"
            self._note(spec, error)
            _log.error(
                f"quorum queue failed by a fault in the broker and {what}",
                queue=spec.name,
                vhost=spec.vhost,
                exc_info=error,
            )
            if not durable:
                self._forget(spec, running)
            running.fail()
        # Not when it was cancelled: `finish` wants it then.
        self._running.discard(running)

    def _warn_of_slip(self, spec: QueueSpec) -> None:
        """Say once of each argument that means nothing what may have been meant; it is not refused."""
        slip = misspelt(spec.arguments)
        if slip is not None and slip[0] not in self._slips and len(self._slips) < SLIPS_MAX:
            self._slips.add(slip[0])
            _log.warning(
                f"no queue knows argument '{slip[0]}', it means nothing; did you mean {slip[1]}?",
                queue=spec.name,
                vhost=spec.vhost,
            )

    def _start_stream(self, spec: QueueSpec) -> RunningStream:
        from amqp10broker.queues.stream.queue import StreamQueue
        from amqp10broker.storage.stream_log import StreamLog
        from amqp10broker.storage.stream_memory import MemoryShelf
        from amqp10broker.tasks.stream_queue import RunningStream

        broker = self._broker
        keeping = self.keeping if spec.number else None
        log = StreamLog(MemoryShelf() if keeping is None else keeping.stream(spec.number))
        running = RunningStream(
            StreamQueue(spec.name, log, settings=spec.settings),
            log,
            broker.askers,
            lambda gone: self._forget(spec, gone),
            broker.clock,
            sync=None if keeping is None else keeping.sync_stream,
            on_full=self._on_stream_full,
            confirm_delay_ms=broker.config.fault_injection.confirm_delay_ms_for(spec.name),
        )
        self._streams.add(running)
        self._nursery.start_soon(self._run_stream, spec, running, keeping, name=f"stream {spec.name}")
        return running

    def _on_stream_full(self, stream: RunningStream, full: bool) -> None:
        (self._full_streams.add if full else self._full_streams.discard)(stream)
        self._broker.set_alarm("disk", on=bool(self._full_streams), cause=Cause.STREAMS)

    async def _run_stream(self, spec: QueueSpec, running: RunningStream, keeping: Keeping | None) -> None:
        try:
            await running.run()
        except Exception as error:
            from amqp10broker.tasks.stream_queue import storage_error_in

            fault = storage_error_in(error)
            if keeping is not None and fault is not None:
                # Not even `restart` could know what is on the disk: nothing more is confirmed or served.
                keeping.failed(fault)
                return
            what = "is gone" if keeping is None else "stays down"
            self._note(spec, error)
            _log.error(
                f"stream failed by a fault in the broker and {what}",
                queue=spec.name,
                vhost=spec.vhost,
                exc_info=error,
            )
            if keeping is None:
                self._forget(spec, running)
            running.fail()
        self._streams.discard(running)
        if running in self._full_streams:
            self._on_stream_full(running, full=False)

    def _make(
        self, spec: QueueSpec, store: ClassicStore | None, counters: QueueCounters | None = None
    ) -> ClassicQueue:
        return ClassicQueue(
            spec.name,
            durable=spec.lasting,
            auto_delete=spec.auto_delete,
            settings=spec.settings,
            store=store,
            now_ms=self._broker.clock.now_ms(),
            counters=counters,
        )

    def _note(self, spec: QueueSpec, error: Exception) -> None:
        """A fault of ours in a queue is its last error, if it stays or begins again."""
        vhost = self._broker.catalog.find_vhost(spec.vhost)
        declared = None if vhost is None else vhost.find(spec.name)
        if declared is not None:
            text = f"{type(error).__name__}; the log has its cause"
            declared.last_error = LastError(
                utc_text(), "queue failed by a fault in the broker", {"text": text}
            )

    def _forget(self, spec: QueueSpec, running: Running) -> None:
        """A queue is gone by itself, or by a request with conditions: nobody shall find it any more."""
        self._broker.catalog.propose(QueueEnded(spec.vhost, spec.name, running))

    async def _run(self, spec: QueueSpec, running: RunningQueue, store: ClassicStore | None) -> None:
        await self._work(spec, running, store)
        # Not when it was cancelled: `finish` wants it then.
        self._running.discard(running)

    async def _work(self, spec: QueueSpec, running: RunningQueue, store: ClassicStore | None) -> None:
        faults: deque[float] = deque(maxlen=RESTARTS_MAX)
        while True:
            try:
                await running.run()
                return
            except StorageError as error:
                # Beginning again would read the same file: nothing more is confirmed or served.
                assert self.keeping is not None
                self.keeping.failed(error)
                return
            except Exception as error:
                now = trio.current_time()
                often = len(faults) == RESTARTS_MAX and now - faults[0] < RESTARTS_S
                faults.append(now)
                what = "is gone" if store is None else "stays down" if often else "begins again"
                self._note(spec, error)
                _log.error(
                    f"queue failed by a fault in the broker and {what}",
                    queue=spec.name,
                    vhost=spec.vhost,
                    exc_info=error,
                )
                if store is None:
                    self._forget(spec, running)
                if store is None or often:
                    running.fail()
                    return
                settings = running.queue.settings
                running.restart(self._make(spec, store, running.queue.counters))
                running.queue.configure(settings)
