"""Outstanding deliveries by tag."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.protocols.amqp091.delivery_tags import Taken, Unacked
from amqp10broker.protocols.amqp091.errors import AmqpChannelError, ReplyCode


def flat(taken: list[Taken[str, Any]]) -> list[tuple[int, str, Any]]:
    return [
        (tag, part.consumer, key) for part in taken for tag, key in zip(part.tags, part.keys, strict=True)
    ]


def outstanding(*runs: tuple[int, str, int]) -> Unacked[str, int]:
    """First tag, consumer and count of each run; a key is ten times its tag."""
    unacked: Unacked[str, int] = Unacked()
    for first, consumer, count in runs:
        unacked.add(first, consumer, [tag * 10 for tag in range(first, first + count)])
    return unacked


def refused(unacked: Unacked[str, int], tag: int, *, multiple: bool = False) -> None:
    before = len(unacked)
    with pytest.raises(AmqpChannelError) as caught:
        unacked.ack(tag, multiple)
    assert caught.value.reply_text == f"PRECONDITION_FAILED - unknown delivery tag {tag}"
    assert caught.value.code is ReplyCode.PRECONDITION_FAILED
    assert len(unacked) == before


def test_a_row_of_acks_is_taken_at_once() -> None:
    """One part for each run of a consumer."""
    unacked = outstanding((1, "a", 4), (5, "b", 4))
    taken: list[Taken[str, int]] = []
    unacked.ack_run([(tag, False) for tag in range(1, 9)], taken)
    assert taken == [
        Taken("a", range(1, 5), [10, 20, 30, 40]),
        Taken("b", range(5, 9), [50, 60, 70, 80]),
    ]


def test_a_long_run_of_one_consumer_does_not_keep_what_is_taken() -> None:
    """However long a consumer goes on, only a bounded number of taken tags is remembered."""
    unacked: Unacked[str, int] = Unacked()
    for tag in range(1, 10_001):
        unacked.add(tag, "a", [tag])
        if tag > 10:
            unacked.ack(tag - 10, False)
    assert len(unacked) == 10
    assert sum(len(run.keys) for run in unacked._runs) <= 512


def test_a_used_tag_cannot_be_added() -> None:
    """That would be a fault of ours."""
    unacked = outstanding((1, "a", 4))
    with pytest.raises(AssertionError):
        unacked.add(4, "a", [1])


STEPS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from("ab"), st.integers(0, 5)),
    st.tuples(st.just("ack"), st.integers(0, 40), st.booleans()),
    st.tuples(st.just("run"), st.integers(1, 40), st.integers(1, 8)),
    st.tuples(st.just("roll back"), st.integers(1, 40), st.booleans()),
)


@given(st.lists(STEPS, max_size=40))
def test_any_course_is_as_a_dict_says(steps: list[tuple[str, Any, Any]]) -> None:
    """Each ack takes what the naive model takes, in the order of the tags, or is refused as there."""
    unacked: Unacked[str, int] = Unacked()
    model: dict[int, str] = {}
    last = 0

    def of_model(tag: int, multiple: bool) -> list[tuple[int, str, int]] | None:
        if multiple and tag == 0:
            tags = sorted(model)
        elif tag not in model:
            return None
        else:
            tags = [one for one in sorted(model) if one <= tag] if multiple else [tag]
        return [(one, model.pop(one), one) for one in tags]

    for kind, first, second in steps:
        if kind == "add":
            unacked.add(last + 1, first, range(last + 1, last + 1 + second))
            model.update(dict.fromkeys(range(last + 1, last + 1 + second), first))
            last += second
        elif kind == "run":
            tags = [(tag, False) for tag in range(first, first + second)]
            taken: list[Taken[str, int]] = []
            expected: list[tuple[int, str, int]] = []
            for tag, _ in tags:
                one = of_model(tag, False)
                if one is None:
                    with pytest.raises(AmqpChannelError, match=f"unknown delivery tag {tag}$"):
                        unacked.ack_run(tags, taken)
                    break
                expected += one
            else:
                unacked.ack_run(tags, taken)
            assert flat(taken) == expected
        else:
            wanted = of_model(first, second)
            if wanted is None:
                with pytest.raises(AmqpChannelError):
                    unacked.ack(first, second)
            else:
                parts = unacked.ack(first, second)
                assert flat(parts) == wanted
                if kind == "roll back":
                    unacked.restore(parts)
                    model.update({tag: consumer for tag, consumer, _ in wanted})
        assert len(unacked) == len(model)
    assert flat(unacked.take_all()) == [(tag, model[tag], tag) for tag in sorted(model)]
