"""The broker's time of day."""

from __future__ import annotations

import time

import pytest
import trio

from amqp10broker.tasks.clock import WallClock


def test_who_is_interrupted_between_two_clocks_reads_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the broker's time would be behind for as long as it runs."""
    real_s = 1_700_000_000.0
    interruptions = iter([0.25, 0.0, 0.05] + [0.01] * 100)
    passed = 0.0

    def monotonic() -> float:
        nonlocal passed
        passed += next(interruptions)
        return passed

    monkeypatch.setattr(time, "time", lambda: real_s + passed)
    monkeypatch.setattr(trio, "current_time", monotonic)
    clock = WallClock()
    monkeypatch.setattr(trio, "current_time", lambda: passed)
    assert clock.now_ms() == int((real_s + passed) * 1000)


async def test_when_it_says_so_a_time_has_come(autojump_clock: object) -> None:
    clock = WallClock()
    for wait_ms in (1, 2, 7, 1000, 86_400_000):
        due = clock.now_ms() + wait_ms
        await trio.sleep_until(clock.trio_time(due))
        assert due <= clock.now_ms() <= due + 1
