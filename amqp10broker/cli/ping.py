"""``amqp10broker ping``: does a broker let us in and answer, and does a message pass through a queue?

Uses the client room, so it says what a client would see; made for health checks of containers, where
a plain exit code and one sentence are wanted.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Final

from amqp10broker.cli.connecting import Login
from amqp10broker.client.blocking import Client, connect
from amqp10broker.client.errors import ClientError
from amqp10broker.client.message import Header, Message, Properties
from amqp10broker.client.options import ClientOptions
from amqp10broker.client.url import queue_address

EXIT_OK: Final = 0

_BATCH: Final = 100
_TTL_MS: Final = 60_000
"""A message that could not be taken out again is not to stay for ever."""
_OTHERS_MAX: Final = 1000
"""Messages of others that are looked through, and given back, to find ours."""


@dataclass(frozen=True, slots=True)
class Ping:
    """What to try.

    Attributes:
        login: where, and as whom.
        timeout_s: seconds for each thing that the broker is asked for.
        queue: send a message through it and take it out again; empty: through a temporary queue;
            None: no message.
    """

    login: Login
    timeout_s: float
    queue: str | None = None


def run(ping: Ping) -> int:
    """Try it, and print one line for the answer and one for the message.

    Raises:
        ClientError: it failed; the message says how, and what to do.
    """
    started = time.perf_counter()
    login = ping.login
    with connect(
        login.host,
        login.port,
        user=login.user or None,
        password=login.password,
        timeout_s=ping.timeout_s,
        options=ClientOptions(hostname=None if login.vhost is None else f"vhost:{login.vhost}"),
        ssl_context=login.ssl_context,
    ) as client:
        took = _since(started)
        opened = client.core.remote_open
        assert opened is not None
        properties = opened.properties or {}
        product = f"{properties.get('product', 'no product named')} {properties.get('version', '')}".rstrip()
        # Ours calls itself RabbitMQ for the sake of clients, and says here who it is.
        product = str(properties.get("information", product))
        print(f"{opened.container_id} answered in {took} ({product})")
        if ping.queue is not None:
            started = time.perf_counter()
            through = _pass_message(client, ping.queue)
            print(f"a message passed through {through} in {_since(started)}")
    return EXIT_OK


def _pass_message(client: Client, queue: str) -> str:
    # By its address and not as a bare name, which would declare a queue that is not there.
    receiver = client.receiver(queue_address(queue) if queue else None, credit=0)
    through = f"queue '{queue}'" if queue else "a temporary queue"
    sender = client.sender(receiver.address)
    bare = Message(b"ping", Properties(message_id=uuid.uuid4())).encode()
    sender.send(Header(ttl=_TTL_MS).encode() + bare)
    others = 0
    while others < _OTHERS_MAX:
        # It was accepted, so it is in the queue: no need to wait, only to take what is there.
        batch = receiver.fetch(_BATCH, timeout_s=0)
        for delivery in batch:
            if delivery.payload.endswith(bare):
                receiver.accept(delivery)
                return through  # what is not settled goes back to its place when the connection closes
        others += len(batch)
        if len(batch) < _BATCH:
            raise ClientError(
                f"the message was accepted by {through} and somebody else took it out: ping a queue that has "
                "no other consumers, or give --queue without a name"
            )
    raise ClientError(
        f"{through} has {others} or more messages in front of the one sent: ping an emptier queue, or give "
        "--queue without a name"
    )


def _since(started: float) -> str:
    return f"{(time.perf_counter() - started) * 1000:.1f} ms"
