"""The log of one connection: warnings that name it, at a bounded rate, and what went wrong last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from amqp10broker.auth.login import Failure
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.last_error import LastError
from amqp10broker.runtime.clock import utc_text
from amqp10broker.runtime.connections.log_limits import LogLimits
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
        """The connection is over, and its end is written: let go of it."""
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
