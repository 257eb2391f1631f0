"""The client on both drivers, and `amqp10broker ping`, against the real broker and against bad ones."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from amqp10broker.cli.main import main
from amqp10broker.client import blocking
from amqp10broker.client.driving import WaitFor
from amqp10broker.client.errors import (
    ConnectError,
    ConnectionEndedError,
    LinkDetachedError,
    LinkRefusedError,
    LoginError,
    MessageTooLargeError,
    NotAcceptedError,
    SessionEndedError,
    TimedOutError,
)
from amqp10broker.client.message import Header, Message, Properties, data_message
from amqp10broker.client.options import ClientOptions
from amqp10broker.client.outcomes import Accepted, Released, modified
from amqp10broker.protocols.amqp10.connection import HEADER_SASL
from tests.support.broker_process import SLOW_QUEUES, BrokerProcess, StartBroker
from tests.support.client_drivers import Connect, connect

__all__ = ["connect"]

pytestmark = pytest.mark.integration


@pytest.fixture
def client(broker: BrokerProcess, connect: Connect) -> Iterator[Any]:
    with connect(broker.host, broker.port, user="guest", password="guest", timeout_s=20.0) as connected:
        yield connected


def bodies(count: int, size: int = 20) -> list[bytes]:
    return [number.to_bytes(4, "big").ljust(size, b".") for number in range(count)]


# --- sending --------------------------------------------------------------------------------------


def test_sent_and_received_in_order(client: Any, broker: BrokerProcess, queue: str) -> None:
    sent = bodies(5000)
    outcomes = client.sender(queue).send_many(map(data_message, sent))
    assert outcomes == [Accepted()] * 5000
    receiver = client.receiver(queue, credit=300)
    got: list[bytes] = []
    while len(got) < 5000:
        deliveries = receiver.receive_many(1000)
        assert deliveries
        got += [delivery.message().body for delivery in deliveries]
        receiver.accept(deliveries)
    assert got == sent
    receiver.detach()
    broker.wait_for_counts(queue, ready=0)


def test_send_waits_for_the_outcome(client: Any, broker: BrokerProcess, queue: str) -> None:
    """A queue that confirms after 50 ms makes each send last that long, and a batch hardly longer."""
    sender = client.sender(SLOW_QUEUES.replace("*", queue))
    started = time.monotonic()
    sender.send(data_message(b"one"))
    assert time.monotonic() - started >= 0.04
    assert sender.send_many([data_message(b"x")] * 1000) == [Accepted()] * 1000
    assert time.monotonic() - started < 25.0  # half of what they take one after the other


def test_what_nobody_takes_is_an_error_of_send_and_an_outcome_of_send_many(client: Any, queue: str) -> None:
    client.sender(queue)
    sender = client.sender(None)
    lost = Message(b"", Properties(to=f"/queues/missing-{queue}"))
    with pytest.raises(NotAcceptedError, match="correct the address") as raised:
        sender.send(lost)
    assert raised.value.outcome == Released()
    good = Message(b"", Properties(to=f"/queues/{queue}"))
    assert sender.send_many([good, lost, good]) == [Accepted(), Released(), Accepted()]


def test_settled_messages_are_written_before_send_returns(
    client: Any, broker: BrokerProcess, queue: str
) -> None:
    sender = client.sender(queue, settled=True)
    assert sender.send_many([data_message(b"x")] * 3000) == [None] * 3000
    client.abort()
    broker.wait_for_counts(queue, ready=3000)


def test_large_messages_both_ways(client: Any, queue: str) -> None:
    body = os.urandom(3_000_000)
    client.sender(queue).send(data_message(body))
    receiver = client.receiver(queue, credit=1)
    delivery = receiver.receive()
    assert delivery is not None
    assert delivery.message().body == body


def test_both_directions_at_once_do_not_block_each_other(client: Any, queue: str) -> None:
    """While megabytes go out, megabytes come in on the same socket; neither waits for the other to end."""
    receiver = client.receiver(queue, credit=1000)
    sender = client.sender(queue)
    sender.send_many([data_message(bytes(50_000))] * 400)
    seen = 0
    while seen < 400:
        deliveries = receiver.receive_many(100)
        assert deliveries
        receiver.accept(deliveries)
        seen += len(deliveries)


def test_a_message_over_the_brokers_limit_is_not_sent(start_broker: StartBroker, connect: Connect) -> None:
    process = start_broker("--max-message-size-bytes", "1000")
    with connect(port=process.port, user="guest", password="guest") as client:
        sender = client.sender("q")
        with pytest.raises(MessageTooLargeError, match="takes 1000"):
            sender.send(data_message(bytes(1000)))
        sender.send(data_message(b"small"))


def test_no_credit_in_time(start_broker: StartBroker, connect: Connect) -> None:
    """During an alarm: the error says so, and what was not begun is never sent."""
    process = start_broker()
    with connect(port=process.port, user="guest", password="guest") as client:
        sender = client.sender("q")
        process.ask("alarm", name="memory", on=True)
        window = client.session.engine.outgoing
        client.wait(WaitFor(lambda: window.remote_incoming_window == 0, lambda: None, 20.0, "closed window"))
        with pytest.raises(TimedOutError) as raised:
            sender.send_many([data_message(b"x")] * 2, timeout_s=0.2)
        assert raised.value.outcomes == [None, None]
        process.ask("alarm", name="memory", on=False)
        client.wait(WaitFor(lambda: window.remote_incoming_window > 0, lambda: None, 20.0, "open window"))
        sender.send(data_message(b"y"))
        process.wait_for_counts("q", ready=1)


def test_no_message_under_way_is_no_way_to_send(client: Any, queue: str) -> None:
    with pytest.raises(ValueError, match="at least one"):
        client.sender(queue).send_many([data_message(b"x")], in_flight_max=0)
    assert client.sender(queue).send_many([data_message(b"x")] * 7, in_flight_max=1) == [Accepted()] * 7


def test_any_iterable_can_be_sent_and_nothing_too(client: Any, queue: str) -> None:
    sender = client.sender(queue)
    assert sender.send_many([]) == []
    assert sender.send_many(Message(number) for number in range(2000)) == [Accepted()] * 2000


# --- receiving ------------------------------------------------------------------------------------


def test_nothing_there_in_time(client: Any, queue: str) -> None:
    receiver = client.receiver(queue)
    started = time.monotonic()
    assert receiver.receive(timeout_s=0.1) is None
    assert receiver.receive_many(10, timeout_s=0.0) == []
    assert 0.1 <= time.monotonic() - started < 15.0  # the client's own time-out is 20 s


def test_receive_many_waits_for_as_many_as_it_was_told(client: Any, queue: str) -> None:
    """Also for more than the credit, which is topped up as messages are taken."""
    client.sender(queue).send_many([data_message(b"x")] * 30)
    receiver = client.receiver(queue, credit=5)
    assert len(receiver.receive_many(30, count_min=30)) == 30
    assert len(receiver.receive_many(30, count_min=30, timeout_s=0.05)) == 0


def test_fetch_takes_the_credit_back(client: Any, broker: BrokerProcess, queue: str) -> None:
    sender = client.sender(queue)
    receiver = client.receiver(queue, credit=0)
    assert receiver.fetch(1, timeout_s=0.05) == []
    sender.send_many([data_message(b"x")] * 3)
    assert len(receiver.fetch(2)) == 2
    assert len(receiver.fetch(5, timeout_s=0.05)) == 1
    assert receiver.credit == 0
    sender.send(data_message(b"late"))
    broker.wait_for_counts(queue, ready=1, unsettled=3)
    assert not receiver.end.ready


def test_fetch_on_a_link_with_credit_of_its_own(client: Any, queue: str) -> None:
    sender = client.sender(queue)
    receiver = client.receiver(queue, credit=4)
    sender.send_many([data_message(b"x")] * 2)
    assert len(receiver.fetch(3, timeout_s=0.1)) == 2
    sender.send_many([data_message(b"x")] * 10)
    assert len(receiver.receive_many(10, count_min=10)) == 10


def test_outcomes_of_received_messages(client: Any, broker: BrokerProcess, queue: str) -> None:
    client.sender(queue).send_many(map(data_message, bodies(5)))
    receiver = client.receiver(queue, credit=0)
    first, second, third, fourth, fifth = receiver.fetch(5)
    receiver.accept(first)
    receiver.reject(second, "amqp:decode-error", "no JSON")
    receiver.release([third])
    receiver.settle([fourth], modified())
    client.flush()
    broker.wait_for_counts(queue, ready=2, unsettled=1)
    again = receiver.fetch(2)
    counts = [(delivery.message().header or Header()).delivery_count for delivery in again]
    assert counts == [0, 1]
    assert [each.message().body for each in again] == bodies(5)[2:4]
    receiver.accept([*again, fifth])
    client.flush()
    broker.wait_for_counts(queue, ready=0)


def test_what_was_accepted_before_close_is_accepted(
    broker: BrokerProcess, queue: str, connect: Connect
) -> None:
    with connect(port=broker.port, user="guest", password="guest") as client:
        client.sender(queue).send_many([data_message(b"x")] * 10)
        receiver = client.receiver(queue)
        receiver.accept(receiver.receive_many(10, count_min=10)[:6])
    broker.wait_for_counts(queue, ready=4)


def test_a_queue_of_our_own_goes_with_the_link(client: Any) -> None:
    receiver = client.receiver(None)
    address = receiver.address
    assert address is not None
    client.sender(address).send(data_message(b"hello"))
    delivery = receiver.receive()
    assert delivery is not None
    assert delivery.message().body == b"hello"
    receiver.detach()
    with pytest.raises(LinkRefusedError):
        client.sender(address)


# --- ends -----------------------------------------------------------------------------------------


def test_a_refused_link_leaves_the_session(client: Any, queue: str) -> None:
    with pytest.raises(LinkRefusedError, match="declare it first") as raised:
        client.receiver(f"/queues/missing-{queue}")
    assert (raised.value.condition, raised.value.address) == ("amqp:not-found", f"/queues/missing-{queue}")
    client.sender(queue).send(data_message(b"x"))


def test_a_link_that_breaks_while_sending_tells_what_is_known(client: Any, queue: str) -> None:
    """A message that the broker cannot read detaches the link; what was before it has its outcome."""
    sender = client.sender(queue)
    bad = b"\x00\x53\x75\xa1\x01a"
    with pytest.raises(LinkDetachedError) as raised:
        sender.send_many([*[data_message(b"x")] * 5, bad])
    assert raised.value.condition == "amqp:decode-error"
    assert len(raised.value.outcomes) == 6
    assert raised.value.outcomes[-1] is None


@pytest.mark.parametrize(
    "attempt",
    [
        lambda client: client.sender("\ud800"),
        lambda client: client.sender("q", properties={"a": object()}),
        lambda client: client.receiver("\ud800"),
        lambda client: client.receiver("q", credit=2**32),
        lambda client: client.receiver("q", credit=-1),
        lambda client: client.receiver("q", max_message_size_bytes=-1),
        lambda client: client.receiver("q", filters={"a": object()}),
        lambda client: client.receiver("q", credit=0).grant(2**32),
        lambda client: client.receiver("q", credit=0).fetch(2**32),
        lambda client: client.receiver("q").receive_many(-1),
    ],
)
def test_an_argument_that_fits_no_frame(client: Any, queue: str, attempt: Callable[[Any], None]) -> None:
    """It is an error of the call, and the connection goes on; written later, it would end it."""
    with pytest.raises(ValueError):
        attempt(client)
    client.sender(queue).send(data_message(b"x"))


def test_a_link_that_this_program_has_detached(client: Any, queue: str) -> None:
    """Using it is an error of the call; a frame for it would end the session, and with it all other links."""
    sender, receiver, other = client.sender(queue), client.receiver(queue), client.sender(queue)
    other.send(data_message(b"x"))
    (delivery,) = receiver.receive_many(1)
    for end in (sender, receiver):
        end.detach()
    for attempt in (
        lambda: sender.send(data_message(b"x")),
        lambda: receiver.grant(1),
        lambda: receiver.fetch(1),
        lambda: receiver.accept(delivery),
    ):
        with pytest.raises(LinkDetachedError, match="this program has detached the link: attach another one"):
            attempt()
    other.send(data_message(b"x"))


def test_links_of_a_session_that_this_program_has_ended(client: Any, queue: str) -> None:
    session = client.begin_session()
    sender, receiver = client.sender(queue, session=session), client.receiver(queue, session=session)
    client.end_session(session)
    for attempt in (lambda: sender.send(data_message(b"x")), lambda: receiver.grant(1)):
        with pytest.raises(SessionEndedError, match="begin another one"):
            attempt()
    client.sender(queue).send(data_message(b"x"))


def test_no_room_for_what_is_there(client: Any, queue: str) -> None:
    """Asked for none, or for fewer than the least number: it does not wait for room."""
    client.sender(queue).send_many([data_message(b"x")] * 3)
    receiver = client.receiver(queue)
    assert len(receiver.receive_many(1)) == 1
    assert receiver.receive_many(0) == []
    assert len(receiver.receive_many(1, count_min=5)) == 1
    assert len(receiver.receive_many(5, count_min=1)) == 1


def test_wrong_password(broker: BrokerProcess, connect: Connect) -> None:
    with pytest.raises(LoginError, match="correct them"):
        connect(broker.host, broker.port, user="guest", password="wrong")


def test_nobody_listens(connect: Connect) -> None:
    with pytest.raises(ConnectError, match="start the broker"):
        connect("127.0.0.1", 1)


def test_no_such_virtual_host(broker: BrokerProcess, connect: Connect) -> None:
    with pytest.raises(ConnectionEndedError, match="'other' does not exist"):
        connect(
            broker.host,
            broker.port,
            user="guest",
            password="guest",
            options=ClientOptions(hostname="vhost:other"),
        )


def test_a_broker_that_stops_says_so(start_broker: StartBroker, connect: Connect) -> None:
    process = start_broker()
    client = connect(port=process.port, user="guest", password="guest")
    receiver = client.receiver("q")
    process.terminate()
    with pytest.raises(ConnectionEndedError, match="connect again") as raised:
        receiver.receive(timeout_s=20.0)
    assert raised.value.condition == "amqp:connection:forced"
    client.close()
    client.close()
    assert process.wait_ended() == 0


def test_heartbeats_while_polling(start_broker: StartBroker) -> None:
    """A broker that gives silent clients up after 4 s keeps one that polls for longer, and is kept by it."""
    process = start_broker("--idle-timeout-ms", "4000")
    options = ClientOptions(idle_timeout_ms=4000)
    with blocking.connect(port=process.port, user="guest", password="guest", options=options) as client:
        client.poll(5.5)
        client.sender("q").send(data_message(b"x"))


# --- bad brokers ----------------------------------------------------------------------------------


@contextmanager
def server(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """Something that listens and treats its first connection as told; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            connected, _ = listening.accept()
            with connected:
                behave(connected)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(10)


