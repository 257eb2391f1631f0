"""``AMQP10BROKER_URL``: where commands and examples find the broker, said once.

``amqp://user:password@host:port/vhost``; all but the host may lack, and a character that means something
in a URL is percent-encoded. An option beside it counts instead of its part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqp10broker.client.url import BrokerUrl, UrlError, parse_url
from amqp10broker.config.load import URL_VARIABLE
from amqp10broker.errors import ConfigError

SOURCE: Final = f"variable {URL_VARIABLE}"


def from_environment(environ: Mapping[str, str]) -> BrokerUrl | None:
    """What the variable says; None if it is not set, or empty.

    Raises:
        ConfigError: it is no such URL; nothing of it is repeated that may be of a password.
    """
    written = environ.get(URL_VARIABLE)
    if not written:
        return None
    try:
        return parse_url(written)
    except UrlError as fault:
        raise ConfigError(SOURCE, fault.problem, fault.allowed) from None


def is_here(url: BrokerUrl) -> bool:
    """Whether it names this machine, whose brokers have a socket to be administrated by."""
    return url.host in ("localhost", "::1") or url.host.startswith("127.")
