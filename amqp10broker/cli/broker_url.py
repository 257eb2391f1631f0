"""``AMQP10BROKER_URL``: the broker's URL for commands and examples.

``amqp://user:password@host:port/vhost``; all parts but the host are optional, and special characters are
percent-encoded. An option takes precedence over its part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqp10broker.client.url import BrokerUrl, UrlError, parse_url
from amqp10broker.config.load import URL_VARIABLE
from amqp10broker.errors import ConfigError

SOURCE: Final = f"variable {URL_VARIABLE}"


def from_environment(environ: Mapping[str, str]) -> BrokerUrl | None:
    """Parse the variable; None if it is not set, or empty."""
    written = environ.get(URL_VARIABLE)
    if not written:
        return None
    try:
        return parse_url(written)
    except UrlError as fault:
        raise ConfigError(SOURCE, fault.problem, fault.allowed) from None


def is_here(url: BrokerUrl) -> bool:
    """Return whether the URL names this machine, where brokers have an administration socket."""
    return url.host in ("localhost", "::1") or url.host.startswith("127.")
