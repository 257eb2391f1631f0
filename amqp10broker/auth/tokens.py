"""Tokens: JSON Web Tokens (RFC 7519) with a client's user and rights, signed by a known authority.

A token is the password of PLAIN, or the bearer of an HTTP request. Its signature is verified with a
configured key, or one of the authority's key set (RFC 7517, a JWKS), which the caller fetches. The
cryptography is joserfc's (extra ``oauth2``), imported when the first keys are made. Scopes have the meaning
of RabbitMQ's OAuth 2 backend::

    read:finance/orders              on the queue or exchange 'orders' of the virtual host 'finance'
    write:*/*                        everywhere
    write:%2F/amq.topic/eu.*         in '/', with routing keys that begin with "eu."
    tag:administrator                a tag of the user

A star stands for any text, also none. Parts are percent-encoded, so that a name may contain a slash or a
star. The routing key's part may have ``{vhost}`` and names of the token's claims in braces.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from amqp10broker.auth.authorise import Changing, Operation, TopicOperation
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError, ConfigError
from amqp10broker.metadata.users import User

if TYPE_CHECKING:
    from joserfc.jwk import Key


OPERATIONS: Final[tuple[Operation, ...]] = ("configure", "write", "read")
_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_VHOST: Final = "{vhost}"


class BadScope(ValueError):
    """A scope has no effect; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Wildcard:
    """A text with stars. `parts`: the texts between the stars; ``{vhost}`` alone is the virtual host."""

    parts: tuple[tuple[str, ...], ...]

    @classmethod
    def read(cls, text: str, variables: Mapping[str, str] | None = None) -> Wildcard:
        """Parse one part of a scope. `variables`: values by name, for braces; None: braces are plain text.
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
    """The rights of a token's user (`auth.authorise.Grants`). `expires_at`: end of the token, seconds since
    the epoch; None: it does not end.
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


ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
)
"""The default signature algorithms, with which only the authority can sign."""
SYMMETRIC: Final = ("HS256", "HS384", "HS512")
USERNAME_CLAIMS: Final = ("preferred_username", "sub", "client_id")
NAMELESS: Final = "unknown"
"""The user of a token without one, as in RabbitMQ."""
TOKEN_BYTES_MAX: Final = 32_768
_PEM: Final = b"-----BEGIN"
_DEFAULT: Final = ""


class TokenRefused(BrokerError):
    """A token is not accepted; the text is the reason for the log, without secrets."""


class UnknownKey(TokenRefused):
    """The token is signed with an unknown key: the authority may have a new one."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Requirements of tokens. `scope_prefix`: of scopes for this broker; None: its name and a full stop.
    `issuer`: the required one; None: any with the key.
    """

    resource_server_id: str
    scope_prefix: str | None = None
    additional_scopes_keys: tuple[str, ...] = ()
    scope_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    username_claims: tuple[str, ...] = USERNAME_CLAIMS
    issuer: str | None = None
    verify_aud: bool = True
    algorithms: tuple[str, ...] = ALGORITHMS
    leeway_s: float = 0.0
    require_exp: bool = True

    @property
    def prefix(self) -> str:
        return f"{self.resource_server_id}." if self.scope_prefix is None else self.scope_prefix


class TokenKeys:
    """The keys of token signatures, by their id."""

    def __init__(self, default: bytes | None = None, by_id: Mapping[str, bytes] | None = None) -> None:
        """Read the configured keys. `default`: for tokens that name no key; PEM, or the secret of HS256.
        Raises `ConfigError` if one cannot be read, or the package is not installed.
        """
        try:
            # They are imported here, because at the first token the limit of open files may be reached.
            from joserfc import jws, jwt  # noqa: F401
        except ImportError:
            raise ConfigError(
                "auth_backends",
                "needs the package joserfc for tokens, which is not installed",
                "install it with: pip install 'amqp10broker[oauth2]'",
            ) from None
        given = {} if default is None else {_DEFAULT: default}
        given |= by_id or {}
        self._configured = {kid: _key(kid, data) for kid, data in given.items()}
        self.fetched: dict[str, Key] = {}

    def learn(self, document: Any) -> None:
        """Replace the authority's key set by a parsed document. Raises `ValueError` if it is invalid."""
        from joserfc.errors import JoseError
        from joserfc.jwk import JWKRegistry

        keys = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(keys, list):
            raise ValueError("it has no array 'keys'")
        fetched: dict[str, Key] = {}
        for each in keys:
            # A key set may also contain keys for other uses, or of unknown kinds.
            if not isinstance(each, dict) or each.get("use", "sig") != "sig" or each.get("kty") == "oct":
                continue
            try:
                fetched[str(each.get("kid", _DEFAULT))] = JWKRegistry.import_key(each)
            except (JoseError, ValueError, KeyError):
                continue
        self.fetched = fetched

    def find(self, kid: str | None) -> Key | None:
        """Return the key of an id; without one the default key, or the only one."""
        name = _DEFAULT if kid is None else kid
        found = self._configured.get(name) or self.fetched.get(name)
        if found is None and kid is None and len(self.fetched) == 1 and not self._configured:
            return next(iter(self.fetched.values()))
        return found


