"""The log of one connection: warnings that name it, at a bounded rate, and what went wrong last."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Protocol

import trio

from amqp10broker.auth.login import Failure
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import LastError
from amqp10broker.runtime.clock import utc_text
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.connection")


class LoggedClient(Protocol):
    """The fields of a connection in a log entry."""

    number: int
    peer: str
    user: str

    @property
    def vhost(self) -> str:
        """The virtual host it is in, empty before it is open."""


class ConnectionLog:
    """See the module; implements `sessions.context.ClientLog`. `last_error`: what went wrong last, at the
    connection or at anything in it.
    """

    __slots__ = ("_catalog", "_client", "_limits", "last_error")

    def __init__(self, client: LoggedClient, limits: LogLimits, catalog: Catalog) -> None:
        self._client = client
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
        error = LastError(utc_text(), event, {"connection": self._client.number, **details})
        self.last_error = error
        queue = details.get("queue")
        if queue:
            vhost = self._catalog.find_vhost(self._client.vhost)
            declared = None if vhost is None else vhost.find(queue)
            if declared is not None:
                declared.last_error = error
        return error

    def info(self, event: str, **details: Any) -> None:
        self._write(_log.info, "entries", event, details)

    def _write(self, write: Callable[..., None], kind: str, event: str, details: Mapping[str, Any]) -> None:
        limits, client_fields = self._limits, self.client_fields()
        if self._client.user:
            limits.write(
                write, (kind, self._client.number), event, about=client_fields, **{**client_fields, **details}
            )
        else:
            host = host_of(self._client.peer)
            limits.write(write, (kind, host), event, about={"peer": host}, **{**client_fields, **details})

    def error(self, event: str, **details: Any) -> None:
        """Write a fault of ours, however many there are; `exc_info` carries its cause."""
        _log.error(event, **{**self.client_fields(), **details})

    def release(self) -> None:
        del self._client

    def client_fields(self) -> dict[str, Any]:
        """Fields by which entries name the connection, as far as they are known."""
        client = self._client
        client_fields: dict[str, Any] = {"connection": client.number, "peer": client.peer}
        if client.user:
            client_fields["user"] = client.user
        if client.vhost:
            client_fields["vhost"] = client.vhost
        return client_fields


def host_of(peer: str) -> str:
    """The address of a peer without its port."""
    host, colon, _ = peer.rpartition(":")
    return host if colon else peer


_limits_log = Log("amqp10broker.log")


BURST: Final = 10
"""Entries of one key in one period."""
PERIOD_S: Final = 10.0
KEYS_MAX: Final = 1024
"""Keys that are told apart at one time: further ones share a period, so that memory is bounded."""
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
    """Limits on log entries about one client, so that it cannot fill the log, or hide in it. Each key (a
    connection; before login its address) may write `BURST` entries in `PERIOD_S`. Further ones are counted by
    event and summed up in one entry after the period.
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
        """Write an entry, or count it. `event`: a short sentence, one of a closed set: nothing that a client
        chose.
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
