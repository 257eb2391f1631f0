"""A door waits for what is decided later, and handles nothing of what its client sent behind it."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import Unavailable
from amqp10broker.protocols.amqp091.errors import AmqpHardError
from amqp10broker.protocols.amqp091.methods import (
    ChannelClose,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from amqp10broker.protocols.amqp10.performatives import Attach, Detach, Source, Target
from amqp10broker.queues.commands import DELETE
from tests.support.channel_world import World, WorldChannel
from tests.support.declaring import declare
from tests.support.later import Slow
from tests.unit.sessions.test_management import RESPONSES, Peer, attach

TIMEOUT = Unavailable("binding", "Could not add binding due to timeout")


@pytest.fixture
def channel() -> WorldChannel:
    return World().channel()


def slow_channel(channel: WorldChannel) -> Slow:
    slow = Slow(channel.world.catalog)
    channel.service.context.propose = slow
    return slow


def decide(channel: WorldChannel, slow: Slow) -> list[object]:
    """Let what waits longest be decided; what the client gets."""
    channel.service.on_decided(slow.decide())
    channel.wake()
    channel.world.rest()
    return list(channel.take())


def test_a_channel_waits_for_each_change_in_turn(channel: WorldChannel) -> None:
    """What is bound behind a declaration finds the queue, also when all of it came in one write."""
    slow = slow_channel(channel)
    methods = (
        ExchangeDeclare("x", "fanout"),
        QueueDeclare("q", durable=True),
        QueueBind("q", "x", ""),
        channel.content("q", b"behind"),
    )
    assert channel.say(*methods) == []
    assert len(slow.proposed) == 1
    assert decide(channel, slow) == [ExchangeDeclareOk()]
    assert decide(channel, slow) == [QueueDeclareOk("q", 0, 0)]
    assert channel.world.vhost.lookup("q").handle.ready == 0
    assert decide(channel, slow) == [QueueBindOk()]
    assert channel.world.vhost.lookup("q").handle.ready == 1
    assert not slow.proposed


def test_a_refusal_that_comes_later_closes_the_channel(channel: WorldChannel) -> None:
    """With the words, and the method that it answers."""
    slow = slow_channel(channel)
    assert channel.say(QueueBind("nothing", "amq.fanout", "")) == []
    [closed] = decide(channel, slow)
    assert isinstance(closed, ChannelClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (404, 50, 20)
    assert "no queue 'nothing' in vhost '/'" in closed.reply_text


@pytest.mark.parametrize(
    "method",
    [QueueDeclare("q", durable=True), ExchangeDeclare("x", "fanout"), QueueBind("old", "amq.fanout", "")],
)
def test_without_a_majority_the_connection_is_closed_with_541(channel: WorldChannel, method: Any) -> None:
    """M5; nothing of it is there."""
    declare(channel.world.catalog, channel.world.vhost, "old")
    slow = slow_channel(channel)
    assert channel.say(method) == []
    with pytest.raises(AmqpHardError, match="due to timeout") as raised:
        channel.service.on_decided(slow.refuse(TIMEOUT))
    assert raised.value.code == 541


def test_without_a_majority_management_answers_500_and_a_link_is_refused() -> None:
    """M5; for an attach that must declare its queue it is amqp:internal-error."""
    peer = Peer().attach_pair()
    slow = Slow(peer.broker.catalog)
    peer.service.context.propose = slow
    peer.send(peer.request("PUT", "/queues/q", {}))
    peer.service.on_decided(slow.refuse(TIMEOUT))
    peer.settle()
    assert [status for status, _ in peer.responses] == ["500"]
    peer.send(Attach(name="dynamic", handle=5, role=True, source=Source(dynamic=True), target=Target()))
    peer.service.on_decided(slow.refuse(TIMEOUT))
    assert any("DETACH" in line and "amqp:internal-error" in line for line in peer.settle())


def test_what_is_decided_for_a_channel_that_was_closed_is_nobodys(channel: WorldChannel) -> None:
    """It is applied all the same: the client cannot know."""
    slow = slow_channel(channel)
    channel.say(QueueDeclare("q", durable=True))
    late = slow.decide()
    channel.service.close()
    channel.service.on_decided(late)
    assert channel.world.vhost.find("q") is not None


def test_management_waits_for_each_change_in_turn() -> None:
    """Responses come in the order of requests; one that is refused does not keep those behind it."""
    peer = Peer().attach_pair()
    slow = Slow(peer.broker.catalog)
    peer.service.context.propose = slow
    binding = {"source": "amq.fanout", "destination_queue": "q", "binding_key": "", "arguments": {}}
    peer.send(
        peer.request("PUT", "/queues/q", {}),
        peer.request("PUT", "/queues/q", {"durable": False}),
        peer.request("POST", "/bindings", binding),
        peer.request("GET", "/queues/q"),
    )
    assert peer.responses == []
    seen = []
    while slow.proposed:
        assert len(slow.proposed) == 1
        peer.service.on_decided(slow.decide())
        peer.settle()
        seen.append([status for status, _ in peer.responses])
    assert seen == [["201"], ["201", "409"], ["201", "409", "204", "200"]]
    assert len(peer.broker.vhost.topology.bindings()) == 1


def test_an_attach_finds_what_a_request_before_it_declares() -> None:
    """Also when that is not decided yet; an attach to what is there is answered at once."""
    peer = Peer().attach_pair()
    declare(peer.broker.catalog, peer.broker.vhost, "old")
    slow = Slow(peer.broker.catalog)
    peer.service.context.propose = slow
    links = [
        Attach(name=name, handle=handle, role=True, source=Source(address=f"/queues/{name}"), target=Target())
        for handle, name in enumerate(("new", "none", "old"), 2)
    ]
    came = peer.send(peer.request("PUT", "/queues/new", {}), *links)
    assert [line.split()[1] for line in came if "ATTACH" in line] == ["name=old"]
    peer.service.on_decided(slow.decide())
    came = peer.settle()
    assert [line.split()[1] for line in came if "ATTACH" in line] == ["name=new", "name=none"]
    assert [line.split()[1] for line in came if "DETACH" in line] == ["h=3"]


def test_what_is_held_for_an_attach_goes_on_when_its_queue_ends_behind_a_response() -> None:
    """The attach waits for the word of a queue that is gone, and is refused behind the response to another
    request: the client attaches the name anew, and sends nothing more."""
    peer = Peer().attach_pair()
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    queue, _ = declare(peer.broker.catalog, peer.broker.vhost, "q", arguments=arguments)
    queue.handle.post(DELETE)
    declare(peer.broker.catalog, peer.broker.vhost, "old")
    links = [
        Attach(name="a", handle=2, role=True, source=Source(address=f"/queues/{name}"), target=Target())
        for name in ("q", "old")
    ]
    came = peer.send(peer.request("GET", "/queues/old"), links[0], Detach(handle=2, closed=True), links[1])
    assert [line.split()[0] for line in came] == ["response", "ATTACH", "DETACH", "ATTACH"]
    assert "source=/queues/old" in came[-1]


def test_requests_are_not_held_for_responses_that_cannot_come() -> None:
    """What is held is bounded by the client's credit for responses: a client that detaches them and attaches
    again begins anew, however long the first decision takes."""
    peer = Peer().attach_pair()
    slow = Slow(peer.broker.catalog)
    peer.service.context.propose = slow
    for turn in range(20):
        names = [f"q{turn}-{number}" for number in range(3)]
        peer.send(*[peer.request("PUT", f"/queues/{name}", {}) for name in names])
        peer.send(Detach(handle=RESPONSES, closed=True), attach(RESPONSES), peer.flow(RESPONSES, 0, 100))
    peer.send(peer.request("GET", "/queues/q0-0"))
    assert len(peer.service._management._held) == 1
    peer.service.on_decided(slow.decide())
    peer.settle()
    assert [status for status, _ in peer.responses] == ["200"]
    assert list(peer.broker.vhost.queues) == ["q0-0"]
