"""Whole connections at random."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final

import pytest

from tests.support.journal_harness import LONG
from tests.support.script import ScriptRunner
from tests.support.sim_nodes import Simulation

STEPS = 60
LIMIT = 1 << 31


class Watcher:
    """One consuming session, as its client sees it."""

    def __init__(self, runner: ScriptRunner, channel: int, rng: Random, *, settled: bool) -> None:
        self.runner = runner
        self.channel = channel
        self.rng = rng
        self.settled = settled
        self.count = 0
        self.limit = 0
        self.unsettled: list[tuple[int, str]] = []
        self.done: list[str] = []
        self.answers = 0
        self.echoes = 0
        self.drains = 0
        self.attached = False
        self.window = 0
        self.frames = 0
        self.window_limit = 0

    def begin(self) -> None:
        self.do(f"BEGIN ch={self.channel} iw=0")
        self.attach()

    def attach(self) -> None:
        self.count = self.limit = self.answers = self.echoes = self.drains = 0
        self.unsettled.clear()
        mode = " snd-settle-mode=settled" if self.settled else ""
        self.do(f"ATTACH ch={self.channel} h=1 source=/queues/q{mode}")
        self.attached = True

    def detach(self) -> None:
        self.attached = False
        self.unsettled.clear()
        self.do(f"DETACH ch={self.channel} h=1 closed=true")

    def flow(self, *, credit: int, drain: bool, echo: bool, stale: int) -> None:
        """Grant credit, perhaps from a count that is a little old."""
        base = max(0, self.count - stale)
        self.limit = base + credit
        self.window_limit = self.frames + self.window
        self.echoes += echo
        self.drains += drain and not echo
        words = f"{' drain=true' if drain else ''}{' echo=true' if echo else ''}"
        self.do(f"FLOW ch={self.channel} h=1 dc={base} cr={credit}{words}")

    def open_window(self, size: int) -> None:
        self.window = size
        self.window_limit = self.frames + size
        self.do(f"FLOW ch={self.channel} iw={size}")

    def settle(self, state: str) -> None:
        if not self.unsettled:
            return
        number = self.rng.randrange(len(self.unsettled))
        delivery_id, body = self.unsettled.pop(number)
        if state == "accepted":
            self.done.append(body)
        self.do(f"DISPOSITION ch={self.channel} role=receiver first={delivery_id} settled=true state={state}")

    def do(self, frame: str) -> None:
        """Send a frame, and check every frame that comes back to any client."""
        raise NotImplementedError


class Play:
    """The scene: one queue, two consumers."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.runner = ScriptRunner()
        self.runner.do(f"set max_queue_credit {self.rng.choice([1, 2, 5, 256])}")
        self.runner.do("queue q")
        self.watchers = [
            Watcher(self.runner, channel, self.rng, settled=self.rng.random() < 0.25) for channel in (0, 1)
        ]
        for watcher in self.watchers:
            watcher.do = lambda frame: self.do(f"C> {frame}")  # type: ignore[method-assign]
            watcher.begin()
        self.published = 0
        self.redelivered = 0

    def do(self, command: str) -> None:
        """Carry out one command, and check all its effects."""
        lines = self.runner.do_plainly(command)
        for line in lines:
            self._see(line)

    def _see(self, line: str) -> None:
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        watcher = self.watchers[int(words.get("ch", "0"))]
        name = line.split()[1]
        assert name not in ("END", "CLOSE"), line
        if name == "TRANSFER":
            watcher.frames += 1
            assert watcher.frames <= watcher.window_limit, f"beyond the window: {line}"
            assert watcher.count < watcher.limit, f"beyond the credit: {line}"
            watcher.count += 1
            self.redelivered += "first-acquirer=false" in line
            if watcher.settled:
                watcher.done.append(words["body"])
            else:
                watcher.unsettled.append((int(words["did"]), words["body"]))
        elif name == "FLOW" and "h" in words:
            watcher.answers += 1
            assert watcher.answers <= watcher.echoes + watcher.drains, f"nobody asked for this: {line}"
            assert int(words["dc"]) >= watcher.count
            watcher.count = int(words["dc"])
            assert int(words["cr"]) == max(0, watcher.limit - watcher.count), line

    def step(self) -> None:
        rng = self.rng
        watcher = rng.choice(self.watchers)
        match rng.choice(["publish", "flow", "flow", "window", "settle", "settle", "queue", "attach"]):
            case "publish":
                count = rng.choice([1, 2, 7, 20])
                self.published += count
                self.do(f"publish q {count}")
            case "flow" if watcher.attached:
                watcher.flow(
                    credit=rng.choice([0, 1, 3, 10, 400]),
                    drain=rng.random() < 0.2,
                    echo=rng.random() < 0.2,
                    stale=rng.choice([0, 0, 1, 3]),
                )
            case "window":
                watcher.open_window(rng.choice([0, 1, 2, 5, 50]))
            case "settle":
                watcher.settle(rng.choice(["accepted", "accepted", "released", "modified(failed)"]))
            case "queue":
                self.do(f"{rng.choice(['stall', 'go', 'mute', 'speak'])} q")
            case "attach" if rng.random() < 0.2:
                if watcher.attached:
                    watcher.detach()
                else:
                    watcher.attach()

    def check_counters(self) -> None:
        """The queue's counters equal the sums of its links and of what the clients have seen."""
        counted = self.runner.world.vhost.counted()
        seen = Counter[str]()
        for watcher in self.watchers:
            seen["delivered_settled" if watcher.settled else "delivered"] += watcher.frames
            seen["acknowledged"] += 0 if watcher.settled else len(watcher.done)
        assert {name: counted[name] for name in ("delivered", "delivered_settled", "acknowledged")} == {
            name: seen[name] for name in ("delivered", "delivered_settled", "acknowledged")
        }
        assert counted["redelivered"] == self.redelivered
        sessions = [self.runner.world.status(channel=channel)["counters"] for channel in (0, 1)]
        for name in ("delivered", "delivered_settled", "acknowledged", "requeued", "redelivered"):
            assert sum(each[name] for each in sessions) == counted[name], name

    def finish(self) -> None:
        self.do("go q")
        self.do("speak q")
        for watcher in self.watchers:
            if not watcher.attached:
                watcher.attach()
            watcher.open_window(LIMIT)
            # Of drains that came while the queue was busy the last is answered; of echoes each one.
            assert watcher.answers >= watcher.echoes, "an echo was never answered"
            watcher.flow(credit=LIMIT, drain=False, echo=False, stale=0)
        for watcher in self.watchers:
            while watcher.unsettled:
                watcher.settle("accepted")
        assert self.runner.do("count q") == ["= ready=0 unsettled=0"]
        done = sorted(int(body[1:]) for watcher in self.watchers for body in watcher.done)
        assert done == list(range(self.published))
        self.check_counters()


