"""pika: exchanges, queues and bindings, and every refusal as pika shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import Connect, Inbox, Properties, get_all, put, settle_down

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. It could be "
    "originally declared on another connection or the exclusive property value does not match that of the "
    "original declaration."
)
BAD_TTL = "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue '{queue}' in vhost '/': "
BAD_EXPIRATION = (
    "PRECONDITION_FAILED - invalid expiration '{}': must be milliseconds, an integer of 0 to 315360000000"
)


def refusal(channel: BlockingChannel, operation: Callable[[BlockingChannel], Any]) -> tuple[int, str]:
    """Code and text with which the broker closes the channel; the connection must stay good."""

    def provoke() -> None:
        operation(channel)
        settle_down(channel)  # some errors come when nobody waits for an answer

    with pytest.raises(ChannelClosedByBroker) as caught:
        provoke()
    assert channel.is_closed
    connection = channel.connection
    fresh = connection.channel()
    settle_down(fresh)
    return caught.value.reply_code, caught.value.reply_text


# --- declaring ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        {"durable": True},
        {"durable": False},
        {"durable": True, "auto_delete": True},
        {"exclusive": True},
        {"exclusive": True, "durable": True, "auto_delete": True},
        {"durable": True, "arguments": {"x-queue-type": "classic"}},
        {"durable": True, "arguments": {"x-message-ttl": 60_000, "x-expires": 60_000, "x-max-length": 10}},
        {
            "durable": True,
            "arguments": {"x-dead-letter-exchange": "amq.direct", "x-dead-letter-routing-key": "d"},
        },
        {"durable": True, "arguments": {"x-max-length-bytes": 1000, "x-overflow": "reject-publish"}},
        {"durable": True, "arguments": {"x-max-priority": 5}},
        {"durable": True, "arguments": {"x-single-active-consumer": True}},
        {"durable": True, "arguments": {"x-unknown-to-us": "kept"}},
    ],
    ids=str,
)
def test_a_queue_is_declared_twice_alike(channel: BlockingChannel, queue: str, flags: dict[str, Any]) -> None:
    """Declaring again with the same flags and arguments answers with the counts."""
    answer = channel.queue_declare(queue, **flags).method
    assert (answer.queue, answer.message_count, answer.consumer_count) == (queue, 0, 0)
    put(channel, queue, "a", "b")
    assert channel.queue_declare(queue, **flags).method.message_count == 2
    assert channel.queue_declare(queue, passive=True).method.message_count == 2
    assert channel.queue_delete(queue).method.message_count == 2


@pytest.mark.parametrize(
    "kind", ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-local-random"]
)
@pytest.mark.parametrize("flags", [{}, {"durable": True}, {"auto_delete": True, "internal": True}], ids=str)
def test_an_exchange_is_declared_twice_alike(
    channel: BlockingChannel, queue: str, kind: str, flags: dict[str, Any]
) -> None:
    """Every type, with every flag; deleting it twice is no error."""
    for _ in range(2):
        channel.exchange_declare(queue, kind, **flags)
    channel.exchange_declare(queue, passive=True)
    for _ in range(2):
        channel.exchange_delete(queue)


@pytest.mark.parametrize(
    "name", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match", "amq.rabbitmq.trace"]
)
def test_exchanges_that_are_there_from_the_start(channel: BlockingChannel, name: str) -> None:
    """Passive declaration finds them."""
    channel.exchange_declare(name, passive=True)


def test_the_broker_names_a_queue_that_has_no_name(channel: BlockingChannel) -> None:
    """amq.gen- and 22 letters; an empty name means it from then on."""
    name = channel.queue_declare("", exclusive=True).method.queue
    assert name.startswith("amq.gen-")
    assert len(name) == len("amq.gen-") + 22
    assert channel.queue_declare("", exclusive=True).method.queue != name
    last = channel.queue_declare("", exclusive=True).method.queue
    put(channel, last, "for the last")
    method, _, body = channel.basic_get("")
    assert (method is not None, body) == (True, b"for the last")


def test_an_empty_queue_name_without_a_declaration_is_404(channel: BlockingChannel) -> None:
    """There is no queue declared last on a fresh channel."""
    code, text = refusal(channel, lambda c: c.basic_get(""))
    assert code == 404
    assert "no previously declared queue" in text


def test_line_ends_are_removed_from_names(channel: BlockingChannel, queue: str) -> None:
    """CR and LF in declared names vanish."""
    channel.exchange_declare(queue + "\r\n", auto_delete=True)
    channel.exchange_declare(queue, passive=True)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (
            {"durable": True},
            {"durable": False},
            "'durable' for queue '{queue}' in vhost '/': received 'false' but current is 'true'",
        ),
        (
            {"durable": False},
            {"durable": True},
            "'durable' for queue '{queue}' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            {"durable": True},
            {"durable": True, "auto_delete": True},
            "'auto_delete' for queue '{queue}' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            {"durable": True},
            {"durable": True, "arguments": {"x-message-ttl": 5}},
            (
                "'x-message-ttl' for queue '{queue}' in vhost '/': "
                "received the value '5' of type 'signedint' but current is none"
            ),
        ),
    ],
)
def test_a_queue_declared_otherwise_is_406(
    channel: BlockingChannel, queue: str, first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    """The text names what differs."""
    channel.queue_declare(queue, **first)
    code, reply = refusal(channel, lambda c: c.queue_declare(queue, **second))
    assert (code, reply) == (406, "PRECONDITION_FAILED - inequivalent arg " + text.format(queue=queue))


def test_an_exchange_declared_otherwise_is_406(channel: BlockingChannel, queue: str) -> None:
    """The text names what differs."""
    channel.exchange_declare(queue, "direct")
    assert refusal(channel, lambda c: c.exchange_declare(queue, "fanout")) == (
        406,
        (
            f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{queue}' in vhost '/': "
            "received 'fanout' but current is 'direct'"
        ),
    )


@pytest.mark.parametrize(
    ("operation", "code", "text"),
    [
        (lambda c, q: c.queue_declare(q, passive=True), 404, "NOT_FOUND - no queue '{queue}' in vhost '/'"),
        (lambda c, q: c.basic_consume(q, print), 404, "NOT_FOUND - no queue '{queue}' in vhost '/'"),
        (lambda c, q: c.basic_get(q), 404, "NOT_FOUND - no queue '{queue}' in vhost '/'"),
        (lambda c, q: c.queue_purge(q), 404, "NOT_FOUND - no queue '{queue}' in vhost '/'"),
        (lambda c, q: c.queue_bind(q, "amq.direct"), 404, "NOT_FOUND - no queue '{queue}' in vhost '/'"),
        (
            lambda c, q: c.exchange_declare(q, passive=True),
            404,
            "NOT_FOUND - no exchange '{queue}' in vhost '/'",
        ),
        (
            lambda c, q: c.exchange_bind("amq.fanout", q),
            404,
            "NOT_FOUND - no exchange '{queue}' in vhost '/'",
        ),
        (
            lambda c, q: c.exchange_bind(q, "amq.fanout"),
            404,
            "NOT_FOUND - no exchange '{queue}' in vhost '/'",
        ),
        (lambda c, q: c.basic_publish(q, "k", b""), 404, "NOT_FOUND - no exchange '{queue}' in vhost '/'"),
        (
            lambda c, q: c.exchange_declare(q, "no-such-type"),
            406,
            "PRECONDITION_FAILED - unknown exchange type 'no-such-type'",
        ),
        (
            lambda c, q: c.exchange_declare("amq." + q),
            403,
            "ACCESS_REFUSED - exchange name 'amq.{queue}' contains reserved prefix 'amq.*'",
        ),
        (
            lambda c, q: c.queue_declare("amq." + q),
            403,
            "ACCESS_REFUSED - queue name 'amq.{queue}' contains reserved prefix 'amq.*'",
        ),
        (
            lambda c, q: c.exchange_declare(""),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (
            lambda c, q: c.exchange_delete(""),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (
            lambda c, q: c.queue_declare(q, durable=True) and c.queue_bind(q, "", "k"),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (
            lambda c, q: c.queue_declare(q, durable=True, arguments={"x-message-ttl": -5}),
            406,
            BAD_TTL + "must be 0 to 315360000000, not -5",
        ),
        (
            lambda c, q: c.queue_declare(q, durable=True, arguments={"x-message-ttl": "5"}),
            406,
            BAD_TTL + "must be an integer, not longstr",
        ),
        (lambda c, q: c.basic_ack(1), 406, "PRECONDITION_FAILED - unknown delivery tag 1"),
        (lambda c, q: c.basic_nack(7), 406, "PRECONDITION_FAILED - unknown delivery tag 7"),
        (lambda c, q: c.basic_reject(7), 406, "PRECONDITION_FAILED - unknown delivery tag 7"),
        (lambda c, q: c.tx_commit(), 406, "PRECONDITION_FAILED - channel is not transactional"),
        (lambda c, q: c.tx_rollback(), 406, "PRECONDITION_FAILED - channel is not transactional"),
        (
            lambda c, q: c.tx_select() and c.confirm_delivery(),
            406,
            "PRECONDITION_FAILED - cannot switch from tx to confirm mode",
        ),
        (
            lambda c, q: c.confirm_delivery() or c.tx_select(),
            406,
            "PRECONDITION_FAILED - cannot switch from confirm to tx mode",
        ),
        (
            lambda c, q: c.basic_publish("", q, b"", Properties(user_id="somebody")),
            406,
            "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'",
        ),
        (
            lambda c, q: c.basic_publish("", q, b"", Properties(expiration="soon")),
            406,
            BAD_EXPIRATION.format("soon"),
        ),
        (
            lambda c, q: c.basic_publish("", q, b"", Properties(expiration="-1")),
            406,
            BAD_EXPIRATION.format("-1"),
        ),
        (
            lambda c, q: c.basic_publish("amq.rabbitmq.trace", q, b""),
            403,
            "ACCESS_REFUSED - cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '/'",
        ),
        (
            lambda c, q: c.basic_consume("amq.rabbitmq.reply-to", print),
            406,
            "PRECONDITION_FAILED - reply consumer cannot acknowledge",
        ),
        (
            lambda c, q: c.basic_publish("", q, b"", Properties(reply_to="amq.rabbitmq.reply-to")),
            406,
            "PRECONDITION_FAILED - fast reply consumer does not exist",
        ),
    ],
)
def test_a_refused_operation_closes_the_channel_and_leaves_the_connection(
    channel: BlockingChannel, queue: str, operation: Any, code: int, text: str
) -> None:
    """Code and beginning of the text are RabbitMQ's; another channel of the connection works."""
    found = refusal(channel, lambda c: operation(c, queue))
    assert found == (code, text.format(queue=queue))


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (lambda c: c.basic_recover(requeue=False), "NOT_IMPLEMENTED - requeue=false"),
        (lambda c: c.basic_qos(prefetch_size=5), "NOT_IMPLEMENTED - prefetch_size!=0 (5)"),
        (lambda c: c.flow(False), "NOT_IMPLEMENTED - active=false"),
    ],
)
def test_what_is_not_implemented_ends_the_connection(
    connection: BlockingConnection, operation: Any, text: str
) -> None:
    """540 is an error of the connection."""
    with pytest.raises(ConnectionClosedByBroker) as caught:
        operation(connection.channel())
    assert (caught.value.reply_code, caught.value.reply_text) == (540, text)
    assert connection.is_closed


