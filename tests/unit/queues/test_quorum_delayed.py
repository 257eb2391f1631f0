"""Time in quorum queues: delayed messages, and clocks that differ."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.types import Symbol, Timestamp
from amqp10broker.queues.commands import DeliveryOutcome, Purge
from amqp10broker.queues.quorum import ordered_entries, ready
from amqp10broker.queues.quorum.commands import INSTALLED
from amqp10broker.queues.quorum.durability import AHEAD_MS_MAX, Clocks, LogTime
from amqp10broker.queues.quorum.ordered_entries import DueMessage, LaterMessages
from amqp10broker.queues.quorum.queue import decode_snapshot, encode_snapshot
from amqp10broker.queues.quorum.ready import Numbers
from amqp10broker.queues.settings import QueueSettings
from tests.support.queue_bench import Bench, message
from tests.support.quorum_harness import Harness
from tests.support.selecting import selector


def delayed(body: str, ms: int, *, priority: int | None = None, ttl_ms: int | None = None) -> Message:
    return message(body, priority=priority, ttl_ms=ttl_ms, delay_ms=ms)


@pytest.mark.parametrize("limit", [20, None])
def test_what_is_due_goes_behind_all_that_is_there(limit: int | None) -> None:
    bench = Bench(delivery_limit=limit)
    bench.publish_all([delayed("due", 10), message("first")])
    bench.wait(10)
    bench.publish("last")
    assert bench.get(bench.consumer(), 5) == ["first", "due", "last"]


def test_one_of_high_priority_is_of_high_priority_when_it_is_due() -> None:
    """It stands where it was published, also for a selecting consumer that has looked there already."""
    bench = Bench()
    bench.publish("low")
    bench.publish_all([delayed("due", 10, priority=9), message("high", priority=9)])
    wants = bench.consumer(filters=selector("JMSPriority = 9"))
    bench.credit(wants, 1)
    found = bench.queue.look(100)
    assert found is not None
    assert bench.bodies(bench.do(found)) == ["high"]
    bench.credit(wants, 1)
    bench.publish("more", priority=9)
    bench.wait(10)
    found = bench.queue.look(100)
    assert found is not None
    assert bench.bodies(bench.do(found)) == ["due"]
    assert bench.get(bench.consumer(), 5) == ["more", "low"]


def test_one_that_comes_back_after_its_time_comes_back_at_once() -> None:
    bench = Bench()
    ref = bench.consumer(5)
    bench.publish_all([delayed("a", 10)])
    bench.wait(10)
    assert bench.bodies(bench.settle(ref, DeliveryOutcome.REQUEUE)) == ["a"]
    when = encode({Symbol("x-opt-delivery-time"): Timestamp(bench.now + 50)})
    assert bench.bodies(bench.settle(ref, DeliveryOutcome.REQUEUE, annotations=when)) == []
    assert bench.counts == (0, 1)
    assert bench.bodies(bench.wait(50)) == ["a"]


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_entries, "SOON_MAX", 8)
    monkeypatch.setattr(ordered_entries, "PAGE_MAX", 3)


@pytest.mark.usefixtures("short_pages")
@pytest.mark.parametrize("seed", range(20))
def test_messages_in_whatever_order_they_come_are_taken_in_that_of_their_times(seed: int) -> None:
    """This holds after a snapshot too, which does not record where each message was."""
    dice = Random(seed)
    here, there = LaterMessages(), []
    index = 0
    for _ in range(40):
        count = dice.randint(0, 12)
        some = [
            DueMessage(
                dice.randint(1, 60), index + at, dice.randint(1, 9), dice.choice([0, 7]), dice.randint(0, 1)
            )
            for at in range(count)
        ]
        index += count
        here.add(some)
        there = sorted([*there, *some])
        now, most = dice.randint(0, 60), dice.randint(1, 9)
        due = [each for each in there if each.when_ms <= now][:most]
        assert here.take_due(now, most) == due
        there = there[len(due) :]
        if there and dice.random() < 0.3:
            assert here.take_first(1) == there[:1]
            del there[0]
        if dice.random() < 0.3:
            columns = here.columns()
            here = LaterMessages()
            here.restore(columns)
            assert here.columns() == columns
        assert (here.count, here.size) == (len(there), sum(each.size for each in there))
        assert here.next_due == (there[0].when_ms if there else None)
        assert sorted(here.indexes()) == sorted(each.key for each in there)


def test_many_numbers_in_the_tail_are_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing changes no result; it only saves memory."""

    def walk(at_least: int) -> list[object]:
        monkeypatch.setattr(ready, "NUMBERS_MIN", at_least)
        bench, dice = Bench(delivery_limit=None), Random(5)
        ref = bench.consumer()
        states: list[object] = []
        for _ in range(150):
            match dice.choice("pwcsgr"):
                case "p":
                    bench.publish_all([delayed("d", dice.randint(0, 9)) for _ in range(dice.randint(1, 90))])
                case "w":
                    bench.wait(dice.randint(1, 5))
                case "c":
                    bench.credit(ref, dice.randint(1, 60))
                case "s" | "g" if held := bench.held(ref):
                    delivery_outcome = dice.choice([DeliveryOutcome.ACCEPT, DeliveryOutcome.REQUEUE])
                    bench.settle(ref, delivery_outcome, dice.sample(held, dice.randint(1, len(held))))
                case "r" if bench.held(ref):
                    bench.leave(ref, DeliveryOutcome.REQUEUE)
                    ref = bench.consumer()
            state = encode_snapshot(bench.queue)
            messages = bench.queue.parts()[0]
            assert encode_snapshot(decode_snapshot("q", state, messages.bodies)) == state
            line = messages.ready
            behind = sorted(line.behind.items())
            states.append((behind, line.indexes_of_tail(), bench.held(ref), bench.counts))
        packed = type(bench.queue.parts()[0].ready.behind) is Numbers
        assert packed is (at_least == 1)
        bench.do(Purge(bench.request))
        bench.settle(ref, DeliveryOutcome.ACCEPT)
        assert not list(bench.queue.messages.ready.behind.items())
        return states

    assert walk(1) == walk(10**9)


