"""Credit of queues and links through random courses."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import QUORUM, DeclaredQueue, QueueCommand
from amqp10broker.protocols.serial import MASK, diff
from amqp10broker.queues import commands
from amqp10broker.sessions.credit import QueueCredit
from amqp10broker.spark.queue_source import MESSAGE_COST_BYTES, CreditPacing
from tests.support.credit_loop import BASE, Conditions, CreditLoop
from tests.support.reply_addresses import new_reply_to

MOST = 6
SIZES = (1, commands.ROOM_BYTES // 4, commands.ROOM_BYTES - 1, commands.ROOM_BYTES, 3 * commands.ROOM_BYTES)
REF = new_reply_to("1.1").consumer()
EMPTY: Message = (b"\x91" + bytes(9), b"")
AGAIN: Message = (b"\x91\x01" + bytes(8), b"")


class NaiveQueue:
    """Messages are numbers, which are their keys. It counts deliveries one by one."""

    def __init__(self, delivery_count: int, *, keeps: bool) -> None:
        self.keeps = keeps
        self.ready: list[int] = []
        self.sizes: dict[int, int] = {}
        self.lost: list[int] = []
        self.handed_out: list[int] = []
        # Messages that a consumer had and that are marked so, whoever put them back.
        self.had: set[int] = set()
        self.timed_out: set[int] = set()
        self.delivery_count = delivery_count
        self.credit = 0
        self.room = 0
        self.epoch = 0
        self.effects: deque[commands.Deliver | commands.CreditReply] = deque()

    def put(self, size: int) -> None:
        number = len(self.sizes)
        self.sizes[number] = size
        self.ready.append(number)
        self.work()
        if not self.keeps:
            self.lost += self.ready
            self.ready.clear()

    def work(self) -> None:
        while self.credit > 0 and self.room > 0 and self.ready:
            number = self.ready.pop(0)
            self.handed_out.append(number)
            self.credit -= 1
            self.room -= self.sizes[number]
            self.delivery_count = (self.delivery_count + 1) & MASK
            spent = self.room <= 0
            if spent:
                self.credit = 0
            again = number in self.had
            self.effects.append(
                commands.Deliver(
                    REF, [number], [AGAIN if again else EMPTY], self.epoch, spent, again or number % 2 == 0
                )
            )

    def take_back(self, keys: Sequence[int], seen: int) -> None:
        """Messages given back, and those handed out beyond `seen`, return to their places."""
        back = {*keys, *self.handed_out[seen:]}
        assert not back & set(self.ready), "given back, and never handed out"
        if self.keeps:
            self.ready = sorted([*self.ready, *back])
        else:
            self.lost += back

    def on(self, command: commands.Command) -> None:
        match command:
            case commands.Credit():
                assert command.room == (commands.ROOM_BYTES if self.keeps else commands.NO_BOUND)
                limit = (command.delivery_count + command.credit) & MASK
                self.credit = max(0, diff(limit, self.delivery_count))
                self.room = command.room
                self.work()
                if command.drain and self.room > 0:
                    self.delivery_count = (self.delivery_count + self.credit) & MASK
                    self.credit = 0
                self.effects.append(
                    commands.CreditReply(
                        REF, self.delivery_count, self.credit, len(self.ready), command.drain, self.epoch
                    )
                )
            case commands.GiveBack():
                self.take_back(command.keys, command.seen)
                # Numbers that were handed out and not seen are not in the count of what is seen any more.
                del self.handed_out[command.seen :]
                self.delivery_count = command.delivery_count
                self.epoch = command.epoch
                self.credit = 0
            case commands.Unsubscribe():
                self.take_back(command.unsent, command.seen)
                self.credit = 0
            case _:
                raise AssertionError(command)


class QueueCreditMachine(RuleBasedStateMachine):
    """Commands and effects are in flight for as long as the rules like."""

    kind = "classic"
    times = 1
    keeps = True
    acts_at_once = False

    @initialize(delivery_count=st.sampled_from((0, MASK - 3)))
    def begin(self, delivery_count: int) -> None:
        self.queue = NaiveQueue(delivery_count, keeps=self.keeps)
        declared = DeclaredQueue("q", "/", self.kind, True, None, False, {}, handle=Nowhere())
        self.letters: deque[commands.Command] = deque()
        self.credit = QueueCredit(declared, REF, self._post)
        self.credit._ahead = delivery_count
        self.waiting: list[int] = []
        self.written: list[int] = []
        self.marked: list[int] = []
        self.redelivered = 0
        # Answers that wait for what was delivered before them to be written.
        self.markers: deque[commands.CreditReply] = deque()

    def _post(self, command: QueueCommand) -> None:
        self.letters.append(command[1])

    # --- what happens -----------------------------------------------------------------------------

    @rule(sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=4))
    def publish(self, sizes: list[int]) -> None:
        for size in sizes:
            self.queue.put(size)

    @precondition(lambda self: not self.credit.in_flight)
    @rule(wanted=st.one_of(st.integers(0, 2 * MOST), st.just(100 * MOST)), drain=st.booleans())
    def request(self, wanted: int, drain: bool) -> None:
        """Handle a client's flow, which has given back deliveries beyond its credit before."""
        if wanted < len(self.waiting):
            self.give_back(wanted)
        self.credit.request(wanted, MOST, drain=drain)
        assert self.credit.in_flight
        if self.times == 1:
            assert self.credit.left == (min(wanted, MOST) if self.keeps else wanted)
        most = min(wanted, self.times * MOST) if self.keeps else wanted
        assert min(wanted, MOST) <= self.credit.left <= most

    @rule(wanted=st.one_of(st.integers(0, 2 * MOST), st.just(100 * MOST)), renew_at=st.integers(0, MOST))
    def top_up(self, wanted: int, renew_at: int) -> None:
        """It never asks while deliveries wait here or a request is under way, nor for less than is left."""
        left, in_flight = self.credit.left, self.credit.in_flight
        letters = len(self.letters)
        asked = self.credit.top_up(wanted, MOST, renew_at=renew_at)
        assert len(self.letters) - letters == asked
        if not self.keeps:
            assert asked == (not in_flight and wanted > left), "its credit runs out"
        if asked:
            assert not in_flight
            assert wanted > left
            assert not (self.keeps and self.waiting)
        elif not in_flight and not left:
            assert not wanted or (self.keeps and self.waiting), "the consumer waits for nothing"

    @rule(keep=st.integers(0, MOST))
    def give_back(self, keep: int) -> None:
        back, self.waiting = self.waiting[keep:], self.waiting[:keep]
        self._unmark(back)
        before = len(back) + self.credit.returned
        self.credit.give_back(back, [EMPTY] * len(back))
        assert self.credit.returned == before

    def _unmark(self, gone: Sequence[int]) -> None:
        self.marked = [key for key in self.marked if key not in gone]

    @rule(count=st.integers(1, 3))
    def time_out(self, count: int) -> None:
        """A queue has taken back what was held for too long: the first ones that wait here."""
        gone, self.waiting = self.waiting[:count], self.waiting[count:]
        self._unmark(gone)
        self.credit.drop(len(gone), oldest=True)
        self.queue.timed_out |= set(gone)

    @rule(numbers=st.sets(st.integers(0, 12), max_size=3))
    def mark(self, numbers: set[int]) -> None:
        self.queue.had |= numbers

    @invariant()
    def counts_what_is_written(self) -> None:
        """Written deliveries count, with the marked ones; deliveries that went back do not."""
        counted = self.credit.counted()
        assert (counted.delivered, counted.redelivered) == (len(self.written), self.redelivered)

    @precondition(lambda self: self.letters)
    @rule()
    def letter(self) -> None:
        self.queue.on(self.letters.popleft())

    @precondition(lambda self: self.queue.effects)
    @rule()
    def effect(self) -> None:
        effect = self.queue.effects.popleft()
        if isinstance(effect, commands.CreditReply):
            self.credit.on_reply(effect)
            self.markers.append(effect)
            if self.acts_at_once:
                self._act()
            return
        expected = effect.epoch == self.credit.epoch and not self.credit.closed
        taken = self.credit.on_deliver(effect)
        assert taken == expected, "of an epoch that is over"
        if taken:
            self.waiting += effect.keys
            self.marked += [key for key in effect.keys if effect.messages == [AGAIN]]

    @rule(count=st.integers(1, MOST))
    def write(self, count: int) -> None:
        gone, self.waiting = self.waiting[:count], self.waiting[count:]
        self.written += gone
        for key in gone:
            if key in self.marked:
                self.marked.remove(key)
                self.redelivered += 1
        self.credit.sent(len(gone))

    @precondition(lambda self: self.markers)
    @rule()
    def act(self) -> None:
        """Act when deliveries before the answer are written or went back."""
        if not self.waiting:
            self._act()

    def _act(self) -> None:
        reply = self.markers.popleft()
        counts = self.credit.answered(reply)
        assert counts == (reply.epoch == self.credit.epoch)
        assert not self.credit.in_flight
        assert self.credit.available == reply.available
        if not counts:
            assert self.credit.left == len(self.waiting), "an answer of an epoch that is over gives credit"

    @rule(wanted=st.integers(1, 3 * MOST))
    def drain(self, wanted: int) -> None:
        """As in a session, repeat until the queue gives up credit or none is wanted."""
        self._settle_down()
        if len(self.waiting) > wanted:
            return
        wanted -= len(self.waiting)
        for _ in range(4 * MOST + len(self.queue.sizes)):
            if self.credit.in_flight:
                self._settle_down()
            self._write_all()
            before = len(self.written)
            self.credit.request(wanted, MOST, drain=True)
            self._settle_down()
            self._write_all()
            wanted -= len(self.written) - before
            if self.credit.forfeited or wanted <= 0:
                break
        else:
            raise AssertionError("the drain does not end")
        assert wanted <= 0 or not self.queue.ready
        assert self.credit.left == 0

    def _settle_down(self) -> None:
        while self.letters or self.queue.effects or self.markers:
            while self.letters:
                self.letter()
            while self.queue.effects:
                self.effect()
            if self.markers:
                self._write_all()
                self._act()

    def _write_all(self) -> None:
        if self.waiting:
            self.write(len(self.waiting))

    # --- what always holds ------------------------------------------------------------------------

    def _coming(self) -> list[int]:
        return [
            key
            for effect in self.queue.effects
            if isinstance(effect, commands.Deliver) and effect.epoch == self.credit.epoch
            for key in effect.keys
        ]

    @invariant()
    def counts_are_those_of_the_deliveries(self) -> None:
        assert self.credit.waiting == len(self.waiting)
        assert self.credit.written == len(self.written)
        assert self.credit.left >= 0

    @invariant()
    def no_more_is_outside_than_was_granted(self) -> None:
        """The bound is in deliveries, and in two rooms of bytes, each with the message that uses it up."""
        outside = [*self.waiting, *self._coming()]
        if self.keeps:
            assert len(outside) <= self.times * MOST
            if not self.written:
                assert len(outside) <= MOST, "its client has not taken anything yet"
            sizes = [self.queue.sizes[key] for key in outside]
            assert sum(sizes) <= 2 * (commands.ROOM_BYTES + max(SIZES))

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        """Written ones are in order: a message that goes back is not overtaken by a later one."""
        places = [*self.written, *self.waiting, *self._coming()]
        assert places == sorted(places)
        assert len(set(places)) == len(places)
        if self.keeps and not any(isinstance(letter, commands.GiveBack) for letter in self.letters):
            # Until the queue hears of it, it takes what went back, or was not taken, for handed out.
            assert {*places, *self.queue.ready, *self.queue.timed_out} == set(self.queue.sizes)
        assert not set(self.queue.ready) & set(places)

    @invariant()
    def at_rest_both_know_the_same(self) -> None:
        if self.letters or self.queue.effects or self.markers:
            return
        assert not self.credit.in_flight
        assert self.credit.granted == self.queue.credit
        assert self.credit.left == self.queue.credit + len(self.waiting)
        count = (self.credit.delivery_count + len(self.waiting)) & MASK
        assert count == self.queue.delivery_count

    def teardown(self) -> None:
        """All messages come through, and those that wait when the consumer leaves return to their places."""
        if not hasattr(self, "queue"):
            return
        self._settle_down()
        for _ in range(4 * len(self.queue.sizes) + 8):
            self._write_all()
            self.credit.top_up(MASK, MOST)
            self._settle_down()
        assert not self.queue.ready, "messages wait, and the consumer asks for none"
        self.every_message_is_in_one_place()
        self.publish([1, 1])
        self.credit.leave(self.waiting, [EMPTY] * len(self.waiting), commands.DeliveryOutcome.REQUEUE)
        self.waiting.clear()
        while self.letters:
            self.letter()
        while self.queue.effects:
            self.effect()
        assert not self.waiting, "taken after the end"
        if self.keeps:
            gone = {*self.written, *self.queue.timed_out}
            assert self.queue.ready == [key for key in self.queue.sizes if key not in gone]


