"""Links of nodes to queues elsewhere, at both ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from amqp10broker.cluster.remote_queue.home_link import OPENING_MS, HomeLink, HomeLinkServer
from amqp10broker.cluster.remote_queue.link import NO_COUNTS_MS, NO_LEADER_MS, QueueLink
from amqp10broker.cluster.remote_queue.links import LinkServer, QueueLinks
from amqp10broker.cluster.remote_queue.messages import (
    Browse,
    CommandBatch,
    LeaderIs,
    LinkMessage,
    LinkPort,
    RemoteEffects,
    RemoteResumed,
    ResumeRemote,
    encode,
)
from amqp10broker.cluster.wire import PeerFrame
from amqp10broker.queues import commands as c
from amqp10broker.queues import commands as e
from amqp10broker.queues.commands import Credit, Effect, GiveBack, PeerId, Publish, ReplyTo, Subscribe, Tick
from amqp10broker.queues.quorum.commands import QuorumCommand
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import QueueSettings
from tests.support.queue_bench import message

PEER = c.PeerId(1, 1, 1)
CONSUMER = c.ConsumerRef(PEER, 1)
PUBLISHER = c.PublisherRef(PEER, 5)
REQUEST = c.RequestRef(PEER, 2)
MESSAGE = (b"\x00", b"x")


class Port:
    """A node that keeps what it is given: `sent` to other nodes, `told` to sessions."""

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
        if isinstance(batch, CommandBatch)
        for at, command in enumerate(batch.commands)
    ]


def publish(*ids: int) -> c.Publish:
    return c.Publish(PUBLISHER, ids, [MESSAGE] * len(ids), settled=False)


def pass_time(client: QueueLink | HomeLink, port: Port, ms: int) -> None:
    port.time_ms += ms
    client.tick()


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
    """It is then confirmed as any other publish."""
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
    """Either node may have just started; the home announces its queues once connected."""
    client, port = home()
    for lost in (False, True):
        client.post_all([c.Inspect(REQUEST)])
        assert client.down_ms is None
        pass_time(client, port, OPENING_MS - 1)
        assert not port.take()
        client.leader_is(2, LeaderIs(0))
        assert [command for _, command in letters(port)] == [c.Inspect(REQUEST)]
        # Only of one that was lost may the home have something still.
        assert [type(each) for each in port.sent] == [*([ResumeRemote] if lost else []), CommandBatch]
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
    """Its commands were in flight when the link was lost, and the home was only silent."""
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
    server.received(2, CommandBatch(0, 1, 0, [c.Subscribe(there, False), c.AttachPublisher(publisher)]))
    server.tell({there.reply_to: [e.Deliver(there, (1, 2), [MESSAGE] * 2, 0)]})
    queue.letters.clear()
    lose(server, port)
    assert queue.letters == [
        c.DetachPublisher(publisher),
        c.Unsubscribe(there, (), (), 2, c.DeliveryOutcome.REQUEUE),
    ]


def test_a_consumer_that_was_cancelled_is_forgotten_when_it_holds_nothing() -> None:
    """A channel that stays for years and subscribes and cancels repeatedly costs no memory."""
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
    """A consumer that holds nothing is forgotten."""
    port, queue = Port(), Queue()
    server = HomeLinkServer(7, queue.post_all, port)
    peer = c.PeerId(2, 1, 1)
    holds, done, automatic = (c.ConsumerRef(peer, each) for each in (1, 2, 3))
    subscribed = [c.Subscribe(each, each is automatic) for each in (holds, done, automatic)]
    server.received(2, CommandBatch(0, 1, 0, subscribed))
    delivered = [e.Deliver(each, [1, 2], [MESSAGE] * 2, 0) for each in (holds, done, automatic)]
    server.tell({peer: list(delivered)})
    settled = [
        c.Settle(done, [1, 2], c.DeliveryOutcome.ACCEPT, answer=True),
        c.Settle(holds, [1], c.DeliveryOutcome.ACCEPT),
    ]
    server.received(2, CommandBatch(0, 4, 0, [*settled, *map(c.Cancel, (holds, done, automatic))]))
    server.tell({peer: [e.Settled(done, [1, 2])]})
    queue.letters.clear()
    server.node_down(2)
    assert queue.letters == [c.Unsubscribe(holds, (), (), 2, c.DeliveryOutcome.REQUEUE)]


@pytest.mark.parametrize("again", [False, True])
def test_a_link_asks_anew_only_if_it_is_told_to(again: bool) -> None:
    client, port = link(opened=True)
    client.leader_is(2, LeaderIs(5, again))
    assert any(isinstance(each, ResumeRemote) for each in port.sent) is again


BROWSE = c.Subscribe(CONSUMER, False, counted=False, browse=True)


def asked(port: Port) -> list[c.Command]:
    sent, port.sent = port.sent, []
    assert not any(isinstance(each, CommandBatch) for each in sent)
    return [command for each in sent if isinstance(each, Browse) for command in each.commands]


def tell(client: QueueLink, effect: e.Effect, to: int) -> None:
    client.told(2, RemoteEffects(to, 1, 1, {PEER: [effect]}))


def shown(epoch: int, *keys: int, at: int) -> e.Deliver:
    return e.Deliver(CONSUMER, keys, [MESSAGE] * len(keys), epoch, shown=(0, 0, at, 0))


def again(client: QueueLink, port: Port) -> int:
    """Elect another leader at the same node; return the token of its link."""
    client.leader_is(2, LeaderIs(client.term + 1))
    to = token(port)
    answer(client, port, last=1)
    return to


def browsing() -> tuple[QueueLink, Port, int]:
    client, port = link(opened=True)
    client.post_all([BROWSE, c.Credit(CONSUMER, 0, 5, False, 0, 100)])
    to = next(each.token for each in port.sent if isinstance(each, Browse))
    assert [type(each) for each in asked(port)] == [c.Subscribe, c.Credit]
    return client, port, to


def test_another_leader_goes_on_behind_what_was_shown() -> None:
    client, port, to = browsing()
    tell(client, shown(0, 7, 8, at=9), to)
    tell(client, e.CreditReply(CONSUMER, 2, 3, 0, False, 0), to)
    port.take()
    now = again(client, port)
    subscribe, back, credit = asked(port)
    assert isinstance(subscribe, c.Subscribe)
    assert isinstance(back, c.GiveBack)
    assert isinstance(credit, c.Credit)
    assert subscribe.shown == (0, 0, 9, 0)
    assert (back.keys, back.delivery_count, back.seen, back.epoch) == ([], 2, 2, 1)
    assert (credit.delivery_count, credit.credit, credit.room) == (0, 5, 98)
    # Its session has an answer, and what the leader of before says late is for nobody.
    tell(client, shown(0, 9, at=10), now)
    tell(client, e.CreditReply(CONSUMER, 2, 3, 0, False, 1), now)
    assert port.take() == []
    tell(client, shown(1, 9, at=10), now)
    (deliver,) = port.take()
    assert isinstance(deliver, e.Deliver)
    assert (deliver.keys, deliver.epoch) == ((9,), 0)


def test_a_drain_is_asked_again_and_answered_once() -> None:
    client, port, to = browsing()
    tell(client, e.CreditReply(CONSUMER, 0, 5, 0, False, 0), to)
    client.post_all([c.Credit(CONSUMER, 0, 5, True, 0)])
    port.take()
    now = again(client, port)
    *_, credit = asked(port)
    assert isinstance(credit, c.Credit)
    assert credit.drain
    tell(client, e.CreditReply(CONSUMER, 5, 0, 0, True, 0), now)
    assert port.take() == []
    tell(client, e.CreditReply(CONSUMER, 5, 0, 0, True, 1), now)
    (reply,) = port.take()
    assert isinstance(reply, e.CreditReply)
    assert (reply.delivery_count, reply.epoch) == (5, 0)
    again(client, port)
    assert [type(each) for each in asked(port)] == [c.Subscribe, c.GiveBack], "nothing is asked for any more"


def test_what_was_given_back_is_shown_again_by_the_next_leader() -> None:
    """The node answers a request that was overtaken: the leader would not answer it."""
    client, port, to = browsing()
    tell(client, shown(0, 7, 8, at=9), to)
    client.post_all([c.GiveBack(CONSUMER, [8], [MESSAGE], 2, 2, 1)])
    port.take()
    again(client, port)
    *_, subscribe, back = asked(port)
    assert isinstance(subscribe, c.Subscribe)
    assert isinstance(back, c.GiveBack)
    assert (back.keys, back.messages, back.epoch) == ([8], (), 2)
    (reply,) = port.take()
    assert isinstance(reply, e.CreditReply)
    assert (reply.credit, reply.epoch) == (0, 0)
    # What was sent to a leader at this very node it has not carried out yet.
    client.post_all([c.GiveBack(CONSUMER, [7], [MESSAGE], 2, 2, 2)])
    assert back.keys == [8]


def test_decisions_of_a_browser_are_answered_by_its_node() -> None:
    client, port, _ = browsing()
    client.post_all([c.Settle(CONSUMER, [1], c.DeliveryOutcome.ACCEPT, answer=True)])
    client.post_all([c.Settle(CONSUMER, [1], c.DeliveryOutcome.ACCEPT)])
    (settled,) = port.take()
    assert isinstance(settled, e.Settled)
    assert asked(port) == []


def test_a_browser_waits_for_a_leader_for_as_long_as_others_do() -> None:
    client, port = link()
    client.post_all([BROWSE])
    pass_time(client, port, NO_LEADER_MS - 1)
    assert port.take() == []
    pass_time(client, port, 1)
    (refused,) = port.take()
    assert isinstance(refused, e.SubscribeRefused)
    assert refused.why is e.Refusal.NO_LEADER
    client, port, _ = browsing()
    client.node_down(2)
    pass_time(client, port, 2 * NO_LEADER_MS)
    assert port.take() == []
    client.end()
    assert CONSUMER in [each.ref for each in port.take() if isinstance(each, e.QueueDeleted)]


SESSION = ReplyTo(PeerId(2, 1, 1), "s")


class Node:
    """The queue's node; the other one asks."""

    node = 1
    peers: Sequence[int] = (1, 2)
    incarnations: Mapping[int, int] = {1: 1, 2: 1}
    suspected: frozenset[int] = frozenset()
    ahead = False
    """What is carried out is not committed yet, but for letters up to `committed`."""
    committed = 0

    def __init__(self) -> None:
        self.queue = QuorumQueue("q", settings=QueueSettings(consumer_timeout_ms=1000), now_ms=0)
        self.now = self.index = 0
        self.posted: list[QuorumCommand] = []
        self.sent: list[LinkMessage] = []
        self.server = LinkServer(7, self, self.post_all, self)
        self.server.lead(3)

    def post_all(self, commands: list[QuorumCommand]) -> None:
        self.posted += commands

    def send(self, node: int, group: int, message: LinkMessage) -> bool:
        self.sent.append(message)
        return True

    def tell(self, effects: Mapping[PeerId, Sequence[Effect]]) -> None:
        raise AssertionError("no session is here")

    def done(self, node: int, incarnation: int) -> int:
        return self.committed if self.ahead else self.queue.link_last(node, incarnation)

    def carry_out(self, *commands: QuorumCommand) -> None:
        self.index += 1
        self.queue.node_links.entry = self.index
        posted, self.posted = self.posted, []
        for command in (*posted, *commands):
            self.queue.apply(command, self.now)
        self.server.tell(self.queue.take_effects(), self.index)

    def answers(self) -> list[RemoteResumed]:
        sent, self.sent = self.sent, []
        return [each for each in sent if isinstance(each, RemoteResumed)]