class TokenVerifier:
    """Verifies tokens and returns their rights. Raises ConfigError for an unknown algorithm."""

    def __init__(self, settings: TokenSettings, keys: TokenKeys) -> None:
        known = (*ALGORITHMS, *SYMMETRIC)
        for name in settings.algorithms:
            if name not in known:
                problem = f"names '{name}'"
                raise ConfigError("oauth2_algorithms", problem, f"must be of {', '.join(known)}")
        self.settings = settings
        self.keys = keys

    def verify(self, token: bytes, now_s: float) -> TokenGrants:
        """Verify signature and claims of a token. `now_s`: the time of day, seconds since the epoch. Raises
        `UnknownKey` if no key of its id is known, and `TokenRefused` if the token is not accepted.
        """
        claims = self.claims(token)
        expires_at = self._times(claims, now_s)
        self._meant_for_us(claims)
        return TokenGrants(self.user(claims), self.granted(claims), expires_at)

    def claims(self, token: bytes) -> Mapping[str, Any]:
        """Return the claims of a token with a valid signature; raises as `verify`."""
        from joserfc import jws, jwt
        from joserfc.errors import JoseError, SecurityWarning

        if len(token) > TOKEN_BYTES_MAX:
            raise TokenRefused(f"it is longer than {TOKEN_BYTES_MAX} bytes")
        registry = jws.JWSRegistry(algorithms=list(self.settings.algorithms))
        registry.max_header_length = registry.max_payload_length = TOKEN_BYTES_MAX
        try:
            with warnings.catch_warnings():
                # EdDSA is a deprecated name that authorities use.
                warnings.simplefilter("ignore", SecurityWarning)
                decoded = jwt.decode(token, self._key_for, registry=registry)
        except JoseError as error:
            raise TokenRefused(f"{error.error}: {error.description or 'the signature is wrong'}") from None
        except (ValueError, TypeError, RecursionError):
            raise TokenRefused("it is no JSON Web Token") from None
        if not isinstance(decoded.claims, dict):
            raise TokenRefused("its claims are no object")
        return decoded.claims

    def _key_for(self, signature: Any) -> Key:
        kid = signature.headers().get("kid")
        key = self.keys.find(kid if isinstance(kid, str) else None)
        if key is None:
            raise UnknownKey(f"it is signed with key {str(kid)[:100]!r}, which is not known")
        return key

    def _times(self, claims: Mapping[str, Any], now_s: float) -> float | None:
        leeway = self.settings.leeway_s
        expires_at, begins_at = (_number(claims, name) for name in ("exp", "nbf"))
        if expires_at is None and self.settings.require_exp:
            raise TokenRefused("it has no claim 'exp', so it would never end")
        if expires_at is not None and expires_at + leeway <= now_s:
            raise TokenRefused("it has expired")
        if begins_at is not None and begins_at - leeway > now_s:
            raise TokenRefused("it is not valid yet")
        return None if expires_at is None else expires_at + leeway

    def _meant_for_us(self, claims: Mapping[str, Any]) -> None:
        issuer, audience = claims.get("iss"), claims.get("aud")
        if self.settings.issuer is not None and issuer != self.settings.issuer:
            raise TokenRefused(f"it is of issuer {str(issuer)[:100]!r}, not of '{self.settings.issuer}'")
        audiences = audience if isinstance(audience, list) else [audience]
        if self.settings.verify_aud and self.settings.resource_server_id not in audiences:
            raise TokenRefused(
                f"it is for {str(audience)[:100]!r}, and not for '{self.settings.resource_server_id}'"
            )

    def user(self, claims: Mapping[str, Any]) -> str:
        """Return the user's name; a token need not have one (RFC 7519, section 4.1.2)."""
        found = (claims.get(name) for name in self.settings.username_claims)
        return next((name for name in found if isinstance(name, str) and name and "\0" not in name), NAMELESS)

    def granted(self, claims: Mapping[str, Any]) -> Granted:
        """Return the rights in a token's scopes."""
        settings = self.settings
        scopes = list(_texts(claims.get("scope")))
        for path in settings.additional_scopes_keys:
            scopes += _texts(_at(claims, path))
        meant = [each for scope in scopes for each in settings.scope_aliases.get(scope, (scope,))]
        variables = {name: value for name, value in claims.items() if isinstance(value, str)}
        return read_scopes(dict.fromkeys(meant), settings.prefix, variables)


def looks_like_token(password: bytes) -> bool:
    """Return whether a password has the form of a token: three parts, of which the first is a JSON object."""
    return password.count(b".") == 2 and password.startswith(b"eyJ")


def _key(kid: str, data: bytes) -> Key:
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry

    setting = f"oauth2_signing_keys {kid}" if kid else "oauth2_default_key"
    if not data.lstrip().startswith(_PEM):
        if not data.strip():
            raise ConfigError(setting, "is empty", "give a public key as PEM, or the secret of HS256")
        return JWKRegistry.import_key(data.strip(), "oct")
    for kind in ("RSA", "EC", "OKP"):
        try:
            return JWKRegistry.import_key(data, kind)
        except (JoseError, ValueError, TypeError):
            continue
    raise ConfigError(setting, "is no public key of RSA, EC or Ed25519", "give one as PEM")


def _number(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        raise TokenRefused(f"its claim '{name}' is no time in seconds")
    return float(value)


def _at(claims: Mapping[str, Any], path: str) -> Any:
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list):
        return [each for item in value for each in _texts(item)]
    return ()
