"""What becomes of a quorum queue's consumers and publishers when a leader or a node is lost."""

from __future__ import annotations

from typing import Any, Final

import pytest

from amqp10broker.message.amqp10 import decode_head, header_of
from amqp10broker.message.dead_letter_heads import X_ACQUIRED_COUNT
from amqp10broker.queues.commands import (
    TICK,
    ActiveChanged,
    Answer,
    AttachPublisher,
    Cancel,
    Command,
    Configure,
    ConsumerRef,
    Credit,
    CreditReply,
    Deliver,
    DeliveryOutcome,
    Effect,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    PublishRejected,
    Purge,
    ReplyTo,
    Settle,
    Subscribe,
    TimedOut,
)
from amqp10broker.queues.quorum.commands import (
    DlxSettle,
    NodeBack,
    NodeBatch,
    NodeGone,
    NodeSuspect,
    decode_commands,
    encode_commands,
)
from amqp10broker.queues.quorum.queue import QuorumQueue, decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import DeadLetterStrategy, Overflow, QueueSettings, RetryType
from tests.support.queue_bench import message

ONE, TWO = (ReplyTo(PeerId(node, 4, 1), "s") for node in (1, 2))
"""A session at each of two nodes."""
NEW = ReplyTo(PeerId(1, 5, 1), "s")
"""One of the next start of the first of them."""
T12: Final = 60_000


class Group:
    """A queue with a leader and a follower."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1_000_000
        self.index = 0
        self.told: list[Effect] = []
        self.settings = QueueSettings(**settings)
        self.leader = QuorumQueue("q", settings=self.settings, now_ms=self.now)
        self.follower = QuorumQueue("q", settings=self.settings, now_ms=self.now)
        self.follower.follow()
        self.sent: dict[tuple[int, int], int] = {}

    def entry(self, *commands: Any, back: int = 0) -> list[Effect]:
        """Make an entry for both members, `back` ms before now; `told` collects the leader's effects."""
        self.index += 1
        encoded = encode_commands(commands, self.now - back, self.leader.messages.next_index)
        for queue, inner in (
            (self.leader, commands),
            (self.follower, decode_commands(b"".join(encoded.pieces)).commands),
        ):
            queue.node_links.entry = self.index
            for command in inner:
                queue.apply(command, self.now - back)
        assert not self.follower.take_effects()
        assert not self.follower.take_dead_letters()
        assert encode_snapshot(self.follower) == encode_snapshot(self.leader)
        self.told = [each for told in self.leader.take_effects().values() for each in told]
        return self.told

    def says(self, reply_to: ReplyTo, *commands: Command, heard: int = 0) -> list[Effect]:
        key = reply_to.id[:2]
        first = self.sent.get(key, 0) + 1
        self.sent[key] = first + len(commands) - 1
        return self.entry(NodeBatch(*key, first, self.sent[key], heard, commands))

    def fail_over(self) -> None:
        data = encode_snapshot(self.follower)
        restored = decode_snapshot("q", data, self.follower.parts()[0].bodies)
        assert encode_snapshot(restored) == data
        restored.follow()
        self.leader.follow()
        self.leader, self.follower = restored, self.leader
        restored.lead()

    def reads(self, reply_to: ReplyTo, credit: int, *bodies: str, **options: Any) -> ConsumerRef:
        ref = reply_to.consumer()
        settled = options.pop("settled", False)
        published = [publish(reply_to, *bodies)] if bodies else []
        self.says(reply_to, Subscribe(ref, settled, **options), Credit(ref, 0, credit, False, 0), *published)
        return ref

    def suspect(self, *lost: ReplyTo) -> list[Effect]:
        return self.entry(*(NodeSuspect(*each.id[:2]) for each in lost))

    def back(self, found: ReplyTo) -> list[Effect]:
        return self.entry(NodeBack(*found.id[:2]))

    def wait(self, ms: int) -> list[Effect]:
        self.now += ms
        return self.entry(TICK)

    def resume(self, reply_to: ReplyTo, seen: dict[ConsumerRef, int] | None = None, *, heard: int = 0) -> Any:
        return self.leader.resume(*reply_to.id[:2], heard, seen or {})


def publish(reply_to: ReplyTo, *bodies: str) -> Publish:
    return Publish(reply_to.publisher(), range(len(bodies)), [message(each) for each in bodies], False)


def bodies(told: list[Effect], ref: ConsumerRef | None = None) -> list[str]:
    found = [each for each in told if isinstance(each, Deliver) and ref in (None, each.consumer)]
    return [body.decode() for each in found for _, body in each.messages]