def test_letters_under_way_are_carried_out_before_a_node_hears_what_it_missed() -> None:
    """They have the old numbers: the node may not add missed effects to others meanwhile."""
    node = Node()
    server = node.server
    ref = SESSION.consumer()
    server.resume(2, ResumeRemote(1, 1, 0, 1, {}))
    publish = Publish(SESSION.publisher(), [1, 2], [message("a"), message("b")], False)
    server.received(2, CommandBatch(1, 1, 0, [publish, Subscribe(ref, False), Credit(ref, 0, 2, False, 0)]))
    node.carry_out()
    node.now = 1000
    node.carry_out(Tick())
    assert [type(each) for each in node.sent if not isinstance(each, LeaderIs)] == [
        RemoteResumed,
        RemoteEffects,
        RemoteEffects,
    ]
    node.answers()
    # Nothing of it reached the node, which gives back, and loses touch.
    server.received(2, CommandBatch(1, 4, 0, [GiveBack(ref, [], [], 0, 0, 1)]))
    server.node_down(2)
    server.node_up(2)
    server.resume(2, ResumeRemote(2, 1, 0, 4, {ref: 0}))
    assert not node.answers()
    node.carry_out()
    (answer,) = node.answers()
    assert (answer.token, answer.last, answer.consumers[ref].missed) == (2, 4, 0)
    assert answer.consumers[ref].delivery_count == 0
    server.received(2, CommandBatch(2, 5, 2, [Credit(ref, 0, 1, False, 0)]))
    node.carry_out()
    (told,) = node.sent
    assert isinstance(told, RemoteEffects)
    assert (told.token, told.done) == (2, 5)


