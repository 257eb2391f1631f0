"""Consumers that browse a quorum queue: shown messages, and no part of what the log says."""

from __future__ import annotations

from typing import Any

import pytest

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
from amqp10broker.queues.quorum.commands import Browsing, QuorumCommand, SessionGone, encode_commands
from amqp10broker.queues.quorum.snapshot import decode_snapshot, encode_snapshot
from tests.support.quorum_bench import Bench, only
from tests.support.selecting import coloured, selector

BLUE = selector("colour = 'blue'")


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
    ref, _ = bench.browser(filters=BLUE)
    assert only(bench.credit(ref, 2, drain=True), CreditReply) == []
    told = bench.turns()
    (delivered,) = bench.delivered(told, ref)
    assert delivered[1].endswith(b"#55")
    assert [(each.credit, each.available) for each in only(told, CreditReply)] == [(0, 0)]
    looking = bench.queue.queue_status().parts[ref].looking
    assert looking is not None
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