def active(told: list[Effect]) -> list[tuple[ConsumerRef, bool]]:
    return [(each.consumer, each.active) for each in told if isinstance(each, ActiveChanged)]


def counts(told: list[Effect]) -> list[tuple[int, int]]:
    """Return how often each delivered message was delivered before, and how often that failed."""
    heads = [head for each in told if isinstance(each, Deliver) for head, _ in each.messages]
    return [
        (decode_head(head)[1].get(X_ACQUIRED_COUNT, 0), header_of(head).delivery_count or 0)  # type: ignore[misc]
        for head in heads
    ]


@pytest.fixture
def group() -> Group:
    return Group()


def test_letters_are_known_after_a_start(group: Group) -> None:
    group.says(ONE, publish(ONE, "a"), publish(ONE, "b"))
    group.fail_over()
    assert group.resume(ONE).last == 2
    group.entry(NodeBatch(*ONE.id[:2], 2, 2, 0, [publish(ONE, "b")]))
    assert group.leader.ready == 2


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "duplicate_enqueue_test")
def test_letters_that_come_twice_do_nothing(group: Group) -> None:
    letters = NodeBatch(*ONE.id[:2], 1, 2, 0, [publish(ONE, "a"), Purge(ONE.request()), publish(ONE, "b")])
    assert len(group.entry(letters)) == 3
    assert not group.entry(letters)
    assert group.leader.ready == 1


def test_letters_behind_a_gap_do_nothing(group: Group) -> None:
    group.says(ONE, publish(ONE, "a"))
    assert not group.entry(NodeBatch(*ONE.id[:2], 3, 3, 0, [publish(ONE, "c")]))
    assert not group.entry(NodeBatch(*TWO.id[:2], 2, 2, 0, [publish(TWO, "c")]))
    assert (
        group.leader.ready,
        group.leader.link_last(*ONE.id[:2]),
        len(group.leader.node_links.by_node),
    ) == (1, 1, 1)


def test_a_node_speaks_for_itself(group: Group) -> None:
    ref = group.reads(TWO, 5, "a")
    group.says(ONE, Settle(ref, [0], DeliveryOutcome.ACCEPT), Cancel(ref), publish(TWO, "b"))
    assert (group.leader.unsettled, group.leader.consumers, group.leader.ready) == (1, 1, 0)


@pytest.mark.rabbitmq("amqp_client_SUITE", "lost_deliveries_quorum_queue")
@pytest.mark.rabbitmq("rabbit_fifo_int_SUITE", "detects_lost_delivery", "lost_delivery")
def test_what_was_seen_is_not_sent_again(group: Group) -> None:
    ref = group.reads(ONE, 5, "a", "b")
    group.says(ONE, publish(ONE, "c"))
    group.fail_over()
    (deliver,) = group.resume(ONE, {ref: 2}).deliveries
    assert bodies([deliver]) == ["c"]
    assert not group.resume(ONE, {ref: 3}).deliveries
    assert bodies(group.resume(ONE).deliveries) == ["a", "b", "c"]


def test_what_went_out_settled_is_sent_again(group: Group) -> None:
    ref = group.reads(ONE, 5, "a", "b", "c", settled=True)
    group.fail_over()
    assert bodies(group.resume(ONE, {ref: 1}).deliveries) == ["b", "c"]
    group.says(ONE, Credit(ref, 1, 5, False, 1))
    group.fail_over()
    assert bodies(group.resume(ONE, {ref: 1}).deliveries) == ["b", "c"]
    group.says(ONE, Credit(ref, 3, 5, False, 3))
    assert not group.resume(ONE, {ref: 3}).deliveries
    group.says(ONE, publish(ONE, "d"))
    group.says(ONE, GiveBack(ref, [], [], 3, 3, 1), Cancel(ref))
    found = group.resume(ONE, {ref: 3})
    assert (found.deliveries, found.unknown, group.leader.ready) == ([], [ref], 1)


def test_what_is_sent_again_is_marked_as_it_was(group: Group) -> None:
    ref = group.reads(ONE, 2, "a", "b")
    told = group.says(
        ONE,
        Settle(ref, [0], DeliveryOutcome.REQUEUE_FAILED),
        GiveBack(ref, [], [], 2, 2, 3),
        Credit(ref, 2, 2, False, 2),
    )
    first = [each for each in told if isinstance(each, Deliver)]
    assert counts(told) == [(1, 1)]
    group.fail_over()
    (again,) = group.resume(ONE, {ref: 2}).deliveries
    assert (again.keys, again.messages, again.epoch, again.again) == (
        first[0].keys,
        first[0].messages,
        3,
        True,
    )


