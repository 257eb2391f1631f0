"""The broker's time of day, and the clock that tests have in its place."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import trio

from amqp10broker.cli.status import page
from amqp10broker.runtime.admin import node
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.journal.journal_task import Syncer
from amqp10broker.runtime.observe import meters
from amqp10broker.runtime.observe.meters import LOOK_S
from amqp10broker.syncing import ANSWER
from tests.runtime.conftest import LogRecorder
from tests.support.admin_requests import ask
from tests.support.trioclient import quiet_config


def test_who_is_interrupted_between_two_clocks_reads_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the broker's time would lag for as long as it runs."""
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


async def test_when_it_says_so_a_time_has_come() -> None:
    clock = WallClock()
    for wait_ms in (1, 2, 7, 1000, 86_400_000):
        due = clock.now_ms() + wait_ms
        await trio.sleep_until(clock.trio_time(due))
        assert due <= clock.now_ms() <= due + 1


async def test_a_clock_that_jumps_does_not_jump_over_a_sync() -> None:
    """A slow sync takes no virtual time, so that tasks that wait for it have no time-out."""
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


class Ahead:
    """A queue whose time is ahead."""

    def __init__(self, ahead_ms: int) -> None:
        self.left_ms = ahead_ms

    def ahead_ms(self, now_ms: int) -> int:
        return self.left_ms


async def test_what_is_wrong_with_clocks_is_logged_and_shown_while_it_is_and_when_it_is_over(
    verify_passwords_at_once: None, log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's clock is compared with its monotonic one; nodes and queues report the rest."""
    set_s = 0.0
    monkeypatch.setattr(meters, "_apart_s", lambda: 1_700_000_000.0 + set_s)
    async with Broker(quiet_config()) as broker:
        monkeypatch.setattr(node, "_wall_ms", broker.clock.now_ms)
        add = broker.clock_watch.queues.add  # as a keeper has it
        await trio.sleep(LOOK_S + 1)
        assert not log.of("warning")
        assert "note" not in "".join(page(await ask(broker, "waiting"), 80))
        set_s = 7_200.0
        queue = Ahead(5_000)
        add(queue)
        broker.clock_watch.others.heard(2, -7_200_000)
        await trio.sleep(LOOK_S)
        assert [fields["about"] for _, fields in log.of("warning")] == [
            "clock of this node",
            "time of queues",
            "clock of the machine",
        ]
        shown = " ".join(page(await ask(broker, "waiting"), 1_000))
        assert "the clock of this node is 7199.0 s ahead of that of most nodes" in shown
        assert "quorum queues that this node leads (1) is up to 5.0 s ahead of the clock" in shown
        assert "the machine's clock was set: it is 7200.0 s ahead of the time" in shown
        (check,) = [each for each in (await ask(broker, "doctor"))["checks"] if each["check"] == "clock"]
        assert check["state"] == "warn"
        assert "up to 5.0 s ahead of the clock" in check["evidence"]
        log.entries.clear()
        set_s, queue.left_ms = 0.5, 0
        broker.clock_watch.others.heard(2, 0)
        await trio.sleep(LOOK_S)
        assert {event for event, _ in log.of("warning")} == {"clock is right again"}
        assert len(log.of("warning")) == 3
        assert not broker.clock_watch.queues
