"""The running broker as operations use it (`operations.node`), and its inspection for `doctor`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqp10broker import portable
from amqp10broker.auth.tls import first_end_ms
from amqp10broker.config import Config
from amqp10broker.errors import NotFound
from amqp10broker.operations.node import Node, TraceSink
from amqp10broker.operations.snapshot import (
    BrokerView,
    CertificateSeen,
    ClockSeen,
    FileSystem,
    FollowedView,
    Inspection,
    ListenerSeen,
    RecordingsView,
    RecordingView,
    Rules,
    SummaryView,
    SuspendedLinkView,
    TraceView,
    WaitingView,
    mount_of,
)
from amqp10broker.runtime.admin.admin import AdminContext
from amqp10broker.runtime.connections import login
from amqp10broker.runtime.connections.connections import what_waits
from amqp10broker.runtime.connections.sockets import Address, is_loopback, peer_text
from amqp10broker.runtime.journal.bootstrap import tell_idle_patterns, tell_left_out
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe import meters
from amqp10broker.runtime.observe.recorder import Recordings
from amqp10broker.runtime.observe.resource_monitor import ResourceMonitor
from amqp10broker.runtime.observe.trace_sinks import FileSink
from amqp10broker.runtime.observe.tracing import Tracing
from amqp10broker.runtime.observe.watches import Watches
from amqp10broker.sessions.diagnosis.survey import Selection
from amqp10broker.sessions.messages import ConfigChanged
from amqp10broker.storage.folder import FORMAT

if TYPE_CHECKING:
    from amqp10broker.observe.faults import Faults

_log = Log("amqp10broker.admin")


class NodeContext(AdminContext):
    """The broker with its observers, and the parts that change while it runs. `faults`: the faults injected
    on request; None: it is not in test mode.
    """

    resource_monitor: ResourceMonitor
    tracing: Tracing
    watches: Watches
    recordings: Recordings
    faults: Faults | None

    def set_flow(self, name: str, value: object, *, source: str) -> None:
        """Change one of the three flow settings while running. Later grants follow it. `value`: 1 .. 2**32 -
        1, or ``auto`` where permitted. Raises `ConfigError`; nothing was changed.
        """
        config = replace(self.config, flow=self.config.flow.changed(name, value, source=source))
        self.recordings.configured(config)  # first: all events until now belong to the earlier configuration
        self.config = config
        self.connections.tell(ConfigChanged(config))
        _log.info("setting changed", name=name, value=value)


class RunningNode(Node):
    def __init__(self, broker: NodeContext, by: str) -> None:
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
        return await inspect(self._broker)

    def view(self, choose: Mapping[str, Any]) -> BrokerView:
        return self._broker.view(Selection.read("status", choose))

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
        return await what_waits(self._broker.connections, counted, Selection.read("waiting", choose))

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


CERTIFICATES: Final = ("tls_certificate", "tls_ca", "cluster_tls_cert_file", "cluster_tls_ca_file")
GUEST: Final = "guest"
STA_UNSYNC: Final = 0x0040
"""The status bit of adjtimex(2) for a clock that is not synchronized."""
TIMESYNCD: Final = "/run/systemd/timesync/synchronized"
"""The file that systemd-timesyncd creates when it has set the clock for the first time."""
_TIMEX_LONGS: Final = 64
"""More longs than struct timex has."""
_STATUS_AT: Final = 5
"""The offset of its field status, in longs."""


async def inspect(broker: NodeContext) -> Inspection:
    """Return all findings of a node. Files are read in a thread."""
    at_ms = broker.clock.now_ms()
    ahead_ms = _wall_ms() - at_ms
    node, config = broker.node_view(), broker.config
    began_ms = at_ms - int(node.uptime_s * 1000)
    return Inspection(
        node=node,
        rules=_rules(broker),
        listeners=tuple(_listeners(broker)),
        guest=await _guest(broker),
        certificates=await login.run_slow(partial(certificates, config, began_ms, ahead_ms)),
        clock=_clock(ahead_ms, tuple(broker.clock_watch.notes().values())),
        at_ms=at_ms,
        boot_id=meters.read_text("/proc/sys/kernel/random/boot_id").strip() or None,
        files_open=portable.open_files(),
        files_max=portable.limit("RLIMIT_NOFILE"),
        memory_total_bytes=portable.machine_memory(),
        memory_allowed_bytes=meters.memory_total(meters.read_text),
        file_system=await login.run_slow(partial(_file_system, node.data_dir)),
        format=None if broker.data is None else FORMAT,
    )


def _wall_ms() -> int:
    return int(time.time() * 1000)


def _rules(broker: NodeContext) -> Rules:
    config = broker.config
    return Rules(
        passwords="internal" in config.auth_backends,
        plain_needs_tls=config.plain_needs_tls,
        loopback_users=config.loopback_users,
        anonymous_user=broker.authenticator.anonymous_user,
        cluster_tls=config.cluster_tls_cert_file is not None,
        connection_max=config.connection_max,
        http_connection_max=config.http_connection_max if broker.http_addresses else 0,
        trace_frames=config.trace_frames,
        test_mode=config.test_mode,
    )


def _listeners(broker: NodeContext) -> Iterator[ListenerSeen]:
    config = broker.config
    between_nodes = [port for protocol, _, port in broker.as_member.listeners() if protocol == "clustering"]
    # Other nodes connect at the clients' addresses, to a port of their own.
    nodes = [(host, port) for host, _ in broker.addresses for port in between_nodes]
    found: Iterable[tuple[str, Iterable[Address], bool]] = (
        ("amqp", broker.addresses, False),
        ("amqp", broker.tls_addresses, True),
        ("http", broker.http_addresses, config.http_tls),
        ("metrics", broker.metrics_addresses, config.http_tls),
        ("clustering", nodes, config.cluster_tls_cert_file is not None),
    )
    for purpose, addresses, tls in found:
        for address in addresses:
            yield ListenerSeen(purpose, peer_text(address), tls, is_loopback(address[0]))


async def _guest(broker: NodeContext) -> bool | None:
    if broker.catalog.users.by_name.get(GUEST) is None:
        return None
    password = GUEST.encode()
    if broker.passwords.quick(GUEST, password):
        return True
    return bool(await login.run_slow(broker.passwords.slow(GUEST, password)))


def certificates(config: Config, began_ms: int = 0, ahead_ms: int = 0) -> tuple[CertificateSeen, ...]:
    found = []
    for setting in CERTIFICATES:
        path = getattr(config, setting)
        if path is None:
            continue
        try:
            changed = os.stat(path).st_mtime * 1000 - ahead_ms > began_ms
        except OSError:
            changed = True  # it existed at the start
        found.append(CertificateSeen(setting, path, first_end_ms(meters.read_text(path)), changed))
    return tuple(found)


def _clock(ahead_ms: int, notes: tuple[str, ...] = ()) -> ClockSeen:
    status = _clock_status()
    if status is not None and status & STA_UNSYNC:
        told = "the kernel knows of nothing that keeps the clock right (adjtimex says STA_UNSYNC)"
        return ClockSeen(ahead_ms, False, told, notes)
    if status is not None:
        return ClockSeen(ahead_ms, True, "the kernel says that something keeps it right (adjtimex)", notes)
    if os.path.exists(TIMESYNCD):
        return ClockSeen(ahead_ms, True, "systemd-timesyncd has set it", notes)
    return ClockSeen(ahead_ms, None, "the system does not say whether something keeps it right", notes)


def _clock_status() -> int | None:
    import ctypes  # this import takes milliseconds of the start, and is rarely needed

    timex = (ctypes.c_long * _TIMEX_LONGS)()
    library = portable.libc()
    if not hasattr(library, "adjtimex") or library.adjtimex(timex) < 0:
        return None
    return ctypes.c_int.from_buffer(timex, _STATUS_AT * ctypes.sizeof(ctypes.c_long)).value


def _file_system(folder: str | None) -> FileSystem | None:
    if folder is None:
        return None
    found = mount_of(os.path.realpath(folder), meters.read_text("/proc/self/mountinfo"))
    if found is None:
        return None
    kind, at = found
    try:
        return FileSystem(kind, at, shutil.disk_usage(folder).total)
    except OSError:
        return FileSystem(kind, at, None)
