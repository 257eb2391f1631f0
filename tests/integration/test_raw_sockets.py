"""A bare TCP socket against the real process: what no client library does, or does not tell.

Echo and `available` (proton neither asks nor tells), a client that stops reading its socket, and
everything that is not AMQP.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Delivery, Message

from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    Flow,
    Open,
    SaslMechanisms,
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


def test_echo_is_answered_after_the_transfers_with_what_is_available(
    broker: BrokerProcess, client: Any, connect: Any, queue: str
) -> None:
    """F4 and F6: one flow, behind the deliveries that the credit caused; available is what stays ready."""
    client.sender(queue).send(*(str(number) for number in range(8)))
    consumer = connect(broker).open()
    consumer.send(raw.attach_receiver(0, queue), raw.credit(0, 3, echo=True))
    got = [consumer.next().body for _ in range(5)]
    assert [type(each) for each in got] == [Attach, Transfer, Transfer, Transfer, Flow]
    answer = got[-1]
    assert (answer.delivery_count, answer.link_credit, answer.available) == (3, 0, 5)
    assert not answer.echo
    assert not answer.drain


def test_echo_of_a_session_flow_is_answered(broker: BrokerProcess, connect: Any) -> None:
    """Section 2.7.4: "echo ... request state update from partner", on a flow without a handle, too."""
    peer = connect(broker).open()
    peer.send(raw.flow(echo=True), raw.flow(echo=True))
    first, second = peer.take(Flow, 2)
    assert first.body.handle is None
    assert second.body.incoming_window == 400


def test_largest_credit_works_for_ever(broker: BrokerProcess, client: Any, connect: Any, queue: str) -> None:
    """link-credit 2**32 - 1, renewed again and again, is a legal way of saying "all you have"."""
    sender = client.sender(queue)
    consumer = connect(broker).open()
    consumer.send(raw.attach_receiver(0, queue))
    for count in range(5):
        consumer.send(raw.credit(0, 2**32 - 1, delivery_count=count))
        sender.send(str(count))
        (got,) = consumer.take(Transfer, 1)
        assert got.body.delivery_id == count


def test_aborted_delivery_is_nobodys(broker: BrokerProcess, client: Any, connect: Any, queue: str) -> None:
    """Section 2.7.5: "aborted messages SHOULD be discarded"; the next one is delivered."""
    peer = connect(broker).open()
    peer.send(raw.attach_sender(0, queue))
    peer.until(Flow)
    peer.send(
        raw.transfer(0, 0, b"part of", more=True),
        raw.transfer(0, 0, b"", raw=True, aborted=True),
        raw.transfer(0, 1, b"whole"),
    )
    assert peer.until(Disposition).first == 1
    receiver = client.receiver(queue, credit=2)
    (received,) = receiver.take()
    assert raw.body_of(received.raw) == b"whole"
    broker.wait_for_counts(queue, ready=0, unsettled=1)


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
    assert broker.run_command("declare", "queue", queue, "--type", kind).returncode == 0
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


@pytest.mark.parametrize(
    "opening",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
        pytest.param(b"AMQP\x00\x01\x00\x00", id="AMQP without SASL"),
        pytest.param(b"AMQP\x01\x01\x08\x00", id="0-8"),
        pytest.param(b"AMQP\x02\x01\x00\x00", id="TLS tunnel"),
        pytest.param(b"AMQP\x03\x01\x00\x01", id="another revision"),
        pytest.param(os.urandom(64), id="noise"),
    ],
)
def test_other_protocols_are_told_what_is_spoken_here(
    broker: BrokerProcess, connect: Any, opening: bytes
) -> None:
    """Section 2.2: the server answers with the header that it supports, and closes the socket."""
    peer = connect(broker)
    peer.send(opening)
    assert peer.raw_rest() == raw.SASL_HEADER


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(struct.pack(">IBBH", 7, 2, 0, 0), id="size under 8"),
        pytest.param(struct.pack(">IBBH", 0x7FFF_FFFF, 2, 0, 0), id="size over the maximum"),
        pytest.param(struct.pack(">IBBH", 8, 1, 0, 0), id="doff under 2"),
        pytest.param(struct.pack(">IBBH", 8, 9, 0, 0), id="doff over the size"),
        pytest.param(struct.pack(">IBBH", 8, 2, 7, 0), id="unknown type"),
        pytest.param(raw.begin(64), id="channel over channel-max"),
    ],
)
def test_framing_errors_close_the_connection(broker: BrokerProcess, connect: Any, frames: bytes) -> None:
    """Section 2.8.16: a close with amqp:connection:framing-error."""
    peer = connect(broker).open()
    peer.send(frames)
    assert peer.until(Close).error.condition == "amqp:connection:framing-error"


def test_garbage_performative_closes_the_connection(broker: BrokerProcess, connect: Any) -> None:
    """What cannot be decoded is answered by a close, and the broker lives on."""
    peer = connect(broker).open()
    peer.send(raw.frame(0, b"\x00\x53\x10\xff\xff\xff"))
    assert peer.until(Close).error is not None
    connect(broker).open()


def test_unknown_mechanism_is_refused(broker: BrokerProcess, connect: Any) -> None:
    """The mechanisms on offer are named; another one gets outcome 1 (auth) or the end of the socket."""
    peer = connect(broker)
    peer.send(raw.login("SCRAM-SHA-1"))
    bodies = peer.rest()
    assert isinstance(bodies[0], SaslMechanisms)
    offered = list(bodies[0].sasl_server_mechanisms)
    assert offered == ["PLAIN", "AMQPLAIN", "ANONYMOUS", "SCRAM-SHA-256"]
    assert all(body.code == 1 for body in bodies[1:])


def test_idle_time_out_under_a_second_is_refused(broker: BrokerProcess, connect: Any) -> None:
    """Shorter ones cost more frames than they find dead peers; the words say what is allowed.

    Proton would be asked for a heartbeat of a second, and gives up a broker that is silent for as long.
    """
    peer = connect(broker)
    peer.send(raw.login())
    assert peer.until(SaslOutcome).code == 0
    peer.send(raw.open_frame(idle_time_out=500))
    error = peer.until(Close).error
    assert (error.condition, error.description) == (
        "amqp:not-allowed",
        "idle-time-out (500 ms) < minimum idle-time-out (1000 ms)",
    )


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


def test_detached_with_an_error_is_told_to_nobody_twice(
    broker: BrokerProcess, connect: Any, queue: str
) -> None:
    """Section 2.6.6: the broker's detach with an error is final; the client's answer gets none back."""
    peer = connect(broker).open()
    peer.send(raw.attach_sender(0, queue))
    peer.until(Flow)
    peer.send(raw.transfer(0, 0, b"garbage", raw=True))
    assert peer.until(Detach).error.condition == "amqp:decode-error"
    peer.send(raw.frame(0, Detach(handle=0, closed=True)), raw.flow(echo=True))
    got = peer.next()
    assert got is not None
    assert isinstance(got.body, Flow)
