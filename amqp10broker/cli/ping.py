"""``amqp10broker ping``: checks that a broker accepts a login and answers, and passes a message through a
queue.

Uses the AMQP client, so it has a client's view; made for health checks of containers, which need an exit
code and one sentence.
"""

from __future__ import annotations

import argparse
import time
import uuid
from typing import TYPE_CHECKING, Final

from amqp10broker.cli.commands import Command, Parser, seconds
from amqp10broker.cli.connecting import add_address, login_of
from amqp10broker.cli.exits import EXIT_OK

if TYPE_CHECKING:
    from amqp10broker.client.blocking import Client

_BATCH: Final = 100
_TTL_MS: Final = 60_000
"""A message that could not be taken out again must not stay forever."""
_OTHERS_MAX: Final = 1000
"""The most other messages that are read, and released, in search of the own one."""


def _ping_arguments(parser: Parser) -> None:
    add_address(parser)
    parser.add_argument(
        "--password",
        help="default: guest. Others on this machine can see it in the process list",
    )
    parser.add_argument(
        "--timeout",
        type=seconds(0.01, 3_600),
        default=5.0,
        metavar="SECONDS",
        help="how long to wait for each answer (default 5)",
    )
    parser.add_argument(
        "--queue",
        nargs="?",
        const="",
        metavar="NAME",
        help="also send a message and take it out again: through that queue, which must exist and should "
        "have no other consumers; without NAME through a temporary one",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the check, and print one line for the answer and one for the message."""
    started = time.perf_counter()
    with login_of(arguments).connect(arguments.timeout) as client:
        took = _since(started)
        opened = client.core.remote_open
        assert opened is not None
        properties = opened.properties or {}
        product = f"{properties.get('product', 'no product named')} {properties.get('version', '')}".rstrip()
        # This broker announces itself as RabbitMQ for the sake of clients, and has its real name here.
        product = str(properties.get("information", product))
        print(f"{opened.container_id} answered in {took} ({product})")
        if arguments.queue is not None:
            started = time.perf_counter()
            through = _pass_message(client, arguments.queue)
            print(f"a message passed through {through} in {_since(started)}")
    return EXIT_OK


def _pass_message(client: Client, queue: str) -> str:
    from amqp10broker.client.errors import ClientError
    from amqp10broker.client.message import Header, Message, Properties
    from amqp10broker.client.url import queue_address

    # By its address and not as a bare name, which would declare a missing queue.
    receiver = client.receiver(queue_address(queue) if queue else None, credit=0)
    through = f"queue '{queue}'" if queue else "a temporary queue"
    sender = client.sender(receiver.address)
    bare = Message(b"ping", Properties(message_id=uuid.uuid4())).encode()
    sender.send(Header(ttl=_TTL_MS).encode() + bare)
    others = 0
    while others < _OTHERS_MAX:
        # The message was accepted, so it is in the queue: no need to wait.
        batch = receiver.fetch(_BATCH, timeout_s=0)
        for delivery in batch:
            if delivery.payload.endswith(bare):
                receiver.accept(delivery)
                return through  # unsettled messages return to their places when the connection closes
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


COMMANDS: Final = (
    Command(
        "ping",
        _ping_arguments,
        run,
        "Log in to a broker, open a connection and a session, and say how long it took. Exit "
        "code 1 and one sentence if that fails: made for health checks.",
    ),
)
