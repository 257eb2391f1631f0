"""The network side of a queue source: receives and settles messages, and reconnects.

Nothing is in flight between two calls: credit is granted for the messages wanted, and drain takes back the
rest (part 2, section 2.6.10). Messages that arrive after a segment is full (`credit_pacing`) are released. On
any failure the connection is dropped, and unsettled messages return to the queue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from amqp10broker.client.blocking import Client
from amqp10broker.client.bulk import BulkReceiver, bulk_receiver
from amqp10broker.client.errors import ClientError, LinkError, SessionEndedError
from amqp10broker.client.management import Management
from amqp10broker.client.url import queue_address
from amqp10broker.protocols.amqp10.types import Described, Symbol
from amqp10broker.spark.connection import OFFSET_SPEC, dial, with_retries
from amqp10broker.spark.errors import QueueUnusable
from amqp10broker.spark.options import QueueOptions
from amqp10broker.spark.queue.credit_pacing import CreditPacing

# After such a silence the broker may have closed the connection: a new one is opened.
IDLE_S: Final = 15.0
_LOG: Final = logging.getLogger("amqp10broker.spark")


class QueueLink:
    """A receiver for one queue that connects on demand.

    `losses` counts the lost connections, after which messages that were settled may arrive again.
    """

    def __init__(self, options: QueueOptions) -> None:
        self.losses = 0
        self._options = options
        self._client: Client | None = None
        self._receiver: BulkReceiver | None = None
        self._used_at = 0.0
        self._grants = CreditPacing(options.link_credit)

    def count(self) -> int | None:
        """Return how many messages the queue has now; None if that is unknown. Raises as `receive`."""
        return with_retries(self._options.connection, self._count, queue=self._options.queue)

    def receive(self, count: int, wait_s: float) -> Sequence[bytes]:
        """Return encoded messages, which stay unsettled until `settle` or `drop`.

        Args:
            wait_s: how long to wait for the first one; 0 takes only messages that are there.

        Raises:
            SparkSourceError: the broker is away for too long, or refuses. All messages are in the queue
                again.
        """
        return with_retries(
            self._options.connection, lambda: self._receive(count, wait_s), queue=self._options.queue
        )

    def settle(self) -> None:
        """Settle the messages received. Those that cannot be settled arrive again."""
        assert self._client is not None
        assert self._receiver is not None
        count = len(self._receiver.end.unsettled)
        try:
            self._receiver.accept()
            self._client.flush()
        except ClientError as error:
            _LOG.warning(
                "queue '%s': the connection was lost before %d messages could be settled; they are in the "
                "spool, and will come again: %s",
                self._options.queue,
                count,
                error,
            )
            self.losses += 1
            self.close()

    def drop(self) -> None:
        """Return the unsettled messages to the queue."""
        # Released explicitly: RabbitMQ 4.3 counts messages that return from a lost connection as failed
        # deliveries, which a quorum queue limits, but does not count released ones.
        if self._receiver is not None:
            try:
                self._receiver.release()
            except ClientError:
                pass  # the connection is lost, which returns them to the queue
        self.close()

    def close(self) -> None:
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
        try:
            management = Management(client)
            status, body = management.ask("GET", queue_address(self._options.queue))
            management.close()
        except (LinkError, SessionEndedError):
            return {}
        return body if status == 200 and isinstance(body, dict) else {}

    def _receive(self, count: int, wait_s: float) -> list[bytes]:
        try:
            receiver = self._attached()
            grants = self._grants
            grants.begin()
            found: list[bytes] = []
            while len(found) < count and not grants.full:
                wanted = grants.next(count - len(found))
                some = self._fetch(receiver, wanted, 0.0 if found else wait_s)
                found += some
                if len(some) < wanted:
                    break
        except BaseException:
            self.losses += 1
            self.drop()
            raise
        self._used_at = time.monotonic()
        return found

    def _fetch(self, receiver: BulkReceiver, count: int, wait_s: float) -> list[bytes]:
        end, grants, idle_s = receiver.end, self._grants, self._options.idle_timeout_s
        receiver.grant(count)
        if wait_s:
            receiver.wait(wait_s)  # if there is none, drain will confirm it
        if not end.drained and not grants.full:
            receiver.grant(receiver.credit, drain=True)
            receiver.wait_for("answer to our drain", idle_s, lambda: end.drained or grants.full)
        if not end.drained:
            end.stop()
            receiver.wait_for("answer to our link-credit of 0", idle_s, lambda: end.stopped)
        grants.end_grant()
        receiver.release_surplus()
        return receiver.take()

    def _attached(self) -> BulkReceiver:
        if self._receiver is not None and time.monotonic() - self._used_at < IDLE_S:
            return self._receiver
        self.close()
        self._client = client = dial(self._options.connection, purpose="queue")
        kind = self._entry(client).get("type")
        # Where the management does not return the kind of queue, a stream confirms this filter, and no other
        # queue of this broker does. RabbitMQ confirms it for every queue, but reports the kind to all.
        filters = None if kind else {OFFSET_SPEC: Described(Symbol(OFFSET_SPEC), "next")}
        receiver = bulk_receiver(client, queue_address(self._options.queue), settled=False, filters=filters)
        if kind == "stream" if kind else OFFSET_SPEC in receiver.end.filters_in_place:
            raise QueueUnusable(
                f"'{self._options.queue}' is a stream: read it with the option stream, which needs no spool, "
                "or name a classic or quorum queue"
            )
        receiver.end.keep = self._grants.keep
        self._receiver = receiver
        return receiver
