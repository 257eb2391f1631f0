"""A bare TCP socket against the real process: what no client library does, or does not tell.

Echo and `available` (proton neither asks nor tells), a client that stops reading its socket, and
everything that is not AMQP.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Delivery, Message

from amqp10broker.protocols.amqp10.performatives import (
    Begin,
    Open,
    SaslOutcome,
    Transfer,
)
from tests.support import rawframes as raw
from tests.support.broker_process import BrokerProcess, StartBroker

pytestmark = pytest.mark.integration

TIMEOUT_S = 20.0
MIB = 1024 * 1024


class RawClient:
    """A socket with frames."""

    def __init__(self, broker: BrokerProcess, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((broker.host, broker.port))
        self._cutter = raw.FrameCutter()
        self._frames: list[raw.Got] = []

    def send(self, *frames: bytes) -> None:
        """Send frames."""
        self.socket.sendall(b"".join(frames))

    def next(self) -> raw.Got | None:
        """The next frame, None at the end of the connection."""
        while not self._frames:
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames += self._cutter.feed(data)
        return self._frames.pop(0)

    def until(self, kind: type) -> Any:
        """Skip to the next frame of a kind."""
        while True:
            got = self.next()
            assert got is not None, f"the connection ended before {kind.__name__}"
            if isinstance(got.body, kind):
                return got.body

    def take(self, kind: type, count: int) -> list[raw.Got]:
        """The next so many frames of a kind."""
        taken: list[raw.Got] = []
        while len(taken) < count:
            got = self.next()
            assert got is not None, f"the connection ended, {len(taken)} of {count} {kind.__name__} came"
            if isinstance(got.body, kind):
                taken.append(got)
        return taken

    def rest(self) -> list[Any]:
        """All performatives until the broker closes the socket."""
        bodies = []
        while (got := self.next()) is not None:
            bodies.append(got.body)
        return bodies

    def raw_rest(self) -> bytes:
        """All bytes until the broker closes the socket."""
        data = b""
        while True:
            try:
                more = self.socket.recv(65_536)
            except ConnectionResetError:
                return data
            if not more:
                return data
            data += more

    def open(self, *, sessions: int = 1, **fields: Any) -> RawClient:
        """Log in as guest by ANONYMOUS, open, begin."""
        self.send(raw.login())
        assert self.until(SaslOutcome).code == 0
        self.send(raw.open_frame(**fields), *(raw.begin(channel) for channel in range(sessions)))
        self.until(Open)
        self.take(Begin, sessions)
        return self


@pytest.fixture
def connect() -> Iterator[Any]:
    """Make raw clients; their sockets are closed after the test."""
    made: list[RawClient] = []

    def make(broker: BrokerProcess, **options: Any) -> RawClient:
        made.append(RawClient(broker, **options))
        return made[-1]

    yield make
    for each in made:
        each.socket.close()


# --- echo, available, unlimited credit ------------------------------------------------------------


# --- a client that does not read ------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "tcp_back_pressure_rabbitmq_internal_flow_classic_queue",
    "tcp_back_pressure_rabbitmq_internal_flow_quorum_queue",
)
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_client_that_does_not_read_holds_back_nobody_else(
    broker: BrokerProcess, clients: Any, connect: Any, queue: str, kind: str
) -> None:
    """Its deliveries stay in the queue but for one batch; others are served; then it gets all, in order."""
    assert broker.run_command("queue", "declare", queue, "--type", kind).returncode == 0
    publisher, other = clients(broker), clients(broker)
    sender = publisher.sender(queue)
    tags = [sender.transfer(Message(body=bytes(20_000), id=at)) for at in range(600)]
    for tag in tags:
        assert sender.outcome(tag).state == Delivery.ACCEPTED
    stuck = connect(broker, receive_buffer=4096).open()
    stuck.send(raw.attach_receiver(0, queue), raw.credit(0, 10_000))
    link = broker.wait_until(
        lambda: next((each for each in broker.links(queue) if each["waits"] == "writer-blocked"), None),
        "the blocked writer to be seen",
    )
    assert "does not read its socket" in link["waits_why"]
    counts = broker.queue(queue)
    assert counts is not None
    # One batch of max_queue_credit, and what the sockets' buffers hold; certainly not everything.
    assert 0 < counts["messages_unsettled"] <= 512 + 256, counts
    assert counts["messages_ready"] >= 600 - 512 - 256

    quick = other.sender(f"{queue}-quick")
    replies = other.receiver(f"{queue}-quick", credit=100)
    for number in range(50):
        quick.send(str(number))
    replies.settle(replies.take(50))

    received = stuck.take(Transfer, 600)
    assert [got.body.delivery_id for got in received] == list(range(600))


@pytest.mark.rabbitmq("amqp_client_SUITE", "tcp_back_pressure_rabbitmq_internal_flow_classic_queue")
def test_messages_of_a_client_that_did_not_read_return_in_order(
    broker: BrokerProcess, clients: Any, connect: Any, queue: str
) -> None:
    """Its socket is reset while the writer is blocked: everything goes back, nothing twice, nothing lost."""
    client = clients(broker)
    sender = client.sender(queue)
    tags = [sender.transfer(Message(body=bytes(20_000), id=at)) for at in range(400)]
    for tag in tags:
        assert sender.outcome(tag).state == Delivery.ACCEPTED
    stuck = connect(broker, receive_buffer=4096).open()
    stuck.send(raw.attach_receiver(0, queue), raw.credit(0, 10_000))
    broker.wait_until(
        lambda: any(each["waits"] == "writer-blocked" for each in broker.links(queue)),
        "the blocked writer to be seen",
    )
    stuck.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stuck.socket.close()
    broker.wait_for_counts(queue, ready=400)
    receiver = client.receiver(queue, credit=400)
    assert [each.message.id for each in receiver.take(400)] == list(range(400))


def test_shutdown_does_not_wait_for_a_client_that_does_not_read(
    start_broker: StartBroker, clients: Any, connect: Any, queue: str
) -> None:
    """SIGTERM with a blocked writer: the deadline ends it, the exit code is 0, the log has no fault."""
    broker = start_broker("--shutdown-timeout-ms", "500")
    sender = clients(broker).sender(queue)
    for _ in range(200):
        sender.transfer(Message(body=bytes(50_000)), settled=True)
    sender.client.flush()
    stuck = connect(broker, receive_buffer=4096).open()
    stuck.send(raw.attach_receiver(0, queue), raw.credit(0, 10_000))
    broker.wait_until(
        lambda: any(each["waits"] == "writer-blocked" for each in broker.links(queue)),
        "the blocked writer to be seen",
    )
    broker.terminate()
    assert broker.wait_ended() == 0
    broker.stop()


def test_large_message_on_one_session_lets_another_through(
    broker: BrokerProcess, clients: Any, connect: Any, queue: str
) -> None:
    """A 16 MiB delivery under way delays another session by some frames, not by the rest of the message."""
    publisher = clients(broker)
    large, small = f"{queue}-large", f"{queue}-small"
    publisher.sender(large).send(raw.message(bytes(16 * MIB - 8)))
    consumer = connect(broker, receive_buffer=65_536).open(sessions=2, max_frame_size=4096)
    consumer.send(
        raw.attach_receiver(0, small, channel=1),
        raw.credit(0, 100, channel=1),
        raw.attach_receiver(0, large, channel=0),
        raw.credit(0, 1, channel=0),
    )
    consumer.take(Transfer, 1)  # the large one is under way
    sender = publisher.sender(small)
    for number in range(10):
        assert sender.send(str(number))[0].state == Delivery.ACCEPTED
    broker.wait_for_counts(small, ready=0, unsettled=10)
    frames_before = 0
    came = 0
    while came < 10:
        got = consumer.next()
        assert got is not None
        if isinstance(got.body, Transfer):
            came += got.channel == 1
            frames_before += got.channel == 0
    # 4096 frames make the whole. Before the small ones is what was in the socket buffers by then.
    assert frames_before < 2500
    consumer.take(Transfer, 16 * MIB // 4096 - frames_before - 8)


# --- what is not AMQP -----------------------------------------------------------------------------


def test_handshake_has_a_time_limit(start_broker: StartBroker, connect: Any) -> None:
    """A client that says nothing, or stops half way, is dropped."""
    broker = start_broker("--handshake-timeout-ms", "200")
    silent, half = connect(broker), connect(broker)
    half.send(raw.login())
    assert silent.raw_rest() == b""
    half.raw_rest()
    broker.wait_for_log("handshake timed out")


def test_broker_survives_connections_that_vanish_at_every_point(
    broker: BrokerProcess, clients: Any, connect: Any, queue: str
) -> None:
    """Reset or closed after any prefix of a good conversation: nothing is left behind."""
    conversation = b"".join(
        [
            raw.login(),
            raw.open_frame(container_id=queue),
            raw.begin(),
            raw.attach_sender(0, queue),
            raw.transfer(0, 0, b"x" * 100, settled=True, more=True),
            raw.attach_receiver(1, queue),
            raw.credit(1, 10),
        ]
    )
    others = {each["id"] for each in broker.status()["connections"]}  # whatever tests before have left open
    for at, cut in enumerate(range(0, len(conversation), 23)):
        peer = connect(broker)
        if at % 2:  # reset instead of closed
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.send(conversation[:cut])
        peer.socket.close()
    broker.wait_until(
        lambda: {each["id"] for each in broker.status()["connections"]} <= others,
        "the end of all those connections",
    )
    client = clients(broker)
    assert client.sender(queue).send("alive")[0].state == Delivery.ACCEPTED
    broker.wait_for_counts(queue, ready=1)
