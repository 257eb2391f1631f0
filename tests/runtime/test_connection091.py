"""AMQP 0-9-1 connections with their real tasks: opening, limits, heartbeats, alarms, closing, credit flow."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio

from amqp10broker.config import FaultInjection
from amqp10broker.metadata.plan import UserLimits
from amqp10broker.operations.snapshot import document
from amqp10broker.protocols.amqp091 import content, methods
from amqp10broker.protocols.amqp091.content import HEADER as FRAME_HEADER
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.runtime.broker import Broker
from tests.runtime.conftest import LogRecorder
from tests.support.declaring import set_user_limits
from tests.support.trioclient import Brake, pipe_pair, queue_counts, running_broker, settle_down
from tests.support.trioclient091 import HEADER, Client091, bodies, connect091, message, names, start_ok

Q = methods.QueueDeclare("q", durable=True)


async def closed(client: Client091) -> tuple[int, str]:
    """Return code and text of the broker's close; its socket closes after the answer."""
    got = await client.until(methods.ConnectionClose)
    await client.send(0, methods.ConnectionCloseOk())
    assert await client.rest() == []
    await settle_down()
    assert client.task is None
    return got.reply_code, got.reply_text


# --- opening -----------------------------------------------------------------------------------------


async def test_start_tells_who_we_are(broker: Broker) -> None:
    start = await connect091(broker).begin()
    assert (start.version_major, start.version_minor) == (0, 9)
    offered = start.mechanisms.decode().split()
    assert {"PLAIN", "AMQPLAIN", "ANONYMOUS"} <= set(offered)
    assert start.locales == b"en_US"
    properties = start.server_properties
    assert properties["product"] == "RabbitMQ"
    assert properties["version"].startswith("4.")
    assert {"cluster_name", "copyright", "information", "platform"} <= set(properties)
    assert properties["capabilities"] == dict.fromkeys(
        (
            "publisher_confirms",
            "exchange_exchange_bindings",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
            "consumer_priorities",
            "authentication_failure_close",
            "per_consumer_qos",
            "direct_reply_to",
        ),
        True,
    )


async def test_tune_offers_a_heartbeat() -> None:
    async with running_broker(idle_timeout_ms=60_000) as broker:
        assert (await connect091(broker).login()).heartbeat == 60


@pytest.mark.parametrize("capable", [True, False])
@pytest.mark.parametrize("fields", [{"password": "wrong"}, {"user": "nobody"}], ids=str)
async def test_refused_login(capable: bool, fields: dict[str, str]) -> None:
    """After a delay clients with the capability get connection.close 403, others a closed socket."""
    async with running_broker(auth_failure_delay_ms=3_000) as broker:
        client = connect091(broker)
        await client.begin()
        began = trio.current_time()
        names_ = ("authentication_failure_close",) if capable else ()
        await client.send(0, start_ok(capabilities=names_, **fields))  # type: ignore[arg-type]
        if capable:
            text = (
                "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see "
                "the broker logfile."
            )
            assert await closed(client) == (403, text)
        else:
            assert await client.rest() == []
        assert trio.current_time() - began >= 3.0


async def test_smaller_limits_hold(broker: Broker) -> None:
    """channel_max limits the number of open channels, whatever their numbers; frames keep to frame_max."""
    client = connect091(broker)
    await client.login()
    await client.send(0, methods.ConnectionTuneOk(2, 8192, 0), methods.ConnectionOpen("/"))
    await client.expect(methods.ConnectionOpenOk)
    await client.call(5, methods.ChannelOpen(), methods.ChannelOpenOk)
    await client.call(65_535, methods.ChannelOpen(), methods.ChannelOpenOk)
    assert client.task.engine.frame_max == 8192
    await client.call(5, methods.ChannelClose(200, "", 0, 0), methods.ChannelCloseOk)
    await client.call(6, methods.ChannelOpen(), methods.ChannelOpenOk)
    await client.send(7, methods.ChannelOpen())
    assert await closed(client) == (
        530,
        "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)",
    )


