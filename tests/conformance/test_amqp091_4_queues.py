"""AMQP 0-9-1, queues: declaring, binding, purging, deleting; exclusive and auto-delete."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.metadata.plan import VhostLimits
from amqp10broker.metadata.users import Permission
from amqp10broker.protocols.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    ChannelClose,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from tests.support.channel_harness import ChannelEnds, Harness, bodies, kinds
from tests.support.declaring import change_vhost, set_permission

LOCKED_TEXT = (
    "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally declared on "
    "another connection or the exclusive property value does not match that of the original declaration."
)
LOCKED = (405, LOCKED_TEXT)
MISSING = (404, "no queue 'q' in vhost '/'")


@pytest.fixture
def channel() -> ChannelEnds:
    return Harness().channel()


def declare(channel: ChannelEnds, name: str = "q", **fields: Any) -> QueueDeclareOk:
    got = channel.call(QueueDeclare(name, **{"durable": True, **fields}))
    assert isinstance(got, QueueDeclareOk)
    return got


# --- declaring ---------------------------------------------------------------------------------------


def test_declare_gives_name_and_counts(channel: ChannelEnds) -> None:
    """message-count counts ready messages only."""
    assert declare(channel) == QueueDeclareOk("q", 0, 0)
    channel.publish("q", b"1", b"2", b"3")
    assert declare(channel) == QueueDeclareOk("q", 3, 0)
    channel.consume("q")
    assert declare(channel) == QueueDeclareOk("q", 0, 1)
    assert channel.call(QueueDeclare("q", passive=True)) == QueueDeclareOk("q", 0, 1)


def test_declaration_counts_what_was_published_before_it(channel: ChannelEnds) -> None:
    """In one write, the queue answers after it has taken the channel's publishes."""
    declare(channel)
    got = channel.say(channel.content("q"), QueueDeclare("q", passive=True), channel.content("q"))
    assert got == [QueueDeclareOk("q", 1, 0)]


def test_declare_without_answer(channel: ChannelEnds) -> None:
    assert channel.say(*[QueueDeclare("q", durable=True, no_wait=True)] * 2) == []
    assert channel.call(QueueDeclare("q", passive=True)) == QueueDeclareOk("q", 0, 0)


def test_empty_name_makes_the_server_choose(channel: ChannelEnds) -> None:
    """It is `amq.gen-` and a token, different each time."""
    first, second = declare(channel, ""), declare(channel, "")
    assert first.queue.startswith("amq.gen-")
    assert first.queue != second.queue


@pytest.mark.rabbitmq("quorum_queue_SUITE", "declare_server_named")
@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "declare_server_named")
@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_server_named_queue_must_be_classic(channel: ChannelEnds, kind: str) -> None:
    method = QueueDeclare("", durable=True, arguments={"x-queue-type": kind})
    text = f"Cannot declare a server-named queue for type {kind}; give it a name"
    assert channel.refused(method) == (406, text)


def test_empty_name_later_means_the_queue_declared_last(channel: ChannelEnds) -> None:
    """This holds for all methods with a queue; an empty key in queue.bind is then the name."""
    name = declare(channel, "").queue
    assert channel.call(QueueBind("", "amq.direct", "")) == QueueBindOk()
    channel.publish(name, b"x", exchange="amq.direct")
    channel.publish(name, b"y")
    assert kinds(channel.say(BasicGet(""))) == ["BasicGetOk"]
    assert channel.call(QueuePurge("")) == QueuePurgeOk(1)
    assert channel.consume("") == []
    channel.call(BasicCancel("c"))
    assert channel.call(QueueUnbind("", "amq.direct", "")) == QueueUnbindOk()
    assert channel.call(QueueDelete("")) == QueueDeleteOk(0)


@pytest.mark.parametrize(
    "method",
    [QueueBind("", "amq.direct", "k"), BasicConsume(""), BasicGet(""), QueuePurge(""), QueueDelete("")],
    ids=lambda method: method.NAME,
)
def test_empty_name_without_a_declaration_is_not_found(channel: ChannelEnds, method: Any) -> None:
    assert channel.refused(method) == (404, "no previously declared queue")


