"""The times of the last events at a consumer of AMQP 0-9-1, from which its waits are derived.

Noted once per batch, never per message. All times are of `Moment`, in ms.
"""

from __future__ import annotations

from amqp10broker.sessions.measures import Moment


class ChannelConsumerTimes:
    """The times of one consumer. `settled_ms`: the client's last decision; None: there was none."""

    __slots__ = ("_moment", "_room_ms", "asked_ms", "moved_ms", "settled_ms")

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._room_ms = self.moved_ms = self.asked_ms = moment.ms
        self.settled_ms: int | None = None

    def asked(self) -> None:
        self.asked_ms = self._moment.ms

    def moved(self) -> None:
        self.moved_ms = self._moment.ms

    def settled(self, *, was_full: bool) -> None:
        """Note decisions; `was_full` if it held as many deliveries as it may until then."""
        self.settled_ms = self._moment.ms
        if was_full:
            self._room_ms = self._moment.ms

    @property
    def idle_ms(self) -> int:
        """The earliest time from which it could have got the next delivery, if its queue had any."""
        return max(self.moved_ms, self._room_ms)
