"""Consumers of a quorum queue that select, browsers, and levels of priority."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.emulation import rules_of
from amqp10broker.message.filters import filter_set
from amqp10broker.queues import commands
from amqp10broker.queues.quorum.commands import Browsing, QuorumCommand, SessionGone, encode_commands
from amqp10broker.queues.quorum.queue import decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import Overflow
from tests.support.queue_bench import Bench, message, only
from tests.support.selecting import Colours, selector

RED, BLUE = selector("colour = 'red'"), selector("colour = 'blue'")


@pytest.fixture
def bench() -> Colours:
    return Colours()


def test_what_comes_back_to_the_next_that_matches_counts_how_often() -> None:
    bench = Colours(delivery_limit=2, dead_letter_exchange="dead")
    bench.put("blue", "red")
    for _ in range(3):
        red = bench.selects(RED, 1)
        assert bench.numbers(red) == [1]
        bench.settle(red, commands.DeliveryOutcome.REQUEUE_FAILED, [1])
    assert bench.dead_numbers() == [("delivery_limit", [1])]


def test_a_drain_of_one_that_times_out_is_answered() -> None:
    """It gets nothing more until its session settles, and its drain must not wait forever."""
    bench = Colours(consumer_timeout_ms=100)
    bench.put("blue")
    blue = bench.selects(BLUE, 1)
    bench.turns()
    bench.put("blue", "red")
    bench.credit(blue, 5, drain=True)
    assert len(bench.replies(blue)) == 1
    bench.wait(200)
    assert [reply.drain for reply in bench.replies(blue)] == [False, True]


def test_a_long_queue_is_looked_through_in_turns_and_others_are_served_meanwhile(bench: Colours) -> None:
    """All consumers together look at a bounded number a turn; the others get non-matching messages."""
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
    assert bench.numbers(high) == [50]
    assert bench.numbers(low) == [*range(50), 51]


def test_who_drains_or_fetches_does_not_wait_for_those_that_select(bench: Colours) -> None:
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
    assert bench.numbers(red) == [1]
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
    assert bench.numbers(plain) == [0]


def test_cursors_are_in_the_state_and_followers_evaluate_nothing(
    monkeypatch: pytest.MonkeyPatch, bench: Colours
) -> None:
    """A member that has a snapshot, and leads, continues where the previous leader was."""
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

    monkeypatch.setattr(filter_set, "decode_wanted", read)
    assert bench.numbers(blue) == [20]
    assert bench.follower.unsettled == 1


def test_without_them_the_state_is_as_that_of_before() -> None:
    bench, plain = Colours(), Colours()
    for each in (bench, plain):
        each.put("red", "red")
    red = bench.selects(RED, 2)
    bench.turns()
    bench.give_back(red, [0, 1])
    bench.leave(red, commands.DeliveryOutcome.REQUEUE)
    assert b"again" not in encode_snapshot(bench.queue)
    assert b"again" not in encode_snapshot(plain.queue)
    assert bench.queue.ready == plain.queue.ready == 2


def test_a_browser_that_gives_back_is_shown_it_again() -> None:
    """Its session never sent the message: it comes again with the next credit, and nothing comes twice."""
    bench = Bench()
    bench.publish("a", "b", "c")
    ref = bench.browser(3)
    bench.give_back(ref, [1, 2])
    assert bench.got(ref) == ["a", "b", "c"]
    handed = bench._handed[ref]
    bench._handed[ref] = handed - 2
    assert bench.get(ref, 5) == ["b", "c"]


def test_what_is_given_back_after_another_request_is_shown_again() -> None:
    """That request reported it as received; a message requeued meanwhile stands elsewhere."""
    bench = Bench()
    taker = bench.consumer()
    bench.publish("a", "b", "c", "d")
    ref = bench.browser(4)
    bench.do(commands.Credit(ref, 0, 4, False, 4))
    bench.credit(taker, 1)
    bench.settle(taker, commands.DeliveryOutcome.REQUEUE, [0])
    assert bench.bodies(bench.told[-2:], ref) == []
    bench.do(commands.GiveBack(ref, [2, 3], [], 4, 4, 1))
    told = bench.do(commands.Credit(ref, 4, 4, True, 4))
    assert bench.bodies(told, ref) == ["c", "d", "a"]


def test_browsers_are_in_no_entry_and_in_no_state() -> None:
    bench = Bench()
    bench.publish("a")
    before = encode_snapshot(bench.queue)
    ref = bench.browser(1)
    assert encode_snapshot(bench.queue) == before
    assert not decode_snapshot("q", before).browsers
    marked = bench.queue.browsers.marked([commands.TICK])
    assert marked == [commands.TICK]
    asked = bench.queue.browsers.marked([_settle(ref)])
    assert [type(each) for each in asked] == [Browsing]
    assert encode_commands(asked, 0, 0).pieces == encode_commands([], 0, 0).pieces


def test_a_settlement_that_wants_an_answer_has_one() -> None:
    bench = Bench()
    bench.publish("a")
    ref = bench.browser(1)
    assert only(bench.do(_settle(ref)), commands.Settled)[0].keys == [0]


def test_browsers_go_with_their_session_and_hear_of_the_queue_s_end() -> None:
    bench = Bench()
    first = bench.browser(1)
    assert [each.ref for each in only(bench.do(commands.DELETE), commands.QueueDeleted)] == [first]
    bench = Bench()
    bench.browser(1)
    bench.do(SessionGone(bench.reply_to.id))
    assert not bench.queue.browsers


def _settle(ref: commands.ConsumerRef) -> QuorumCommand:
    return commands.Settle(ref, [0], commands.DeliveryOutcome.ACCEPT, answer=True)


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
        bench.settle(consumer, commands.DeliveryOutcome.REQUEUE, returned)
    bench.give_back(consumer, [each for each in got if each not in returned])
    left = [each for each in waiting if each not in returned]
    assert [int(each) for each in bench.get(bench.consumer(), 100)] == [*returned, *left]


def test_the_limit_counts_failed_attempts_alone() -> None:
    bench = Bench(delivery_limit=1, **RULES)
    bench.publish("a")
    consumer = bench.consumer()
    for _ in range(5):
        assert bench.get(consumer) == ["a"]
        bench.settle(consumer, commands.DeliveryOutcome.REQUEUE)
    for _ in range(2):
        assert bench.get(consumer) == ["a"]
        bench.settle(consumer, commands.DeliveryOutcome.REQUEUE_FAILED)
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
    bench = Bench(**RULES)
    bench.publish("low", priority=0)
    bench.publish("high", priority=31)
    ref = bench.browser(9)
    assert bench.got(ref) == ["high", "low"]
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