# --- life and death of queues -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        lambda c, q: c.queue_declare(q, exclusive=True),
        lambda c, q: c.queue_declare(q, passive=True),
        lambda c, q: c.queue_declare(q, durable=False),
        lambda c, q: c.queue_bind(q, "amq.direct", "k"),
        lambda c, q: c.queue_unbind(q, "amq.direct", "k"),
        lambda c, q: c.basic_consume(q, print),
        lambda c, q: c.basic_get(q),
        lambda c, q: c.queue_purge(q),
        lambda c, q: c.queue_delete(q),
    ],
)
def test_an_exclusive_queue_is_locked_for_other_connections(connect: Connect, operation: Any) -> None:
    """405 for every method; publishing to it is free to all."""
    owner = connect().channel()
    queue = owner.queue_declare("", exclusive=True).method.queue
    other = connect()
    # As long as the reply text allows: it is cut at 255 bytes.
    expected = LOCKED.format(queue=queue)
    expected = expected if len(expected) <= 255 else expected[:252] + "..."
    assert refusal(other.channel(), lambda c: operation(c, queue)) == (405, expected)
    publisher = other.channel()
    publisher.confirm_delivery()
    publisher.basic_publish("", queue, b"from another connection", mandatory=True)
    assert get_all(owner, queue) == ["from another connection"]


