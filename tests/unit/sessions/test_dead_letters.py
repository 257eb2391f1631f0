"""Routing of dead letters: which queues get what a queue gave up, in which order, and what is dropped."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import MessageReader
from amqp10broker.message.message import Message
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.queues.commands import DeadLetterReason, DeadLetters
from amqp10broker.routing.registry import Binding, Destination
from amqp10broker.sessions.routes import Routed, route_dead_letters
from tests.support import topologies
from tests.support.declaring import declare
from tests.unit.metadata.conftest import Host

NOW = 1_700_000_000_000


@pytest.fixture
def vhost() -> VirtualHost:
    """With the queues a, b and c, and the exchange dlx of type direct."""
    catalog = Catalog(Host().start_queue)
    vhost = catalog.lookup_vhost("/")
    for name in "abc":
        declare(catalog, vhost, name)
    topologies.declare_exchange(vhost.topology, "dlx", "direct", durable=True)
    return vhost


def bind(vhost: VirtualHost, queue: str, key: str, exchange: str = "dlx", **arguments: Any) -> None:
    topologies.bind(vhost.topology, Binding(exchange, Destination("queue", queue), key, arguments))


def message(body: str, key: str = "k", **properties: Any) -> Message:
    return amqp091.make_head("ex", key, encode_properties(BasicProperties(**properties))), body.encode()


def route(
    vhost: VirtualHost,
    *messages: Message,
    queue: str = "q",
    reason: DeadLetterReason = DeadLetterReason.EXPIRED,
    exchange: str = "dlx",
    key: str | None = None,
) -> Routed:
    return route_dead_letters(vhost, queue, DeadLetters(reason, messages, exchange, key), NOW)


def bodies(routed: Routed) -> dict[str, str]:
    return {queue.name: b"".join(body for _, body in messages).decode() for queue, messages in routed.to}


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "dead_letter_reject_many_message_order_classic_queue",
    "dead_letter_reject_many_message_order_quorum_queue",
    "dead_letter_reject_message_order_classic_queue",
    "dead_letter_reject_message_order_quorum_queue",
)
def test_letters_go_to_the_queues_of_their_exchange_in_order(vhost: VirtualHost) -> None:
    """Each queue once, whatever the heads of its messages."""
    bind(vhost, "a", "k")
    bind(vhost, "b", "k")
    bind(vhost, "b", "l")
    letters = [message("1"), message("2", "l"), message("3", priority=1), message("4", "l")]
    assert bodies(route(vhost, *letters)) == {"a": "13", "b": "1234"}


def test_both_protocols_travel_in_one_batch(vhost: VirtualHost) -> None:
    bind(vhost, "a", "k")
    ten = MessageReader("ex", "k", "guest").read(b"\x00\x53\x75\xa0\x01a")
    ((_, letters),) = route(vhost, message("1"), ten, message("2")).to
    assert [content for _, content in letters] == [b"1", ten[1], b"2"]


def test_messages_that_share_a_head_share_it_afterwards(vhost: VirtualHost) -> None:
    """A queue of many is dead-lettered without a head for each."""
    bind(vhost, "a", "k")
    head = message("")[0]
    ((_, letters),) = route(vhost, (head, b"1"), (head, b"2")).to
    assert letters[0][0] is letters[1][0]


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_routing_key")
def test_a_dead_letter_routing_key_replaces_the_messages_own(vhost: VirtualHost) -> None:
    for queue, key in (("a", "k"), ("b", "cc"), ("c", "dead")):
        bind(vhost, queue, key)
    assert bodies(route(vhost, message("1", headers={"CC": ["cc"]}), key="dead")) == {"c": "1"}


def test_without_one_a_message_is_routed_by_all_its_keys(vhost: VirtualHost) -> None:
    """Its routing key and those of CC; each queue gets it once."""
    for queue, key in (("a", "k"), ("b", "cc"), ("a", "cc")):
        bind(vhost, queue, key)
    assert bodies(route(vhost, message("1", headers={"CC": ["cc"]}))) == {"a": "1", "b": "1"}


def test_an_internal_exchange_takes_dead_letters(vhost: VirtualHost) -> None:
    """Clients cannot publish there, the broker can."""
    topologies.declare_exchange(vhost.topology, "inside", "fanout", durable=True, internal=True)
    bind(vhost, "a", "", "inside")
    assert bodies(route(vhost, message("1"), exchange="inside")) == {"a": "1"}


@pytest.mark.rabbitmq("amqp_client_SUITE", "dead_letter_headers_exchange")
def test_a_headers_exchange_sees_why_a_message_died(vhost: VirtualHost) -> None:
    """Headers are looked at message by message, those of this event included."""
    topologies.declare_exchange(vhost.topology, "by-headers", "headers", durable=True)
    bind(vhost, "a", "", "by-headers", **{"x-match": "all-with-x", "x-last-death-reason": "expired"})
    bind(vhost, "b", "", "by-headers", **{"x-match": "all", "kind": 1})
    letters = [message("1"), message("2", headers={"kind": 1})]
    assert bodies(route(vhost, *letters, exchange="by-headers")) == {"a": "12", "b": "2"}


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_missing_exchange")
def test_an_exchange_that_is_missing_drops_them(vhost: VirtualHost) -> None:
    """It need not exist when the queue is declared, but now."""
    assert route(vhost, message("1"), exchange="none") == Routed([], ())


def test_an_alternate_exchange_is_asked(vhost: VirtualHost) -> None:
    topologies.declare_exchange(
        vhost.topology, "first", "direct", durable=True, arguments={"alternate-exchange": "dlx"}
    )
    bind(vhost, "a", "k")
    assert bodies(route(vhost, message("1"), exchange="first")) == {"a": "1"}


def died(
    vhost: VirtualHost, letter: Message, queue: str, reason: DeadLetterReason = DeadLetterReason.EXPIRED
) -> Message:
    """The message after it died in a queue, on its way to queue c."""
    ((_, (letter,)),) = route(vhost, letter, queue=queue, reason=reason, exchange="", key="c").to
    return letter


@pytest.mark.rabbitmq(
    "dead_lettering_SUITE", "dead_letter_routing_key_cycle_max_length", "dead_letter_routing_key_cycle_ttl"
)
def test_an_automatic_cycle_is_broken(vhost: VirtualHost) -> None:
    """A message does not come into the queue where it expired, unless a client rejected it since."""
    letter = died(vhost, message("1"), "a")
    again = route(vhost, letter, queue="c", reason=DeadLetterReason.MAXLEN, exchange="", key="a")
    assert again == Routed([], ("a",))
    again = route(vhost, letter, queue="c", reason=DeadLetterReason.REJECTED, exchange="", key="a")
    assert bodies(again) == {"a": "1"}


def test_a_cycle_drops_the_message_for_that_queue_only(vhost: VirtualHost) -> None:
    """The others get it, and other messages reach that queue."""
    for queue in "ab":
        bind(vhost, queue, "c")
    routed = route(vhost, died(vhost, message("1"), "a"), message("2", "c"), queue="c")
    assert bodies(routed) == {"b": "12", "a": "2"}
    assert routed.cycles == ("a",)
