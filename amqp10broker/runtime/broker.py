"""The broker: start and stop of its parts, in order, and as a process. README.md has the nurseries."""

from __future__ import annotations

import os
import platform
import random
import secrets
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import trio

from amqp10broker import __version__, portable
from amqp10broker.auth.login import Peer
from amqp10broker.auth.passwords import Passwords
from amqp10broker.config import Config
from amqp10broker.errors import BrokerError, ConfigError, DamagedFile, Stopped
from amqp10broker.metadata.catalog import Catalog, at_once
from amqp10broker.metadata.queue import DeclaredQueue, QueueHandle, QueueSpec
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.operations.running import AlarmCause
from amqp10broker.operations.snapshot import BrokerView, FlowView, NodeView, document
from amqp10broker.protocols.connection import UserBudgets
from amqp10broker.queues.journal import ResumableLinksInJournal
from amqp10broker.queues.volatile import VolatileQueue
from amqp10broker.routing.exchange import DIRECT_REPLY_TO
from amqp10broker.runtime.admin.admin import serve_admin
from amqp10broker.runtime.admin.node import NodeContext, RunningNode
from amqp10broker.runtime.admin.serving_node import ServingContext, ServingNode
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.cluster.cluster import Cluster
from amqp10broker.runtime.cluster.node_of_cluster import NodeOfCluster
from amqp10broker.runtime.connections.connections import Connection, Connections, Rights, SuspendedLinks
from amqp10broker.runtime.connections.listener import SHUTTING_DOWN, Listener, ListenerContext
from amqp10broker.runtime.connections.login import Logins, authenticator
from amqp10broker.runtime.connections.sockets import BoundSockets, Stream, addresses_of, peer_text
from amqp10broker.runtime.http.http_listener import HttpListener
from amqp10broker.runtime.journal.bootstrap import (
    bootstrap,
    bootstrap_folder,
    configured_users,
    log_idle_patterns,
)
from amqp10broker.runtime.journal.data import opened_data, pid_file
from amqp10broker.runtime.journal.journal_task import opened_journal
from amqp10broker.runtime.log import Log, LogLimits
from amqp10broker.runtime.mailbox import InlineQueue, Mailbox, ReplyRegistry
from amqp10broker.runtime.observe.meters import ClockWatch, Meter, rss_bytes
from amqp10broker.runtime.observe.recorder import Recordings
from amqp10broker.runtime.observe.resource_monitor import ResourceMonitor
from amqp10broker.runtime.observe.tracing import Tracing
from amqp10broker.runtime.observe.watches import Watches
from amqp10broker.runtime.queues.dead_letter_worker import DeadLetterSender
from amqp10broker.runtime.queues.queue_task import SessionCommits
from amqp10broker.runtime.queues.queues import QueueContext, Queues
from amqp10broker.sessions.amqp091.channel import BrokerChannel
from amqp10broker.sessions.amqp10.open import identity_of
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.diagnosis.survey import EVERYTHING, Selection, overview
from amqp10broker.sessions.messages import SessionMessage

QUEUES_WITHIN_S: Final = 2
"""How long a node of a cluster waits for its quorum queues before it serves clients. Of thousands most elect
their leaders later, and requests to them wait.
"""

_log = Log("amqp10broker.broker")


