"""A receiver for many messages: encoded ones in lists, no object for each.

`blocking.Receiver` makes a `Delivery` of every message, because messages are settled one by one. What reads
a stream wants bytes only, and what takes a queue's messages settles all of them at once; without that object
and its bookkeeping a message costs about half as much. Credit is granted by hand: the reader knows best how
many messages it still wants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amqp10broker.amqp10.disposition import ACCEPTED, RELEASED, Outcome
from amqp10broker.amqp10.events import DeliveriesReceived
from amqp10broker.amqp10.link import ReceiverLink
from amqp10broker.amqp10.performatives import Attach, Flow, Source
from amqp10broker.client.blocking import Client
from amqp10broker.client.driving import WaitFor
from amqp10broker.client.ends import ReceiverEnd, SessionOwner
from amqp10broker.client.errors import TimedOutError

Keep = Callable[[Sequence[int]], int]
"""Of messages of these sizes, in bytes, how many are kept, from the first on."""


class BulkEnd(ReceiverEnd):
    """The end of a `BulkReceiver`.

    Attributes:
        payloads: encoded messages that have arrived and were not taken.
        received: messages that have arrived since the attach.
        unsettled: numbers of those that were kept and are not settled, taken or not.
        filters_in_place: names of the filters that the broker applies, once attached.
        keep: what says how many messages are kept of those that arrive; None keeps all. The others are to be
            given back, see `BulkReceiver.release_surplus`.
        stopped: after `stop`, whether nothing is under way any more.
    """

    def __init__(
        self, session: SessionOwner, link: ReceiverLink, address: str | None, credit_limit: int
    ) -> None:
        super().__init__(session, link, address, credit_limit)
        self.payloads: list[bytes] = []
        self.received = 0
        self.filters_in_place: frozenset[str] = frozenset()
        self.keep: Keep | None = None
        self.stopped = True
        self.unsettled: list[int] = []
        self._surplus: list[int] = []

    def on_attached(self, attach: Attach) -> None:
        """The broker's attach arrived."""
        super().on_attached(attach)
        if isinstance(attach.source, Source):
            self.filters_in_place = frozenset(map(str, attach.source.filter or ()))

    def on_received(self, event: DeliveriesReceived) -> None:
        """Messages arrived. Of those that are not kept, only the numbers are."""
        payloads: Sequence[bytes] = event.payloads
        count = len(payloads)
        kept = count if self.keep is None else self.keep([len(payload) for payload in payloads])
        self.payloads += payloads if kept == count else payloads[:kept]
        self.received += count
        if not event.settled:
            self.unsettled += event.delivery_ids[:kept]
            self._surplus += event.delivery_ids[kept:]
        # Nothing waits for the program to be done with them: they count as finished on arrival.
        self._engine.inbound.finish(self.link, count)

    def on_flowed(self, flow: Flow) -> None:
        """The broker told the link's state, behind all messages that it has sent."""
        if not flow.link_credit:
            self.stopped = True

    def stop(self) -> None:
        """Take the credit back that is left; `stopped` comes to hold when all has come that was under way.

        Only while some of the last grant has come: the next flow that says a credit of 0 was then written by
        a broker that has seen this grant, and after it nothing can come. An answer to an earlier drain, which
        says 0 too, stands before the first message of the grant.

        Raises:
            ClientError: the link or what it stands on has ended.
        """
        self.check()
        self.stopped = False
        self._engine.grant(self.link, 0, echo=True)

    def settle_kept(self, outcome: Outcome) -> None:
        """Tell the broker the outcome of all that is `unsettled`.

        Raises:
            ClientError: the link or what it stands on has ended, and the messages are the queue's again.
        """
        self.unsettled = self._settle_all(self.unsettled, outcome)

    def release_surplus(self) -> None:
        """Give back what was not kept: to its place, and not as a failed delivery (3.4.4).

        Raises:
            ClientError: as `settle_kept`.
        """
        self._surplus = self._settle_all(self._surplus, RELEASED)

    def _settle_all(self, ids: list[int], outcome: Outcome) -> list[int]:
        if ids:
            self.check()
            self._engine.settling.settle_received(ids, outcome)
        return []


