"""How the broker's end becomes an exit code, and a sentence that a user can act on."""

from __future__ import annotations

import errno
import gc
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio

from amqp10broker.cli import serve
from amqp10broker.config import Config
from amqp10broker.errors import AdminSocketError


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    thresholds = gc.get_threshold() if serve.COUNTS_REFERENCES else ()
    yield
    if thresholds:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    structlog.reset_defaults()


def run(
    monkeypatch: pytest.MonkeyPatch,
    *,
    before: BaseException | None = None,
    after: BaseException | None = None,
    during: Callable[[], object] = lambda: None,
    **settings: Any,
) -> int:
    """Run `serve` with a broker that fails before or after it has come up, or not at all."""

    async def run_broker(config: Config, on_up: Callable[..., None]) -> None:
        if before is not None:
            raise before
        addresses = [("127.0.0.1", 5672), ("::1", 5672)]
        on_up(SimpleNamespace(addresses=addresses, tls_addresses=[]))
        during()
        await trio.lowlevel.checkpoint()
        if after is not None:
            raise after

    monkeypatch.setattr(serve, "run_broker", run_broker)
    return serve.run(Config(**settings))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.EADDRINUSE, "x"), "another program listens on localhost:5672; stop it"),
        (OSError(errno.EACCES, "x"), "choose a port from 1024 on with --port"),
        (OSError(errno.EADDRNOTAVAIL, "x"), "this machine has no address localhost"),
        (OSError(errno.EMFILE, "x"), "ulimit -n"),
        (OSError(-2, "Name or service not known"), "cannot listen on localhost:5672: Name or service"),
        (AdminSocketError("the directory is not yours"), "the directory is not yours"),
        (ExceptionGroup("g", [ExceptionGroup("h", [OSError(errno.EADDRINUSE, "x")])]), "another program"),
    ],
)
def test_what_a_user_can_mend_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, sentence: str
) -> None:
    assert run(monkeypatch, before=error) == 1
    shown = capsys.readouterr().err
    assert sentence in shown
    assert shown.startswith("amqp10broker: ")
    assert shown.count("\n") == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fault_of_the_broker_is_logged_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], when: str
) -> None:
    faults: dict[str, Any] = {when: ExceptionGroup("both", [ValueError("one"), KeyError("two")])}
    assert run(monkeypatch, **faults) == 1
    shown = capsys.readouterr().err
    assert "ValueError: one" in shown
    assert "KeyError: 'two'" in shown


def fails_in_a_thread() -> None:
    thread = threading.Thread(target=lambda: 1 // 0, name="worker")
    thread.start()
    thread.join()


class FailsAtItsEnd:
    """Python says so, and goes on."""

    def __del__(self) -> None:
        raise ValueError("in a finalizer\nof two lines")


NOISE: dict[str, Callable[[], object]] = {
    "a thread failed": fails_in_a_thread,
    "failed where it cannot be raised": FailsAtItsEnd,
    "library": lambda: logging.getLogger("a.library").warning("two\nlines of %s", "it"),
    "warning": lambda: warnings.warn("old\nand new", RuntimeWarning, stacklevel=1),
}


@pytest.mark.parametrize(
    ("ends", "last"),
    [
        ({}, "stopped"),
        ({"before": OSError(errno.EADDRINUSE, "x")}, "cannot start"),
        ({"after": AdminSocketError("lost\nor so")}, "failed"),
        (
            {"after": ExceptionGroup("both", [ValueError("one"), KeyError("two\nlines")])},
            "the broker failed because of a fault in it; please report it",
        ),
    ],
    ids=["stopped", "refused", "failed", "fault"],
)
def test_for_programs_every_line_is_one_json_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: dict[str, Any], last: str
) -> None:
    """This holds however it ends, also for tracebacks and for messages of Python itself."""
    hooks = sys.unraisablehook, threading.excepthook, warnings.showwarning

    def make_noise() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            for noise in NOISE.values():
                noise()

    # As in the process, where nobody else listens: pytest does.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    run(monkeypatch, log_format="json", during=make_noise, **ends)
    lines = capsys.readouterr().err.splitlines()
    entries = [json.loads(line) for line in lines]
    assert all({"event", "level", "timestamp"} <= set(entry) for entry in entries)
    wanted = [last] if "before" in ends else ["listening", *NOISE, last]
    assert [entry["event"] for entry in entries] == wanted
    for entry in entries:
        if entry["event"] not in ("listening", "warning", "library", "stopped", "cannot start", "failed"):
            assert entry["exception"].startswith(("Traceback", "  + Exception Group Traceback"))
    assert hooks == (sys.unraisablehook, threading.excepthook, warnings.showwarning)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BaseExceptionGroup("g", [KeyboardInterrupt()])])
def test_ctrl_c_while_starting_is_no_fault(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    assert run(monkeypatch, before=error) == 130
