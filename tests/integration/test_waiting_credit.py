"""Staged stalls of clients that receive: without credit, window or reader. What status says of each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from amqp10broker.protocols.amqp10.performatives import Begin, Transfer
from tests.support import rawframes as raw
from tests.support.broker_process import BrokerProcess
from tests.support.proton_client import ProtonClient
from tests.support.rawprocess import RawSocket
from tests.support.stalls import waits

pytestmark = pytest.mark.integration

OpenRaw = Callable[[], RawSocket]


@pytest.fixture
def open_raw(broker: BrokerProcess) -> Iterator[OpenRaw]:
    """Connect raw clients with one session; they are closed when the test is over."""
    opened: list[RawSocket] = []

    def connect() -> RawSocket:
        client = RawSocket(broker.port)
        opened.append(client)
        return client.open()

    yield connect
    for each in opened:
        each.close()


def take(client: RawSocket, count: int) -> None:
    """Read so many deliveries."""
    for _ in range(count):
        client.until(Transfer)


# --- no credit ------------------------------------------------------------------------------------


def test_credit_is_used_up(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """At which count, by which grant; and that settling gives none."""
    client.sender(queue).send("1", "2", "3")
    receiver = client.receiver(queue, credit=2)
    receiver.settle(receiver.take(2))
    waits(
        broker,
        "no-credit-used-up",
        address=queue,
        says=("used up at delivery-count 2", "count 0 + credit 2", "(settling gives no credit)"),
    )


def test_a_stale_delivery_count(
    broker: BrokerProcess, open_raw: OpenRaw, client: ProtonClient, queue: str
) -> None:
    """A client that means to grant five more, and counts from where it began."""
    client.sender(queue).send(*"123456")
    peer = open_raw()
    peer.send(raw.attach_receiver(0, queue), raw.credit(0, 5))
    take(peer, 5)
    for _ in range(5):
        peer.send(raw.credit(0, 5, next_incoming_id=5))
    waits(
        broker,
        "no-credit-stale-flow",
        address=queue,
        says=("count 0 + credit 5, we are at 5: nothing left", "granted any: 5"),
    )
    peer.send(raw.credit(0, 5, delivery_count=5, next_incoming_id=5))
    take(peer, 1)


# --- window, writer, drain ------------------------------------------------------------------------


def test_the_window_of_the_client_is_closed(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """One frame fits, two deliveries wait."""
    client.sender(queue).send("1", "2", "3")
    peer = RawSocket(broker.port)
    try:
        peer.send(raw.login())
        peer.send(raw.open_frame(), raw.begin(0, incoming_window=1))
        peer.until(Begin)
        peer.send(raw.attach_receiver(0, queue), raw.credit(0, 10, incoming_window=1))
        take(peer, 1)
        waits(
            broker, "peer-window-closed", address=queue, says=("2 deliveries wait", "no flow has opened it")
        )
        peer.send(raw.flow(next_incoming_id=1))
        take(peer, 2)
        waits(broker, "unsettled-here", address=queue)
    finally:
        peer.close()


_CONSUMER = """
import sys
from proton.handlers import MessagingHandler
from proton.reactor import Container

class Client(MessagingHandler):
    def __init__(self):
        super().__init__(prefetch=10)
    def on_start(self, event):
        connection = event.container.connect(sys.argv[1], allowed_mechs="ANONYMOUS")
        event.container.create_receiver(connection, sys.argv[2])
    def on_message(self, event):
        print("got", flush=True)

Container(Client()).run()
"""


def test_a_client_that_was_stopped(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """By SIGSTOP, with credit for ten: what it was sent has used that up, and stays unsettled."""
    program = subprocess.Popen(
        [sys.executable, "-c", _CONSUMER, broker.url, queue], stdout=subprocess.PIPE, text=True
    )
    try:
        sender = client.sender(queue)
        sender.send("first")
        assert program.stdout is not None
        assert program.stdout.readline() == "got\n"
        # proton has granted again by then.
        waits(broker, "queue-empty", address=queue)
        os.kill(program.pid, signal.SIGSTOP)
        sender.send(*[str(number) for number in range(30)])
        waits(broker, "no-credit-used-up", address=queue, says=("it has sent no flow since",))
    finally:
        program.kill()
        program.wait()
        if program.stdout is not None:
            program.stdout.close()