def test_counts_survive() -> None:
    group = Group(delivery_limit=2)
    ref = group.reads(ONE, 1, "a")
    for attempt in (1, 2):
        group.says(ONE, Settle(ref, [0], DeliveryOutcome.REQUEUE_FAILED))
        group.fail_over()
        told = group.says(ONE, Credit(ref, attempt, 1, False, attempt))
        assert counts(told) == [(attempt, attempt)]
    group.says(ONE, Settle(ref, [0], DeliveryOutcome.REQUEUE_FAILED))
    assert (group.leader.ready, group.leader.unsettled) == (0, 0)


@pytest.mark.parametrize("lost", [NodeGone, NodeSuspect])
def test_what_comes_back_has_one_order(lost: type[NodeGone | NodeSuspect], group: Group) -> None:
    """The consumers got messages in turn, on a node that has restarted or was away for long."""
    for _ in range(3):
        group.reads(ONE, 2)
    group.says(TWO, publish(TWO, "a", "b", "c", "d", "e", "f"))
    group.entry(lost(*ONE.id[:2]))
    group.wait(T12)
    ref = group.reads(TWO, 10)
    assert bodies(group.told, ref) == ["a", "b", "c", "d", "e", "f"]


def test_time_never_runs_back() -> None:
    group = Group(message_ttl_ms=1000)
    group.says(ONE, publish(ONE, "a"))
    group.now += 900
    group.entry(TICK)
    group.says(ONE, publish(ONE, "b"))
    group.entry(TICK, back=800)
    assert group.leader.messages.now_ms == group.now
    assert group.leader.deadline() == group.now + 100
    group.entry(NodeBatch(*ONE.id[:2], 3, 3, 0, [publish(ONE, "c")]), back=800)
    group.wait(1000)
    assert group.leader.ready == 0


def test_time_passes_by_the_log_alone() -> None:
    group = Group(message_ttl_ms=1000)
    group.says(ONE, publish(ONE, "a"))
    group.now += 1001
    group.leader.apply(Inspect(ONE.request()), group.now)
    assert encode_snapshot(group.leader) == encode_snapshot(group.follower)
    group.entry(TICK)
    assert group.leader.ready == 0


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "consumer_disconnected_timeout_test")
@pytest.mark.rabbitmq(
    "quorum_queue_SUITE", "consumer_disconnected_timeout_queue_arg", "consumer_disconnected_timeout_policy"
)
def test_a_node_that_is_not_heard_of_keeps_what_it_holds(group: Group) -> None:
    ref = group.reads(ONE, 1, "a")
    other = group.reads(TWO, 10)
    assert not bodies(group.suspect(ONE))
    group.wait(1000)
    assert not bodies(group.suspect(ONE))
    assert group.leader.deadline() == group.now - 1000 + T12
    group.fail_over()
    assert not bodies(group.wait(T12 - 1001))
    assert group.leader.unsettled == 1
    told = group.wait(1)
    assert bodies(told, other) == ["a"]
    assert counts(told) == [(1, 0)]
    assert group.leader.deadline() is None or group.leader.deadline() > group.now + T12
    assert not any(isinstance(each, TimedOut) for each in told)
    assert group.leader.consumers == 2
    # What it says of it later has no effect, and it has missed nothing when it is back.
    group.says(ONE, Settle(ref, [0], DeliveryOutcome.ACCEPT))
    assert (group.leader.unsettled, group.resume(ONE, {ref: 1}).consumers[ref].missed) == (1, 0)
    assert group.resume(ONE, {ref: 0}).consumers[ref].missed == 1
    group.back(ONE)
    group.says(TWO, Settle(other, [0], DeliveryOutcome.ACCEPT), Cancel(other))
    assert bodies(group.says(ONE, Credit(ref, 1, 1, False, 1), publish(ONE, "b")), ref) == ["b"]


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "down_with_noconnection_marks_suspect_and_node_is_monitored_test",
    "active_flag_updated_when_consumer_suspected_unsuspected_test",
    note="who is suspected gets nothing; `queue_status` says so",
)
def test_a_node_that_is_back_goes_on(group: Group) -> None:
    ref = group.reads(ONE, 5, "a")
    group.suspect(ONE)
    late = ONE.consumer()
    told = group.says(ONE, publish(ONE, "b"), Credit(ref, 1, 5, False, 1), Subscribe(late, False))
    assert not bodies(told)
    assert [each.credit for each in told if isinstance(each, CreditReply)] == [5]
    told = group.says(ONE, Credit(late, 0, 5, False, 0))
    assert not bodies(told)
    group.fail_over()
    group.wait(T12 - 1)
    told = group.back(ONE)
    assert (bodies(told), counts(told)) == (["b"], [(0, 0)])
    assert not bodies(group.wait(T12))
    assert not group.leader.suspects
    told = group.back(ONE)
    assert not told