@pytest.mark.parametrize("spread", [1, 10**9])
def test_memory_is_some_bytes_of_each(spread: int) -> None:
    dice, count = Random(1), 50_000
    held = LaterMessages()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for first in range(0, count, 500):
            held.add(
                [
                    DueMessage(10**12 + dice.randrange(spread), index, 100, 0, 0)
                    for index in range(first, first + 500)
                ]
            )
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 8192 * 220 + count * 30


def test_another_leader_delivers_at_the_time_and_not_before() -> None:
    """The leader's clock decides by an entry: followers do nothing on their own."""
    world = Harness(1)
    leader = world.even_leader()
    world.consume(leader, 100)
    world.publish(leader, 3, delay_ms=30_000)
    world.publish(leader, 1, delay_ms=60_000)
    due_ms = world.now + 30_000
    world.settle_down(lambda: len(world.confirmed) == 4 and world.even())
    assert [node.backend.queue.delayed for node in world.nodes.values()] == [4, 4, 4]
    world.crash(leader.number)
    world.opened()
    assert world.now < due_ms - 100
    world.settle_down(lambda: world.now >= due_ms - 25)
    assert world.keys == {}
    world.settle_down(lambda: len(world.keys) == 3)
    assert world.now - due_ms <= 100
    world.start(leader.number)
    world.settle_down(world.even)
    assert [node.backend.queue.delayed for node in world.nodes.values()] == [1, 1, 1]
    world.settle_down(lambda: len(world.keys) == 4, 90_000)
    assert [len(world.bodies(node)) for node in world.nodes.values()] == [4, 4, 4]


def test_what_is_due_while_nobody_leads_is_delivered_then() -> None:
    world = Harness(2)
    leader = world.even_leader()
    world.spread(leader, 2, delay_ms=1_000)
    for number in list(world.nodes):
        world.crash(number)
    world.pass_time(5_000)
    for number in list(world.down):
        world.start(number)
    leader = world.even_leader()
    world.settle_down(lambda: leader.backend.queue.ready == 2)
    world.consume(leader, 100)
    world.settle_down(lambda: len(world.keys) == 2)


def test_a_member_that_comes_back_with_a_state_has_them() -> None:
    """Its log was cleaned away at the others; the states are compared when it continues."""
    world = Harness(3)
    leader = world.even_leader()
    world.spread(leader, 5, delay_ms=600_000)
    follower = next(number for number, node in world.nodes.items() if node is not leader)
    world.crash(follower)
    for _ in range(200):
        world.spread(leader, 3, size=200)
        leader.journal.clean(leader.store, lambda: None)
    world.start(follower)
    world.settle_down(world.even)
    again = world.nodes[follower]
    assert INSTALLED in {record.kind for record in again.journal.records}
    assert (again.backend.queue.delayed, again.backend.queue.ready) == (5, 600)
    world.pass_time(600_000)
    world.settle_down(lambda: world.even() and again.backend.queue.delayed == 0)
    assert world.bodies(again) == world.bodies(leader)


HOURS_2 = 7_200_000
TTL_MS = 10_000


def time_of(correction_ms: int = 0, time_ms: int = 0, clock_ms: int = 0) -> LogTime:
    node = Clocks()
    node.correction_ms = correction_ms
    return LogTime(node, time_ms, clock_ms)


def test_time_that_is_ahead_goes_on_a_tenth_slower_until_the_clock_is_there() -> None:
    time = time_of(0, 10_000, 0)
    assert [time.at(clock_ms) for clock_ms in (0, 1_000, 50_000, 99_999)] == [10_000, 10_900, 55_000, 99_999]
    assert time.at(100_000) == 100_000
    assert time.at(100_001) == 100_001


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    time = time_of()
    assert time.at(50_000) == 50_000
    assert time.at(20_000) == 50_000
    assert time.at(60_000) == 60_000


