"""The rules of resource alarms: when one begins and ends, its causes, when to measure again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.operations import running

MEMORY, DISK = running.Resource.MEMORY, running.Resource.DISK


def judged(
    alarms: running.Alarms, resource: running.Resource, value: int | None, limit: int | None = 1000
) -> bool:
    alarms.judge(resource, running.Measurement(value, limit), 0)
    return resource.value in alarms.names()


def test_memory_is_low_above_its_limit_and_disk_below() -> None:
    alarms = running.Alarms()
    assert not judged(alarms, MEMORY, 1000)
    assert judged(alarms, MEMORY, 1001)
    assert not judged(alarms, DISK, 1000)
    assert judged(alarms, DISK, 999)


def test_an_alarm_ends_a_twentieth_of_the_limit_further_on() -> None:
    """Between the limit and that end the alarm keeps its state."""
    alarms = running.Alarms()
    assert [judged(alarms, MEMORY, each) for each in (960, 1001, 1000, 951, 950, 999)] == [
        *(False, True, True, True),
        *(False, False),
    ]
    assert [judged(alarms, DISK, each) for each in (1049, 999, 1000, 1049, 1050, 1000)] == [
        *(False, True, True, True),
        *(False, False),
    ]
    assert (running.end_bytes(MEMORY, 1000), running.end_bytes(DISK, 1000)) == (950, 1050)


def test_a_watermark_of_0_holds_publishers_back_and_a_disk_limit_of_0_never_does() -> None:
    """These are RabbitMQ's ways to stop publishing, and to do without the disk alarm."""
    alarms = running.Alarms()
    assert judged(alarms, MEMORY, 1, limit=0)
    assert not judged(alarms, DISK, 0, limit=0)


def test_without_a_limit_there_is_no_alarm_and_without_a_measurement_no_change() -> None:
    """A missing measurement neither raises nor clears an alarm."""
    alarms = running.Alarms()
    assert not judged(alarms, MEMORY, None)
    assert judged(alarms, MEMORY, 2000)
    assert judged(alarms, MEMORY, None)
    assert not judged(alarms, MEMORY, 2000, limit=None)


def test_an_alarm_is_on_while_it_has_any_cause_and_since_the_first() -> None:
    """Operator, measurement and storage raise and clear it independently."""
    alarms = running.Alarms()
    assert alarms.put(DISK, running.AlarmCause.STORAGE, on=True, now_ms=10)
    assert alarms.put(DISK, running.AlarmCause.BY_HAND, on=True, now_ms=20)
    assert not alarms.put(DISK, running.AlarmCause.BY_HAND, on=True, now_ms=30)
    assert alarms.causes(DISK) == (running.AlarmCause.BY_HAND, running.AlarmCause.STORAGE)
    assert alarms.put(DISK, running.AlarmCause.STORAGE, on=False, now_ms=40)
    assert alarms.names() == {"disk"}
    assert (alarms.since_ms(DISK), alarms.since_ms(MEMORY)) == (10, None)
    assert judged(alarms, DISK, 5000)
    assert alarms.put(DISK, running.AlarmCause.BY_HAND, on=False, now_ms=50)
    assert not alarms
    assert alarms.since_ms(DISK) is None
    alarms.put(DISK, running.AlarmCause.BY_HAND, on=True, now_ms=60)
    assert alarms.since_ms(DISK) == 60


@pytest.mark.parametrize(
    ("value", "pause_ms"),
    [
        (0, running.CHECK_MS_MAX),
        (750_000_000, running.CHECK_MS_MAX),
        (900_000_000, 400),
        (975_000_000, running.CHECK_MS_MIN),
        (1_000_000_000, running.CHECK_MS_MIN),
        (None, running.CHECK_MS_MAX),
    ],
)
def test_near_a_limit_it_is_measured_more_often(value: int | None, pause_ms: int) -> None:
    """The next is no later than 250 MB/s could reach the limit."""
    assert running.Alarms().pause_ms(MEMORY, running.Measurement(value, 1_000_000_000)) == pause_ms
    assert running.Alarms().pause_ms(MEMORY, running.Measurement(value, None)) == running.CHECK_MS_MAX


@given(st.sampled_from([MEMORY, DISK]), st.integers(0, 10_000), st.lists(st.integers(0, 12_000), max_size=30))
def test_no_sequence_of_measurements_makes_an_alarm_flap(
    resource: running.Resource, limit: int, values: list[int]
) -> None:
    """It turns on only beyond the limit and off only beyond its end."""
    alarms = running.Alarms()
    was = False
    for value in values:
        change = alarms.judge(resource, running.Measurement(value, limit), 0)
        beyond = value > limit if resource is MEMORY else value < limit
        end = running.end_bytes(resource, limit)
        over = value <= end if resource is MEMORY else value >= end
        if change is not None:
            assert change.on is not was
            assert beyond if change.on else over
            was = change.on
        else:
            assert (not beyond) or was
            assert not (was and over)


@pytest.mark.parametrize(
    ("used", "limit", "tight"),
    [
        (79, 100, False),
        (80, 100, True),
        (101, 100, True),
        (None, 100, False),
        (80, None, False),
        (0, 0, True),
    ],
)
def test_memory_is_tight_from_four_fifths_of_its_limit_on(
    used: int | None, limit: int | None, tight: bool
) -> None:
    """This precedes the alarm; the disk does not affect it."""
    alarms = running.Alarms()
    alarms.judge(running.Resource.DISK, running.Measurement(1, 100), 0)
    assert not alarms.is_memory_tight
    alarms.judge(running.Resource.MEMORY, running.Measurement(used, limit), 0)
    assert alarms.is_memory_tight is tight
