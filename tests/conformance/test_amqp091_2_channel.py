"""AMQP 0-9-1, channels: opening, closing, flow, and what happens behind a close."""

from __future__ import annotations

import pytest

from amqp10broker.protocols.amqp091.methods import (
    AccessRequest,
    AccessRequestOk,
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicGetEmpty,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionBlocked,
    ExchangeDeclare,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    TxSelect,
)
from tests.support.channel_harness import ChannelEnds, Harness, bodies, contents, kinds

QUEUE = QueueDeclare("q", durable=True)


def closed(channel: ChannelEnds) -> ChannelEnds:
    assert channel.call(ChannelClose(200, "bye")) == ChannelCloseOk()
    return channel


def test_channel_open_is_answered() -> None:
    Harness().channel()


def test_second_channel_open_closes_the_connection() -> None:
    assert Harness().channel().fatal(ChannelOpen()) == (504, "second 'channel.open' seen")


@pytest.mark.parametrize(
    "method", [QUEUE, BasicAck(1), BasicQos(prefetch_count=1), ChannelClose(200), ConfirmSelect()], ids=str
)
def test_a_method_on_a_channel_never_opened_closes_the_connection(method: Method) -> None:
    """504 `expected 'channel.open'`, with the method that came too early."""
    channel = closed(Harness().channel())
    assert channel.fatal(method) == (504, "expected 'channel.open'")


def test_a_publish_on_a_channel_never_opened_closes_the_connection() -> None:
    channel = closed(Harness().channel())
    assert channel.fatal(channel.content("q", b"x")) == (504, "expected 'channel.open'")


def test_close_ok_on_a_closed_channel_is_ignored() -> None:
    """The two closes crossed: ours is answered after theirs was."""
    channel = closed(Harness().channel())
    assert channel.say(ChannelCloseOk()) == []
    assert channel.connection.fault is None


@pytest.fixture
def world() -> Harness:
    return Harness()


def test_channel_close_ends_consumers_and_requeues(world: Harness) -> None:
    """channel.close: consumers cancelled, unacked requeued in order, redelivered, close-ok."""
    channel, other = world.channel(), world.channel()
    channel.call(QUEUE)
    other.publish("q", b"1", b"2", b"3")
    channel.consume("q")
    assert world.counts("q") == (0, 3)
    closed(channel)
    assert world.counts("q") == (3, 0)
    assert world.box("q").queue.consumers == 0
    got = other.consume("q")
    assert bodies(got) == [b"1", b"2", b"3"]
    assert [each.method.redelivered for each in contents(got)] == [True] * 3


def test_channel_number_is_used_again_after_close(world: Harness) -> None:
    """Everything begins anew: delivery tags, prefetch, confirm mode."""
    channel = world.channel()
    channel.call(QUEUE)
    channel.say(ConfirmSelect(), BasicQos(prefetch_count=1))
    channel.publish("q", b"1", b"2")
    channel.consume("q")
    closed(channel)
    assert channel.call(ChannelOpen()) == ChannelOpenOk()
    got = channel.consume("q")
    assert [each.method.delivery_tag for each in contents(got)] == [1, 2]
    assert channel.publish("q", b"3", mandatory=True)[0].method.delivery_tag == 3  # type: ignore[union-attr]
    assert channel.call(ConfirmSelect()) == ConfirmSelectOk()
    assert channel.publish("nowhere", b"") == [BasicAck(1, False)]


def test_close_and_open_in_one_write(world: Harness) -> None:
    """A client need not wait for close-ok before it opens the same number again."""
    channel = world.channel()
    assert channel.say(ChannelClose(200), ChannelOpen(), QUEUE) == [
        ChannelCloseOk(),
        ChannelOpenOk(),
        QueueDeclareOk("q", 0, 0),
    ]


def test_confirms_of_a_closed_channel_do_not_reach_the_next_one_of_that_number(world: Harness) -> None:
    """What the queue confirms after close and open belongs to nobody any more."""
    channel = world.channel()
    channel.call(QUEUE)
    channel.call(ConfirmSelect())
    world.box("q").stalled = True
    assert channel.publish("q", b"1", b"2") == []
    assert channel.say(ChannelClose(200), ChannelOpen(), ConfirmSelect()) == [
        ChannelCloseOk(),
        ChannelOpenOk(),
        ConfirmSelectOk(),
    ]
    assert channel.publish("q", b"3") == []
    world.box("q").stalled = False
    world.rest()
    assert channel.take() == [BasicAck(1, False)]


