"""The journal after a loss of power at any call, in any state that this may leave (see `SimDisk`)."""

from __future__ import annotations

import random

import pytest

from tests.support.disks import PowerLoss
from tests.support.journals import LONG, World, new_disk, walk

SEEDS = range(100 if LONG else 3)
STEPS = 40
STATES = 4 if LONG else 2


def _walked(seed: int, lose_power_at: int | None) -> World:
    # With a reserve the next file is made in advance, and found by the start that follows.
    world = World(new_disk(seed), reserve_bytes=900 if seed % 2 else 0)
    world.disk.lose_power_at = lose_power_at
    try:
        world.recover()
        walk(world, random.Random(seed), STEPS)
    except PowerLoss:
        pass
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_durable_is_recovered_and_nothing_else_appears(seed: int) -> None:
    calls = len(_walked(seed, None).disk.calls)
    for at in range(calls):
        for state in range(STATES):
            world = _walked(seed, at)
            world.disk = world.disk.after_power_loss(1000 * at + state)
            world.recover()
            # And it can be gone on with, and the power may go again.
            walk(world, random.Random(at), 4)
            world.disk = world.disk.after_power_loss(state)
            world.recover()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_power_may_go_while_recovering(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        world = _walked(seed, rng.randrange(20, 120))
        for _ in range(4):
            # Killed without a loss of power: what was written and not synced is there, for the moment.
            killed = rng.random() < 0.5
            disk = world.disk
            world.disk = disk.after_kill() if killed else disk.after_power_loss(rng.randrange(1 << 30))
            world.disk.lose_power_at = rng.randrange(1, 25)
            try:
                world.recover()
                walk(world, rng, 6)
            except PowerLoss:
                pass
        world.disk = world.disk.after_power_loss(rng.randrange(1 << 30))
        world.recover()
