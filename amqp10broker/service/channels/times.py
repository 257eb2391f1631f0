"""When what happened last at a consumer of AMQP 0-9-1: what tells since when it waits.

Noted once a batch, never once a message. All times are of `Moment`, in ms.
"""

from __future__ import annotations

from amqp10broker.service.moment import Moment


class ConsumerTimes:
    """Of one consumer.

    Attributes:
        moved_ms: deliveries were written last; before the first, when it began.
        asked_ms: the queue was asked for some last.
        settled_ms: the client decided on some last; None: it never did.
    """

    __slots__ = ("_moment", "_room_ms", "asked_ms", "moved_ms", "settled_ms")

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._room_ms = self.moved_ms = self.asked_ms = moment.ms
        self.settled_ms: int | None = None

    def asked(self) -> None:
        """The queue was asked for messages."""
        self.asked_ms = self._moment.ms

    def moved(self) -> None:
        """Deliveries were written."""
        self.moved_ms = self._moment.ms

    def settled(self, *, was_full: bool) -> None:
        """The client decided on deliveries.

        Args:
            was_full: it held as many as it may until then.
        """
        self.settled_ms = self._moment.ms
        if was_full:
            self._room_ms = self._moment.ms

    @property
    def idle_ms(self) -> int:
        """Since when it could have had the next delivery, if its queue had any."""
        return max(self.moved_ms, self._room_ms)
