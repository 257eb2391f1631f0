"""Tokens of a running broker, verified by the time of day, with keys that the authority may change."""

from __future__ import annotations

import json
import secrets
import ssl
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, Final
from urllib.error import URLError

import trio

from amqp10broker.auth.login import Authenticator, Failure, Peer, Step, Unverified
from amqp10broker.auth.passwords import Passwords
from amqp10broker.auth.tokens import TokenGrants, TokenKeys, TokenRefused, TokenSettings, TokenVerifier
from amqp10broker.config import Config
from amqp10broker.config.settings import scope_aliases, signing_keys
from amqp10broker.errors import ConfigError
from amqp10broker.metadata.users import Users
from amqp10broker.runtime.connections.login import Logins, read_field_table
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.login")

FETCH_TIMEOUT_S: Final = 5.0
"""The time limit for an authority's answer, and for each part of it: a server may send a byte a second."""
KEY_SET_BYTES_MAX: Final = 1_000_000
_PART_BYTES: Final = 65_536
_LATE: Final = f"it took longer than {FETCH_TIMEOUT_S:g} s"
_LOOPBACK_URIS: Final = ("http://127.0.0.1:", "http://127.0.0.1/", "http://[::1]:", "http://localhost:")


class LivingTokens:
    def __init__(self, config: Config, now_s: Callable[[], float]) -> None:
        """Read the configured keys. `now_s`: the time of day, in seconds. Raises `ConfigError` if a key
        cannot be read, or the package is not installed.
        """
        self.verifier = verifier(config)
        self._now_s = now_s
        self._uri = config.oauth2_jwks_uri
        self._ca_file = config.oauth2_jwks_ca_file
        self._interval_s = config.oauth2_jwks_interval_ms / 1000
        self._fetched_at = float("-inf")
        self._fetching = trio.Lock()
        self._thread = trio.CapacityLimiter(1)

    def verify(self, token: bytes) -> TokenGrants:
        return self.verifier.verify(token, self._now_s())

    def may_fetch(self) -> bool:
        return self._uri is not None and self._now_s() >= self._fetched_at + self._interval_s

    async def fetch(self) -> None:
        async with self._fetching:
            if self._uri is None or not self.may_fetch():
                return  # another login has just requested it
            fetched: Any = _LATE
            with trio.move_on_after(FETCH_TIMEOUT_S):
                # An abandoned thread ends with its socket. The next fetch waits for it, so there is only one.
                fetched = await trio.to_thread.run_sync(
                    fetch_key_set, self._uri, self._ca_file, abandon_on_cancel=True, limiter=self._thread
                )
            self._fetched_at = self._now_s()
            self._learn(fetched)

    def _learn(self, fetched: Any) -> None:
        problem = fetched if isinstance(fetched, str) else None
        if problem is None:
            try:
                self.verifier.keys.learn(fetched)
            except ValueError as error:
                problem = f"it is no key set: {error}"
        if problem is not None:
            _log.warning("the authority's keys cannot be had", uri=self._uri, reason=problem)
        else:
            _log.info("the authority's keys", uri=self._uri, keys=len(self.verifier.keys.fetched))


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects only to places where no third party can replace a key."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://" if req.type == "https" else ("https://", *_LOOPBACK_URIS)):
            raise URLError(f"it redirects to {newurl}, without TLS: give the address that has the keys")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch_key_set(uri: str, ca_file: str | None) -> Any:
    """Fetch the key set of an authority; takes seconds. `ca_file`: PEM file of trusted authorities; None for
    the system's. Returns the document, or a text with the reason of the failure.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
        ends, data = time.monotonic() + FETCH_TIMEOUT_S, b""
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _Redirects())
        with opener.open(uri, timeout=FETCH_TIMEOUT_S) as response:
            while part := response.read1(_PART_BYTES):
                data += part
                if len(data) > KEY_SET_BYTES_MAX:
                    return f"it is longer than {KEY_SET_BYTES_MAX} bytes"
                if time.monotonic() > ends:
                    return _LATE
        return json.loads(data)
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__


def verifier(config: Config) -> TokenVerifier:
    """Return the configured token verifier, without the authority's key set. Raises `ConfigError` if settings
    are missing or contradict each other, or a key cannot be read.
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


def explained(config: Config, token: bytes, now_s: float) -> dict[str, Any]:
    """Return the meaning of a token for a broker of this configuration. `now_s`: the time of day, in seconds.
    ``refused`` is the reason of a refusal, or None; the rest is there when the signature is right. Raises
    `ConfigError` as `verifier`.
    """
    tokens = LivingTokens(config, lambda: now_s)
    outcome = trio.run(_logged_in, tokens, token)
    refused = None
    if "oauth2" not in config.auth_backends.split(","):
        refused = f"auth_backends is '{config.auth_backends}', without oauth2"
    elif isinstance(outcome, Failure | Unverified):
        refused = outcome.reason.removeprefix("token refused: ")
    rules, found = tokens.verifier, {"refused": refused}
    try:
        claims = rules.claims(token)
    except TokenRefused:
        return found
    granted = rules.granted(claims)
    return {
        **found,
        "user": rules.user(claims),
        "expires_at": claims.get("exp") if isinstance(claims.get("exp"), int | float) else None,
        "tags": sorted(granted.tags),
        "scopes": list(granted.kept),
        "dropped": [{"scope": scope, "reason": reason} for scope, reason in granted.dropped],
    }


async def _logged_in(tokens: LivingTokens, token: bytes) -> Step | Unverified:
    users = Users()
    passwords = Passwords(users, secrets.token_bytes)
    rules = Authenticator(
        users,
        passwords,
        token=secrets.token_bytes,
        read_table=read_field_table,
        tokens=tokens,
        backends=("oauth2",),
    )
    authentication = rules.begin(Peer(loopback=True))
    return await Logins().settle(authentication, authentication.start("PLAIN", b"\0\0" + token), "")