class Broker(ListenerContext, QueueContext, ServingContext, NodeContext):
    """A broker inside a Trio program: ``async with Broker(config) as broker:``. The addresses it listens on
    are then in `broker.addresses`; leaving the block stops it in order.

    `cluster`: this node as one of a cluster; None if it has no name, and before the broker runs. `suspended`:
    links of AMQP 1.0 that outlive their sessions, and their time.
    """

    def __init__(self, config: Config | None = None, *, meter: Meter | None = None) -> None:
        """Make a broker that does nothing yet. `meter`: measures memory and disk; None: this machine's."""
        self.config = config or Config()
        config = self.config
        self.container_id = config.container_id or config.node_name or f"amqp10broker@{socket.gethostname()}"
        self.identity = identity_of(self.config.rules, __version__, f"Python {platform.python_version()}")
        self.addresses, self.tls_addresses, self.http_addresses, self.metrics_addresses = [], [], [], []
        self.catalog = Catalog(
            self.start_queue,
            default_queue_type=config.default_queue_type,
            relaxed_quorum_checks=config.quorum_relaxed_checks_on_redeclaration,
            rules=config.rules,
            choose=random.randrange,
        )
        self.propose = at_once(self.catalog)
        self.data = None
        self.cluster: Cluster | None = None
        self.journal_task = None
        self.failure = None
        self.over = trio.Event()
        self.afterwards = None
        self.passwords = Passwords(self.catalog.users, secrets.token_bytes, config.password_hash_export)
        self.authenticator = authenticator(
            config, self.catalog.users, self.passwords, lambda: self.clock.now_ms() / 1000
        )
        self.logins = Logins()
        self.clock_watch = ClockWatch(self)
        self.connections = Connections(self.catalog)
        self.rights = Rights(self.connections)
        self.catalog.users.on_change = self.rights.note
        self.alarms = frozenset()
        self.resource_monitor = ResourceMonitor(self, meter or Meter(), lambda: self.http.serving)
        self.recordings = Recordings(self)
        self.tracing = Tracing(self.connections, self.catalog.users, everything=config.trace_frames)
        self.suspended = SuspendedLinks(self)
        self.resumable_links = self.suspended.links
        self.catalog.on_left = self.suspended.left
        self.log_limits = LogLimits()
        self.unfinished = UserBudgets(config.unfinished_bytes_max_per_node, config.max_message_size_bytes)
        self.session_type = BrokerSession
        self.channel_type = BrokerChannel
        self.faulty_stream = None
        self.faults = None
        if config.test_mode and config.otel_endpoint is None:
            from amqp10broker.runtime.observe.faults import faulty

            self.faults, self.session_type, self.channel_type, self.faulty_stream = faulty(self)
        self.http = HttpListener(self.resource_monitor.wake)
        self.prometheus = HttpListener(metrics=True)
        self.as_member: ServingNode = ServingNode(self)
        self.watches = Watches(self.connections)
        self.not_greeted = self.tracing.greeting
        self.running = partial(RunningNode, self)
        self.listener = Listener(self)
        self._queues: Queues | None = None
        self._context: Any = None
        self._started_at = 0.0

    # --- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._context = self._running()
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        result: bool | None = await self._context.__aexit__(kind, error, traceback)
        return result

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        failure: Exception | None = None
        self.clock = WallClock()
        with ExitStack() as stack:
            self.data = stack.enter_context(opened_data(self.config.data_dir))
            if self.data is not None and self.config.node_name is not None:
                stack.enter_context(pid_file(self.data.folder.path))
            if self.config.record_frames is not None:
                self.tracing.record(self.config.record_frames)
            stack.callback(self.tracing.close)
            async with (
                self.recordings.opened(),
                self._bound() as sockets,
                self._in_cluster(),
                self._keeping_journal(),
                self._running_queues(),
                self._telling_of_messages(),
                self._serving_clients(sockets) as listen,
            ):
                try:
                    await self._recovered()
                    if not self.over.is_set():
                        listen()
                    yield
                except Exception as error:
                    # Out of the block at once it would cancel the connections: they are stopped first.
                    failure = error
        if failure is not None:
            raise failure
        if self.failure is not None:
            raise self.failure

    @asynccontextmanager
    async def _bound(self) -> AsyncIterator[BoundSockets]:
        sockets = BoundSockets()
        try:
            await sockets.bind(self.config)
            await self.http.bind(self.config, sockets.tls)
            await self.prometheus.bind(self.config, sockets.tls)
            self.addresses = addresses_of(sockets.plain)
            self.tls_addresses = addresses_of(sockets.encrypted)
            self.http_addresses = self.http.addresses
            self.metrics_addresses = self.prometheus.addresses
            yield sockets
        finally:
            self.log_limits.finish()
            sockets.close()
            self.http.close()
            self.prometheus.close()

    @asynccontextmanager
    async def _in_cluster(self) -> AsyncIterator[None]:
        # With a name, a node finds its cluster before it looks at what its folder has.
        if self.config.node_name is None:
            yield
            return

        if self.data is None:
            raise ConfigError("data_dir", "is missing beside node_name", "give the node a folder")
        self.cluster = Cluster(self, self.data, self.resource_monitor)
        async with self.cluster.running(*self.addresses[0]):
            yield

    @asynccontextmanager
    async def _keeping_journal(self) -> AsyncIterator[None]:
        self._started_at = trio.current_time()
        self.reply_registry = ReplyRegistry(
            node=0 if self.cluster is None else self.cluster.membership.number,
            incarnation=1 if self.data is None else self.data.incarnation,
        )
        self.dead_letters = DeadLetterSender(self.catalog, self.reply_registry, self.clock)
        async with opened_journal(
            self.data,
            self.clock,
            file_bytes=self.config.journal_file_bytes,
            sync_delay_ms=self.config.fault_injection.sync_delay_ms,
            inline=self.reply_registry.inline,
            on_full=partial(self.set_disk_alarm, AlarmCause.STORAGE),
            on_failed=self._on_storage_failed,
        ) as self.journal_task:
            yield

    @asynccontextmanager
    async def _running_queues(self) -> AsyncIterator[None]:
        cluster = self.cluster
        async with trio.open_nursery() as nursery:
            self._queues = Queues(
                self,
                nursery,
                self.journal_task,
                None if cluster is None else cluster.raft.groups,
                None if cluster is None else cluster.snapshots,
            )
            self._bootstrap()
            if self.journal_task is not None:
                if self.cluster is None:
                    records = ResumableLinksInJournal(self.journal_task.journal, self.journal_task.write_soon)
                    self.journal_task.add(records)
                    self.resumable_links.records = records
                self.journal_task.begin()
            if self.cluster is not None:
                nursery.start_soon(self.cluster.elect, self._queues.begun)
            try:
                yield
                await self._queues.settle()
                if self.failure is None:
                    await self.as_member.leave()
            finally:
                self._queues.close()
                nursery.cancel_scope.cancel()
        self._queues.finish()

    @asynccontextmanager
    async def _telling_of_messages(self) -> AsyncIterator[None]:
        if self.config.otel_endpoint is None:
            yield
            return
        try:
            from amqp10broker.runtime.observe.telemetry import telling
        except ModuleNotFoundError as error:
            raise ConfigError(
                "otel_endpoint",
                f"needs the package {error.name}, which is not installed",
                "install it with: pip install 'amqp10broker[otel]'",
            ) from error
        async with telling(self, self.config.otel_endpoint) as traced:
            if traced is not None:
                self.session_type, self.channel_type = traced
            yield

    @asynccontextmanager
    async def _serving_clients(self, sockets: BoundSockets) -> AsyncIterator[Callable[[], None]]:
        async with trio.open_nursery() as connections, trio.open_nursery() as listeners:
            self.resource_monitor.start()
            listeners.start_soon(self.resource_monitor.run)
            listeners.start_soon(self.logins.run)
            listeners.start_soon(self.log_limits.run)
            listeners.start_soon(self.clock_watch.run)
            listeners.start_soon(self.rights.run)
            listeners.start_soon(self.suspended.run)
            listeners.start_soon(self.as_member.run)
            await listeners.start(serve_admin, self)
            try:
                self.listener.begin(sockets, connections)
                yield partial(self._listen, listeners)
            finally:
                listeners.cancel_scope.cancel()
                sockets.close()
                timeout_s = self.config.shutdown_timeout_ms / 1000
                connections.cancel_scope.deadline = trio.current_time() + timeout_s
                self.connections.stop(SHUTTING_DOWN)

    def _listen(self, nursery: trio.Nursery) -> None:
        self.listener.listen(nursery)
        nursery.start_soon(self.http.run, self)
        nursery.start_soon(self.prometheus.run, self)

    async def _recovered(self) -> None:
        # Wait until the folder is read and queues have what they had, or until the broker is to stop.
        assert self._queues is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_over, nursery.cancel_scope)
            if self.journal_task is not None:
                await self.journal_task.recovered.wait()
            if self.cluster is None:
                await self._queues.begun()
            self.suspended.restore()
            if self.cluster is not None:
                await self.cluster.caught_up()
                await self._queues.begun(replicated=False)
                with trio.move_on_after(QUEUES_WITHIN_S):
                    await self._queues.begun()
                self._see_to_anonymous(configured_users(self.config, self.passwords))
            nursery.cancel_scope.cancel()
        if self.failure is not None:
            raise self.failure

    async def _cancel_when_over(self, scope: trio.CancelScope) -> None:
        await self.over.wait()
        scope.cancel()

    def stop(self) -> None:
        """Request the end of the broker; allowed before it is up."""
        self.over.set()

    def _on_storage_failed(self, error: BrokerError) -> None:
        self.failure = error
        if self.cluster is not None and isinstance(error, DamagedFile):
            name = self.cluster.name
            _log.error(
                "the other nodes have what this one's quorum queues have; without a copy of the folder run "
                f"'amqp10broker cluster forget-node {name}' at one of them, start this node with an empty "
                f"folder, and give it members again with 'amqp10broker member grow {name} all'"
            )
        if self._queues is not None:
            self._queues.storage_failed()
        self.over.set()

    def _bootstrap(self) -> None:
        if self.data is None:
            users = bootstrap(self.catalog, self.config, self.passwords)
        else:
            if self.cluster is None:
                users = bootstrap_folder(self.catalog, self.config, self.passwords, self.data)
            else:
                # The founder's configuration is in it, and no other node's counts.
                assert self._queues is not None
                self.cluster.prepare()
                self.catalog.on_members = partial(self.cluster.members_changed, queues=self._queues)
                self.data.load_state(self.catalog)
                self.propose = self.cluster.begin().propose
                self.as_member = NodeOfCluster(self, self.cluster)
                users = frozenset({self.config.anonymous_login_user})
            if self.journal_task is not None:
                streams = (queue.number for queue in self.catalog if queue.kind.own_files)
                self.journal_task.remove_deleted_streams(streams)
        log_idle_patterns(self.catalog)
        self._see_to_anonymous(users)

    def _see_to_anonymous(self, users: Collection[str]) -> None:
        if self.config.anonymous_login_user not in users:
            # The user does not exist, or has another password than the configured one.
            self.authenticator.anonymous_user = ""

    # --- what others ask --------------------------------------------------------------------------

    def start_queue(self, queue: QueueSpec) -> QueueHandle:
        assert self._queues is not None, "the broker is not running"
        if self.cluster is not None:
            return self.cluster.start_queue(queue, self._queues.start)
        return self._queues.start(queue)

    def make_volatile(
        self, vhost: VirtualHost, connection: object, allowed: Callable[[str], None]
    ) -> DeclaredQueue:
        if self.cluster is not None:
            return self.cluster.queues.make_volatile(vhost, connection, allowed)
        name = f"{DIRECT_REPLY_TO}.{self.new_id()}"
        allowed(name)
        return vhost.add_volatile(name, connection, InlineQueue(VolatileQueue(name), self.reply_registry))

    def serve(self, stream: Stream, *, peer: str = "in-process", loopback: bool = True) -> None:
        """Serve a stream that was made elsewhere, as if it had been accepted from an address `peer`."""
        self.listener.take(stream, peer, Peer(loopback, peer))

    def connected(self, connection: Connection) -> None:
        self.tracing.join(connection, begins=True)
        self.resource_monitor.wake()

    def disconnected(self, connection: Connection) -> None:
        self.tracing.leave(connection)
        self.watches.leave(connection)

    def logged_in(self, connection: int) -> None:
        self.tracing.join(self.connections[connection])

    def part_begun(self, connection: int, part: int) -> None:
        self.recordings.join(self.connections[connection], part)
        self.watches.join(self.connections[connection], part)

    def commits(self, inbox: Mailbox[SessionMessage]) -> SessionCommits:
        return SessionCommits(inbox, self.journal_task)

    def is_memory_tight(self) -> bool:
        return self.resource_monitor.alarms.is_memory_tight

    def new_id(self) -> str:
        return secrets.token_urlsafe(16)

    def set_disk_alarm(self, cause: AlarmCause, on: bool) -> None:
        self.resource_monitor.set_alarm("disk", on=on, cause=cause)

    def status(self, selection: Selection = EVERYTHING) -> dict[str, Any]:
        """Return the status as one JSON-ready document."""
        return document(self.view(selection))

    def view(self, selection: Selection = EVERYTHING) -> BrokerView:
        connections = self.connections
        return overview(self.node_view(), connections.totals(), connections.values(), self.catalog, selection)

    def node_view(self) -> NodeView:
        flow = self.config.flow
        return NodeView(
            container_id=self.container_id,
            version=__version__,
            pid=os.getpid(),
            uptime_s=round(trio.current_time() - self._started_at, 3),
            listeners=tuple(map(peer_text, self.addresses)),
            tls_listeners=tuple(map(peer_text, self.tls_addresses)),
            flow=FlowView(flow.max_link_credit, flow.max_incoming_window, flow.max_queue_credit),
            data_dir=None if self.data is None else self.data.folder.path,
            journal=None if self.journal_task is None else self.journal_task.view(),
            alarms=tuple(sorted(self.alarms)),
            rss_bytes=rss_bytes(),
            resources=self.resource_monitor.view(),
            recording=self.recordings.view(),
            recording_failed=self.recordings.failed,
            traces=self.tracing.views(),
            suspended_links=self.resumable_links.suspended_views(),
            kept_links=len(self.resumable_links),
        )