@pytest.mark.rabbitmq("per_user_connection_channel_limit_SUITE", "single_node_single_user_limit")
async def test_limit_of_channels_per_user(broker: Broker) -> None:
    """The code is 530; closed ones do not count."""
    set_user_limits(broker.catalog, "guest", UserLimits(max_channels=2))
    client = await connect091(broker).open(channels=2)
    await client.call(1, methods.ChannelClose(200), methods.ChannelCloseOk)
    await client.call(3, methods.ChannelOpen(), methods.ChannelOpenOk)
    await client.send(4, methods.ChannelOpen())
    text = "number of channels opened for user 'guest' has reached the maximum allowed user limit of (2)"
    assert await closed(client) == (530, f"NOT_ALLOWED - {text}")


@pytest.mark.parametrize("stage", ["nothing", "header", "start-ok", "tune-ok"])
async def test_handshake_times_out(stage: str) -> None:
    """The limit is 10 s for all of it until open; then the socket is closed."""
    async with running_broker(handshake_timeout_ms=10_000) as broker:
        client = connect091(broker)
        began = trio.current_time()
        if stage == "header":
            await client.begin()
        elif stage != "nothing":
            await client.login()
            if stage == "tune-ok":
                await client.send(0, methods.ConnectionTuneOk(5, 8192, 0))
        assert await client.rest() == []
        # The header has a time of its own.
        assert 9.9 <= trio.current_time() - began <= 20.1
        await settle_down()
        assert client.task is None


async def test_everything_in_one_write(broker: Broker) -> None:
    """The client sends header, login, open, channel, declare and publish without waiting for answers."""
    client = connect091(broker)
    await client.send_bytes(
        HEADER
        + b"".join(
            content.method_frame(0, each)
            for each in (start_ok(), methods.ConnectionTuneOk(5, 8192, 0), methods.ConnectionOpen("/"))
        )
        + content.method_frame(1, methods.ChannelOpen())
        + content.method_frame(1, Q)
        + message(1, "q", b"x")
        + content.method_frame(1, methods.BasicConsume("q", "c", no_ack=True))
        + content.method_frame(0, methods.ConnectionClose(200, "bye"))
    )
    got = await client.rest()
    assert names(got)[:6] == [
        "ConnectionStart",
        "ConnectionTune",
        "ConnectionOpenOk",
        "ChannelOpenOk",
        "QueueDeclareOk",
        "BasicConsumeOk",
    ]
    assert names(got)[-1] == "ConnectionCloseOk"


async def test_frames_behind_open_are_not_bound_by_the_handshakes_time() -> None:
    """A reader that is held up by them must not count as a handshake that takes too long."""
    slow = FaultInjection(confirm_delay_ms=(("q", 6_000),))
    credit = {"credit_flow_initial": 1, "credit_flow_more_after": 1}
    async with running_broker(test_mode=True, fault_injection=slow, **credit) as broker:
        client = connect091(broker)
        await client.login()
        opening = [methods.ConnectionTuneOk(5, 8192, 0), methods.ConnectionOpen("/")]
        parts = [content.method_frame(0, each) for each in opening] + [
            content.method_frame(1, methods.ChannelOpen())
        ]
        await client.send(1, *parts, Q, *[message(1, "q", b"x")] * 4)
        assert names(await client.idle(60)) == ["ConnectionOpenOk", "ChannelOpenOk", "QueueDeclareOk"]
        assert queue_counts(broker, "q") == (4, 0)
        assert client.task is not None


# --- heartbeats --------------------------------------------------------------------------------------


async def test_heartbeats_are_sent_in_silence(broker: Broker) -> None:
    """No silence of the broker lasts longer than half of the interval."""
    client = await connect091(broker).open(heartbeat=10)
    times = [trio.current_time()]
    while trio.current_time() < times[0] + 60:
        await client.send_bytes(content.HEARTBEAT)
        got = await client.next_or_end(heartbeats=True)
        assert isinstance(got[1], content.Heartbeat)
        times.append(trio.current_time())
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) <= 5.1
    assert client.task is not None


