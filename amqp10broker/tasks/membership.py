"""A connection's place in a virtual host: counted while it lasts, and what goes when it leaves."""

from __future__ import annotations

from typing import Self

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.queue import Owner
from amqp10broker.catalog.queue_requests import ConnectionEnded
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.security.authorise import check_vhost_access
from amqp10broker.security.grants import Grants, account_of


class Membership:
    """One open connection in one virtual host.

    Attributes:
        vhost: the virtual host.
    """

    __slots__ = ("_catalog", "_entry", "_grants", "_left", "_owner", "vhost")

    def __init__(self, catalog: Catalog, vhost: VirtualHost, grants: Grants, owner: Owner) -> None:
        self._catalog = catalog
        self._grants = grants
        self._owner = owner
        self._left = False
        self._entry = grants.entry(vhost.name)
        self.vhost = vhost

    @classmethod
    def enter(cls, catalog: Catalog, vhost: str, grants: Grants, owner: Owner) -> Self:
        """Count a connection in.

        Raises:
            NotFound: there is no such virtual host.
            NotAllowed: the user may not enter it, or a limit of connections is reached.
        """
        found = catalog.lookup_vhost(vhost)
        check_vhost_access(grants, vhost)
        catalog.usage.open_connection(found, account_of(grants))
        return cls(catalog, found, grants, owner)

    def permission_changed(self) -> bool:
        """Whether the user's permission is another than when this was last asked.

        Raises:
            NotAllowed: it has none any more; the text is for the client.
        """
        check_vhost_access(self._grants, self.vhost.name)
        before, self._entry = self._entry, self._grants.entry(self.vhost.name)
        return self._entry != before

    def leave(self) -> None:
        """Count it out; the queues that it had for itself go. May be called twice."""
        if self._left:
            return
        self._left = True
        self._catalog.usage.close_connection(self.vhost.name, self._grants.user)
        self._catalog.see_to(ConnectionEnded(self.vhost.name, self._owner))
