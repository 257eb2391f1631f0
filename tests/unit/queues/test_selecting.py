"""Consumers that select or browse, rule by rule: rules of both kinds, and those of classic queues alone."""

from __future__ import annotations

import pytest

from amqp10broker.message.filters.filter_set import SELECTOR, from_amqp10
from amqp10broker.protocols.amqp10.types import Described, Symbol
from amqp10broker.queues import commands
from amqp10broker.queues.classic import consumers as selecting
from amqp10broker.queues.queue_status import Looking
from tests.support.queue_bench import BOTH, confirmed, only
from tests.support.selecting import SQL, Colours, coloured, numbers_of, selector
from tests.support.steps import steps_of

RED, BLUE = selector("colour = 'red'"), selector("colour = 'blue'")


@BOTH
def test_what_does_not_match_stays_in_its_place_for_others(kind: str) -> None:
    """3.2.8: each consumer gets its matches in queue order, and only matches use credit."""
    bench = Colours(kind)
    bench.put("red", "blue", "red", "blue", "red")
    blue = bench.selects(BLUE, 10)
    assert bench.numbers(blue) == [1, 3]
    assert bench.queue.queue_status().parts[blue].credit == 8
    assert bench.queue.ready == 3
    plain = bench.consumer(10)
    assert bench.numbers(plain) == [0, 2, 4]
    bench.cancel(plain)
    bench.put("blue")
    assert (bench.numbers(blue), bench.queue.ready) == ([1, 3, 5], 0)


@BOTH
def test_a_drain_ends_when_the_queue_was_looked_through(kind: str) -> None:
    """3.2.8: the end is that of the drain's arrival, however many turns it takes; then credit is gone."""
    bench = Colours(kind, scan_max=10)
    bench.put(*["red"] * 95, "blue", *["red"] * 4)
    blue = bench.selects(BLUE)
    bench.credit(blue, 3, drain=True)
    assert bench.replies(blue) == []
    bench.put("red")
    assert bench.turns() >= 9
    assert bench.numbers(blue) == [95]
    replies = [(reply.credit, reply.drain, reply.delivery_count) for reply in bench.replies(blue)]
    assert replies == [(0, True, 3)]


@BOTH
def test_complementary_selectors_split_a_queue(kind: str) -> None:
    bench = Colours(kind)
    red, blue = bench.selects(RED, 100), bench.selects(BLUE, 100)
    bench.put("red", "blue", "blue", "red")
    bench.put("blue", "red")
    assert (bench.numbers(red), bench.numbers(blue)) == ([0, 3, 5], [1, 2, 4])


@BOTH
@pytest.mark.parametrize(
    "outcome", [commands.DeliveryOutcome.REQUEUE, commands.DeliveryOutcome.REQUEUE_FAILED]
)
def test_what_comes_back_goes_to_the_next_that_matches(kind: str, outcome: commands.DeliveryOutcome) -> None:
    """3.2.9: it goes before messages never delivered, though nothing else there is looked at again."""
    bench = Colours(kind)
    bench.put("blue", "red", "blue", "red", "red")
    first = bench.selects(RED, 2)
    assert bench.numbers(first) == [1, 3]
    second = bench.selects(RED)
    bench.decide(first, 1, outcome)
    bench.credit(second, 2)
    assert bench.numbers(second) == [1, 4]
    bench.decide(first, 3, outcome)
    order = [0, 2, 3] if kind == "classic" else [3, 0, 2]
    assert bench.numbers(bench.consumer(9)) == order, "to its place, or as returns of quorum queues go"


@BOTH
def test_what_nobody_selects_stays_until_a_limit_drops_it_or_it_expires(kind: str) -> None:
    """3.2.10: an expired message in the middle of the queue is delivered to no consumer."""
    bench = Colours(kind, max_length=4, dead_letter_exchange="dead")
    bench.put("red")
    bench.put("blue", ttl=50)
    bench.put("red", "blue")
    bench.now += 60
    bench.do(commands.TICK)
    browser, blue = bench.browser(10, filters=BLUE), bench.selects(BLUE)
    assert bench.numbers(browser) == [3]
    bench.credit(blue, 5)
    assert bench.numbers(blue) == [3]
    assert bench.dead_numbers() == [("expired", [1])]
    bench.put("red", "red", "red")
    assert bench.dead_numbers() == [("maxlen", [0])]