@pytest.mark.parametrize("seed", range(150))
def test_whatever_the_consumers_do_each_message_is_accepted_once(seed: int) -> None:
    """Credit and windows are kept, requests are answered once each, and no message is lost or doubled."""
    play = Play(seed)
    for _ in range(STEPS):
        play.step()
    play.finish()


SEEDS: Final = range(400 if LONG else 8)
STEPS_NODES: Final = 150 if LONG else 80
TWICE: Final = range(1000, 1050 if LONG else 1002)


@pytest.mark.parametrize("seed", SEEDS)
def test_promises_hold_whatever_fails(seed: int) -> None:
    """Confirmed messages exist once and in order, members agree, all requests are answered in the end."""
    life = Simulation(seed, steps=STEPS_NODES)
    life.run()
    assert sum(len(queue.history.published) for queue in life.queues.values()) > 0, "no run: nothing happened"


@pytest.mark.parametrize("seed", TWICE)
def test_a_seed_gives_the_same_life_byte_for_byte(seed: int) -> None:
    """So a failure can be reproduced from its seed."""
    lives = [Simulation(seed, steps=STEPS_NODES) for _ in range(2)]
    for life in lives:
        life.run()
    assert lives[0].trace == lives[1].trace
    assert len(lives[0].trace) > 500