def test_the_wait_for_a_node_is_the_queues_own() -> None:
    group = Group(consumer_disconnected_timeout_ms=500)
    group.reads(ONE, 1, "a")
    group.suspect(ONE)
    group.wait(499)
    assert group.leader.unsettled == 1
    group.entry(Configure(QueueSettings(consumer_disconnected_timeout_ms=499)))
    assert group.leader.unsettled == 0
    group = Group(consumer_disconnected_timeout_ms=0)
    group.reads(ONE, 1, "a")
    group.suspect(ONE)
    assert (group.leader.unsettled, group.leader.ready) == (0, 1)


def test_what_a_suspect_got_settled_stays_its_own(group: Group) -> None:
    ref = group.reads(ONE, 5, "a", settled=True)
    group.suspect(ONE)
    group.wait(T12)
    assert group.leader.ready == 0
    group.back(ONE)
    assert bodies(group.resume(ONE, {ref: 0}).deliveries) == ["a"]


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "active_flag_not_updated_when_consumer_suspected_unsuspected_and_single_active_consumer_is_on_test",
    "single_active_consumer_replaces_consumer_when_down_noconnection_test",
    "single_active_returns_messages_on_noconnection_test",
    note="when the node's time is over",
)
def test_the_active_consumer_stays_until_it_is_given_up() -> None:
    group = Group(single_active_consumer=True)
    ref = group.reads(ONE, 5)
    other = group.reads(TWO, 5)
    group.suspect(ONE)
    assert not bodies(group.says(TWO, publish(TWO, "a")))
    assert not any(isinstance(each, ActiveChanged) for each in group.wait(T12 - 1))
    assert group.resume(ONE, {ref: 0}).consumers[ref].active is True
    group.fail_over()
    told = group.wait(1)
    assert active(told) == [(ref, False), (other, True)]
    assert bodies(told, other) == ["a"]
    group.back(ONE)
    assert group.resume(ONE, {ref: 0}).consumers[ref].active is False
    group.says(
        TWO, Settle(other, [0], DeliveryOutcome.ACCEPT), GiveBack(other, [], [], 1, 1, 1), Cancel(other)
    )
    assert group.resume(ONE, {ref: 0}).consumers[ref].active is True


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_higher_waiting_disconnected_test")
def test_one_that_is_not_heard_of_does_not_become_the_active_one() -> None:
    group = Group(single_active_consumer=True)
    ref = group.reads(ONE, 5)
    group.suspect(TWO)
    best = group.reads(TWO, 5, priority=3)
    assert active(group.told) == [(best, False)]
    assert bodies(group.says(ONE, publish(ONE, "a")), ref) == ["a"]
    group.says(ONE, Settle(ref, [0], DeliveryOutcome.ACCEPT))
    told = group.back(TWO)
    assert active(told) == [(ref, False), (best, True)]


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "single_active_consumer_all_disconnected_test")
def test_one_of_many_that_are_away_is_active_when_back() -> None:
    group = Group(single_active_consumer=True)
    ref = group.reads(ONE, 5)
    other = group.reads(TWO, 5, "a")
    group.suspect(ONE, TWO)
    told = group.wait(T12)
    assert active(told) == [(ref, False)]
    assert (group.leader.ready, group.leader.consumers) == (1, 2)
    told = group.back(TWO)
    assert active(told) == [(other, True)]
    assert (bodies(told, other), counts(told)) == (["a"], [(1, 0)])
    assert not group.back(ONE)


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "cancelled_consumer_comes_back_after_noconnection_test",
    "cancelled_down_with_noconnection_comes_back_test",
    "single_active_consumer_cancelled_with_pending_disconnected_test",
)
@pytest.mark.parametrize("single", [False, True], ids=["all consumers", "single active consumer"])
def test_a_cancelled_consumer_that_is_away_settles_when_back(single: bool) -> None:
    group = Group(single_active_consumer=single)
    ref = group.reads(ONE, 5, "a", "b")
    group.says(ONE, GiveBack(ref, [], [], 2, 2, 1), Cancel(ref))
    group.suspect(ONE)
    other = group.reads(TWO, 5)
    assert not bodies(group.told)
    group.back(ONE)
    group.says(ONE, Settle(ref, [0], DeliveryOutcome.ACCEPT))
    assert group.leader.unsettled == 1
    group.suspect(ONE)
    told = group.wait(T12)
    assert (bodies(told, other), counts(told)) == (["b"], [(1, 0)])
    assert group.resume(ONE, {ref: 2}).unknown == [ref], "it holds nothing and gets nothing"


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE", "consumer_timeout_disconnected_test", "sac_consumer_timeout_noconnection_test"
)
@pytest.mark.parametrize("single", [False, True], ids=["all consumers", "single active consumer"])
def test_a_delivery_times_out_though_its_node_is_away(single: bool) -> None:
    group = Group(single_active_consumer=single, consumer_timeout_ms=1000)
    ref = group.reads(ONE, 1, "a")
    other = group.reads(TWO, 5)
    group.suspect(ONE)
    told = group.wait(1000)
    assert (bodies(told, other), counts(told)) == (["a"], [(1, 0)])
    group.says(TWO, Settle(other, [0], DeliveryOutcome.ACCEPT), publish(TWO, "b"))
    group.back(ONE)
    assert [type(each) for _, _, each in group.resume(ONE).kept] == [TimedOut]
    group.says(
        TWO, Settle(other, [1], DeliveryOutcome.ACCEPT), GiveBack(other, [], [], 2, 2, 1), Cancel(other)
    )
    assert not bodies(group.says(TWO, publish(TWO, "c"))), "it is not heard of, though its node is"
    assert bodies(group.says(ONE, Credit(ref, 1, 1, False, 1)), ref) == ["c"]