def test_reserved_name_is_refused(channel: ChannelEnds) -> None:
    text = "queue name 'amq.x' contains reserved prefix 'amq.*'"
    assert channel.refused(QueueDeclare("amq.x", durable=True)) == (403, text)


def test_passive_declaration_of_nothing_is_not_found(channel: ChannelEnds) -> None:
    assert channel.refused(QueueDeclare("q", passive=True)) == MISSING


def test_passive_declaration_compares_nothing(channel: ChannelEnds) -> None:
    declare(channel)
    method = QueueDeclare("q", passive=True, auto_delete=True, arguments={"x-max-length": 1})
    assert channel.call(method) == QueueDeclareOk("q", 0, 0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"x-message-ttl": -5}, "must be 0 to 315360000000, not -5"),
        ({"x-message-ttl": "a"}, "must be an integer, not longstr"),
        ({"x-expires": 0}, "must be 1 to 315360000000, not 0"),
        ({"x-queue-type": "x"}, "must be one of classic, quorum, stream, not 'x'"),
    ],
)
def test_bad_argument_is_refused(channel: ChannelEnds, arguments: dict[str, Any], problem: str) -> None:
    (name,) = arguments
    code, text = channel.refused(QueueDeclare("q", durable=True, arguments=arguments))
    assert code == 406
    assert text == f"invalid arg '{name}' for queue 'q' in vhost '/': {problem}"


def test_argument_of_another_type_of_queue_is_refused(channel: ChannelEnds) -> None:
    method = QueueDeclare("q", durable=True, arguments={"x-delivery-limit": 5})
    text = (
        "invalid arg 'x-delivery-limit' for queue 'q' in vhost '/': "
        "not for a queue of type classic, only of type quorum"
    )
    assert channel.refused(method) == (406, text)


@pytest.mark.rabbitmq(
    "per_vhost_queue_limit_SUITE", "single_node_single_vhost_limit_with_durable_named_queue"
)
def test_queue_limit_of_the_virtual_host(channel: ChannelEnds) -> None:
    change_vhost(channel.world.catalog, "/", limits=VhostLimits(max_queues=1))
    declare(channel)
    text = "cannot declare queue 'r': queue limit in vhost '/' (1) is reached"
    assert channel.refused(QueueDeclare("r", durable=True)) == (406, text)
    declare(channel)


def test_line_breaks_are_removed_from_names(channel: ChannelEnds) -> None:
    assert declare(channel, "a\r\nb") == QueueDeclareOk("ab", 0, 0)


# --- exclusive ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        QueueDeclare("q", passive=True),
        QueueDeclare("q", exclusive=True),
        QueueDeclare("q", durable=True),
        QueueBind("q", "amq.direct", "k"),
        QueueUnbind("q", "amq.direct", "k"),
        QueuePurge("q"),
        QueueDelete("q"),
        BasicConsume("q", "c"),
        BasicGet("q"),
    ],
    ids=lambda method: method.NAME,
)
def test_exclusive_queue_is_locked_for_other_connections(channel: ChannelEnds, method: Any) -> None:
    other = channel.world.channel()
    channel.call(QueueDeclare("q", exclusive=True))
    assert other.refused(method) == LOCKED


def test_exclusive_queue_serves_all_channels_of_its_connection() -> None:
    connection = Harness().connect()
    first, second = connection.channel(1), connection.channel(2)
    first.call(QueueDeclare("q", exclusive=True))
    assert second.call(QueueDeclare("q", exclusive=True)) == QueueDeclareOk("q", 0, 0)
    assert second.consume("q") == []


def test_exclusive_differing_is_locked(channel: ChannelEnds) -> None:
    """This holds on the owning connection too, either way: 405."""
    declare(channel)
    assert channel.refused(QueueDeclare("q", durable=True, exclusive=True)) == LOCKED
    channel.call(QueueDelete("q"))
    channel.call(QueueDeclare("q", exclusive=True))
    assert channel.refused(QueueDeclare("q", durable=True)) == LOCKED


def test_exclusive_queue_goes_with_its_connection(channel: ChannelEnds) -> None:
    """Publishers elsewhere find nothing; its name is free."""
    other = channel.world.channel()
    channel.call(QueueDeclare("q", exclusive=True))
    assert other.publish("q", b"x") == []
    channel.connection.close()
    channel.world.rest()
    assert other.refused(QueueDeclare("q", passive=True)) == MISSING
    declare(other)


