"""Cases of RabbitMQ's AMQP 0-9-1 suites that no other test has.

`make docs` writes a page with the test of each case.
"""

from __future__ import annotations

from itertools import product

import pytest

from amqp10broker.errors import LimitExceeded
from amqp10broker.metadata.limits import VhostLimits
from amqp10broker.metadata.users import Permission
from amqp10broker.protocols.amqp091.items import Content
from amqp10broker.protocols.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicReturn,
    ConfirmSelect,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
)
from amqp10broker.queues.commands import DELETE
from tests.support.channel_world import (
    World,
    WorldChannel,
    bodies,
    contents,
    properties_of,
    redelivered,
    tags,
)
from tests.support.declaring import add_vhost, change_vhost, declare, remove, set_permission

NAMES = [b"1", b"2", b"3", b"4"]


@pytest.fixture
def channel() -> WorldChannel:
    """A channel in a world with queue q."""
    channel = World().channel()
    channel.call(QueueDeclare("q", durable=True))
    return channel


@pytest.mark.rabbitmq("queue_parallel_SUITE", "consume_first_empty", "consume_from_empty_queue")
def test_get_before_and_after_a_publish(channel: WorldChannel) -> None:
    """consume_first_empty: get-empty, and the message when there is one."""
    assert channel.call(BasicGet("q")) == BasicGetEmpty()
    channel.publish("q", b"m")
    got = channel.call(BasicGet("q"))
    assert not isinstance(got, BasicGetEmpty)


@pytest.mark.rabbitmq("amqpl_consumer_ack_SUITE", "requeue_one_channel_classic_queue")
@pytest.mark.rabbitmq("queue_parallel_SUITE", "subscribe_and_requeue_multiple_nack")
def test_three_of_four_are_requeued_in_order(channel: WorldChannel) -> None:
    """requeue_one_channel: nack multiple of the first three; they come again, in order and redelivered."""
    channel.publish("q", *NAMES)
    got = channel.consume("q")
    assert tags(got) == [1, 2, 3, 4]
    again = channel.say(BasicNack(3, multiple=True, requeue=True))
    assert (bodies(again), tags(again)) == ([b"1", b"2", b"3"], [5, 6, 7])
    assert redelivered(again) == [True] * 3
    assert channel.say(BasicAck(0, multiple=True)) == []
    assert channel.world.counts("q") == (0, 0)


@pytest.mark.rabbitmq("amqpl_consumer_ack_SUITE", "requeue_two_channels_classic_queue")
def test_the_other_channel_gets_what_a_closed_one_held(channel: WorldChannel) -> None:
    """requeue_two_channels: two consumers take turns; when one's channel ends, its two go to the other."""
    other = channel.connection.channel(2)
    channel.consume("q")
    other.consume("q")
    mine = bodies(channel.publish("q", *NAMES))
    theirs = bodies(other.take())
    assert sorted(mine + theirs) == NAMES
    assert len(mine) == 2
    channel.stop()
    channel.world.rest()
    got = other.take()
    assert bodies(got) == mine
    assert redelivered(got) == [True, True]


@pytest.mark.rabbitmq("amqp_auth_SUITE", "passive_exchange_declare", "passive_queue_declare")
@pytest.mark.rabbitmq(
    "passive_declare_permission_SUITE",
    "enumerate_all_subsets_exchange",
    "enumerate_all_subsets_queue",
    "prop_passive_exchange_declare_iff_any_perm",
    "prop_passive_queue_declare_iff_any_perm",
)
@pytest.mark.parametrize("kind", ["queue", "exchange"])
@pytest.mark.parametrize("granted", list(product([False, True], repeat=3)))
def test_a_passive_declaration_needs_any_permission(
    channel: WorldChannel, kind: str, granted: tuple[bool, bool, bool]
) -> None:
    """enumerate_all_subsets: of the eight sets of permissions, the empty one only is refused."""
    channel.call(ExchangeDeclare("e", "direct"))
    configure, write, read = (".*" if each else "^$" for each in granted)
    set_permission(channel.world.catalog, "guest", "/", Permission(configure, write, read))
    if kind == "queue":
        method: QueueDeclare | ExchangeDeclare = QueueDeclare("q", passive=True)
        answer: QueueDeclareOk | ExchangeDeclareOk = QueueDeclareOk("q", 0, 0)
    else:
        method, answer = ExchangeDeclare("e", passive=True), ExchangeDeclareOk()
    if any(granted):
        assert channel.call(method) == answer
    else:
        assert channel.refused(method)[0] == 403


