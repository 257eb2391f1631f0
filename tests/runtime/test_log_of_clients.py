"""What the log says of clients: one warning for each thing that went wrong, where, and what they heard."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair

from amqp10broker.config import FlowSettings
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp10 import performatives as amqp10
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.log import BURST, PERIOD_S
from tests.runtime.conftest import LogRecorder
from tests.support import rawframes as raw
from tests.support.trioclient import Client, connect, running_broker, settle_down
from tests.support.trioclient091 import HEADER, connect091, start_ok


def only(log: LogRecorder, event: str) -> dict[str, Any]:
    ((found, fields),) = log.of("warning")
    assert found == event
    return fields


def connection_status(broker: Broker) -> dict[str, Any]:
    (status,) = broker.status()["connections"]
    return dict(status)


def queue_status(broker: Broker, name: str) -> dict[str, Any]:
    (status,) = (each for each in broker.status()["queues"] if each["name"] == name)
    return dict(status)


# --- AMQP 1.0 -------------------------------------------------------------------------------------


async def test_a_refused_attach(broker: Broker, log: LogRecorder) -> None:
    client = await connect(broker).open()
    told = (await client.call(amqp10.Detach, raw.attach_receiver(0, "/queues/none"))).error
    fields = only(log, "attach refused")
    assert fields == {
        "connection": 1,
        "peer": client.peer,
        "user": "guest",
        "vhost": "/",
        "session": 0,
        "link": "in-0-0-/queues/none",
        "role": "receiver",
        "address": "/queues/none",
        "queue": "none",
        "condition": "amqp:not-found",
        "text": told.description,
    }
    status = connection_status(broker)
    for shown in (status["last_error"], status["sessions"][0]["last_error"]):
        assert shown["event"] == "attach refused"
        assert shown["text"] == told.description
        assert shown["queue"] == "none"
        assert shown["time"].endswith("Z")


async def test_a_link_that_breaks_its_credit(log: LogRecorder) -> None:
    """The engine detaches it; the error is the queue's last error."""
    async with running_broker(flow=FlowSettings(max_link_credit=1)) as broker:
        client = await connect(broker).open()
        await client.call(amqp10.Attach, raw.attach_sender(0, "q"))
        told = (
            await client.call(amqp10.Detach, *(raw.transfer(0, number, b"x") for number in range(9)))
        ).error
        fields = only(log, "link detached by the broker")
        assert fields["condition"] == "amqp:link:transfer-limit-exceeded"
        assert fields["text"] == told.description
        assert (fields["link"], fields["queue"]) == ("out-0-0-q", "q")
        assert queue_status(broker, "q")["last_error"]["link"] == "out-0-0-q"


async def test_a_queue_deleted_under_links(broker: Broker, log: LogRecorder) -> None:
    client = await connect(broker).open()
    await client.send(raw.attach_sender(0, "q"), raw.attach_receiver(1, "q"))
    await client.take(amqp10.Attach, 2)
    vhost = broker.catalog.lookup_vhost("/")
    deleter = await connect091(broker).open()
    await deleter.call(1, methods.QueueDelete("q"), methods.QueueDeleteOk)
    await client.take(amqp10.Detach, 2)
    assert vhost.find("q") is None
    warnings = log.of("warning")
    assert {fields["link"] for _, fields in warnings} == {"out-0-0-q", "in-0-1-q"}
    assert {event for event, _ in warnings} == {"link detached by the broker"}
    assert {fields["condition"] for _, fields in warnings} == {"amqp:resource-deleted"}


async def test_a_dynamic_queue_is_named_by_the_address_that_it_got(broker: Broker, log: LogRecorder) -> None:
    """The client's attach has no address; the answer has."""
    client = await connect(broker).open()
    source = amqp10.Source(dynamic=True)
    await client.send(raw.attach_receiver(0, "", source=source))
    name = (await client.until(amqp10.Attach)).source.address.removeprefix("/queues/")
    deleter = await connect(broker).open()
    await deleter.call(amqp10.Detach, raw.attach_receiver(0, f"/queues/{name}"))
    assert only(log, "attach refused")["condition"] == "amqp:resource-locked"
    assert only(log, "attach refused")["queue"] == name


async def test_an_ended_session(broker: Broker, log: LogRecorder) -> None:
    client = await connect(broker).open(channels=2)
    told = (await client.call(amqp10.End, raw.transfer(7, 0, b"x", channel=1))).error
    fields = only(log, "session ended by the broker")
    assert fields["session"] == 1
    assert fields["user"] == "guest"
    assert (fields["condition"], fields["text"]) == ("amqp:session:unattached-handle", told.description)
    assert connection_status(broker)["last_error"]["session"] == 1


