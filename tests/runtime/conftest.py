"""Tests here run on a clock that jumps when nothing can happen, unless they are marked `real_clock`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from amqp10broker.runtime.broker import Broker
from tests.support.http_user import HttpUser, http_user
from tests.support.session_context import LogRecorder
from tests.support.trioclient import running_broker
from tests.support.virtual_time import wait_for_syncs

__all__ = ["LogRecorder", "log", "verify_passwords_at_once", "wait_for_syncs"]

HERE = Path(__file__).parent

MODULES = (
    "broker",
    "observe.meters",
    "log",
    "queues.dead_letter_worker",
    "journal.bootstrap",
    "connections.client_connection",
    "queues.queues",
    "connections.listener",
    "connections.login",
    "queues.queues",
)


def _run_jumping(function: Any, *, clock: trio.abc.Clock | None, **options: Any) -> Any:
    return trio.run(function, clock=clock or MockClock(autojump_threshold=0), **options)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        jumps = HERE in item.path.parents and item.get_closest_marker("real_clock") is None
        if jumps and iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.trio(run=_run_jumping), append=False)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with running_broker() as running:
        yield running


@pytest.fixture
async def user(broker: Broker) -> AsyncIterator[HttpUser]:
    async with http_user(broker) as administrator:
        yield administrator


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> LogRecorder:
    recorder = LogRecorder()
    for module in MODULES:
        monkeypatch.setattr(f"amqp10broker.runtime.{module}._log", recorder)
    monkeypatch.setattr("amqp10broker.runtime.log._limits_log", recorder)
    return recorder


@pytest.fixture(autouse=True)
def verify_passwords_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps when all tasks wait would jump while a thread works, so the task blocks on it. The
    thread is a real one, outside Trio's clock and the broker's state.
    """

    async def run_meanwhile(work: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(work).result()

    monkeypatch.setattr("amqp10broker.runtime.connections.login.run_slow", run_meanwhile)


@pytest.fixture
def complaints(monkeypatch: pytest.MonkeyPatch) -> LogRecorder:
    """Record the log of the links to other nodes."""
    recorder = LogRecorder()
    for module in ("peer_link", "peers"):
        monkeypatch.setattr(f"amqp10broker.runtime.cluster.{module}._log", recorder)
    return recorder
