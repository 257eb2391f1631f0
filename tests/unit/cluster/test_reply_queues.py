"""Direct reply-to in a cluster: every node knows the queues of all, and their replies find the way (K9)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from amqp10broker.cluster.remote_queue.messages import LinkPort
from amqp10broker.cluster.reply_queues import ReplyQueues
from amqp10broker.cluster.wire import FrameKind, PeerFrame
from amqp10broker.layout import TEXT, BadBytes, row
from amqp10broker.metadata.catalog import VHOST
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.queues import commands as c
from amqp10broker.queues import commands as e
from amqp10broker.queues.volatile import VolatileQueue
from tests.support.queue_handles import FakeHandle, MachineHandle
from tests.support.session_context import make_catalog

MESSAGE = (b"\x00", b"reply")


class Box(MachineHandle[VolatileQueue]):
    """A queue that answers at once.

    Attributes:
        told: what it has answered.
    """

    def __init__(self, queue: VolatileQueue) -> None:
        super().__init__(queue)
        self.told: list[e.Effect] = []

    def post(self, command: c.Command) -> None:
        self.queue.apply(command, 0)
        for effects in self.queue.take_effects().values():
            self.told += effects


def unused(*given: Any) -> Any:
    raise AssertionError("queues without a log use no link")


class Node:
    """One of three; what it sends lies in `net` until it is carried.

    Attributes:
        waiting: bytes that wait for each other node, as said.
    """

    def __init__(self, number: int, net: Net) -> None:
        self.number = number
        self.net = net
        self.waiting = 0
        self.port = LinkPort(
            *(number, net.incarnations[number], self.send, lambda node: self.waiting), *(unused, unused)
        )
        self.port.incarnations = net.incarnations
        self.up = self.port.connected
        self.catalog = make_catalog(SimpleNamespace(start_queue=lambda spec: FakeHandle()))
        self.vhost = self.catalog.lookup_vhost(VHOST)
        self.replies = ReplyQueues(self.port, self.catalog.vhosts.get, Box, lambda: "secret")
        self.catalog.node_directory = cast("Any", SimpleNamespace(reply_queue=self.replies.find))

    def send(self, node: int, kind: FrameKind, group: int, body: Sequence[bytes]) -> bool:
        if node in self.up:
            self.net.frames.append((self.number, node, PeerFrame(kind, group, b"".join(body))))
        return node in self.up

    def requester(self, vhost: str = VHOST) -> tuple[DeclaredQueue, c.ConsumerRef]:
        name = self.replies.new_name()
        host = self.catalog.lookup_vhost(vhost)
        queue = host.add_volatile(name, object(), Box(VolatileQueue(name)))
        self.replies.opened(vhost, name)
        ref = c.ConsumerRef(c.PeerId(self.number, 1, 1), 1)
        queue.handle.post(c.Subscribe(ref, True))
        queue.handle.post(c.Credit(ref, 0, 2, False, 0))
        return queue, ref

    def leave(self, queue: DeclaredQueue) -> None:
        self.vhost.remove_volatile(queue)
        queue.handle.post(c.DELETE)
        self.replies.closed(VHOST, queue.name)

    def route(self, name: str) -> list[DeclaredQueue]:
        return self.vhost.route(self.vhost.topology.lookup_exchange(""), (name,))[0]

    def reply(self, name: str, count: int = 1) -> list[e.Effect]:
        (queue,) = self.route(name)
        before = len(told(queue))
        publisher = c.PublisherRef(c.PeerId(self.number, 1, 7), 1)
        queue.handle.post(c.Publish(publisher, range(count), [MESSAGE] * count, settled=False))
        return told(queue)[before:]


def told(queue: DeclaredQueue) -> list[e.Effect]:
    assert isinstance(queue.handle, Box)
    return queue.handle.told


class Net:
    """Three nodes; frames between two of them stay in order."""

    def __init__(self) -> None:
        self.frames: deque[tuple[int, int, PeerFrame]] = deque()
        self.incarnations = {1: 1, 2: 1, 3: 4}
        self.nodes = {number: Node(number, self) for number in (1, 2, 3)}

    def connect(self, one: int, other: int) -> None:
        for node, peer in ((one, other), (other, one)):
            self.nodes[node].up[peer] = None
        for node, peer in ((one, other), (other, one)):
            self.nodes[node].replies.connected(peer)

    def cut(self, one: int, other: int) -> None:
        self.frames = deque(each for each in self.frames if set(each[:2]) != {one, other})
        for node, peer in ((one, other), (other, one)):
            del self.nodes[node].up[peer]
            self.nodes[node].replies.disconnected(peer)

    def carry(self, only: Callable[[int, int], bool] = lambda source, target: True) -> None:
        left: deque[tuple[int, int, PeerFrame]] = deque()
        while self.frames:
            source, target, frame = self.frames.popleft()
            if only(source, target):
                self.nodes[target].replies.received(source, frame)
            else:
                left.append((source, target, frame))
        self.frames = left


@pytest.fixture
def net() -> Net:
    made = Net()
    for one, other in ((1, 2), (1, 3), (2, 3)):
        made.connect(one, other)
    made.carry()
    return made


def test_a_reply_reaches_the_requester_at_another_node(net: Net) -> None:
    """The reply is taken at once, as by a local queue, and dropped beyond the requester's credit."""
    queue, ref = net.nodes[1].requester()
    net.carry()
    heard = net.nodes[2].reply(queue.name, 3)
    assert [type(each) for each in heard] == [e.Confirmed]
    net.carry()
    (delivered,) = [each for each in told(queue) if isinstance(each, e.Deliver)]
    assert (delivered.consumer, delivered.messages) == (ref, [MESSAGE] * 2)