@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "delayed_retry_consumer_disconnect_all_mode_test",
    "delayed_retry_consumer_disconnect_timeout_test",
)
@pytest.mark.parametrize(
    ("kind", "waits"), [(RetryType.ALL, True), (RetryType.RETURNED, True), (RetryType.FAILED, False)]
)
def test_what_comes_back_after_long_waits_as_returns_do(kind: RetryType, waits: bool) -> None:
    group = Group(retry_type=kind, retry_min_ms=5000)
    group.reads(ONE, 1, "a")
    group.suspect(ONE)
    group.wait(T12)
    assert (group.leader.delayed, group.leader.ready) == ((1, 0) if waits else (0, 1))
    group.wait(5000)
    assert group.leader.ready == 1


@pytest.mark.rabbitmq("rabbit_fifo_SUITE", "purge_nodes_test")
def test_an_older_start_takes_nothing_from_a_newer_one(group: Group) -> None:
    ref, new = (group.reads(each, 1, body) for each, body in ((ONE, "a"), (NEW, "b")))
    for each in (ONE, NEW):
        group.says(each, AttachPublisher(each.publisher()))
    group.suspect(ONE, NEW)
    told = group.entry(NodeGone(*ONE.id[:2]))
    assert not bodies(told)
    assert list(group.leader.node_links.by_node) == [NEW.id[:2]]
    assert list(group.leader.suspects) == [NEW.id[:2]]
    assert (group.leader.consumers, group.leader.publishers, group.leader.unsettled) == (1, 1, 1)
    found = group.resume(NEW, {new: 1})
    assert (found.last, len(found.publishers), found.unknown) == (4, 1, [])
    assert group.resume(ONE, {ref: 1}).unknown == [ref]


def test_who_is_gone_comes_no_more(group: Group) -> None:
    """A subscription that is committed late must not leave a consumer without a session."""
    group.entry(NodeGone(*ONE.id[:2]))
    group.fail_over()
    group.reads(ONE, 5)
    assert (group.leader.consumers, len(group.leader.node_links.by_node)) == (0, 0)
    group.reads(NEW, 5)
    assert group.leader.consumers == 1


def test_what_was_given_back_before_is_of_another_epoch(group: Group) -> None:
    ref = group.reads(ONE, 2, "a", "b", "c")
    group.says(ONE, GiveBack(ref, [], [], 1, 1, 6))
    group.fail_over()
    told = group.says(ONE, Credit(ref, 1, 1, False, 1))
    assert [each.epoch for each in told if isinstance(each, Deliver | CreditReply)] == [6, 6]
    found = group.resume(ONE, {ref: 1})
    assert [each.epoch for each in found.deliveries] == [6]
    assert found.consumers[ref].epoch == 6
    assert bodies(found.deliveries) == ["b"]


