"""Staged stalls of clients that receive: without credit, window or reader. What status says of each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from proton import Message

from amqp10broker.protocols.amqp10.performatives import Begin, Flow, Transfer
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


def test_credit_was_never_granted(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """proton grants nothing by itself."""
    client.sender(queue).send("1")
    client.receiver(queue)
    waits(broker, "no-credit-never-granted", address=queue, says=("it must send a flow with link-credit",))


def test_the_only_flow_grants_nothing(broker: BrokerProcess, open_raw: OpenRaw, queue: str) -> None:
    """A flow with link-credit 0 is no grant, and is shown."""
    peer = open_raw()
    peer.send(raw.attach_receiver(0, queue), raw.credit(0, 0))
    waits(broker, "no-credit-never-granted", address=queue, says=("set count 0 + credit 0",))


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


def test_flows_that_grant_nothing_after_credit_was_used_up(
    broker: BrokerProcess, open_raw: OpenRaw, client: ProtonClient, queue: str
) -> None:
    """A client that tells its window, and repeats that its credit is 0, has not set it to 0."""
    client.sender(queue).send("1", "2", "3")
    peer = open_raw()
    peer.send(raw.attach_receiver(0, queue), raw.credit(0, 2))
    take(peer, 2)
    peer.send(raw.credit(0, 0, delivery_count=2, next_incoming_id=2))
    waits(broker, "no-credit-used-up", address=queue, says=("flows since: 1", "count 0 + credit 2"))


def test_credit_is_set_to_zero(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """proton takes back what nobody has used."""
    receiver = client.receiver(queue, credit=5)
    waits(broker, "queue-empty-nothing-routed", address=queue)
    receiver.grant(-5)
    client.flush()
    waits(
        broker,
        "no-credit-set-to-zero",
        address=queue,
        says=("set the credit to 0", "(count 0 + credit 5)", "count 0 + credit 0"),
    )


def test_credit_is_revoked(
    broker: BrokerProcess, open_raw: OpenRaw, client: ProtonClient, queue: str
) -> None:
    """By a flow that allows less than was sent."""
    client.sender(queue).send("1", "2", "3")
    peer = open_raw()
    peer.send(raw.attach_receiver(0, queue), raw.credit(0, 10))
    take(peer, 3)
    peer.send(raw.credit(0, 2, next_incoming_id=3))
    waits(
        broker,
        "no-credit-revoked",
        address=queue,
        says=("count 0 + credit 2", "we are at 3: nothing left"),
    )


def test_credit_was_drained(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """Two were used, three given up; a later flow without credit changes nothing about it."""
    client.sender(queue).send("1", "2")
    receiver = client.receiver(queue)
    receiver.drain(5)
    assert len(receiver.take(2)) == 2
    waits(broker, "no-credit-drained", address=queue, says=("gave up 3 credits", "granted none since"))
    receiver.drain()
    waits(broker, "no-credit-drained", address=queue)


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


def test_an_attached_link_that_only_asks_for_the_state(
    broker: BrokerProcess, open_raw: OpenRaw, queue: str
) -> None:
    """An echo is no grant, and no flow with a credit."""
    peer = open_raw()
    peer.send(raw.attach_receiver(0, queue), raw.flow(handle=0, echo=True))
    assert peer.until(Flow).body.link_credit == 0
    link = waits(broker, "no-credit-never-granted", address=queue)
    assert "its last flow" not in link["waits_why"]


def test_an_unsettled_map_that_is_incomplete(
    broker: BrokerProcess, open_raw: OpenRaw, client: ProtonClient, queue: str
) -> None:
    """There is credit, there are messages, and nothing may be sent (2.7.3)."""
    client.sender(queue).send("1", "2", "3")
    peer = open_raw()
    attach = raw.attach_receiver(0, queue, unsettled={b"tag": None}, incomplete_unsettled=True)
    peer.send(attach, raw.credit(0, 10))
    waits(
        broker,
        "unsettled-incomplete",
        address=queue,
        says=("attach again", f"3 messages ready in queue '{queue}'"),
    )


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


def test_a_client_that_does_not_read(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """Its socket is full."""
    sender = client.sender(queue)
    sender.send(*[Message(body=bytes(50_000))] * 170)
    peer = RawSocket(broker.port, receive_bytes=4096).open()
    try:
        peer.send(raw.attach_receiver(0, queue), raw.credit(0, 1000))
        waits(broker, "writer-blocked", address=queue, says=("does not read its socket", "bytes wait for it"))
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
