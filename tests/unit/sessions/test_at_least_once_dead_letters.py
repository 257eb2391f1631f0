"""Dead-lettering at least once: who is outstanding, what is sent again, and when a message is done with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.queues.commands import Confirmed, Publish, PublishRejected, Unconfirmed
from amqp10broker.routing.registry import Binding, Destination
from amqp10broker.sessions.routes import RETRY_MS, DeadLetterTarget, Forwarding, Post
from tests.support import topologies
from tests.support.askers import new_asker
from tests.support.dead_lettered import deaths_of
from tests.support.dead_letters import held
from tests.support.declaring import declare, remove
from tests.unit.metadata.conftest import Host

NOW = 1_700_000_000_000


@pytest.fixture
def catalog() -> Catalog:
    return Catalog(Host().start_queue)


@pytest.fixture
def vhost(catalog: Catalog) -> VirtualHost:
    """With the queues a and b, and the exchange dlx, from which nothing is bound."""
    vhost = catalog.lookup_vhost("/")
    for name in "ab":
        declare(catalog, vhost, name)
    topologies.declare_exchange(vhost.topology, "dlx", "fanout", durable=True)
    return vhost


@pytest.fixture
def forwarding() -> Forwarding:
    return Forwarding("q", DeadLetterTarget("dlx", None), new_asker("worker"))


def bind(vhost: VirtualHost, *queues: str, exchange: str = "dlx") -> None:
    for queue in queues:
        topologies.bind(vhost.topology, Binding(exchange, Destination("queue", queue)))


def unbind(vhost: VirtualHost, queue: str) -> None:
    topologies.unbind(vhost.topology, Binding("dlx", Destination("queue", queue)))


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
    vhost: VirtualHost, forwarding: Forwarding
) -> None:
    """The record says when the queue handed it out."""
    bind(vhost, "a")
    publish = publish_to(forwarding.send(held(1), vhost, NOW), "a")
    assert not publish.settled
    (death,) = deaths_of(publish.messages[0][0])
    assert (death.queue, death.reason, death.last_time_ms) == ("q", "expired", NOW)


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "many_target_queues")
def test_a_message_is_done_with_when_all_target_queues_have_taken_it(
    vhost: VirtualHost, forwarding: Forwarding
) -> None:
    bind(vhost, "a", "b")
    posts = forwarding.send(held(1, 2), vhost, NOW)
    assert sent(posts) == {"a": "12", "b": "12"}
    assert confirm(forwarding, publish_to(posts, "b")) == []
    assert len(forwarding) == 2
    assert confirm(forwarding, publish_to(posts, "a")) == [1, 2]
    assert len(forwarding) == 0
    assert forwarding.deadline() is None


def test_what_is_not_confirmed_in_time_is_sent_again_to_who_did_not_confirm(
    vhost: VirtualHost, forwarding: Forwarding
) -> None:
    """After three minutes, with the same history; to the queues that confirmed not."""
    bind(vhost, "a", "b")
    posts = forwarding.send(held(1), vhost, NOW)
    confirm(forwarding, publish_to(posts, "a"))
    assert forwarding.deadline() == NOW + RETRY_MS
    assert forwarding.due(vhost, NOW + RETRY_MS - 1) == ([], [])
    again, done = forwarding.due(vhost, NOW + RETRY_MS)
    assert (sent(again), done) == ({"b": "1"}, [])
    assert publish_to(again, "b").messages == publish_to(posts, "b").messages
    assert forwarding.deadline() == NOW + 2 * RETRY_MS


def test_a_confirm_that_comes_late_counts(vhost: VirtualHost, forwarding: Forwarding) -> None:
    """Although the message was sent again meanwhile; the second confirm changes nothing."""
    bind(vhost, "a")
    posts = forwarding.send(held(1), vhost, NOW)
    again, _ = forwarding.due(vhost, NOW + RETRY_MS)
    assert confirm(forwarding, publish_to(posts, "a")) == [1]
    assert confirm(forwarding, publish_to(again, "a")) == []


@pytest.mark.rabbitmq(
    "rabbit_fifo_dlx_integration_SUITE",
    "reject_publish_max_length_target_quorum_queue",
    "reject_publish_target_classic_queue",
)
def test_a_message_that_a_queue_refused_is_sent_again(vhost: VirtualHost, forwarding: Forwarding) -> None:
    """When it is time; that another queue took it does not make it done with."""
    bind(vhost, "a", "b")
    posts = forwarding.send(held(1), vhost, NOW)
    reject(forwarding, publish_to(posts, "a"))
    assert confirm(forwarding, publish_to(posts, "b")) == []
    again, _ = forwarding.due(vhost, NOW + RETRY_MS)
    assert sent(again) == {"a": "1"}
    assert confirm(forwarding, publish_to(again, "a")) == [1]


@pytest.mark.rabbitmq(
    "rabbit_fifo_dlx_integration_SUITE", "target_queue_deleted", "target_quorum_queue_delete_create"
)
def test_a_target_queue_that_was_deleted_is_left_out_later(
    catalog: Catalog, vhost: VirtualHost, forwarding: Forwarding
) -> None:
    """It answers that it is gone; when it is time there is no route to it any more."""
    bind(vhost, "a", "b")
    posts = forwarding.send(held(1), vhost, NOW)
    remove(catalog, vhost, "a")
    gone = publish_to(posts, "a")
    forwarding.refused(Unconfirmed(gone.publisher, gone.ids, False, queue="a"))
    assert confirm(forwarding, publish_to(posts, "b")) == []
    assert forwarding.due(vhost, NOW + RETRY_MS) == ([], [1])
    assert len(forwarding) == 0


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "target_queue_not_bound")
def test_a_message_without_a_route_is_kept_and_tried_again(
    vhost: VirtualHost, forwarding: Forwarding
) -> None:
    assert forwarding.send(held(1), vhost, NOW) == []
    assert forwarding.unrouted == 1
    assert forwarding.due(vhost, NOW + RETRY_MS) == ([], [])
    bind(vhost, "a")
    again, _ = forwarding.due(vhost, NOW + 2 * RETRY_MS)
    assert (sent(again), forwarding.unrouted) == ({"a": "1"}, 0)
    assert confirm(forwarding, publish_to(again, "a")) == [1]


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "dlx_missing")
def test_a_missing_exchange_keeps_messages(vhost: VirtualHost) -> None:
    forwarding = Forwarding("q", DeadLetterTarget("later", None), new_asker("worker"))
    assert forwarding.send(held(1), vhost, NOW) == []
    assert forwarding.unrouted == 1
    topologies.declare_exchange(vhost.topology, "later", "fanout", durable=True)
    bind(vhost, "b", exchange="later")
    again, _ = forwarding.due(vhost, NOW + RETRY_MS)
    assert sent(again) == {"b": "1"}


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "cycle")
def test_an_automatic_cycle_keeps_messages(vhost: VirtualHost) -> None:
    """As one without a route: nothing is lost by a fault in the topology."""
    forwarding = Forwarding("a", DeadLetterTarget("", "a"), new_asker("worker"))
    assert forwarding.send(held(1), vhost, NOW) == []
    assert (forwarding.unrouted, len(forwarding)) == (1, 1)


@pytest.mark.rabbitmq(
    "rabbit_fifo_dlx_integration_SUITE", "target_queue_deleted", "target_quorum_queue_delete_create"
)
def test_queues_that_are_bound_later_get_what_is_sent_again(
    vhost: VirtualHost, forwarding: Forwarding
) -> None:
    """Routes are looked up each time; who is not bound any more is not waited for."""
    bind(vhost, "a")
    forwarding.send(held(1), vhost, NOW)
    bind(vhost, "b")
    unbind(vhost, "a")
    again, _ = forwarding.due(vhost, NOW + RETRY_MS)
    assert sent(again) == {"b": "1"}
    assert confirm(forwarding, publish_to(again, "b")) == [1]


@pytest.mark.rabbitmq("rabbit_fifo_dlx_integration_SUITE", "many_target_queues")
def test_a_queue_that_took_a_message_does_not_get_it_again(
    vhost: VirtualHost, forwarding: Forwarding
) -> None:
    """Not even if it was unbound when it said so, and is bound again."""
    bind(vhost, "a", "b")
    posts = forwarding.send(held(1), vhost, NOW)
    unbind(vhost, "a")
    forwarding.due(vhost, NOW + RETRY_MS)
    assert confirm(forwarding, publish_to(posts, "a")) == []
    bind(vhost, "a")
    again, _ = forwarding.due(vhost, NOW + 2 * RETRY_MS)
    assert sent(again) == {"b": "1"}


def test_another_destination_is_tried_at_once_for_what_nobody_has(vhost: VirtualHost) -> None:
    """What a queue has and has not answered waits for its answer."""
    forwarding = Forwarding("q", DeadLetterTarget("none", None), new_asker("worker"))
    forwarding.send(held(1), vhost, NOW)
    forwarding.redirect(DeadLetterTarget("", "a"), NOW + 5)
    assert forwarding.deadline() == NOW + 5
    posts, _ = forwarding.due(vhost, NOW + 5)
    assert sent(posts) == {"a": "1"}
    forwarding.redirect(DeadLetterTarget("", "b"), NOW + 6)
    assert forwarding.deadline() == NOW + 5 + RETRY_MS
