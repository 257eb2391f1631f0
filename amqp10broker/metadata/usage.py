"""Open connections and channels, counted against the limits of virtual hosts and users.

One too many is refused with RabbitMQ's texts. Counts are not in the catalog: in a cluster each node counts
its own and receives those of the others, so simultaneous requests at several nodes may exceed a limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from amqp10broker.errors import NotAllowed, ResourceLocked
from amqp10broker.metadata.users import User
from amqp10broker.metadata.vhost import VirtualHost

VHOSTS: Final = "vhosts"
USERS: Final = "users"
CHANNELS: Final = "channels"
"""What nodes tell each other: connections of virtual hosts and of users, and channels of users."""


class Usage:
    """Counts of open connections and channels. `queues_declared`: how often clients have declared queues at
    this node, also some that were there.
    """

    def __init__(self) -> None:
        self.queues_declared = 0
        self.vhost_connections: Counter[str] = Counter()
        self.user_connections: Counter[str] = Counter()
        self.user_channels: Counter[str] = Counter()
        self._elsewhere: dict[int, dict[str, Counter[str]]] = {}
        # By virtual host and container-id: its connections, and whether there may be no other.
        self._containers: Counter[tuple[str, str]] = Counter()
        self._sole: set[tuple[str, str]] = set()

    def open_connection(self, vhost: VirtualHost, user: User) -> None:
        """Count a connection that a user opens to a virtual host. Raises `NotAllowed` if the virtual host's
        or the user's limit is reached; nothing was counted.
        """
        limit = vhost.limits.max_connections
        if (
            limit is not None
            and self.vhost_connections[vhost.name] + self._others(VHOSTS, vhost.name) >= limit
        ):
            raise NotAllowed(
                f"vhost '{vhost.name}'",
                f"access to vhost '{vhost.name}' refused for user '{user.name}': "
                f"vhost connection limit ({limit}) is reached",
            )
        limit = user.limits.max_connections
        if limit is not None and self.user_connections[user.name] + self._others(USERS, user.name) >= limit:
            raise NotAllowed(
                f"user '{user.name}'",
                f"connection refused for user '{user.name}': user connection limit ({limit}) is reached",
            )
        self.vhost_connections[vhost.name] += 1
        self.user_connections[user.name] += 1

    def close_connection(self, vhost: str, user: str) -> None:
        """Forget a connection that `open_connection` counted."""
        _count_down(self.vhost_connections, vhost)
        _count_down(self.user_connections, user)

    def open_container(self, vhost: str, container: str, *, sole: bool) -> None:
        """Count a connection of AMQP 1.0 by its container's name, at this node. Raises `ResourceLocked` if it
        is not, or one that is there wants to be; nothing was counted.
        """
        key = (vhost, container)
        if key in self._sole or (sole and key in self._containers):
            raise ResourceLocked(
                f"container '{container}'",
                f"container-id '{container}' is in use in vhost '{vhost}', for one connection only",
            )
        self._containers[key] += 1
        if sole:
            self._sole.add(key)

    def close_container(self, vhost: str, container: str) -> None:
        """Forget a connection that `open_container` counted."""
        key = (vhost, container)
        self._containers[key] -= 1
        if not self._containers[key]:
            del self._containers[key]
            self._sole.discard(key)

    def open_channel(self, user: User) -> None:
        """Count a channel or session that a user opens. Raises `NotAllowed` if the user's limit is reached;
        nothing was counted.
        """
        limit = user.limits.max_channels
        if limit is not None and self.user_channels[user.name] + self._others(CHANNELS, user.name) >= limit:
            raise NotAllowed(
                f"user '{user.name}'",
                f"number of channels opened for user '{user.name}' has reached the maximum allowed user "
                f"limit of ({limit})",
            )
        self.user_channels[user.name] += 1

    def close_channel(self, user: str) -> None:
        """Forget a channel or session that `open_channel` counted."""
        _count_down(self.user_channels, user)

    # --- other nodes --------------------------------------------------------------------------------

    def limited(self, vhosts: Iterable[VirtualHost], users: Iterable[User]) -> dict[str, dict[str, int]]:
        """Return the counts that have a limit, for other nodes."""
        users = list(users)
        return {
            VHOSTS: {
                vhost.name: count
                for vhost in vhosts
                if vhost.limits.max_connections is not None and (count := self.vhost_connections[vhost.name])
            },
            USERS: {
                user.name: count
                for user in users
                if user.limits.max_connections is not None and (count := self.user_connections[user.name])
            },
            CHANNELS: {
                user.name: count
                for user in users
                if user.limits.max_channels is not None and (count := self.user_channels[user.name])
            },
        }

    def hear(self, node: int, told: Mapping[str, Any]) -> None:
        """Replace the counts of another node by its `limited`; nothing if the node is lost."""
        counts = {
            kind: Counter({str(name): int(count) for name, count in dict(each).items()})
            for kind, each in told.items()
        }
        if any(counts.values()):
            self._elsewhere[node] = counts
        else:
            self._elsewhere.pop(node, None)

    def _others(self, kind: str, name: str) -> int:
        return sum(counts[kind][name] for counts in self._elsewhere.values() if kind in counts)


def _count_down(counter: Counter[str], name: str) -> None:
    assert counter[name] > 0, f"{name!r} was never counted"
    counter[name] -= 1
    if counter[name] == 0:
        # Names come from clients and administrators: a name that is gone takes no memory.
        del counter[name]
