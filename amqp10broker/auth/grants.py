"""The permissions of one user, from the catalog or from a token of the client."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Literal, Protocol

from amqp10broker.errors import NotFound
from amqp10broker.metadata import patterns
from amqp10broker.metadata.users import User, Users

Operation = Literal["configure", "write", "read"]
TopicOperation = Literal["write", "read"]


class Changing(Protocol):
    """An object with a version that every change raises."""

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
        # Escaped, unlike in RabbitMQ: a user called ".*" must not match everything.
        pattern = getattr(permission, operation).replace("{username}", re.escape(self.user))
        return patterns.matches(pattern.replace("{vhost}", re.escape(vhost)), key)
