"""How many entries one client may write into the log, and how those that are left out are told."""

from __future__ import annotations

import pytest
import trio

from amqp10broker.runtime.log import BURST, KEYS_MAX, PERIOD_S, LogLimits
from tests.runtime.conftest import LogRecorder
from tests.support.trioclient import alongside


@pytest.fixture
def limits() -> LogLimits:
    return LogLimits()


def write(limits: LogLimits, log: LogRecorder, key: object, count: int, event: str = "refused") -> None:
    for number in range(count):
        limits.write(log.warning, key, event, about={"peer": key}, peer=key, number=number)


def left_out(log: LogRecorder) -> list[dict[str, object]]:
    return [fields for event, fields in log.of("warning") if event == "entries left out"]


async def test_beyond_the_burst_entries_are_counted_and_told_when_the_period_is_over(
    log: LogRecorder, limits: LogLimits
) -> None:
    """The sum is logged without a further event, with a number for each event; then a new period begins."""
    async with alongside(limits.run):
        write(limits, log, "a", BURST + 3)
        write(limits, log, "a", 2, event="closed")
        await trio.sleep(PERIOD_S - 0.1)
        assert len(log.entries) == BURST
        await trio.sleep(0.2)
        assert left_out(log) == [
            {"peer": "a", "count": 5, "events": "refused (3), closed (2)", "period_s": PERIOD_S}
        ]
        write(limits, log, "a", 1)
        assert log.entries[-1][2]["number"] == 0


async def test_a_sum_is_told_before_the_next_entry_of_its_key_also_without_the_task(
    log: LogRecorder, limits: LogLimits
) -> None:
    write(limits, log, "a", BURST + 1)
    await trio.sleep(PERIOD_S)
    write(limits, log, "a", 1)
    assert [event for event, _ in log.of("warning")] == [*["refused"] * BURST, "entries left out", "refused"]


async def test_each_key_has_its_own_burst(log: LogRecorder, limits: LogLimits) -> None:
    """One loud client does not silence another."""
    write(limits, log, "a", 100)
    write(limits, log, "b", BURST)
    assert [fields["peer"] for _, fields in log.of("warning")] == ["a"] * BURST + ["b"] * BURST


async def test_the_end_of_the_broker_tells_what_is_left(log: LogRecorder, limits: LogLimits) -> None:
    write(limits, log, "a", BURST + 1)
    limits.finish()
    assert [fields["count"] for fields in left_out(log)] == [1]


async def test_memory_is_bounded_however_many_addresses_there_are(
    log: LogRecorder, limits: LogLimits
) -> None:
    """Beyond `KEYS_MAX` keys further ones share one burst, until periods are over."""
    for key in range(3 * KEYS_MAX):
        write(limits, log, key, 1)
    assert len(log.entries) == KEYS_MAX + BURST
    assert len(limits._periods) == KEYS_MAX + 1
    await trio.sleep(PERIOD_S)
    write(limits, log, "late", 1)
    assert left_out(log)[0]["peer"] == "others"
    assert left_out(log)[0]["count"] == 2 * KEYS_MAX - BURST
    assert len(limits._periods) == 1
