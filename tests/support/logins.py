"""Logging in under a clock that jumps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio


@pytest.fixture(autouse=True)
def verify_passwords_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps when all tasks wait would jump while a thread works."""

    async def run_here(work: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return work()

    monkeypatch.setattr("amqp10broker.tasks.login.run_slow", run_here)
