"""A publishing link in virtual time: credit of both ends, a network that takes a while, and a queue.

The ends are the engine's own (`protocols.amqp10.credit`); the broker's limit is a fixed one or an
`AutoCredit`. Time goes by in milliseconds, and each that passes is one wake of each side.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from amqp10broker.protocols.amqp10.credit import ReceiverCredit, SenderCredit
from amqp10broker.sessions.credit import AutoCredit, AutoLimit, Why

BASE = 170


@dataclass
class Conditions:
    """What may change while it runs."""

    delay_ms: int = 0
    """One way."""
    pace: int = 100
    """Messages that the client can send in a millisecond."""
    confirm_ms: int = 0
    """How long the queue takes over each message, whatever their number."""
    confirms_per_ms: float = 1e9
    """How many it can confirm in a millisecond, one after the other."""
    size: int = 100
    tight: bool = False


class CreditLoop:
    """One link, from its attach on.

    Attributes:
        conditions: may be changed at any time.
        limit: the broker's, as it went, for each millisecond.
        confirmed: messages, in all.
        outstanding_max: the most that were not confirmed at a time.
    """

    def __init__(
        self,
        conditions: Conditions,
        *,
        fixed: int | None = None,
        most: int = 16_384,
        most_bytes: int = 1 << 23,
    ) -> None:
        self.conditions = conditions
        self.now_ms = 0
        self.credit = ReceiverCredit(0, fixed or BASE)
        self.sender = SenderCredit(0)
        self.auto: AutoCredit | None = None
        if fixed is None:
            limit = AutoLimit(BASE, most, most_bytes, 0, lambda: self.conditions.tight)
            self.auto = AutoCredit(self.credit, limit, self.credit.top_up)
        self.confirmed = 0
        self.limits: list[int] = []
        self.whys: list[Why] = []
        self.outstanding_max = 0
        self.told = 0
        self._to_broker: deque[tuple[int, int]] = deque()
        self._to_client: deque[tuple[int, int, int]] = deque()
        self._at_queue: deque[tuple[int, int]] = deque()
        self._may_confirm = 0.0
        self.credit.top_up()

    def run(self, ms: int) -> float:
        """Advance time; return how many messages were confirmed in each millisecond."""
        before = self.confirmed
        for _ in range(ms):
            self.step()
        return (self.confirmed - before) / ms

    def step(self) -> None:
        conditions = self.conditions
        self.now_ms += 1
        self._client(conditions)
        self._receive(conditions)
        self._confirm(conditions)
        if self.credit.granted is not None:
            count, credit = self.credit.granted
            self.credit.granted = None
            assert count + credit >= self.told, "a grant takes back what was granted"
            self.told = count + credit
            self._to_client.append((self.now_ms + conditions.delay_ms, count, credit))
        self.outstanding_max = max(self.outstanding_max, self.credit.outstanding)
        if self.auto is not None:
            self.limits.append(self.auto.auto.limit)
            self.whys.append(self.auto.auto.why)

    def _client(self, conditions: Conditions) -> None:
        while self._to_client and self._to_client[0][0] <= self.now_ms:
            _, count, credit = self._to_client.popleft()
            self.sender.set(count, credit, drain=False)
        sent = min(conditions.pace, self.sender.link_credit)
        if sent:
            self.sender.spend(sent)
            self._to_broker.append((self.now_ms + conditions.delay_ms, sent))

    def _receive(self, conditions: Conditions) -> None:
        while self._to_broker and self._to_broker[0][0] <= self.now_ms:
            _, count = self._to_broker.popleft()
            assert self.credit.receive(count) == count, "the client has kept to its credit"
            if self.auto is not None:
                self.auto.received(self.now_ms, count, count * conditions.size, held_back=False)
            self._at_queue.append((self.now_ms + conditions.confirm_ms, count))

    def _confirm(self, conditions: Conditions) -> None:
        self._may_confirm = min(self._may_confirm + conditions.confirms_per_ms, 1e9)
        done = 0
        while self._at_queue and self._at_queue[0][0] <= self.now_ms and self._may_confirm >= 1:
            due, count = self._at_queue.popleft()
            now = min(count, int(self._may_confirm))
            self._may_confirm -= now
            done += now
            if now < count:
                self._at_queue.appendleft((due, count - now))
        if not self._at_queue:
            self._may_confirm = min(self._may_confirm, conditions.confirms_per_ms)
        if done:
            self.credit.finish(done)
            self.confirmed += done
            if self.auto is not None:
                self.auto.answered(self.now_ms, done)
