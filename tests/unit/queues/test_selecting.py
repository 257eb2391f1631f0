"""Consumers of a classic queue that select or browse, rule by rule."""

from __future__ import annotations

import pytest

from amqp10broker.message.filters.filters import SELECTOR, Filters, from_amqp10
from amqp10broker.protocols.amqp10.types import Described, Symbol
from amqp10broker.queues.classic import consumers as selecting
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import (
    TICK,
    Credit,
    Delete,
    DeliveryOutcome,
    Inspect,
    Publish,
    Settle,
    SubscribeRefused,
)
from amqp10broker.queues.queue_status import Looking
from amqp10broker.queues.settings import QueueSettings
from tests.support.askers import new_asker
from tests.support.selecting import SQL, coloured, selector
from tests.support.steps import steps_of
from tests.unit.queues.bench_queue import Bench, Client

RED, BLUE = selector("colour = 'red'"), selector("colour = 'blue'")


def numbers(got: list[str]) -> list[int]:
    """Of messages, by what the bench keeps as their text."""
    return [int(each.rpartition("#")[2]) for each in got]


class Colours(Bench):
    """A queue of messages by colour, numbered from 0."""

    def __init__(self, settings: QueueSettings | None = None, **given: object) -> None:
        super().__init__(settings, **given)
        self.count = 0

    def put(self, *colours: str, priority: int | None = None, ttl: int | None = None) -> None:
        batch = []
        for colour in colours:
            batch.append(coloured(self.count, colour, priority=priority, ttl=ttl))
            self.count += 1
        self.publish(*batch)

    def selects(self, filters: Filters | None, credit: int = 0, **given: object) -> Client:
        return self.consumer(credit, filters=filters, **given)

    def browser(self, credit: int = 0, filters: Filters | None = None, **given: object) -> Client:
        return self.consumer(credit, filters=filters, browse=True, counted=False, **given)

    def turns(self) -> int:
        """The queue goes on until it has nothing to do; in how many turns."""
        count = 0
        while (due := self.queue.deadline()) is not None and due <= self.now:
            self.do(TICK)
            count += 1
        return count

    def looking(self, client: Client) -> Looking:
        looking = self.queue.queue_status().parts[client.ref].looking
        assert looking is not None
        return looking

    def key(self, client: Client, number: int) -> int:
        return next(key for text, key in client.keys.items() if text.endswith(f"#{number}"))

    def decide(self, client: Client, number: int, delivery_outcome: DeliveryOutcome) -> None:
        self.do(Settle(client.ref, [self.key(client, number)], delivery_outcome))


@pytest.fixture
def bench() -> Colours:
    return Colours()


def test_what_does_not_match_stays_in_its_place_for_others(bench: Colours) -> None:
    """3.2.8: each gets its matches in queue order, and credit is used by matches only."""
    bench.put("red", "blue", "red", "blue", "red")
    blue = bench.selects(BLUE, 10)
    assert numbers(blue.got) == [1, 3]
    assert blue.replies[-1].credit == 8
    assert bench.ready() == 3
    assert numbers(bench.consumer(10).got) == [0, 2, 4]
    bench.put("blue")
    assert bench.ready() == 0


def test_a_drain_ends_when_the_queue_was_looked_through() -> None:
    """3.2.8: to its end as it was when the drain came, however many turns that takes; then credit is gone."""
    bench = Colours(scan_max=10)
    bench.put(*["red"] * 95, "blue", *["red"] * 4)
    blue = bench.selects(BLUE)
    blue.grant(3, drain=True)
    assert blue.replies == []
    bench.put("red")
    assert bench.turns() >= 9
    assert numbers(blue.got) == [95]
    assert [(reply.credit, reply.drain) for reply in blue.replies] == [(0, True)]
    assert blue.count == 3


def test_complementary_selectors_split_a_queue(bench: Colours) -> None:
    """3.2.9: each message goes to the one that wants it."""
    red, blue = bench.selects(RED, 100), bench.selects(BLUE, 100)
    bench.put("red", "blue", "blue", "red")
    bench.put("blue", "red")
    assert numbers(red.got) == [0, 3, 5]
    assert numbers(blue.got) == [1, 2, 4]


@pytest.mark.parametrize("delivery_outcome", [DeliveryOutcome.REQUEUE, DeliveryOutcome.REQUEUE_FAILED])
def test_what_comes_back_goes_to_its_place_and_to_the_next_that_matches(
    delivery_outcome: DeliveryOutcome, bench: Colours
) -> None:
    """3.2.9: before what came later, though nothing else of the place was looked at again."""
    bench.put("blue", "red", "blue", "red", "red")
    first = bench.selects(RED, 2)
    assert numbers(first.got) == [1, 3]
    second = bench.selects(RED)
    bench.decide(first, 1, delivery_outcome)
    assert numbers(second.grant(2)) == [1, 4]
    bench.decide(first, 3, delivery_outcome)
    assert numbers(bench.consumer(9).got) == [0, 2, 3]


