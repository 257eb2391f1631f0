"""A time limit for tests of clients that wait for ever when an answer does not come."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

DEADLINE_S: Final = 600.0
"""A test with JVMs takes half a minute, and 250 s on a machine with ten runnable processes for each core."""
WAIT_S: Final = 30.0


@pytest.fixture
def deadline() -> Iterator[None]:
    """Fail the test when it has not ended in time, wherever it waits; it must run in the main thread."""

    def over(number: int, frame: object) -> None:
        pytest.fail(f"the test did not end within {DEADLINE_S:g} s")

    previous = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S, DEADLINE_S)  # again, for what the fixtures close
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


def turn_until(turn: Callable[[], Any], condition: Callable[[], Any], what: str) -> Any:
    """Turn a client's event loop until the condition holds; returns its value."""
    end = time.monotonic() + WAIT_S
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {WAIT_S:g} s: {what}"
        turn()
    return value
