"""SASL mechanisms on the server's side: PLAIN (RFC 4616) and ANONYMOUS (RFC 4505)."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum


class Mechanism(Enum):
    """Mechanisms this broker speaks, by their registered names."""

    PLAIN = "PLAIN"
    ANONYMOUS = "ANONYMOUS"


@dataclass(frozen=True, slots=True)
class Login:
    """The outcome of an attempt.

    Attributes:
        user: who it is; None when the attempt is refused.
        reason: for the log, never for the client.
    """

    user: str | None
    reason: str = ""


def authenticate(
    mechanism: str,
    response: bytes,
    *,
    users: Mapping[str, str],
    mechanisms: Collection[Mechanism],
    anonymous_user: str,
    loopback_users: Collection[str],
    loopback: bool,
) -> Login:
    """Decide on a client's first response.

    Args:
        mechanism: as the client named it.
        response: its initial response.
        users: name -> password.
        mechanisms: those on offer.
        anonymous_user: as whom ANONYMOUS logs in; empty if it does not.
        loopback_users: names that may come from this machine only.
        loopback: whether the client comes from this machine.
    """
    if mechanism not in {offered.value for offered in mechanisms}:
        return Login(None, f"mechanism '{mechanism}' is not offered")
    if mechanism == Mechanism.ANONYMOUS.value:
        user = anonymous_user
    else:
        parts = response.split(b"\0")
        if len(parts) != 3:
            return Login(None, "PLAIN response is not authzid NUL authcid NUL password")
        # The authzid is ignored, as RabbitMQ does: nobody may act as somebody else.
        _, name, password = parts
        try:
            user = name.decode()
        except UnicodeDecodeError:
            return Login(None, "user name is not UTF-8")
        expected = users.get(user)
        # Compare in any case, so that the time taken does not tell which names exist.
        matches = hmac.compare_digest(password, (expected or "").encode())
        if expected is None or not matches:
            return Login(None, f"user '{user}': invalid credentials")
    if user in loopback_users and not loopback:
        return Login(None, f"user '{user}' can only connect from this machine")
    return Login(user)