async def test_silent_client_is_dropped_after_two_intervals(broker: Broker) -> None:
    client = await connect091(broker).open(heartbeat=10)
    began = trio.current_time()
    assert await client.rest() == []
    assert 19.9 <= trio.current_time() - began <= 26
    await settle_down()
    assert client.task is None


async def test_any_frame_is_a_sign_of_life(broker: Broker) -> None:
    client = await connect091(broker).open(heartbeat=10)
    await client.call(1, Q, methods.QueueDeclareOk)
    for _ in range(10):
        await trio.sleep(9)
        await client.send(1, message(1, "q", b"x"))
    await settle_down()
    assert client.task is not None
    assert queue_counts(broker, "q") == (10, 0)


async def test_no_heartbeat_means_never() -> None:
    async with running_broker(idle_timeout_ms=10_000) as broker:
        client = await connect091(broker).open(heartbeat=0)
        await trio.sleep(1000)
        assert await client.idle(heartbeats=True) == []
        assert client.task is not None


# --- alarms ------------------------------------------------------------------------------------------


async def test_alarm_holds_publishers_only(broker: Broker) -> None:
    """A publisher is notified and not read any more; a consumer goes on; afterwards both go on."""
    publisher = await connect091(broker).open()
    consumer = await connect091(broker).open()
    await publisher.call(1, Q, methods.QueueDeclareOk)
    await publisher.submit(1, message(1, "q", b"1"))
    broker.resource_monitor.set_alarm("memory", on=True)
    await settle_down()
    assert await publisher.idle() == [], "told before it has published"
    await consumer.call(1, methods.BasicConsume("q", "c"), methods.BasicConsumeOk)
    assert names(await consumer.idle()) == ["BasicDeliver"]
    await consumer.send(1, methods.BasicAck(1))
    await publisher.send(1, message(1, "q", b"2"))
    assert await publisher.expect(methods.ConnectionBlocked) == methods.ConnectionBlocked("low on memory")
    await publisher.send(1, message(1, "q", b"3"), Q)
    assert await publisher.idle() == []
    assert publisher.task.state == "blocked"
    assert bodies(await consumer.idle()) == [b"2"]
    broker.resource_monitor.set_alarm("memory", on=False)
    await publisher.expect(methods.ConnectionUnblocked)
    await publisher.expect(methods.QueueDeclareOk)
    assert bodies(await consumer.idle()) == [b"3"]
    assert publisher.task.state == "running"


def half_a_message(size: int, sent: int, exchange: str = "") -> bytes:
    head = content.method_frame(1, methods.BasicPublish(exchange, "q")) + content.content_header_frame(
        1, b"\0\0", size
    )
    return head + body_of_a_message(sent)


def body_of_a_message(size: int) -> bytes:
    return FRAME_HEADER.pack(methods.FRAME_BODY, 1, size) + b"x" * size + content.END


async def test_who_is_in_the_middle_of_a_message_is_held_by_an_alarm(broker: Broker) -> None:
    """It publishes, though no message is whole: its further bytes stay in its socket."""
    publisher = await connect091(broker).open()
    await publisher.call(1, Q, methods.QueueDeclareOk)
    await publisher.send_bytes(half_a_message(500_000, 100_000))
    await settle_down()
    broker.resource_monitor.set_alarm("memory", on=True)
    await settle_down()
    held = publisher.task.engine.reader.unfinished.held_bytes
    assert 100_000 <= held < 101_000
    for _ in range(4):
        await publisher.send_bytes(body_of_a_message(100_000))
    assert await publisher.expect(methods.ConnectionBlocked) == methods.ConnectionBlocked("low on memory")
    await settle_down()
    assert publisher.task.state == "blocked"
    assert publisher.task.engine.reader.unfinished.held_bytes <= held + 65_536, "more than the read under way"
    broker.resource_monitor.set_alarm("memory", on=False)
    await publisher.expect(methods.ConnectionUnblocked)
    await settle_down()
    assert publisher.task.engine.reader.unfinished.held_bytes == 0
    assert queue_counts(broker, "q") == (1, 0)