def test_no_node_hears_of_what_is_carried_out_and_not_committed() -> None:
    """It gets neither the end of its commands nor a reply to a resume, also when it resumes again."""
    node = Node()
    server = node.server
    server.resume(2, ResumeRemote(1, 1, 0, 1, {}))
    node.answers()
    server.received(2, CommandBatch(1, 1, 0, [Publish(SESSION.publisher(), [1], [message("a")], False)]))
    node.ahead = True
    node.carry_out()
    assert [told.done for told in node.sent if isinstance(told, RemoteEffects)] == [0]
    for _ in range(2):
        server.resume(2, ResumeRemote(2, 1, 0, 1, {}))
        server.tell({}, 1)
        assert not node.answers()
    node.ahead = False
    server.tell({}, 1)
    (answer,) = node.answers()
    assert (answer.token, answer.last) == (2, 1)


def test_a_link_of_an_older_start_is_not_taken_up() -> None:
    """The request came late: the node has restarted, and its earlier sessions are gone."""
    node = Node()
    node.incarnations = {1: 1, 2: 6}
    node.server.resume(2, ResumeRemote(1, 5, 0, 1, {}))
    assert not node.answers()
    assert not node.posted
    node.server.resume(2, ResumeRemote(1, 6, 0, 1, {}))
    assert [each.token for each in node.answers()] == [1]


