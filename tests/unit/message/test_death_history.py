"""Records of dead-lettering: one for a queue and a reason, newest first; and what a cycle is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amqp10broker.message.death_history import Death, is_cycle, recorded, times_of, with_times

FIRST = Death("q", "expired", 1, 1_000, 1_000, "ex", ("k", "cc"), 50)


def event(deaths: tuple[Death, ...], queue: str, reason: str, now_ms: int) -> tuple[Death, ...]:
    return recorded(deaths, queue, reason, now_ms, "other", ("other",), None)


def history(*events: tuple[str, str]) -> tuple[Death, ...]:
    deaths: tuple[Death, ...] = ()
    for time, (queue, reason) in enumerate(events):
        deaths = event(deaths, queue, reason, time)
    return deaths


@pytest.mark.rabbitmq(
    "dead_lettering_SUITE", "dead_letter_routing_key_cycle_with_reject", "dead_letter_reject_expire_expire"
)
@pytest.mark.rabbitmq("mc_unit_SUITE", "is_death_cycle")
@pytest.mark.parametrize(
    ("events", "cycle"),
    [
        ((), False),
        ((("other", "expired"),), False),
        ((("q", "expired"),), True),
        ((("q", "maxlen"),), True),
        ((("q", "delivery_limit"),), True),
        ((("q", "rejected"),), False),
        ((("q", "expired"), ("other", "maxlen")), True),
        ((("q", "expired"), ("other", "rejected")), False),
        ((("other", "rejected"), ("q", "expired")), True),
        ((("q", "rejected"), ("other", "expired")), False),
    ],
)
def test_a_cycle_is_a_return_to_a_queue_with_no_rejection_since(
    events: tuple[tuple[str, str], ...], cycle: bool
) -> None:
    """Of the events since the message died in that queue, and of that one, none is a client's doing."""
    assert is_cycle(history(*events), "q") is cycle


def test_times_come_back_to_the_millisecond() -> None:
    """An x-death says the first time in seconds; beside it both times stand in full."""
    deaths = (replace(FIRST, first_time_ms=1_234, last_time_ms=5_678), replace(FIRST, queue="b"))
    rounded = tuple(replace(death, first_time_ms=1_000, last_time_ms=1_000) for death in deaths)
    assert with_times(rounded, times_of(deaths)) == deaths


def test_records_without_times_stay_as_they_are() -> None:
    assert with_times((FIRST,), b"") == (FIRST,)
