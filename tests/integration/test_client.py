"""The client on both drivers, and `amqp10broker ping`, against the real broker and against bad ones."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from amqp10broker.cli.main import main
from amqp10broker.client import blocking, errors
from amqp10broker.client.core import WaitFor
from amqp10broker.client.links import Accepted, Released
from amqp10broker.client.message import Message, Properties, data_message
from amqp10broker.client.options import ClientOptions
from amqp10broker.protocols.amqp10.connection import HEADER_SASL
from tests.support.broker_process import SLOW_QUEUES, BrokerProcess, StartBroker
from tests.support.client_drivers import Connect, connect

__all__ = ["connect"]


@pytest.fixture
def client(broker: BrokerProcess, connect: Connect) -> Iterator[Any]:
    with connect(broker.host, broker.port, user="guest", password="guest", timeout_s=20.0) as connected:
        yield connected


# --- sending --------------------------------------------------------------------------------------


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
    with pytest.raises(errors.NotAcceptedError, match="correct the address") as raised:
        sender.send(lost)
    assert raised.value.outcome == Released()
    good = Message(b"", Properties(to=f"/queues/{queue}"))
    assert sender.send_many([good, lost, good]) == [Accepted(), Released(), Accepted()]


def test_both_directions_at_once_do_not_block_each_other(client: Any, queue: str) -> None:
    """Megabytes go out and come in on one socket, and neither direction waits for the other."""
    receiver = client.receiver(queue, credit=1000)
    sender = client.sender(queue)
    sender.send_many([data_message(bytes(50_000))] * 400)
    seen = 0
    while seen < 400:
        deliveries = receiver.receive_many(100)
        assert deliveries
        receiver.accept(deliveries)
        seen += len(deliveries)


def test_no_credit_in_time(start_broker: StartBroker, connect: Connect) -> None:
    """During an alarm the error says so, and messages that were not begun are never sent."""
    process = start_broker()
    with connect(port=process.port, user="guest", password="guest") as client:
        sender = client.sender("q")
        process.ask("alarm", name="memory", on=True)
        window = client.session.engine.outgoing
        client.wait(WaitFor(lambda: window.remote_incoming_window == 0, lambda: None, 20.0, "closed window"))
        with pytest.raises(errors.TimedOutError) as raised:
            sender.send_many([data_message(b"x")] * 2, timeout_s=0.2)
        assert raised.value.outcomes == [None, None]
        process.ask("alarm", name="memory", on=False)
        client.wait(WaitFor(lambda: window.remote_incoming_window > 0, lambda: None, 20.0, "open window"))
        sender.send(data_message(b"y"))
        process.wait_for_counts("q", ready=1)


# --- receiving ------------------------------------------------------------------------------------


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


# --- ends -----------------------------------------------------------------------------------------


def test_a_link_that_breaks_while_sending_tells_what_is_known(client: Any, queue: str) -> None:
    """A malformed message detaches the link; the messages before it have their outcomes."""
    sender = client.sender(queue)
    bad = b"\x00\x53\x75\xa1\x01a"
    with pytest.raises(errors.LinkDetachedError) as raised:
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
    """The call raises an error and the connection goes on; a frame written later would end it."""
    with pytest.raises(ValueError):
        attempt(client)
    client.sender(queue).send(data_message(b"x"))


def test_a_link_that_this_program_has_detached(client: Any, queue: str) -> None:
    """Its use is an error of the call; a frame for it would end the session with all other links."""
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
        with pytest.raises(
            errors.LinkDetachedError, match="this program has detached the link: attach another one"
        ):
            attempt()
    other.send(data_message(b"x"))


def test_heartbeats_while_polling(start_broker: StartBroker) -> None:
    """A broker with a time-out of 4 s keeps a client that polls for longer, and is kept by it."""
    process = start_broker("--idle-timeout-ms", "4000")
    options = ClientOptions(idle_timeout_ms=4000)
    with blocking.connect(port=process.port, user="guest", password="guest", options=options) as client:
        client.poll(5.5)
        client.sender("q").send(data_message(b"x"))


# --- bad brokers ----------------------------------------------------------------------------------


@contextmanager
def server(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen, handle the first connection as given, and yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            connected, _ = listening.accept()
            with connected:
                behave(connected)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


def speak(data: bytes) -> Callable[[socket.socket], None]:
    """Read the client's header, answer with these bytes, and close."""

    def behave(connected: socket.socket) -> None:
        connected.recv(len(HEADER_SASL))
        connected.sendall(data)

    return behave


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "before the connection was open"),
        (HEADER_SASL, "before the connection was open"),
        (b"SSH-2.0-x\r\n", "is it an AMQP 1.0 broker"),
    ],
)
def test_a_server_that_is_no_broker(answer: bytes, message: str, connect: Connect) -> None:
    with server(speak(answer)) as port, pytest.raises(errors.ConnectionEndedError, match=message):
        connect(port=port, timeout_s=60.0)


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


def test_ping_notices_that_somebody_else_takes_the_messages(
    client: Any, broker: BrokerProcess, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver = client.receiver(queue, credit=1000)
    client.flush()
    broker.wait_until(lambda: broker.links(queue)[0]["credit"] == 1000, "the receiver's credit")
    assert ping(broker, "--queue", queue) == 1
    assert "another consumer received it" in capsys.readouterr().err
    assert receiver.receive() is not None
