"""A connection's place in a virtual host: counted while it lasts, and what goes when it leaves."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from typing import Self

from amqp10broker.auth.authorise import check_vhost_access
from amqp10broker.auth.grants import Grants, account_of
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ResourceLocked
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import Owner
from amqp10broker.metadata.queue_requests import ConnectionEnded
from amqp10broker.metadata.vhost import VirtualHost


@dataclass(slots=True, eq=False)
class VhostSlot:
    _catalog: Catalog
    vhost: VirtualHost
    _grants: Grants
    _owner: Owner
    _container: str | None
    _left: bool = False
    _entry: Hashable | None = field(init=False)

    def __post_init__(self) -> None:
        self._entry = self._grants.entry(self.vhost.name)

    @classmethod
    def enter(
        cls,
        catalog: Catalog,
        vhost: str,
        grants: Grants,
        owner: Owner,
        *,
        container: str | None = None,
        sole: bool = False,
    ) -> Self:
        """Count a connection in. `sole`: it is to be the only one of its container.

        Raises:
            ResourceLocked: its container has a connection, and one of the two is to be the only one.
            NotFound: there is no such virtual host.
            NotAllowed: the user may not enter it, or a limit of connections is reached.
        """
        found = catalog.lookup_vhost(vhost)
        check_vhost_access(grants, vhost)
        usage = catalog.usage
        usage.open_connection(found, account_of(grants))
        if container is not None:
            try:
                usage.open_container(found.name, container, sole=sole)
            except ResourceLocked:
                usage.close_connection(found.name, grants.user)
                raise
        return cls(catalog, found, grants, owner, container)

    def permission_changed(self) -> bool:
        """Whether the user's permission has changed since the last call. Raises `NotAllowed` if none is left;
        the text is for the client.
        """
        check_vhost_access(self._grants, self.vhost.name)
        before, self._entry = self._entry, self._grants.entry(self.vhost.name)
        return self._entry != before

    def leave(self) -> None:
        """Count it out; the queues that it had for itself go. May be called twice."""
        if self._left:
            return
        self._left = True
        usage = self._catalog.usage
        usage.close_connection(self.vhost.name, self._grants.user)
        if self._container is not None:
            usage.close_container(self.vhost.name, self._container)
        self._catalog.see_to(ConnectionEnded(self.vhost.name, self._owner))
