"""Resource alarms: from measurements to what is on, and when to look again.

An alarm (memory, disk) is on as long as it has a cause. Three are known: what was measured, a person's
hand, and storage that cannot write. Causes come and go on their own; publishers are held back while any
alarm has any. Nothing is measured here, and no clock is read: `tasks.alarms` does both.

A measured alarm begins as RabbitMQ's does, memory above the watermark or free disk below the limit. It
ends a twentieth of the limit further on, so that it does not flap around the limit itself.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import Final

from amqp10broker.dataclass import dataclass

CHECK_MS_MAX: Final = 1_000
CHECK_MS_MIN: Final = 100
FILLED_BYTES_PER_MS: Final = 250_000
"""How fast memory or disk may fill: RabbitMQ's figure for its disk monitor, 250 MB/s."""
SLACK_DIVISOR: Final = 20
"""A measured alarm ends when this part of the limit is free again (5 %)."""
TIGHT_PERCENT: Final = 80
"""Memory is tight from this part of its limit on: what finds its own size grows no more."""


class Resource(StrEnum):
    """What can run low. The values are RabbitMQ's words in connection.blocked."""

    MEMORY = "memory"
    DISK = "disk"


class AlarmCause(StrEnum):
    """Why an alarm is on."""

    MEASURED = "measured"
    BY_HAND = "by hand"
    STORAGE = "storage cannot write"
    STREAMS = "a stream cannot be written"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured, and against what. None: the system does not say, or there is no limit."""

    value_bytes: int | None
    """Memory: used by this process. Disk: free for it."""
    limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """A cause of an alarm came or went."""

    resource: Resource
    cause: AlarmCause
    on: bool
    reading: Measurement | None
    """What was measured; None if the cause is another."""


@dataclass(slots=True)
class _AlarmState:
    causes: set[AlarmCause] = field(default_factory=set)
    since_ms: int = 0
    judged_by_bytes: int | None = None
    """The limit of the last judgement: under another one there is no slack."""


class Alarms:
    """Which alarms are on. `is_memory_tight`: the last measurement has found so much in use that the alarm is
    near.
    """

    def __init__(self) -> None:
        self.is_memory_tight = False
        self._states = {resource: _AlarmState() for resource in Resource}

    def __bool__(self) -> bool:
        return any(state.causes for state in self._states.values())

    def names(self) -> frozenset[str]:
        return frozenset(resource.value for resource, state in self._states.items() if state.causes)

    def causes(self, resource: Resource) -> tuple[AlarmCause, ...]:
        """Why it is on; empty if it is off."""
        return tuple(sorted(self._states[resource].causes))

    def since_ms(self, resource: Resource) -> int | None:
        """When it began, as `now_ms` was then; None if it is off."""
        state = self._states[resource]
        return state.since_ms if state.causes else None

    def measured(self, resource: Resource) -> bool:
        """Whether a measurement is among its causes."""
        return AlarmCause.MEASURED in self._states[resource].causes

    def put(self, resource: Resource, cause: AlarmCause, *, on: bool, now_ms: int) -> bool:
        """Add or take away one cause."""
        causes = self._states[resource].causes
        if (cause in causes) is on:
            return False
        if on:
            if not causes:
                self._states[resource].since_ms = now_ms
            causes.add(cause)
        else:
            causes.discard(cause)
        return True

    def judge(self, resource: Resource, reading: Measurement, now_ms: int) -> Change | None:
        """Raise or clear the measured cause of one alarm.

        Without a limit it is cleared. Without a measurement it stays as it is: nothing is known.
        """
        state = self._states[resource]
        if resource is Resource.MEMORY:
            self.is_memory_tight = _is_tight(reading)
        if reading.limit_bytes is None:
            on = False
        elif reading.value_bytes is None:
            return None
        else:
            limit = reading.limit_bytes
            if self.measured(resource) and state.judged_by_bytes == limit:
                limit = end_bytes(resource, limit)
            # As RabbitMQ: used memory above the limit, free disk below it.
            value = reading.value_bytes
            on = value > limit if resource is Resource.MEMORY else value < limit
            state.judged_by_bytes = reading.limit_bytes
        if not self.put(resource, AlarmCause.MEASURED, on=on, now_ms=now_ms):
            return None
        return Change(resource, AlarmCause.MEASURED, on, reading)

    def pause_ms(self, resource: Resource, reading: Measurement) -> int:
        """How long until the resource has to be measured again.

        The nearer the value is to where the alarm would begin, or end, the shorter: no longer than filling
        that gap takes at `FILLED_BYTES_PER_MS`, within `CHECK_MS_MIN` and `CHECK_MS_MAX`.
        """
        if reading.value_bytes is None or reading.limit_bytes is None:
            return CHECK_MS_MAX
        edge = reading.limit_bytes
        if self.measured(resource):
            edge = end_bytes(resource, edge)
        gap = abs(reading.value_bytes - edge)
        return min(CHECK_MS_MAX, max(CHECK_MS_MIN, gap // FILLED_BYTES_PER_MS))


def end_bytes(resource: Resource, limit_bytes: int) -> int:
    """Where a measured alarm ends: memory at or below it, free disk at or above it."""
    slack = limit_bytes // SLACK_DIVISOR
    return limit_bytes - slack if resource is Resource.MEMORY else limit_bytes + slack


def _is_tight(memory: Measurement) -> bool:
    used_bytes, limit_bytes = memory.value_bytes, memory.limit_bytes
    return (
        used_bytes is not None and limit_bytes is not None and 100 * used_bytes >= TIGHT_PERCENT * limit_bytes
    )
