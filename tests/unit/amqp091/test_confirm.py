"""Publisher confirms: what is owed, and how it is merged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.protocols.amqp091.confirm import Confirm, ConfirmTracker


def ack(tag: int, *, multiple: bool = False) -> Confirm:
    return Confirm(tag, multiple, False)


def nack(tag: int) -> Confirm:
    return Confirm(tag, False, True)


def tracker(count: int, queues: int = 1) -> ConfirmTracker:
    confirms = ConfirmTracker()
    confirms.published(1, queues, count)
    return confirms


def test_acks_up_to_the_first_that_waits_are_merged() -> None:
    """The others are sent singly, in order."""
    confirms = tracker(8)
    confirms.confirmed([7, 1, 5])
    confirms.confirmed([2, 3])
    assert confirms.take() == [ack(3, multiple=True), ack(5), ack(7)]
    confirms.confirmed([4])
    assert confirms.take() == [ack(4)]
    confirms.confirmed([6, 8])
    assert confirms.take() == [ack(8, multiple=True)]


def test_nacks_come_first_and_bound_what_is_merged() -> None:
    """An ack of several must not cover a message that is nacked at the same time."""
    confirms = tracker(6)
    confirms.confirmed(range(1, 7))
    other = tracker(6)
    other.rejected([5, 3])
    other.confirmed([1, 2, 4, 6])
    assert confirms.take() == [ack(6, multiple=True)]
    assert other.take() == [nack(3), nack(5), ack(2, multiple=True), ack(4), ack(6)]


@pytest.mark.rabbitmq("rabbit_confirms_SUITE", "confirm")
def test_a_message_for_several_queues_waits_for_all() -> None:
    """The last confirm counts."""
    confirms = tracker(2, queues=3)
    for _ in range(2):
        confirms.confirmed([1, 2])
        assert confirms.take() == []
    confirms.confirmed([2])
    assert confirms.take() == [ack(2)]
    confirms.confirmed([1])
    assert confirms.take() == [ack(1)]
    assert confirms.waiting == 0


@pytest.mark.rabbitmq("rabbit_confirms_SUITE", "reject")
def test_one_rejecting_queue_is_enough_for_a_nack() -> None:
    """At once; what the other queues say later is passed over."""
    confirms = tracker(1, queues=2)
    confirms.rejected([1])
    assert confirms.take() == [nack(1)]
    confirms.confirmed([1])
    confirms.rejected([1])
    assert confirms.take() == []


def test_an_unroutable_message_is_confirmed_at_once() -> None:
    """No queue has to take responsibility."""
    confirms = tracker(1)
    confirms.published(2, 0)
    assert confirms.take() == [ack(2)]
    confirms.confirmed([1])
    assert confirms.take() == [ack(1)]


class Model:
    """The same in the simplest words: section 5.1 of the behaviour, per message."""

    def __init__(self) -> None:
        self.waiting: dict[int, int] = {}
        self.acks: set[int] = set()
        self.nacks: set[int] = set()
        self.last = 0

    def published(self, queues: int) -> None:
        self.last += 1
        if queues:
            self.waiting[self.last] = queues
        else:
            self.acks.add(self.last)

    def confirmed(self, seqs: list[int]) -> None:
        for seq in seqs:
            if seq in self.waiting:
                self.waiting[seq] -= 1
                if not self.waiting[seq]:
                    del self.waiting[seq]
                    self.acks.add(seq)

    def rejected(self, seqs: list[int]) -> None:
        for seq in seqs:
            if self.waiting.pop(seq, None):
                self.nacks.add(seq)

    def take(self) -> list[Confirm]:
        confirms = [nack(seq) for seq in sorted(self.nacks)]
        cutoff = min([*self.waiting, *self.nacks, self.last + 1])
        merged = sorted(seq for seq in self.acks if seq < cutoff)
        if merged:
            confirms.append(ack(merged[-1], multiple=len(merged) > 1))
        confirms += [ack(seq) for seq in sorted(self.acks) if seq >= cutoff]
        self.acks.clear()
        self.nacks.clear()
        return confirms


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 3), st.integers(1, 6)),
    st.tuples(st.sampled_from(["confirm", "reject"]), st.lists(st.integers(0, 30), max_size=6), st.none()),
    st.tuples(st.just("confirm range"), st.integers(0, 30), st.integers(1, 10)),
    st.tuples(st.just("take"), st.none(), st.none()),
)


@given(st.lists(STEPS, max_size=40))
def test_any_course_is_as_the_model_says(steps: list[tuple[str, object, object]]) -> None:
    """Each confirm, singly or in a row, leads to the same acks and nacks as the naive model."""
    confirms, model = ConfirmTracker(), Model()
    for step in [*steps, ("take", None, None)]:
        match step:
            case ("publish", int(queues), int(count)):
                confirms.published(confirms.next_seq, queues, count)
                for _ in range(count):
                    model.published(queues)
            case (("confirm" | "reject") as kind, list(seqs), _):
                known = [max(1, seq % (model.last + 1)) for seq in seqs] if model.last else []
                if kind == "confirm":
                    confirms.confirmed(known)
                    model.confirmed(known)
                else:
                    confirms.rejected(known)
                    model.rejected(known)
            case ("confirm range", int(first), int(count)):
                row = range(max(first, 1), min(first + count, model.last + 1))
                confirms.confirmed(row)
                model.confirmed(list(row))
            case _:
                assert confirms.take() == model.take()
        assert confirms.waiting == len(model.waiting)
        assert confirms.next_seq == model.last + 1
