"""Sums of what clients did, by protocol, virtual host and user."""

from __future__ import annotations

from amqp10broker.sessions.counters import FORGET_AT_LEAST, ClientCounters, Totals, Whose


def published(messages: int) -> ClientCounters:
    counters = ClientCounters()
    counters.published = messages
    return counters


def shown(sums: tuple[dict[str, ClientCounters], ...]) -> list[dict[str, int]]:
    return [{name: each.published for name, each in total.items()} for total in sums]


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
