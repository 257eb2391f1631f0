"""Porcupine and our own checker of metadata say the same, of planted histories and of random ones.

The program around porcupine is built by the long form of the tests, where go is.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import pytest

from tests.support.linearizable import Answer, Kind, Operation, is_explained
from tests.support.metadata_histories import BAD, GOOD, simulated
from tests.support.porcupine_check import check, judge

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("go") is None, reason="no go here to build the program around porcupine"),
]


def test_what_may_be_is_explained() -> None:
    assert judge(GOOD) == dict.fromkeys(GOOD, ("Ok", []))


def test_what_cannot_be_is_not() -> None:
    assert {name: delivery_outcome for name, (delivery_outcome, _) in judge(BAD).items()} == dict.fromkeys(
        BAD, "Illegal"
    )


def test_what_is_not_explained_is_named() -> None:
    with pytest.raises(AssertionError, match=r"(?s)does not explain what was seen of 'lost'.*READ"):
        check({"lost": BAD["lost"]})


def changed(rng: random.Random, operations: list[Operation]) -> list[Operation]:
    """Change one operation's result or its node, or remove it."""
    found = list(operations)
    place = rng.randrange(len(found))
    one = found[place]
    kind = rng.randrange(4)
    if kind == 0:
        del found[place]
    elif kind == 1:
        found[place] = replace(one, node=rng.choice("abc"))
    elif one.kind is Kind.READ:
        found[place] = replace(one, value=rng.choice([None, *(each.value for each in found if each.value)]))
    elif one.kind is Kind.PUT:
        found[place] = replace(one, answer=Answer.DONE if one.answer is Answer.REFUSED else Answer.REFUSED)
    return found


@pytest.mark.parametrize("block", range(5))
def test_both_checkers_say_the_same(block: int) -> None:
    """Histories come from a simulated cluster, with or without one change."""
    histories = {}
    for seed in range(block * 200, block * 200 + 200):
        rng = random.Random(seed)
        histories[f"{seed}"] = simulated(rng, 20)
        histories[f"{seed} changed"] = changed(rng, histories[f"{seed}"])
    delivery_outcomes = {
        name: delivery_outcome == "Ok" for name, (delivery_outcome, _) in judge(histories).items()
    }
    assert delivery_outcomes == {name: is_explained(operations) for name, operations in histories.items()}
    assert all(delivery_outcomes[f"{seed}"] for seed in range(block * 200, block * 200 + 200))
    assert list(delivery_outcomes.values()).count(False) > 10


def test_long_histories_have_verdicts() -> None:
    """They are longer than those given to our own checker."""
    check({f"{seed}": simulated(random.Random(seed), 300) for seed in range(10)})