class BulkReceiver:
    """A link on which many messages arrive. Made by `bulk_receiver`.

    Attributes:
        end: the protocol state.
    """

    def __init__(self, client: Client, end: BulkEnd) -> None:
        self.end = end
        self._client = client
        self._goal = 0

    @property
    def credit(self) -> int:
        """Messages that the broker may still send."""
        return self.end.credit

    @property
    def exhausted(self) -> bool:
        """Whether the broker has given back credit of the last `grant` with drain: it had no more."""
        return self.end.drained and self.end.received < self._goal

    def grant(self, credit: int, *, drain: bool = False) -> None:
        """Let the broker send so many messages from now on; replaces what was granted before.

        Args:
            credit: messages.
            drain: what cannot be sent at once is given back; `exhausted` then comes to hold.

        Raises:
            ClientError: the link or what it stands on has ended.
            ValueError: it is no credit.
        """
        self.end.grant(credit, drain=drain)
        self._goal = self.end.received + credit

    def wait(self, timeout_s: float, until: Callable[[], bool] | None = None) -> bool:
        """Read until something is there to take, or another condition holds.

        Args:
            timeout_s: seconds.
            until: None for any message.

        Returns:
            Whether it came to hold in time.

        Raises:
            ClientError: the link or what it stands on has ended.
        """
        try:
            self.wait_for("message", timeout_s, until or (lambda: bool(self.end.payloads)))
        except TimedOutError:
            return False
        return True

    def wait_for(self, what: str, timeout_s: float, until: Callable[[], bool]) -> None:
        """`wait` for what has to come.

        Raises:
            TimedOutError: it did not hold in time; the error says `what`.
            ClientError: the link or what it stands on has ended.
        """
        self._client.wait(WaitFor(until, lambda: self.end.failure, timeout_s, what))

    def take(self) -> list[bytes]:
        """What has arrived, encoded, in order."""
        taken = self.end.payloads
        self.end.payloads = []
        return taken

    def accept(self) -> None:
        """All that has arrived is done with, and the broker is told, as far as that goes without waiting.

        Raises:
            ClientError: the link or what it stands on has ended, and the messages are the queue's again.
        """
        self.end.settle_kept(ACCEPTED)
        self._client.write_soon()

    def release(self) -> None:
        """Give all that has arrived back to its places in the queue; raises as `accept`."""
        self.end.settle_kept(RELEASED)
        self.release_surplus()

    def release_surplus(self) -> None:
        """Give back what was not kept; raises as `accept`."""
        self.end.release_surplus()
        self._client.write_soon()

    def detach(self) -> None:
        """Close the link, without waiting for the answer."""
        self.end.detach()
        self._client.write_soon()


def bulk_receiver(
    client: Client,
    address: str,
    *,
    settled: bool = True,
    filters: Mapping[str, Any] | None = None,
    desired_capabilities: Sequence[str] = (),
    max_message_size_bytes: int = 0,
    timeout_s: float | None = None,
) -> BulkReceiver:
    """Attach a link, without credit so far.

    Args:
        client: connected; the first session is used.
        address: where messages come from.
        settled: the broker is to forget messages as it sends them; else settle them with `accept`.
        filters: of the source; `BulkEnd.filters_in_place` says which the broker applies.
        desired_capabilities: what the broker may do beside; one that does not know them ignores them.
        max_message_size_bytes: larger ones end the link; 0 for no limit.
        timeout_s: seconds for the broker's answer.

    Raises:
        LinkRefusedError: the broker did not attach it; the condition says why.
    """
    end = client.session.receiver(
        address,
        settled=settled,
        filters=filters,
        desired_capabilities=desired_capabilities,
        max_message_size_bytes=max_message_size_bytes,
        end_type=BulkEnd,
    )
    assert isinstance(end, BulkEnd)
    client.attach(end, timeout_s)
    return BulkReceiver(client, end)
