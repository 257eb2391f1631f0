"""The time of the present wake."""

from __future__ import annotations


class Moment:
    """What a session or channel takes the present to be: its task sets it once a wake, by the broker's clock.

    Attributes:
        ms: milliseconds.
    """

    __slots__ = ("ms",)

    def __init__(self, ms: int = 0) -> None:
        self.ms = ms
