"""A connection's place in a virtual host: counted while it lasts, and what goes when it leaves."""

from __future__ import annotations

from typing import Self

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.queue import Owner
from amqp10broker.catalog.queue_requests import ConnectionEnded
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.security.authorise import check_vhost_access


class Membership:
    """One open connection in one virtual host.

    Attributes:
        vhost: the virtual host.
    """

    __slots__ = ("_catalog", "_left", "_owner", "_permission", "_user", "vhost")

    def __init__(self, catalog: Catalog, vhost: VirtualHost, user: str, owner: Owner) -> None:
        self._catalog = catalog
        self._user = user
        self._owner = owner
        self._left = False
        self._permission = catalog.users.permission(user, vhost.name)
        self.vhost = vhost

    @classmethod
    def enter(cls, catalog: Catalog, vhost: str, user: str, owner: Owner) -> Self:
        """Count a connection in.

        Raises:
            NotFound: there is no such virtual host.
            NotAllowed: the user may not enter it, or a limit of connections is reached.
        """
        found = catalog.lookup_vhost(vhost)
        check_vhost_access(catalog.users, user, vhost)
        catalog.usage.open_connection(found, catalog.users.lookup(user))
        return cls(catalog, found, user, owner)

    def permission_changed(self) -> bool:
        """Whether the user's permission is another than when this was last asked.

        Raises:
            NotAllowed: it has none any more; the text is for the client.
        """
        users = self._catalog.users
        check_vhost_access(users, self._user, self.vhost.name)
        before, self._permission = self._permission, users.permission(self._user, self.vhost.name)
        return self._permission != before

    def leave(self) -> None:
        """Count it out; the queues that it had for itself go. May be called twice."""
        if self._left:
            return
        self._left = True
        self._catalog.usage.close_connection(self.vhost.name, self._user)
        self._catalog.see_to(ConnectionEnded(self.vhost.name, self._owner))
