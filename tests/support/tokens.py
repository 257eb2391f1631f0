"""An authority that makes tokens."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

SERVER = "rabbitmq"


def key(kind: str = "RSA", kid: str = "k1") -> Key:
    return _made(kind, kid)


@cache
def _made(kind: str, kid: str) -> Key:
    parameters = {"kid": kid}
    match kind:
        case "RSA":
            return RSAKey.generate_key(2048, parameters)
        case "EC":
            return ECKey.generate_key("P-256", parameters)
        case "OKP":
            return OKPKey.generate_key("Ed25519", parameters)
    return OctKey.generate_key(256, parameters)


def pem(kind: str = "RSA", kid: str = "k1") -> bytes:
    private = key(kind, kid)
    assert isinstance(private, RSAKey | ECKey | OKPKey)
    return private.as_pem(private=False)


def token(
    *scopes: str,
    user: str = "ann",
    lasts_s: float | None = 3600,
    alg: str = "RS256",
    signed_by: Key | None = None,
    kid: str | None = "k1",
    now_s: float | None = None,
    **claims: Any,
) -> str:
    made_at = time.time() if now_s is None else now_s
    said: dict[str, Any] = {
        "sub": user,
        "aud": SERVER,
        "scope": " ".join(f"{SERVER}.{scope}" for scope in scopes),
        "exp": None if lasts_s is None else int(made_at + lasts_s),
        **claims,
    }
    head = {"alg": alg} if kid is None else {"alg": alg, "kid": kid}
    kept = {name: value for name, value in said.items() if value is not None}
    return jwt.encode(head, kept, signed_by or key(), algorithms=[alg])
