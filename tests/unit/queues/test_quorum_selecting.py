"""Consumers of a quorum queue that select, browsers, and levels of priority."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.emulation import rules_of
from amqp10broker.message.filters import filters
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import (
    DELETE,
    TICK,
    ConsumerRef,
    Credit,
    CreditReply,
    Deliver,
    DeliveryOutcome,
    GiveBack,
    QueueDeleted,
    Settle,
    Settled,
)
from amqp10broker.queues.queue_status import Looking
from amqp10broker.queues.quorum.commands import (
    Browsing,
    QuorumCommand,
    Selected,
    SessionGone,
    decode_commands,
    encode_commands,
)
from amqp10broker.queues.quorum.queue import QuorumQueue, decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import Overflow
from tests.support.quorum_bench import Bench, message, only
from tests.support.selecting import SQL, coloured, selector

RED, BLUE = selector("colour = 'red'"), selector("colour = 'blue'")


class Colours(Bench):
    """A queue of messages by colour, numbered from 0, and another member that follows it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.count = 0
        self.scan_max = 1_000
        self.follower = QuorumQueue("q", settings=self.settings, now_ms=self.now)
        self.follower.follow()

    def do(self, command: QuorumCommand) -> list[object]:
        entry = b"".join(encode_commands([command], self.now, self.queue.messages.next_index).pieces)
        told = super().do(command)
        for each in decode_commands(entry).commands:
            self.follower.apply(each, self.now)
        assert encode_snapshot(self.follower) == encode_snapshot(self.queue)
        return told

    def put(self, *colours: str, priority: int | None = None, ttl: int | None = None) -> list[object]:
        first, self.count = self.count, self.count + len(colours)
        batch = [
            coloured(number, each, priority=priority, ttl=ttl) for number, each in enumerate(colours, first)
        ]
        return self.publish_all(batch)

    def selects(self, filters: object, credit: int = 0, **options: Any) -> ConsumerRef:
        return self.consumer(credit, filters=filters, **options)

    def look(self) -> Selected | None:
        return self.queue.look(self.scan_max)

    def turns(self) -> int:
        """The leader looks until there is nothing to look at; how often."""
        count = 0
        while (found := self.look()) is not None:
            self.do(found)
            count += 1
        return count

    def got(self, ref: ConsumerRef) -> list[int]:
        """Numbers of all that a consumer was given, when the leader has looked."""
        self.turns()
        return [int(each[1].rpartition(b"#")[2]) for each in self.delivered(self.told, ref)]

    def dead_letters_by_reason(self) -> list[tuple[str, list[Message]]]:
        return [(each.reason.value, list(each.messages)) for each in self.dead_letters()]

    def looking(self, ref: ConsumerRef) -> Looking:
        looking = self.queue.queue_status().parts[ref].looking
        assert looking is not None
        return looking

    def replies(self, ref: ConsumerRef) -> list[CreditReply]:
        return [each for each in only(self.told, CreditReply) if each.consumer == ref]


@pytest.fixture
def bench() -> Colours:
    return Colours()


def test_what_does_not_match_stays_in_its_place_for_others(bench: Colours) -> None:
    """Each gets its matches in queue order, and credit is used by matches only."""
    bench.put("red", "blue", "red", "blue", "red")
    blue = bench.selects(BLUE, 10)
    assert bench.got(blue) == [1, 3]
    assert bench.queue.queue_status().parts[blue].credit == 8
    assert bench.queue.ready == 3
    plain = bench.consumer(10)
    assert bench.got(plain) == [0, 2, 4]
    bench.put("blue")
    assert bench.got(blue) == [1, 3, 5]


def test_complementary_selectors_split_a_queue(bench: Colours) -> None:
    red, blue = bench.selects(RED, 100), bench.selects(BLUE, 100)
    bench.put("red", "blue", "blue", "red")
    bench.put("blue", "red")
    assert (bench.got(red), bench.got(blue)) == ([0, 3, 5], [1, 2, 4])