@BOTH
def test_a_message_is_looked_at_once_however_often_credit_comes(kind: str) -> None:
    """3.2.11: credit 1 comes 100 times, only the last of 100 000 messages matches: a single pass."""
    bench = Colours(kind, followed=False)
    messages = 100_000
    batch = [coloured(0, "red")] * 1_000
    for _ in range(messages // 1_000 - 1):
        bench.publish_all(batch)
    bench.publish_all([*batch[:-1], coloured(messages - 1, "blue")])
    blue = bench.selects(BLUE)
    for _ in range(100):
        bench.credit(blue, 1)
        bench.turns()
    assert bench.numbers(blue) == [messages - 1]
    assert bench.looking(blue) == Looking(selects=True, looked_at=messages, passed=1, rests=True)


@BOTH
def test_sql_filters_are_of_the_same_kind(kind: str) -> None:
    bench = Colours(kind)
    bench.put("red", "blue", "green")
    sql = selector("colour IN ('blue', 'green') AND NOT colour = 'green'", SQL)
    assert bench.numbers(bench.selects(sql, 10)) == [1]


def test_only_what_says_which_messages_are_wanted_is_in_place_on_a_queue() -> None:
    """A filter that names a place in a stream is left out of the attach when a queue is the source."""
    found = from_amqp10(
        {**_entry("rabbitmq:stream-offset-spec", "first"), **_entry("jms", "a = 1", SELECTOR)},
        of_stream=False,
    )
    assert list(found.in_place) == ["jms"]
    assert [each.name for each in found.refused] == ["rabbitmq:stream-offset-spec"]


# --- browsers -------------------------------------------------------------------------------------


@BOTH
def test_a_browser_takes_nothing(kind: str) -> None:
    """3.3.17: it sees the queue from its head on, and later messages while credit lasts."""
    bench = Colours(kind)
    bench.put("red", "blue")
    browser = bench.browser(3)
    assert bench.numbers(browser) == [0, 1]
    bench.put("red", "red")
    assert bench.numbers(browser) == [0, 1, 2]
    bench.credit(browser, 5, drain=True)
    assert bench.numbers(browser) == [0, 1, 2, 3]
    assert [(each.credit, each.drain) for each in bench.replies(browser)][-1] == (0, True)
    assert (bench.queue.ready, bench.queue.unsettled, bench.queue.consumers) == (4, 0, 0)
    taker = bench.consumer()
    told = bench.credit(taker, 9)
    assert numbers_of(bench.delivered(told, taker)) == [0, 1, 2, 3]
    assert not any(each.again for each in only(told, commands.Deliver))


@BOTH
@pytest.mark.parametrize("outcome", list(commands.DeliveryOutcome))
def test_outcomes_of_a_browser_are_ignored(kind: str, outcome: commands.DeliveryOutcome) -> None:
    """3.3.17: the queue is unchanged by any outcome, and so is the next consumer's delivery."""
    bench = Colours(kind, dead_letter_exchange="dead")
    bench.put("red", "blue")
    browser = bench.browser(2)
    bench.decide(browser, 0, outcome)
    bench.leave(browser, outcome)
    assert (bench.queue.ready, bench.dead()) == (2, [])
    taker = bench.consumer(5)
    assert bench.numbers(taker) == [0, 1]
    shown, taken = (bench.delivered(bench.told, each) for each in (browser, taker))
    assert taken == shown, "3.3.20: delivery-count and first-acquirer are unchanged"


@BOTH
def test_a_browser_may_select_and_looks_in_turns(kind: str) -> None:
    """3.3.21: it looks at `scan_max` messages a turn at most; a drain is answered at the end."""
    bench = Colours(kind, scan_max=10)
    bench.put(*["red"] * 55, "blue", *["red"] * 4)
    browser = bench.browser(filters=BLUE)
    bench.credit(browser, 2, drain=True)
    assert bench.replies(browser) == []
    assert bench.turns() >= 5
    assert (bench.numbers(browser), bench.queue.ready) == ([55], 60)
    assert [(each.credit, each.available) for each in bench.replies(browser)] == [(0, 0)]
    assert bench.looking(browser)[1:3] == (60, 1)


# --- classic queues -------------------------------------------------------------------------------


@pytest.fixture
def bench() -> Colours:
    return Colours("classic")


def test_new_messages_are_looked_at_once_by_each_that_waits(bench: Colours) -> None:
    """3.2.11: a consumer whose selector matches all looks at no more messages than it gets."""
    waiting = [bench.selects(selector(f"colour = 'c{number}'"), 100) for number in range(5)]
    bench.put(*["red"] * 50)
    assert {bench.looking(each).looked_at for each in waiting} == {50}
    all_of_it = bench.selects(selector("colour IS NOT NULL"))
    for _ in range(50):
        bench.credit(all_of_it, 1)
    assert bench.looking(all_of_it)[:3] == (True, 50, 50)


def test_a_long_queue_is_looked_through_in_turns() -> None:
    """3.2.12: all consumers together look at `scan_max` messages a turn; others are served meanwhile."""
    bench = Colours("classic", scan_max=100)
    bench.put(*["red"] * 1_000)
    first, second = bench.selects(BLUE), bench.browser(filters=BLUE)
    before = 0
    for ref in (first, second):
        bench.credit(ref, 5)
        looked_at = bench.looking(first).looked_at + bench.looking(second).looked_at
        assert 0 < looked_at - before <= 100
        before = looked_at
    assert len(bench.held(bench.consumer(10))) == 10, "before the others have looked through everything"
    bench.turns()
    assert bench.looking(first).rests
    assert bench.looking(second).rests


def test_lower_priority_waits_until_the_others_have_looked_through() -> None:
    """3.2.14: a lower priority does not take a message that a higher one would select."""
    bench = Colours("classic", scan_max=10)
    bench.put(*["red"] * 50, "blue")
    low = bench.consumer(priority=0)
    high = bench.selects(BLUE, 1, priority=1)
    assert bench.get(low, 100) == []
    assert bench.numbers(high) == [50]
    assert len(bench.held(low)) == 50


def test_what_was_taken_meanwhile_is_not_shown(bench: Colours) -> None:
    """3.3.17, 3.3.19: acquired messages are not seen, nor if requeued behind the browser's position."""
    bench.put("red", "red", "red", "red")
    browser, taker = bench.browser(1), bench.consumer(2)
    assert bench.numbers(taker) == [0, 1]
    bench.credit(browser, 1)
    bench.decide(taker, 0, commands.DeliveryOutcome.REQUEUE)
    bench.credit(browser, 5)
    assert bench.numbers(browser) == [0, 2, 3]


def test_browsers_are_no_consumers() -> None:
    """3.3.19: they are not counted, attach beside an exclusive consumer, and do not prevent deletion."""
    bench = Colours("classic", given={"auto_delete": True})
    bench.put("red")
    bench.consumer(exclusive=True)
    browser = bench.browser(5)
    assert bench.numbers(browser) == [0]
    assert only(bench.told, commands.SubscribeRefused) == []
    assert bench.queue.consumers == 1
    bench.leave(browser, commands.DeliveryOutcome.REQUEUE)
    bench.do(commands.Delete(bench.request, if_unused=True))
    assert not bench.queue.deleted


def test_a_browser_is_never_the_single_active_consumer() -> None:
    bench = Colours("classic", single_active_consumer=True)
    browser, taker = bench.browser(5), bench.consumer(1)
    bench.put("red", "red")
    assert (bench.numbers(browser), bench.numbers(taker)) == ([1], [0])
    assert bench.queue.queue_status().active == taker


def test_what_was_wanted_and_not_paid_for_is_not_asked_about_again_but_once(bench: Colours) -> None:
    """A window may hold more matches than there is credit: they are remembered by place."""
    bench.put(*["red"] * 200, *["blue"] * 100)
    blue = bench.selects(BLUE)
    for _ in range(100):
        bench.credit(blue, 1)
    assert len(bench.held(blue)) == 100
    assert 300 <= bench.looking(blue).looked_at <= 300 + selecting.WINDOW_MAX


def test_nothing_is_looked_at_where_nobody_selects(bench: Colours) -> None:
    plain = bench.consumer(100)
    bench.put("red")
    assert bench.numbers(plain) == [0]
    assert bench.queue.queue_status().parts[plain].looking is None
    bench.leave(bench.browser(5), commands.DeliveryOutcome.REQUEUE)
    assert confirmed(bench.put("red")) == [0]
    assert bench.numbers(plain) == [0, 1]


def test_a_queue_pays_nothing_for_those_that_have_gone() -> None:
    """A batch takes the same instructions before any selector or browser and after."""

    def batch(bench: Colours, plain: commands.ConsumerRef) -> int:
        messages = [coloured(0, "red")] * 20
        had = len(bench.delivered(bench.told, plain))

        def work() -> None:
            bench.queue.apply(commands.Credit(plain, had, 20, False, had), bench.now)
            bench.queue.apply(commands.Publish(bench.publisher, range(20), messages, False), bench.now)

        steps = steps_of(work)
        bench.do(commands.TICK)
        return steps

    bench = Colours("classic")
    plain = bench.consumer()
    batch(bench, plain)
    before = batch(bench, plain)
    red, browser = bench.selects(RED, 5), bench.browser(5)
    bench.put("red", "blue")
    for each in (red, browser):
        bench.leave(each, commands.DeliveryOutcome.REQUEUE)
    bench.credit(plain, 10)
    assert bench.queue.ready == 0
    bench.credit(plain, 0)
    batch(bench, plain)
    assert batch(bench, plain) == before


def _entry(name: str, value: object, descriptor: str | None = None) -> dict[Symbol, Described]:
    return {Symbol(name): Described(Symbol(descriptor or name), value)}
