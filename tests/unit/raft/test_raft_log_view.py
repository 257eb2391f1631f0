"""The log as the core sees it: terms as stretches, what is durable, what a late ticket may say."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.raft.entries import Configuration, Hard, Kind, Point, Run, Stored, run_of
from amqp10broker.raft.leader import LogView


class Entries:
    """A store that has entries one by one, from index 1 on."""

    def __init__(self, terms: Sequence[int] = ()) -> None:
        self.terms = terms

    def read(self, first: int, last: int, size: int, /) -> Sequence[Run]:
        return [run(index, self.terms[index - 1]) for index in range(first, last + 1)]


def run(first: int, term: int, count: int = 1, size: int = 4) -> Run:
    return run_of(first, term, Kind.COMMAND, (b"x" * size,) * count)


def log(*terms: int) -> LogView:
    """A durable log of entries of these terms, from index 1 on."""
    stretches = tuple((index, term) for index, term in enumerate(terms, 1))
    stored = Stored(Point(0, 0, Configuration((1,))), Hard(0, None, 0), len(terms), stretches)
    return LogView(stored, Entries(terms))


@given(st.lists(st.integers(0, 2), max_size=12), st.integers(-1, 14))
def test_a_stretch_of_terms_says_what_a_list_says(steps: list[int], index: int) -> None:
    """Terms of all entries, and of none that is not there."""
    terms = [sum(steps[: count + 1]) + 1 for count in range(len(steps))]
    view = log(*terms)
    expected = 0 if index == 0 else terms[index - 1] if 1 <= index <= len(terms) else None
    assert view.term(index) == expected
    assert view.last_term == (terms[-1] if terms else 0)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=10), st.integers(0, 12), st.integers(0, 12))
def test_agreement_is_the_last_entry_of_no_newer_term(steps: list[int], index: int, term: int) -> None:
    """So that a leader skips a term at a time (the paper, end of section 5.3)."""
    terms = [0, *(sum(steps[: count + 1]) + 1 for count in range(len(steps)))]
    at = min(index, len(terms) - 1)
    while at and terms[at] > term:
        at -= 1
    assert log(*terms[1:]).agreement(index, term) == at


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=8), st.lists(st.integers(0, 1), min_size=1, max_size=8)
)
def test_a_conflict_is_the_first_entry_that_differs(ours: list[int], theirs: list[int]) -> None:
    """Or that is not there; None if all are."""
    mine = [sum(ours[: count + 1]) + 1 for count in range(len(ours))]
    other = [sum(theirs[: count + 1]) + 1 for count in range(len(theirs))]
    runs = []
    for index, term in enumerate(other, 1):
        if runs and runs[-1].term == term:
            runs[-1] = run(runs[-1].first, term, len(runs[-1].payloads) + 1)
        else:
            runs.append(run(index, term))
    differing = [i for i, term in enumerate(other, 1) if i > len(mine) or mine[i - 1] != term]
    assert log(*mine).conflict(runs) == (differing[0] if differing else None)


def test_entries_are_handed_out_once_and_durable_by_ticket() -> None:
    """What is not durable is kept; what is, is read from the store."""
    view = log(1)
    view.append(run(2, 1, 2))
    assert view.hand_out() == (run(2, 1, 2),)
    assert view.hand_out() == ()
    ticket = view.issue()
    view.append(run(4, 1))
    assert view.hand_out() == (run(4, 1),)
    assert view.stable == 1
    view.persist(ticket)
    assert view.stable == 3
    assert view.entries(4, 100) == (run(4, 1),)


def test_a_ticket_of_entries_that_were_cut_off_says_nothing_of_those_in_their_place() -> None:
    """Also if index and term are the same again: the disk may have had others in between (ABA)."""
    view = log(1)
    view.append(run(2, 2, 2))
    view.hand_out()
    first = view.issue()
    view.truncate(2)
    view.append(run(2, 3))
    view.hand_out()
    view.issue()
    view.truncate(2)
    view.append(run(2, 2, 2))
    view.hand_out()
    third = view.issue()
    view.persist(first)
    assert view.stable == 1
    view.persist(third)
    assert view.stable == 3


def test_what_was_not_cut_off_counts() -> None:
    """A truncation lowers older tickets to what it left."""
    view = log()
    view.append(run(1, 1, 3))
    view.hand_out()
    ticket = view.issue()
    view.truncate(3)
    view.persist(ticket)
    assert view.stable == 2


def test_entries_are_cut_to_a_size_and_one_comes_always() -> None:
    """Bytes of payloads; an entry is never cut."""
    view = log()
    view.append(run(1, 1, 4))
    view.append(run(5, 1, 2))
    assert view.entries(1, 1) == (run(1, 1),)
    assert view.entries(2, 8) == (run(2, 1, 2),)
    assert view.entries(3, 12) == (run(3, 1, 2), run(5, 1))
    assert view.entries(7, 12) == ()


def test_a_snapshot_takes_the_place_of_the_log() -> None:
    """It is not durable before its ticket is; an older ticket says nothing of it."""
    view = log(1, 1)
    view.append(run(3, 1))
    view.hand_out()
    old = view.issue()
    view.restore(Point(9, 4, Configuration((1,))), 1)
    assert (view.base, view.last, view.last_term, view.stable) == (9, 9, 4, 1)
    new = view.issue()
    view.persist(old)
    assert view.stable == 1
    view.persist(new)
    assert view.stable == 9