async def test_a_message_that_is_refused_does_not_hold_its_connection(broker: Broker) -> None:
    """During an alarm the client gets its channel's close with the reason, and other channels work."""
    client = await connect091(broker).open(channels=2)
    broker.resource_monitor.set_alarm("disk", on=True)
    await client.send_bytes(half_a_message(500_000, 10, "nowhere"))
    assert (await client.until(methods.ChannelClose)).reply_code == 404
    await client.send(1, methods.ChannelCloseOk())
    await client.send(2, Q)
    await client.until(methods.QueueDeclareOk)
    assert client.task.engine.reader.unfinished.held_bytes == 0


async def test_unfinished_messages_of_one_connection_are_bounded(log: LogRecorder) -> None:
    """The connection that holds too much gets 506, whatever the number of its channels."""
    async with running_broker(unfinished_bytes_max=100_000, max_message_size_bytes=10_000) as broker:
        client = await connect091(broker).open(channels=200)
        other = await connect091(broker).open()
        await other.call(1, Q, methods.QueueDeclareOk)
        for number in range(1, 201):
            head = content.method_frame(number, methods.BasicPublish("", "q")) + content.content_header_frame(
                number, b"\0\0", 9_000
            )
            await client.send_bytes(
                head + FRAME_HEADER.pack(methods.FRAME_BODY, number, 900) + b"x" * 900 + content.END
            )
        closed = await client.until(methods.ConnectionClose)
        assert closed.reply_code == 506
        assert "finish some before you begin others" in closed.reply_text
        assert await other.call(1, Q, methods.QueueDeclareOk)
    assert [event for event, _ in log.of("warning")] == ["connection closed by the broker"]


async def test_a_publisher_of_the_past_may_consume_during_an_alarm(broker: Broker) -> None:
    """An alarm blocks a client that publishes during it, not one that published before."""
    client = await connect091(broker).open()
    await client.call(1, Q, methods.QueueDeclareOk)
    await client.submit(1, message(1, "q", b"1"), message(1, "q", b"2"))
    broker.resource_monitor.set_alarm("disk", on=True)
    await client.call(1, methods.BasicConsume("q", "c"), methods.BasicConsumeOk)
    await client.idle()
    await client.send(1, methods.BasicAck(1))
    await client.submit(1, methods.BasicAck(2))
    assert queue_counts(broker, "q") == (0, 0)
    assert client.task.state == "blocking"
    await client.send(1, message(1, "q", b"3"))
    assert await client.until(methods.ConnectionBlocked) == methods.ConnectionBlocked("low on disk")


async def test_an_alarm_wakes_no_channel(broker: Broker) -> None:
    """The reader handles it: thousands of channels have no work because of it."""
    await connect091(broker).open(channels=2)
    (connection,) = broker.connections.values()
    inboxes = [channel.inbox for channel in connection.parts.values()]
    assert [inbox.waiting for inbox in inboxes] == [0, 0]
    broker.resource_monitor.set_alarm("memory", on=True)
    broker.resource_monitor.set_alarm("memory", on=False)
    assert [inbox.waiting for inbox in inboxes] == [0, 0]
    broker.set_flow("max_link_credit", 7, source="test")
    assert [inbox.waiting for inbox in inboxes] == [1, 1]


@pytest.mark.rabbitmq("disconnect_detected_during_alarm_SUITE", "disconnect_detected_during_alarm")
async def test_a_blocked_client_owes_no_heartbeats_and_its_loss_is_noticed(broker: Broker) -> None:
    """Its bytes are not read; sent heartbeats fail when it has gone."""
    client = await connect091(broker).open(heartbeat=10)
    broker.resource_monitor.set_alarm("disk", on=True)
    await client.send(1, message(1, "q", b"1"))
    await client.until(methods.ConnectionBlocked)
    await trio.sleep(200)
    assert client.task is not None
    await client.vanish()
    await trio.sleep(30)
    assert client.task is None


