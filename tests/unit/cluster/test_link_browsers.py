"""A node's browsers of a replicated queue: what is kept of them, and how they come anew."""

from __future__ import annotations

from amqp10broker.cluster.remote_queue.link import NO_LEADER_MS, QueueLink
from amqp10broker.cluster.remote_queue.messages import Browse, LeaderIs, LetterBatch, RemoteEffects
from amqp10broker.queues import commands as c
from amqp10broker.queues import commands as e
from tests.unit.cluster.test_queue_links import CONSUMER, MESSAGE, PEER, Port, answer, link, pass_time, token

BROWSE = c.Subscribe(CONSUMER, False, counted=False, browse=True)


def asked(port: Port) -> list[c.Command]:
    sent, port.sent = port.sent, []
    assert not any(isinstance(each, LetterBatch) for each in sent)
    return [command for each in sent if isinstance(each, Browse) for command in each.commands]


def tell(client: QueueLink, effect: e.Effect, to: int) -> None:
    client.told(2, RemoteEffects(to, 1, 1, {PEER: [effect]}))


def shown(epoch: int, *keys: int, at: int) -> e.Deliver:
    return e.Deliver(CONSUMER, keys, [MESSAGE] * len(keys), epoch, shown=(0, 0, at, 0))


def again(client: QueueLink, port: Port) -> int:
    """Another leader, at the same node; the token of its link."""
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
    """A request that was overtaken has its answer by the node then: the leader would give none."""
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