def test_when_the_requester_has_gone_there_is_no_route_at_any_node(net: Net) -> None:
    """Links attached to its address are detached because the queue was deleted."""
    queue, _ = net.nodes[1].requester()
    net.carry()
    publisher = c.PublisherRef(c.PeerId(2, 1, 7), 1)
    (there,) = net.nodes[2].route(queue.name)
    assert there.kind.volatile
    there.handle.post(c.AttachPublisher(publisher))
    net.nodes[1].leave(queue)
    net.carry()
    assert told(there)[-1] == e.QueueDeleted(publisher, queue.name)
    for node in net.nodes.values():
        assert not node.route(queue.name)
        assert node.vhost.find(queue.name) is None
        assert not node.vhost.queues


def test_a_request_that_is_faster_than_the_news_is_answered(net: Net) -> None:
    """It came through a third node, before the queue of that number was announced."""
    queue, _ = net.nodes[1].requester()
    net.carry(lambda source, target: target == 3)
    assert net.nodes[2].reply(queue.name)
    net.carry()
    assert any(isinstance(each, e.Deliver) for each in told(queue))
    assert net.nodes[2].vhost.find(queue.name) is net.nodes[2].vhost.queues[queue.name]


@pytest.mark.parametrize("notifications", ["none", "opened", "closed"])
def test_a_link_that_is_faster_than_the_news_hears_of_the_end(net: Net, notifications: str) -> None:
    """The queue or its node ends, whether or not the news came meanwhile."""
    queue, _ = net.nodes[1].requester()
    publisher = c.PublisherRef(c.PeerId(2, 1, 7), 1)
    (early,) = net.nodes[2].route(queue.name)
    early.handle.post(c.AttachPublisher(publisher))
    if notifications != "none":
        net.carry()
    if notifications == "closed":
        net.nodes[1].leave(queue)
        net.carry()
    else:
        net.cut(1, 2)
    assert told(early)[-1:] == [e.QueueDeleted(publisher, queue.name)]
    assert not net.nodes[2].route(queue.name)


@pytest.mark.parametrize(
    "name",
    [
        "1.1.1.guessed",
        "1.2.9.another start",
        "1.1.9",
        f"1.1.{9 * '9' * 600}.long",
        "1.1.x.secret",
        "2.1.9.own",
        "9.1.9.no node",
        "1.1.\u0663.digits",
        "",
    ],
)
def test_other_names_are_of_no_queue(net: Net, name: str) -> None:
    net.nodes[1].requester()
    net.carry()
    assert not net.nodes[2].route(f"amq.rabbitmq.reply-to.{name}")


def test_a_node_that_is_found_says_what_it_has(net: Net) -> None:
    """It also sends a shorter list than before; a queue of a lost node is gone."""
    gone, _ = net.nodes[1].requester()
    queue, _ = net.nodes[1].requester()
    net.nodes[1].leave(gone)
    net.carry()
    net.cut(1, 2)
    assert not net.nodes[2].route(queue.name)
    assert not net.nodes[2].vhost.queues
    net.connect(1, 2)
    net.carry()
    assert net.nodes[2].reply(queue.name)
    assert not net.nodes[2].route(gone.name)


def test_only_replies_reach_it_from_elsewhere(net: Net) -> None:
    """Every node with the secret is trusted, but impossible frames are refused."""
    queue, _ = net.nodes[1].requester()
    for kind, body in (
        (FrameKind.REPLIES, row(TEXT, TEXT).encode(("/", queue.name))),
        (FrameKind.REPLIES, b"\x01"),
        (FrameKind.REPLY_QUEUES, b"\xff"),
        (FrameKind.REPLY_QUEUES, b"[]"),
        (FrameKind.REPLY_QUEUES, b'{"queues": 1}'),
        (FrameKind.REPLY_QUEUES, b'{"opened": ["/", "q"]}'),
        (FrameKind.REPLY_QUEUES, b"[" * 100_000),
    ):
        with pytest.raises(BadBytes):
            net.nodes[1].replies.received(2, PeerFrame(kind, 0, body))
    assert queue.handle.figures().consumers == 1