# --- update-secret -----------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [b"guest", b"wrong", b"", b"\xff"])
async def test_update_secret_is_answered_with_ok(broker: Broker, secret: bytes) -> None:
    """The secret is ignored, since a password does not expire. Channels go on, and the password stays."""
    client = await connect091(broker).open()
    await client.call(0, methods.ConnectionUpdateSecret(secret, "new"), methods.ConnectionUpdateSecretOk)
    await client.call(1, Q, methods.QueueDeclareOk)
    assert broker.passwords.quick("guest", b"guest")


# --- closing -----------------------------------------------------------------------------------------


async def test_close_by_the_client(broker: Broker) -> None:
    """close-ok is the last frame; earlier publishes have arrived, and unacked messages are requeued."""
    client = await connect091(broker).open(channels=2)
    await client.call(1, Q, methods.QueueDeclareOk)
    await client.send(1, message(1, "q", b"1"), methods.BasicConsume("q", "c"))
    await client.idle()
    await client.send(2, *[message(2, "q", b"x")] * 50)
    await client.send(0, methods.ConnectionClose(200, "bye"))
    got = await client.rest()
    assert got[-1] == (0, methods.ConnectionCloseOk())
    await settle_down()
    assert queue_counts(broker, "q") == (51, 0)
    assert client.task is None


async def test_close_behind_methods_that_wait(broker: Broker) -> None:
    """Methods before the close count, also those that wait for a queue's answer just then."""
    client = await connect091(broker).open()
    await client.call(1, Q, methods.QueueDeclareOk)
    await client.send(
        1,
        methods.BasicConsume("q", "c", no_wait=True),
        *[message(1, "q", b"x")] * 50,
        Q,
        message(1, "q", b"y"),
    )
    await client.send(0, methods.ConnectionClose(200, "bye"))
    await client.rest()
    await settle_down()
    assert queue_counts(broker, "q") == (51, 0)


async def test_answers_before_a_hard_error_are_sent(broker: Broker) -> None:
    client = await connect091(broker).open()
    await client.send(1, Q, message(1, "q", b"x"), methods.ChannelOpen())
    assert names([await client.next(), await client.next()]) == ["QueueDeclareOk", "ConnectionClose"]
    await settle_down()
    assert queue_counts(broker, "q") == (1, 0)


async def test_client_that_does_not_answer_our_close(broker: Broker) -> None:
    client = await connect091(broker).open()
    await client.send(1, methods.ChannelOpen())
    await client.until(methods.ConnectionClose)
    assert await client.rest() == []
    await settle_down()
    assert client.task is None


async def test_shutdown_closes_with_320() -> None:
    """It is CONNECTION_FORCED with the reason, after unacked is requeued."""
    async with trio.open_nursery() as nursery, running_broker() as broker:
        client = await connect091(broker).open()
        seen: list[tuple[int, str]] = []

        async def watch() -> None:
            seen.append(await closed(client))

        nursery.start_soon(watch)
        await settle_down()
    text = "the broker is shutting down"
    assert seen == [(320, f"CONNECTION_FORCED - {text}")]


async def test_close_and_open_in_one_write_and_in_two(broker: Broker) -> None:
    """The number's next channel begins clean, however the frames come."""
    client = await connect091(broker).open()
    await client.call(1, Q, methods.QueueDeclareOk)
    await client.send(1, *[message(1, "q", b"x")] * 10, methods.ChannelClose(200), methods.ChannelOpen(), Q)
    assert names(await client.idle()) == ["ChannelCloseOk", "ChannelOpenOk", "QueueDeclareOk"]
    for _ in range(5):
        await client.send(1, *[message(1, "q", b"x")] * 10, methods.ChannelClose(200))
        await client.send(1, methods.ChannelOpen(), Q)
        assert names(await client.idle()) == ["ChannelCloseOk", "ChannelOpenOk", "QueueDeclareOk"]
    assert queue_counts(broker, "q") == (60, 0)
    assert len(client.task.parts) == 1


