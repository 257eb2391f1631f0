"""Client and broker sessions back to back under random interleaving: nothing is lost, doubled or early.

Checked on the wire by watches that know neither engine: credit, both windows, delivery-count, flows.
Checked at the ends: every message is finished or can be drained, in order; every drain and every echo
has had its answer; no more than `max_queue_credit` deliveries of a link are between queue and wire.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp10broker.config import FlowSettings
from amqp10broker.protocols.amqp10 import performatives
from amqp10broker.protocols.amqp10.link import LinkState, ReceiverLink, SenderLink
from tests.support.examples import tried
from tests.support.pairing import Pair, pending_deliveries, settle_mode
from tests.support.rawframes import body_of, message

QUEUES = ("a", "b")
OUTCOMES: dict[str, Any] = {
    "accepted": performatives.Accepted(),
    "rejected": performatives.Rejected(),
    "released": performatives.Released(),
    "modified": performatives.Modified(delivery_failed=True),
}
BUDGETS = (0, 1, 500, 3_000, 1 << 30, 1 << 30)
Move = tuple[Any, ...]


def make_moves(count: int, seed: int) -> list[Move]:
    """Draw moves from a seed: single draws would use up what Hypothesis allows an example."""
    random = Random(seed)

    def size() -> int:
        return random.choice((random.randint(1, 80), random.randint(80, 2_000), 1 << 20))

    def one() -> Move:
        kind = random.choice(("round", "read", "wake", "wake", "queue"))
        if kind == "read":
            return kind, size()
        if kind == "wake":
            sizes = [size() for _ in range(random.randint(0, 3))]
            return kind, random.random() < 0.5, sizes, random.randint(0, 4), random.choice(BUDGETS)
        if kind == "queue":
            return kind, random.choice(QUEUES), random.randint(1, 5)
        return (kind,)

    return [one() for _ in range(count)]


MOVES = st.builds(make_moves, st.integers(0, 12), st.integers(0, 2**16))
CREDITS = st.one_of(st.integers(0, 5), st.integers(0, 60), st.sampled_from((2**31 - 1, 2**31, 2**32 - 1)))


class Receiver:
    """A client's consuming link and what it asked for."""

    def __init__(self, name: str, queue: str, link: ReceiverLink, *, settled: bool, patient: bool) -> None:
        self.name = name
        self.queue = queue
        self.link = link
        self.settled = settled
        self.patient = patient
        """Sends no flow on the link while an answer is owed."""
        self.asked = 0
        self.drains = 0
        self.last_credit = 0
        self.last_drained = False


