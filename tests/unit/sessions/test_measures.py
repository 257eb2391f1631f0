"""Histograms of a connection."""

from __future__ import annotations

from amqp10broker.sessions.counters import DURATIONS_MS, SIZES, Measures, MessageSizes


def test_sizes_of_messages_are_counted_exactly_however_many_different_ones_there_are() -> None:
    sizes = MessageSizes()
    for size in range(1_000):
        sizes.count([bytes(size)] * 2)
    counts = sizes.histogram.counts
    assert counts[:3] == [202, 1_798, 0]
    assert sum(counts) == 2_000
    assert sizes.histogram.sum == 2 * sum(range(1_000))
    sizes.count([b"one more"])
    assert sum(sizes.histogram.counts) == 2_001
    sizes.count([b"x", b"x" * 150, b"x"])
    sizes.count([])
    assert sizes.histogram.counts[:2] == [205, 1_799]


def test_measures_of_connections_that_have_ended_are_added() -> None:
    one, all_of_them = Measures(), Measures()
    one.receiver_credit_zero.count(5)
    one.message_sizes.count([b"x" * 101])
    all_of_them.add(one)
    all_of_them.add(one)
    assert all_of_them.receiver_credit_zero.counts == [0, 2] + [0] * (len(DURATIONS_MS) - 1)
    assert all_of_them.message_sizes.histogram.counts == [0, 2] + [0] * (len(SIZES) - 1)
    assert all_of_them.sender_credit_zero.sum == 0