async def test_a_message_that_begins_behind_a_channel_s_close_is_dropped_as_a_whole(broker: Broker) -> None:
    """This holds also if its body follows the answer."""
    client = await connect091(broker).open()
    await client.call(1, Q, methods.QueueDeclareOk)
    await client.send(1, methods.ChannelClose(200), half_a_message(100_000, 10))
    await client.expect(methods.ChannelCloseOk)
    await client.send_bytes(body_of_a_message(99_990))
    assert await client.idle() == []
    assert client.task.engine.reader.unfinished.held_bytes == 0
    await client.call(1, methods.ChannelOpen(), methods.ChannelOpenOk)
    assert queue_counts(broker, "q") == (0, 0)


async def test_exclusive_queues_are_gone_when_the_end_is_told(broker: Broker) -> None:
    """A client that gets the close may declare them again at once, even if it leaves ours unanswered."""
    vhost = broker.catalog.lookup_vhost("/")
    for by_client in (False, True):
        client = await connect091(broker).open()
        await client.call(1, methods.QueueDeclare("x", exclusive=True), methods.QueueDeclareOk)
        if by_client:
            await client.send(0, methods.ConnectionClose(200, "bye"))
            await client.until(methods.ConnectionCloseOk)
        else:
            await client.send(1, methods.ChannelOpen())
            await client.until(methods.ConnectionClose)
        assert vhost.find("x") is None
        await client.rest()


# --- credit flow -------------------------------------------------------------------------------------


