"""The explanation of a token: the result of a login with it, without a broker."""

from __future__ import annotations

import secrets
from typing import Any

import trio

from amqp10broker.auth.login import Authenticator, Failure, Peer, Step, Unverified
from amqp10broker.auth.passwords import Passwords
from amqp10broker.auth.tokens import TokenRefused
from amqp10broker.config import Config
from amqp10broker.metadata.users import Users
from amqp10broker.runtime.connections.key_sets import LivingTokens
from amqp10broker.runtime.connections.login import Logins, read_field_table


def explained(config: Config, token: bytes, now_s: float) -> dict[str, Any]:
    """Return the meaning of a token for a broker of this configuration, as plain values. `now_s`: the time of
    day, seconds since the epoch. Returns ``refused`` is why it would be, or None; the rest is there when the
    signature is right. Raises `ConfigError` if settings lack or contradict each other, or a key cannot be
    read.
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
