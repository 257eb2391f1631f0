"""The checker of metadata explains what may happen, and nothing that may not."""

from __future__ import annotations

import random

import pytest

from tests.support.linearizable import Kind, check, is_explained
from tests.support.metadata_histories import BAD, GOOD, read, simulated


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be_is_explained(name: str) -> None:
    assert is_explained(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_not(name: str) -> None:
    assert not is_explained(BAD[name])


@pytest.mark.parametrize("seed", range(30))
def test_lives_of_a_simulated_cluster_are_explained(seed: int) -> None:
    check({"name": simulated(random.Random(seed), 60)})


@pytest.mark.parametrize("seed", range(30))
def test_one_reading_that_is_changed_is_noticed(seed: int) -> None:
    rng = random.Random(seed)
    operations = simulated(rng, 20)
    place = rng.choice([at for at, each in enumerate(operations) if each.kind is Kind.READ])
    was = operations[place]
    operations[place] = read("from nowhere", was.began, was.ended, was.node)
    with pytest.raises(AssertionError, match=r"(?s)nothing explains what was seen of 'name'.*from nowhere"):
        check({"name": operations})
