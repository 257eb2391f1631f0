"""AMQP 0-9-1, exchanges: declaring, deleting, binding, and the routes that come of it."""

from __future__ import annotations

import pytest

from amqp10broker.metadata.users import Permission, TopicPermission
from amqp10broker.protocols.amqp091.codec import ByteArray
from amqp10broker.protocols.amqp091.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueUnbind,
    QueueUnbindOk,
)
from tests.support.channel_harness import ChannelEnds, Harness, kinds
from tests.support.declaring import set_permission, set_topic_permission


@pytest.fixture
def channel() -> ChannelEnds:
    channel = Harness().channel()
    channel.call(QueueDeclare("q", durable=True))
    return channel


def declare(channel: ChannelEnds, name: str, kind: str = "direct", **fields: object) -> None:
    assert channel.call(ExchangeDeclare(name, kind, **fields)) == ExchangeDeclareOk()  # type: ignore[arg-type]


def bind(channel: ChannelEnds, exchange: str, key: str = "", queue: str = "q", **arguments: object) -> None:
    assert channel.call(QueueBind(queue, exchange, key, arguments=arguments)) == QueueBindOk()


def routed(channel: ChannelEnds, exchange: str, key: str = "", **fields: object) -> int:
    before = channel.world.counts("q")[0]
    assert channel.publish(key, b"x", exchange=exchange, **fields) == []
    return channel.world.counts("q")[0] - before


@pytest.mark.parametrize(
    "kind", ["direct", "fanout", "topic", "headers", "x-local-random", "x-consistent-hash"]
)
def test_declare_makes_an_exchange_and_again_finds_it(channel: ChannelEnds, kind: str) -> None:
    declare(channel, "e", kind)
    declare(channel, "e", kind)
    assert channel.call(ExchangeDeclare("e", passive=True)) == ExchangeDeclareOk()


def test_declare_without_answer(channel: ChannelEnds) -> None:
    """With no-wait there is no answer, and the exchange exists."""
    assert channel.say(ExchangeDeclare("e", "direct", no_wait=True)) == []
    assert channel.call(ExchangeDeclare("e", passive=True)) == ExchangeDeclareOk()


@pytest.mark.rabbitmq("exchanges_SUITE", "invalid_exchange")
def test_unknown_type_is_refused(channel: ChannelEnds) -> None:
    assert channel.refused(ExchangeDeclare("X", "T")) == (406, "unknown exchange type 'T'")


def test_reserved_name_is_refused(channel: ChannelEnds) -> None:
    text = "exchange name 'amq.x' contains reserved prefix 'amq.*'"
    assert channel.refused(ExchangeDeclare("amq.x", "direct")) == (403, text)


@pytest.mark.parametrize("passive", [False, True])
def test_default_exchange_cannot_be_declared(channel: ChannelEnds, passive: bool) -> None:
    text = "operation not permitted on the default exchange"
    assert channel.refused(ExchangeDeclare("", "direct", passive=passive)) == (403, text)


