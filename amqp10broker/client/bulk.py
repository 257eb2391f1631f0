"""A receiver for many messages: lists of encoded ones, without an object for each.

`blocking.Receiver` makes a `Delivery` of every message, because messages are settled one by one. A reader
of a stream needs bytes only, and a reader that empties a queue settles all messages at once; without the
object and its bookkeeping a message costs about half as much. Credit is granted by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amqp10broker.client.blocking import Client
from amqp10broker.client.driving import WaitFor
from amqp10broker.client.errors import TimedOutError
from amqp10broker.client.session import ClientSession, ReceiverEnd
from amqp10broker.protocols.amqp10.events import DeliveriesReceived
from amqp10broker.protocols.amqp10.link import ReceiverLink
from amqp10broker.protocols.amqp10.performatives import Attach, Flow, Source
from amqp10broker.protocols.amqp10.settling import ACCEPTED, RELEASED, Outcome

Keep = Callable[[Sequence[int]], int]
"""A function that takes the sizes of messages, in bytes, and returns how many of them to keep, from the first
on.
"""


class BulkEnd(ReceiverEnd):
    """The end of a `BulkReceiver`.

    Attributes:
        unsettled: delivery numbers of kept messages that are not settled, taken or not.
        keep: decides how many of the arriving messages are kept; None keeps all. The others are released
            by `BulkReceiver.release_surplus`.
    """

    def __init__(
        self, session: ClientSession, link: ReceiverLink, address: str | None, credit_limit: int
    ) -> None:
        super().__init__(session, link, address, credit_limit)
        self.payloads: list[bytes] = []
        self.received = 0
        self.filters_in_place: frozenset[str] = frozenset()
        self.keep: Keep | None = None
        self.stopped = True
        self.unsettled: list[int] = []
        self.surplus: list[int] = []

    def on_attached(self, attach: Attach) -> None:
        super().on_attached(attach)
        if isinstance(attach.source, Source):
            self.filters_in_place = frozenset(map(str, attach.source.filter or ()))

    def on_received(self, event: DeliveriesReceived) -> None:
        payloads: Sequence[bytes] = event.payloads
        count = len(payloads)
        kept = count if self.keep is None else self.keep([len(payload) for payload in payloads])
        self.payloads += payloads if kept == count else payloads[:kept]
        self.received += count
        if not event.settled:
            self.unsettled += event.delivery_ids[:kept]
            self.surplus += event.delivery_ids[kept:]
        # Finished on arrival: the window does not wait for the program.
        self._engine.inbound.finish(self.link, count)

    def on_flowed(self, flow: Flow) -> None:
        if not flow.link_credit:
            self.stopped = True

    def stop(self) -> None:
        """Take the remaining credit back; `stopped` becomes true when all messages in transit have arrived.

        Call it only after part of the last grant has arrived: the next flow with a credit of 0 was then
        written by a broker that has received this grant, and nothing can follow it. The answer to an
        earlier drain, which has a credit of 0 too, comes before the first message of the grant.
        """
        self.check()
        self.stopped = False
        self._engine.grant(self.link, 0, echo=True)

    def settle_all(self, ids: list[int], outcome: Outcome) -> None:
        """Settle messages, kept ones or surplus, which are taken off the list."""
        if ids:
            self.check()
            self._engine.settling.settle_received(ids, outcome)
            ids.clear()


class BulkReceiver:
    """A link on which many messages arrive, made by `bulk_receiver`.

    The methods raise `ClientError` once the link has ended; unsettled messages then return to the queue.
    """

    def __init__(self, client: Client, end: BulkEnd) -> None:
        self.end = end
        self._client = client
        self._goal = 0

    @property
    def credit(self) -> int:
        return self.end.credit

    @property
    def exhausted(self) -> bool:
        """Whether the broker gave back credit of the last `grant` with drain: it had no more messages."""
        return self.end.drained and self.end.received < self._goal

    def grant(self, credit: int, *, drain: bool = False) -> None:
        """As `links.ReceiverBase.grant`. `drain`: unusable credit is given back; `exhausted` becomes true."""
        self.end.grant(credit, drain=drain)
        self._goal = self.end.received + credit

    def wait(self, timeout_s: float, until: Callable[[], bool] | None = None) -> bool:
        """Read until a message can be taken, or until another condition holds."""
        try:
            self.wait_for("message", timeout_s, until or (lambda: bool(self.end.payloads)))
        except TimedOutError:
            return False
        return True

    def wait_for(self, what: str, timeout_s: float, until: Callable[[], bool]) -> None:
        self._client.wait(WaitFor(until, lambda: self.end.failure, timeout_s, what))

    def take(self) -> list[bytes]:
        taken = self.end.payloads
        self.end.payloads = []
        return taken

    def accept(self) -> None:
        self.end.settle_all(self.end.unsettled, ACCEPTED)
        self._client.write_soon()

    def release(self) -> None:
        self.end.settle_all(self.end.unsettled, RELEASED)
        self.release_surplus()

    def release_surplus(self) -> None:
        # Release is not a failed delivery (3.4.4).
        self.end.settle_all(self.end.surplus, RELEASED)
        self._client.write_soon()

    def detach(self) -> None:
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
    """Attach a link for receiving, without credit. `settled`: the broker removes messages as it sends them;
    else settle them with `accept`. Raises `LinkRefusedError`.
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
