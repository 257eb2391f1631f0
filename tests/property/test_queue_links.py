"""Links between nodes and a queue through random losses; planted faults in it are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from amqp10broker.queues.commands import DeliveryOutcome
from amqp10broker.queues.settings import Overflow, QueueSettings
from tests.support.journal_harness import LONG
from tests.support.link_simulation import Browser, LinkSimulation
from tests.support.planted_fault import FAULTS

# Among them are those with which the simulation finds each fault of scripts/planted_faults.toml.
SEEDS = range(41) if LONG else (0, 2, 4, 13, 17, 26)
STEPS = 1500
PLAIN = QueueSettings(consumer_disconnected_timeout_ms=2**40)
HASTY = QueueSettings(consumer_disconnected_timeout_ms=2**40, consumer_timeout_ms=1_000)
AWAY = QueueSettings(consumer_disconnected_timeout_ms=500)
SHORT = QueueSettings(consumer_disconnected_timeout_ms=2**40, max_length=8, overflow=Overflow.REJECT_PUBLISH)
SINGLE = QueueSettings(consumer_disconnected_timeout_ms=2**40, single_active_consumer=True)


def run(seed: int, settings: QueueSettings, *, selects: bool = False) -> LinkSimulation:
    """Run a world with faults until it has come to rest."""
    world = LinkSimulation(seed, settings=settings, strict=settings not in (HASTY, AWAY), selects=selects)
    for _ in range(STEPS):
        world.step()
    world.heal()
    return world


@pytest.mark.rabbitmq(
    "rabbit_fifo_int_SUITE",
    "duplicate_delivery",
    "lost_return_is_resent_on_applied_after_leader_change",
    "resends_after_lost_applied",
    "resends_lost_command",
)
@pytest.mark.parametrize(
    "settings", [PLAIN, SHORT, SINGLE, HASTY, AWAY], ids=["plain", "short", "single", "hasty", "away"]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_all_is_answered_once_and_nothing_is_lost(seed: int, settings: QueueSettings) -> None:
    check_at_rest(run(seed, settings), settings)


@pytest.mark.parametrize("settings", [PLAIN, HASTY, AWAY], ids=["plain", "hasty", "away"])
@pytest.mark.parametrize("seed", SEEDS)
def test_drains_of_those_that_select_are_answered_once(seed: int, settings: QueueSettings) -> None:
    """The leader that has looked through the queue answers, or the one after it."""
    check_at_rest(run(seed, settings, selects=True), settings)


@pytest.mark.parametrize("share", [0.5, 1], ids=["some", "all"])
@pytest.mark.parametrize("seed", SEEDS)
def test_browsers_are_shown_all_whoever_leads(seed: int, share: float) -> None:
    """Requests and drains are answered once. Without takers each message is shown once, in order."""
    world = LinkSimulation(seed, settings=PLAIN, browses=share)
    for _ in range(STEPS):
        world.step()
    world.heal()
    check_at_rest(world, PLAIN)
    sessions = [session for node in world.nodes.values() for session in node.sessions.values()]
    new = sessions[0].consume(Browser)
    world.settle_down()
    watchers = [
        consumer
        for session in sessions
        for consumer in session.consumers.values()
        if isinstance(consumer, Browser) and not consumer.over
    ]
    for watcher in watchers:
        watcher.send()
        watcher.want(10_000, drain=True)
        while watcher.credit.in_flight:
            world.settle_down()
            watcher.send()
    check_at_rest(world, PLAIN)
    assert world.leader is not None
    machine = world._member(world.leader).queue
    messages, _, _ = machine.parts()
    waiting = [
        index
        for number, line in enumerate(messages.ready.lines)
        for index in messages.ready.indexes_of(number, list(line.columns()[0]))
    ]
    bodies = [content for _, content in messages.read(waiting)] if waiting else []
    assert bodies or world.purges or share < 1
    # Of the others some was taken while they looked, and came back behind them.
    for watcher in watchers if share == 1 else [new]:
        assert isinstance(watcher, Browser)
        there = set(bodies)
        assert [each for each in watcher.shown if each in there] == bodies


@pytest.mark.parametrize("settings", [PLAIN, SHORT, SINGLE], ids=["plain", "short", "single"])
@pytest.mark.parametrize("seed", SEEDS)
def test_publishes_wait_while_the_leader_s_disk_is_full_and_nothing_else(
    seed: int, settings: QueueSettings
) -> None:
    """No publish enters the log meanwhile, and requests of consumers are carried out."""
    world = LinkSimulation(seed, settings=settings, disks_fill=True)
    for _ in range(STEPS):
        world.step()
    assert any(member.disk.refused for member in world.members)
    for member in world.members:
        member.disk.fill()
    sessions = [session for node in world.nodes.values() for session in node.sessions.values()]
    for session in sessions:
        session.publish(2)
    world.heal(disks=False)
    placed = world.published_in_log()
    for session in sessions:
        session.publish(1)
        for consumer in session.consumers.values():
            if not consumer.over:
                consumer.send()
                consumer.settle(list(consumer.held)[:10], DeliveryOutcome.ACCEPT, answer=True)
    world.settle_down()
    assert world.published_in_log() == placed
    for session in sessions:
        assert len(session.outstanding) >= 3
        assert not any(consumer.asked for consumer in session.consumers.values() if not consumer.over)
    assert all(node.client.full_ms is not None for node in world.nodes.values())
    world.heal()
    check_at_rest(world, settings)


def check_at_rest(world: LinkSimulation, settings: QueueSettings) -> None:
    assert world.leader is not None
    machine = world._member(world.leader).queue
    parts = machine.queue_status().parts
    _, consumers, _ = machine.parts()
    for node in world.nodes.values():
        assert not node.client.kept
        for session in node.sessions.values():
            assert not session.outstanding, "a publish has no answer"
            assert not session.questions, "a question has no answer"
            for consumer in session.consumers.values():
                if consumer.over:
                    assert consumer.ref not in parts
                    continue
                assert consumer.subscribed
                assert not consumer.asked, "a settlement has no answer"
                assert not consumer.credit.in_flight, "a request has no answer"
                if isinstance(consumer, Browser):
                    assert machine.browsers.by_ref[consumer.ref].handed_out == consumer.credit.seen
                    continue
                there = consumers.by_ref[consumer.ref]
                missed = node.client._consumers[consumer.ref].missed
                assert there.handed_out == consumer.credit.seen + missed
                if not consumer.settled:
                    held = {*consumer.held, *consumer.unsent}
                    assert set(there.unsettled) <= held, "something is held that no session has"
                    if world.strict:
                        assert set(there.unsettled) == held, "a session holds what it has not"
                if settings.single_active_consumer:
                    assert there.active is consumer.active
    live = {
        consumer.ref
        for node in world.nodes.values()
        for session in node.sessions.values()
        for consumer in session.consumers.values()
        if not consumer.over
    }
    assert set(parts) == live


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_confirmed_is_there_once_and_in_order(seed: int) -> None:
    check_contents(seed)


def check_contents(seed: int) -> None:
    """At the end the world holds only its messages, which one consumer takes."""
    world = LinkSimulation(seed, settings=SHORT if seed % 2 else PLAIN)
    for _ in range(STEPS):
        world.step()
    world.heal()
    sessions = [session for node in world.nodes.values() for session in node.sessions.values()]
    for session in sessions:
        for consumer in session.consumers.values():
            if not consumer.over:
                consumer.leave()
    world.settle_down()
    consumer = sessions[0].consume()
    world.settle_down()
    left: list[str] = []
    for _ in range(2000):
        consumer.want(50)
        world.settle_down()
        consumer.send()
        if not consumer.held:
            break
        left += consumer.held.values()
        consumer.settle(list(consumer.held), DeliveryOutcome.ACCEPT, answer=False)
        world.settle_down()
    assert not consumer.held
    history = world.queue.history
    found = {name for _, name in history.removing}
    assert set(left) <= found
    if not world.purges and not world.restarts:
        # What went out settled is gone with a node that is killed.
        assert history.confirmed <= found, "confirmed and not there"
    assert not history.refused & found, "refused and there"
    places: dict[str, list[int]] = {}
    for name in history.published:
        if name in history.confirmed and name in world.placed:
            places.setdefault(name.rpartition(":")[0], []).append(world.placed[name])
    for each in places.values():
        assert each == sorted(each), "messages of one publisher are in another order"


@pytest.mark.parametrize("seed", [3, 5])
def test_the_same_seed_makes_the_same_trace(seed: int) -> None:
    assert run(seed, PLAIN).trace == run(seed, PLAIN).trace


@pytest.mark.parametrize(
    "number", range(len(FAULTS)), ids=lambda number: FAULTS[number]["what"].replace(" ", "_")
)
def test_a_planted_fault_is_caught(number: int) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.planted_fault", str(number)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "1 failed" in run.stdout, run.stdout + run.stderr
