"""The permissions of one user, from the catalog or from a token of the client, and their checks on names. The
default exchange has the name ``amq.default``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import Final, Literal, Protocol

from amqp10broker.errors import NotAllowed, NotFound, PermissionDenied
from amqp10broker.metadata import patterns
from amqp10broker.metadata.users import User, Users

Operation = Literal["configure", "write", "read"]
TopicOperation = Literal["write", "read"]


class Changing(Protocol):
    """An object with a version that changes with every change of it."""

    version: int


class Grants(Protocol):
    """The permissions of one user."""

    user: str
    changes: Changing

    @property
    def account(self) -> User | None:
        """The user with tags and limits; None if it was deleted."""

    def entry(self, vhost: str) -> Hashable | None:
        """Return all permissions in a virtual host, for comparison; None: no access at all."""

    def allows(self, operation: Operation, vhost: str, name: str) -> bool:
        """Return whether an operation on a queue or an exchange is allowed."""

    def allows_topic(self, operation: TopicOperation, vhost: str, exchange: str, key: str) -> bool:
        """Return whether a routing key may be used at a topic exchange."""


def account_of(grants: Grants) -> User:
    """Return the user with tags and limits. Raises `NotFound` if it was deleted."""
    account = grants.account
    if account is None:
        raise NotFound(f"user '{grants.user}'", f"no user '{grants.user}'; add it first")
    return account


class CatalogGrants:
    """The present permissions of the catalog.

    A permission is a regular expression that is searched for anywhere in the name; an empty one allows
    nothing. Without a topic permission every routing key is allowed.
    """

    __slots__ = ("_users", "changes", "user")

    def __init__(self, users: Users, user: str) -> None:
        self.user = user
        self.changes: Changing = users
        self._users = users

    @property
    def account(self) -> User | None:
        return self._users.by_name.get(self.user)

    def entry(self, vhost: str) -> Hashable | None:
        return self._users.granted.get((self.user, vhost)) if self.user in self._users.by_name else None

    def allows(self, operation: Operation, vhost: str, name: str) -> bool:
        permission = self._users.granted.get((self.user, vhost))
        pattern = None if permission is None else getattr(permission, operation)
        return pattern is not None and patterns.matches(pattern, name)

    def allows_topic(self, operation: TopicOperation, vhost: str, exchange: str, key: str) -> bool:
        permission = self._users.granted_topics.get((self.user, vhost, exchange))
        if permission is None:
            return True
        # The name is escaped, unlike in RabbitMQ: a user called ".*" must not match everything.
        pattern = getattr(permission, operation).replace("{username}", re.escape(self.user))
        return patterns.matches(pattern.replace("{vhost}", re.escape(vhost)), key)


Kind = Literal["queue", "exchange"]

DEFAULT_EXCHANGE_NAME: Final = "amq.default"
IMPERSONATOR: Final = "impersonator"
"""The tag of users that may publish with another user-id."""
_OPERATIONS: Final[tuple[Operation, ...]] = ("configure", "write", "read")
# Names and routing keys come from clients: the cache must be bounded.
_REMEMBERED_MAX: Final = 4096


def check_vhost_access(grants: Grants, vhost: str) -> None:
    """Refuse a user without any permission in a virtual host.

    Raises:
        NotAllowed: with the text with which AMQP 0-9-1 closes the connection.
    """
    if grants.entry(vhost) is None:
        raise NotAllowed(f"vhost '{vhost}'", f"access to vhost '{vhost}' refused for user '{grants.user}'")


class Access:
    """The permissions of one user in one virtual host. Decisions are cached until permissions change.

    The methods named like permissions raise `PermissionDenied` if that permission does not match.
    `changes.version` changes whenever a cached decision may be stale.
    """

    __slots__ = ("_allowed", "_grants", "_version", "changes", "user", "vhost")

    def __init__(self, grants: Grants, vhost: str) -> None:
        self.user = grants.user
        self.vhost = vhost
        self._grants = grants
        # It is read for every message, so it is an attribute and not a call.
        self.changes = grants.changes
        self._version = self.changes.version
        self._allowed: dict[tuple[str, ...], bool] = {}

    @property
    def impersonator(self) -> bool:
        """Whether the user may publish with another user-id."""
        return IMPERSONATOR in self.tags

    @property
    def tags(self) -> frozenset[str]:
        account = self._grants.account
        return frozenset(() if account is None else account.tags)

    def enter(self) -> None:
        """Check that the user may (still) use the virtual host. Raises `NotAllowed` if the user does not
        exist, or has no permission there.
        """
        check_vhost_access(self._grants, self.vhost)

    def configure(self, kind: Kind, name: str) -> None:
        """Check the permission to declare or delete."""
        self._require("configure", kind, name)

    def write(self, kind: Kind, name: str) -> None:
        """Check the permission to publish into an exchange, or to bind a queue."""
        self._require("write", kind, name)

    def read(self, kind: Kind, name: str) -> None:
        """Check the permission to consume from a queue, or to bind to an exchange."""
        self._require("read", kind, name)

    def any(self, kind: Kind, name: str) -> None:
        """Check that the user has at least one permission on an object that is shown."""
        if not any(self.allows(operation, kind, name) for operation in _OPERATIONS):
            self._require("configure", kind, name)  # the error names the first of the three, as in RabbitMQ

    def write_topic(self, exchange: str, routing_key: str) -> None:
        """Check the permission to publish with a routing key into a topic exchange, if it has topic
        permissions.
        """
        self._require_topic("write", exchange, routing_key)

    def read_topic(self, exchange: str, routing_key: str) -> None:
        """Check the permission to bind with a routing key to a topic exchange, if it has topic
        permissions.
        """
        self._require_topic("read", exchange, routing_key)

    def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
        """Return whether an operation on a queue or an exchange is allowed."""
        return self._decided(self._grants.allows, operation, _shown(kind, name))

    def _require(self, operation: Operation, kind: Kind, name: str) -> None:
        if not self.allows(operation, kind, name):
            raise PermissionDenied(
                f"{kind} '{name}'",
                f"{operation} access to {kind} '{_shown(kind, name)}' in vhost '{self.vhost}' refused for "
                f"user '{self.user}'",
            )

    def _require_topic(self, operation: TopicOperation, exchange: str, routing_key: str) -> None:
        if not self._decided(self._grants.allows_topic, operation, exchange, routing_key):
            raise PermissionDenied(
                f"exchange '{exchange}'",
                f"{operation} access to topic '{routing_key}' in exchange '{exchange}' in vhost "
                f"'{self.vhost}' refused for user '{self.user}'",
            )

    def _decided(self, decide: Callable[..., bool], operation: Operation, *names: str) -> bool:
        if self._version != self.changes.version:
            self._allowed.clear()
            self._version = self.changes.version
        allowed = self._allowed.get((operation, *names))
        if allowed is None:
            allowed = decide(operation, self.vhost, *names)
            if len(self._allowed) >= _REMEMBERED_MAX:
                self._allowed.clear()
            self._allowed[operation, *names] = allowed
        return allowed


def _shown(kind: Kind, name: str) -> str:
    return DEFAULT_EXCHANGE_NAME if kind == "exchange" and not name else name
