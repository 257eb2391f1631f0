"""Tokens: JSON Web Tokens (RFC 7519) with a client's user and rights, signed by a known authority.

A token is the password of PLAIN, or the bearer of an HTTP request. Its signature is verified with a
configured key, or one of the authority's key set (RFC 7517, a JWKS), which the caller fetches. The
cryptography is joserfc's (extra ``oauth2``), imported when the first keys are made.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from amqp10broker.auth.token_scopes import Granted, TokenGrants, read_scopes
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    from joserfc.jwk import Key

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
            # Imported here, because at the first token the limit of open files may be reached.
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
        """Replace the authority's key set by a parsed document. Raises `ValueError` if it is not a
        key set.
        """
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
