"""AMQP 0-9-1, class tx: each row of RabbitMQ's table of what is transactional, and the rules beside it."""

from __future__ import annotations

import pytest

from amqp10broker.metadata.users import Permission
from amqp10broker.protocols.amqp091 import methods
from tests.support.channel_harness import ChannelEnds, Harness, bodies, contents, kinds, redelivered, tags
from tests.support.declaring import set_permission


@pytest.fixture
def channel() -> ChannelEnds:
    channel = Harness().channel()
    for name in "qr":
        channel.call(methods.QueueDeclare(name, durable=True))
    assert channel.call(methods.TxSelect()) == methods.TxSelectOk()
    return channel


def with_deliveries(channel: ChannelEnds, count: int) -> ChannelEnds:
    other = channel.world.channel()
    other.publish("q", *[b"%d" % number for number in range(1, count + 1)])
    assert tags(channel.consume("q")) == list(range(1, count + 1))
    return channel


# --- the table ---------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("transactions_SUITE", "published_visible_after_commit")
def test_publish_is_transactional(channel: ChannelEnds) -> None:
    assert channel.publish("q", b"1", b"2") == []
    assert channel.world.counts("q") == (0, 0)
    assert channel.call(methods.TxCommit()) == methods.TxCommitOk()
    assert channel.world.counts("q") == (2, 0)


def test_ack_is_transactional(channel: ChannelEnds) -> None:
    with_deliveries(channel, 2)
    assert channel.say(methods.BasicAck(2, True)) == []
    assert channel.world.counts("q") == (0, 2)
    assert channel.call(methods.TxCommit()) == methods.TxCommitOk()
    assert channel.world.counts("q") == (0, 0)


@pytest.mark.parametrize(
    "method", [methods.BasicReject(1, True), methods.BasicNack(1, False, True)], ids=lambda m: m.NAME
)
def test_reject_is_transactional(channel: ChannelEnds, method: methods.Method) -> None:
    with_deliveries(channel, 1)
    assert channel.say(method) == []
    assert channel.world.counts("q") == (0, 1)
    got = channel.say(methods.TxCommit())
    assert sorted(kinds(got)) == ["BasicDeliver", "TxCommitOk"]
    assert redelivered(got) == [True]


def test_reject_without_requeue_is_transactional(channel: ChannelEnds) -> None:
    with_deliveries(channel, 1)
    channel.say(methods.BasicReject(1, False))
    assert channel.world.counts("q") == (0, 1)
    channel.say(methods.TxCommit())
    assert channel.world.counts("q") == (0, 0)


def test_declaring_and_deleting_is_not_transactional(channel: ChannelEnds) -> None:
    """Exchanges, queues and bindings change at once, whether or not the transaction commits."""
    assert channel.call(methods.QueueDeclare("new", durable=True)) == methods.QueueDeclareOk("new", 0, 0)
    assert channel.call(methods.ExchangeDeclare("e", "fanout")) == methods.ExchangeDeclareOk()
    channel.call(methods.QueueBind("new", "e", ""))
    assert channel.call(methods.QueueDelete("r")) == methods.QueueDeleteOk(0)
    channel.call(methods.TxRollback())
    assert channel.world.vhost.find("new") is not None
    assert channel.world.vhost.find("r") is None
    other = channel.world.channel()
    other.publish("", b"x", exchange="e")
    assert channel.world.counts("new") == (1, 0)
    channel.call(methods.ExchangeDelete("e"))
    channel.call(methods.TxRollback())
    assert channel.world.vhost.topology.find_exchange("e") is None


def test_consuming_and_getting_is_not_transactional(channel: ChannelEnds) -> None:
    """A rollback does not requeue what was consumed; it may be acknowledged in a later transaction."""
    other = channel.world.channel()
    other.publish("q", b"1", b"2")
    assert kinds(channel.say(methods.BasicGet("q"))) == ["BasicGetOk"]
    assert bodies(channel.consume("q")) == [b"2"]
    assert channel.call(methods.TxRollback()) == methods.TxRollbackOk()
    assert channel.world.counts("q") == (0, 2)
    channel.say(methods.BasicAck(1), methods.BasicAck(2), methods.TxCommit())
    assert channel.world.counts("q") == (0, 0)


def test_several_queues_are_not_atomic(channel: ChannelEnds) -> None:
    """One queue may show its messages before another has taken its own."""
    channel.say(channel.content("q", b"1"), channel.content("r", b"2"))
    channel.world.box("r").stalled = True
    assert channel.say(methods.TxCommit()) == []
    assert channel.world.counts("q") == (1, 0)
    assert channel.world.counts("r") == (0, 0)


