"""What one user may do, wherever that is written: in the catalog, or in a token that the client brought."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Literal, Protocol

from amqp10broker.catalog import patterns
from amqp10broker.catalog.users import User, Users
from amqp10broker.errors import NotFound

Operation = Literal["configure", "write", "read"]
TopicOperation = Literal["write", "read"]


class Changing(Protocol):
    """Something whose version is raised by every change."""

    version: int


class Grants(Protocol):
    """What one user may do.

    Attributes:
        user: the user's name.
        changes: by its version, a remembered answer is known to be stale.
    """

    user: str
    changes: Changing

    @property
    def account(self) -> User | None:
        """The user with tags and limits; None if it is gone."""

    def entry(self, vhost: str) -> Hashable | None:
        """All that the user may do in a virtual host, to be compared; None: it may not even enter."""

    def allows(self, operation: Operation, vhost: str, name: str) -> bool:
        """Whether an operation on a queue or an exchange is allowed."""

    def allows_topic(self, operation: TopicOperation, vhost: str, exchange: str, key: str) -> bool:
        """Whether a routing key may be used at a topic exchange."""


def account_of(grants: Grants) -> User:
    """The user with tags and limits.

    Raises:
        NotFound: it is gone.
    """
    account = grants.account
    if account is None:
        raise NotFound(f"user '{grants.user}'", f"no user '{grants.user}'; add it first")
    return account


class CatalogGrants:
    """Permissions of the catalog, as of now: see the protocol.

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
        return self._users.find(self.user)

    def entry(self, vhost: str) -> Hashable | None:
        return self._users.permission(self.user, vhost) if self.user in self._users else None

    def allows(self, operation: Operation, vhost: str, name: str) -> bool:
        permission = self._users.permission(self.user, vhost)
        pattern = None if permission is None else getattr(permission, operation)
        return pattern is not None and patterns.matches(pattern, name)

    def allows_topic(self, operation: TopicOperation, vhost: str, exchange: str, key: str) -> bool:
        permission = self._users.topic_permission(self.user, vhost, exchange)
        if permission is None:
            return True
        # Escaped, which RabbitMQ does not do: a user called ".*" shall not match everything.
        pattern = getattr(permission, operation).replace("{username}", re.escape(self.user))
        return patterns.matches(pattern.replace("{vhost}", re.escape(vhost)), key)