async def test_an_idle_client_is_told_with_the_time(log: LogRecorder) -> None:
    async with running_broker(idle_timeout_ms=4_000) as broker:
        client = await connect(broker).open()
        await client.rest()
        fields = only(log, "connection closed by the broker")
        assert fields["timeout_ms"] == 4_000
        assert fields["user"] == "guest"


async def test_a_message_that_is_rejected_is_the_links_last_error_and_no_warning(
    broker: Broker, log: LogRecorder
) -> None:
    """The client gets each outcome; warnings about them would fill the log."""
    client = await connect(broker).open()
    await client.call(amqp10.Attach, raw.attach_sender(0, "", target=amqp10.Target(address=None)))
    await client.submit(raw.transfer(0, 0, b"x"))
    (link,) = connection_status(broker)["sessions"][0]["links"]
    assert link["last_error"]["event"] == "message rejected"
    assert link["last_error"]["text"] == "anonymous terminus requires 'to' address to be set"
    assert log.of("warning") == []


async def test_one_connection_cannot_fill_the_log(broker: Broker, log: LogRecorder) -> None:
    """A burst is written, the rest is counted and summed up; another connection still gets its entries."""
    loud = await connect(broker).open()
    for number in range(BURST + 7):
        await loud.send(raw.attach_receiver(number, "/queues/none"))
    await loud.take(amqp10.Detach, BURST + 7)
    other = await connect(broker).open()
    await other.call(amqp10.Detach, raw.attach_receiver(0, "/queues/none"))
    assert [fields["connection"] for _, fields in log.of("warning")] == [1] * BURST + [2]
    await trio.sleep(PERIOD_S + 1)
    event, fields = log.of("warning")[-1]
    assert event == "entries left out"
    assert fields == {
        "connection": 1,
        "peer": loud.peer,
        "user": "guest",
        "vhost": "/",
        "count": 7,
        "events": "attach refused (7)",
        "period_s": PERIOD_S,
    }


# --- login ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["s3cret-Passw0rd", "ann"])
async def test_a_name_that_nobody_has_is_not_in_the_log(log: LogRecorder, name: str) -> None:
    """It may be a password typed in place of the name; this holds for both protocols."""
    async with running_broker(auth_failure_delay_ms=0) as broker:
        client = connect(broker)
        await client.call(amqp10.SaslOutcome, raw.login("PLAIN", f"\0{name}\0x".encode()))
        other = connect091(broker)
        await other.begin()
        await other.send(0, start_ok(user=name, password="x"))
        assert "Login was refused" in (await other.until(methods.ConnectionClose)).reply_text
    assert [event for event, _ in log.of("warning")] == ["login failed"] * 2
    assert name not in repr(log.entries)
    for _, fields in log.of("warning"):
        assert fields["reason"].startswith("unknown user")
        assert "user" not in fields


async def test_a_user_with_a_wrong_password_is_named(log: LogRecorder) -> None:
    """The name is no secret, and an operator must know whose password fails."""
    async with running_broker(auth_failure_delay_ms=0) as broker:
        client = connect(broker)
        await client.call(amqp10.SaslOutcome, raw.login("PLAIN", b"\0guest\0wrong"))
    fields = only(log, "login failed")
    assert fields["user"] == "guest"
    assert fields["reason"] == "user 'guest': invalid credentials"
    assert fields["text"] == "sasl-outcome auth"
    assert "wrong" not in repr(log.entries)


async def test_a_storm_of_failed_logins_is_limited_by_its_address(log: LogRecorder) -> None:
    """Each connection has only one warning: without a limit by address there would be as many."""
    async with running_broker(auth_failure_delay_ms=0) as broker:
        for number in range(BURST + 5):
            ours, theirs = memory_stream_pair()
            broker.serve(theirs, peer=f"192.0.2.7:{number}")
            client = Client(broker, ours, "")
            await client.call(amqp10.SaslOutcome, raw.login("PLAIN", b"\0guest\0wrong"))
        other = connect(broker)
        await other.call(amqp10.SaslOutcome, raw.login("PLAIN", b"\0guest\0wrong"))
    events = [event for event, _ in log.of("warning")]
    assert events == ["login failed"] * (BURST + 1) + ["entries left out"]
    assert log.of("warning")[BURST][1]["peer"] == other.peer
    assert log.of("warning")[-1][1]["count"] == 5
    assert log.of("warning")[-1][1]["peer"] == "192.0.2.7"


# --- AMQP 0-9-1 -----------------------------------------------------------------------------------