async def run_broker(config: Config, on_up: Callable[[Broker], None]) -> None:
    """Run a broker until SIGTERM or SIGINT, then stop it in order. One that joins a cluster begins again.
    `on_up`: called each time that it accepts connections. Raises `OSError` if the address cannot be used,
    `AdminSocketError` if the place of the admin socket is unsafe, and `StorageError` if the data folder
    cannot be used.
    """
    ask_for_short_slices()
    with trio.open_signal_receiver(*portable.STOP_SIGNALS) as signals:
        again = True
        while again:
            broker = Broker(config)
            again = False
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_stop_on_signal, signals, broker)
                    async with broker:
                        if not broker.over.is_set():
                            on_up(broker)
                        await broker.over.wait()
                    nursery.cancel_scope.cancel()
            except* Stopped as stopped:
                _log.info("not up", reason=str(stopped.exceptions[0]))
            if broker.afterwards is not None:
                assert config.data_dir is not None, "a node of a cluster has one"
                broker.afterwards.carry_out(config.data_dir)
                again = broker.afterwards.membership is not None


async def _stop_on_signal(signals: AsyncIterator[int], broker: Broker) -> None:
    async for number in signals:
        _log.info("stopping", signal=signal.Signals(number).name)
        broker.stop()
        return


SLICE_NS: Final = 100_000

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}


_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr` of Linux: size, policy, flags, nice, priority, runtime, deadline, period."""


def ask_for_short_slices() -> None:
    """Request short slices for this thread and its children, where supported (Linux 6.12).

    A confirm waits until the helper that syncs has run, and then the broker again, and each until the slice
    of another process is over, some milliseconds. A policy that an operator has set stays.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        number = _SCHED_SETATTR.get(platform.machine())
        if number is not None:
            import ctypes  # milliseconds of the start of an embedded broker, which does not ask

            nice = os.getpriority(os.PRIO_PROCESS, 0)
            attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
            ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_int(0), attributes, ctypes.c_uint(0))