def test_exclusive_queue_survives_its_channel() -> None:
    connection = Harness().connect()
    first, second = connection.channel(1), connection.channel(2)
    first.call(QueueDeclare("q", exclusive=True))
    first.call(ChannelClose(200))
    assert second.call(QueueDeclare("q", exclusive=True)) == QueueDeclareOk("q", 0, 0)


def test_exclusive_queue_is_stored_as_not_durable(channel: ChannelEnds) -> None:
    """An exclusive queue's durability is ignored; both declarations are equivalent (seed 000)."""
    channel.call(QueueDeclare("q", durable=True, exclusive=True))
    assert not channel.world.vhost.lookup("q").durable
    assert channel.call(QueueDeclare("q", durable=False, exclusive=True)) == QueueDeclareOk("q", 0, 0)


# --- auto-delete -------------------------------------------------------------------------------------


def test_auto_delete_goes_with_its_last_consumer(channel: ChannelEnds) -> None:
    """It is not deleted before its first consumer, nor while one is left."""
    other = channel.world.channel()
    declare(channel, auto_delete=True)
    assert channel.call(QueueDeclare("q", passive=True)) == QueueDeclareOk("q", 0, 0)
    channel.consume("q")
    other.consume("q")
    channel.call(BasicCancel("c"))
    assert channel.call(QueueDeclare("q", passive=True)) == QueueDeclareOk("q", 0, 1)
    other.call(BasicCancel("c"))
    assert channel.refused(QueueDeclare("q", passive=True)) == MISSING


@pytest.mark.parametrize("lost", [False, True])
def test_auto_delete_goes_when_the_last_consumer_s_channel_ends(channel: ChannelEnds, lost: bool) -> None:
    other = channel.world.channel()
    declare(channel, auto_delete=True)
    other.publish("q", b"x")
    channel.consume("q")
    if lost:
        channel.connection.close()
    else:
        channel.call(ChannelClose(200))
    channel.world.rest()
    assert other.refused(QueueDeclare("q", passive=True)) == MISSING


def test_auto_delete_does_not_count_get(channel: ChannelEnds) -> None:
    declare(channel, auto_delete=True)
    channel.say(BasicGet("q"))
    channel.call(ChannelClose(200))
    other = channel.world.channel()
    assert other.call(QueueDeclare("q", passive=True)) == QueueDeclareOk("q", 0, 0)


def test_acks_after_auto_delete_are_no_error(channel: ChannelEnds) -> None:
    declare(channel, auto_delete=True)
    channel.publish("q", b"1", b"2")
    channel.consume("q")
    got = channel.say(BasicCancel("c"), BasicAck(1), BasicAck(2))
    assert kinds(got) == ["BasicCancelOk"]


# --- binding -----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("bindings_SUITE", "bind_and_unbind")
def test_bind_is_idempotent(channel: ChannelEnds) -> None:
    declare(channel)
    for _ in range(2):
        assert channel.call(QueueBind("q", "amq.direct", "k")) == QueueBindOk()
    assert channel.say(QueueBind("q", "amq.direct", "k", no_wait=True)) == []
    channel.call(QueueUnbind("q", "amq.direct", "k"))
    assert channel.publish("k", b"x", exchange="amq.direct") == []
    assert channel.world.counts("q") == (0, 0)


@pytest.mark.rabbitmq("bindings_SUITE", "bind_to_unknown_exchange", "bind_to_unknown_queue")
def test_bind_to_what_is_missing(channel: ChannelEnds) -> None:
    declare(channel)
    assert channel.refused(QueueBind("q", "X", "k")) == (404, "no exchange 'X' in vhost '/'")
    assert channel.refused(QueueBind("r", "amq.direct", "k")) == (404, "no queue 'r' in vhost '/'")


def test_unbind_of_nothing_is_ok(channel: ChannelEnds) -> None:
    declare(channel)
    assert channel.call(QueueUnbind("q", "amq.direct", "k")) == QueueUnbindOk()
    assert channel.call(QueueUnbind("q", "gone", "k")) == QueueUnbindOk()