def test_what_comes_back_goes_to_the_next_that_matches() -> None:
    """Before what nobody had; and its counts say how often it came back."""
    bench = Colours(delivery_limit=2, dead_letter_exchange="dead")
    bench.put("blue", "red", "blue", "red", "red")
    first = bench.selects(RED, 2)
    assert bench.got(first) == [1, 3]
    second = bench.selects(RED, 1)
    assert bench.got(second) == [4]
    bench.settle(first, DeliveryOutcome.REQUEUE, [1])
    bench.credit(second, 1)
    assert bench.got(second) == [4, 1]
    for _ in range(2):
        bench.settle(second, DeliveryOutcome.REQUEUE_FAILED, [1])
        bench.credit(second, 1)
        bench.turns()
    ((reason, (dead,)),) = bench.dead_letters_by_reason()
    assert (reason, dead[1].endswith(b"#1")) == ("delivery_limit", True)


def test_what_is_given_back_unseen_stands_in_its_place_again(bench: Colours) -> None:
    """And is looked at again by those that had looked there, and nothing else is."""
    bench.put("red", "red", "blue", "red")
    first, second = bench.selects(RED, 9), bench.selects(BLUE, 9)
    assert bench.got(first) == [0, 1, 3]
    looked_at = bench.looking(second).looked_at
    third = bench.selects(RED, 9)
    bench.turns()
    bench.give_back(first, [1])
    assert bench.got(third) == [1]
    assert bench.looking(second).looked_at == looked_at + 1


def test_a_drain_ends_when_the_queue_was_looked_through(bench: Colours) -> None:
    """To its end as it was when the drain came, however many turns that takes; then credit is gone."""
    bench.scan_max = 10
    bench.put(*["red"] * 95, "blue", *["red"] * 4)
    blue = bench.selects(BLUE)
    bench.credit(blue, 3, drain=True)
    assert bench.replies(blue) == []
    bench.put("red")
    assert bench.turns() >= 10
    assert bench.got(blue) == [95]
    assert [(reply.credit, reply.drain) for reply in bench.replies(blue)] == [(0, True)]
    assert bench.queue.parts()[1].by_ref[blue].delivery_count == 3


def test_a_drain_of_one_that_times_out_is_answered() -> None:
    """It gets nothing more until it is heard of, and must not wait for ever."""
    bench = Colours(consumer_timeout_ms=100)
    bench.put("blue")
    blue = bench.selects(BLUE, 1)
    bench.turns()
    bench.put("blue", "red")
    bench.credit(blue, 5, drain=True)
    assert len(bench.replies(blue)) == 1
    bench.wait(200)
    assert [reply.drain for reply in bench.replies(blue)] == [False, True]


def test_what_nobody_selects_stays_until_a_limit_drops_it_or_it_expires() -> None:
    """And what has expired in the middle of the queue is given to nobody."""
    bench = Colours(max_length=4, dead_letter_exchange="dead")
    bench.put("red")
    bench.put("blue", ttl=50)
    bench.put("red", "blue")
    bench.now += 60
    blue = bench.selects(BLUE, 5)
    assert bench.got(blue) == [3]
    bench.put("red", "red", "red")
    found = [(reason, [each[1][-2:] for each in some]) for reason, some in bench.dead_letters_by_reason()]
    assert found == [("expired", [b"#1"]), ("maxlen", [b"#0"])]


