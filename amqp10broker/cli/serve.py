"""``amqp10broker serve``: sets up the process, runs the broker, and turns its end into an exit code.

The parts that belong to the process are here: log, garbage collector, exit code. `amqp10broker.runtime.run`
handles signals.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import structlog
import trio

from amqp10broker.cli import logs, ready, service_manager
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from amqp10broker.config import Config
from amqp10broker.errors import BrokerError
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.run import run_broker

# Messages in flight are many, live briefly and form no cycles. With the default thresholds (700, 10, 10) the
# collector walks them again and again: 0.3 to 0.6 µs a message.
GC_THRESHOLDS: Final = (50_000, 50, 1_000)

COUNTS_REFERENCES: Final = sys.implementation.name == "cpython"
"""PyPy's collector has neither thresholds nor generations to be frozen."""


Announce = Callable[[Broker], Iterable[str]]


class _Progress:
    """An error before the broker is up is one of the environment, not of the program."""

    up = False


def run(config: Config, *, announce: Announce = lambda broker: (), warnings: Iterable[str] = ()) -> int:
    """Run the broker until a signal stops it.

    Args:
        announce: gives the lines to print when clients can connect.
        warnings: about the configuration, for the log.

    Returns the exit code: 0 after an orderly shutdown, 1 after a failure, which has been logged, 130 after
    ctrl-C before it was up; afterwards ctrl-C is an orderly shutdown.
    """
    logs.configure(config.log_level, config.log_format)
    if COUNTS_REFERENCES:
        gc.set_threshold(*GC_THRESHOLDS)
    with logs.messages_of_python():
        for each in warnings:
            structlog.get_logger("amqp10broker").warning(each)
        return _run(config, announce)


def _run(config: Config, announce: Announce) -> int:
    log = structlog.get_logger("amqp10broker")
    progress = _Progress()
    if config.ready_file is not None:
        Path(config.ready_file).unlink(missing_ok=True)  # that of a broker that was killed
    try:
        trio.run(_serve, config, progress, announce)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BaseExceptionGroup as group:
        failures = list(leaves(group))
        if failures and all(isinstance(each, KeyboardInterrupt) for each in failures):
            return EXIT_INTERRUPTED
        _report(log, group, failures, config, progress)
    except Exception as error:
        _report(log, error, [error], config, progress)
    else:
        log.info("stopped")
        return EXIT_OK
    finally:
        if config.ready_file is not None and progress.up:
            Path(config.ready_file).unlink(missing_ok=True)
    return EXIT_FAILED


async def _serve(config: Config, progress: _Progress, announce: Announce) -> None:
    def on_up(broker: Broker) -> None:
        progress.up = True
        if COUNTS_REFERENCES:
            # The imported objects stay for good; the collector need not walk them again.
            gc.freeze()
        shown = {"addresses": broker.addresses}
        if broker.tls_addresses:
            shown["tls"] = broker.tls_addresses
        structlog.get_logger("amqp10broker").info(
            "listening",
            **{name: ", ".join(address_text(*each) for each in some) for name, some in shown.items()},
        )
        for line in announce(broker):
            print(line, flush=True)
        if config.ready_file is not None:
            ready.write_ready_file(config.ready_file, broker)
        service_manager.tell_ready(os.environ)

    await run_broker(config, on_up)


def _report(
    log: structlog.typing.FilteringBoundLogger,
    error: BaseException,
    failures: list[BaseException],
    config: Config,
    progress: _Progress,
) -> None:
    sentences = [plain_sentence(each, config, up=progress.up) for each in failures]
    sentence = "; ".join(dict.fromkeys(filter(None, sentences)))
    if None in sentences or not sentence:
        log.critical("failed by a fault in the broker; please report it", exc_info=error)
    elif progress.up or config.log_format == "json":
        log.critical("failed" if progress.up else "cannot start", reason=sentence)
    else:
        print(f"amqp10broker: {sentence}", file=sys.stderr)


def plain_sentence(error: BaseException, config: Config, *, up: bool) -> str | None:
    """Return cause and remedy of a failure that a user can correct; None for any other."""
    if isinstance(error, BrokerError):
        return str(error)
    if up or not isinstance(error, OSError):
        return None
    address = address_text(config.host, config.port)
    if error.errno == errno.EADDRINUSE:
        return (
            f"another program listens on {address}; stop it ('ss -ltnp' names it), "
            "or choose another port with --port, 0 for any free one"
        )
    if error.errno == errno.EACCES:
        return f"this user may not listen on {address}; choose a port from 1024 on with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"this machine has no address {config.host}; choose another with --host, 0.0.0.0 for all"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open; raise the limit with 'ulimit -n'"
    return f"cannot listen on {address}: {error.strerror or error}; choose with --host and --port"


def address_text(host: str, port: int) -> str:
    """Format ``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in nested groups."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error