@pytest.mark.parametrize("name", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"])
def test_predeclared_exchanges_are_there_and_durable(channel: ChannelEnds, name: str) -> None:
    kind = {"amq.match": "headers"}.get(name, name.removeprefix("amq."))
    declare(channel, name, kind, durable=True)
    text = (
        f"inequivalent arg 'durable' for exchange '{name}' in vhost '/': "
        "received 'false' but current is 'true'"
    )
    assert channel.refused(ExchangeDeclare(name, kind)) == (406, text)


def test_trace_exchange_is_internal(channel: ChannelEnds) -> None:
    assert channel.call(ExchangeDeclare("amq.rabbitmq.trace", passive=True)) == ExchangeDeclareOk()
    text = "cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '/'"
    assert channel.refused(channel.content("k", exchange="amq.rabbitmq.trace")) == (403, text)


def test_passive_declaration_of_nothing_is_not_found(channel: ChannelEnds) -> None:
    assert channel.refused(ExchangeDeclare("X", passive=True)) == (404, "no exchange 'X' in vhost '/'")


def test_line_breaks_are_removed_from_names(channel: ChannelEnds) -> None:
    declare(channel, "a\r\nb")
    assert channel.call(ExchangeDeclare("ab", passive=True)) == ExchangeDeclareOk()


# --- deleting ----------------------------------------------------------------------------------------


def test_delete_of_nothing_is_ok(channel: ChannelEnds) -> None:
    assert channel.call(ExchangeDelete("X")) == ExchangeDeleteOk()


@pytest.mark.rabbitmq(
    "bindings_SUITE", "bind_and_delete_exchange_destination", "bind_and_delete_exchange_source"
)
@pytest.mark.rabbitmq("bindings_SUITE", "bind_and_delete_source_exchange")
def test_delete_removes_the_exchange_and_its_bindings(channel: ChannelEnds) -> None:
    """Publishing to it afterwards fails with 404; a new exchange has no bindings."""
    declare(channel, "X")
    bind(channel, "X", "k")
    assert routed(channel, "X", "k") == 1
    assert channel.call(ExchangeDelete("X")) == ExchangeDeleteOk()
    assert channel.refused(channel.content("k", exchange="X")) == (404, "no exchange 'X' in vhost '/'")
    declare(channel, "X")
    assert routed(channel, "X", "k") == 0


def test_delete_if_unused(channel: ChannelEnds) -> None:
    declare(channel, "X")
    bind(channel, "X", "k")
    assert channel.refused(ExchangeDelete("X", if_unused=True)) == (406, "exchange 'X' in vhost '/' in use")
    channel.call(QueueUnbind("q", "X", "k"))
    assert channel.call(ExchangeDelete("X", if_unused=True)) == ExchangeDeleteOk()


@pytest.mark.parametrize("name", ["amq.direct", "amq.other"])
def test_system_exchanges_cannot_be_deleted(channel: ChannelEnds, name: str) -> None:
    text = f"deletion of system exchange '{name}' in vhost '/' not allowed"
    assert channel.refused(ExchangeDelete(name)) == (403, text)


def test_default_exchange_cannot_be_deleted(channel: ChannelEnds) -> None:
    text = "operation not permitted on the default exchange"
    assert channel.refused(ExchangeDelete("")) == (403, text)


def test_delete_without_answer(channel: ChannelEnds) -> None:
    declare(channel, "X")
    assert channel.say(ExchangeDelete("X", no_wait=True)) == []
    assert channel.refused(ExchangeDeclare("X", passive=True))[0] == 404


def test_auto_delete_goes_with_the_last_binding_and_not_before_the_first(channel: ChannelEnds) -> None:
    declare(channel, "X", auto_delete=True)
    assert channel.call(QueueUnbind("q", "X", "k")) == QueueUnbindOk()
    assert channel.call(ExchangeDeclare("X", passive=True)) == ExchangeDeclareOk()
    bind(channel, "X", "k")
    channel.call(QueueUnbind("q", "X", "k"))
    assert channel.refused(ExchangeDeclare("X", passive=True)) == (404, "no exchange 'X' in vhost '/'")


# --- routing -----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("exchanges_SUITE", "direct_exchange")
def test_direct_compares_keys(channel: ChannelEnds) -> None:
    declare(channel, "X")
    bind(channel, "X", "k")
    assert [routed(channel, "X", key) for key in ("k", "K", "", "k.k")] == [1, 0, 0, 0]


@pytest.mark.rabbitmq("exchanges_SUITE", "fanout_exchange")
def test_fanout_goes_everywhere(channel: ChannelEnds) -> None:
    bind(channel, "amq.fanout")
    assert [routed(channel, "amq.fanout", key) for key in ("k", "")] == [1, 1]


@pytest.mark.rabbitmq(
    "bindings_SUITE",
    "topic_binding_hash_limit",
    "topic_binding_hash_limit_allows_unbind",
    "topic_exchange_binding_hash_limit",
)
def test_three_hashes_in_a_topic_binding_are_refused_and_can_be_unbound(channel: ChannelEnds) -> None:
    text = "Topic binding key '#.a.#.b.#' uses 3 '#' wildcards, at most 2 are allowed"
    assert channel.refused(QueueBind("q", "amq.topic", "#.a.#.b.#")) == (406, text)
    assert channel.call(QueueUnbind("q", "amq.topic", "#.a.#.b.#")) == QueueUnbindOk()


@pytest.mark.rabbitmq("exchanges_SUITE", "headers_exchange_key_presence_only")
def test_headers_with_key_presence_only(channel: ChannelEnds) -> None:
    """A void value in the binding compares presence only."""
    bind(channel, "amq.headers", a=None)
    assert routed(channel, "amq.headers", headers={"a": "anything"}) == 1
    assert routed(channel, "amq.headers", headers={"b": "anything"}) == 0


def test_message_is_delivered_once_per_queue(channel: ChannelEnds) -> None:
    """Two bindings that match, or differ in arguments only, deliver one copy."""
    bind(channel, "amq.topic", "a.#")
    bind(channel, "amq.topic", "a.b")
    bind(channel, "amq.topic", "a.b", x=1)
    assert routed(channel, "amq.topic", "a.b") == 1


def test_exchange_to_exchange_with_a_cycle(channel: ChannelEnds) -> None:
    declare(channel, "X", "fanout")
    declare(channel, "Y", "fanout")
    assert channel.call(ExchangeBind("Y", "X", "")) == ExchangeBindOk()
    assert channel.call(ExchangeBind("X", "Y", "")) == ExchangeBindOk()
    bind(channel, "Y")
    bind(channel, "X")
    assert routed(channel, "X") == 1
    assert channel.call(ExchangeUnbind("Y", "X", "")) == ExchangeUnbindOk()
    channel.call(QueueUnbind("q", "X", ""))
    assert routed(channel, "X") == 0


@pytest.mark.parametrize(
    ("destination", "source", "missing"),
    [("Y", "X", "X"), ("Y", "amq.fanout", "Y"), ("amq.fanout", "X", "X")],
)
def test_exchange_bind_to_nothing_is_not_found(
    channel: ChannelEnds, destination: str, source: str, missing: str
) -> None:
    text = f"no exchange '{missing}' in vhost '/'"
    assert channel.refused(ExchangeBind(destination, source, "")) == (404, text)


@pytest.mark.parametrize(("destination", "source"), [("Y", "X"), ("Y", "amq.fanout"), ("amq.fanout", "X")])
def test_exchange_unbind_of_what_is_gone_is_ok(channel: ChannelEnds, destination: str, source: str) -> None:
    """RabbitMQ has done so since 3.2, and aio-pika's tests clean up this way."""
    assert channel.call(ExchangeUnbind(destination, source, "")) == ExchangeUnbindOk()


def test_default_exchange_cannot_be_bound(channel: ChannelEnds) -> None:
    text = "operation not permitted on the default exchange"
    assert channel.refused(ExchangeBind("amq.fanout", "", "k")) == (403, text)
    assert channel.refused(ExchangeBind("", "amq.fanout", "k")) == (403, text)
    assert channel.refused(QueueBind("q", "", "k")) == (403, text)


def test_alternate_exchange_gets_what_has_no_route(channel: ChannelEnds) -> None:
    """A mandatory message is returned only if the alternate has no route either."""
    declare(channel, "X", arguments={"alternate-exchange": "amq.fanout"})
    (returned,) = channel.publish("k", b"x", exchange="X", mandatory=True)
    assert kinds([returned]) == ["BasicReturn"]
    bind(channel, "amq.fanout")
    assert routed(channel, "X", "k", mandatory=True) == 1


def test_internal_exchange_takes_no_publish_and_routes(channel: ChannelEnds) -> None:
    declare(channel, "X", "fanout", internal=True)
    text = "cannot publish to internal exchange 'X' in vhost '/'"
    assert channel.refused(channel.content("k", exchange="X")) == (403, text)
    bind(channel, "X")
    channel.call(ExchangeBind("X", "amq.fanout", ""))
    assert routed(channel, "amq.fanout") == 1


def test_a_route_that_was_remembered_follows_changes(channel: ChannelEnds) -> None:
    """Binding, unbinding and deleting take effect for the very next message of the same shape."""
    message = channel.content("k", b"x", "amq.direct")
    channel.say(message, QueueBind("q", "amq.direct", "k", no_wait=True), message, message)
    assert channel.world.counts("q") == (2, 0)
    channel.say(message, QueueUnbind("q", "amq.direct", "k"), message)
    assert channel.world.counts("q") == (3, 0)


# --- permissions -------------------------------------------------------------------------------------


def permit(channel: ChannelEnds, configure: str = "", write: str = "", read: str = "") -> None:
    set_permission(channel.world.catalog, "guest", "/", Permission(configure, write, read))


def denied(what: str, kind: str, name: str) -> tuple[int, str]:
    return 403, f"{what} access to {kind} '{name}' in vhost '/' refused for user 'guest'"


def test_declare_and_delete_need_configure(channel: ChannelEnds) -> None:
    permit(channel, "^$", ".*", ".*")
    assert channel.refused(ExchangeDeclare("X", "direct")) == denied("configure", "exchange", "X")
    assert channel.refused(ExchangeDelete("X")) == denied("configure", "exchange", "X")


def test_bind_needs_write_on_destination_and_read_on_source(channel: ChannelEnds) -> None:
    permit(channel, "", "^q$", "^$")
    assert channel.refused(QueueBind("q", "amq.fanout", "")) == denied("read", "exchange", "amq.fanout")
    assert channel.refused(ExchangeBind("amq.topic", "amq.fanout", "")) == denied(
        "write", "exchange", "amq.topic"
    )
    permit(channel, "", "^$", ".*")
    assert channel.refused(QueueBind("q", "amq.fanout", "")) == denied("write", "queue", "q")


def test_alternate_exchange_needs_read_on_it_and_write_on_the_alternate(channel: ChannelEnds) -> None:
    arguments = {"alternate-exchange": "A"}
    permit(channel, ".*", "", ".*")
    assert channel.refused(ExchangeDeclare("X", "direct", arguments=arguments)) == denied(
        "write", "exchange", "A"
    )
    permit(channel, ".*", ".*", "")
    assert channel.refused(ExchangeDeclare("X", "direct", arguments=arguments)) == denied(
        "read", "exchange", "X"
    )


def test_publish_needs_write_and_the_default_exchange_has_a_name(channel: ChannelEnds) -> None:
    permit(channel, "", "^amq.topic$", "")
    assert channel.refused(channel.content("q")) == denied("write", "exchange", "amq.default")
    assert channel.refused(channel.content("q", exchange="amq.fanout")) == denied(
        "write", "exchange", "amq.fanout"
    )
    assert channel.publish("q", b"", exchange="amq.topic") == []


def test_a_permission_that_is_taken_away_counts_at_once(channel: ChannelEnds) -> None:
    """Remembered routes and heads do not outlive the permission."""
    assert routed(channel, "", "q") == 1
    permit(channel)
    assert channel.refused(channel.content("q", b"x")) == denied("write", "exchange", "amq.default")


@pytest.mark.rabbitmq("topic_permission_SUITE", "amqpl_bcc_headers", "amqpl_cc_headers")
def test_topic_permission_is_checked_for_every_key(channel: ChannelEnds) -> None:
    """It applies to the routing key, CC and BCC of a publish, and to the binding key (read)."""
    set_topic_permission(channel.world.catalog, "guest", "/", "amq.topic", TopicPermission("^a", "^a"))
    bind(channel, "amq.topic", "a.#")
    assert routed(channel, "amq.topic", "a.b") == 1
    assert routed(channel, "amq.topic", "a.b", headers={"CC": ["a.c"]}) == 1
    for key, headers in (("b", {}), ("a", {"CC": ["a", "b"]}), ("a", {"BCC": ["b"]})):
        code, text = channel.refused(channel.content(key, exchange="amq.topic", headers=headers))
        assert code == 403
        assert (
            text == "write access to topic 'b' in exchange 'amq.topic' in vhost '/' refused for user 'guest'"
        )
    code, text = channel.refused(QueueBind("q", "amq.topic", "b.#"))
    assert code == 403
    assert text == "read access to topic 'b.#' in exchange 'amq.topic' in vhost '/' refused for user 'guest'"


def test_a_line_end_in_a_name_leads_past_no_permission(channel: ChannelEnds) -> None:
    """The check applies to the name without its line ends."""
    set_permission(channel.world.catalog, "guest", "/", Permission("^(?!secret)", ".*", ".*"))
    text = "configure access to exchange 'secret' in vhost '/' refused for user 'guest'"
    assert channel.refused(ExchangeDeclare("sec\r\nret", "direct", durable=True)) == (403, text)


def test_an_alternate_exchange_given_as_binary_leads_past_no_permission(channel: ChannelEnds) -> None:
    set_permission(channel.world.catalog, "guest", "/", Permission("^X$", "^$", "^$"))
    method = ExchangeDeclare("X", "direct", arguments={"alternate-exchange": ByteArray(b"amq.fanout")})
    text = "invalid type 'binary' for arg 'alternate-exchange' in exchange 'X' in vhost '/'"
    assert channel.refused(method) == (406, text)
