"""The time of the present step, and the measurements of its connection."""

from __future__ import annotations

from amqp10broker.sessions.measures import Measures


class Moment:
    """The present of a session or channel: its task sets it once per step, by the broker's clock."""

    __slots__ = ("measures", "ms")

    def __init__(self, ms: int = 0, measures: Measures | None = None) -> None:
        self.ms = ms
        self.measures = measures or Measures()