@pytest.mark.rabbitmq("rabbit_exchange_type_modulus_hash_SUITE", "routed_to_zero_queue_test")
@pytest.mark.rabbitmq("rabbit_local_random_exchange_SUITE", "no_route")
@pytest.mark.parametrize("kind", ["x-local-random", "x-modulus-hash", "x-consistent-hash"])
def test_an_exchange_that_chooses_has_nothing_to_choose_from(channel: WorldChannel, kind: str) -> None:
    """no_route: without bindings a mandatory message comes back."""
    channel.call(ExchangeDeclare("e", kind))
    got = channel.publish("k", b"m", exchange="e", mandatory=True)
    assert len(contents(got, BasicReturn)) == 1


@pytest.mark.rabbitmq(
    "rabbit_exchange_type_modulus_hash_SUITE", "routed_to_many_queue_test", "routed_to_one_queue_test"
)
@pytest.mark.rabbitmq("rabbit_local_random_exchange_SUITE", "routed_to_one_local_queue_test")
@pytest.mark.parametrize("queues", [1, 3])
@pytest.mark.parametrize(
    ("kind", "key"), [("x-local-random", ""), ("x-modulus-hash", ""), ("x-consistent-hash", "1")]
)
def test_an_exchange_that_chooses_takes_one_queue(
    channel: WorldChannel, kind: str, key: str, queues: int
) -> None:
    """routed_to_one: every message is in exactly one of the queues."""
    channel.call(ExchangeDeclare("e", kind))
    for number in range(queues):
        channel.call(QueueDeclare(f"q{number}", durable=True))
        channel.call(QueueBind(f"q{number}", "e", key))
    for number in range(20):
        channel.publish(f"key {number}", b"m", exchange="e")
    assert sum(channel.world.counts(f"q{number}")[0] for number in range(queues)) == 20


@pytest.mark.rabbitmq(
    "per_vhost_queue_limit_SUITE",
    "single_node_single_vhost_limit",
    "single_node_single_vhost_limit_with_redeclaration",
)
@pytest.mark.parametrize("exclusive", [False, True])
def test_at_the_limit_of_queues_only_redeclaring_is_left(channel: WorldChannel, exclusive: bool) -> None:
    """limit_with_redeclaration: what is there may be declared again, any other queue is refused."""
    channel.call(QueueDeclare("r", durable=not exclusive, exclusive=exclusive))
    change_vhost(channel.world.catalog, "/", limits=VhostLimits(max_queues=2))
    for _ in range(2):
        answer = channel.call(QueueDeclare("r", durable=not exclusive, exclusive=exclusive))
        assert answer == QueueDeclareOk("r", 0, 0)
    refused = channel.refused(QueueDeclare("", exclusive=True))
    assert refused[0] == 406
    assert refused[1].endswith("queue limit in vhost '/' (2) is reached")


@pytest.mark.rabbitmq("queue_parallel_SUITE", "subscribe", "subscribe_consumers")
def test_a_consumer_that_comes_first_gets_messages_at_once(channel: WorldChannel) -> None:
    """subscribe: three consumers of one channel; a message goes to one of them."""
    for tag in ("a", "b", "c"):
        channel.say(BasicConsume("q", tag))
    got = [channel.publish("q", body) for body in NAMES[:3]]
    assert [bodies(each) for each in got] == [[b"1"], [b"2"], [b"3"]]


