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
from amqp10broker.spark.queue.spool import SEGMENT_BYTES_MAX

# The first grant, to find out how large the messages are.
FIRST_CREDIT: Final = 10
# A grant is at most this many times the largest that the one before might have been.
GROWTH: Final = 8
# Of a message besides its bytes: the objects that hold it, and its places in the columns.
MESSAGE_COST_BYTES: Final = 256


class CreditPacing:
    """The credit of one link. `held_bytes` is the weight of the messages kept in this segment."""

    def __init__(self, credit_max: int, room_bytes: int = SEGMENT_BYTES_MAX) -> None:
        self.held_bytes = 0
        self._credit_max = credit_max
        self._room_bytes = room_bytes
        self._step = min(FIRST_CREDIT, credit_max)
        self._largest = 0
        self._came_largest = 0

    @property
    def full(self) -> bool:
        return self.held_bytes >= self._room_bytes

    def begin(self) -> None:
        self.held_bytes = 0

    def next(self, wanted: int) -> int:
        """Return how many messages to request, from 1 to `wanted`; call it only while not `full`."""
        count = min(wanted, self._step)
        if self._largest:
            count = min(count, (self._room_bytes - self.held_bytes) // self._largest)
        return max(1, count)

    def keep(self, sizes: Sequence[int]) -> int:
        """Weigh messages that arrived within a grant, in order of their sizes in bytes. Returns how many of
        them, from the first on, are kept. The others must be returned to the queue, and so must all that
        still arrive within this grant: `full` holds then.
        """
        if not sizes:
            return 0
        self._came_largest = max(self._came_largest, max(sizes) + MESSAGE_COST_BYTES)
        total = sum(sizes) + len(sizes) * MESSAGE_COST_BYTES
        if self.held_bytes + total < self._room_bytes:
            self.held_bytes += total
            return len(sizes)
        for number, size in enumerate(sizes):
            if self.full:
                return number
            self.held_bytes += size + MESSAGE_COST_BYTES
        return len(sizes)

    def end_grant(self) -> None:
        if self._came_largest:
            fitting = max(1, self._room_bytes // self._came_largest)
            self._step = min(self._credit_max, self._step * GROWTH, fitting)
            self._largest = self._came_largest
            self._came_largest = 0


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
