"""Cases of RabbitMQ's AMQP 0-9-1 suites that no other test has.

`make docs` writes a page with the test of each case.
"""

from __future__ import annotations

from itertools import product

import pytest

from amqp10broker.metadata.users import Permission
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.queues.commands import DELETE
from tests.support.channel_harness import ChannelEnds, Harness, bodies, contents, properties_of
from tests.support.declaring import set_permission


@pytest.fixture
def channel() -> ChannelEnds:
    channel = Harness().channel()
    channel.call(methods.QueueDeclare("q", durable=True))
    return channel


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
    channel: ChannelEnds, kind: str, granted: tuple[bool, bool, bool]
) -> None:
    """Of the eight sets of permissions, the empty one only is refused."""
    channel.call(methods.ExchangeDeclare("e", "direct"))
    configure, write, read = (".*" if each else "^$" for each in granted)
    set_permission(channel.world.catalog, "guest", "/", Permission(configure, write, read))
    if kind == "queue":
        method: methods.QueueDeclare | methods.ExchangeDeclare = methods.QueueDeclare("q", passive=True)
        answer: methods.QueueDeclareOk | methods.ExchangeDeclareOk = methods.QueueDeclareOk("q", 0, 0)
    else:
        method, answer = methods.ExchangeDeclare("e", passive=True), methods.ExchangeDeclareOk()
    if any(granted):
        assert channel.call(method) == answer
    else:
        assert channel.refused(method)[0] == 403


@pytest.mark.rabbitmq("rabbit_exchange_type_modulus_hash_SUITE", "routed_to_zero_queue_test")
@pytest.mark.rabbitmq("rabbit_local_random_exchange_SUITE", "no_route")
@pytest.mark.parametrize("kind", ["x-local-random", "x-modulus-hash", "x-consistent-hash"])
def test_an_exchange_that_chooses_has_nothing_to_choose_from(channel: ChannelEnds, kind: str) -> None:
    channel.call(methods.ExchangeDeclare("e", kind))
    got = channel.publish("k", b"m", exchange="e", mandatory=True)
    assert len(contents(got, methods.BasicReturn)) == 1


@pytest.mark.rabbitmq(
    "rabbit_exchange_type_modulus_hash_SUITE", "routed_to_many_queue_test", "routed_to_one_queue_test"
)
@pytest.mark.rabbitmq("rabbit_local_random_exchange_SUITE", "routed_to_one_local_queue_test")
@pytest.mark.parametrize("queues", [1, 3])
@pytest.mark.parametrize(
    ("kind", "key"), [("x-local-random", ""), ("x-modulus-hash", ""), ("x-consistent-hash", "1")]
)
def test_an_exchange_that_chooses_takes_one_queue(
    channel: ChannelEnds, kind: str, key: str, queues: int
) -> None:
    channel.call(methods.ExchangeDeclare("e", kind))
    for number in range(queues):
        channel.call(methods.QueueDeclare(f"q{number}", durable=True))
        channel.call(methods.QueueBind(f"q{number}", "e", key))
    for number in range(20):
        channel.publish(f"key {number}", b"m", exchange="e")
    assert sum(channel.world.counts(f"q{number}")[0] for number in range(queues)) == 20


@pytest.mark.rabbitmq("amqpl_consumer_ack_SUITE", "requeue_two_channels_classic_queue")
@pytest.mark.parametrize("consumers", [2, 3, 8])
def test_a_backlog_is_shared_out_evenly(channel: ChannelEnds, consumers: int) -> None:
    """Consumers without a prefetch take turns, whatever the batches are."""
    others = [channel.connection.channel(number + 2) for number in range(consumers)]
    for each in others:
        each.consume("q")
    channel.publish("q", *(f"{number}".encode() for number in range(12 * consumers)))
    assert [len(bodies(each.take())) for each in others] == [12] * consumers


def fail(channel: ChannelEnds, name: str) -> None:
    """End a queue by a fault before it handles its pending commands."""
    box = channel.world.box(name)
    box.queue.failed = True
    box.queue.apply(DELETE, 0)
    box.stalled = False


@pytest.mark.rabbitmq("confirms_rejects_SUITE", "dead_queue_rejects")
@pytest.mark.rabbitmq("publisher_confirms_parallel_SUITE", "confirm_nack")
def test_a_queue_that_failed_rejects(channel: ChannelEnds) -> None:
    channel.call(methods.ConfirmSelect())
    assert channel.publish("q", b"1") == [methods.BasicAck(1, False)]
    channel.world.box("q").stalled = True
    assert channel.publish("q", b"2") == []
    fail(channel, "q")
    channel.world.rest()
    assert channel.take() == [methods.BasicNack(2, False, False)]


@pytest.mark.rabbitmq("confirms_rejects_SUITE", "mixed_dead_alive_queues_reject")
def test_one_queue_of_several_that_failed_rejects(channel: ChannelEnds) -> None:
    channel.call(methods.QueueDeclare("r", durable=True))
    for name in ("q", "r"):
        channel.call(methods.QueueBind(name, "amq.fanout"))
    channel.call(methods.ConfirmSelect())
    channel.world.box("q").stalled = True
    assert channel.publish("", b"m", exchange="amq.fanout") == []
    fail(channel, "q")
    channel.world.rest()
    assert channel.take() == [methods.BasicNack(1, False, False)]
    assert channel.world.counts("r") == (1, 0)


@pytest.mark.rabbitmq(
    "rabbit_volatile_queue_SUITE",
    "forged_suffixes_one_pid_cast_once_correlation",
    "forged_suffixes_one_pid_cast_once_no_correlation",
)
def test_forged_addresses_of_a_requester_reach_nobody(channel: ChannelEnds) -> None:
    """One message with the address and others made from it in CC arrives once."""
    channel.say(methods.BasicConsume("amq.rabbitmq.reply-to", "r", no_ack=True))
    channel.publish("q", b"question", reply_to="amq.rabbitmq.reply-to")
    server = channel.world.channel()
    asked = server.call(methods.BasicGet("q", no_ack=True))
    assert isinstance(asked, Content)
    address = properties_of(asked).reply_to
    forged = [f"{address}.x", f"{address}x", address[:-1]]
    server.publish(address, b"answer", headers={"CC": [address, *forged]})
    assert bodies(channel.take()) == [b"answer"]
    for each in forged:
        server.publish(each, b"forged")
    assert channel.take() == []
