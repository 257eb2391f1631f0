"""How much memory and disk there is, and the limits at which an alarm begins."""

from __future__ import annotations

import time
from typing import Final

from amqp10broker.config import Config
from amqp10broker.config.amounts import disk_limit, memory_watermark
from amqp10broker.operations.alarms import Alarms, Measurement, Resource
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe.meters import Meter

_log = Log("amqp10broker.alarms")

DISK_FREE_LIMIT: Final = "50MB"
"""The limit of a broker with a data folder that was given none; RabbitMQ's."""
GIVING_BACK_SHARE: Final = 20
"""Giving memory back holds up everybody, 40 to 80 ms for a gigabyte: after it, 20 times as long passes."""


class ResourceReadings:
    """Measures for one broker. `limits`: bytes; None: there is none, or what it is a share of is not known.
    `total_bytes`: memory that there is; None if it is not known.
    """

    def __init__(self, meter: Meter, alarms: Alarms) -> None:
        """Measure nothing yet. `alarms`: while that of memory is on, what is only held free is given back
        before it is counted.
        """
        self._meter = meter
        self._alarms = alarms
        self._give_back_after = 0.0
        self._unknown: set[Resource] = set()
        self.limits: dict[Resource, int | None] = dict.fromkeys(Resource)
        self.total_bytes: int | None = None

    def learn_limit(self, resource: Resource, config: Config) -> None:
        """Work out the limit of the configuration."""
        self.total_bytes = total = self._meter.memory_total()
        if resource is Resource.MEMORY:
            limit = memory_watermark(config.vm_memory_high_watermark).bytes_of(total)
            setting: str | None = config.vm_memory_high_watermark
        else:
            setting = disk_setting(config)
            limit = None if setting is None else disk_limit(setting).bytes_of(total)
        self.limits[resource] = limit
        if limit is not None:
            _log.debug("alarm limit", name=resource.value, limit_bytes=limit, memory_total_bytes=total)
        elif setting is not None:
            _log.warning(
                "no alarm can be raised: the system does not say how much memory there is; give the limit as "
                "an amount",
                name=resource.value,
                setting=setting,
            )

    def read(self, resource: Resource, config: Config) -> Measurement:
        limit = self.limits[resource]
        if limit is None:
            return Measurement(None, None)
        value = self._memory_used(limit) if resource is Resource.MEMORY else self.disk_free(config)
        self._complain(resource, unknown=value is None)
        return Measurement(value, limit)

    def _memory_used(self, limit: int) -> int | None:
        used = self._meter.memory_used()
        if used is None or not (used > limit or self._alarms.measured(Resource.MEMORY)):
            return used
        began = time.perf_counter()
        if began < self._give_back_after:
            return used
        self._meter.give_back()
        ended = time.perf_counter()
        self._give_back_after = ended + GIVING_BACK_SHARE * (ended - began)
        return self._meter.memory_used()

    def disk_free(self, config: Config) -> int | None:
        """Free bytes; None if the system has no figure."""
        return self._meter.disk_free(disk_path(config))

    def _complain(self, resource: Resource, *, unknown: bool) -> None:
        if unknown and resource not in self._unknown:
            self._unknown.add(resource)
            _log.warning("cannot be measured: its alarm stays as it is", name=resource.value)
        elif not unknown and resource in self._unknown:
            self._unknown.discard(resource)
            _log.info("can be measured again", name=resource.value)


def disk_path(config: Config) -> str:
    """Return the folder whose file system is measured: the data folder, else the working directory."""
    return config.data_dir or "."


def disk_setting(config: Config) -> str | None:
    """The limit that holds; None without a data folder unless one was given."""
    if config.disk_free_limit is not None:
        return config.disk_free_limit
    return DISK_FREE_LIMIT if config.data_dir else None
