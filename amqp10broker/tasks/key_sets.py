"""Tokens of a running broker: verified by the time of day, with keys that the authority may change."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Callable
from typing import Any, Final

from amqp10broker.config import Config
from amqp10broker.config.pairs import scope_aliases, signing_keys
from amqp10broker.errors import ConfigError
from amqp10broker.security.token_scopes import TokenGrants
from amqp10broker.security.tokens import (
    TokenKeys,
    TokenRefused,
    TokenSettings,
    TokenVerifier,
    UnknownKey,
)
from amqp10broker.tasks.log import Log

_log = Log("amqp10broker.login")

FETCH_TIMEOUT_S: Final = 5.0
KEY_SET_BYTES_MAX: Final = 1_000_000
_LOOPBACK_URIS: Final = ("http://127.0.0.1:", "http://127.0.0.1/", "http://[::1]:", "http://localhost:")


class LivingTokens:
    """See `security.login.Tokens`."""

    def __init__(self, config: Config, now_s: Callable[[], float]) -> None:
        """Read the configured keys.

        Args:
            config: whose settings ``oauth2_...`` count.
            now_s: the time of day, seconds since the epoch.

        Raises:
            ConfigError: a key cannot be read, or the package is not installed.
        """
        self.verifier = verifier(config)
        self._now_s = now_s
        self._uri = config.oauth2_jwks_uri
        self._ca_file = config.oauth2_jwks_ca_file
        self._interval_s = config.oauth2_jwks_interval_ms / 1000
        self._fetched_at = float("-inf")

    def verify(self, token: bytes) -> TokenGrants:
        return self.verifier.verify(token, self._now_s())

    def may_fetch(self) -> bool:
        return self._uri is not None and self._now_s() >= self._fetched_at + self._interval_s

    def fetch(self) -> Any:
        assert self._uri is not None
        self._fetched_at = self._now_s()
        return fetch_key_set(self._uri, self._ca_file)

    def learn(self, fetched: Any) -> bool:
        problem = fetched if isinstance(fetched, str) else None
        if problem is None:
            try:
                self.verifier.keys.learn(fetched)
            except ValueError as error:
                problem = f"it is no key set: {error}"
        if problem is not None:
            _log.warning("the authority's keys cannot be had", uri=self._uri, reason=problem)
            return False
        _log.info("the authority's keys", uri=self._uri, keys=len(self.verifier.keys.fetched))
        return True


def fetch_key_set(uri: str, ca_file: str | None) -> Any:
    """Ask an authority for its keys; takes seconds.

    Args:
        uri: where they are.
        ca_file: PEM file with who may have signed the server's certificate; None for the system's.

    Returns:
        The document, parsed, or a text that says why there is none.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
        with urllib.request.urlopen(uri, timeout=FETCH_TIMEOUT_S, context=context) as response:
            data = response.read(KEY_SET_BYTES_MAX + 1)
        if len(data) > KEY_SET_BYTES_MAX:
            return f"it is longer than {KEY_SET_BYTES_MAX} bytes"
        return json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        return str(getattr(error, "reason", error))


def verifier(config: Config) -> TokenVerifier:
    """What verifies tokens, as configured, without the authority's key set.

    Raises:
        ConfigError: settings lack or contradict each other, or a key cannot be read.
    """
    uri = config.oauth2_jwks_uri
    if uri is not None and not uri.startswith(("https://", *_LOOPBACK_URIS)):
        raise ConfigError(
            "oauth2_jwks_uri",
            f"is '{uri}'",
            "must begin with https://: who is between could put a key of its own there",
        )
    if uri is None and config.oauth2_default_key is None and not config.oauth2_signing_keys:
        raise ConfigError(
            "auth_backends",
            f"is {config.auth_backends}, and no key is known",
            "give oauth2_jwks_uri, oauth2_default_key or oauth2_signing_keys",
        )
    return TokenVerifier(_settings(config), _keys(config))


def explained(config: Config, token: bytes, now_s: float) -> dict[str, Any]:
    """What a token is to a broker of this configuration, as plain values.

    Args:
        config: of the broker.
        token: as it came.
        now_s: the time of day, seconds since the epoch.

    Returns:
        ``refused`` is why it would be, or None; the rest is there when the signature is right.

    Raises:
        ConfigError: settings lack or contradict each other, or a key cannot be read.
    """
    tokens = LivingTokens(config, lambda: now_s)
    rules = tokens.verifier
    try:
        try:
            claims = rules.claims(token)
        except UnknownKey:
            if not tokens.may_fetch() or not tokens.learn(tokens.fetch()):
                raise
            claims = rules.claims(token)
    except TokenRefused as refusal:
        return {"refused": str(refusal)}
    granted = rules.granted(claims)
    found: dict[str, Any] = {
        "refused": None,
        "user": next((claims[name] for name in rules.settings.username_claims if name in claims), None),
        "expires_at": claims.get("exp") if isinstance(claims.get("exp"), int | float) else None,
        "tags": sorted(granted.tags),
        "scopes": list(granted.kept),
        "dropped": [{"scope": scope, "reason": reason} for scope, reason in granted.dropped],
    }
    try:
        rules.verify(token, now_s)
    except TokenRefused as refusal:
        found["refused"] = str(refusal)
    return found


def _settings(config: Config) -> TokenSettings:
    if not config.oauth2_resource_server_id:
        raise ConfigError(
            "oauth2_resource_server_id", "is missing", "give this broker's name at the authority of tokens"
        )
    return TokenSettings(
        config.oauth2_resource_server_id,
        config.oauth2_scope_prefix,
        _names(config.oauth2_additional_scopes_key),
        scope_aliases(config.oauth2_scope_aliases),
        _names(config.oauth2_preferred_username_claims),
        config.oauth2_issuer,
        config.oauth2_verify_aud,
        _names(config.oauth2_algorithms),
        config.oauth2_leeway_ms / 1000,
        config.oauth2_require_exp,
    )


def _keys(config: Config) -> TokenKeys:
    default = config.oauth2_default_key
    return TokenKeys(
        None if default is None else _read("oauth2_default_key", default),
        {
            kid: _read("oauth2_signing_keys", path)
            for kid, path in signing_keys(config.oauth2_signing_keys).items()
        },
    )


def _read(setting: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(KEY_SET_BYTES_MAX)
    except OSError as error:
        raise ConfigError(
            setting, f"{path} cannot be read: {error.strerror}", "give a file with a key"
        ) from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))
