"""Runs the broker as a process: garbage collector, log, ready file, exit code.

The log is structlog on standard error, for people or as a JSON object for each line. An entry below the level
costs one call of an empty method. Texts from clients are escaped, so that they can neither forge a line nor
move a terminal's cursor. `amqp10broker.runtime.broker` handles signals.
"""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import structlog
import trio

import amqp10broker
from amqp10broker import portable
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from amqp10broker.config import Config
from amqp10broker.config.settings import DEFAULT_USERS
from amqp10broker.errors import BrokerError, ConfigError
from amqp10broker.runtime.broker import Broker, run_broker

if TYPE_CHECKING:
    from amqp10broker.runtime.broker import Broker


LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


def configure_log(level: str, form: str, *, stream: TextIO | None = None) -> None:
    """Set up structlog, before the first entry is written. `stream`: None: standard error."""
    stream = stream if stream is not None else sys.stderr
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
    ]
    if form == "json":
        processors += [
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Text, not structured frames: those would contain local variables, passwords among them.
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    else:
        processors += [
            structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
            escape_control_characters,
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty() and "NO_COLOR" not in os.environ,
                exception_formatter=structlog.dev.plain_traceback,
                pad_event_to=24,
            ),
        ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )


@contextmanager
def messages_of_python() -> Iterator[None]:
    """Log warnings, exceptions in threads and finalizers, and libraries' log records."""
    log = structlog.get_logger("amqp10broker")

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        log.error("failed where it cannot be raised", where=repr(found.object), exc_info=found.exc_value)

    def in_thread(found: threading.ExceptHookArgs) -> None:
        name = None if found.thread is None else found.thread.name
        log.error("a thread failed", thread=name, exc_info=found.exc_value)

    def warned(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        log.warning("warning", category=category.__name__, text=str(message), where=f"{filename}:{lineno}")

    before = sys.unraisablehook, threading.excepthook, warnings.showwarning, logging.lastResort
    sys.unraisablehook, threading.excepthook = unraisable, in_thread
    warnings.showwarning, logging.lastResort = warned, _OfLibraries(logging.WARNING)
    try:
        yield
    finally:
        sys.unraisablehook, threading.excepthook, warnings.showwarning, logging.lastResort = before


class _OfLibraries(logging.Handler):
    """Passes on log records of libraries. OpenTelemetry logs each attempt, which is for debugging only."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger("amqp10broker")
        note = log.debug if record.name.startswith("opentelemetry") else log.warning
        note("library", name=record.name, text=record.getMessage())


def escape_control_characters(
    _logger: object, _method: str, entry: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key, value in entry.items():
        if isinstance(value, str) and not value.isprintable():
            entry[key] = value.encode("unicode_escape").decode("ascii")
    return entry


def welcome(broker: Broker) -> Iterator[str]:
    """Yield five lines: where the broker listens, the page, the login, where data are, how to go on."""
    config = broker.config
    known = config.users == DEFAULT_USERS
    login = "guest:guest@" if known else ""
    page = f"{_url('http', broker.http_addresses)}/" if broker.http_addresses else "none (HTTP is off)"
    url = _url("amqp", broker.addresses, login)
    yield f"amqp10broker {amqp10broker.__version__}, AMQP 1.0 and 0-9-1: {url}"
    yield f"page and HTTP API: {page}"
    users = (
        "guest with the password guest, from this machine only" if known else "the users of the configuration"
    )
    yield f"login: {users}"
    if config.data_dir is None:
        yield "everything is in memory; 'amqp10broker serve --data-dir DIR' stores what is durable"
    else:
        yield f"durable data: {config.data_dir}"
    yield "Press Ctrl-C to stop it. 'amqp10broker --help' lists the commands."


def write_ready_file(path: str, broker: Broker) -> None:
    """Write the broker's ports as JSON. The file appears whole, so that a program can wait for it.

    Its keys are `pid`, `url`, `http_url`, `port`, `tls_port`, `http_port` and `metrics_port`, null where
    there is none. Raises `ConfigError` if it cannot be written.
    """
    ports: dict[str, Any] = {
        "pid": os.getpid(),
        "url": _url("amqp", broker.addresses),
        "http_url": _url("https" if broker.config.http_tls else "http", broker.http_addresses),
        "port": _port(broker.addresses),
        "tls_port": _port(broker.tls_addresses),
        "http_port": _port(broker.http_addresses),
        "metrics_port": _port(broker.metrics_addresses),
    }
    part = Path(f"{path}.{os.getpid()}")
    try:
        part.write_text(json.dumps(ports) + "\n")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigError(
            "ready_file", f"{path} cannot be written: {error.strerror}", "choose another"
        ) from error


def _url(scheme: str, addresses: list[tuple[str, int]], login: str = "") -> str | None:
    if not addresses:
        return None
    host, port = addresses[0]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://{login}[{host}]:{port}" if ":" in host else f"{scheme}://{login}{host}:{port}"


def _port(addresses: list[tuple[str, int]]) -> int | None:
    return addresses[0][1] if addresses else None


READY: Final = b"READY=1"
VARIABLE: Final = "NOTIFY_SOCKET"


def report_ready(environ: Mapping[str, str]) -> None:
    """Notify systemd; failures are ignored."""
    address = environ.get(VARIABLE, "")
    if portable.UNIX is None or not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"  # an address in the abstract namespace
    with socket.socket(portable.UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        try:
            manager.sendto(READY, address)
        except OSError:
            return


# Messages in flight are many, live briefly and form no cycles. With the default thresholds (700, 10, 10) the
# collector visits them again and again: 0.3 to 0.6 µs for each message.
GC_THRESHOLDS: Final = (50_000, 50, 1_000)

COUNTS_REFERENCES: Final = sys.implementation.name == "cpython"
"""PyPy's collector has neither thresholds nor generations to freeze."""


Announce = Callable[[Broker], Iterable[str]]


class _Progress:
    """The progress of the start: until the broker is up an error is one of the environment."""

    up = False


def run(config: Config, *, announce: Announce = lambda broker: (), warnings: Iterable[str] = ()) -> int:
    """Run the broker until a signal stops it.

    Args:
        announce: returns the lines to print when clients can connect.
        warnings: those about the configuration, for the log.

    Returns the exit code: 0 after an orderly shutdown, 1 after a failure, which has been logged, 130 after
    Ctrl-C before the broker was up. Later Ctrl-C is an orderly shutdown.
    """
    configure_log(config.log_level, config.log_format)
    if COUNTS_REFERENCES:
        gc.set_threshold(*GC_THRESHOLDS)
    with messages_of_python():
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
            # The imported objects stay permanently, so the collector need not visit them again.
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
            write_ready_file(config.ready_file, broker)
        report_ready(os.environ)

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
        log.critical("the broker failed because of a fault in it; please report it", exc_info=error)
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
            f"another program listens on {address}; stop it ('ss -ltnp' shows it), or choose another port "
            "with --port (0: any free port)"
        )
    if error.errno == errno.EACCES:
        return f"this user may not listen on {address}; choose a port from 1024 on with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"this machine has no address {config.host}; choose another with --host (0.0.0.0: all addresses)"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open; raise the limit with 'ulimit -n'"
    return f"cannot listen on {address}: {error.strerror or error}; choose with --host and --port"


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error