def test_nothing_is_written_behind_the_server_s_close(world: Harness) -> None:
    """Confirms that come after channel.close are not sent: the client has forgotten the channel."""
    channel = world.channel()
    channel.call(QUEUE)
    channel.call(ConfirmSelect())
    world.box("q").stalled = True
    channel.publish("q", b"1")
    assert kinds(channel.say(BasicAck(9))) == ["ChannelClose"]
    world.box("q").stalled = False
    world.rest()
    assert channel.take() == []
    assert channel.say(ChannelCloseOk()) == []


def test_nothing_is_written_behind_close_ok(world: Harness) -> None:
    """Nor after the client's own close was answered."""
    channel = world.channel()
    channel.call(QUEUE)
    channel.call(ConfirmSelect())
    world.box("q").stalled = True
    channel.publish("q", b"1")
    # The channel has a letter waiting, so its task goes on and may hear of the confirm.
    assert channel.call(ChannelClose(200)) == ChannelCloseOk()
    world.box("q").stalled = False
    world.rest()
    assert channel.take() == []


@pytest.mark.parametrize("end", [BasicAck(9), ChannelClose(200)], ids=["error", "close"])
def test_confirms_that_are_due_come_before_the_close(end: Method, world: Harness) -> None:
    """What was confirmed before the channel ends is told before it ends."""
    channel = world.channel()
    channel.call(QUEUE)
    channel.call(ConfirmSelect())
    world.box("q").stalled = True
    channel.publish("q", b"1")
    world.box("q").run(1)
    channel.send(end)
    assert channel.connection.pass_on()
    # Both in one turn of the channel: the queue's answer, and what ends it.
    channel.take_letters(2)
    channel.wake()
    last = "ChannelClose" if isinstance(end, BasicAck) else "ChannelCloseOk"
    assert kinds(channel.take()) == ["BasicAck", last]


def test_methods_behind_the_server_s_close_are_dropped_until_close_ok(world: Harness) -> None:
    """Publishes, acks and declarations in flight when the channel failed have no effect."""
    channel, other = world.channel(), world.channel()
    channel.call(QUEUE)
    got = channel.say(
        BasicGet("missing"),
        channel.content("q", b"lost"),
        QueueDeclare("late", durable=True),
        BasicAck(7),
        BasicConsume("q", "c"),
    )
    assert kinds(got) == ["ChannelClose"]
    assert world.counts("q") == (0, 0)
    assert world.vhost.find("late") is None
    assert channel.say(ChannelCloseOk(), ChannelOpen()) == [ChannelOpenOk()]
    assert other.call(QueueDeclare("q", passive=True)) == QueueDeclareOk("q", 0, 0)


@pytest.mark.parametrize("failed", [False, True], ids=["the client's", "the broker's"])
def test_what_was_under_way_when_the_channel_was_closed_is_dropped(failed: bool, world: Harness) -> None:
    """Another thread of the client may still write on it: that closes no connection, as in RabbitMQ."""
    channel, other = world.channel(), world.channel()
    channel.call(QUEUE)
    if failed:
        assert kinds(channel.say(BasicAck(9))) == ["ChannelClose"]
    got = channel.say(
        ChannelCloseOk() if failed else ChannelClose(200),
        channel.content("q", b"lost"),
        QueueDeclare("late", durable=True),
        BasicAck(7),
        ChannelOpen(),
        channel.content("q", b"kept"),
    )
    assert kinds(got) == ["ChannelCloseOk", "ChannelOpenOk"][failed:]
    assert world.counts("q") == (1, 0)
    assert world.vhost.find("late") is None
    assert other.call(QueueDeclare("q", passive=True)) == QueueDeclareOk("q", 1, 0)


def test_the_client_s_close_that_crosses_ours_is_answered() -> None:
    """Both sides close: each close gets its close-ok, then the number is free."""
    channel = Harness().channel()
    assert kinds(channel.say(BasicAck(9), ChannelClose(200))) == ["ChannelClose", "ChannelCloseOk"]
    assert channel.say(ChannelCloseOk(), ChannelOpen()) == [ChannelOpenOk()]


def test_an_error_of_one_channel_leaves_the_others_alone(world: Harness) -> None:
    """A soft error ends its channel only."""
    connection = world.connect()
    first, second = connection.channel(1), connection.channel(2)
    assert first.refused(BasicAck(1)) == (406, "unknown delivery tag 1")
    assert second.call(QUEUE) == QueueDeclareOk("q", 0, 0)


