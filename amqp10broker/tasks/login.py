"""Running a login: what takes time goes to a thread, so that nobody else waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from amqp10broker.security.login import Authentication, Challenge, Failure, Slow, Step, Success

VERIFICATIONS_MAX: Final = 2
"""Passwords verified at one time: each takes 19 MiB and a processor."""

_threads = trio.CapacityLimiter(VERIFICATIONS_MAX)


async def run_slow(work: Callable[[], Any]) -> Any:
    """Run work of some milliseconds in a thread."""
    return await trio.to_thread.run_sync(work, limiter=_threads)


async def settle(authentication: Authentication, step: Step) -> Success | Failure | Challenge:
    """Do what a step asks for, until the client is concerned."""
    while isinstance(step, Slow):
        step = authentication.resume(await run_slow(step.work))
    return step
