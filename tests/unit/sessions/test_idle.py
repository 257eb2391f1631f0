"""Why a queue gives a consumer nothing that it could take: what its state says of the consumer's node."""

from __future__ import annotations

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.queues.commands import Command, Credit, PeerId, Publish, ReplyTo, Subscribe
from amqp10broker.queues.quorum.commands import NodeBack, NodeSuspect
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import DEFAULTS, QueueSettings
from amqp10broker.sessions.diagnosis.idle import idle_wait, why_idle
from amqp10broker.sessions.diagnosis.waits import Wait
from tests.support.handles import MachineHandle
from tests.support.quorum_bench import message
from tests.support.topologies import NoHost


class Handle(MachineHandle[QuorumQueue]):
    """A queue that follows here."""

    def post(self, command: Command) -> None:
        """It leads elsewhere."""
        raise AssertionError(command)


AWAY = ReplyTo(PeerId(2, 1, 1), "s")
"""A session of another node."""


def test_a_consumer_whose_node_is_not_heard_waits_although_messages_are_ready() -> None:
    """Nothing of the queue comes to it, however many there are."""
    machine = QuorumQueue("q", settings=DEFAULTS, now_ms=0)
    queue = DeclaredQueue("q", "/", "quorum", True, None, False, {}, Handle(machine))
    vhost = Catalog(NoHost().start_queue).lookup_vhost("/")
    ref = AWAY.consumer()
    for command in (Subscribe(ref, False), Credit(ref, 0, 5, False, 0), NodeSuspect(2, 1)):
        machine.apply(command, 0)
    publisher = ReplyTo(PeerId(1, 1, 1), "p").publisher()
    machine.apply(Publish(publisher, [1], [message("a")], False), 0)
    assert machine.ready == 1
    waiting = why_idle(queue, ref, 4000, 1000, vhost)
    assert (waiting.wait, waiting.for_ms) == (Wait.NO_LEADER, 3000)
    assert waiting.why.startswith("the leader of queue 'q' has not heard this node")
    machine.apply(NodeBack(2, 1), 0)
    assert idle_wait(queue, ref) is Wait.UNSETTLED_HERE


def test_a_browser_does_not_wait_for_the_single_active_consumer() -> None:
    """It is never that one: it waits for what it has not seen."""
    machine = QuorumQueue("q", settings=QueueSettings(single_active_consumer=True), now_ms=0)
    queue = DeclaredQueue("q", "/", "quorum", True, None, False, {}, Handle(machine))
    active, browser = AWAY.consumer(), AWAY.consumer()
    asked = [
        Subscribe(active, False),
        Publish(AWAY.publisher(), [1], [message("a")], False),
        Subscribe(browser, False, counted=False, browse=True),
        Credit(browser, 0, 5, False, 0),
    ]
    for command in machine.browsers.marked(asked):
        machine.apply(command, 0)
    assert machine.queue_status().active == active
    assert idle_wait(queue, browser) is Wait.NO_MESSAGE_MATCHES
