"""Sums of what clients did, by protocol, virtual host and user."""

from __future__ import annotations

from amqp10broker.sessions.counters import FORGET_AT_LEAST, ClientCounters, Totals, Whose


def published(messages: int) -> ClientCounters:
    counters = ClientCounters()
    counters.published = messages
    return counters


def shown(sums: tuple[dict[str, ClientCounters], ...]) -> list[dict[str, int]]:
    return [{name: each.published for name, each in total.items()} for total in sums]


def test_those_that_are_gone_and_those_that_are_there_are_added_up() -> None:
    totals = Totals()
    totals.add(Whose("a", "/", "ann"), published(1), {"ann", "bob"}, {"/", "v"})
    totals.add(Whose("a", "v", "bob"), published(2), {"ann", "bob"}, {"/", "v"})
    present = [(Whose("b", "v", "ann"), published(4))]
    expected = [{"a": 3, "b": 4}, {"/": 1, "v": 6}, {"ann": 5, "bob": 2}]
    assert shown(totals.by(present, {"ann", "bob"}, {"/", "v"})) == expected
    assert shown(totals.by(present, {"ann", "bob"}, {"/", "v"})) == expected, "it was only looked at"


def test_what_was_deleted_counts_for_the_others() -> None:
    """And not again for another one who gets the name."""
    totals = Totals()
    totals.add(Whose("a", "v", "ann"), published(1), {"ann"}, {"v"})
    assert shown(totals.by([], {"ann"}, set())) == [{"a": 1}, {}, {"ann": 1}]
    assert shown(totals.by([], set(), {"v"})) == [{"a": 1}, {}, {}]
    assert shown(totals.by([], {"ann"}, {"v"})) == [{"a": 1}, {}, {}]


def test_names_that_were_deleted_are_not_kept() -> None:
    """Tests that make a virtual host each would else fill the memory."""
    totals = Totals()
    for number in range(10 * FORGET_AT_LEAST):
        totals.add(Whose("a", f"v{number}", "ann"), published(1), {"ann"}, {f"v{number}"})
    assert len(totals._gone) <= 2 * FORGET_AT_LEAST
    assert shown(totals.by([], {"ann"}, set())) == [
        {"a": 10 * FORGET_AT_LEAST},
        {},
        {"ann": 10 * FORGET_AT_LEAST},
    ]