class PairMachine(RuleBasedStateMachine):
    """Random steps of client, broker session, queues and the wire between them."""

    pair: Pair

    @initialize(
        window=st.one_of(st.integers(1, 8), st.integers(20, 400)),
        max_link_credit=st.sampled_from((1, 2, 7, 170)),
        max_incoming_window=st.sampled_from((1, 2, 9, 400)),
        max_queue_credit=st.sampled_from((1, 3, 16, 256)),
        first_settled=st.booleans(),
    )
    def begin(
        self,
        window: int,
        max_link_credit: int,
        max_incoming_window: int,
        max_queue_credit: int,
        first_settled: bool,
    ) -> None:
        self.pair = Pair(
            window=window,
            flow=FlowSettings(
                max_link_credit=max_link_credit,
                max_incoming_window=max_incoming_window,
                max_queue_credit=max_queue_credit,
            ),
        )
        self.max_queue_credit = max_queue_credit
        self.names = 0
        self.numbers = 0
        self.senders: dict[str, SenderLink] = {}
        self.receivers: list[Receiver] = []
        self.former: dict[str, Receiver] = {}
        self.held: dict[int, tuple[Receiver, int]] = {}
        self.finished: set[int] = set()
        self.queue_of: dict[int, str] = {}
        self.only_consumer: dict[str, Receiver | None] = {}
        self.last_number: dict[str, int] = {}
        self.published: dict[int, None] = {}
        self.seen_whole_up = 0
        self.seen_whole_down = 0
        self.alarm = False
        for queue in QUEUES:
            self.attach_sender(queue)
            self.attach_receiver(queue, settled=first_settled, patient=False, moves=[])
        self._move(make_moves(20, 0))

    # --- the client's wishes ----------------------------------------------------------------------

    def attach_sender(self, queue: str) -> None:
        self.names += 1
        link = self.pair.client.links.attach(
            f"out-{self.names}",
            performatives.Role.SENDER,
            source=performatives.Source(address="client"),
            target=performatives.Target(address=queue),
        )
        assert isinstance(link, SenderLink)
        self.senders[queue] = link
        self.pair.write_up()

    @rule(
        queue=st.sampled_from(QUEUES),
        count=st.integers(1, 30),
        size=st.sampled_from((0, 0, 0, 300, 1_000, 3_000)),
        moves=MOVES,
    )
    def publish(self, queue: str, count: int, size: int, moves: list[Move]) -> None:
        self._move(moves)
        link = self.senders.get(queue)
        if link is None or self.numbers > 400:
            return
        keys = range(self.numbers, self.numbers + count)
        self.numbers += count
        for number in keys:
            self.queue_of[number] = queue
        self.pair.client.outbound.queue_deliveries(
            link, keys, [(b"", message((b"%06d" % number).ljust(6 + size, b"."))) for number in keys]
        )
        self.pair.write_up()

    @rule(queue=st.sampled_from(QUEUES), rarely=st.integers(0, 9), moves=MOVES)
    def detach_sender(self, queue: str, rarely: int, moves: list[Move]) -> None:
        self._move(moves)
        if rarely or queue not in self.senders:
            return
        self.pair.client.links.detach(self.senders.pop(queue))
        self.pair.write_up()
        self.attach_sender(queue)

    @rule(queue=st.sampled_from(QUEUES), settled=st.booleans(), patient=st.booleans(), moves=MOVES)
    def attach_receiver(self, queue: str, settled: bool, patient: bool, moves: list[Move]) -> None:
        self._move(moves)
        if len(self.receivers) >= 4:
            return
        receiver = self._attached(queue, settled=settled, patient=patient)
        self.only_consumer[queue] = None if queue in self.only_consumer else receiver
        self.pair.write_up()

    @precondition(lambda self: self.receivers)
    @rule(which=st.integers(0, 7), link_credit=CREDITS, drain=st.booleans(), echo=st.booleans(), moves=MOVES)
    def grant(self, which: int, link_credit: int, drain: bool, echo: bool, moves: list[Move]) -> None:
        self._move(moves)
        receiver = self.receivers[which % len(self.receivers)]
        answered = len(self.pair.down_watch.flows.get(receiver.name, ()))
        if receiver.patient and (receiver.asked > answered or receiver.link.credit.delivery_count < 0):
            return
        if receiver.patient and drain and self.pair.down:
            return
        # 2**32 - 1 credits cannot be drained into a signed distance: the watch could not follow either.
        if link_credit > 1_000 and (drain or receiver.drains):
            link_credit = 1_000
        if link_credit >= 2**31:
            link_credit = 2**31 - 1
        self.pair.client.grant(receiver.link, link_credit, drain=drain, echo=echo)
        # What was sent under an older, larger credit may still arrive.
        receiver.link.credit.link_credit = 1 << 31
        receiver.asked += drain or echo
        receiver.drains += drain
        receiver.last_credit = link_credit
        receiver.last_drained = drain
        self.pair.write_up()

    @rule(size=st.one_of(st.none(), st.integers(1, 50)), moves=MOVES)
    def change_window(self, size: int | None, moves: list[Move]) -> None:
        self._move(moves)
        incoming = self.pair.client.incoming
        if size is None:
            incoming.close()
        else:
            incoming.reopen()
            incoming.resize(size)
        self.pair.write_up()

    @rule(count=st.integers(1, 3))
    def session_echo(self, count: int) -> None:
        """Send the session's own flow, which must not disturb any link."""
        for _ in range(count):
            self.pair.client.send_session_flow()
        self.pair.write_up()

    @precondition(lambda self: self.held)
    @rule(
        outcome=st.sampled_from(sorted(OUTCOMES)), settled=st.booleans(), seed=st.integers(0, 99), moves=MOVES
    )
    def settle(self, outcome: str, settled: bool, seed: int, moves: list[Move]) -> None:
        self._move(moves)
        ids = sorted(self.held)
        if seed:
            random = Random(seed)
            ids = random.sample(ids, random.randint(1, len(ids)))
        for delivery_id in ids:
            receiver, number = self.held.pop(delivery_id)
            if outcome in ("accepted", "rejected"):
                self.finished.add(number)
            else:
                self.only_consumer[receiver.queue] = None
        self.pair.client.settling.settle_received(ids, OUTCOMES[outcome], settled=settled)
        self.pair.write_up()

    @precondition(lambda self: self.receivers)
    @rule(which=st.integers(0, 7), rarely=st.integers(0, 3), moves=MOVES)
    def detach_receiver(self, which: int, rarely: int, moves: list[Move]) -> None:
        self._move(moves)
        receiver = self.receivers[which % len(self.receivers)]
        if rarely or receiver.link.state is not LinkState.ATTACHED:
            return
        self._detach(receiver)

    def _detach(self, receiver: Receiver) -> None:
        self.receivers.remove(receiver)
        self.former[receiver.name] = receiver
        self.only_consumer[receiver.queue] = None
        self.held = {
            each: (owner, number) for each, (owner, number) in self.held.items() if owner is not receiver
        }
        self.pair.client.links.detach(receiver.link)
        self.pair.write_up()

    # --- the wire, the broker, the queues ---------------------------------------------------------

    @rule(moves=MOVES)
    def move(self, moves: list[Move]) -> None:
        self._move(moves)

    def _move(self, moves: list[Move]) -> None:
        pair = self.pair
        for move in moves:
            match move:
                case ("round",):
                    pair.carry_up(1 << 20)
                    pair.wake(1 << 30)
                    for queue in pair.host.queues:
                        pair.run_queue(queue, 100)
                    self._letters(len(pair.inbox))
                    pair.wake(1 << 30)
                    pair.carry_down(1 << 20)
                    self._look_at_mail()
                case ("read", int(size)):
                    pair.carry_down(size)
                    self._look_at_mail()
                case ("wake", letters_first, sizes, letters, budget):
                    if letters_first:
                        self._letters(letters)
                    for size in sizes:
                        pair.carry_up(size)
                    if not letters_first:
                        self._letters(letters)
                    pair.wake(budget)
                case ("queue", queue, letters):
                    if queue in pair.host.queues:
                        pair.run_queue(queue, letters)
            self.look_at_the_wire()
            self.at_most_one_batch_is_between_queue_and_wire()

    def _letters(self, count: int) -> None:
        for _ in range(count):
            self.pair.take_letter()

    @rule(on=st.booleans(), moves=MOVES)
    def alarm_changes(self, on: bool, moves: list[Move]) -> None:
        self._move(moves)
        self.pair.broker.on_alarm(on=on)
        self.alarm = on

    def _look_at_mail(self) -> None:
        pair = self.pair
        received, pair.received = pair.received, []
        by_link = {receiver.link: receiver for receiver in self.receivers}
        for event in received:
            receiver = by_link.get(event.link)
            if receiver is None:
                continue
            for delivery_id, payload in zip(event.delivery_ids, event.payloads, strict=True):
                if not receiver.settled:
                    self.held[delivery_id] = (receiver, int(body_of(payload)[:6]))

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def look_at_the_wire(self) -> None:
        """Deliveries written whole are published, or given to a settled link for good."""
        if not hasattr(self, "pair"):
            return
        pair = self.pair
        for _, _, payload in pair.up_watch.whole[self.seen_whole_up :]:
            number = int(body_of(payload)[:6])
            assert number not in self.published
            self.published[number] = None
        self.seen_whole_up = len(pair.up_watch.whole)
        links = {receiver.name: receiver for receiver in (*self.receivers, *self.former.values())}
        for name, _, payload in pair.down_watch.whole[self.seen_whole_down :]:
            number = int(body_of(payload)[:6])
            receiver = links[name]
            assert self.queue_of[number] == receiver.queue
            assert number not in self.finished, "delivered after it was finished"
            if self.only_consumer[receiver.queue] is receiver:
                assert number > self.last_number.get(receiver.queue, -1), "out of order on a lone link"
                self.last_number[receiver.queue] = number
            if receiver.settled:
                self.finished.add(number)
        self.seen_whole_down = len(pair.down_watch.whole)

    @invariant()
    def at_most_one_batch_is_between_queue_and_wire(self) -> None:
        if not hasattr(self, "pair"):
            return
        for receiver in self.receivers:
            assert self.pair.outside(receiver.name) <= self.max_queue_credit

    @invariant()
    def asked_flows_are_answered_once_at_most(self) -> None:
        if not hasattr(self, "pair"):
            return
        for receiver in self.receivers:
            assert len(self.pair.down_watch.flows.get(receiver.name, ())) <= receiver.asked, receiver.name

    # --- the end ----------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "pair"):
            return
        pair = self.pair
        pair.broker.on_alarm(on=False)
        pair.client.incoming.reopen()
        pair.client.incoming.resize(10_000)
        pair.client.send_session_flow()
        self._rest()
        self._answers_are_complete()
        for link in self.senders.values():
            assert not pending_deliveries(link), "a publisher is left without credit"
        assert not pair.client.outbound.unsettled, "a published message has no outcome"
        for receiver in list(self.receivers):
            self._detach(receiver)
        self._rest()
        for queue in QUEUES:
            self._drain(queue)
        assert self.finished == set(self.published)

    def _rest(self) -> None:
        self.pair.settle_down()
        self._look_at_mail()
        self.look_at_the_wire()

    def _answers_are_complete(self) -> None:
        for receiver in self.receivers:
            flows = self.pair.down_watch.flows.get(receiver.name, [])
            if receiver.patient or not receiver.drains:
                assert len(flows) == receiver.asked, (receiver.name, len(flows), receiver.asked)
            elif receiver.asked:
                assert 1 <= len(flows) <= receiver.asked, (receiver.name, len(flows), receiver.asked)
            if receiver.drains and receiver.last_drained:
                assert flows[-1].drain
                assert flows[-1].link_credit == 0

    def _drain(self, queue: str) -> None:
        if queue not in self.pair.host.queues:
            return
        self.only_consumer[queue] = None
        self.attach_receiver_for_good(queue)
        receiver = self.receivers[-1]
        before = len(self.pair.down_watch.whole)
        self.pair.client.grant(receiver.link, 5_000, drain=True)
        self._rest()
        (flow,) = self.pair.down_watch.flows[receiver.name]
        assert flow.drain
        numbers = [int(body_of(payload)[:6]) for _, _, payload in self.pair.down_watch.whole[before:]]
        left = [
            number
            for number in self.published
            if self.queue_of[number] == queue and number not in self.before
        ]
        assert numbers == left

    def attach_receiver_for_good(self, queue: str) -> None:
        self.receivers.clear()
        self.before = set(self.finished)
        self._attached(queue, settled=True, patient=True)
        self._rest()

    def _attached(self, queue: str, *, settled: bool, patient: bool) -> Receiver:
        self.names += 1
        link = self.pair.client.links.attach(
            f"in-{self.names}",
            performatives.Role.RECEIVER,
            source=performatives.Source(address=queue),
            target=performatives.Target(address="client"),
            snd_settle_mode=settle_mode(settled),
        )
        assert isinstance(link, ReceiverLink)
        receiver = Receiver(f"in-{self.names}", queue, link, settled=settled, patient=patient)
        self.receivers.append(receiver)
        return receiver