def test_what_nobody_selects_stays_until_a_limit_drops_it() -> None:
    """3.2.10: drop-head drops it."""
    bench = Colours(QueueSettings(max_length=3, dead_letter_exchange="dead"))
    blue = bench.selects(BLUE, 100)
    bench.put("red", "red", "red")
    bench.put("blue")
    assert (numbers(blue.got), bench.dead) == ([3], [])
    bench.put("red")
    assert numbers([text for _, text in bench.dead]) == [0]
    assert bench.ready() == 3


def test_what_nobody_selects_stays_until_it_expires() -> None:
    """3.2.10: and what has expired is given to nobody, in the middle of the queue either."""
    bench = Colours(QueueSettings(dead_letter_exchange="dead"))
    bench.put("red", ttl=100)
    bench.put("red")
    bench.put("blue", ttl=50)
    bench.put("blue")
    bench.now += 60
    blue, browser = bench.selects(BLUE), bench.browser(10, BLUE)
    assert numbers(browser.got) == [3]
    assert numbers(blue.grant(5)) == [3]
    assert [(reason, int(text.rpartition("#")[2])) for reason, text in bench.dead] == [("expired", 2)]
    bench.wait(50)
    assert bench.ready() == 1


def test_a_message_is_looked_at_once_however_often_credit_comes(bench: Colours) -> None:
    """3.2.11: 100 000 messages, the only match is the last one, credit 1 a hundred times: one pass."""
    messages = 100_000
    batch = [coloured(0, "red")] * 1_000
    for _ in range(messages // 1_000 - 1):
        bench.publish(*batch)
    bench.publish(*batch[:-1], coloured(messages - 1, "blue"))
    blue = bench.selects(BLUE)
    for _ in range(100):
        blue.grant(1)
        bench.turns()
    assert numbers(blue.got) == [messages - 1]
    assert bench.looking(blue) == Looking(selects=True, looked_at=messages, passed=1, rests=True)


def test_new_messages_are_looked_at_once_by_each_that_waits(bench: Colours) -> None:
    """3.2.11: and one that selects everything looks at no more than it gets."""
    waiting = [bench.selects(selector(f"colour = 'c{number}'"), 100) for number in range(5)]
    bench.put(*["red"] * 50)
    assert {bench.looking(each).looked_at for each in waiting} == {50}
    all_of_it = bench.selects(selector("colour IS NOT NULL"))
    for _ in range(50):
        all_of_it.grant(1)
    assert bench.looking(all_of_it)[:3] == (True, 50, 50)


def test_a_long_queue_is_looked_through_in_turns() -> None:
    """3.2.12: at most `scan_max` messages a turn, all consumers together; others are served meanwhile."""
    bench = Colours(scan_max=100)
    bench.put(*["red"] * 1_000)
    first, second = bench.selects(BLUE), bench.browser(0, BLUE)
    before = 0
    for client in (first, second):
        bench.do(Credit(client.ref, 0, 5, False, 0))
        looked_at = bench.looking(first).looked_at + bench.looking(second).looked_at
        assert 0 < looked_at - before <= 100
        before = looked_at
    plain = bench.consumer(10)
    assert len(plain.got) == 10, "before the others have looked through everything"
    bench.turns()
    assert bench.looking(first).rests
    assert bench.looking(second).rests


def test_lower_priority_waits_until_the_others_have_looked_through() -> None:
    """3.2.14: what a consumer of higher priority would select is not taken by one of lower."""
    bench = Colours(scan_max=10)
    bench.put(*["red"] * 50, "blue")
    low = bench.consumer(0, priority=0)
    high = bench.selects(BLUE, 1, priority=1)
    assert low.grant(100) == []
    bench.turns()
    assert numbers(high.got) == [50]
    assert len(low.got) == 50


def test_sql_filters_are_of_the_same_kind(bench: Colours) -> None:
    """3.2.13."""
    bench.put("red", "blue", "green")
    sql = bench.selects(selector("colour IN ('blue', 'green') AND NOT colour = 'green'", SQL), 10)
    assert numbers(sql.got) == [1]


def test_only_what_says_which_messages_are_wanted_is_in_place_on_a_queue() -> None:
    """Of a queue a filter that names a place in a stream is left out of the answer."""
    found = from_amqp10(
        {**_entry("rabbitmq:stream-offset-spec", "first"), **_entry("jms", "a = 1", SELECTOR)},
        of_stream=False,
    )
    assert list(found.in_place) == ["jms"]
    assert [each.name for each in found.refused] == ["rabbitmq:stream-offset-spec"]


def test_a_browser_takes_nothing(bench: Colours) -> None:
    """3.3.17: it sees the queue from its head on, and what comes later while credit lasts."""
    bench.put("red", "blue")
    browser = bench.browser(3)
    assert numbers(browser.got) == [0, 1]
    bench.put("red", "red")
    assert numbers(browser.got) == [0, 1, 2]
    assert bench.ready() == 4
    assert bench.queue.unsettled == 0
    assert numbers(browser.grant(5, drain=True)) == [3]
    assert browser.replies[-1].credit == 0


@pytest.mark.parametrize("delivery_outcome", list(DeliveryOutcome))
def test_outcomes_of_a_browser_are_ignored(delivery_outcome: DeliveryOutcome) -> None:
    """3.3.17: whatever it says, the queue is as before, and so is what the next one gets."""
    bench = Colours(QueueSettings(dead_letter_exchange="dead"))
    bench.put("red", "blue")
    browser = bench.browser(2)
    bench.decide(browser, 0, delivery_outcome)
    browser.leave(delivery_outcome)
    assert (bench.ready(), bench.dead) == (2, [])
    taker = bench.consumer(5)
    assert numbers(taker.got) == [0, 1]
    assert taker.messages == browser.messages, "3.3.20: delivery-count and first-acquirer are unchanged"


def test_what_was_taken_meanwhile_is_not_shown(bench: Colours) -> None:
    """3.3.17, 3.3.19: acquired messages are not seen; nor when they come back behind what it has seen."""
    bench.put("red", "red", "red", "red")
    browser, taker = bench.browser(1), bench.consumer(2)
    assert numbers(taker.got) == [0, 1]
    assert numbers(browser.grant(1)) == [2]
    bench.decide(taker, 0, DeliveryOutcome.REQUEUE)
    assert numbers(browser.grant(5)) == [3]


def test_browsers_are_no_consumers() -> None:
    """3.3.19: not counted, not kept out by one that has the queue for itself, and no reason to be deleted."""
    bench = Colours(auto_delete=True)
    bench.put("red")
    bench.consumer(0, exclusive=True)
    browser = bench.browser(5)
    assert numbers(browser.got) == [0]
    assert not [told for told in browser.told if isinstance(told, SubscribeRefused)]
    assert bench.queue.consumers == 1
    browser.leave()
    assert not bench.gone
    asker = new_asker("asker")
    bench.do(Inspect(asker.request()))
    bench.do(Delete(asker.request(), if_unused=True))
    assert not bench.gone


def test_a_browser_is_never_the_single_active_consumer() -> None:
    """3.3.19: it browses beside it."""
    bench = Colours(QueueSettings(single_active_consumer=True))
    browser, taker = bench.browser(5), bench.consumer(1)
    bench.put("red", "red")
    assert (numbers(browser.got), numbers(taker.got)) == ([1], [0])
    assert bench.queue.queue_status().active == taker.ref


def test_a_browser_may_select(bench: Colours) -> None:
    """3.3.21."""
    bench.put("red", "blue", "red", "blue")
    assert numbers(bench.browser(5, BLUE).got) == [1, 3]
    assert bench.ready() == 4


def test_what_was_wanted_and_not_paid_for_is_not_asked_about_again_but_once(bench: Colours) -> None:
    """A window may hold more matches than there is credit: they are remembered by place."""
    bench.put(*["red"] * 200, *["blue"] * 100)
    blue = bench.selects(BLUE)
    for _ in range(100):
        blue.grant(1)
    assert len(blue.got) == 100
    assert 300 <= bench.looking(blue).looked_at <= 300 + selecting.WINDOW_MAX


def test_nothing_is_looked_at_where_nobody_selects(bench: Colours) -> None:
    """The way of a plain queue: past the backlog, to the only consumer."""
    plain = bench.consumer(100)
    queue: ClassicQueue = bench.queue
    bench.put("red")
    assert numbers(plain.got) == [0]
    assert queue.queue_status().parts[plain.ref].looking is None
    browser = bench.browser(5)
    browser.leave()
    bench.do(Publish(bench.publisher, [99], [coloured(99, "red")], False))
    assert numbers(plain.got) == [0, 99]
    assert bench.confirmed[-1:] == [99]


def test_a_queue_pays_nothing_for_those_that_have_gone() -> None:
    """The same instructions for a batch, before anybody selected or browsed and after."""

    def batch(bench: Colours, plain: Client) -> int:
        messages = [coloured(0, "red")] * 20

        def work() -> None:
            bench.queue.apply(Credit(plain.ref, plain.count, 20, False, plain.seen), bench.now)
            bench.queue.apply(Publish(bench.publisher, range(20), messages, False), bench.now)

        steps = steps_of(work)
        bench.do(TICK)
        return steps

    bench = Colours()
    plain = bench.consumer()
    batch(bench, plain)
    before = batch(bench, plain)
    red, browser = bench.selects(RED, 5), bench.browser(5)
    bench.put("red", "blue")
    for each in (red, browser):
        each.leave()
    plain.grant(10)
    assert bench.ready() == 0
    plain.grant(0)
    batch(bench, plain)
    assert batch(bench, plain) == before


def _entry(name: str, value: object, descriptor: str | None = None) -> dict[Symbol, Described]:
    return {Symbol(name): Described(Symbol(descriptor or name), value)}
