"""The time of the present wake, and what is measured of its connection."""

from __future__ import annotations

from amqp10broker.service.measures import Measures


class Moment:
    """What a session or channel takes the present to be: its task sets it once a wake, by the broker's clock.

    Attributes:
        ms: milliseconds.
        measures: of the connection.
    """

    __slots__ = ("measures", "ms")

    def __init__(self, ms: int = 0, measures: Measures | None = None) -> None:
        self.ms = ms
        self.measures = measures or Measures()