@pytest.mark.rabbitmq("amqpl_consumer_ack_SUITE", "requeue_two_channels_classic_queue")
@pytest.mark.parametrize("consumers", [2, 3, 8])
def test_a_backlog_is_shared_out_evenly(channel: WorldChannel, consumers: int) -> None:
    """requeue_two_channels: consumers without a limit of their own take turns, whatever the batches are."""
    others = [channel.connection.channel(number + 2) for number in range(consumers)]
    for each in others:
        each.consume("q")
    channel.publish("q", *(f"{number}".encode() for number in range(12 * consumers)))
    assert [len(bodies(each.take())) for each in others] == [12] * consumers


@pytest.mark.rabbitmq("per_vhost_queue_limit_SUITE", "single_node_multiple_vhosts_queue_count")
def test_queues_are_counted_in_each_virtual_host(channel: WorldChannel) -> None:
    """single_node_multiple_vhosts_queue_count: a virtual host at its limit leaves the others alone."""
    other = add_vhost(channel.world.catalog, "other", limits=VhostLimits(max_queues=1))
    declare(channel.world.catalog, other, "q")
    with pytest.raises(LimitExceeded, match="queue limit in vhost 'other' \\(1\\) is reached"):
        declare(channel.world.catalog, other, "r")
    assert channel.call(QueueDeclare("r", durable=True)) == QueueDeclareOk("r", 0, 0)
    remove(channel.world.catalog, other, "q")
    declare(channel.world.catalog, other, "r")


def fail(channel: WorldChannel, name: str) -> None:
    """A queue ends because of a fault, in front of what waits for it."""
    box = channel.world.box(name)
    box.queue.failed = True
    box.queue.apply(DELETE, 0)
    box.stalled = False


@pytest.mark.rabbitmq("confirms_rejects_SUITE", "dead_queue_rejects")
@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "confirm_nack")
def test_a_queue_that_failed_rejects(channel: WorldChannel) -> None:
    """dead_queue_rejects: what it had not taken is nacked."""
    channel.call(ConfirmSelect())
    assert channel.publish("q", b"1") == [BasicAck(1, False)]
    channel.world.box("q").stalled = True
    assert channel.publish("q", b"2") == []
    fail(channel, "q")
    channel.world.rest()
    assert channel.take() == [BasicNack(2, False, False)]


@pytest.mark.rabbitmq("confirms_rejects_SUITE", "mixed_dead_alive_queues_reject")
def test_one_queue_of_several_that_failed_rejects(channel: WorldChannel) -> None:
    """mixed_dead_alive_queues_reject: the others have the message, and the publisher hears nack."""
    channel.call(QueueDeclare("r", durable=True))
    for name in ("q", "r"):
        channel.call(QueueBind(name, "amq.fanout"))
    channel.call(ConfirmSelect())
    channel.world.box("q").stalled = True
    assert channel.publish("", b"m", exchange="amq.fanout") == []
    fail(channel, "q")
    channel.world.rest()
    assert channel.take() == [BasicNack(1, False, False)]
    assert channel.world.counts("r") == (1, 0)


@pytest.mark.rabbitmq(
    "rabbit_volatile_queue_SUITE",
    "forged_suffixes_one_pid_cast_once_correlation",
    "forged_suffixes_one_pid_cast_once_no_correlation",
)
def test_forged_addresses_of_a_requester_reach_nobody(channel: WorldChannel) -> None:
    """forged_suffixes: one message with the address and others made from it in CC arrives once."""
    channel.say(BasicConsume("amq.rabbitmq.reply-to", "r", no_ack=True))
    channel.publish("q", b"question", reply_to="amq.rabbitmq.reply-to")
    server = channel.world.channel()
    asked = server.call(BasicGet("q", no_ack=True))
    assert isinstance(asked, Content)
    address = properties_of(asked).reply_to
    assert address is not None
    forged = [f"{address}.x", f"{address}x", address[:-1]]
    server.publish(address, b"answer", headers={"CC": [address, *forged]})
    assert bodies(channel.take()) == [b"answer"]
    for each in forged:
        server.publish(each, b"forged")
    assert channel.take() == []
