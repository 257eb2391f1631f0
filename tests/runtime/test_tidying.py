"""Memory that a burst has left is given back in a quiet moment, and nobody is held up for nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from amqp10broker.runtime.observe import resource_monitor
from amqp10broker.runtime.observe.resource_monitor import LOOK_S, WORTH_BYTES, MemoryReclaimer
from tests.runtime.test_resource_monitor import FakeMeter, meter, no_pause, pass_time, watched
from tests.support.trioclient import connect

__all__ = ["meter", "no_pause"]

START = 100_000_000
BURST = START + 10 * WORTH_BYTES


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    counted: list[None] = []
    monkeypatch.setattr(resource_monitor, "gc", SimpleNamespace(collect=lambda: counted.append(None)))
    return counted


@pytest.fixture
def quiet(meter: FakeMeter) -> FakeMeter:
    meter.quiet = True
    return meter


def look(tidy: MemoryReclaimer, meter: FakeMeter, *times: float, connections: int = 0) -> list[bool]:
    return [tidy.look(now, meter.used, connections) for now in times]


def test_what_a_burst_has_left_is_given_back_when_it_is_quiet(
    quiet: FakeMeter, collections: list[None]
) -> None:
    """It happens once; the remaining memory is in use."""
    tidy = MemoryReclaimer(quiet)
    quiet.used = START
    assert look(tidy, quiet, 10.0) == [False]
    quiet.used, quiet.held_free = BURST, 5 * WORTH_BYTES
    assert look(tidy, quiet, 11.0, 12.0, 11.0 + LOOK_S) == [True, True, False]
    assert (quiet.given_back, len(collections), quiet.used) == (1, 1, BURST - 5 * WORTH_BYTES)
    assert not any(look(tidy, quiet, *range(20, 100)))
    assert quiet.given_back == 1


def test_a_broker_that_works_is_left_alone(meter: FakeMeter, collections: list[None]) -> None:
    """It waits until the broker has worked less than a tenth of the time for some seconds."""
    tidy = MemoryReclaimer(meter)
    meter.used = START
    look(tidy, meter, 10.0)
    meter.used = BURST
    assert all(look(tidy, meter, *range(11, 60)))
    assert not meter.given_back
    meter.quiet = True
    look(tidy, meter, *range(60, 70))
    assert (meter.given_back, len(collections)) == (1, 1)


def test_little_is_not_worth_it(quiet: FakeMeter, collections: list[None]) -> None:
    """Nor is the memory of the start, nor memory that cannot be measured."""
    tidy = MemoryReclaimer(quiet)
    quiet.used = START
    look(tidy, quiet, 10.0)
    quiet.used = START + WORTH_BYTES - 1
    assert not any(look(tidy, quiet, *range(11, 60)))
    quiet.used = None
    assert not any(look(tidy, quiet, *range(60, 80)))
    assert not quiet.given_back
    assert not collections


def test_it_begins_from_the_least_that_was_used(quiet: FakeMeter, collections: list[None]) -> None:
    """Messages that were there at first and are gone do not hide a burst."""
    tidy = MemoryReclaimer(quiet)
    for now, used in ((10.0, BURST), (20.0, START), (30.0, START + WORTH_BYTES)):
        quiet.used = used
        look(tidy, quiet, now, now + 1, now + 1 + LOOK_S)
    assert quiet.given_back == 1


def test_among_many_connections_the_collector_is_left_alone(
    quiet: FakeMeter, collections: list[None]
) -> None:
    """It would visit all their objects."""
    tidy = MemoryReclaimer(quiet)
    quiet.used = START
    look(tidy, quiet, 10.0)
    quiet.used = BURST
    look(tidy, quiet, *range(11, 20), connections=resource_monitor.CONNECTIONS_MAX + 1)
    assert (quiet.given_back, len(collections)) == (1, 0)


def test_after_a_long_one_a_long_time_passes(
    quiet: FakeMeter, collections: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause is a hundred times its duration."""
    clock = iter((0.0, 2.0, 0.0, 0.0))
    monkeypatch.setattr(resource_monitor, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    tidy = MemoryReclaimer(quiet)
    for now, used in ((10.0, START), (11.0, BURST)):
        quiet.used = used
        look(tidy, quiet, now, now + LOOK_S)
    assert quiet.given_back == 1
    quiet.used = BURST + BURST
    assert all(look(tidy, quiet, *range(20, 210)))
    assert quiet.given_back == 1
    look(tidy, quiet, *range(210, 220))
    assert quiet.given_back == 2


async def test_the_watch_stays_awake_until_it_is_done(quiet: FakeMeter, collections: list[None]) -> None:
    """Then it sleeps, though no client is connected all the while."""
    quiet.used = START
    async with watched(quiet) as broker:
        client = await connect(broker).open()
        await pass_time()
        quiet.used, quiet.held_free = BURST, BURST - START
        await client.vanish()
        await pass_time(10.0)
        assert not broker.connections
        assert (quiet.given_back, quiet.used, len(collections)) == (1, START, 1)
        asked = quiet.asked
        await pass_time(100.0)
        assert quiet.asked == asked