def test_reply_text_is_cut_at_255_bytes() -> None:
    """A longer one ends with three dots."""
    channel = Harness().channel()
    name = "n" * 250
    (got,) = channel.say(BasicGet(name))
    assert isinstance(got, ChannelClose)
    assert len(got.reply_text) == 255
    assert got.reply_text.endswith("n...")
    assert got.reply_text.startswith("NOT_FOUND - no queue 'nnn")


def test_flow_active_is_answered() -> None:
    assert Harness().channel().call(ChannelFlow(True)) == ChannelFlowOk(True)


def test_flow_inactive_is_not_implemented() -> None:
    assert Harness().channel().fatal(ChannelFlow(False)) == (540, "active=false")


def test_flow_ok_from_the_client_is_ignored() -> None:
    assert Harness().channel().say(ChannelFlowOk(True)) == []


def test_access_request_gets_ticket_1() -> None:
    # pamqp does not know this method any more.
    assert Harness(strict=False).channel().call(AccessRequest("/data", active=True)) == AccessRequestOk(1)


def test_a_server_s_method_from_a_client_is_invalid() -> None:
    """503: only servers say that."""
    code, text = Harness().channel().fatal(QueueDeclareOk("q", 0, 0))
    assert code == 503
    assert text == "queue.declare-ok is not a method that a client sends on a channel"


def test_a_connection_method_on_a_channel_is_invalid() -> None:
    channel = Harness().channel()
    with pytest.raises(Exception, match="COMMAND_INVALID"):
        channel.send(ConnectionBlocked("no"))


def test_methods_are_answered_in_order(world: Harness) -> None:
    """One after another, also those that a queue must answer."""
    channel = world.channel()
    got = channel.say(
        QueueDeclare("a", durable=True),
        QueueDeclare("a", durable=True, passive=True),
        BasicQos(prefetch_count=3),
        BasicGet("a"),
        channel.content("a", b"x"),
        QueueDeclare("a", durable=True),
        QueueDelete("a"),
        ExchangeDeclare("e", "direct"),
    )
    assert kinds(got) == [
        "QueueDeclareOk",
        "QueueDeclareOk",
        "BasicQosOk",
        "BasicGetEmpty",
        "QueueDeclareOk",
        "QueueDeleteOk",
        "ExchangeDeclareOk",
    ]
    assert got[2] == BasicQosOk()
    assert got[3] == BasicGetEmpty()
    assert got[4] == QueueDeclareOk("a", 1, 0)


def test_a_channel_that_waits_for_a_queue_keeps_what_follows(world: Harness) -> None:
    """While a queue has not answered nothing else of the channel is handled; other channels are."""
    connection = world.connect()
    first, second = connection.channel(1), connection.channel(2)
    first.call(QUEUE)
    world.box("q").stalled = True
    assert first.say(QueueDeclare("q", passive=True), BasicQos(prefetch_count=1)) == []
    assert second.call(BasicQos(prefetch_count=1)) == BasicQosOk()
    world.box("q").stalled = False
    world.rest()
    assert first.take() == [QueueDeclareOk("q", 0, 0), BasicQosOk()]


def test_the_error_of_an_answer_names_the_method_that_asked(world: Harness) -> None:
    """Class and method of channel.close are those of the request, also when the queue refused it."""
    channel, other = world.channel(), world.channel()
    channel.call(QUEUE)
    other.consume("q")
    assert channel.refused(QueueDelete("q", if_unused=True)) == (406, "queue 'q' in vhost '/' in use")
    assert channel.refused(BasicConsume("q", "x", exclusive=True)) == (
        403,
        "queue 'q' in vhost '/' in exclusive use",
    )


def test_contents_behind_a_refused_method_do_not_use_up_the_reader_s_credit(world: Harness) -> None:
    """The channel fails while publishes wait behind a method: they are dropped and counted as handled."""
    connection = world.connect()
    channel, other = connection.channel(1), connection.channel(2)
    channel.call(QUEUE)
    other.consume("q", exclusive=True)
    channel.send(BasicConsume("q", "x"), *[channel.content("q", b"x")] * 1000)
    world.rest()
    assert kinds(channel.take()) == ["ChannelClose"]
    assert not connection.waiting, "the reader of the whole connection waits for ever"
    assert other.call(BasicCancel("c")) is not None


def test_tx_and_confirm_are_per_channel() -> None:
    connection = Harness().connect()
    first, second = connection.channel(1), connection.channel(2)
    assert kinds(first.say(TxSelect())) == ["TxSelectOk"]
    assert kinds(second.say(ConfirmSelect())) == ["ConfirmSelectOk"]
