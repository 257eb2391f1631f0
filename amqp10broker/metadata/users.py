"""Users, their password records, tags, permissions and limits.

Plain state: passwords are verified and access is decided in `auth`. Every change raises `Users.version`,
which shows that a cached decision may be stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from enum import StrEnum
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import InvalidArgument, NotFound
from amqp10broker.metadata.patterns import check_pattern
from amqp10broker.metadata.plan import UserLimits

ALL: Final = ".*"


class PasswordAlgorithm(StrEnum):
    """How a password is kept; RabbitMQ's names are those of its definitions files."""

    PLAIN = "plain"
    ARGON2ID = "argon2id"
    RABBIT_SHA256 = "rabbit_password_hashing_sha256"
    RABBIT_SHA512 = "rabbit_password_hashing_sha512"
    RABBIT_MD5 = "rabbit_password_hashing_md5"


@dataclass(frozen=True, slots=True)
class ScramRecord:
    """The SCRAM-SHA-256 verifier of a password (RFC 5802, section 3); not the password."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PasswordRecord:
    """A password as it is kept. The value does not appear in the repr, so not in logs either."""

    algorithm: PasswordAlgorithm
    value: str = field(repr=False)
    """Plain text, argon2's encoded form, or base64 of RabbitMQ's salt and digest."""
    scram: ScramRecord | None = field(default=None, repr=False)
    """None when the password was never known in plain: such a user cannot log in by SCRAM."""
    rabbit_sha256: str | None = field(default=None, repr=False)
    """Beside argon2, for an export: base64 of RabbitMQ's salt and digest of the same password."""


@dataclass(frozen=True, slots=True)
class User:
    """A user. `password`: None: login with a password is not possible, other mechanisms may be."""

    name: str
    password: PasswordRecord | None = None
    tags: tuple[str, ...] = ()
    limits: UserLimits = field(default_factory=UserLimits)


@dataclass(frozen=True, slots=True)
class Permission:
    """The permissions of a user in one virtual host: three patterns over names of queues and exchanges."""

    configure: str = ALL
    write: str = ALL
    read: str = ALL

    def __post_init__(self) -> None:
        for what in ("configure", "write", "read"):
            check_pattern(getattr(self, what), f"{what} permission")


@dataclass(frozen=True, slots=True)
class TopicPermission:
    """The permissions of a user for one topic exchange: two patterns over routing keys."""

    write: str = ALL
    read: str = ALL

    def __post_init__(self) -> None:
        for what in ("write", "read"):
            check_pattern(getattr(self, what), f"topic {what} permission")


class Users:
    """All users and what they may do.

    Attributes:
        granted: the permissions, by user and virtual host.
        on_change: called after every change; must not raise.
    """

    def __init__(self) -> None:
        self.version = 0
        self.on_change: Callable[[], None] = lambda: None
        self.by_name: dict[str, User] = {}
        self.granted: dict[tuple[str, str], Permission] = {}
        self._topic_permissions: dict[tuple[str, str, str], TopicPermission] = {}

    def __iter__(self) -> Iterator[User]:
        return iter(list(self.by_name.values()))

    def __len__(self) -> int:
        return len(self.by_name)

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def lookup(self, name: str) -> User:
        """The user of this name. Raises `NotFound` if there is none."""
        user = self.by_name.get(name)
        if user is None:
            raise NotFound(f"user '{name}'", f"no user '{name}'; add it first")
        return user

    def put_user(self, user: User) -> None:
        self.by_name[user.name] = user
        self._changed()

    def drop_user(self, name: str) -> None:
        del self.by_name[name]
        self._changed()

    # --- permissions ------------------------------------------------------------------------------

    def permissions(self) -> list[tuple[str, str, Permission]]:
        """All permissions as (user, virtual host, permission)."""
        return [(*key, permission) for key, permission in self.granted.items()]

    def put_permission(self, user: str, vhost: str, permission: Permission) -> None:
        self.granted[user, vhost] = permission
        self._changed()

    def drop_permission(self, user: str, vhost: str) -> None:
        del self.granted[user, vhost]
        self._changed()

    def topic_permission(self, user: str, vhost: str, exchange: str) -> TopicPermission | None:
        return self._topic_permissions.get((user, vhost, exchange))

    def topic_permissions(self) -> list[tuple[str, str, str, TopicPermission]]:
        """All topic permissions as (user, virtual host, exchange, permission)."""
        return [(*key, permission) for key, permission in self._topic_permissions.items()]

    def put_topic_permission(self, user: str, vhost: str, exchange: str, permission: TopicPermission) -> None:
        """Restrict a user's routing keys at a topic exchange, which need not exist yet."""
        self._topic_permissions[user, vhost, exchange] = permission
        self._changed()

    def drop_topic_permission(self, user: str, vhost: str, exchange: str) -> None:
        del self._topic_permissions[user, vhost, exchange]
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self.on_change()


def check_user_name(name: str) -> None:
    """Refuse a name that no SASL mechanism could send. Raises `InvalidArgument` if the name is empty or holds
    a NUL.
    """
    if not name or "\0" in name:
        raise InvalidArgument(f"user '{name}'", f"user name {name!r} is empty or holds a NUL; give another")
