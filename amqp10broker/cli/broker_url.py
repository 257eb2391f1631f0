"""``AMQP10BROKER_URL``: where commands and examples find the broker, said once.

``amqp://user:password@host:port/vhost``; all but the host may lack, and a character that means something
in a URL is percent-encoded. An option beside it counts instead of its part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from amqp10broker.config.load import URL_VARIABLE
from amqp10broker.errors import ConfigError

PORT: Final = 5672
PORT_TLS: Final = 5671
SOURCE: Final = f"variable {URL_VARIABLE}"
_FORM: Final = "must be amqp://user:password@host:port/vhost or the like, other characters percent-encoded"
_HERE: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """Its parts, decoded; None for what it does not say.

    Attributes:
        host: name or address.
        port: TCP port.
        tls: ``amqps://``.
        user: empty is anonymous.
        password: of that user.
        vhost: virtual host.
    """

    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None = field(repr=False)
    vhost: str | None

    @property
    def is_here(self) -> bool:
        """Whether it names this machine, whose brokers have a socket to be administrated by."""
        return self.host in _HERE or self.host.startswith("127.")


def from_environment(environ: Mapping[str, str]) -> BrokerUrl | None:
    """What the variable says; None if it is not set, or empty.

    Raises:
        ConfigError: it is no such URL; what it is is not repeated, for there may be a password in it.
    """
    written = environ.get(URL_VARIABLE)
    if not written:
        return None
    try:
        parts = urlsplit(written)
        port = parts.port
    except ValueError:
        raise ConfigError(SOURCE, "has no host and port that can be read", _FORM) from None
    if parts.scheme not in ("amqp", "amqps"):
        raise ConfigError(SOURCE, "does not begin with amqp:// or amqps://", _FORM)
    if not parts.hostname:
        raise ConfigError(SOURCE, "names no host", _FORM)
    if parts.query or parts.fragment or "/" in parts.path[1:]:
        raise ConfigError(SOURCE, "has a raw '/', '?' or '#' in it, or more than a virtual host", _FORM)
    tls = parts.scheme == "amqps"
    return BrokerUrl(
        parts.hostname,
        port if port is not None else PORT_TLS if tls else PORT,
        tls,
        None if parts.username is None else unquote(parts.username),
        None if parts.password is None else unquote(parts.password),
        unquote(parts.path[1:]) or None,
    )