def hear(connected: socket.socket) -> None:
    """Take what comes until the client goes."""
    while connected.recv(1 << 16):
        pass


def speak(data: bytes) -> Callable[[socket.socket], None]:
    """Hear the client's header, answer with these bytes, and close."""

    def behave(connected: socket.socket) -> None:
        connected.recv(len(HEADER_SASL))
        connected.sendall(data)

    return behave


def test_a_server_that_says_nothing(connect: Connect) -> None:
    with server(hear) as port, pytest.raises(TimedOutError, match="answer to our open frame"):
        connect(port=port, timeout_s=0.3)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "before the connection was open"),
        (HEADER_SASL, "before the connection was open"),
        (b"SSH-2.0-x\r\n", "is it an AMQP 1.0 broker"),
    ],
)
def test_a_server_that_is_no_broker(answer: bytes, message: str, connect: Connect) -> None:
    with server(speak(answer)) as port, pytest.raises(ConnectionEndedError, match=message):
        connect(port=port, timeout_s=5.0)


# --- ping -----------------------------------------------------------------------------------------


def ping(broker: BrokerProcess, *arguments: str) -> int:
    return main(["ping", "--port", str(broker.port), *arguments])


def test_ping_answers(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert ping(broker) == 0
    said = capsys.readouterr()
    assert said.out.startswith("amqp10broker@")
    assert " answered in " in said.out
    assert "(amqp10broker 0." in said.out
    assert "compatible with RabbitMQ 4." in said.out
    assert said.err == ""


def test_ping_through_a_temporary_queue(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    def queues() -> set[str]:
        return {each["name"] for each in broker.status()["queues"]}

    before = queues()
    assert ping(broker, "--queue") == 0
    assert "a message passed through a temporary queue in " in capsys.readouterr().out
    broker.wait_until(lambda: queues() <= before, "the temporary queue is gone")


def test_ping_through_a_named_queue_leaves_its_messages(
    client: Any, broker: BrokerProcess, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """More than one batch of messages stands in front; they stay, in their order."""
    client.sender(queue).send_many(map(data_message, bodies(150)))
    assert ping(broker, "--queue", queue) == 0
    assert f"a message passed through queue '{queue}' in " in capsys.readouterr().out
    broker.wait_for_counts(queue, ready=150)
    receiver = client.receiver(queue)
    left = [each.message().body for each in receiver.receive_many(150, count_min=150)]
    assert left == bodies(150)


def test_ping_does_not_declare_a_queue(
    broker: BrokerProcess, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ping(broker, "--queue", queue) == 1
    assert "declare it first" in capsys.readouterr().err
    assert broker.queue(queue) is None


def test_ping_notices_that_somebody_else_takes_the_messages(
    client: Any, broker: BrokerProcess, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver = client.receiver(queue, credit=1000)
    client.flush()
    broker.wait_until(lambda: broker.links(queue)[0]["credit"] == 1000, "the receiver's credit")
    assert ping(broker, "--queue", queue) == 1
    assert "somebody else took it out" in capsys.readouterr().err
    assert receiver.receive() is not None


def test_ping_fails_in_one_sentence(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert ping(broker, "--password", "wrong") == 1
    assert main(["ping", "--port", "1"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0].startswith("amqp10broker: the broker refused user and password")
    assert said.err.splitlines()[1].startswith("amqp10broker: cannot connect to 127.0.0.1:1")


@pytest.mark.parametrize("seconds", ["0", "x", "1e9"])
def test_ping_refuses_a_bad_timeout(seconds: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ping", "--timeout", seconds])
    assert ended.value.code == 2