@pytest.mark.rabbitmq("bindings_SUITE", "bind_and_delete")
def test_bindings_go_with_the_queue(channel: ChannelEnds) -> None:
    declare(channel)
    channel.call(QueueBind("q", "amq.direct", "k"))
    channel.call(QueueDelete("q"))
    declare(channel)
    channel.publish("k", b"x", exchange="amq.direct")
    assert channel.world.counts("q") == (0, 0)


# --- purging -----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("priority_queue_SUITE", "purge")
@pytest.mark.rabbitmq("queue_parallel_SUITE", "purge")
def test_purge_removes_ready_messages_only(channel: ChannelEnds) -> None:
    """Unacked messages stay, and are ready again when requeued."""
    declare(channel)
    channel.publish("q", b"1", b"2", b"3")
    channel.say(BasicGet("q"))
    assert channel.call(QueuePurge("q")) == QueuePurgeOk(2)
    assert channel.world.counts("q") == (0, 1)
    channel.call(ChannelClose(200))
    assert channel.world.counts("q") == (1, 0)


@pytest.mark.rabbitmq("queue_parallel_SUITE", "purge_no_consumer")
def test_purge_without_answer_and_of_nothing(channel: ChannelEnds) -> None:
    declare(channel)
    channel.publish("q", b"1")
    assert channel.say(QueuePurge("q", no_wait=True)) == []
    assert channel.world.counts("q") == (0, 0)
    channel.call(QueueDelete("q"))
    assert channel.refused(QueuePurge("q")) == MISSING


# --- deleting ----------------------------------------------------------------------------------------


def test_delete_gives_the_number_of_ready_messages(channel: ChannelEnds) -> None:
    """The queue is gone at once."""
    declare(channel)
    channel.publish("q", b"1", b"2", b"3")
    channel.say(BasicGet("q"))
    assert channel.call(QueueDelete("q")) == QueueDeleteOk(2)
    assert channel.refused(QueueDeclare("q", passive=True)) == MISSING


def test_delete_of_nothing_is_ok(channel: ChannelEnds) -> None:
    assert channel.call(QueueDelete("q")) == QueueDeleteOk(0)


def test_delete_without_answer(channel: ChannelEnds) -> None:
    declare(channel)
    assert channel.say(QueueDelete("q", no_wait=True), QueueDelete("q", no_wait=True)) == []
    assert channel.refused(QueueDeclare("q", passive=True)) == MISSING


def test_delete_if_unused(channel: ChannelEnds) -> None:
    declare(channel)
    channel.consume("q")
    assert channel.refused(QueueDelete("q", if_unused=True)) == (406, "queue 'q' in vhost '/' in use")
    assert channel.call(QueueDelete("q", if_unused=True)) == QueueDeleteOk(0)


def test_delete_if_empty(channel: ChannelEnds) -> None:
    declare(channel)
    channel.publish("q", b"x")
    assert channel.refused(QueueDelete("q", if_empty=True)) == (406, "queue 'q' in vhost '/' not empty")
    channel.call(QueuePurge("q"))
    assert channel.call(QueueDelete("q", if_empty=True)) == QueueDeleteOk(0)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "delete_if_empty", "delete_if_unused")
@pytest.mark.parametrize("flag", ["if_unused", "if_empty"])
def test_quorum_queue_knows_no_conditions(channel: ChannelEnds, flag: str) -> None:
    declare(channel, arguments={"x-queue-type": "quorum"})
    shown = flag.replace("_", "-")
    text = (
        f"cannot delete queue 'q' in vhost '/'. queue.delete operations with {shown} flag set are not "
        "supported by quorum queues"
    )
    assert channel.fatal(QueueDelete("q", **{flag: True})) == (540, text)  # type: ignore[arg-type]


def test_two_deletes_at_once(channel: ChannelEnds) -> None:
    """The second gets delete-ok with 0, because the queue is gone."""
    other = channel.world.channel()
    declare(channel)
    channel.publish("q", b"x")
    channel.send(QueueDelete("q"))
    other.send(QueueDelete("q"))
    channel.world.rest()
    counts = [got.message_count for each in (channel, other) for got in each.take()]  # type: ignore[union-attr]
    assert counts == [1, 0]


