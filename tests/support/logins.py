"""Logging in under a clock that jumps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio


@pytest.fixture(autouse=True)
def verify_passwords_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps when all tasks wait would jump while a thread works: so they wait for it themselves.

    The thread is a real one, for which Trio's clock and the broker's state are not there.
    """

    async def run_meanwhile(work: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(work).result()

    monkeypatch.setattr("amqp10broker.runtime.connections.login.run_slow", run_meanwhile)