def test_an_exclusive_queue_ends_with_its_connection(connect: Connect, queue: str) -> None:
    """When close is answered it is gone already; the name is free."""
    for _ in range(5):
        owner = connect()
        owner.channel().queue_declare(queue, exclusive=True)
        owner.close()
        refusal(connect().channel(), lambda c: c.queue_declare(queue, passive=True))


def test_an_auto_delete_queue_goes_with_its_last_consumer(
    connect: Connect, broker: BrokerProcess, queue: str
) -> None:
    """Not before there was one, and not while another is left."""
    channel = connect().channel()
    channel.queue_declare(queue, durable=True, auto_delete=True)
    other = connect().channel()
    first, second = Inbox(channel, queue), Inbox(other, queue)
    channel.basic_cancel(first.tag)
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 1
    other.basic_cancel(second.tag)
    broker.wait_until(lambda: broker.queue(queue) is None, "end of the auto-delete queue")


def test_conditions_of_deletion(channel: BlockingChannel, queue: str) -> None:
    """if-unused and if-empty are 406 while they do not hold; deleting what is not there is no error."""
    channel.queue_declare(queue, durable=True)
    put(channel, queue, "x")
    other = channel.connection.channel()
    assert refusal(other, lambda c: c.queue_delete(queue, if_empty=True)) == (
        406,
        f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty",
    )
    consumer = Inbox(channel, queue)
    consumer.take()
    other = channel.connection.channel()
    assert refusal(other, lambda c: c.queue_delete(queue, if_unused=True)) == (
        406,
        f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use",
    )
    channel.basic_ack(1)
    channel.basic_cancel(consumer.tag)
    assert channel.queue_delete(queue, if_unused=True, if_empty=True).method.message_count == 0
    assert channel.queue_delete(queue).method.message_count == 0