class AtOnce(QueueCreditMachine):
    """Answers are acted on when they come, as channels do."""

    acts_at_once = True


class ByLog(QueueCreditMachine):
    """Of a queue whose answers wait for its log: it may be asked for more by one whose client reads."""

    kind = "quorum"
    times = QUORUM.request_factor


class Replies(QueueCreditMachine):
    """Of a queue that keeps nothing."""

    kind = "volatile"
    keeps = False


class Nowhere:
    """A handle to which nothing is put: letters go by the test's own post."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the handle is not asked for")


TestQueueCredit = QueueCreditMachine.TestCase
TestAtOnce = AtOnce.TestCase
TestByLog = ByLog.TestCase
TestReplies = Replies.TestCase


CONDITIONS = st.builds(
    Conditions,
    delay_ms=st.sampled_from([0, 1, 10, 25, 200]),
    pace=st.sampled_from([0, 1, 30, 100, 3_000]),
    confirm_ms=st.sampled_from([0, 1, 20, 300]),
    confirms_per_ms=st.sampled_from([0.05, 1.0, 10.0, 1e9]),
    size=st.sampled_from([0, 1, 100, 5_000, 1_000_000]),
    tight=st.booleans(),
)
PHASES = st.lists(st.tuples(CONDITIONS, st.integers(1, 1_500)), min_size=1, max_size=5)


@given(PHASES, st.sampled_from([1, 170, 1_000, 16_384]), st.sampled_from([1, 100_000, 1 << 23]))
def test_bounds_are_kept_nothing_granted_is_taken_back_and_nothing_is_stuck(
    phases: list[tuple[Conditions, int]], most: int, most_bytes: int
) -> None:
    """Each grant ends no earlier than the last (`CreditLoop` checks it), and no client is stuck."""
    loop = CreditLoop(phases[0][0], most=most, most_bytes=most_bytes)
    auto = loop.auto.auto
    highest = BASE
    for conditions, ms in phases:
        loop.conditions = conditions
        for _ in range(ms):
            loop.step()
            highest = max(highest, auto.limit)
            assert BASE <= auto.limit <= max(BASE, most)
            assert auto.limit <= auto.top
            assert loop.credit.limit == auto.limit
            # As of a fixed limit: what is granted when fewer than that are unconfirmed.
            assert loop.credit.outstanding + loop.credit.link_credit <= 2 * highest + highest // 2
    # Whatever it was, it goes on when it can: what is at the queue is confirmed, and more comes.
    loop.conditions = Conditions(delay_ms=1)
    loop.run(1_000)
    assert loop.run(200) >= 0.5 * BASE / 3


@given(PHASES)
def test_when_memory_is_tight_it_always_comes_back_to_the_default(
    phases: list[tuple[Conditions, int]],
) -> None:
    """It does so from any limit, within some epochs of the messages that still come."""
    loop = CreditLoop(phases[0][0])
    for conditions, ms in phases:
        loop.conditions = conditions
        loop.run(ms)
    loop.conditions = Conditions(delay_ms=10, tight=True)
    loop.run(5_000)
    assert set(loop.limits[-1_000:]) == {BASE}


ROOM = 20_000
SIZES_PACING = st.one_of(
    st.lists(st.integers(0, 10_000), max_size=200),
    st.lists(st.sampled_from([1, 1, 1, 1, 9_000, 50_000]), max_size=200),
    st.lists(st.integers(1, 30), max_size=100).map(lambda small: small + [9_000] * 100),
    st.lists(st.integers(1, 30), max_size=100).map(lambda small: [9_000] * 100 + small),
)


def segments(
    sizes: list[int], credit_max: int, wanted: int, read: int
) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Return the messages of each segment, and (granted, given back) of each grant. Everything granted
    comes, since a broker may have written all of it before it reads the stop; `read` messages at a time.
    """
    grants = CreditPacing(credit_max, ROOM)
    found: list[list[int]] = []
    asked: list[tuple[int, int]] = []
    at = 0
    while at < len(sizes):
        grants.held_bytes = 0
        segment: list[int] = []
        while len(segment) < wanted and not grants.full and at < len(sizes):
            count = grants.next(wanted - len(segment))
            assert 1 <= count <= min(credit_max, wanted - len(segment))
            coming = sizes[at : at + count]
            kept = 0
            for start in range(0, len(coming), read):
                piece = coming[start : start + read]
                more = grants.keep(piece)
                assert more == 0 or kept == start, "messages are kept from the first on, without a gap"
                kept += more
            grants.end_grant()
            asked.append((count, len(coming) - kept))
            assert kept == len(coming) or grants.full
            segment += coming[:kept]
            at += kept
        found.append(segment)
    return found, asked


