"""Applying what has changed to the value before it gives the value after it, whatever the two are."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.api.live import difference
from amqp10broker.api.messages import json_text
from tests.support.live import applied

SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(0, 2) | st.text("ab", max_size=2)
NAMES = st.sampled_from(["name", "vhost", "queue", "consumer_tag", "timestamp", "messages", "items", "to"])


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
        max_leaves=12,
    )


VALUES = nested(SCALARS)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from("abcdef"), "messages": st.integers(0, 3)}, optional={"more": VALUES}
    ),
    max_size=6,
)
PAIRS = st.tuples(VALUES, VALUES) | st.tuples(ROWS, ROWS)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON, where true is not 1; members of an object have no order."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@given(PAIRS)
def test_a_difference_makes_the_one_of_the_other(pair: tuple[Any, Any]) -> None:
    before, after = pair
    untouched = json_text(before)
    change = difference(before, after)
    assert (change is None) == same(before, after)
    if change is not None:
        assert same(applied(before, json.loads(json_text(change))), after)
    assert json_text(before) == untouched


@given(st.lists(VALUES, min_size=2, max_size=5))
def test_differences_one_after_the_other_end_at_the_last_value(values: list[Any]) -> None:
    held = values[0]
    for before, after in pairwise(values):
        change = difference(before, after)
        held = held if change is None else applied(held, change)
    assert same(held, values[-1])


@given(st.permutations(list("abcde")), st.permutations(list("abcde")))
def test_rows_that_only_change_places_are_not_told_again(one: list[str], other: list[str]) -> None:
    """By the members that name them; a whole row would hold its long text."""
    before, after = (
        [{"name": name, "vhost": "/", "text": name * 100} for name in names] for names in (one, other)
    )
    change = difference(before, after)
    assert change is None or "aaa" not in json_text(change)