def test_an_exchange_in_use_is_not_deleted_with_if_unused(channel: BlockingChannel, queue: str) -> None:
    """406 while there is a binding from it."""
    channel.exchange_declare(queue, "fanout")
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, queue)
    other = channel.connection.channel()
    assert refusal(other, lambda c: c.exchange_delete(queue, if_unused=True)) == (
        406,
        f"PRECONDITION_FAILED - exchange '{queue}' in vhost '/' in use",
    )
    channel.queue_unbind(queue, queue)
    channel.exchange_delete(queue, if_unused=True)


def test_purge_takes_what_is_ready_and_leaves_what_is_unacknowledged(
    channel: BlockingChannel, queue: str
) -> None:
    """The answer counts what was removed."""
    channel.queue_declare(queue, durable=True)
    put(channel, queue, "a", "b", "c")
    method, _, _ = channel.basic_get(queue)
    assert method is not None
    assert channel.queue_purge(queue).method.message_count == 2
    channel.basic_nack(method.delivery_tag)
    assert get_all(channel, queue) == ["a"]


def test_a_queue_declared_and_deleted_many_times(channel: BlockingChannel, queue: str) -> None:
    """Each has only its own messages."""
    for number in range(50):
        assert channel.queue_declare(queue, durable=True).method.message_count == 0
        put(channel, queue, str(number))
        assert channel.queue_delete(queue).method.message_count == 1


# --- routing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "binding", "arguments", "sent", "expected"),
    [
        ("direct", "k", None, [("k", {}), ("K", {}), ("", {})], [0]),
        ("fanout", "k", None, [("k", {}), ("other", {}), ("", {})], [0, 1, 2]),
        ("topic", "a.*.c", None, [("a.b.c", {}), ("a.c", {}), ("a.b.b.c", {}), ("a..c", {})], [0, 3]),
        ("topic", "a.#", None, [("a", {}), ("a.b", {}), ("a.b.c", {}), ("b.a", {})], [0, 1, 2]),
        ("topic", "#.z", None, [("z", {}), ("y.z", {}), ("z.y", {})], [0, 1]),
        ("topic", "#", None, [("", {}), ("a.b", {})], [0, 1]),
        (
            "headers",
            "",
            {"x-match": "all", "a": 1, "b": "two"},
            [("", {"a": 1, "b": "two", "c": 3}), ("", {"a": 1}), ("", {"a": 1, "b": 2})],
            [0],
        ),
        (
            "headers",
            "",
            {"x-match": "any", "a": 1, "b": "two"},
            [("", {"a": 1}), ("", {"b": "two"}), ("", {"c": 1}), ("", {})],
            [0, 1],
        ),
        ("headers", "", {"a": None}, [("", {"a": "whatever"}), ("", {"b": 1})], [0]),
        (
            "headers",
            "",
            {"x-match": "all-with-x", "x-a": 1},
            [("", {"x-a": 1}), ("", {"x-a": 2}), ("", {})],
            [0],
        ),
        (
            "headers",
            "",
            {"x-match": "any-with-x", "x-a": 1, "b": 2},
            [("", {"x-a": 1}), ("", {"b": 2}), ("", {"b": 3})],
            [0, 1],
        ),
    ],
)
def test_what_each_type_of_exchange_routes(
    channel: BlockingChannel,
    queue: str,
    kind: str,
    binding: str,
    arguments: Any,
    sent: list[tuple[str, Any]],
    expected: list[int],
) -> None:
    """The queue gets the messages that its binding fits, in order."""
    channel.exchange_declare(queue, kind)
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, queue, binding, arguments)
    for number, (key, headers) in enumerate(sent):
        channel.basic_publish(queue, key, str(number).encode(), Properties(headers=headers))
    assert get_all(channel, queue) == [str(number) for number in expected]
    channel.exchange_delete(queue)