def test_errors_of_a_publish_are_found_at_once(channel: ChannelEnds) -> None:
    """A missing exchange or permission and a bad property fail before any commit."""
    assert channel.refused(channel.content("k", exchange="X")) == (404, "no exchange 'X' in vhost '/'")
    channel.call(methods.TxSelect())
    assert channel.refused(channel.content("q", expiration="x"))[0] == 406
    channel.call(methods.TxSelect())
    set_permission(channel.world.catalog, "guest", "/", Permission(".*", "^$", ".*"))
    assert channel.refused(channel.content("q"))[0] == 403


@pytest.mark.parametrize(
    "method",
    [methods.BasicAck(3), methods.BasicNack(3), methods.BasicReject(3), methods.BasicAck(3, True)],
    ids=lambda m: f"{m.NAME} {m}",
)
def test_errors_of_an_ack_are_found_at_once(channel: ChannelEnds, method: methods.Method) -> None:
    with_deliveries(channel, 2)
    assert channel.refused(method) == (406, "unknown delivery tag 3")


def test_a_tag_cannot_be_acknowledged_twice_in_a_transaction(channel: ChannelEnds) -> None:
    with_deliveries(channel, 2)
    assert channel.refused(methods.BasicAck(1), methods.BasicAck(1)) == (406, "unknown delivery tag 1")


@pytest.mark.rabbitmq("transactions_SUITE", "return_after_commit")
def test_returns_are_sent_at_the_commit_before_commit_ok(channel: ChannelEnds) -> None:
    assert channel.publish("nowhere", b"1", b"2", mandatory=True) == []
    got = channel.say(channel.content("q", b"3"), methods.TxCommit())
    assert kinds(got) == ["BasicReturn", "BasicReturn", "TxCommitOk"]


def test_commit_ok_comes_when_every_queue_has_taken_over(channel: ChannelEnds) -> None:
    for name in "qr":
        channel.call(methods.QueueBind(name, "amq.fanout", ""))
    channel.world.box("q").stalled = channel.world.box("r").stalled = True
    channel.publish("", b"x", exchange="amq.fanout")
    assert channel.say(methods.TxCommit(), methods.QueueDeclare("q", passive=True)) == []
    channel.world.box("q").stalled = False
    channel.world.rest()
    assert channel.take() == []
    channel.world.box("r").stalled = False
    channel.world.rest()
    assert channel.take() == [methods.TxCommitOk(), methods.QueueDeclareOk("q", 1, 0)]


# --- the rules beside it -----------------------------------------------------------------------------


def test_select_may_be_repeated(channel: ChannelEnds) -> None:
    channel.publish("q", b"1")
    assert channel.call(methods.TxSelect()) == methods.TxSelectOk()
    channel.call(methods.TxCommit())
    assert channel.world.counts("q") == (1, 0)


@pytest.mark.parametrize("method", [methods.TxCommit(), methods.TxRollback()], ids=lambda m: m.NAME)
def test_commit_and_rollback_need_select(method: methods.Method) -> None:
    assert Harness().channel().refused(method) == (406, "channel is not transactional")


def test_empty_commit_and_rollback_are_answered(channel: ChannelEnds) -> None:
    assert channel.say(methods.TxCommit(), methods.TxRollback(), methods.TxCommit()) == [
        methods.TxCommitOk(),
        methods.TxRollbackOk(),
        methods.TxCommitOk(),
    ]


def test_routing_is_done_at_the_publish(channel: ChannelEnds) -> None:
    """A binding that comes before the commit is too late."""
    channel.publish("k", b"x", exchange="amq.direct")
    channel.call(methods.QueueBind("q", "amq.direct", "k"))
    channel.call(methods.TxCommit())
    assert channel.world.counts("q") == (0, 0)


def test_rollback_forgets_publishes_and_acks(channel: ChannelEnds) -> None:
    """The deliveries are unacked again, not redelivered, and may be acknowledged again."""
    with_deliveries(channel, 3)
    channel.say(channel.content("r", b"x"), methods.BasicAck(2, True), methods.BasicReject(3, True))
    assert channel.call(methods.TxRollback()) == methods.TxRollbackOk()
    assert channel.world.counts("r") == (0, 0)
    assert channel.world.counts("q") == (0, 3)
    assert channel.call(methods.TxCommit()) == methods.TxCommitOk()
    assert channel.world.counts("q") == (0, 3)
    assert channel.say(methods.BasicAck(1), methods.BasicAck(3), methods.BasicAck(2), methods.TxCommit()) == [
        methods.TxCommitOk()
    ]
    assert channel.world.counts("q") == (0, 0)


