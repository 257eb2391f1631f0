"""The option `url`: where the broker is, and perhaps who we are. Pure.

A password with a raw ``/``, ``?`` or ``#`` shifts everything behind it. Such a text is refused rather than
guessed at, and an error shows nothing that could be a piece of a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import unquote

from amqp10broker.spark.errors import OptionError
from amqp10broker.spark.option_values import secret_value, shortened

PORT: Final = 5672
PORT_TLS: Final = 5671
_PORT_MAX: Final = 65_535
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_NO_HOST: Final = re.compile(r"[\s%\[\]\\<>^`{|}\"]")
_PORT: Final = re.compile("[0-9]{1,5}")
_URL_FORM: Final = "must be amqp://host:port, amqps://user:password@host:port/vhost or the like"


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of the option `url`, percent-encoding removed; None for what it does not say."""

    host: str
    port: int
    tls: bool
    username: str | None
    password: str | None = field(repr=False)
    vhost: str | None


def parse_url(name: str, text: str) -> Url:
    """``amqp://`` or ``amqps://``, user and password, host, port, virtual host: all but the host may lack.

    What is refused is shown only as far as it can hold no password, whatever its writer forgot to encode.
    """
    written = text.strip()
    if _CONTROL.search(written):
        raise OptionError(name, "has a line break or another control character in it", _URL_FORM)
    scheme, mark, rest = written.partition("://")
    scheme = scheme.lower()
    if not mark or scheme not in ("amqp", "amqps"):
        problem = "does not begin so" if "@" in written else f"is '{shortened(written)}'"
        raise OptionError(name, problem, _URL_FORM)
    authority, _, path = rest.partition("/")
    if "@" in path:
        raise OptionError(
            name,
            "has an '@' behind its first '/'",
            f"{_URL_FORM}; write '/' of a password as %2F, and '@' of a virtual host as %40",
        )
    if "?" in rest or "#" in rest:
        raise OptionError(
            name,
            "has a query or fragment",
            f"{_URL_FORM}; write '?' and '#' of a password as %3F and %23, and settings as options",
        )
    userinfo, is_there, place = authority.rpartition("@")
    username, has_password, password = userinfo.partition(":")
    if "/" in path:
        raise OptionError(
            name, "has more than one '/' behind its host", f"{_URL_FORM}; the virtual host '/' is written %2F"
        )
    tls = scheme == "amqps"
    host, port = _host_and_port(name, place)
    return Url(
        host=host,
        port=(PORT_TLS if tls else PORT) if port is None else port,
        tls=tls,
        username=_decoded(name, username) if is_there else None,
        password=_decoded(name, password) if has_password else None,
        vhost=_decoded(name, path) or None,
    )


def _host_and_port(name: str, place: str) -> tuple[str, int | None]:
    """The host, of an IPv6 address without its brackets; and the port, if there is one."""
    if "," in place:
        raise OptionError(
            name,
            "names several addresses",
            f"{_URL_FORM}: one address is wanted, of any node of a cluster or of what stands in front of it",
        )
    if place.startswith("["):
        quoted, bracket, behind = place[1:].partition("]")
        host = unquote(quoted)  # a scope is written fe80::1%25eth0
        if not bracket or not _is_ipv6(host) or behind[:1] not in ("", ":"):
            raise OptionError(name, "has a malformed IPv6 address", f"{_URL_FORM}, amqp://[::1]:5672")
        port = behind[1:]
    elif place.count(":") > 1:
        raise OptionError(
            name,
            "has several ':' in host and port",
            f"{_URL_FORM}; an IPv6 address stands in brackets, amqp://[::1]:5672",
        )
    else:
        host, _, port = place.lower().partition(":")
        if not host:
            raise OptionError(name, "names no host", _URL_FORM)
        if not _is_host(host):
            raise OptionError(
                name, f"names the host '{shortened(host)}', and none can be called so", _URL_FORM
            )
    if not port:
        return host, None
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= _PORT_MAX:
        raise OptionError(
            name,
            "has something else than a number from 1 to 65535 as its port",
            f"{_URL_FORM}; without port it is {PORT}, with amqps {PORT_TLS}",
        )
    return host, int(port)


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def _is_host(host: str) -> bool:
    """Whether it can be asked for at all; sockets raise UnicodeError for what is none."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return not _NO_HOST.search(host)


def _decoded(name: str, part: str) -> str:
    try:
        decoded = unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise OptionError(
            name, "has percent-encoded bytes that are no UTF-8", f"{_URL_FORM}; encode letters as UTF-8"
        ) from None
    return secret_value(name, decoded)


__all__ = ["PORT", "PORT_TLS", "Url", "parse_url"]
