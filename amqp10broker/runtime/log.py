"""The log of the runtime: structlog where it is configured, otherwise the standard library's.

An embedded broker must not print to the program's standard output, which is structlog's default. There its
entries go to `logging`, which drops those below a warning unless the program configures it.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog


class Log:
    """A named log. An event is a short sentence; what belongs to it follows as keywords."""

    __slots__ = ("_library", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._library = logging.getLogger(name)

    def debug(self, event: str, **details: Any) -> None:
        self._write(logging.DEBUG, event, details)

    def info(self, event: str, **details: Any) -> None:
        self._write(logging.INFO, event, details)

    def warning(self, event: str, **details: Any) -> None:
        self._write(logging.WARNING, event, details)

    def error(self, event: str, **details: Any) -> None:
        """A fault; `exc_info` carries its cause."""
        self._write(logging.ERROR, event, details)

    def _write(self, level: int, event: str, details: dict[str, Any]) -> None:
        if structlog.is_configured():
            structlog.get_logger(self._name).log(level, event, **details)
        elif self._library.isEnabledFor(level):
            exc_info = details.pop("exc_info", None)
            text = " ".join(f"{key}={value!r}" for key, value in details.items())
            self._library.log(level, "%s", f"{event} {text}".rstrip(), exc_info=exc_info)
