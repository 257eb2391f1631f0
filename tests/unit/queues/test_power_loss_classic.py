"""A classic queue after a loss of power at any call of the disk, in any state that this may leave."""

from __future__ import annotations

import random

import pytest

from tests.support.disks import PowerLoss
from tests.support.journal_harness import LONG, new_disk
from tests.support.stored_queue import LEVELS, StoredQueue, shorten_pages, walk

SEEDS = range(60 if LONG else 4)
STEPS = 60
STATES = 3 if LONG else 1


@pytest.fixture(autouse=True)
def _short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pages(monkeypatch)


def _walked(seed: int, lose_power_at: int | None) -> StoredQueue:
    kept = StoredQueue(new_disk(seed), levels=LEVELS if seed % 2 else None)
    kept.disk.lose_power_at = lose_power_at
    try:
        kept.recover()
        walk(kept, random.Random(seed), STEPS)
    except PowerLoss:
        pass
    return kept


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_confirmed_is_there_in_order_and_what_went_for_good_stays_away(seed: int) -> None:
    calls = len(_walked(seed, None).disk.calls)
    assert calls > 10
    for at in range(0, calls, 1 if LONG else 3):
        for state in range(STATES):
            kept = _walked(seed, at)
            kept.disk = kept.disk.after_power_loss(1000 * at + state)
            kept.recover(look=at % 2 == 0)
            # And it can be gone on with, and the power may go again.
            walk(kept, random.Random(at), 6)
            kept.disk = kept.disk.after_power_loss(state)
            kept.recover()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_queue_lives_through_many_losses_of_power(seed: int) -> None:
    """The process is killed or loses power in any phase; the promises of all lives hold."""
    rng = random.Random(seed)
    kept = StoredQueue(new_disk(seed), levels=LEVELS if seed % 2 else None)
    for _ in range(40):
        kept.disk.lose_power_at = rng.randrange(1, 90)
        try:
            kept.recover(look=rng.random() < 0.5)
            walk(kept, rng, 60)
        except PowerLoss:
            pass
        disk = kept.disk
        kept.disk = disk.after_kill() if rng.random() < 0.3 else disk.after_power_loss(rng.randrange(1 << 30))
    kept.recover()