@given(
    st.integers(-HOURS_2, HOURS_2),
    st.integers(0, HOURS_2),
    st.lists(st.integers(0, 100_000), min_size=1),
    st.integers(0, HOURS_2),
)
def test_it_never_runs_back_and_what_is_due_is_due_when_it_says_so(
    correction_ms: int, ahead_ms: int, steps: list[int], wait_ms: int
) -> None:
    time = time_of(correction_ms, ahead_ms, 0)
    clock_ms, last = 0, ahead_ms
    for step in steps:
        clock_ms += step
        now = time.at(clock_ms)
        assert last <= now
        last = now
    due = last + wait_ms
    when = time.when(due)
    if wait_ms:
        assert time_of(correction_ms, last, clock_ms).at(when - 1) < due
    assert time.at(max(when, clock_ms)) >= due


def waiting(world: Harness) -> int:
    leader = world.leader()
    return leader.backend.queue.ready


@pytest.mark.parametrize("after", ["wrong", "right"])
def test_messages_expire_when_a_leader_whose_clock_was_hours_ahead_is_gone(after: str) -> None:
    """Ten seconds to live become eleven at most, also when the node with the wrong clock is back."""
    world = Harness(3, settings=QueueSettings(message_ttl_ms=TTL_MS))
    first = world.even_leader().number
    world.skew_ms[first] = HOURS_2
    world.spread(world.nodes[first])
    world.crash(first)
    second = world.even_leader().number
    assert second != first
    if after == "wrong":
        world.start(first)
        world.settle_down(world.even)
    assert world.nodes[second].backend.ahead_ms(world.now) > HOURS_2 - 60_000
    world.spread(world.nodes[second])
    begun = world.now
    assert waiting(world) > 0
    world.settle_down(lambda: waiting(world) == 0)
    assert TTL_MS - 100 <= world.now - begun <= TTL_MS * 10 / 9 + 100


def test_a_leader_is_not_further_ahead_of_the_others_than_the_bound() -> None:
    """A message published before with ten seconds to live keeps them when the new leader is hours ahead."""
    world = Harness(4, settings=QueueSettings(message_ttl_ms=TTL_MS))
    first = world.even_leader().number
    world.spread(world.nodes[first])
    others = [number for number in world.nodes if number != first]
    for number in others:
        world.skew_ms[number] = HOURS_2
        world.clocks[number].heard(first, -HOURS_2)
    begun = world.now
    world.part(first)
    leader = world.opened()
    world.publish(leader)
    world.settle_down(lambda: len(world.confirmed) == 2)
    assert leader.store.now_ms <= world.now + AHEAD_MS_MAX
    assert waiting(world) == 2
    world.settle_down(lambda: waiting(world) == 0)
    assert TTL_MS - AHEAD_MS_MAX <= world.now - begun <= TTL_MS + 2_000


@pytest.mark.parametrize(
    ("others", "correction_ms"),
    [
        ([], 0),
        ([0, 0], 0),
        ([-500, 300], 0),
        ([-HOURS_2, -HOURS_2], AHEAD_MS_MAX - HOURS_2),
        ([HOURS_2, HOURS_2], HOURS_2 - AHEAD_MS_MAX),
        ([0, HOURS_2], 0),
        ([-HOURS_2, 0], 0),
        # Of two the one behind is taken for right.
        ([-HOURS_2], AHEAD_MS_MAX - HOURS_2),
        ([HOURS_2], 0),
    ],
)
def test_the_clock_is_corrected_to_what_most_say(others: list[int], correction_ms: int) -> None:
    """The allowed difference bounds it."""
    clocks = Clocks()
    for number, ahead_ms in enumerate(others, 2):
        clocks.heard(number, ahead_ms)
    assert clocks.correction_ms == correction_ms


def test_what_is_wrong_is_said_with_names_and_seconds() -> None:
    clocks = Clocks()
    clocks.heard(2, -HOURS_2)
    clocks.heard(3, 1_500)
    clocks.heard(4, 999)
    assert clocks.notes({2: "b", 3: "c", 4: "d"}) == {
        "clock of b": "the clock of node b is 7200.0 s behind this node's",
        "clock of c": "the clock of node c is 1.5 s ahead of this node's",
    }
    clocks.heard(3, -HOURS_2)
    clocks.heard(4, -HOURS_2)
    assert clocks.notes({})["clock of this node"].startswith("the clock of this node is 7199.0 s ahead of")


def test_a_difference_counts_as_far_as_it_is_certain_and_the_closest_measurement_counts() -> None:
    """It is known within half a round trip; a long round trip adds nothing to a short one."""
    clocks = Clocks()
    clocks.heard(2, -20_000, 20_000)
    assert "clock of b" not in clocks.notes({2: "b"})
    clocks.heard(2, -20_000, 15_000)
    assert clocks.notes({2: "b"})["clock of b"].endswith("is 5.0 s behind this node's")
    clocks.heard(2, 3, 2)
    clocks.heard(2, -20_000, 20_010)
    assert "clock of b" not in clocks.notes({2: "b"})
    clocks.heard(2, -20_000, 10)
    clocks.heard(2, -10_000, 10_500)  # as good as nothing is known by this
    assert clocks.notes({2: "b"})["clock of b"].endswith("20.0 s behind this node's")
