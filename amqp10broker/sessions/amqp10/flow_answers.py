"""Pending answers to the flows of a consuming client, and the state of its activity.

A flow with echo or drain is answered by a flow when the queue has answered the request that it caused and all
deliveries before that are written. So an answer is first owed, then requested, then given.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.protocols.amqp10.types import Symbol

ANSWERS_OWED_MAX: Final = 256
"""The most unanswered flows with echo or drain per link or pair; further ones get no answer of their own."""

ACTIVE: Final = Symbol("rabbitmq:active")
"""Link state property that states whether a client is the single active consumer."""

Properties = dict[Symbol, bool]


class FlowAnswers:
    """The pending answers of one link; `unasked` if a flow came since the last request to the queue."""

    __slots__ = ("_active_told", "_asked", "_owed", "tells_active", "unasked")

    def __init__(self, *, tells_active: bool) -> None:
        self.tells_active = tells_active
        self.unasked = False
        self._active_told: bool | None = None
        self._asked = 0
        self._owed = 0

    def owe(self) -> None:
        self._owed = min(self._owed + 1, ANSWERS_OWED_MAX)

    def asked(self) -> None:
        """Note a request to the queue that covers all flows so far."""
        self.unasked = False
        self._asked += self._owed
        self._owed = 0

    def take(self) -> int:
        """Return how many flows are to be sent now that the queue has answered."""
        asked, self._asked = self._asked, 0
        return asked

    def take_drained(self) -> None:
        self._asked = max(0, self._asked - 1)

    def take_active(self, *, active: bool) -> Properties | None:
        """Return the properties that report the consumer's activity; None if the client already has them."""
        if active is self._active_told:
            return None
        self._active_told = active
        return {ACTIVE: active}
