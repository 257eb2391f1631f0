"""A clock that jumps when all tasks wait, and what it must not jump over: work of another process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from weakref import WeakKeyDictionary

import pytest
import trio
from trio.testing import MockClock

from amqp10broker.runtime.journal.journal_task import Syncer

_thresholds: WeakKeyDictionary[MockClock, list[float]] = WeakKeyDictionary()
"""Of clocks that stand still: their thresholds, once for each that wants it."""


@contextmanager
def standing_still() -> Iterator[None]:
    """Keep the clock of this run from jumping during the block, if it can jump."""
    clock = trio.lowlevel.current_clock()
    if not isinstance(clock, MockClock):
        yield
        return
    thresholds = _thresholds.setdefault(clock, [])
    thresholds.append(thresholds[0] if thresholds else clock.autojump_threshold)
    clock.autojump_threshold = inf
    try:
        yield
    finally:
        threshold = thresholds.pop()
        if not thresholds:
            clock.autojump_threshold = threshold


@pytest.fixture(autouse=True)
def wait_for_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real disk takes real time; a jump of the clock would bring time-outs that are minutes away."""
    take_answer = Syncer._take_answer

    async def take_it_in_no_time(syncer: Syncer) -> None:
        with standing_still():
            await take_answer(syncer)

    monkeypatch.setattr(Syncer, "_take_answer", take_it_in_no_time)
