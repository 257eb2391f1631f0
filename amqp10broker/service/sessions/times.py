"""When what happened last on a link: what tells since when it waits, also if nobody looked meanwhile.

Noted once a flow frame or a batch, never once a message. All times are of `Moment`, in ms.
"""

from __future__ import annotations

from amqp10broker.amqp10.credit import Grant, ReceiverCredit, SenderCredit
from amqp10broker.amqp10.delivery import PartialDelivery
from amqp10broker.amqp10.disposition import Outcome
from amqp10broker.service.moment import Moment


class ConsumerTimes:
    """Of a link on which a client receives.

    Attributes:
        flow_ms: the client's last flow with a credit; None: there was none.
        granted_ms: the last after which there was credit; None: there was none.
        credit_ms: since when there is credit, or none.
        sent_ms: deliveries were written last; None: there were none.
        unsent_ms: since when deliveries wait in the session.
        request_ms: the queue was asked last.
        settled_ms: the client decided on deliveries last; None: it never did.
    """

    __slots__ = (
        "_has_credit",
        "_last",
        "_moment",
        "credit_ms",
        "flow_ms",
        "granted_ms",
        "request_ms",
        "sent_ms",
        "settled_ms",
        "unsent_ms",
    )

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._has_credit = False
        self._last: Grant | None = None
        self.credit_ms = moment.ms
        self.flow_ms: int | None = None
        self.granted_ms: int | None = None
        self.sent_ms: int | None = None
        self.unsent_ms = moment.ms
        self.request_ms = moment.ms
        self.settled_ms: int | None = None

    def on_flow(self, credit: SenderCredit) -> None:
        """A flow has come, which has perhaps set the credit."""
        if credit.last is self._last:
            return
        self._last = credit.last
        self.flow_ms = self._moment.ms
        if credit.link_credit:
            self.granted_ms = self._moment.ms
        self._note(credit)

    def on_drained(self, credit: SenderCredit) -> None:
        """A drain has been answered."""
        self._note(credit)

    def on_sent(self, credit: SenderCredit) -> None:
        """Deliveries were written."""
        self.sent_ms = self._moment.ms
        self._note(credit)

    def _note(self, credit: SenderCredit) -> None:
        has_credit = credit.link_credit > 0
        if has_credit is not self._has_credit:
            self._has_credit = has_credit
            now_ms = self._moment.ms
            if has_credit:
                self._moment.measures.receiver_credit_zero.count(now_ms - self.credit_ms)
            self.credit_ms = now_ms

    def handed_over(self) -> None:
        """The first delivery that waits in the session has come."""
        self.unsent_ms = self._moment.ms

    @property
    def now_ms(self) -> int:
        """The present."""
        return self._moment.ms

    def requested(self) -> None:
        """The queue was asked for messages."""
        self.request_ms = self._moment.ms

    def settled(self) -> None:
        """The client decided on deliveries."""
        self.settled_ms = self._moment.ms

    @property
    def idle_ms(self) -> int:
        """Since when the client could have had the next delivery, as far as it goes."""
        return self.credit_ms if self.sent_ms is None else max(self.credit_ms, self.sent_ms)


class PublisherTimes:
    """Of a link on which a client publishes.

    Attributes:
        attached_ms: the link was attached.
        received_ms: deliveries came last; None: there were none.
        granted_ms: credit was granted last.
        credit_ms: since when the client has credit, or none.
        part_ms: a part of a delivery that is not whole came last.
        outcome: that was told last; None: none was.
        outcome_ms: when.
    """

    __slots__ = (
        "_has_credit",
        "_moment",
        "_part",
        "attached_ms",
        "credit_ms",
        "granted_ms",
        "outcome",
        "outcome_ms",
        "part_ms",
        "received_ms",
    )

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._has_credit = True
        self._part: tuple[int, int] | None = None
        self.attached_ms = self.credit_ms = self.granted_ms = self.part_ms = moment.ms
        self.received_ms: int | None = None
        self.outcome: Outcome | None = None
        self.outcome_ms: int | None = None

    def received(self, credit: ReceiverCredit) -> None:
        """Deliveries have come."""
        self.received_ms = self._moment.ms
        self.note(credit)

    def note_part(self, partial: PartialDelivery | None) -> None:
        """Frames have come on this session; look whether some of this link's delivery were among them."""
        part = None if partial is None else (partial.delivery_id, partial.size_bytes)
        if part != self._part:
            self._part = part
            self.part_ms = self._moment.ms

    def answered(self, credit: ReceiverCredit, outcome: Outcome | None) -> None:
        """Deliveries have their outcome; None: the client does not hear of it."""
        if outcome is not None:
            self.outcome = outcome
            self.outcome_ms = self._moment.ms
        self.note(credit)

    def note(self, credit: ReceiverCredit) -> None:
        """Look at the credit, which has perhaps changed."""
        if credit.granted is not None:
            self.granted_ms = self._moment.ms
        has_credit = credit.link_credit > 0
        if has_credit is not self._has_credit:
            self._has_credit = has_credit
            now_ms = self._moment.ms
            if has_credit:
                self._moment.measures.sender_credit_zero.count(now_ms - self.credit_ms)
            self.credit_ms = now_ms