@pytest.mark.parametrize("lost", ["way", "leadership"])
def test_who_waits_for_its_letters_is_answered_when_it_asks_again_and_not_when_it_is_lost(lost: str) -> None:
    node = Node()
    server = node.server
    publish = Publish(SESSION.publisher(), [1], [message("a")], False)
    for resume in (ResumeRemote(1, 1, 0, 1, {}), ResumeRemote(2, 1, 0, 1, {})):
        server.resume(2, resume)
        if resume.token == 1:
            server.received(2, CommandBatch(1, 1, 0, [publish]))
            assert [each.token for each in node.answers()] == [1]
    assert not node.answers()
    server.resume(2, ResumeRemote(2, 1, 0, 1, {}))
    assert [each.token for each in node.answers()] == [2], "it does not wait for ever"
    server.resume(2, ResumeRemote(3, 1, 0, 1, {}))
    if lost == "way":
        server.node_down(2)
    else:
        server.follow()
    node.carry_out()
    assert not node.answers()


def with_a_consumer() -> Node:
    node = Node()
    node.server.resume(2, ResumeRemote(1, 1, 0, 1, {}))
    node.server.received(2, CommandBatch(1, 1, 0, [Subscribe(SESSION.consumer(), False)]))
    node.carry_out()
    return node