def test_a_message_is_looked_at_once_however_often_credit_comes() -> None:
    """100 000 messages, the only match is the last one, credit 1 a hundred times: one pass."""
    bench = Bench()
    messages = 100_000
    batch = [coloured(0, "red")] * 1_000
    for _ in range(messages // 1_000 - 1):
        bench.publish_all(batch)
    bench.publish_all([*batch[:-1], coloured(messages - 1, "blue")])
    blue = bench.consumer(filters=BLUE)
    for _ in range(100):
        bench.credit(blue, 1)
        while (found := bench.queue.look(1_000)) is not None:
            bench.do(found)
    assert len(bench.delivered(bench.told, blue)) == 1
    assert bench.queue.queue_status().parts[blue].looking == Looking(True, messages, 1, True)


def test_a_long_queue_is_looked_through_in_turns_and_others_are_served_meanwhile(bench: Colours) -> None:
    """At most so many messages a turn, all consumers together; what was looked at is for everybody."""
    bench.scan_max = 100
    bench.put(*["red"] * 1_000)
    first, second, plain = bench.selects(BLUE, 5), bench.selects(BLUE, 5), bench.consumer(1_000)
    before = 0
    for _ in range(5):
        found = bench.look()
        assert found is not None
        bench.do(found)
        looked_at = bench.looking(first).looked_at + bench.looking(second).looked_at
        assert 0 < looked_at - before <= 100
        before = looked_at
    assert 0 < len(bench.held(plain)) < 1_000
    bench.turns()
    assert len(bench.held(plain)) == 1_000


def test_of_those_that_select_the_higher_priority_comes_first(bench: Colours) -> None:
    bench.scan_max = 10
    low = bench.selects(selector("colour IS NOT NULL"), 100)
    high = bench.selects(BLUE, 1, priority=1)
    bench.put(*["red"] * 50, "blue", "blue")
    assert bench.got(high) == [50]
    assert bench.got(low) == [*range(50), 51]


def test_who_drains_or_fetches_does_not_wait_for_those_that_select(bench: Colours) -> None:
    """It asks for what is there now, and there is something."""
    bench.selects(BLUE, 1, priority=1)
    bench.put("red", "blue")
    plain = bench.consumer(counted=False)
    told = bench.credit(plain, 1, drain=True)
    assert [each[1][-2:] for each in bench.delivered(told, plain)] == [b"#0"]


def test_what_was_found_and_is_gone_is_left_out_and_what_may_not_be_had_stays(bench: Colours) -> None:
    """Between the look and its entry others take messages, credit is lowered, or the consumer goes."""
    bench.put("red", "red", "red")
    red, other = bench.selects(RED, 3), bench.selects(RED)
    found = bench.look()
    assert found is not None
    plain = bench.consumer(1, priority=1)
    assert bench.held(plain) == [0]
    bench.credit(red, 1)
    bench.do(found)
    assert bench.got(red) == [1]
    bench.credit(other, 5)
    found = bench.look()
    assert found is not None
    bench.do(SessionGone(bench.reply_to.id))
    bench.do(found)
    assert bench.queue.ready == 3


def test_the_limit_of_a_queue_that_rejects_counts_what_waits_to_be_looked_at() -> None:
    """A consumer that would take it has to wait, so there is no room for it."""
    bench = Colours(max_length=1, overflow=Overflow.REJECT_PUBLISH)
    bench.selects(BLUE, 3)
    plain = bench.consumer(5)
    bench.put("red", "red", "red")
    assert bench.got(plain) == [0]


def test_sql_filters_are_of_the_same_kind(bench: Colours) -> None:
    bench.put("red", "blue", "green")
    filters = selector("colour IN ('blue', 'green') AND NOT colour = 'green'", SQL)
    assert bench.got(bench.selects(filters, 10)) == [1]


def test_cursors_are_in_the_state_and_followers_evaluate_nothing(
    monkeypatch: pytest.MonkeyPatch, bench: Colours
) -> None:
    """A member that has a snapshot, and leads, goes on where the other was."""
    bench.put(*["red"] * 20)
    blue = bench.selects(BLUE, 2)
    bench.turns()
    state = encode_snapshot(bench.queue)
    other = decode_snapshot("q", state, bench.queue.parts()[0].bodies)
    assert encode_snapshot(other) == state
    assert other.look(1_000) is None, "all was looked at"
    bench.put("blue")

    def read(data: bytes) -> object:
        raise AssertionError("a follower reads what somebody selects")

    monkeypatch.setattr(filters, "decode_wanted", read)
    assert bench.got(blue) == [20]
    assert bench.follower.unsettled == 1


def test_without_them_the_state_is_as_that_of_before() -> None:
    """Its bytes say nothing of those that have selected."""
    bench, plain = Colours(), Colours()
    for each in (bench, plain):
        each.put("red", "red")
    red = bench.selects(RED, 2)
    bench.turns()
    bench.give_back(red, [0, 1])
    bench.leave(red, DeliveryOutcome.REQUEUE)
    assert b"again" not in encode_snapshot(bench.queue)
    assert b"again" not in encode_snapshot(plain.queue)
    assert bench.queue.ready == plain.queue.ready == 2


BLUE_BROWSING = selector("colour = 'blue'")


class Browsed(Bench):
    """As the queue's shell does it: what browsers ask is told apart before there is an entry."""

    def do(self, command: QuorumCommand) -> list[object]:
        (marked,) = self.queue.browsers.marked([command])
        return super().do(marked)

    def browser(self, credit: int = 0, **options: Any) -> tuple[ConsumerRef, list[str]]:
        """A browser, and what it is shown at once."""
        before = len(self.told)
        ref = self.consumer(credit, browse=True, counted=False, **options)
        return ref, self.bodies(self.told[before:], ref)

    def turns(self) -> list[object]:
        """The queue goes on until it has nothing to do."""
        told: list[object] = []
        while self.queue.browsers.unfinished:
            self.queue.show_on()
            told += self.take()
        return told


def test_a_browser_is_shown_what_is_there_and_what_comes() -> None:
    """From the head on, while its credit lasts; the messages stay, and others get them as if never seen."""
    bench = Browsed()
    bench.publish("a", "b")
    ref, shown = bench.browser(3)
    assert shown == ["a", "b"]
    assert bench.bodies(bench.publish("c", "d"), ref) == ["c"]
    assert bench.bodies(bench.credit(ref, 5, drain=True), ref) == ["d"]
    assert [(each.credit, each.drain) for each in only(bench.told, CreditReply)][-1] == (0, True)
    assert (bench.queue.ready, bench.queue.unsettled, bench.queue.consumers) == (4, 0, 0)
    taker = bench.consumer()
    told = bench.credit(taker, 9)
    assert bench.bodies(told, taker) == ["a", "b", "c", "d"]
    assert not any(each.again for each in only(told, Deliver))


@pytest.mark.parametrize("delivery_outcome", list(DeliveryOutcome))
def test_what_a_browser_decides_is_answered_and_ignored(delivery_outcome: DeliveryOutcome) -> None:
    bench = Browsed(dead_letter_exchange="dead")
    bench.publish("a", "b")
    ref, _ = bench.browser(2)
    bench.settle(ref, delivery_outcome, [0])
    bench.leave(ref, delivery_outcome)
    assert not bench.queue.browsers
    assert bench.dead() == []
    assert bench.get(bench.consumer(), 5) == ["a", "b"]


def test_a_browser_that_gives_back_is_shown_it_again() -> None:
    """Its session did not send it: with the next credit it comes again, and nothing twice."""
    bench = Browsed()
    bench.publish("a", "b", "c")
    ref, shown = bench.browser(3)
    bench.give_back(ref, [1, 2])
    assert shown == ["a", "b", "c"]
    handed = bench._handed[ref]
    bench._handed[ref] = handed - 2
    assert bench.get(ref, 5) == ["b", "c"]


def test_what_is_given_back_after_another_request_is_shown_again() -> None:
    """That request said that it had come; a message that came back meanwhile stands elsewhere."""
    bench = Browsed()
    taker = bench.consumer()
    bench.publish("a", "b", "c", "d")
    ref, _ = bench.browser(4)
    bench.do(Credit(ref, 0, 4, False, 4))
    bench.credit(taker, 1)
    bench.settle(taker, DeliveryOutcome.REQUEUE, [0])
    assert bench.bodies(bench.told[-2:], ref) == []
    bench.do(GiveBack(ref, [2, 3], [], 4, 4, 1))
    told = bench.do(Credit(ref, 4, 4, True, 4))
    assert bench.bodies(told, ref) == ["c", "d", "a"]


def test_a_browser_may_select_and_looks_in_turns() -> None:
    """At most `scan_max` messages a turn; a drain is answered when the end was reached."""
    bench = Browsed()
    bench.queue.browsers.scan_max = 10
    bench.publish_all([coloured(number, "blue" if number == 55 else "red") for number in range(60)])
    ref, _ = bench.browser(filters=BLUE_BROWSING)
    assert only(bench.credit(ref, 2, drain=True), CreditReply) == []
    told = bench.turns()
    (delivered,) = bench.delivered(told, ref)
    assert delivered[1].endswith(b"#55")
    assert [(each.credit, each.available) for each in only(told, CreditReply)] == [(0, 0)]
    looking = bench.queue.queue_status().parts[ref].looking
    assert (looking.looked_at, looking.passed) == (60, 1)


def test_browsers_are_in_no_entry_and_in_no_state() -> None:
    """So no other member and no restart knows them."""
    bench = Browsed()
    bench.publish("a")
    before = encode_snapshot(bench.queue)
    ref, _ = bench.browser(1)
    assert encode_snapshot(bench.queue) == before
    assert not decode_snapshot("q", before).browsers
    marked = bench.queue.browsers.marked([TICK])
    assert marked == [TICK]
    asked = bench.queue.browsers.marked([_settle(ref)])
    assert [type(each) for each in asked] == [Browsing]
    assert encode_commands(asked, 0, 0).pieces == encode_commands([], 0, 0).pieces


def test_a_settlement_that_wants_an_answer_has_one() -> None:
    bench = Browsed()
    bench.publish("a")
    ref, _ = bench.browser(1)
    assert only(bench.do(_settle(ref)), Settled)[0].keys == [0]


def test_browsers_go_with_their_session_and_hear_of_the_queue_s_end() -> None:
    bench = Browsed()
    first, _ = bench.browser(1)
    assert [each.ref for each in only(bench.do(DELETE), QueueDeleted)] == [first]
    bench = Browsed()
    bench.browser(1)
    bench.do(SessionGone(bench.reply_to.id))
    assert not bench.queue.browsers


def _settle(ref: ConsumerRef) -> QuorumCommand:
    return Settle(ref, [0], DeliveryOutcome.ACCEPT, answer=True)


RULES: dict[str, Any] = dict(rules_of("4.3").quorum)
PRIORITIES = st.none() | st.integers(0, 255)


def level(priority: int | None) -> int:
    return 4 if priority is None else min(priority, 31)


@pytest.mark.rabbitmq("amqp_client_SUITE", "priority_quorum_queue", note="with `emulate` 4.3")
@pytest.mark.rabbitmq("quorum_queue_SUITE", "priority_queue_2_1_ratio", note="with `emulate` 4.3")
@given(st.lists(PRIORITIES, max_size=30), st.integers(1, 10))
def test_the_highest_goes_first_and_each_is_first_in_first_out(
    priorities: list[int | None], some: int
) -> None:
    """Whatever was published in one batch or by itself, and over a snapshot."""
    bench = Bench(**RULES)
    batch = [message(str(number), priority=each) for number, each in enumerate(priorities)]
    for at in range(0, len(batch), some):
        bench.publish_all(batch[at : at + some])
    bench.queue = decode_snapshot("q", encode_snapshot(bench.queue), bench.queue.messages.bodies)
    numbers = sorted(range(len(batch)), key=lambda number: (-level(priorities[number]), number))
    assert bench.get(bench.consumer(), 100) == list(map(str, numbers))


@given(st.lists(PRIORITIES, min_size=1, max_size=12), st.data())
def test_what_never_arrived_goes_back_to_its_place_and_what_was_returned_goes_first(
    priorities: list[int | None], data: st.DataObject
) -> None:
    bench = Bench(**RULES)
    bench.publish_all([message(str(number), priority=each) for number, each in enumerate(priorities)])
    waiting = sorted(range(len(priorities)), key=lambda number: (-level(priorities[number]), number))
    count = data.draw(st.integers(1, len(waiting)))
    consumer = bench.consumer()
    got = [int(each) for each in bench.get(consumer, count)]
    assert got == waiting[:count]
    bench.queue = decode_snapshot("q", encode_snapshot(bench.queue), bench.queue.messages.bodies)
    returned = data.draw(st.lists(st.sampled_from(got), unique=True))
    if returned:
        bench.settle(consumer, DeliveryOutcome.REQUEUE, returned)
    bench.give_back(consumer, [each for each in got if each not in returned])
    left = [each for each in waiting if each not in returned]
    assert [int(each) for each in bench.get(bench.consumer(), 100)] == [*returned, *left]


def test_the_limit_counts_failed_attempts_alone() -> None:
    bench = Bench(delivery_limit=1, **RULES)
    bench.publish("a")
    consumer = bench.consumer()
    for _ in range(5):
        assert bench.get(consumer) == ["a"]
        bench.settle(consumer, DeliveryOutcome.REQUEUE)
    for _ in range(2):
        assert bench.get(consumer) == ["a"]
        bench.settle(consumer, DeliveryOutcome.REQUEUE_FAILED)
    assert bench.get(consumer) == []


def test_a_full_queue_drops_what_would_be_next() -> None:
    bench = Bench(max_length=2, overflow=Overflow.DROP_HEAD, **RULES)
    bench.publish("low", priority=0)
    bench.publish("high", priority=9)
    bench.publish("middle")
    assert bench.get(bench.consumer(), 9) == ["middle", "low"]


def test_a_message_for_later_waits_in_its_level() -> None:
    bench = Bench(**RULES)
    bench.publish_all([message("high", priority=9, delay_ms=5), message("low", priority=0, delay_ms=5)])
    bench.publish_all([message("normal", delay_ms=5)])
    bench.publish("now", priority=1)
    bench.now += 10
    assert bench.get(bench.consumer(), 9) == ["high", "normal", "now", "low"]


def test_a_browser_sees_the_levels_in_order_and_what_comes_later() -> None:
    bench = Browsed(**RULES)
    bench.publish("low", priority=0)
    bench.publish("high", priority=31)
    ref, shown = bench.browser(9)
    assert shown == ["high", "low"]
    assert bench.bodies(bench.publish("higher", priority=20), ref) == ["higher"]


def test_a_consumer_that_selects_gets_the_highest_first_and_followers_agree() -> None:
    queue = Colours(**RULES)
    queue.put("blue", "red", priority=1)
    queue.put("blue", "red", priority=30)
    queue.put("blue")
    consumer = queue.selects(selector("colour = 'blue'"), 2)
    queue.turns()
    assert queue.held(consumer) == [2, 4]
    queue.put("blue", priority=31)
    queue.credit(consumer, 2)
    queue.turns()
    assert queue.held(consumer) == [2, 4, 5, 0]


@pytest.mark.parametrize("version", ["3.13", "4.0", "4.2", "4.3"])
def test_a_snapshot_keeps_the_rules(version: str) -> None:
    bench = Bench(**rules_of(version).quorum)
    bench.publish("a", priority=9)
    again = decode_snapshot("q", encode_snapshot(bench.queue), bench.queue.messages.bodies)
    assert again.settings == bench.settings
    assert encode_snapshot(again) == encode_snapshot(bench.queue)
