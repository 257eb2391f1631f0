"""A link's rules, one by one: time-outs without a leader, the end of a queue, queues at other nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from amqp10broker.cluster.remote_queue.link import (
    NO_COUNTS_MS,
    NO_LEADER_MS,
    QueueLink,
)
from amqp10broker.cluster.remote_queue.link_server import HomeLinkServer
from amqp10broker.cluster.remote_queue.links import OPENING_MS, HomeLink
from amqp10broker.cluster.remote_queue.messages import (
    LeaderIs,
    LetterBatch,
    LinkMessage,
    RemoteEffects,
    RemoteResumed,
    ResumeRemote,
)
from amqp10broker.queues import commands as c
from amqp10broker.queues import commands as e

PEER = c.PeerId(1, 1, 1)
CONSUMER = c.ConsumerRef(PEER, 1)
PUBLISHER = c.PublisherRef(PEER, 5)
REQUEST = c.RequestRef(PEER, 2)
MESSAGE = (b"\x00", b"x")


class Port:
    """A node that keeps what it is given.

    Attributes:
        sent: to other nodes, in order.
        told: to sessions, in order.
    """

    node = 1
    suspected: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.sent: list[LinkMessage] = []
        self.told: list[e.Effect] = []
        self.time_ms = 1000
        self.full = False
        self.reachable = True
        self.peers: list[int] = [1, 2]
        self.incarnations: dict[int, int] = {1: 1, 2: 1}

    incarnation = 1

    def send(self, node: int, group: int, message: LinkMessage) -> bool:
        if self.reachable:
            self.sent.append(message)
        return self.reachable

    def crowded(self, node: int) -> bool:
        return self.full

    def tell(self, effects: Mapping[c.PeerId, Sequence[e.Effect]]) -> None:
        for each in effects.values():
            self.told += each

    def is_open(self, peer: c.PeerId) -> bool:
        return True

    def now_ms(self) -> int:
        return self.time_ms

    def stir(self, group: int) -> None:
        """It is asked anyway."""

    def take(self) -> list[e.Effect]:
        told, self.told = self.told, []
        return told


def link(*, opened: bool = False) -> tuple[QueueLink, Port]:
    """A link, perhaps with a leader at node 2."""
    port = Port()
    client = QueueLink("q", 7, port)
    if opened:
        client.leader_is(2, LeaderIs(5))
        client.post_all([c.AttachPublisher(PUBLISHER)])
        answer(client, port, last=0)
        client.told(2, RemoteEffects(token(port), 1, 1))
        port.sent.clear()
    return client, port


def token(port: Port) -> int:
    return [each.token for each in port.sent if isinstance(each, ResumeRemote)][-1]


def answer(client: QueueLink, port: Port, last: int, index: int = 0, **given: object) -> None:
    state: dict[str, object] = {"deleted": False, "kept": (), "deliveries": (), "consumers": {}} | given
    client.resumed(2, RemoteResumed(token(port), index, last, **state))  # type: ignore[arg-type]


def letters(port: Port) -> list[tuple[int, c.Command]]:
    return [
        (batch.first + at, command)
        for batch in port.sent
        if isinstance(batch, LetterBatch)
        for at, command in enumerate(batch.commands)
    ]


def publish(*ids: int) -> c.Publish:
    return c.Publish(PUBLISHER, ids, [MESSAGE] * len(ids), settled=False)


def pass_time(client: QueueLink | HomeLink, port: Port, ms: int) -> None:
    port.time_ms += ms
    client.tick()


def test_letters_wait_for_a_leader_and_go_in_order() -> None:
    client, port = link()
    client.post_all([publish(1)])
    client.post_all([publish(2)])
    assert not port.sent
    client.leader_is(2, LeaderIs(5))
    assert [type(each) for each in port.sent] == [ResumeRemote]
    answer(client, port, last=0)
    assert [number for number, _ in letters(port)] == [1, 2]


def test_what_was_carried_out_is_confirmed_but_for_what_was_refused() -> None:
    client, port = link(opened=True)
    client.post_all([publish(1, 2, 3)])
    client.post_all([publish(4)])
    client.node_down(2)
    assert (client.leader, client.last_leader) == (None, 2)
    client.leader_is(3, LeaderIs(6))
    assert (client.leader, client.last_leader) == (3, 3)
    rejected = e.PublishRejected(PUBLISHER, (3,), False, "q")
    resumed = RemoteResumed(token(port), 9, 2, False, [rejected], (), {})
    client.resumed(3, resumed)
    heard = [
        (type(each), list(each.ids))
        for each in port.take()
        if isinstance(each, e.Confirmed | e.PublishRejected)
    ]
    assert heard == [(e.PublishRejected, [3]), (e.Confirmed, [1, 2])]
    assert [number for number, _ in letters(port)][-1] == 3
    assert client.heard == 9


def test_a_subscription_waits_30_s_for_a_leader_and_leaves_no_consumer() -> None:
    client, port = link()
    client.post_all([c.Subscribe(CONSUMER, False, answer=True)])
    pass_time(client, port, NO_LEADER_MS - 1)
    assert not port.take()
    pass_time(client, port, 1)
    assert port.take() == [e.SubscribeRefused(CONSUMER, "q", e.Refusal.NO_LEADER)]
    client.leader_is(2, LeaderIs(5))
    answer(client, port, last=0)
    assert [type(command) for _, command in letters(port)] == [c.Subscribe, c.Unsubscribe]
    client.told(2, RemoteEffects(token(port), 1, 2, {PEER: [e.Subscribed(CONSUMER)]}))
    assert not port.take()
    assert not client.consumers


def test_a_question_waits_for_a_leader_but_not_for_ever() -> None:
    client, port = link()
    purge = c.RequestRef(PEER, 3)
    client.post_all([c.Inspect(REQUEST), c.Purge(purge)])
    pass_time(client, port, NO_COUNTS_MS)
    assert port.take() == [e.Answer(REQUEST, 0, 0, e.Refusal.NO_LEADER)]
    pass_time(client, port, NO_LEADER_MS)
    assert port.take() == [e.Answer(purge, 0, 0, e.Refusal.NO_LEADER)]
    client.leader_is(2, LeaderIs(5))
    answer(client, port, last=0)
    client.told(2, RemoteEffects(token(port), 1, 2, {PEER: [e.Answer(REQUEST, 1, 0), e.Answer(purge, 1, 0)]}))
    assert not port.take()


def test_the_first_publish_of_a_publisher_waits_for_a_leader_as_all_others_do() -> None:
    """It is confirmed then: nothing was wrong with it."""
    client, port = link()
    first = publish(1)
    client.post_all([first])
    pass_time(client, port, 100 * NO_LEADER_MS)
    assert not port.take()
    assert client.deadline_ms is None
    client.leader_is(2, LeaderIs(5))
    answer(client, port, last=0)
    assert [command for _, command in letters(port)] == [first]


# -- queues that are at one node


def home() -> tuple[HomeLink, Port]:
    port = Port()
    return HomeLink("q", 7, 2, port), port


def test_a_question_waits_for_a_home_that_is_connecting_but_not_for_ever() -> None:
    """As that of a node that has just started, or a home that has: it announces its queues when connected."""
    client, port = home()
    for lost in (False, True):
        client.post_all([c.Inspect(REQUEST)])
        assert client.down_ms is None
        pass_time(client, port, OPENING_MS - 1)
        assert not port.take()
        client.leader_is(2, LeaderIs(0))
        assert [command for _, command in letters(port)] == [c.Inspect(REQUEST)]
        # Only of one that was lost may the home have something still.
        assert [type(each) for each in port.sent] == [*([ResumeRemote] if lost else []), LetterBatch]
        client.told(2, RemoteEffects(0, 0, 1, {PEER: [e.Answer(REQUEST, 2, 1)]}))
        client.node_down(2)
        assert client.down_ms is not None
        client.node_alive(3)
        assert client.down_ms is not None
        client.node_alive(2)
        port.take()
        port.sent.clear()
    client.post_all([c.Inspect(REQUEST)])
    pass_time(client, port, OPENING_MS)
    assert port.take() == [e.Answer(REQUEST, 0, 0, e.Refusal.NO_LEADER)]
    assert client.down_ms is not None


def test_what_was_refused_is_not_answered_again() -> None:
    """Letters were on the way when it was lost, and the home was only silent."""
    client, port = home()
    client.leader_is(2, LeaderIs(0))
    client.post_all([c.Subscribe(CONSUMER, False, answer=True), publish(1, 2), c.Inspect(REQUEST)])
    client.node_down(2)
    port.take()
    client.leader_is(2, LeaderIs(0))
    client.post_all([publish(3)])
    late = [
        e.Subscribed(CONSUMER),
        e.Confirmed(PUBLISHER, (1, 2, 3), False),
        e.Deliver(CONSUMER, [1], [MESSAGE], 0),
        e.CreditReply(CONSUMER, 1, 0, 5, False, 0),
        e.Answer(REQUEST, 2, 1),
        e.QueueDeleted(CONSUMER, "q"),
        e.PublishRejected(PUBLISHER, [2], False, "q"),
    ]
    client.told(2, RemoteEffects(0, 0, 4, {PEER: late}))
    (confirmed,) = port.take()
    assert isinstance(confirmed, e.Confirmed)
    assert confirmed.ids == [3]


def test_when_the_home_is_lost_publishers_are_refused_and_consumers_end() -> None:
    client, port = home()
    client.leader_is(2, LeaderIs(0))
    client.post_all(
        [c.AttachPublisher(PUBLISHER), c.Subscribe(CONSUMER, False), publish(1, 2), c.Inspect(REQUEST)]
    )
    client.told(2, RemoteEffects(0, 0, 4, {PEER: [e.Confirmed(PUBLISHER, (1,), False)]}))
    port.take()
    client.node_down(2)
    assert port.take() == [
        e.Unconfirmed(PUBLISHER, [2], False, failed=True, queue="q"),
        e.Answer(REQUEST, 0, 0, e.Refusal.NO_LEADER),
        e.QueueDown(CONSUMER, "q"),
    ]
    client.post_all([publish(3), c.Subscribe(CONSUMER, False)])
    assert port.take() == [
        e.Unconfirmed(PUBLISHER, (3,), False, failed=True, queue="q"),
        e.QueueDown(CONSUMER, "q"),
    ]
    port.sent.clear()
    client.leader_is(2, LeaderIs(0))
    # The home may not have noticed: it forgets what it has of this node first.
    assert isinstance(port.sent[0], ResumeRemote)
    assert [command for _, command in letters(port)] == [c.AttachPublisher(PUBLISHER)]


class Queue:
    def __init__(self) -> None:
        self.letters: list[c.Command] = []

    def post_all(self, commands: list[c.Command]) -> None:
        self.letters += commands


def suspect(server: HomeLinkServer, port: Port) -> None:
    """The node is not heard of, whatever its connection says."""
    port.suspected = frozenset({2})
    server.node_changed(2)


@pytest.mark.parametrize(
    "lose",
    [
        lambda server, port: server.node_down(2),
        suspect,
        lambda server, port: server.resume(2, ResumeRemote(0, 0, 0, 1, {})),
    ],
    ids=["disconnected", "suspected", "begins anew"],
)
def test_a_node_that_is_lost_has_lost_its_connection_to_the_queue(
    lose: Callable[[HomeLinkServer, Port], None],
) -> None:
    port, queue = Port(), Queue()
    server = HomeLinkServer(7, queue.post_all, port)
    assert port.sent == [LeaderIs(0)]
    there = c.ConsumerRef(c.PeerId(2, 1, 1), 1)
    publisher = c.PublisherRef(c.PeerId(2, 1, 1), 2)
    server.received(2, LetterBatch(0, 1, 0, [c.Subscribe(there, False), c.AttachPublisher(publisher)]))
    server.tell({there.reply_to: [e.Deliver(there, (1, 2), [MESSAGE] * 2, 0)]})
    queue.letters.clear()
    lose(server, port)
    assert queue.letters == [
        c.DetachPublisher(publisher),
        c.Unsubscribe(there, (), (), 2, c.DeliveryOutcome.REQUEUE),
    ]


def test_a_consumer_that_was_cancelled_is_forgotten_when_it_holds_nothing() -> None:
    """A channel that stays for years and gets consumers and cancels them costs nothing."""
    client, port = home()
    client.leader_is(2, LeaderIs(0))
    client.post_all([c.Subscribe(CONSUMER, False)])
    client.told(2, RemoteEffects(0, 0, 1, {PEER: [e.Deliver(CONSUMER, [1, 2, 3], [MESSAGE] * 3, 0)]}))
    client.post_all([c.GiveBack(CONSUMER, [2], [MESSAGE], 1, 2, 1), c.Cancel(CONSUMER)])
    # What was on its way then went back.
    client.told(2, RemoteEffects(0, 0, 3, {PEER: [e.Deliver(CONSUMER, [4], [MESSAGE], 0)]}))
    assert client.consumers == 1
    client.post_all([c.Settle(CONSUMER, [1], c.DeliveryOutcome.ACCEPT, answer=True)])
    port.take()
    assert client.consumers == 1, "its session waits for the answer"
    settled = e.Settled(CONSUMER, [1])
    client.told(2, RemoteEffects(0, 0, 4, {PEER: [settled]}))
    assert port.take() == [settled]
    assert client.consumers == 0
    client.post_all([c.Subscribe(CONSUMER, True), c.Cancel(CONSUMER)])
    assert client.consumers == 0
    client.node_down(2)
    assert port.take() == []


def test_of_a_consumer_that_was_cancelled_the_home_takes_back_what_it_holds() -> None:
    """And forgets it when that is nothing."""
    port, queue = Port(), Queue()
    server = HomeLinkServer(7, queue.post_all, port)
    peer = c.PeerId(2, 1, 1)
    holds, done, automatic = (c.ConsumerRef(peer, each) for each in (1, 2, 3))
    subscribed = [c.Subscribe(each, each is automatic) for each in (holds, done, automatic)]
    server.received(2, LetterBatch(0, 1, 0, subscribed))
    delivered = [e.Deliver(each, [1, 2], [MESSAGE] * 2, 0) for each in (holds, done, automatic)]
    server.tell({peer: list(delivered)})
    settled = [
        c.Settle(done, [1, 2], c.DeliveryOutcome.ACCEPT, answer=True),
        c.Settle(holds, [1], c.DeliveryOutcome.ACCEPT),
    ]
    server.received(2, LetterBatch(0, 4, 0, [*settled, *map(c.Cancel, (holds, done, automatic))]))
    server.tell({peer: [e.Settled(done, [1, 2])]})
    queue.letters.clear()
    server.node_down(2)
    assert queue.letters == [c.Unsubscribe(holds, (), (), 2, c.DeliveryOutcome.REQUEUE)]


@pytest.mark.parametrize("again", [False, True])
def test_a_link_asks_anew_only_if_it_is_told_to(again: bool) -> None:
    client, port = link(opened=True)
    client.leader_is(2, LeaderIs(5, again))
    assert any(isinstance(each, ResumeRemote) for each in port.sent) is again
