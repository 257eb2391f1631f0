"""Dead letters, and messages that the broker publishes and fetches itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from amqp10broker.auth.authorise import Access, CatalogGrants
from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import MessageReader
from amqp10broker.message.message import Message
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.protocols.amqp091.properties import BasicProperties, encode_properties
from amqp10broker.queues.commands import (
    Confirmed,
    DeadLetterReason,
    DeadLetters,
    Publish,
    PublishRejected,
    Unconfirmed,
)
from amqp10broker.routing.exchange_types import Binding, Destination
from amqp10broker.sessions.dead_letters import (
    RETRY_MS,
    DeadLetterTarget,
    Forwarding,
    Post,
    Routed,
    route_dead_letters,
)
from amqp10broker.sessions.routes import HEAD_BYTES_MAX, HEADS_MAX, Routes
from tests.support import topologies
from tests.support.catalog_log import FakeHost
from tests.support.channel_harness import Harness
from tests.support.dead_letters import deaths_of, held
from tests.support.declaring import declare, remove
from tests.support.reply_addresses import new_reply_to

NOW = 1_700_000_000_000


@pytest.fixture
def vhost() -> VirtualHost:
    catalog = Catalog(FakeHost().start_queue)
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
    """Each queue gets a message once, whatever the heads of the messages."""
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
    """A queue of many messages is dead-lettered without a head for each."""
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
    """The keys are its routing key and those of CC; each queue gets it once."""
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
    """Headers are evaluated for each message, with those of this event included."""
    topologies.declare_exchange(vhost.topology, "by-headers", "headers", durable=True)
    bind(vhost, "a", "", "by-headers", **{"x-match": "all-with-x", "x-last-death-reason": "expired"})
    bind(vhost, "b", "", "by-headers", **{"x-match": "all", "kind": 1})
    letters = [message("1"), message("2", headers={"kind": 1})]
    assert bodies(route(vhost, *letters, exchange="by-headers")) == {"a": "12", "b": "2"}


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_missing_exchange")
def test_an_exchange_that_is_missing_drops_them(vhost: VirtualHost) -> None:
    """It need not exist when the queue is declared, but when a message dies."""
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
    ((_, (letter,)),) = route(vhost, letter, queue=queue, reason=reason, exchange="", key="c").to
    return letter


@pytest.mark.rabbitmq(
    "dead_lettering_SUITE", "dead_letter_routing_key_cycle_max_length", "dead_letter_routing_key_cycle_ttl"
)
def test_an_automatic_cycle_is_broken(vhost: VirtualHost) -> None:
    """A message does not return to the queue where it expired, unless a client rejected it since."""
    letter = died(vhost, message("1"), "a")
    again = route(vhost, letter, queue="c", reason=DeadLetterReason.MAXLEN, exchange="", key="a")
    assert again == Routed([], ("a",))
    again = route(vhost, letter, queue="c", reason=DeadLetterReason.REJECTED, exchange="", key="a")
    assert bodies(again) == {"a": "1"}


def test_a_cycle_drops_the_message_for_that_queue_only(vhost: VirtualHost) -> None:
    """The other queues get it, and other messages reach that queue."""
    for queue in "ab":
        bind(vhost, queue, "c")
    routed = route(vhost, died(vhost, message("1"), "a"), message("2", "c"), queue="c")
    assert bodies(routed) == {"b": "12", "a": "2"}
    assert routed.cycles == ("a",)


@pytest.fixture
def catalog() -> Catalog:
    return Catalog(FakeHost().start_queue)


@pytest.fixture
def vhost_once(catalog: Catalog) -> VirtualHost:
    vhost_once = catalog.lookup_vhost("/")
    for name in "ab":
        declare(catalog, vhost_once, name)
    topologies.declare_exchange(vhost_once.topology, "dlx", "fanout", durable=True)
    return vhost_once


@pytest.fixture
def forwarding() -> Forwarding:
    return Forwarding("q", DeadLetterTarget("dlx", None), new_reply_to("worker"))


def bind_once(vhost_once: VirtualHost, *queues: str, exchange: str = "dlx") -> None:
    for queue in queues:
        topologies.bind(vhost_once.topology, Binding(exchange, Destination("queue", queue)))


def unbind(vhost_once: VirtualHost, queue: str) -> None:
    topologies.unbind(vhost_once.topology, Binding("dlx", Destination("queue", queue)))


def sent(posts: Sequence[Post]) -> dict[str, str]:
    return {queue.name: b"".join(body for _, body in each.messages).decode() for queue, each in posts}


def publish_to(posts: Sequence[Post], queue: str) -> Publish:
    (found,) = [publish for target, publish in posts if target.name == queue]
    return found


def confirm(forwarding: Forwarding, publish: Publish) -> list[int]:
    return forwarding.confirmed(Confirmed(publish.publisher, publish.ids, publish.settled))


def reject(forwarding: Forwarding, publish: Publish) -> None:
    forwarding.refused(PublishRejected(publish.publisher, publish.ids, publish.settled, "a"))


def test_a_message_is_published_with_its_history_and_wants_a_confirm(
    vhost_once: VirtualHost, forwarding: Forwarding
) -> None:
    """The death record has the time of its hand-over."""
    bind_once(vhost_once, "a")
    publish = publish_to(forwarding.send(held(1), vhost_once, NOW), "a")
    assert not publish.settled
    (death,) = deaths_of(publish.messages[0][0])
    assert (death.queue, death.reason, death.last_time_ms) == ("q", "expired", NOW)


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "many_target_queues")
def test_a_message_is_done_with_when_all_target_queues_have_taken_it(
    vhost_once: VirtualHost, forwarding: Forwarding
) -> None:
    bind_once(vhost_once, "a", "b")
    posts = forwarding.send(held(1, 2), vhost_once, NOW)
    assert sent(posts) == {"a": "12", "b": "12"}
    assert confirm(forwarding, publish_to(posts, "b")) == []
    assert len(forwarding) == 2
    assert confirm(forwarding, publish_to(posts, "a")) == [1, 2]
    assert len(forwarding) == 0
    assert forwarding.deadline() is None


def test_what_is_not_confirmed_in_time_is_sent_again_to_who_did_not_confirm(
    vhost_once: VirtualHost, forwarding: Forwarding
) -> None:
    """After three minutes it goes with the same history to the queues that have not confirmed."""
    bind_once(vhost_once, "a", "b")
    posts = forwarding.send(held(1), vhost_once, NOW)
    confirm(forwarding, publish_to(posts, "a"))
    assert forwarding.deadline() == NOW + RETRY_MS
    assert forwarding.due(vhost_once, NOW + RETRY_MS - 1) == ([], [])
    again, done = forwarding.due(vhost_once, NOW + RETRY_MS)
    assert (sent(again), done) == ({"b": "1"}, [])
    assert publish_to(again, "b").messages == publish_to(posts, "b").messages
    assert forwarding.deadline() == NOW + 2 * RETRY_MS


def test_a_confirm_that_comes_late_counts(vhost_once: VirtualHost, forwarding: Forwarding) -> None:
    """It counts although the message was sent again; the second confirm changes nothing."""
    bind_once(vhost_once, "a")
    posts = forwarding.send(held(1), vhost_once, NOW)
    again, _ = forwarding.due(vhost_once, NOW + RETRY_MS)
    assert confirm(forwarding, publish_to(posts, "a")) == [1]
    assert confirm(forwarding, publish_to(again, "a")) == []


@pytest.mark.rabbitmq(
    "rabbit_fifo_dlx_integration_SUITE",
    "reject_publish_max_length_target_quorum_queue",
    "reject_publish_target_classic_queue",
)
def test_a_message_that_a_queue_refused_is_sent_again(
    vhost_once: VirtualHost, forwarding: Forwarding
) -> None:
    """The retry comes in its time; a confirm of another queue does not complete the message."""
    bind_once(vhost_once, "a", "b")
    posts = forwarding.send(held(1), vhost_once, NOW)
    reject(forwarding, publish_to(posts, "a"))
    assert confirm(forwarding, publish_to(posts, "b")) == []
    again, _ = forwarding.due(vhost_once, NOW + RETRY_MS)
    assert sent(again) == {"a": "1"}
    assert confirm(forwarding, publish_to(again, "a")) == [1]


@pytest.mark.rabbitmq(
    "rabbit_fifo_dlx_integration_SUITE", "target_queue_deleted", "target_quorum_queue_delete_create"
)
def test_a_target_queue_that_was_deleted_is_left_out_later(
    catalog: Catalog, vhost_once: VirtualHost, forwarding: Forwarding
) -> None:
    """The queue answers that it is gone; at the retry there is no route to it."""
    bind_once(vhost_once, "a", "b")
    posts = forwarding.send(held(1), vhost_once, NOW)
    remove(catalog, vhost_once, "a")
    gone = publish_to(posts, "a")
    forwarding.refused(Unconfirmed(gone.publisher, gone.ids, False, queue="a"))
    assert confirm(forwarding, publish_to(posts, "b")) == []
    assert forwarding.due(vhost_once, NOW + RETRY_MS) == ([], [1])
    assert len(forwarding) == 0


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "target_queue_not_bound")
def test_a_message_without_a_route_is_kept_and_tried_again(
    vhost_once: VirtualHost, forwarding: Forwarding
) -> None:
    assert forwarding.send(held(1), vhost_once, NOW) == []
    assert forwarding.unrouted == 1
    assert forwarding.due(vhost_once, NOW + RETRY_MS) == ([], [])
    bind_once(vhost_once, "a")
    again, _ = forwarding.due(vhost_once, NOW + 2 * RETRY_MS)
    assert (sent(again), forwarding.unrouted) == ({"a": "1"}, 0)
    assert confirm(forwarding, publish_to(again, "a")) == [1]


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "dlx_missing")
def test_a_missing_exchange_keeps_messages(vhost_once: VirtualHost) -> None:
    forwarding = Forwarding("q", DeadLetterTarget("later", None), new_reply_to("worker"))
    assert forwarding.send(held(1), vhost_once, NOW) == []
    assert forwarding.unrouted == 1
    topologies.declare_exchange(vhost_once.topology, "later", "fanout", durable=True)
    bind_once(vhost_once, "b", exchange="later")
    again, _ = forwarding.due(vhost_once, NOW + RETRY_MS)
    assert sent(again) == {"b": "1"}


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "cycle")
def test_an_automatic_cycle_keeps_messages(vhost_once: VirtualHost) -> None:
    """It counts as a missing route: no message is lost by a fault in the topology."""
    forwarding = Forwarding("a", DeadLetterTarget("", "a"), new_reply_to("worker"))
    assert forwarding.send(held(1), vhost_once, NOW) == []
    assert (forwarding.unrouted, len(forwarding)) == (1, 1)


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "many_target_queues")
def test_a_queue_that_took_a_message_does_not_get_it_again(
    vhost_once: VirtualHost, forwarding: Forwarding
) -> None:
    """This holds even if it was unbound when it confirmed, and is bound again."""
    bind_once(vhost_once, "a", "b")
    posts = forwarding.send(held(1), vhost_once, NOW)
    unbind(vhost_once, "a")
    forwarding.due(vhost_once, NOW + RETRY_MS)
    assert confirm(forwarding, publish_to(posts, "a")) == []
    bind_once(vhost_once, "a")
    again, _ = forwarding.due(vhost_once, NOW + 2 * RETRY_MS)
    assert sent(again) == {"b": "1"}


def test_another_destination_is_tried_at_once_for_what_nobody_has(vhost_once: VirtualHost) -> None:
    """A message that a queue has and has not confirmed waits for the confirm."""
    forwarding = Forwarding("q", DeadLetterTarget("none", None), new_reply_to("worker"))
    forwarding.send(held(1), vhost_once, NOW)
    forwarding.redirect(DeadLetterTarget("", "a"), NOW + 5)
    assert forwarding.deadline() == NOW + 5
    posts, _ = forwarding.due(vhost_once, NOW + 5)
    assert sent(posts) == {"a": "1"}
    forwarding.redirect(DeadLetterTarget("", "b"), NOW + 6)
    assert forwarding.deadline() == NOW + 5 + RETRY_MS


def make_routes() -> Routes:
    world = Harness()
    return Routes(world.vhost, Access(CatalogGrants(world.catalog.users, "guest"), "/"))


def test_what_repeats_is_remembered_for_each_route() -> None:
    """It is also remembered when a declaration makes the route be computed again."""
    routes = make_routes()
    one, two = routes.find("", "one"), routes.find("", "two")
    routes.remember(one, b"properties", b"head one")
    routes.remember(two, b"properties", b"head two")
    assert one.heads == {b"properties": b"head one"}
    routes.find("amq.direct", "")
    assert routes.find("", "two").heads == {b"properties": b"head two"}


def test_properties_that_never_repeat_take_no_more_room_on_many_routes() -> None:
    """A server replies under many keys, each message with an id of its own."""
    routes = make_routes()
    for number in range(10 * HEADS_MAX):
        route = routes.find("", f"key {number % 100}")
        routes.remember(route, b"%d" % number, b"head")
        assert route.heads[b"%d" % number] == b"head"
    assert sum(len(routes.find("", f"key {number}").heads) for number in range(100)) <= HEADS_MAX


def test_large_properties_are_not_remembered() -> None:
    """They would take more memory than they save."""
    routes = make_routes()
    route = routes.find("", "key")
    routes.remember(route, bytes(HEAD_BYTES_MAX + 1), b"head")
    assert route.heads == {}
