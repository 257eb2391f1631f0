"""A quorum queue for worlds that know no time: the test says what time it is."""

from __future__ import annotations

from typing import Any

from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.queues.commands import TICK
from amqp10broker.queues.quorum.queue import QuorumQueue


class ClockedQueue:
    """Stands where a world has a queue that is given commands alone; `now_ms` is the time of the next."""

    def __init__(self, spec: QueueSpec) -> None:
        self.now_ms = 1_000
        self.queue = QuorumQueue(spec.name, settings=spec.settings, now_ms=self.now_ms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)

    def apply(self, command: Any, now_ms: int) -> None:
        self.queue.apply(command, self.now_ms)

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.queue.apply(TICK, self.now_ms)
