"""What a consuming client of AMQP 1.0 is still to hear of its link: answers to its flows, and its activity.

A flow with echo or drain is answered by a flow, when the queue has answered what was asked because of it and
all deliveries before that are written. An answer is thus owed first, then asked for, then given.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.amqp10.types import Symbol

ANSWERS_OWED_MAX: Final = 256
"""Flows with echo or drain remembered per link, or pair of links, while they cannot be answered. Each gets
an answer of its own; a client that asks more often than that while it takes nothing gets fewer."""

ACTIVE: Final = Symbol("rabbitmq:active")
"""Link state property by which a client hears whether it is the single active consumer."""

Properties = dict[Symbol, bool]


class FlowAnswers:
    """Of one link.

    Attributes:
        tells_active: the client is to hear whether it is the single active consumer.
        unasked: a flow has come since the queue was asked last.
    """

    __slots__ = ("_active_told", "_asked", "_owed", "tells_active", "unasked")

    def __init__(self, *, tells_active: bool) -> None:
        self.tells_active = tells_active
        self.unasked = False
        self._active_told: bool | None = None
        self._asked = 0
        self._owed = 0

    def owe(self) -> None:
        """A flow has come that wants an answer."""
        self._owed = min(self._owed + 1, ANSWERS_OWED_MAX)

    def asked(self) -> None:
        """The queue is asked for what the client's flows have granted so far."""
        self.unasked = False
        self._asked += self._owed
        self._owed = 0

    def take(self) -> int:
        """The queue has answered: how many flows go to the client now."""
        asked, self._asked = self._asked, 0
        return asked

    def take_drained(self) -> None:
        """The flow that ends a drain is one of the answers."""
        self._asked = max(0, self._asked - 1)

    def take_active(self, *, active: bool) -> Properties | None:
        """The queue says whether the consumer is the active one; None: the client knows."""
        if active is self._active_told:
            return None
        self._active_told = active
        return {ACTIVE: active}