@pytest.mark.rabbitmq("bindings_SUITE", "bind_and_unbind")
def test_a_binding_can_be_undone(channel: BlockingChannel, queue: str) -> None:
    """Also twice; then nothing is routed."""
    channel.queue_declare(queue, exclusive=True)
    for _ in range(2):
        channel.queue_bind(queue, "amq.direct", queue)
    channel.basic_publish("amq.direct", queue, b"once")
    for _ in range(2):
        channel.queue_unbind(queue, "amq.direct", queue)
    channel.basic_publish("amq.direct", queue, b"no more")
    assert get_all(channel, queue) == ["once"]


def test_exchanges_are_bound_to_exchanges(channel: BlockingChannel, queue: str) -> None:
    """A chain of three types, and a cycle in which the message is delivered once."""
    names = [f"{queue}-{kind}" for kind in ("topic", "direct", "fanout")]
    for name in names:
        channel.exchange_declare(name, name.rpartition("-")[2])
    channel.exchange_bind(names[1], names[0], "a.#")
    channel.exchange_bind(names[2], names[1], "a.b")
    channel.exchange_bind(names[0], names[2])
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, names[2])
    for key in ("a.b", "a.c", "b"):
        channel.basic_publish(names[0], key, key.encode())
    assert get_all(channel, queue) == ["a.b"]
    channel.exchange_unbind(names[1], names[0], "a.#")
    channel.basic_publish(names[0], "a.b", b"no more")
    assert get_all(channel, queue) == []
    for name in names:
        channel.exchange_delete(name)


def test_an_alternate_exchange_takes_what_is_not_routed(channel: BlockingChannel, queue: str) -> None:
    """And then the message counts as routed."""
    channel.exchange_declare(queue, "direct", arguments={"alternate-exchange": queue + "-rest"})
    channel.exchange_declare(queue + "-rest", "fanout")
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, queue + "-rest")
    channel.confirm_delivery()
    channel.basic_publish(queue, "unknown", b"x", mandatory=True)
    assert get_all(channel, queue) == ["x"]
    channel.exchange_delete(queue)
    channel.exchange_delete(queue + "-rest")
    with pytest.raises(ChannelClosedByBroker):
        channel.exchange_declare(queue, passive=True)


def test_an_auto_delete_exchange_goes_with_its_last_binding(channel: BlockingChannel, queue: str) -> None:
    """Deleting the queue takes the binding, and the binding the exchange."""
    channel.exchange_declare(queue, "fanout", auto_delete=True)
    channel.exchange_declare(queue, passive=True)
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, queue)
    channel.queue_delete(queue)
    code, _ = refusal(channel, lambda c: c.exchange_declare(queue, passive=True))
    assert code == 404


def test_cc_and_bcc_add_routing_keys(channel: BlockingChannel, queue: str) -> None:
    """Each queue gets one copy; BCC is not shown to anybody."""
    names = [f"{queue}-{number}" for number in range(3)]
    for name in names:
        channel.queue_declare(name, exclusive=True)
    headers = {"CC": [names[1], names[0]], "BCC": [names[2]], "other": 1}
    channel.basic_publish("", names[0], b"x", Properties(headers=headers))
    for name in names:
        method, properties, _ = channel.basic_get(name, auto_ack=True)
        assert method is not None
        assert properties is not None
        assert properties.headers == {"CC": [names[1], names[0]], "other": 1}
        assert method.routing_key == names[0]
        assert method.message_count == 0


def test_a_cc_header_that_is_no_array_is_406(channel: BlockingChannel, queue: str) -> None:
    """As in RabbitMQ the channel is closed."""
    properties = pika.BasicProperties(headers={"CC": "not an array"})
    code, text = refusal(channel, lambda c: c.basic_publish("", queue, b"x", properties))
    assert code == 406
    assert text.startswith("PRECONDITION_FAILED - ")
    assert "CC" in text