async def test_a_sasl_response_to_no_challenge_is_a_fault_of_the_client(log: LogRecorder) -> None:
    """The log has one warning, within its limits, and no traceback."""
    async with running_broker() as broker:
        for _ in range(20):
            client = connect(broker, peer="192.0.2.1:1")
            await client.send(raw.SASL_HEADER + raw.frame(0, amqp10.SaslResponse(response=b"x"), kind=1))
            await client.stream.send_eof()
            await client.rest()
    assert log.of("error") == []
    warnings = [fields for event, fields in log.of("warning") if event == "connection closed by the broker"]
    assert {each["text"] for each in warnings} == {"SaslResponse frame in connection state sasl_negotiating"}
    assert len(warnings) == BURST


async def test_a_channel_error(broker: Broker, log: LogRecorder) -> None:
    client = await connect091(broker).open()
    close = await client.call(1, methods.QueueDeclare("none", passive=True), methods.ChannelClose)
    assert only(log, "channel closed by the broker") == {
        "connection": 1,
        "peer": client.peer,
        "user": "guest",
        "vhost": "/",
        "channel": 1,
        "method": "queue.declare",
        "queue": "none",
        "code": 404,
        "text": close.reply_text,
    }
    status = connection_status(broker)
    assert status["channels"][0]["last_error"]["text"] == close.reply_text
    assert status["last_error"]["channel"] == 1


async def test_a_hard_error_names_channel_and_method(broker: Broker, log: LogRecorder) -> None:
    client = await connect091(broker).open()
    await client.send(1, methods.ChannelOpen())
    close = await client.until(methods.ConnectionClose)
    fields = only(log, "connection closed by the broker")
    assert (fields["code"], fields["channel"], fields["method"]) == (504, 1, "channel.open")
    assert fields["text"] == close.reply_text


async def test_a_queue_deleted_under_a_consumer(broker: Broker, log: LogRecorder) -> None:
    client = await connect091(broker).open()
    await client.call(1, methods.QueueDeclare("q", durable=True), methods.QueueDeclareOk)
    await client.call(1, methods.BasicConsume("q", "tag"), methods.BasicConsumeOk)
    deleter = await connect091(broker).open()
    await deleter.call(1, methods.QueueDelete("q"), methods.QueueDeleteOk)
    await client.until(methods.BasicCancel)
    fields = only(log, "consumer cancelled: its queue was deleted")
    assert fields["connection"] == 1
    assert (fields["channel"], fields["consumer"], fields["queue"]) == (1, "tag", "q")
    assert fields["text"] == "basic.cancel"
    assert connection_status_of(broker, 1)["channels"][0]["last_error"]["consumer"] == "tag"


async def test_a_client_that_is_not_told_of_a_deleted_queue(broker: Broker, log: LogRecorder) -> None:
    """It does not support basic.cancel, so only the log has the deletion."""
    client = await connect091(broker).open(capabilities=())
    await client.call(1, methods.QueueDeclare("q", durable=True), methods.QueueDeclareOk)
    await client.call(1, methods.BasicConsume("q", "tag"), methods.BasicConsumeOk)
    deleter = await connect091(broker).open()
    await deleter.call(1, methods.QueueDelete("q"), methods.QueueDeleteOk)
    await settle_down()
    assert only(log, "consumer cancelled: its queue was deleted")["text"] is None


async def test_a_channel_that_is_closed_again_and_again_is_limited(log: LogRecorder) -> None:
    """As with links, the connection counts, not the channel."""
    async with running_broker() as broker:
        client = await connect091(broker).open()
        for _ in range(BURST + 2):
            await client.call(1, methods.QueueDeclare("none", passive=True), methods.ChannelClose)
            await client.send(1, methods.ChannelCloseOk())
            await client.call(1, methods.ChannelOpen(), methods.ChannelOpenOk)
        assert len(log.of("warning")) == BURST
    assert log.of("warning")[-1][1]["events"] == "channel closed by the broker (2)"


def connection_status_of(broker: Broker, number: int) -> dict[str, Any]:
    (status,) = (each for each in broker.status()["connections"] if each["id"] == number)
    return dict(status)


async def test_a_client_that_goes_between_login_and_open_is_lost(log: LogRecorder) -> None:
    """In both protocols the log does not call the connection closed by the client."""
    async with running_broker() as broker:
        first = connect(broker)
        await first.submit(raw.login())
        await first.stream.aclose()
        second = connect091(broker)
        await second.send_bytes(HEADER)
        await second.submit(0, start_ok())
        await second.stream.aclose()
        await settle_down()
    ends = [fields["reason"] for event, fields in log.of("info") if event == "connection closed"]
    assert ends == ["lost: the client's socket ended without a close"] * 2