def test_a_queue_deleted_between_lookup_and_answer_is_not_found(channel: ChannelEnds) -> None:
    """Declare, purge and consume fail with 404 when they reach a deleted queue."""
    for method in (QueueDeclare("q", passive=True), QueuePurge("q"), BasicConsume("q", "c")):
        declare(channel)
        other = channel.world.channel()
        box = channel.world.box("q")
        box.stalled = True
        other.send(QueueDelete("q"))
        channel.world.rest()
        channel.send(method)
        channel.world.rest()
        box.stalled = False
        channel.world.rest()
        assert other.take() == [QueueDeleteOk(0)]
        (closed,) = channel.take()
        assert isinstance(closed, ChannelClose)
        assert closed.reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"
        channel = channel.world.channel()


def test_a_queue_declared_anew_has_nothing_of_the_old_one(channel: ChannelEnds) -> None:
    """Messages, consumers and unacked deliveries of the old one do not reach it."""
    declare(channel)
    channel.publish("q", b"old")
    channel.consume("q")
    assert sorted(kinds(channel.say(QueueDelete("q")))) == ["BasicCancel", "QueueDeleteOk"]
    declare(channel)
    assert channel.say(BasicAck(1)) == []
    channel.publish("q", b"new")
    assert bodies(channel.consume("q", "d")) == [b"new"]


# --- permissions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "what"),
    [
        (QueueDeclare("q", durable=True), "configure"),
        (QueueDelete("q"), "configure"),
        (QueuePurge("q"), "read"),
        (BasicConsume("q", "c"), "read"),
        (BasicGet("q"), "read"),
        (QueueBind("q", "amq.direct", "k"), "write"),
        (QueueUnbind("q", "amq.direct", "k"), "write"),
    ],
    ids=lambda value: getattr(value, "NAME", value),
)
def test_each_method_needs_its_permission(channel: ChannelEnds, method: Any, what: str) -> None:
    declare(channel)
    others = {"configure": ".*", "write": ".*", "read": ".*", what: "^$"}
    set_permission(channel.world.catalog, "guest", "/", Permission(**others))
    text = f"{what} access to queue 'q' in vhost '/' refused for user 'guest'"
    assert channel.refused(method) == (403, text)


@pytest.mark.parametrize("pattern", ["^sec\nret$", "^(?!secret)"])
def test_a_line_end_in_a_name_leads_past_no_permission(channel: ChannelEnds, pattern: str) -> None:
    """The check applies to the name without its line ends."""
    set_permission(channel.world.catalog, "guest", "/", Permission(pattern, ".*", ".*"))
    text = "configure access to queue 'secret' in vhost '/' refused for user 'guest'"
    assert channel.refused(QueueDeclare("sec\nret", durable=True)) == (403, text)


def test_dead_letter_exchange_needs_read_on_the_queue_and_write_on_it(channel: ChannelEnds) -> None:
    method = QueueDeclare("q", durable=True, arguments={"x-dead-letter-exchange": "dlx"})
    set_permission(channel.world.catalog, "guest", "/", Permission(".*", "^$", ".*"))
    assert channel.refused(method) == (
        403,
        "write access to exchange 'dlx' in vhost '/' refused for user 'guest'",
    )
    set_permission(channel.world.catalog, "guest", "/", Permission(".*", ".*", "^$"))
    assert channel.refused(method) == (403, "read access to queue 'q' in vhost '/' refused for user 'guest'")


@pytest.mark.parametrize("anew", [False, True])
def test_consume_that_meets_a_deleted_queue_is_not_found(channel: ChannelEnds, anew: bool) -> None:
    """It is 404 also when the name was declared again: that is another queue."""
    declare(channel)
    other = channel.world.channel()
    box = channel.world.box("q")
    box.stalled = True
    other.send(QueueDelete("q", no_wait=True))
    channel.world.rest()
    channel.send(BasicConsume("q", "c"))
    channel.world.rest()
    box.run(1)
    if anew:
        other.call(QueueDeclare("q", durable=True))
    box.stalled = False
    channel.world.rest()
    (closed,) = channel.take()
    assert isinstance(closed, ChannelClose)
    assert closed.reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"
