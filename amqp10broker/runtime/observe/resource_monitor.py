"""Memory and disk: the monitor measures, lets `alarms` decide, and notifies the connections.

While there are connections, over HTTP too, or an alarm is on, it measures every second and up to ten times as
often near a limit; otherwise it sleeps until a client connects. After a burst it runs until memory was
returned to the system (`Tidying`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import trio

from amqp10broker.config import Config
from amqp10broker.config.setting_types import disk_limit, memory_watermark
from amqp10broker.config.settings import CONFIG_SETTINGS
from amqp10broker.errors import ConfigError
from amqp10broker.operations.running import (
    CHECK_MS_MAX,
    AlarmCause,
    Alarms,
    Change,
    Measurement,
    Resource,
    end_bytes,
)
from amqp10broker.operations.snapshot import DiskView, MemoryView, ResourcesView, ResourceView
from amqp10broker.runtime.connections.connections import ClientsContext
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe.meters import Meter
from amqp10broker.sessions.messages import AlarmChanged

_log = Log("amqp10broker.alarms")

LIMITS: Final[Mapping[str, Resource]] = {
    "vm_memory_high_watermark": Resource.MEMORY,
    "disk_free_limit": Resource.DISK,
}
"""The settings with the limits of alarms; both may be changed while running."""


class ResourceMonitor:
    """Measures memory and disk of one broker, and holds its publishers back while either is low. `elsewhere`:
    names of the alarms of other nodes of the cluster, which hold publishers back, too.
    """

    def __init__(self, node_context: ClientsContext, meter: Meter, http_clients: Callable[[], int]) -> None:
        self.alarms = Alarms()
        self.elsewhere: dict[int, frozenset[str]] = {}
        self._node_context = node_context
        self._meter = meter
        self._http_clients = http_clients
        self._limits: dict[Resource, int | None] = dict.fromkeys(Resource)
        """In bytes; None: there is no limit, or it is a share of an unknown size."""
        self._total_bytes: int | None = None
        self._give_back_after = 0.0
        self._unknown: set[Resource] = set()
        self._woken = trio.Event()
        self._asleep = False
        self._tidying = Tidying(meter)
        self._used_bytes: int | None = None
        self._untidy = False

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Compute the limits and measure for the first time, before clients may connect."""
        for resource in Resource:
            self._learn_limit(resource)
        self.check()
        self._tidying.look(trio.current_time(), self._used_bytes, 0)

    async def run(self) -> None:
        """Measure again and again, until cancelled."""
        awake = False
        while True:
            self._woken = trio.Event()
            # It runs once more after the last has ended: only then can it measure what that has left.
            connected = self._node_context.connections or self._http_clients()
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
        """Measure once, and raise or clear alarms. Returns the milliseconds to the next measurement."""
        now_ms = self._node_context.clock.now_ms()
        pauses = []
        for resource in Resource:
            reading = self._read(resource)
            change = self.alarms.judge(resource, reading, now_ms)
            if change is not None:
                self._tell(change)
            pauses.append(self.alarms.pause_ms(resource, reading))
            if resource is Resource.MEMORY:
                self._used_bytes = reading.value_bytes
        return min(pauses)

    def _checked(self) -> int:
        # This is `check`, but a fault in it must not end the broker; alarms then stay as they are.
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

    def set_alarm(self, name: str, *, on: bool, cause: AlarmCause = AlarmCause.BY_HAND) -> None:
        """Add or remove a cause of an alarm, which is on while it has any. Raises `ValueError` without that
        alarm.
        """
        if name not in set(Resource):
            raise ValueError(f"no alarm '{name}': there are {' and '.join(sorted(Resource))}")
        resource = Resource(name)
        if self.alarms.put(resource, cause, on=on, now_ms=self._node_context.clock.now_ms()):
            self._tell(Change(resource, cause, on, None))
        self.wake()

    def set_limit(self, name: str, written: object, *, source: str) -> int | None:
        """Change a limit while running, and apply it at once. Returns the limit in bytes; None if it is a
        share of a memory of unknown size. Raises `ConfigError`; nothing was changed.
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
        self._learn_limit(resource)
        _log.info("setting changed", name=name, value=written, limit_bytes=self._limits[resource])
        self.check()
        self._woken.set()  # the next measurement may be due earlier
        return self._limits[resource]

    # --- measuring ------------------------------------------------------------------------------

    def _learn_limit(self, resource: Resource) -> None:
        config = self._node_context.config
        self._total_bytes = total = self._meter.memory_total()
        if resource is Resource.MEMORY:
            limit = memory_watermark(config.vm_memory_high_watermark).bytes_of(total)
            setting: str | None = config.vm_memory_high_watermark
        else:
            setting = disk_setting(config)
            limit = None if setting is None else disk_limit(setting).bytes_of(total)
        self._limits[resource] = limit
        if limit is not None:
            _log.debug("alarm limit", name=resource.value, limit_bytes=limit, memory_total_bytes=total)
        elif setting is not None:
            _log.warning(
                "no alarm can be raised: the system does not say how much memory there is; give the limit as "
                "an amount",
                name=resource.value,
                setting=setting,
            )

    def _read(self, resource: Resource) -> Measurement:
        limit = self._limits[resource]
        if limit is None:
            return Measurement(None, None)
        value = self._memory_used(limit) if resource is Resource.MEMORY else self._disk_free()
        if value is None and resource not in self._unknown:
            self._unknown.add(resource)
            _log.warning("cannot be measured: its alarm stays as it is", name=resource.value)
        elif value is not None and resource in self._unknown:
            self._unknown.discard(resource)
            _log.info("can be measured again", name=resource.value)
        return Measurement(value, limit)

    def _disk_free(self) -> int | None:
        return self._meter.disk_free(disk_path(self._node_context.config))

    def _memory_used(self, limit: int) -> int | None:
        used = self._meter.memory_used()
        if used is None or not (used > limit or self.alarms.measured(Resource.MEMORY)):
            return used
        began = time.perf_counter()
        if began < self._give_back_after:
            return used
        self._meter.give_back()
        ended = time.perf_counter()
        self._give_back_after = ended + GIVING_BACK_SHARE * (ended - began)
        return self._meter.memory_used()

    # --- what is shown ----------------------------------------------------------------------------

    def view(self) -> ResourcesView:
        config = self._node_context.config
        memory = self._view_of(Resource.MEMORY, config.vm_memory_high_watermark)
        disk = self._view_of(Resource.DISK, disk_setting(config))
        return ResourcesView(
            MemoryView(self._meter.memory_used(), self._total_bytes, memory),
            DiskView(self._disk_free(), disk_path(config), disk),
        )

    def _view_of(self, resource: Resource, setting: str | None) -> ResourceView:
        limit = self._limits[resource]
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
        """Note the alarms of another node; an empty set if it is lost."""
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


DISK_FREE_LIMIT: Final = "50MB"
"""RabbitMQ's limit, for a broker with a data folder and no configured limit."""
GIVING_BACK_SHARE: Final = 20
"""The pause after memory was returned, as a multiple of the time that it took. It delays all clients, 40 to
80 ms for a gigabyte.
"""