@pytest.mark.parametrize("lost", [False, True])
def test_channel_close_rolls_back(channel: ChannelEnds, lost: bool) -> None:
    """Publishes are dropped; what was acknowledged and not committed is requeued in order."""
    world = channel.world
    with_deliveries(channel, 3)
    channel.say(channel.content("r", b"x"), methods.BasicAck(1), methods.BasicReject(2, False))
    if lost:
        channel.connection.close()
        world.rest()
    else:
        assert channel.call(methods.ChannelClose(200)) == methods.ChannelCloseOk()
    assert world.counts("r") == (0, 0)
    assert world.counts("q") == (3, 0)
    got = world.channel().consume("q")
    assert bodies(got) == [b"1", b"2", b"3"]
    assert redelivered(got) == [True] * 3


def test_an_error_rolls_back(channel: ChannelEnds) -> None:
    """A soft error ends the transaction with the channel; a new channel of that number has none."""
    channel.publish("q", b"x")
    channel.refused(methods.BasicAck(9))
    assert channel.refused(methods.TxCommit()) == (406, "channel is not transactional")
    assert channel.world.counts("q") == (0, 0)


def test_requeue_in_a_transaction_keeps_the_order(channel: ChannelEnds) -> None:
    with_deliveries(channel, 3)
    got = channel.say(
        methods.BasicReject(3, True),
        methods.BasicReject(1, True),
        methods.BasicReject(2, True),
        methods.TxCommit(),
    )
    assert bodies(got) == [b"1", b"2", b"3"]


def test_a_commit_to_a_deleted_queue_ends(channel: ChannelEnds) -> None:
    other = channel.world.channel()
    channel.publish("q", b"x")
    other.call(methods.QueueDelete("q"))
    assert channel.call(methods.TxCommit()) == methods.TxCommitOk()
    channel.publish("r", b"x")
    channel.world.box("r").stalled = True
    other.send(methods.QueueDelete("r", if_unused=True))  # the queue decides, and is there until it has
    channel.world.rest()
    box = channel.world.box("r")
    assert channel.say(methods.TxCommit()) == []
    box.stalled = False
    channel.world.rest()
    assert channel.take() == [methods.TxCommitOk()]


def test_acks_after_cancel_in_a_transaction(channel: ChannelEnds) -> None:
    with_deliveries(channel, 2)
    assert channel.say(methods.BasicAck(1), methods.BasicCancel("c"), methods.BasicAck(2)) == [
        methods.BasicCancelOk("c")
    ]
    assert channel.world.counts("q") == (0, 2)
    channel.call(methods.TxCommit())
    assert channel.world.counts("q") == (0, 0)


def test_publishes_before_select_are_no_part_of_the_transaction() -> None:
    """A commit neither waits for them nor counts their confirms as its own."""
    channel = Harness().channel()
    channel.call(methods.QueueDeclare("q", durable=True))
    channel.call(methods.QueueDeclare("r", durable=True))
    channel.world.box("q").stalled = True
    channel.publish("q", b"1", b"2")
    channel.call(methods.TxSelect())
    channel.publish("r", b"3")
    assert channel.call(methods.TxCommit()) == methods.TxCommitOk()
    channel.publish("q", b"4")
    assert channel.say(methods.TxCommit()) == []
    channel.world.box("q").run(1)
    channel.world.rest()
    assert channel.take() == []
    channel.world.box("q").stalled = False
    channel.world.rest()
    assert channel.take() == [methods.TxCommitOk()]


def test_prefetch_waits_for_the_commit(channel: ChannelEnds) -> None:
    channel.say(methods.BasicQos(prefetch_count=1))
    other = channel.world.channel()
    other.publish("q", b"1", b"2")
    assert bodies(channel.consume("q")) == [b"1"]
    assert channel.say(methods.BasicAck(1)) == []
    assert contents(channel.say(methods.TxCommit())) != []


def test_global_prefetch_waits_for_the_commit(channel: ChannelEnds) -> None:
    channel.say(methods.BasicQos(prefetch_count=1, global_=True))
    other = channel.world.channel()
    other.publish("q", b"1", b"2")
    assert bodies(channel.consume("q")) == [b"1"]
    assert channel.say(methods.BasicAck(1)) == []
    assert contents(channel.say(methods.TxCommit())) != []
