"""The broker's time of day, and the clock that tests have in its place."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import trio
from trio.testing import MockClock

from amqp10broker.tasks.clock import WallClock
from amqp10broker.tasks.syncer import Syncer
from amqp10broker.tasks.syncer_child import ANSWER


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


async def test_a_clock_that_jumps_does_not_jump_over_a_sync(autojump_clock: MockClock) -> None:
    """A disk that takes its time costs no virtual time: what waits for it has no time-out because of that."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def sync_slowly() -> None:
        for _ in range(2):
            theirs.recv(1)
            time.sleep(0.05)  # the disk
            theirs.sendall(ANSWER.pack(0))

    disk = threading.Thread(target=sync_slowly)
    disk.start()
    with ours, theirs:
        begun_s = trio.current_time()
        for _ in range(2):
            with trio.fail_after(1):
                await Syncer(ours).sync([ours.fileno()])
        assert trio.current_time() == begun_s
        disk.join()
    await trio.sleep(3_600)
    assert trio.current_time() >= begun_s + 3_600
