"""Scopes of tokens, with the meaning of RabbitMQ's OAuth 2 backend.

::

    read:finance/orders              on the queue or exchange 'orders' of the virtual host 'finance'
    write:*/*                        everywhere
    write:%2F/amq.topic/eu.*         in '/', with routing keys that begin with "eu."
    tag:administrator                a tag of the user

A star stands for any text, also none. Parts are percent-encoded, so that a name may contain a slash or a
star. The routing key's part may have ``{vhost}`` and names of the token's claims in braces.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from amqp10broker.auth.grants import Changing, Operation, TopicOperation
from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.users import User

OPERATIONS: Final[tuple[Operation, ...]] = ("configure", "write", "read")
_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_VHOST: Final = "{vhost}"


class BadScope(ValueError):
    """A scope has no effect; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Wildcard:
    """A text with stars. `parts`: the texts between the stars; ``{vhost}`` by itself is the virtual host."""

    parts: tuple[tuple[str, ...], ...]

    @classmethod
    def read(cls, text: str, variables: Mapping[str, str] | None = None) -> Wildcard:
        """Parse one part of a scope. `variables`: values by name, for braces; None: braces mean themselves.
        Raises `BadScope` if the decoded text is not UTF-8.
        """
        return cls(tuple(tuple(_pieces(part, variables)) for part in text.split("*")))

    def matches(self, text: str, vhost: str = "") -> bool:
        first, *others = ("".join(vhost if each is _VHOST else each for each in part) for part in self.parts)
        if not others:
            return text == first
        last = others.pop()
        if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
            return False
        at, end = len(first), len(text) - len(last)
        for part in others:
            found = text.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True


@dataclass(frozen=True, slots=True)
class Scope:
    """A permission for an operation in matching virtual hosts, on matching names."""

    operation: Operation
    vhost: Wildcard
    name: Wildcard
    key: Wildcard


@dataclass(frozen=True, slots=True)
class Granted:
    """The rights in a token's scopes."""

    scopes: tuple[Scope, ...]
    tags: frozenset[str]
    kept: tuple[str, ...]
    dropped: tuple[tuple[str, str], ...]


def read_scopes(scopes: Iterable[str], prefix: str, variables: Mapping[str, str]) -> Granted:
    """Parse the scopes of a token."""
    found: list[Scope] = []
    tags: set[str] = set()
    kept: list[str] = []
    dropped: list[tuple[str, str]] = []
    for scope in scopes:
        if not scope.startswith(prefix):
            dropped.append((scope, f"it does not begin with '{prefix}'"))
            continue
        kind, colon, rest = scope.removeprefix(prefix).partition(":")
        try:
            if not colon:
                raise BadScope("it has no colon: write operation:virtual host/name, or tag:name")
            if kind == "tag":
                tags.add(rest)
            else:
                found.append(_scope(kind, rest, variables))
            kept.append(f"{kind}:{rest}")
        except BadScope as fault:
            dropped.append((scope, str(fault)))
    return Granted(tuple(found), frozenset(tags), tuple(kept), tuple(dropped))


def _scope(kind: str, rest: str, variables: Mapping[str, str]) -> Scope:
    operation = next((each for each in OPERATIONS if each == kind), None)
    if operation is None:
        raise BadScope(f"'{kind}' is none of {', '.join(OPERATIONS)}, tag")
    parts = rest.split("/")
    if not 2 <= len(parts) <= 3:
        raise BadScope("it must have two parts or three, with slashes between: virtual host/name/routing key")
    vhost, name = map(Wildcard.read, parts[:2])
    key = Wildcard.read(parts[2], variables) if len(parts) == 3 else Wildcard.read("*")
    return Scope(operation, vhost, name, key)


def _pieces(part: str, variables: Mapping[str, str] | None) -> Iterable[str]:
    if variables is None:
        yield _decoded(part)
        return
    at = 0
    for found in _VARIABLE.finditer(part):
        yield _decoded(part[at : found.start()])
        name = found[1]
        if name == "vhost":
            yield _VHOST
        elif name in variables:
            yield variables[name]
        else:
            raise BadScope(f"no claim of the token, that is a text, is called '{name}'")
        at = found.end()
    yield _decoded(part[at:])


def _decoded(text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise BadScope("a part is not UTF-8 when its percent signs are decoded") from None


class _Changes:
    """A version per token, which changes when the client sends another one."""

    def __init__(self) -> None:
        self.version = 0


class TokenGrants:
    """The rights of a token's user (protocol `grants.Grants`). `expires_at`: end of the token, seconds since
    the epoch; None: it has none.
    """

    __slots__ = ("_account", "_scopes", "changes", "expires_at", "user")

    def __init__(self, user: str, granted: Granted, expires_at: float | None) -> None:
        self.user = user
        self.changes: Changing = _Changes()
        self.expires_at = expires_at
        self._scopes = granted.scopes
        self._account = User(user, None, tuple(sorted(granted.tags)))

    @property
    def account(self) -> User:
        return self._account

    def entry(self, vhost: str) -> Hashable | None:
        scopes = frozenset(scope for scope in self._scopes if scope.vhost.matches(vhost))
        return scopes or None

    def allows(self, operation: Operation, vhost: str, name: str) -> bool:
        return any(self._meant(operation, vhost, name))

    def allows_topic(self, operation: TopicOperation, vhost: str, exchange: str, key: str) -> bool:
        return any(scope.key.matches(key, vhost) for scope in self._meant(operation, vhost, exchange))

    def renew(self, other: TokenGrants) -> None:
        """Adopt the rights of another token of the same user."""
        self._scopes, self._account, self.expires_at = other._scopes, other._account, other.expires_at
        self.changes.version += 1

    def _meant(self, operation: Operation, vhost: str, name: str) -> Iterable[Scope]:
        return (
            scope
            for scope in self._scopes
            if scope.operation == operation and scope.vhost.matches(vhost) and scope.name.matches(name)
        )
