"""Memory and disk: measures, lets `alarms` decide, and tells the connections.

One task of the service nursery. While anything is connected, over HTTP too, or an alarm is on, it measures
every second and up to ten times as often near a limit; otherwise it sleeps until a client connects. After a
burst it stays awake until memory was given back (`tidying`). Shares of memory are worked out once, as limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import trio

from amqp10broker.config import Config
from amqp10broker.config.records import CONFIG_SETTINGS
from amqp10broker.errors import ConfigError
from amqp10broker.operations.alarms import CHECK_MS_MAX, AlarmCause, Alarms, Change, Resource, end_bytes
from amqp10broker.operations.snapshot import DiskView, MemoryView, ResourcesView, ResourceView
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.connections.connections import Connections
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe.meters import Meter
from amqp10broker.runtime.observe.resource_readings import ResourceReadings, disk_path, disk_setting
from amqp10broker.runtime.tidying import Tidying
from amqp10broker.sessions.messages import AlarmChanged

_log = Log("amqp10broker.alarms")

LIMITS: Final[Mapping[str, Resource]] = {
    "vm_memory_high_watermark": Resource.MEMORY,
    "disk_free_limit": Resource.DISK,
}
"""The settings that say when an alarm begins; both may be changed while running."""


class AlarmContext(Protocol):
    """The context of the monitor in the broker."""

    clock: WallClock
    config: Config
    alarms: frozenset[str]
    connections: Connections

    @property
    def http_clients(self) -> int: ...


class ResourceMonitor:
    """Measures memory and disk of one broker, and holds its publishers back while either is low. `elsewhere`:
    names of those that are on at other nodes of the cluster; they hold publishers back, too.
    """

    def __init__(self, node_context: AlarmContext, meter: Meter) -> None:
        self.alarms = Alarms()
        self.elsewhere: dict[int, frozenset[str]] = {}
        self._node_context = node_context
        self._meter = meter
        self._readings = ResourceReadings(meter, self.alarms)
        self._woken = trio.Event()
        self._asleep = False
        self._tidying = Tidying(meter)
        self._used_bytes: int | None = None
        self._untidy = False

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Compute the limits and measure for the first time, before clients may connect."""
        for resource in Resource:
            self._readings.learn_limit(resource, self._node_context.config)
        self.check()
        self._tidying.look(trio.current_time(), self._used_bytes, 0)

    async def run(self) -> None:
        """Measure again and again, until cancelled."""
        awake = False
        while True:
            self._woken = trio.Event()
            # Once more when the last has gone: only then can be told what they have left behind.
            connected = self._node_context.connections or self._node_context.http_clients
            if connected or self.alarms or self._untidy or awake:
                awake = bool(connected)
                with trio.move_on_after(self._checked() / 1000):
                    await self._woken.wait()
            else:
                self._asleep = True
                await self._woken.wait()
                self._asleep = False

    def wake(self) -> None:
        """Resume measuring at a new connection."""
        if self._asleep:
            self._woken.set()

    def check(self) -> int:
        """Measure once, and raise or clear what follows from it. Returns milliseconds until it has to be done
        again.
        """
        now_ms = self._node_context.clock.now_ms()
        pauses = []
        for resource in Resource:
            reading = self._readings.read(resource, self._node_context.config)
            change = self.alarms.judge(resource, reading, now_ms)
            if change is not None:
                self._tell(change)
            pauses.append(self.alarms.pause_ms(resource, reading))
            if resource is Resource.MEMORY:
                self._used_bytes = reading.value_bytes
        return min(pauses)

    def _checked(self) -> int:
        # As `check`; a fault in it must not end the broker, and alarms then stay as they are.
        try:
            pause_ms = self.check()
            self._untidy = self._tidying.look(
                trio.current_time(), self._used_bytes, len(self._node_context.connections)
            )
            return pause_ms
        except Exception as error:
            _log.error("memory and disk could not be watched by a fault in the broker", exc_info=error)
            return CHECK_MS_MAX

    # --- changes from outside ---------------------------------------------------------------------

    def put(self, name: str, *, on: bool, cause: AlarmCause) -> None:
        """Add a cause to an alarm, or take it away; an alarm is on while it has any. Raises `ValueError` if
        no alarm of this name.
        """
        if name not in set(Resource):
            raise ValueError(f"no alarm '{name}': there are {' and '.join(sorted(Resource))}")
        resource = Resource(name)
        if self.alarms.put(resource, cause, on=on, now_ms=self._node_context.clock.now_ms()):
            self._tell(Change(resource, cause, on, None))
        self.wake()

    def set_limit(self, name: str, written: object, *, source: str) -> int | None:
        """Change a limit while running, and judge by it at once. Returns the limit in bytes; None if it is a
        share of a memory whose size is not known. Raises `ConfigError` if it cannot be read, or there is no
        such setting; nothing was changed.
        """
        resource = LIMITS.get(name)
        if resource is None:
            raise ConfigError(source, f"names '{name}'", f"must name one of {', '.join(LIMITS)}")
        setting = CONFIG_SETTINGS[name]
        if not isinstance(written, str):
            raise ConfigError(source, "is no text", setting.allowed)
        setting.check(written, source)
        changes: dict[str, Any] = {name: written}
        self._node_context.config = replace(self._node_context.config, **changes)
        self._readings.learn_limit(resource, self._node_context.config)
        _log.info("setting changed", name=name, value=written, limit_bytes=self._readings.limits[resource])
        self.check()
        self._woken.set()  # the next measurement may be due earlier
        return self._readings.limits[resource]

    # --- what is shown ----------------------------------------------------------------------------

    def view(self) -> ResourcesView:
        """Memory and disk, measured now."""
        config = self._node_context.config
        memory = self._view_of(Resource.MEMORY, config.vm_memory_high_watermark)
        disk = self._view_of(Resource.DISK, disk_setting(config))
        return ResourcesView(
            MemoryView(self._meter.memory_used(), self._readings.total_bytes, memory),
            DiskView(self._readings.disk_free(config), disk_path(config), disk),
        )

    def _view_of(self, resource: Resource, setting: str | None) -> ResourceView:
        limit = self._readings.limits[resource]
        since_ms = self.alarms.since_ms(resource)
        since = None if since_ms is None else datetime.fromtimestamp(since_ms / 1000, UTC)
        return ResourceView(
            setting=setting,
            limit_bytes=limit,
            alarm_ends_at_bytes=None if limit is None else end_bytes(resource, limit),
            alarm=since_ms is not None,
            causes=tuple(cause.value for cause in self.alarms.causes(resource)),
            since=None if since is None else since.isoformat(timespec="seconds"),
            on_for_s=None
            if since_ms is None
            else max(0, self._node_context.clock.now_ms() - since_ms) / 1000,
        )

    def _tell(self, change: Change) -> None:
        figures: dict[str, Any] = {}
        if change.reading is not None:
            measured = "used_bytes" if change.resource is Resource.MEMORY else "free_bytes"
            figures = {measured: change.reading.value_bytes, "limit_bytes": change.reading.limit_bytes}
        still = self.alarms.causes(change.resource)
        if still and not change.on:
            figures["still_on_because"] = ", ".join(still)
        _log.warning(
            "alarm" if change.on else "alarm cleared",
            name=change.resource.value,
            cause=change.cause.value,
            **figures,
        )
        self._hold_back()

    def hear(self, node: int, names: frozenset[str]) -> None:
        """Another node has these alarms, and no others; or it is lost, with all that it had."""
        known = self.elsewhere.pop(node, frozenset())
        if names:
            self.elsewhere[node] = names
        for name in sorted(names ^ known):
            event = "alarm at another node" if name in names else "alarm cleared at another node"
            _log.warning(event, name=name, node=node)
        self._hold_back()

    def _hold_back(self) -> None:
        node_context = self._node_context
        before = bool(node_context.alarms)
        node_context.alarms = self.alarms.names().union(*self.elsewhere.values())
        if before != bool(node_context.alarms):
            node_context.connections.tell(AlarmChanged(bool(node_context.alarms)))
