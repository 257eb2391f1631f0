"""The times of the last events of a link, from which its waits are derived, also if it was not observed
meanwhile.

Noted once per flow frame or batch, never per message. All times are of `Moment`, in ms.
"""

from __future__ import annotations

from dataclasses import field

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.credit import Grant, ReceiverCredit, SenderCredit
from amqp10broker.protocols.amqp10.delivery import PartialDelivery
from amqp10broker.protocols.amqp10.settling import Outcome
from amqp10broker.sessions.measures import Moment


@dataclass(eq=False, slots=True)
class ConsumerTimes:
    """The times of a link on which a client receives. `granted_ms`: the last flow that left credit; None:
    there was none. `settled_ms`: the client's last decision on deliveries; None: there was none.
    `unsent_ms`: the first delivery that waits to be written; `request_ms`: the last request to the queue.
    The consumer sets these three.
    """

    _moment: Moment
    credit_ms: int = field(init=False)
    unsent_ms: int = field(init=False)
    request_ms: int = field(init=False)
    flow_ms: int | None = None
    granted_ms: int | None = None
    sent_ms: int | None = None
    settled_ms: int | None = None
    _has_credit: bool = False
    _last: Grant | None = None

    def __post_init__(self) -> None:
        self.credit_ms = self.unsent_ms = self.request_ms = self._moment.ms

    def on_flow(self, credit: SenderCredit) -> None:
        if credit.last is self._last:
            return
        self._last = credit.last
        self.flow_ms = self._moment.ms
        if credit.link_credit:
            self.granted_ms = self._moment.ms
        self.note(credit)

    def on_sent(self, credit: SenderCredit) -> None:
        self.sent_ms = self._moment.ms
        self.note(credit)

    def note(self, credit: SenderCredit) -> None:
        has_credit = credit.link_credit > 0
        if has_credit is not self._has_credit:
            self._has_credit = has_credit
            now_ms = self._moment.ms
            if has_credit:
                self._moment.measures.receiver_credit_zero.count(now_ms - self.credit_ms)
            self.credit_ms = now_ms

    @property
    def idle_ms(self) -> int:
        """The earliest time from which the client could have got the next delivery."""
        return self.credit_ms if self.sent_ms is None else max(self.credit_ms, self.sent_ms)


@dataclass(eq=False, slots=True)
class PublisherTimes:
    """The times of a link on which a client publishes."""

    _moment: Moment
    attached_ms: int = field(init=False)
    credit_ms: int = field(init=False)
    granted_ms: int = field(init=False)
    part_ms: int = field(init=False)
    received_ms: int | None = None
    outcome: Outcome | None = None
    outcome_ms: int | None = None
    _has_credit: bool = True
    _part: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.attached_ms = self.credit_ms = self.granted_ms = self.part_ms = self._moment.ms

    def received(self, credit: ReceiverCredit) -> None:
        self.received_ms = self._moment.ms
        self.note(credit)

    def note_part(self, partial: PartialDelivery | None) -> None:
        """Note frames of the session, which may contain a part of this link's delivery."""
        part = None if partial is None else (partial.delivery_id, partial.size_bytes)
        if part != self._part:
            self._part = part
            self.part_ms = self._moment.ms

    def answered(self, credit: ReceiverCredit, outcome: Outcome | None) -> None:
        """Note the outcome of deliveries; None if it is not sent to the client."""
        if outcome is not None:
            self.outcome = outcome
            self.outcome_ms = self._moment.ms
        self.note(credit)

    def note(self, credit: ReceiverCredit) -> None:
        if credit.granted is not None:
            self.granted_ms = self._moment.ms
        has_credit = credit.link_credit > 0
        if has_credit is not self._has_credit:
            self._has_credit = has_credit
            now_ms = self._moment.ms
            if has_credit:
                self._moment.measures.sender_credit_zero.count(now_ms - self.credit_ms)
            self.credit_ms = now_ms
