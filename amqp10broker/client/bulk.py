"""A receiver for many messages: encoded ones in lists, no object for each.

`blocking_links.Receiver` makes a `Delivery` of every message, because messages are settled one by one.
Who reads a stream, or anything else that is sent settled, wants bytes only; without that object and its
bookkeeping a message costs about half as much. Credit is granted by hand: the reader knows best how many
messages it still wants.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amqp10broker.amqp10.events import DeliveriesReceived
from amqp10broker.amqp10.link import ReceiverLink
from amqp10broker.amqp10.performatives import Attach, Source
from amqp10broker.client.blocking import Client
from amqp10broker.client.checks import UINT_MAX, check_integer
from amqp10broker.client.ends import ReceiverEnd, SessionOwner
from amqp10broker.client.errors import TimedOutError


class BulkEnd(ReceiverEnd):
    """The end of a `BulkReceiver`.

    Attributes:
        payloads: encoded messages that have arrived and were not taken.
        received: messages that have arrived since the attach.
        filters_in_place: names of the filters that the broker applies, once attached.
    """

    def __init__(
        self, session: SessionOwner, link: ReceiverLink, address: str | None, credit_limit: int
    ) -> None:
        super().__init__(session, link, address, credit_limit)
        self.payloads: list[bytes] = []
        self.received = 0
        self.filters_in_place: frozenset[str] = frozenset()

    def on_attached(self, attach: Attach) -> None:
        """The broker's attach arrived."""
        super().on_attached(attach)
        if isinstance(attach.source, Source):
            self.filters_in_place = frozenset(map(str, attach.source.filter or ()))

    def on_received(self, event: DeliveriesReceived) -> None:
        """Messages arrived."""
        payloads: Sequence[bytes] = event.payloads
        self.payloads += payloads
        self.received += len(payloads)
        # Nothing waits for the program to be done with them: they count as finished on arrival.
        self._engine.inbound.finish(self.link, len(payloads))


class BulkReceiver:
    """A link on which messages arrive settled. Made by `bulk_receiver`.

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
        check_integer("credit", credit, 0, UINT_MAX)
        end = self.end
        end.check()
        self._goal = end.received + credit
        self._client.session.engine.grant(end.link, credit, drain=drain)

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
        end = self.end
        deadline = time.monotonic() + timeout_s
        try:
            self._client.wait(
                until or (lambda: bool(end.payloads)),
                lambda: end.failure,
                max(0.0, deadline - time.monotonic()),
                "message",
            )
        except TimedOutError:
            return False
        return True

    def take(self) -> list[bytes]:
        """What has arrived, encoded, in order."""
        taken = self.end.payloads
        self.end.payloads = []
        return taken

    def detach(self) -> None:
        """Close the link, without waiting for the answer."""
        self.end.detach()
        self._client.flush_now()


def bulk_receiver(
    client: Client,
    address: str,
    *,
    filters: Mapping[str, Any] | None = None,
    desired_capabilities: Sequence[str] = (),
    max_message_size_bytes: int = 0,
    timeout_s: float | None = None,
) -> BulkReceiver:
    """Attach a link whose messages the broker sends settled.

    Args:
        client: connected; the first session is used.
        address: where messages come from.
        filters: of the source; `BulkEnd.filters_in_place` says which the broker applies.
        desired_capabilities: what the broker may do beside; one that does not know them ignores them.
        max_message_size_bytes: larger ones end the link; 0 for no limit.
        timeout_s: seconds for the broker's answer.

    Raises:
        LinkRefusedError: the broker did not attach it; the condition says why.
    """
    end = client.session.receiver(
        address,
        settled=True,
        filters=filters,
        desired_capabilities=desired_capabilities,
        max_message_size_bytes=max_message_size_bytes,
        end_type=BulkEnd,
    )
    assert isinstance(end, BulkEnd)
    client.attach(end, timeout_s)
    return BulkReceiver(client, end)


__all__ = ["BulkEnd", "BulkReceiver", "bulk_receiver"]
