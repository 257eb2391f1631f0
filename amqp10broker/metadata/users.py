"""Users, their password records, tags, permissions and limits: plain state. `auth` verifies passwords and
decides on access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from enum import StrEnum
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import InvalidArgument, NotFound
from amqp10broker.metadata.patterns import check_pattern
from amqp10broker.metadata.plan import Key, Record, UserLimits

ALL: Final = ".*"


class PasswordAlgorithm(StrEnum):
    """How a password is stored, by the names of definitions files."""

    PLAIN = "plain"
    ARGON2ID = "argon2id"
    RABBIT_SHA256 = "rabbit_password_hashing_sha256"
    RABBIT_SHA512 = "rabbit_password_hashing_sha512"
    RABBIT_MD5 = "rabbit_password_hashing_md5"


@dataclass(frozen=True, slots=True)
class ScramRecord:
    """The SCRAM-SHA-256 verifier of a password (RFC 5802, section 3)."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PasswordRecord:
    """A stored password. The value does not appear in the repr, and so not in logs."""

    algorithm: PasswordAlgorithm
    value: str = field(repr=False)
    """Plain text, argon2's encoded form, or base64 of RabbitMQ's salt and digest."""
    scram: ScramRecord | None = field(default=None, repr=False)
    """None if the password was never known in plain: such a user cannot log in by SCRAM."""
    rabbit_sha256: str | None = field(default=None, repr=False)
    """Besides argon2, for an export: base64 of RabbitMQ's salt and digest of the same password."""


@dataclass(frozen=True, slots=True)
class User:
    """A user. `password`: None: only other mechanisms can log it in."""

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
    """All users and their permissions.

    Attributes:
        version: grows with every change: a cached decision may be stale.
        granted: the permissions, by user and virtual host.
        granted_topics: those for topic exchanges, by user, virtual host and exchange, which may not exist
            yet.
        on_change: called after every change; must not raise.
    """

    def __init__(self) -> None:
        self.version = 0
        self.on_change: Callable[[], None] = lambda: None
        self.by_name: dict[str, User] = {}
        self.granted: dict[tuple[str, str], Permission] = {}
        self.granted_topics: dict[tuple[str, str, str], TopicPermission] = {}
        self._tables: dict[str, dict[Any, Any]] = {
            "user": self.by_name,
            "permission": self.granted,
            "topic_permission": self.granted_topics,
        }

    def __iter__(self) -> Iterator[User]:
        return iter(list(self.by_name.values()))

    def __len__(self) -> int:
        return len(self.by_name)

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def lookup(self, name: str) -> User:
        """Return the user of this name. Raises `NotFound`."""
        user = self.by_name.get(name)
        if user is None:
            raise NotFound(f"user '{name}'", f"no user '{name}'; add it first")
        return user

    def permissions(self) -> list[tuple[str, str, Permission]]:
        """Return all permissions as (user, virtual host, permission)."""
        return [(*key, permission) for key, permission in self.granted.items()]

    def topic_permissions(self) -> list[tuple[str, str, str, TopicPermission]]:
        """Return all topic permissions as (user, virtual host, exchange, permission)."""
        return [(*key, permission) for key, permission in self.granted_topics.items()]

    def put_entry(self, key: Key, record: Record) -> None:
        """Put a user or a permission, by the key of its entry (`plan`)."""
        self._tables[key[0]][_place(key)] = record
        self._changed()

    def drop_entry(self, key: Key) -> None:
        del self._tables[key[0]][_place(key)]
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self.on_change()


def _place(key: Key) -> str | Key:
    return key[1] if key[0] == "user" else key[1:]


def check_user_name(name: str) -> None:
    """Refuse a name that no SASL mechanism can send. Raises `InvalidArgument`."""
    if not name or "\0" in name:
        raise InvalidArgument(f"user '{name}'", f"user name {name!r} is empty or holds a NUL; give another")
