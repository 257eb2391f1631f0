"""For all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import tried

# Tests never time: how long an example takes says how busy the machine is.
# Where a change is judged (.ci/run sets CI) it is judged by the same examples each time, so that a failure is
# the change's own; wherever else the tests run they look at new examples.
settings.register_profile(
    "tests",
    max_examples=tried(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked long unless the long form runs; with xdist, run the longest files first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(tuple(_DEAR)))
    if os.environ.get("AMQP10BROKER_LONG"):
        return
    long = [item for item in items if item.get_closest_marker("long") is not None]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item.get_closest_marker("long") is None]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """A command run in this process configures logging for all of it, so undo that."""
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        structlog.reset_defaults()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collected objects stay for the whole run, so the garbage collector is off meanwhile."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        if sys.implementation.name == "cpython":
            gc.collect()
            gc.freeze()


_DEAR: Final = {
    "tests/spark/": "a session of Spark",
    "tests/integration/test_page": "a browser",
    "tests/integration/test_jms": "the programs for JMS",
    "tests/integration/test_websocket_clients.py": "the programs for JMS",
    **dict.fromkeys(
        [f"tests/integration/test_cluster_{name}.py" for name in ("classic", "failover", "forming")],
        "a cluster of three nodes",
    ),
}
"""Tests that share what is dear to start: one worker has all of them, so that it is started once."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With ``--dist loadfile``, distribute by file, but keep users of one costly fixture together."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next(
                (dear for place, dear in _DEAR.items() if nodeid.startswith(place)), nodeid.split("::")[0]
            )

    return Scheduling(config, log)


NOT_FOR_PYPY = frozenset(
    {
        *("cryptography", "duckdb", "joserfc", "numpy", "pandas", "playwright", "proton"),
        *("py4j", "pyarrow", "pyspark", "rabbitmq_amqp_python_client", "scipy", "trustme"),
    }
)
"""What the extra `test` has beyond `test-portable`: compiled and not made for PyPy, or of no use without."""


if sys.implementation.name == "pypy":
    # A test that needs one of them is skipped and says which. On CPython one that is missing is a failure.

    def _missing(error: BaseException | None) -> str | None:
        while error is not None:
            if isinstance(error, ModuleNotFoundError) and error.name is not None:
                name = error.name.partition(".")[0]
                if name in NOT_FOR_PYPY:
                    return f"{name} is not installed on PyPy"
            error = error.__cause__
        return None

    class _Module(pytest.Module):
        def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
            try:
                return super().collect()
            except self.CollectError as error:
                if reason := _missing(error):
                    pytest.skip(reason, allow_module_level=True)
                raise

    def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
        return _Module.from_parent(parent, path=module_path)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call() -> Generator[None, None, None]:
        try:
            yield
        except Exception as error:
            if reason := _missing(error):
                pytest.skip(reason)
            raise