TestSessionPair = PairMachine.TestCase
TestSessionPair.settings = settings(
    max_examples=tried(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def walk(seed: int, steps: int) -> PairMachine:
    """A long random walk uses the same rules: it shrinks less, and has far more under way at once."""
    random = Random(seed)
    machine = PairMachine()
    machine.begin(
        window=random.choice((1, 2, 5, 30, 400)),
        max_link_credit=random.choice((1, 2, 7, 170)),
        max_incoming_window=random.choice((1, 2, 9, 400)),
        max_queue_credit=random.choice((1, 3, 16, 256)),
        first_settled=random.random() < 0.3,
    )
    lone = random.random() < 0.5

    def flag(probability: float = 0.5) -> bool:
        return random.random() < probability

    for _ in range(steps):
        moves = make_moves(random.randint(0, 6), random.randrange(1 << 30))
        step = random.choice(("publish", "publish", "grant", "grant", "grant", "settle", "settle", "rare"))
        if step == "rare":
            step = random.choice(("detach_sender", "attach", "detach", "window", "window", "alarm", "echo"))
        match step:
            case "publish":
                machine.publish(
                    queue=random.choice(QUEUES),
                    count=random.randint(1, 20),
                    size=random.choice((0, 0, 300, 3_000)),
                    moves=moves,
                )
            case "grant" if machine.receivers:
                machine.grant(
                    which=random.randrange(8),
                    link_credit=random.choice((0, 1, 3, 10, 50, 500, 2**32 - 1)),
                    drain=flag(0.3),
                    echo=flag(0.3),
                    moves=moves,
                )
            case "settle" if machine.held:
                outcome = random.choice(("accepted", "rejected") if lone else sorted(OUTCOMES))
                machine.settle(outcome=outcome, settled=flag(), seed=random.randrange(100), moves=moves)
            case "detach_sender":
                machine.detach_sender(queue=random.choice(QUEUES), rarely=0, moves=moves)
            case "attach" if not lone:
                machine.attach_receiver(
                    queue=random.choice(QUEUES), settled=flag(), patient=flag(), moves=moves
                )
            case "detach" if machine.receivers and not lone:
                machine.detach_receiver(which=random.randrange(8), rarely=0, moves=moves)
            case "window":
                machine.change_window(size=random.choice((None, 1, 3, 10, 50)), moves=moves)
            case "alarm":
                machine.alarm_changes(on=flag(), moves=moves)
            case "echo":
                machine.session_echo(count=2)
        machine.look_at_the_wire()
        machine.at_most_one_batch_is_between_queue_and_wire()
        machine.asked_flows_are_answered_once_at_most()
    machine.teardown()
    return machine


@pytest.mark.parametrize("seed", [*range(60), 107, 583, 584])
def test_long_walks_keep_every_promise(seed: int) -> None:
    walk(seed, 150)
