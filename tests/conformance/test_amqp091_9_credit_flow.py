"""AMQP 0-9-1, back-pressure: RabbitMQ's credit_flow from reader to channel to queue."""

from __future__ import annotations

import pytest

from amqp10broker.config import Config
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.sessions.amqp091 import publishing
from tests.support.channel_harness import ChannelEnds, ConnectionEnds, Harness, kinds


def stuck(config: Config | None = None) -> tuple[ConnectionEnds, ChannelEnds, ChannelEnds]:
    """Return a connection and two of its channels; queue q is stalled."""
    world = Harness(config)
    connection = world.connect()
    first, second = connection.channel(1), connection.channel(2)
    first.call(methods.QueueDeclare("q", durable=True))
    first.call(methods.QueueDeclare("free", durable=True))
    second.publish("free", b"x")
    assert kinds(second.say(methods.BasicGet("free"))) == ["BasicGetOk"]
    world.box("q").stalled = True
    return connection, first, second


def queued(connection: ConnectionEnds) -> int:
    return sum(len(each.messages) for each in connection.world.box("q").commands)  # type: ignore[union-attr]


@pytest.mark.rabbitmq("classic_queue_SUITE", "classic_queue_flow_control_enabled")
def test_a_queue_that_does_not_follow_stops_the_whole_connection() -> None:
    """After at most 400 + 400 messages nothing more is read, not even another channel's ack."""
    connection, first, second = stuck()
    one = first.content("q", b"x")
    for _ in range(100):
        first.say(one * 10)
    second.say(methods.BasicAck(1))
    assert 400 <= queued(connection) <= 800
    assert first.service.publishing.blocked
    assert [outlet.queue.name for outlet in first.service.publishing.held_by] == ["q"]
    assert connection.waiting
    assert second.service.consuming.unacked == 1
    connection.world.box("q").stalled = False
    connection.world.rest()
    assert second.service.consuming.unacked == 0
    assert connection.world.counts("q") == (1000, 0)
    assert not connection.waiting


def test_other_connections_go_on() -> None:
    connection, first, _ = stuck()
    first.say(first.content("q", b"x") * 1000)
    other = connection.world.channel()
    other.publish("free", b"y")
    assert connection.world.counts("free") == (1, 1)


def test_one_stuck_queue_stops_publishes_to_others() -> None:
    connection, first, second = stuck()
    first.say(first.content("q", b"x") * 1000)
    second.publish("free", b"y")
    assert connection.world.counts("free") == (0, 1)


def test_reader_gets_its_credit_back_in_portions() -> None:
    """It gets 200 back for every 200 handled messages."""
    world = Harness()
    channel = world.channel()
    channel.call(methods.QueueDeclare("q", durable=True))
    for count, credit in ((199, 201), (1, 400), (150, 250), (50, 400)):
        channel.publish("q", *[b"x"] * count)
        assert channel.credit.credit == credit


@pytest.mark.rabbitmq("unit_credit_flow_SUITE", "credit_flow_settings")
def test_the_numbers_can_be_tuned() -> None:
    connection, first, _ = stuck(Config(credit_flow_initial=10, credit_flow_more_after=5))
    for _ in range(100):
        first.say(first.content("q", b"x"))
    assert 10 <= queued(connection) <= 20
    connection.world.box("q").stalled = False
    connection.world.rest()
    assert connection.world.counts("q") == (100, 0)


@pytest.mark.rabbitmq("unit_credit_flow_SUITE", "credit_flow_settings")
def test_initial_and_portion_may_be_equal() -> None:
    """There is no deadlock when one portion is the whole credit."""
    connection, first, _ = stuck(Config(credit_flow_initial=1, credit_flow_more_after=1))
    first.say(first.content("q", b"x") * 20)
    connection.world.box("q").stalled = False
    connection.world.rest()
    assert connection.world.counts("q") == (20, 0)


def test_confirm_mode_is_held_up_likewise() -> None:
    connection, first, _ = stuck()
    first.call(methods.ConfirmSelect())
    assert first.say(first.content("q", b"x") * 1000) == []
    connection.world.box("q").stalled = False
    connection.world.rest()
    (*_, last) = first.take()
    assert last == methods.BasicAck(1000, last.multiple)  # type: ignore[union-attr]


def test_a_deleted_queue_holds_nobody_up() -> None:
    connection, first, _ = stuck()
    other = connection.world.channel()
    other.send(methods.QueueDelete("q", if_unused=True))  # the queue decides, and is there until it has
    connection.world.rest()
    first.say(first.content("q", b"x") * 2000)
    connection.world.box("q").stalled = False
    connection.world.rest()
    assert not connection.waiting
    assert not first.service.publishing.blocked


def test_messages_that_go_nowhere_cost_no_queue_credit() -> None:
    world = Harness()
    channel = world.channel()
    channel.publish("nowhere", *[b"x"] * 3000)
    assert not channel.connection.waiting


def test_a_queue_s_credit_is_counted_per_message_and_queue() -> None:
    """A fanout to a fast and a stuck queue is held up by the stuck one."""
    connection, first, _ = stuck()
    for name in ("q", "free"):
        assert first.call(methods.QueueBind(name, "amq.fanout", "")) == methods.QueueBindOk()
    first.say(first.content("", b"x", "amq.fanout") * 1000)
    assert [outlet.queue.name for outlet in first.service.publishing.held_by] == ["q"]
    assert 400 <= queued(connection) <= 800


def test_a_fan_out_looks_through_the_queues_it_goes_to_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond OUTLETS_MAX queues, each queue would otherwise be looked at once per queue."""
    looks = 0

    class Counted(publishing.QueueOutlet):
        __slots__ = ("_outstanding",)

        @property
        def outstanding(self) -> int:
            nonlocal looks
            looks += 1
            return self._outstanding

        @outstanding.setter
        def outstanding(self, outstanding: int) -> None:
            self._outstanding = outstanding

    monkeypatch.setattr(publishing, "QueueOutlet", Counted)
    monkeypatch.setattr(publishing, "OUTLETS_MAX", 16)
    queues = 200
    world = Harness()
    channel = world.channel()
    for number in range(queues):
        name = f"q{number}"
        channel.call(methods.QueueDeclare(name, durable=True))
        assert channel.call(methods.QueueBind(name, "amq.fanout", "")) == methods.QueueBindOk()
    channel.publish("", b"x", exchange="amq.fanout")
    assert all(world.counts(f"q{number}") == (1, 0) for number in range(queues))
    assert queues <= looks < 8 * queues
