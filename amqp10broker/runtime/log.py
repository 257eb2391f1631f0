"""The log of the runtime: structlog where it is configured, otherwise the standard library's. And the log of
one connection: warnings that name it, at a limited rate, and the last error.

An embedded broker must not print to the program's standard output, which is structlog's default. There its
entries are passed to `logging`, which drops those below a warning unless the program configures it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import structlog
import trio

from amqp10broker.auth.login import Failure
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import LastError
from amqp10broker.runtime.clock import utc_text


class Log:
    """A named log. An event is a short sentence; its details are keywords."""

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


_log = Log("amqp10broker.connection")


class ConnectionLog:
    """The log of one connection (`sessions.context.ClientLog`).

    Attributes:
        client: fields by which entries name the connection, as far as they are known.
        last_error: the last error of the connection or of anything in it.
    """

    __slots__ = ("_catalog", "_limits", "client", "last_error")

    def __init__(self, number: int, peer: str, limits: LogLimits, catalog: Catalog) -> None:
        self.client: dict[str, Any] = {"connection": number, "peer": peer}
        self._limits = limits
        self._catalog = catalog
        self.last_error: LastError | None = None

    def warning(self, event: str, **details: Any) -> LastError:
        self._write(_log.warning, "warnings", event, details)
        return self.noted(event, **details)

    def login_failed(self, failure: Failure, *, text: str | None) -> None:
        """Log a failed login; a name appears only if a user has it."""
        user = {"user": failure.user} if failure.user else {}
        self.warning("login failed", **user, reason=failure.reason, text=text)

    def noted(self, event: str, **details: Any) -> LastError:
        error = LastError(utc_text(), event, {"connection": self.client["connection"], **details})
        self.last_error = error
        queue = details.get("queue")
        if queue:
            vhost = self._catalog.vhosts.get(self.client.get("vhost", ""))
            declared = None if vhost is None else vhost.find(queue)
            if declared is not None:
                declared.last_error = error
        return error

    def info(self, event: str, **details: Any) -> None:
        self._write(_log.info, "entries", event, details)

    def _write(self, write: Callable[..., None], kind: str, event: str, details: Mapping[str, Any]) -> None:
        about = self.client if "user" in self.client else {"peer": host_of(self.client["peer"])}
        key = (kind, about.get("connection", about["peer"]))
        self._limits.write(write, key, event, about=about, **{**self.client, **details})

    def error(self, event: str, **details: Any) -> None:
        """Write an internal error, without a limit of the rate; `exc_info` carries its cause."""
        _log.error(event, **{**self.client, **details})


def host_of(peer: str) -> str:
    """The address of a peer without its port."""
    host, colon, _ = peer.rpartition(":")
    return host if colon else peer


_limits_log = Log("amqp10broker.log")


BURST: Final = 10
"""The number of entries of one key in one period."""
PERIOD_S: Final = 10.0
KEYS_MAX: Final = 1024
"""The number of keys with a period of their own; further ones share a period, so that memory is bounded."""
_OTHERS: Final = ("others",)


class _Period:
    """The entries of one key since its first warning."""

    __slots__ = ("about", "ends", "left_out", "written")

    def __init__(self, ends: float, about: Mapping[str, Any]) -> None:
        self.ends = ends
        self.about = about
        self.written = 0
        self.left_out: dict[str, int] = {}


class LogLimits:
    """Limits on log entries about one client, so that it cannot fill the log. Each key (a connection; before
    login its address) may write `BURST` entries in `PERIOD_S`. Further ones are counted by event and added up
    in one entry after the period.
    """

    def __init__(self) -> None:
        self._periods: dict[Hashable, _Period] = {}  # in the order in which they end
        self._begun = trio.Event()

    def write(
        self,
        write: Callable[..., None],
        key: Hashable,
        event: str,
        *,
        about: Mapping[str, Any],
        **details: Any,
    ) -> None:
        """Write an entry, or count it. `event`: a short sentence of a closed set, without a client's
        words.
        """
        now = trio.current_time()
        self._tell_ended(now)
        if key not in self._periods and len(self._periods) >= KEYS_MAX:
            key, about = _OTHERS, {"peer": "others"}
        period = self._periods.get(key)
        if period is None:
            period = self._periods[key] = _Period(now + PERIOD_S, about)
            self._begun.set()
        if period.written < BURST:
            period.written += 1
            write(event, **details)
        else:
            period.left_out[event] = period.left_out.get(event, 0) + 1

    def warn(self, log: Log, event: str, peer: str, **details: object) -> None:
        """Write a warning about a client that has not logged in, or count it."""
        host = host_of(peer)
        self.write(log.warning, ("warnings", host), event, about={"peer": host}, peer=peer, **details)

    async def run(self) -> None:
        while True:
            await self._begun.wait()
            while self._periods:
                await trio.sleep_until(next(iter(self._periods.values())).ends)
                self._tell_ended(trio.current_time())
            self._begun = trio.Event()

    def finish(self) -> None:
        self._tell_ended(float("inf"))

    def _tell_ended(self, now: float) -> None:
        while self._periods:
            key, period = next(iter(self._periods.items()))
            if period.ends > now:
                return
            del self._periods[key]
            if period.left_out:
                _limits_log.warning(
                    "entries left out",
                    **period.about,
                    count=sum(period.left_out.values()),
                    events=", ".join(f"{event} ({count})" for event, count in period.left_out.items()),
                    period_s=PERIOD_S,
                )
