"""The queue's end of its links, with letters that are slow to be carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from amqp10broker.cluster.remote_queue.link_server import LinkServer
from amqp10broker.cluster.remote_queue.messages import (
    LeaderIs,
    LetterBatch,
    LinkMessage,
    RemoteEffects,
    RemoteResumed,
    ResumeRemote,
)
from amqp10broker.queues.commands import Credit, Effect, GiveBack, PeerId, Publish, ReplyTo, Subscribe, Tick
from amqp10broker.queues.quorum.commands import QuorumCommand
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import QueueSettings
from tests.support.quorum_bench import message

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
        """What was posted is committed, as one entry, and told."""
        self.index += 1
        self.queue.node_links.entry = self.index
        posted, self.posted = self.posted, []
        for command in (*posted, *commands):
            self.queue.apply(command, self.now)
        self.server.tell(self.queue.take_effects(), self.index)

    def answers(self) -> list[RemoteResumed]:
        """To who asked how things stand, since the last call."""
        sent, self.sent = self.sent, []
        return [each for each in sent if isinstance(each, RemoteResumed)]


def test_letters_under_way_are_carried_out_before_a_node_hears_what_it_missed() -> None:
    """They bear the numbers of before: it may not add what it missed to others meanwhile."""
    node = Node()
    server = node.server
    ref = SESSION.consumer()
    server.resume(2, ResumeRemote(1, 1, 0, 1, {}))
    publish = Publish(SESSION.publisher(), [1, 2], [message("a"), message("b")], False)
    server.received(2, LetterBatch(1, 1, 0, [publish, Subscribe(ref, False), Credit(ref, 0, 2, False, 0)]))
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
    server.received(2, LetterBatch(1, 4, 0, [GiveBack(ref, [], [], 0, 0, 1)]))
    server.node_down(2)
    server.node_up(2)
    server.resume(2, ResumeRemote(2, 1, 0, 4, {ref: 0}))
    assert not node.answers()
    node.carry_out()
    (answer,) = node.answers()
    assert (answer.token, answer.last, answer.consumers[ref].missed) == (2, 4, 0)
    assert answer.consumers[ref].delivery_count == 0
    server.received(2, LetterBatch(2, 5, 2, [Credit(ref, 0, 1, False, 0)]))
    node.carry_out()
    (told,) = node.sent
    assert isinstance(told, RemoteEffects)
    assert (told.token, told.done) == (2, 5)


def test_no_node_hears_of_what_is_carried_out_and_not_committed() -> None:
    """Neither that its letters are done, nor how things stand when it asks, also again."""
    node = Node()
    server = node.server
    server.resume(2, ResumeRemote(1, 1, 0, 1, {}))
    node.answers()
    server.received(2, LetterBatch(1, 1, 0, [Publish(SESSION.publisher(), [1], [message("a")], False)]))
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
    """What it asks came late: the node has started anew, and its sessions of then are gone."""
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
            server.received(2, LetterBatch(1, 1, 0, [publish]))
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
    """Of the other node, with a link that has resumed."""
    node = Node()
    node.server.resume(2, ResumeRemote(1, 1, 0, 1, {}))
    node.server.received(2, LetterBatch(1, 1, 0, [Subscribe(SESSION.consumer(), False)]))
    node.carry_out()
    return node


def see(node: Node, *, suspected: bool) -> None:
    """The queue's node suspects the other one, or hears it again."""
    node.suspected = frozenset({2} if suspected else ())
    node.server.node_changed(2)


@pytest.mark.parametrize("suspected", [False, True])
def test_what_is_seen_of_a_node_last_is_what_the_queue_ends_with(suspected: bool) -> None:
    """Also if it changes before what was seen first is committed, as with a leader that nobody heard."""
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
    """With an open link and a consumer that the queue passes over nobody there could say why it waits."""
    node = with_a_consumer()
    server, (ref,) = node.server, node.queue.queue_status().parts
    server.received(2, LetterBatch(1, 2, 0, [Credit(ref, 0, 5, False, 0)]))
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
