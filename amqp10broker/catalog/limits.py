"""How many connections, channels and queues a virtual host or a user may have.

The records hold what an administrator set; `Usage` counts what is there and refuses what would be
one too many, with RabbitMQ's texts. Limits of the whole node are settings of the broker and not here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from amqp10broker.errors import InvalidArgument, NotAllowed, hint

if TYPE_CHECKING:
    from amqp10broker.catalog.users import User
    from amqp10broker.catalog.vhost import VirtualHost


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits by the names that RabbitMQ gives them, with dashes; None is no limit, 0 allows nothing."""

    @classmethod
    def read(cls, values: Mapping[str, Any], resource: str) -> Self:
        """Check and take over limits as an administrator or a definitions file gives them.

        Args:
            values: by name, ``max-connections``; a negative number is no limit.
            resource: whose they are, for the error.

        Raises:
            InvalidArgument: a name is unknown, or a value no integer.
        """
        known = {field.name.replace("_", "-"): field.name for field in fields(cls)}
        given: dict[str, int | None] = {}
        for name, value in values.items():
            if name not in known:
                raise InvalidArgument(
                    resource, f"{resource}: there is no limit '{name}'; {hint(name, sorted(known))}"
                )
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidArgument(
                    resource,
                    f"{resource}: limit '{name}' is {value!r}; must be an integer (negative: no limit)",
                )
            given[known[name]] = value if value >= 0 else None
        return cls(**given)

    def as_dict(self) -> dict[str, int]:
        """Those that are set, by RabbitMQ's names."""
        values = ((field.name.replace("_", "-"), getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if value is not None}


@dataclass(frozen=True, slots=True)
class VhostLimits(_Limits):
    """What one virtual host may have."""

    max_connections: int | None = None
    max_queues: int | None = None


@dataclass(frozen=True, slots=True)
class UserLimits(_Limits):
    """What one user may have, over all virtual hosts."""

    max_connections: int | None = None
    max_channels: int | None = None
    """Channels of AMQP 0-9-1 and sessions of AMQP 1.0 together."""


class Usage:
    """Counts of what is open; kept by whoever opens and closes connections."""

    def __init__(self) -> None:
        self._vhost_connections: Counter[str] = Counter()
        self._user_connections: Counter[str] = Counter()
        self._user_channels: Counter[str] = Counter()

    def open_connection(self, vhost: VirtualHost, user: User) -> None:
        """Count a connection that a user opens to a virtual host.

        Raises:
            NotAllowed: the virtual host's or the user's limit is reached; nothing was counted.
        """
        limit = vhost.limits.max_connections
        if limit is not None and self._vhost_connections[vhost.name] >= limit:
            raise NotAllowed(
                f"vhost '{vhost.name}'",
                f"access to vhost '{vhost.name}' refused for user '{user.name}': "
                f"vhost connection limit ({limit}) is reached",
            )
        limit = user.limits.max_connections
        if limit is not None and self._user_connections[user.name] >= limit:
            raise NotAllowed(
                f"user '{user.name}'",
                f"connection refused for user '{user.name}': user connection limit ({limit}) is reached",
            )
        self._vhost_connections[vhost.name] += 1
        self._user_connections[user.name] += 1

    def close_connection(self, vhost: str, user: str) -> None:
        """Forget a connection that `open_connection` counted."""
        _count_down(self._vhost_connections, vhost)
        _count_down(self._user_connections, user)

    def open_channel(self, user: User) -> None:
        """Count a channel or session that a user opens.

        Raises:
            NotAllowed: the user's limit is reached; nothing was counted.
        """
        limit = user.limits.max_channels
        if limit is not None and self._user_channels[user.name] >= limit:
            raise NotAllowed(
                f"user '{user.name}'",
                f"number of channels opened for user '{user.name}' has reached the maximum allowed user "
                f"limit of ({limit})",
            )
        self._user_channels[user.name] += 1

    def close_channel(self, user: str) -> None:
        """Forget a channel or session that `open_channel` counted."""
        _count_down(self._user_channels, user)

    def connections_of_vhost(self, vhost: str) -> int:
        """Connections that are open to a virtual host."""
        return self._vhost_connections[vhost]

    def connections_of_user(self, user: str) -> int:
        """Connections that a user has open."""
        return self._user_connections[user]

    def channels_of_user(self, user: str) -> int:
        """Channels and sessions that a user has open."""
        return self._user_channels[user]


def _count_down(counter: Counter[str], name: str) -> None:
    assert counter[name] > 0, f"{name!r} was never counted"
    counter[name] -= 1
    if counter[name] == 0:
        # Names come from clients and administrators: a name that is gone takes no memory.
        del counter[name]
