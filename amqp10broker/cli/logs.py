"""The broker's log: structlog to standard error, for people or as one JSON object a line.

An entry below the level costs one call of an empty method. Texts that clients choose (container-ids,
addresses, descriptions) are escaped, so that they can neither forge a line nor move a terminal's cursor.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, TextIO

import structlog

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


def configure(level: str, form: str, *, stream: TextIO | None = None) -> None:
    """Set up structlog for the whole process, before the first entry is written. `stream`: None is standard
    error.
    """
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
    """Log Python's own output to standard error: warnings, exceptions in threads and finalizers, libraries'
    log records.
    """
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
    """OpenTelemetry logs each attempt; these entries are for debugging only."""

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
