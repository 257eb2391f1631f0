"""The network side of a queue source: messages received and settled, connections lost and made again.

Nothing is under way between two calls: credit is granted for what is wanted, and what the queue does not
have is taken back by drain (part 2, section 2.6.10). When a segment has all the bytes that it may have
(`credit_pacing`), the credit that is left is set to 0; what was under way by then is dropped as it comes, and
released. Whatever goes wrong, the connection is dropped, and messages that are not settled are the queue's
again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from amqp10broker.amqp10.disposition import RELEASED
from amqp10broker.amqp10.events import DeliveriesReceived
from amqp10broker.amqp10.link import ReceiverLink
from amqp10broker.amqp10.performatives import Attach, Flow, Source
from amqp10broker.amqp10.types import Described, Symbol
from amqp10broker.client.blocking import Client
from amqp10broker.client.blocking_links import Receiver
from amqp10broker.client.ends import Delivery, ReceiverEnd, SessionOwner
from amqp10broker.client.errors import ClientError, LinkError, SessionEndedError, TimedOutError
from amqp10broker.client.management import Management
from amqp10broker.spark.connection import dial, queue_address, with_retries
from amqp10broker.spark.credit_pacing import Grants
from amqp10broker.spark.errors import QueueUnusable
from amqp10broker.spark.options import QueueOptions
from amqp10broker.spark.stream_bounds import OFFSET_SPEC

IDLE_S: Final = 15.0
"""After so long without a word the broker may have taken us for dead: a new connection is made."""

_LOG: Final = logging.getLogger("amqp10broker.spark")


class QueueLink:
    """A receiver for one queue that is connected when it is needed. The `MessageSource` of an `Intake`.

    Attributes:
        losses: grows when a connection ends otherwise than in order.
    """

    def __init__(self, options: QueueOptions) -> None:
        """Prepare; nothing is connected."""
        self.losses = 0
        self._options = options
        self._client: Client | None = None
        self._receiver: Receiver | None = None
        self._unsettled: list[Delivery] = []
        self._used_at = 0.0
        self._grants = Grants(options.link_credit)

    def count(self) -> int | None:
        """How many messages wait in the queue, as the broker's management says; None if it does not.

        Raises:
            SparkSourceError: the broker is away for too long, or refuses us.
        """
        return with_retries(self._options.connection, self._count, queue=self._options.queue)

    def receive(self, count: int, wait_s: float) -> Sequence[bytes]:
        """Messages, encoded, which stay unsettled until `settle` or `drop`.

        Args:
            count: no more than so many; fewer, too, if they are large (`credit_pacing`).
            wait_s: how long to wait for a first one; 0 takes what is there.

        Raises:
            SparkSourceError: the broker is away for too long, or refuses us. All is in the queue again.
        """
        self._unsettled = with_retries(
            self._options.connection, lambda: self._receive(count, wait_s), queue=self._options.queue
        )
        return [delivery.payload for delivery in self._unsettled]

    def settle(self) -> None:
        """Tell the broker that what was received is ours. If it cannot be told, it will come again."""
        assert self._client is not None
        assert self._receiver is not None
        try:
            self._receiver.accept(self._unsettled)
            self._client.flush()
        except ClientError as error:
            _LOG.warning(
                "queue '%s': the connection was lost before %d messages could be settled; they are in the "
                "spool, and will come again: %s",
                self._options.queue,
                len(self._unsettled),
                error,
            )
            self.losses += 1
            self.drop()
        self._unsettled = []

    def drop(self) -> None:
        """Give back what is not settled, and close the connection.

        Said in so many words, because RabbitMQ 4.3 counts messages that come back from a lost connection as
        failed deliveries, which a quorum queue gives up after some, and released ones not.
        """
        if self._unsettled and self._receiver is not None:
            try:
                self._receiver.release(self._unsettled)
            except ClientError:
                pass  # the connection is lost, and they are the queue's again without our saying so
        self.close()

    def close(self) -> None:
        """Close the connection in order."""
        self._unsettled = []
        if self._client is not None:
            if not self._client.close():
                self.losses += 1
            self._client = self._receiver = None

    # --- parts --------------------------------------------------------------------------------------

    def _count(self) -> int | None:
        with dial(self._options.connection, purpose="queue") as client:
            found = self._entry(client).get("message_count")
        return found if isinstance(found, int) else None

    def _entry(self, client: Client) -> dict[Any, Any]:
        """What the management says of the queue; nothing if there is none, or not for this user."""
        try:
            management = Management(client)
            status, body = management.ask("GET", queue_address(self._options.queue))
            management.close()
        except (LinkError, SessionEndedError):
            return {}
        return body if status == 200 and isinstance(body, dict) else {}

    def _receive(self, count: int, wait_s: float) -> list[Delivery]:
        try:
            end = self._attached().end
            assert isinstance(end, _QueueEnd)
            grants = self._grants
            grants.begin()
            found: list[Delivery] = []
            while len(found) < count and not grants.full:
                wanted = grants.next(count - len(found))
                some = self._fetch(end, wanted, 0.0 if found else wait_s)
                found += some
                if len(some) < wanted:
                    break
        except BaseException:
            self.losses += 1
            self.drop()
            raise
        self._used_at = time.monotonic()
        return found

    def _fetch(self, end: _QueueEnd, count: int, wait_s: float) -> list[Delivery]:
        """Up to `count` messages, fewer when the segment is full; afterwards none is under way."""
        client = self._client
        assert client is not None
        grants = self._grants
        idle_s = self._options.idle_timeout_s
        end.begin_fetch(count)
        try:
            if wait_s:
                try:
                    client.wait(lambda: bool(end.ready), lambda: end.failure, wait_s, "message")
                except TimedOutError:
                    pass  # there is none, which drain will confirm
            if not end.drained and not grants.full:
                end.begin_drain()
                client.wait(
                    lambda: end.drained or grants.full, lambda: end.failure, idle_s, "answer to our drain"
                )
            if not end.drained:
                end.begin_stop()
                client.wait(
                    lambda: end.stopped, lambda: end.failure, idle_s, "answer to our link-credit of 0"
                )
        finally:
            end.end_drain()
        grants.end_grant()
        end.release_surplus()
        client.flush_now()
        return end.take(count)

    def _attached(self) -> Receiver:
        if self._receiver is not None and time.monotonic() - self._used_at < IDLE_S:
            return self._receiver
        self.close()
        self._client = client = dial(self._options.connection, purpose="queue")
        kind = self._entry(client).get("type")
        # Where nobody says what kind of queue it is, a stream says that it applies this filter, which no
        # other queue of this broker knows. RabbitMQ says so of every queue, but it tells all who may read.
        filters = None if kind else {OFFSET_SPEC: Described(Symbol(OFFSET_SPEC), "next")}
        end = client.session.receiver(queue_address(self._options.queue), filters=filters, end_type=_QueueEnd)
        client.attach(end)
        assert isinstance(end, _QueueEnd)
        end.grants = self._grants
        if kind == "stream" if kind else end.is_stream:
            raise QueueUnusable(
                f"'{self._options.queue}' is a stream: read it with the option stream, which needs no spool, "
                "or name a classic or quorum queue"
            )
        self._receiver = Receiver(client, end)
        return self._receiver


class _QueueEnd(ReceiverEnd):
    """A receiving end that keeps what there is room for, and knows whether it is attached to a stream.

    Attributes:
        is_stream: once attached.
        grants: what says how much is kept; to be set before the first grant.
        stopped: after `begin_stop`, whether nothing is under way any more.
    """

    grants: Grants

    def __init__(
        self, session: SessionOwner, link: ReceiverLink, address: str | None, credit_limit: int
    ) -> None:
        super().__init__(session, link, address, credit_limit)
        self.is_stream = False
        self.stopped = True
        self._surplus: list[int] = []

    def on_attached(self, attach: Attach) -> None:
        """The broker's attach arrived."""
        super().on_attached(attach)
        source = attach.source
        self.is_stream = isinstance(source, Source) and OFFSET_SPEC in map(str, source.filter or ())

    def on_received(self, event: DeliveriesReceived) -> None:
        """Messages arrived. Of those that there is no room for, only the numbers are kept."""
        kept = self.grants.keep([len(payload) for payload in event.payloads])
        ids = event.delivery_ids
        if kept < len(ids):
            self._surplus += ids[kept:]
            self._engine.inbound.finish(self.link, len(ids) - kept)
            event = DeliveriesReceived(
                event.link,
                ids[:kept],
                event.tags[:kept],
                event.payloads[:kept],
                event.settled,
                event.message_format,
            )
        super().on_received(event)

    def begin_stop(self) -> None:
        """Take the credit back that is left; `stopped` comes to hold when all has come that was under way.

        Only while some of the last grant has come: the next flow that says a credit of 0 was then written by
        a broker that has seen this grant, and after it nothing can come. An answer to an earlier drain, which
        says 0 too, stands before the first message of the grant.

        Raises:
            ClientError: the link or what it stands on has ended.
        """
        self.stopped = False
        self.link.credit.limit = 0
        self._engine.grant(self.link, 0, echo=True)

    def on_flowed(self, flow: Flow) -> None:
        """The broker told the link's state, behind all messages that it has sent."""
        if not flow.link_credit:
            self.stopped = True

    def release_surplus(self) -> None:
        """Give back what there was no room for: to its place, and not as a failed delivery (3.4.4)."""
        if self._surplus:
            self._engine.settling.settle_received(self._surplus, RELEASED)
            self._surplus = []


__all__ = ["QueueLink"]