def see(node: Node, *, suspected: bool) -> None:
    node.suspected = frozenset({2} if suspected else ())
    node.server.node_changed(2)


@pytest.mark.parametrize("suspected", [False, True])
def test_what_is_seen_of_a_node_last_is_what_the_queue_ends_with(suspected: bool) -> None:
    """The state may change before the first one is committed, as with a leader that was cut off."""
    node = with_a_consumer()
    if suspected:
        see(node, suspected=True)
        node.carry_out()
    see(node, suspected=not suspected)
    see(node, suspected=suspected)
    node.carry_out()
    assert set(node.queue.suspects) == ({(2, 1)} if suspected else set())


def test_a_link_that_resumes_ends_a_suspicion_that_is_not_carried_out_yet() -> None:
    node = with_a_consumer()
    see(node, suspected=True)
    node.suspected = frozenset()
    node.server.resume(2, ResumeRemote(2, 1, 0, 2, {SESSION.consumer(): 0}))
    node.carry_out()
    assert not node.queue.suspects


def test_the_next_leader_puts_right_what_the_one_before_saw() -> None:
    node = with_a_consumer()
    see(node, suspected=True)
    node.carry_out()
    node.server.follow()
    node.suspected = frozenset()
    node.server.lead(4)
    node.carry_out()
    assert not node.queue.suspects


def test_a_node_that_was_suspected_has_a_link_again_when_its_consumers_go_on() -> None:
    """With an open link and a passed-over consumer, that node could not report why it waits."""
    node = with_a_consumer()
    server, (ref,) = node.server, node.queue.queue_status().parts
    server.received(2, CommandBatch(1, 2, 0, [Credit(ref, 0, 5, False, 0)]))
    node.carry_out()
    see(node, suspected=True)
    node.carry_out()
    server.node_down(2)
    node.carry_out(Publish(ReplyTo(PeerId(1, 1, 1), "p").publisher(), [1], [message("a")], False))
    node.answers()
    server.node_up(2)
    for _ in range(2):
        server.resume(2, ResumeRemote(2, 1, 0, 3, {ref: 0}))
        assert not node.answers(), "it is suspected still"
    see(node, suspected=False)
    assert not node.answers(), "the end of the suspicion is not carried out"
    node.carry_out()
    (answer,) = node.answers()
    assert [len(each.keys) for each in answer.deliveries] == [1]
    assert not node.queue.queue_status().parts[ref].away


GROUP = 7


def links() -> QueueLinks:
    return QueueLinks(LinkPort(1, 1, lambda *_: True, lambda node: 0, lambda told: None, lambda: 0))


def say(table: QueueLinks, node: int, leader: LeaderIs) -> None:
    kind, body = encode(leader)
    table.received(node, PeerFrame(kind, GROUP, b"".join(body)))


def test_a_leader_that_has_lost_its_majority_is_no_leader_at_any_node() -> None:
    """Otherwise a node without a member would show a running queue, one with a member would not."""
    table = links()
    say(table, 2, LeaderIs(5))
    assert table.leader_of(GROUP) == 2
    say(table, 2, LeaderIs(5, no_more=True))
    assert table.leader_of(GROUP) is None


def test_what_an_earlier_leader_says_late_changes_nothing() -> None:
    table = links()
    say(table, 2, LeaderIs(5))
    say(table, 3, LeaderIs(6))
    say(table, 2, LeaderIs(5, no_more=True))
    assert table.leader_of(GROUP) == 3