async def test_slow_queue_stops_the_reader(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After at most 400 + 400 messages no frame is read, not even an ack of channel 2; state is flow."""
    client = await connect091(broker, pair=partial(pipe_pair, 10_000_000)).open(channels=2)
    other = await connect091(broker).open()
    await client.call(1, Q, methods.QueueDeclareOk)
    await client.call(2, methods.QueueDeclare("r", durable=True), methods.QueueDeclareOk)
    await client.send(2, message(2, "r", b"x"), methods.BasicConsume("r", "c"))
    assert names(await client.idle()) == ["BasicConsumeOk", "BasicDeliver"]
    brake = Brake(monkeypatch, broker, "q")
    assert client.task.state == "running"
    one = message(1, "q", b"x" * 100)
    for _ in range(1000):
        await client.send(1, one * 100)
        if len(client.stream.outgoing.data) > 1_000_000:
            break
        await settle_down()
    await client.submit(2, methods.BasicAck(1))
    assert 400 <= brake.messages <= 800
    assert len(client.stream.outgoing.data) > 0
    assert queue_counts(broker, "r") == (0, 1)
    assert client.task.state == "flow"
    (first, second) = document(client.task.view())["channels"]
    assert first["waits"] == "credit-flow"
    assert first["waits_why"].startswith(
        f"the whole connection is not read: queue 'q' has not confirmed {first['unconfirmed']} messages "
        "of this channel"
    )
    assert (second["waits"], second["waits_why"]) == (
        "reader-held",
        "the connection is not read, because channel 1 of it takes nothing",
    )
    # Others are not touched, not even those that publish.
    await other.send(1, message(1, "r", b"y"))
    assert bodies(await client.idle(0.01)) == [b"y"]
    brake.release()
    await settle_down()
    assert len(client.stream.outgoing.data) == 0
    assert queue_counts(broker, "r") == (0, 1)
    assert client.task.state == "flow"
    await trio.sleep(1.1)
    assert client.task.state == "running"


async def test_held_client_is_not_taken_for_dead(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the broker does not read, it causes the silence itself."""
    client = await connect091(broker, pair=partial(pipe_pair, 10_000_000)).open(heartbeat=5)
    await client.call(1, Q, methods.QueueDeclareOk)
    brake = Brake(monkeypatch, broker, "q")
    await client.send(1, message(1, "q", b"x") * 2000)
    await trio.sleep(60)
    assert client.task is not None
    brake.release()
    await settle_down()
    assert queue_counts(broker, "q") == (2000, 0)


async def test_held_connection_can_be_closed_by_the_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader waits, and still ends."""
    client = await connect091(broker, pair=partial(pipe_pair, 10_000_000)).open()
    await client.call(1, Q, methods.QueueDeclareOk)
    Brake(monkeypatch, broker, "q")
    await client.submit(1, message(1, "q", b"x") * 2000)
    client.task.close("enough", node_stops=True)
    got = await client.until(methods.ConnectionClose)
    assert got.reply_text == "CONNECTION_FORCED - enough"


@pytest.mark.parametrize("behind", [[], ["publish"], ["open", "publish"]], ids=str)
async def test_channel_closed_while_it_holds_the_reader(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, behind: list[str]
) -> None:
    """The queue is slow, and the client closes the channel behind its publishes: no task waits for ever."""
    client = await connect091(broker, pair=partial(pipe_pair, 10_000_000)).open()
    await client.call(1, Q, methods.QueueDeclareOk)
    brake = Brake(monkeypatch, broker, "q")
    parts: list[Any] = [message(1, "q", b"x") * 400, methods.ChannelClose(200)]
    parts += [{"publish": message(1, "q", b"y") * 10, "open": methods.ChannelOpen()}[each] for each in behind]
    await client.send(1, *parts)
    with trio.fail_after(60):
        await settle_down()
    got = names(await client.idle())
    assert got == ["ChannelCloseOk", "ChannelOpenOk"][: 1 + ("open" in behind)]
    brake.release()
    await settle_down()
    assert queue_counts(broker, "q")[0] == 400 + 10 * (len(behind) == 2)


# --- a queue that breaks down ------------------------------------------------------------------------


def break_down(monkeypatch: pytest.MonkeyPatch, at: bytes) -> None:
    """Let a queue fail when it meets a message with this body."""
    original = ClassicQueue._publish

    def publish(queue: ClassicQueue, command: Any) -> None:
        if any(body == at for _, body in command.messages) and not queue.deleted:
            raise RuntimeError("a fault in the queue")
        original(queue, command)

    monkeypatch.setattr(ClassicQueue, "_publish", publish)


async def test_a_queue_that_breaks_down_nacks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, log: Any
) -> None:
    """basic.nack is only for an internal fault, for messages not yet taken; the channel stays open."""
    client = await connect091(broker).open()
    await client.call(1, Q, methods.QueueDeclareOk)
    await client.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
    break_down(monkeypatch, b"bad")
    assert await client.call(1, message(1, "q", b"good"), methods.BasicAck) == methods.BasicAck(1, False)
    await client.send(1, message(1, "q", b"bad"), message(1, "q", b"late"), message(1, "none", b""))
    assert {str(got) for _, got in await client.idle()} == {
        str(methods.BasicNack(2, False, False)),
        str(methods.BasicNack(3, False, False)),
        str(methods.BasicAck(4, False)),
    }
    await client.call(1, Q, methods.QueueDeclareOk)
    assert len(log.of("error")) == 1


@pytest.mark.parametrize(
    "method",
    [
        methods.QueueDeclare("q", passive=True),
        methods.BasicConsume("q", "c"),
        methods.BasicGet("q"),
        methods.QueuePurge("q"),
        methods.QueueDelete("q"),
    ],
    ids=lambda method: method.NAME,
)
async def test_nobody_waits_for_a_queue_that_broke_down(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, log: Any, method: Any
) -> None:
    """A method that awaited the queue's answer gets one: not found, empty, or deleted."""
    client = await connect091(broker).open()
    await client.call(1, Q, methods.QueueDeclareOk)
    break_down(monkeypatch, b"bad")
    await client.send(1, message(1, "q", b"bad"), method)
    (_, got) = await client.next()
    assert type(got) in (methods.ChannelClose, methods.BasicGetEmpty, methods.QueueDeleteOk)
    if isinstance(got, methods.ChannelClose):
        assert got.reply_code == 404
