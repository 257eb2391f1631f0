"""The running broker as operations see it (`operations.node.Node`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import trio

from amqp10broker.auth.passwords import Passwords
from amqp10broker.errors import BrokerError, NotFound
from amqp10broker.metadata.queue import StartQueue
from amqp10broker.operations.inspection import Inspection
from amqp10broker.operations.node import ClusterNode, Node, TraceSink
from amqp10broker.operations.snapshot import (
    BrokerView,
    FollowedView,
    NodeView,
    RecordingsView,
    RecordingView,
    SummaryView,
    SuspendedLinkView,
    TraceView,
    WaitingView,
)
from amqp10broker.runtime.connections.connections import Occupied, what_waits
from amqp10broker.runtime.connections.listener import Listeners
from amqp10broker.runtime.context import ConnectionContext
from amqp10broker.runtime.journal.bootstrap import tell_idle_patterns, tell_left_out
from amqp10broker.runtime.journal.data import Afterwards, Data
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe.recordings import Recordings
from amqp10broker.runtime.observe.resource_monitor import ResourceMonitor
from amqp10broker.runtime.observe.tracing import FileSink, Tracing
from amqp10broker.runtime.observe.watches import Watches
from amqp10broker.runtime.queues.durability import QueueContext
from amqp10broker.sessions.diagnosis.survey import Selection
from amqp10broker.sessions.messages import ConfigChanged

if TYPE_CHECKING:
    from amqp10broker.observe.faults.table import Faults

_log = Log("amqp10broker.admin")

BY_ADMIN_SOCKET: Final = "admin socket"
"""The name in the log of the machine's owner: no other user reaches the socket."""


class Administered(ConnectionContext, Occupied, QueueContext):
    """The broker for operators: operations, the HTTP API, metrics, and its part in a cluster.

    Attributes:
        data: the data folder; None in memory only, and before the broker runs.
        broker_listeners: where clients come in; None before it serves.
        afterwards: what is to be done with the folder when the broker has stopped; None: nothing.
        faults: that it commits on request; None: it is not in test mode.
        over: set when the broker cannot go on, or is to stop: the caller then leaves the block.
        failure: the reason why it cannot go on; leaving the block raises it.
        resource_monitor: measures memory and disk, and raises and clears the alarms.
        as_member: this node as one of a cluster, or alone.
    """

    addresses: list[tuple[str, int]]
    tls_addresses: list[tuple[str, int]]
    http_addresses: list[tuple[str, int]]
    metrics_addresses: list[tuple[str, int]]
    passwords: Passwords
    data: Data | None
    resource_monitor: ResourceMonitor
    over: trio.Event
    failure: BrokerError | None
    tracing: Tracing
    watches: Watches
    recordings: Recordings
    broker_listeners: Listeners | None
    afterwards: Afterwards | None
    faults: Faults | None
    as_member: ClusterNode
    start_queue: StartQueue
    view: Callable[[Selection], BrokerView]
    node_view: Callable[[], NodeView]

    def set_flow(self, name: str, value: object, *, source: str) -> None:
        """Change one of the three flow settings while running; grants from now on follow it.

        Args:
            value: 1 .. 2**32 - 1, or ``auto`` where that may be.

        Raises:
            ConfigError: no such setting, or out of range; nothing was changed.
        """
        config = replace(self.config, flow=self.config.flow.changed(name, value, source=source))
        self.recordings.configured(config)  # first: what has happened until now is of the run before
        self.config = config
        self.connections.tell(ConfigChanged(config))
        _log.info("setting changed", name=name, value=value)


