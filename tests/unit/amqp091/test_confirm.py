"""Publisher confirms: what is owed, and how it is merged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.protocols.amqp091.delivery_tags import Confirm, ConfirmTracker


def ack(tag: int, *, multiple: bool = False) -> Confirm:
    return Confirm(tag, multiple, False)


def nack(tag: int) -> Confirm:
    return Confirm(tag, False, True)


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


@pytest.mark.rabbitmq("rabbit_confirms_SUITE", "reject")
@pytest.mark.rabbitmq("rabbit_confirms_SUITE", "confirm")
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