def disk_path(config: Config) -> str:
    return config.data_dir or "."


def disk_setting(config: Config) -> str | None:
    """Return the limit that applies; None without a data folder unless one was configured."""
    if config.disk_free_limit is not None:
        return config.disk_free_limit
    return DISK_FREE_LIMIT if config.data_dir else None


_memory_log = Log("amqp10broker.memory")


LOOK_S: Final = 3.0
"""The time over which processor use is measured, in seconds."""
QUIET_SHARE: Final = 0.1
"""The share of one processor below which a broker is quiet."""
WORTH_BYTES: Final = 16 * 1024 * 1024
"""The least growth in bytes since memory was last returned; for less, a delay is not worth it."""
PAUSE_SHARE: Final = 100
"""The pause after tidying, as a multiple of the time that it took."""
CONNECTIONS_MAX: Final = 1_000
"""With more connections the garbage collector has too much to visit."""


class Tidying:
    """Returns memory to the system after a burst, when the broker is quiet; cheap when there is nothing to
    do.

    Ended connections leave cycles of tasks, scopes and frames. The garbage collector has high thresholds so
    that it does not visit messages in flight (`cli.serve.GC_THRESHOLDS`), and never collects the oldest
    generation. And the C library keeps freed memory. Tidying delays all clients: 10 ms for a thousand ended
    connections, 40 to 80 ms for a gigabyte.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._tidy_bytes: int | None = None
        self._looked_at = 0.0
        self._busy_s = 0.0
        self._not_before = 0.0

    def look(self, now: float, used_bytes: int | None, connections: int) -> bool:
        """Tidy up if there is garbage and the broker is quiet. `now`: seconds, of a clock that never runs
        back. `used_bytes`: memory in use; None: unknown, and nothing is done. Returns whether garbage is
        left, so that another call is needed.
        """
        if used_bytes is None:
            return False
        if self._tidy_bytes is None or used_bytes < self._tidy_bytes:
            self._tidy_bytes = used_bytes
        if used_bytes < self._tidy_bytes + WORTH_BYTES:
            self._looked_at = 0.0
            return False
        if not self._looked_at:
            self._begin_to_look(now)
            return True
        elapsed = now - self._looked_at
        if elapsed < LOOK_S:
            return True
        quiet = self._meter.busy_s() - self._busy_s < QUIET_SHARE * elapsed
        self._begin_to_look(now)
        if quiet and now >= self._not_before:
            self._tidy(now, used_bytes, connections)
            return False
        return True

    def _begin_to_look(self, now: float) -> None:
        self._looked_at = now
        self._busy_s = self._meter.busy_s()

    def _tidy(self, now: float, used_bytes: int, connections: int) -> None:
        began = time.perf_counter()
        if connections <= CONNECTIONS_MAX:
            gc.collect()
        self._meter.give_back()
        took = time.perf_counter() - began
        self._not_before = now + PAUSE_SHARE * took
        # The remaining memory is in use.
        self._tidy_bytes = self._meter.memory_used()
        self._looked_at = 0.0
        _memory_log.debug(
            "memory given back", before_bytes=used_bytes, after_bytes=self._tidy_bytes, seconds=round(took, 3)
        )
