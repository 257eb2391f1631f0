"""Flow events: the ring, and the numbers in their columns."""

from __future__ import annotations

import struct

import pytest

from amqp10broker.observe.flow_events import PACK, REASONS, EventKind, EventRing, LimitReason
from amqp10broker.sessions.credit import Why
from amqp10broker.sessions.diagnosis.wait_reasons import Wait


def event(number: int) -> tuple[int, ...]:
    return (number, EventKind.QUEUE, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


def taken(ring: EventRing) -> list[tuple[int, ...]]:
    return list(PACK.iter_unpack(ring.take_all()))


def lost(ts_ns: int, count: int) -> tuple[int, ...]:
    return (ts_ns, EventKind.DROPPED, 0, 0, 0, 0, 0, 0, 0, count, 0, 0, 0)


def test_the_gap_is_told_before_what_comes_after_it() -> None:
    ring = EventRing(2)
    for number in range(5):
        ring.add(*event(number))
    assert taken(ring) == [event(0), event(1)]
    ring.add(*event(5))
    assert taken(ring) == [lost(5, 3), event(5)]
    ring.add(*event(6))
    assert taken(ring) == [event(6)]


def test_a_gap_at_the_end_is_told_when_asked() -> None:
    ring = EventRing(2)
    for number in range(3):
        ring.add(*event(number))
    ring.settle(9)
    assert taken(ring) == [event(0), event(1)], "there was no room to tell it"
    ring.settle(9)
    ring.settle(10)
    assert taken(ring) == [lost(9, 1)]


def test_what_could_not_be_handed_on_is_lost_too() -> None:
    """The earlier gap that it reported is reported again, not counted again."""
    ring = EventRing(2)
    for number in range(3):
        ring.add(*event(number))
    ring.take_all()
    ring.add(*event(3))
    ring.lose(ring.take_all())
    assert (ring.offered, ring.dropped) == (4, 2)
    ring.add(*event(4))
    assert taken(ring) == [lost(4, 2), event(4)]


def test_a_value_that_does_not_fit_its_column_is_refused() -> None:
    ring = EventRing(2)
    with pytest.raises(struct.error):
        ring.add(*event(0)[:4], 70_000, *event(0)[5:])
    assert (ring.offered, ring.waiting) == (0, 0)


def test_every_reason_of_an_automatic_limit_has_its_number() -> None:
    """Each `Why` has a number of the same name, and it never changes."""
    assert [reason.name for reason in LimitReason] == [why.name for why in Why]
    assert [(reason.name, reason.value) for reason in LimitReason][:3] == [
        ("DEFAULT", 0),
        ("GROWING", 1),
        ("GROWN", 2),
    ]
    assert [reason.value for reason in LimitReason] == list(range(len(LimitReason)))


def test_numbers_of_reasons_are_for_ever() -> None:
    """Recordings contain them: the numbers here must never change, and are only added to."""
    assert [REASONS[number] for number in range(12)] == [
        "none",
        "no-credit",
        "credit-withheld",
        "peer-window-closed",
        "blocked-by-alarm",
        "queue-empty",
        "not-active",
        "queue-credit-in-flight",
        "writer-blocked",
        "draining",
        "credit-flow",
        "prefetch-full",
    ]
    assert sorted(REASONS) == list(range(len(Wait) + 2))