@pytest.mark.rabbitmq(
    "amqp_client_SUITE",
    "leader_transfer_quorum_queue_credit_batches",
    "leader_transfer_quorum_queue_credit_single",
)
def test_credit_counts_once(group: Group) -> None:
    ref = group.reads(ONE, 3, "a", "b")
    group.fail_over()
    facts = group.resume(ONE, {ref: 2}).consumers[ref]
    assert (facts.delivery_count, facts.credit, facts.available) == (2, 1, 0)
    told = group.says(ONE, Credit(ref, 0, 3, False, 0), publish(ONE, "c", "d", "e"))
    assert bodies(told) == ["c"]
    (reply,) = [each for each in told if isinstance(each, CreditReply)]
    assert (reply.delivery_count, reply.credit) == (2, 1)


def test_a_refused_publish_stays_refused() -> None:
    group = Group(max_length=1, overflow=Overflow.REJECT_PUBLISH)
    sent = publish(ONE, "a", "b", "c")
    group.says(ONE, sent)
    group.says(TWO, publish(TWO, "d"))
    group.fail_over()
    ((index, peer, effect),) = group.resume(ONE).kept
    assert (index, peer) == (1, ONE.id)
    assert isinstance(effect, PublishRejected)
    assert (effect.publisher, list(effect.ids), effect.queue) == (sent.publisher, [1, 2], "q")
    assert len(group.resume(TWO).kept) == 1
    assert not group.resume(ONE, heard=1).kept
    group.says(ONE, heard=1)
    assert not group.resume(ONE).kept
    group.says(TWO, heard=1)
    assert len(group.resume(TWO).kept) == 1


def test_an_answer_is_kept(group: Group) -> None:
    request = ONE.request()
    group.says(ONE, publish(ONE, "a", "b"), Purge(request))
    group.fail_over()
    assert [effect for _, _, effect in group.resume(ONE).kept] == [Answer(request, 2, 0)]


def test_a_time_out_is_kept() -> None:
    group = Group(consumer_timeout_ms=1000)
    ref = group.reads(ONE, 2, "a", "b")
    group.wait(1000)
    group.fail_over()
    found = group.resume(ONE, {ref: 1})
    assert [effect for _, _, effect in found.kept] == [TimedOut(ref, range(2), "q")]
    assert (found.deliveries, found.consumers[ref].missed) == ([], 1)
    # The node counts it from now on, and so do the letters that it sends again.
    told = group.says(ONE, Credit(ref, 2, 2, False, 2))
    assert (bodies(told), counts(told)) == (["a", "b"], [(1, 0), (1, 0)])
    assert bodies(group.resume(ONE, {ref: 2}).deliveries) == ["a", "b"]
    found = group.resume(ONE, {ref: 0})
    assert (bodies(found.deliveries), found.consumers[ref].missed) == (["a", "b"], 2)


def test_dead_letters_are_offered_anew() -> None:
    """The leader offers at-least-once letters, also those another had under way; followers never do."""
    group = Group(
        dead_letter_exchange="dlx",
        dead_letter_strategy=DeadLetterStrategy.AT_LEAST_ONCE,
        overflow=Overflow.REJECT_PUBLISH,
    )
    ref = group.reads(ONE, 9, "a", "b", "c")
    group.says(ONE, Settle(ref, [0, 1, 2], DeliveryOutcome.DISCARD))
    assert not group.follower.take_dlx()
    first = group.leader
    assert [each.key for each in first.take_dlx()] == [0, 1, 2]
    group.entry(DlxSettle([1]))
    group.fail_over()
    assert not first.take_dlx()
    assert [each.key for each in group.leader.take_dlx()] == [0, 2]
    group.leader.follow()
    group.leader.lead()
    assert [each.key for each in group.leader.take_dlx()] == [0, 2]


def test_dead_letters_at_most_once_are_the_leaders() -> None:
    group = Group(dead_letter_exchange="dlx")
    ref = group.reads(ONE, 9, "a")
    group.says(ONE, Settle(ref, [0], DeliveryOutcome.DISCARD))
    assert len(group.leader.take_dead_letters()) == 1
    group.fail_over()
    assert not group.leader.take_dead_letters()
