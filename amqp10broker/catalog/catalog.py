"""All that is declared on this broker: virtual hosts with their queues and exchanges, and users.

The catalog is plain state, changed and read synchronously by whichever task holds the processor;
it does not run queues. For that it is given a `QueueHost`, which the living room implements. What it
tells a queue goes through the `QueueHandle`: that its settings changed, that it was declared again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from amqp10broker.catalog.changes import Changes, entries_of_vhost
from amqp10broker.catalog.limits import Usage, VhostLimits
from amqp10broker.catalog.queue import DeclaredQueue, QueueHandle, QueueHost, QueueSpec, QueueType
from amqp10broker.catalog.users import Permission, TopicPermission, Users
from amqp10broker.catalog.vhost import VirtualHost
from amqp10broker.errors import InvalidArgument, NotFound, PreconditionFailed
from amqp10broker.routing.exchange import Choose

__all__ = ["VHOST", "Catalog", "DeclaredQueue", "QueueHandle", "QueueHost", "QueueSpec", "VirtualHost"]

VHOST: Final = "/"
"""The virtual host that is always there at start, and that clients get who name none."""


class Catalog:
    """Virtual hosts and users.

    Attributes:
        vhosts: by name; changed by `add_vhost` and `delete_vhost` only.
        users: who may log in, and who may do what.
        usage: connections and channels that are open, counted against the limits.
        parameters: runtime parameters of plugins by (virtual host, component, name), kept as they are;
            changed by `set_parameter` only.
        global_parameters: those of the whole broker by name, kept as they are; changed by
            `set_global_parameter` only.
        unknown: other parts of an imported definitions file, kept for the next export; changed by
            `keep_unknown` only.
        changes: told of all that must outlive the process.
    """

    def __init__(
        self,
        host: QueueHost,
        *,
        default_queue_type: str = QueueType.CLASSIC.value,
        relaxed_quorum_checks: bool = False,
        choose: Choose | None = None,
    ) -> None:
        """Make a catalog with the virtual host ``/`` and nobody who may log in.

        Args:
            host: who runs queues.
            default_queue_type: of queues that are declared without a type in a virtual host without
                a default.
            relaxed_quorum_checks: a quorum queue may be declared again as a classic one.
            choose: where routing leaves something to chance: given a count, an index below it.
                None takes turns.
        """
        self.vhosts: dict[str, VirtualHost] = {}
        self.changes = Changes()
        self.users = Users(self.changes)
        self.usage = Usage()
        self.parameters: dict[tuple[str, str, str], Any] = {}
        self.global_parameters: dict[str, Any] = {}
        self.unknown: dict[str, Any] = {}
        self._host = host
        self._default_queue_type = default_queue_type
        self.relaxed_quorum_checks = relaxed_quorum_checks
        self._choose = choose
        self.add_vhost(VHOST, description="Default virtual host")

    @property
    def default_queue_type(self) -> str:
        """The kind of a queue that is declared without one in a virtual host without a default."""
        return self._default_queue_type

    def __iter__(self) -> Iterator[DeclaredQueue]:
        """All queues of all virtual hosts."""
        for vhost in list(self.vhosts.values()):
            yield from list(vhost)

    def find_vhost(self, name: str) -> VirtualHost | None:
        """The virtual host of this name, or None."""
        return self.vhosts.get(name)

    def lookup_vhost(self, name: str) -> VirtualHost:
        """The virtual host of this name.

        Raises:
            NotFound: there is none.
        """
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise NotFound(f"vhost '{name}'", f"vhost {name} not found")
        return vhost

    def add_vhost(
        self,
        name: str,
        *,
        description: str = "",
        tags: Iterable[str] = (),
        default_queue_type: str | None = None,
        limits: VhostLimits | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> VirtualHost:
        """Add a virtual host, which nobody may enter yet.

        Args:
            name: 1 to 255 bytes.
            description: for people.
            tags: for people.
            default_queue_type: None takes the broker's.
            limits: None is no limit.
            metadata: kept as it is.

        Raises:
            PreconditionFailed: there is one of this name.
            InvalidArgument: the name is empty or too long, or the type is no kind of queue.
        """
        if name in self.vhosts:
            raise PreconditionFailed(f"vhost '{name}'", f"vhost '{name}' exists")
        if not 1 <= len(name.encode(errors="surrogatepass")) <= 255:
            raise InvalidArgument(f"vhost '{name}'", f"vhost name {name[:40]!r} must have 1 to 255 bytes")
        vhost = VirtualHost(
            name,
            self._host,
            default_queue_type=default_queue_type,
            node_queue_type=self._default_queue_type,
            relaxed_quorum_checks=self.relaxed_quorum_checks,
            choose=self._choose,
            changes=self.changes,
        )
        vhost.limits = limits or VhostLimits()
        vhost.describe(description, tags, metadata or {})
        self.vhosts[name] = vhost
        return vhost

    def delete_vhost(self, name: str) -> VirtualHost:
        """Forget a virtual host and all permissions in it.

        Returns:
            It, with its queues: the caller posts `Delete` to each and closes the connections to it.

        Raises:
            NotFound: there is none.
        """
        vhost = self.lookup_vhost(name)
        with self.changes:
            if self.changes.told:
                for key, _ in entries_of_vhost(vhost):
                    self.changes.forget(key)
            del self.vhosts[name]
            vhost.end()
            self.users.forget_vhost(name)
            for parameter in [key for key in self.parameters if key[0] == name]:
                del self.parameters[parameter]
                self.changes.forget(("parameter", *parameter))
        return vhost

    def set_parameter(self, vhost: str, component: str, name: str, value: Any) -> None:
        """Keep a runtime parameter of a plugin."""
        self.changes.put_parameter(vhost, component, name, value)
        self.parameters[vhost, component, name] = value

    def set_global_parameter(self, name: str, value: Any) -> None:
        """Keep a parameter of the whole broker."""
        self.changes.put_global_parameter(name, value)
        self.global_parameters[name] = value

    def keep_unknown(self, name: str, value: Any) -> None:
        """Keep a part of a definitions file that nobody here knows."""
        self.changes.put_unknown(name, value)
        self.unknown[name] = value

    def set_permission(self, user: str, vhost: str, permission: Permission) -> None:
        """Say what a user may do in a virtual host.

        Raises:
            NotFound: there is no such user or virtual host.
        """
        self.lookup_vhost(vhost)
        self.users.set_permission(user, vhost, permission)

    def set_topic_permission(self, user: str, vhost: str, exchange: str, permission: TopicPermission) -> None:
        """Restrict a user's routing keys at a topic exchange, which need not exist yet.

        Raises:
            NotFound: there is no such user or virtual host.
        """
        self.lookup_vhost(vhost)
        self.users.set_topic_permission(user, vhost, exchange, permission)