class RunningNode(Node):
    def __init__(self, broker: Administered, by: str = BY_ADMIN_SOCKET) -> None:
        self._broker = broker
        self._by = by
        self.cluster = broker.as_member
        self.faults = broker.faults
        self.now_ms = broker.clock.now_ms
        self.set_alarm = broker.resource_monitor.set_alarm
        self.connections = broker.connections.views
        self.stop_recording = broker.recordings.stop
        self.watch_link = broker.watches.begin
        self.watches = broker.watches.views
        self.unwatch_link = broker.watches.end
        self.timeline = broker.watches.timeline

    async def inspect(self) -> Inspection:
        from amqp10broker.runtime.admin.inspection import inspect  # few ask

        return await inspect(self._broker)

    def view(self, choose: Mapping[str, Any]) -> BrokerView:
        return self._broker.view(Selection.asked("status", choose))

    # --- settings, alarms -------------------------------------------------------------------------

    def set_flow(self, name: str, value: int | str) -> None:
        self._broker.set_flow(name, value, source=f"set {name}")

    def set_limit(self, name: str, value: str) -> int | None:
        return self._broker.resource_monitor.set_limit(name, value, source=f"set {name}")

    def alarms(self) -> list[str]:
        return sorted(self._broker.alarms)

    def clock_notes(self) -> list[str]:
        return list(self._broker.clock_watch.notes().values())

    def definitions_imported(self, left_out: Sequence[str]) -> None:
        tell_left_out(left_out)
        tell_idle_patterns(self._broker.catalog)

    # --- connections ------------------------------------------------------------------------------

    async def waiting(
        self, choose: Mapping[str, Any], *, queues: bool
    ) -> tuple[SummaryView, Sequence[WaitingView]]:
        counted = self._broker.catalog if queues else ()
        return await what_waits(self._broker.connections, counted, Selection.asked("waiting", choose))

    def close_connection(self, number: int, reason: str) -> None:
        connection = self._broker.connections.get(number)
        if connection is None:
            raise NotFound(f"connection {number}", f"no connection {number}")
        about = {"peer": connection.peer, "user": connection.user, "reason": reason}
        self._log("close-connection", f"connection {number}", **about)
        connection.close(reason, node_stops=False)

    def close_connections(self, reason: str, *, user: str | None = None, vhost: str | None = None) -> None:
        for connection in list(self._broker.connections.values()):
            if user in (None, connection.user) and vhost in (None, connection.vhost):
                connection.close(reason, node_stops=False)

    def suspended_links(self) -> Sequence[SuspendedLinkView]:
        return self._broker.resumable_links.suspended_views(None)

    def end_suspended_link(self, number: int) -> SuspendedLinkView:
        ended = self._broker.resumable_links.end_suspended(number)
        link = f"link '{ended.name}' of container '{ended.container_id}'"
        about = {"user": ended.user, "vhost": ended.vhost, "unsettled": ended.unsettled}
        self._log("end-suspended-link", link, **about)
        return ended

    def _log(self, operation: str, subject: str, **about: object) -> None:
        _log.info("operation", operation=operation, object=subject, by=self._by, **about)

    # --- recordings, traces -----------------------------------------------------------------------

    async def start_recording(self, folder: str, every_ms: int | None, run_id: str | None) -> RecordingView:
        every_ms = self._broker.config.record_every if every_ms is None else every_ms
        return await self._broker.recordings.start(folder, every_ms=every_ms, run_id=run_id)

    def recording(self) -> RecordingsView:
        return RecordingsView(self._broker.recordings.view(), self._broker.recordings.failed)

    def trace_into_file(self, what: str, file: str, *, frames: bool) -> TraceView:
        sink = FileSink(file)
        try:
            return self._broker.tracing.begin(what, sink, file, frames=frames).view
        except BaseException:
            sink.close("it did not begin")
            raise

    def trace_into(self, what: str, sink: TraceSink, *, frames: bool) -> TraceView:
        return self._broker.tracing.begin(what, sink, "a terminal", frames=frames).view

    def end_trace(self, what: str, *reason: str) -> TraceView:
        return self._broker.tracing.end(what, *reason).view

    def follow_links(self, vhost: str, *, on: bool) -> FollowedView:
        return self._broker.watches.follow(vhost) if on else self._broker.watches.unfollow(vhost)