@given(SIZES_PACING, st.integers(1, 1000), st.integers(1, 300), st.integers(1, 50))
def test_no_segment_is_larger_than_the_room_and_one_message(
    sizes: list[int], credit_max: int, wanted: int, read: int
) -> None:
    """This holds for every order of sizes; each message is in one segment, in order."""
    found, _ = segments(sizes, credit_max, wanted, read)
    assert [size for segment in found for size in segment] == sizes
    for segment in found:
        weights = [size + MESSAGE_COST_BYTES for size in segment]
        assert sum(weights[:-1]) < ROOM
        assert 1 <= len(segment) <= wanted
    for one, _ in pairwise(found):
        weight = sum(size + MESSAGE_COST_BYTES for size in one)
        assert weight >= ROOM or len(one) == wanted, "no segment ends early"


@given(SIZES_PACING, st.integers(1, 1000), st.integers(1, 300), st.integers(1, 50))
def test_messages_that_do_not_grow_are_never_given_back(
    sizes: list[int], credit_max: int, wanted: int, read: int
) -> None:
    """The first grant is an exception, since no size is known yet."""
    _, asked = segments(sorted(sizes, reverse=True), credit_max, wanted, read)
    assert all(back == 0 for _, back in asked[1:])


@given(st.integers(0, 100), st.integers(1, 1000))
def test_credit_reaches_its_limit_in_a_few_grants(size: int, credit_max: int) -> None:
    """So the cost of small messages does not depend on the rule."""
    grants = CreditPacing(credit_max)
    for _ in range(3):
        grants.keep([size] * grants.next(10_000))
        grants.end_grant()
    assert grants.next(10_000) == credit_max
