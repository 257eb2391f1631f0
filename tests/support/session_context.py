"""The broker around a session in tests without tasks: a catalog with guest in it, and its context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp10broker.auth.authorise import Access, CatalogGrants
from amqp10broker.config import Config
from amqp10broker.metadata.catalog import VHOST, Catalog, at_once
from amqp10broker.metadata.queue import DeclaredQueue, LastError
from amqp10broker.metadata.users import PasswordAlgorithm, PasswordRecord, Permission
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.queues.commands import ReplyTo
from amqp10broker.sessions.amqp10.resumable_links import ResumableLinks
from amqp10broker.sessions.context import LinkNames, MakeVolatile, SessionContext
from amqp10broker.sessions.messages import ToSession
from tests.support.declaring import add_user, set_permission


def make_catalog(host: Any) -> Catalog:
    """Return a catalog in which guest has all permissions in the default virtual host."""
    catalog = Catalog(lambda spec: host.start_queue(spec))  # a test may put another one there
    add_user(catalog, "guest", PasswordRecord(PasswordAlgorithm.PLAIN, "guest"))
    set_permission(catalog, "guest", VHOST, Permission())
    return catalog


def no_volatile(vhost: VirtualHost, connection: object, allowed: Callable[[str], None]) -> DeclaredQueue:
    raise AssertionError(f"{connection} was not to ask for a volatile queue")


def make_context(
    catalog: Catalog,
    config: Config,
    reply_to: ReplyTo,
    connection: object,
    *,
    container_id: str = "client",
    new_id: Callable[[], str] = lambda: "id",
    volatile: MakeVolatile = no_volatile,
    names: LinkNames | None = None,
    resumable_links: ResumableLinks | None = None,
    to_session: ToSession = lambda message: None,
) -> SessionContext:
    """Return a session's context for guest in the default virtual host."""
    return SessionContext(
        catalog=catalog,
        vhost=catalog.lookup_vhost(VHOST),
        access=Access(CatalogGrants(catalog.users, "guest"), VHOST),
        config=config,
        reply_to=reply_to,
        user="guest",
        container_id=container_id,
        names=names or LinkNames(),
        propose=at_once(catalog),
        connection=connection,
        new_id=new_id,
        volatile=volatile,
        node="amqp10broker",
        log=ClientLog(),
        resumable_links=resumable_links,
        to_session=to_session,
    )


class LogRecorder:
    """What the tasks logged, whatever else in this process has set structlog up."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Any:
        def note(event: str, **fields: Any) -> None:
            self.entries.append((level, event, fields))

        return note

    def of(self, level: str) -> list[tuple[str, dict[str, Any]]]:
        """Return event and fields of each entry of a level."""
        return [(event, fields) for each, event, fields in self.entries if each == level]


class ClientLog(LogRecorder):
    """As `runtime.log.ConnectionLog`."""

    def warning(self, event: str, **details: Any) -> LastError:
        self.entries.append(("warning", event, details))
        return LastError("2026-11-22T08:38:47Z", event, details)

    def noted(self, event: str, **details: Any) -> LastError:
        self.entries.append(("noted", event, details))
        return LastError("2026-11-22T08:38:47Z", event, details)
