"""Parser of ``amqp://user:password@host:port/vhost``, and addresses of queues and exchanges.

A password with a raw ``/``, ``?`` or ``#`` shifts everything behind it. Such a URL is refused rather than
guessed at, and an error shows nothing that could be a piece of a password.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Final
from urllib.parse import quote, unquote

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError

PORT: Final = 5672
PORT_TLS: Final = 5671
_PORT_MAX: Final = 65_535
_SHOWN_MAX: Final = 100
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NO_HOST: Final = re.compile(r"[\s%\[\]\\<>^`{|}\"]")
_PORT: Final = re.compile("[0-9]{1,5}")
_FORM: Final = "must be amqp://host:port, amqps://user:password@host:port/vhost or the like"


class UrlError(BrokerError):
    """The URL cannot be used. `allowed`: accepted forms, as a clause: "must be amqp://host:port"."""

    def __init__(self, problem: str, allowed: str = _FORM) -> None:
        super().__init__(f"{problem}; {allowed}")
        self.problem = problem
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None = field(repr=False)
    vhost: str | None


def parse_url(text: str) -> BrokerUrl:
    """Parse an ``amqp://`` or ``amqps://`` URL. A refused one is shown only as far as it can hold no
    password, even if it was not percent-encoded. Raises `UrlError`.
    """
    written = text.strip()
    if _CONTROL.search(written):
        raise UrlError("has a line break or another control character in it")
    scheme, mark, rest = written.partition("://")
    scheme = scheme.lower()
    if not mark or scheme not in ("amqp", "amqps"):
        problem = "does not begin so" if "@" in written else f"is '{shortened(written)}'"
        raise UrlError(problem)
    authority, _, path = rest.partition("/")
    if "@" in path:
        raise UrlError(
            "has an '@' behind its first '/'",
            f"{_FORM}; write '/' of a password as %2F, and '@' of a virtual host as %40",
        )
    if "?" in rest or "#" in rest:
        raise UrlError(
            "has a query or fragment",
            f"{_FORM}; write '?' and '#' of a password as %3F and %23, and settings as options",
        )
    userinfo, is_there, place = authority.rpartition("@")
    user, has_password, password = userinfo.partition(":")
    if "/" in path:
        raise UrlError(
            "has more than one '/' behind its host", f"{_FORM}; the virtual host '/' is written %2F"
        )
    tls = scheme == "amqps"
    host, port = _host_and_port(place)
    return BrokerUrl(
        host=host,
        port=(PORT_TLS if tls else PORT) if port is None else port,
        tls=tls,
        user=_decoded(user) if is_there else None,
        password=_decoded(password) if has_password else None,
        vhost=_decoded(path) or None,
    )


def _host_and_port(place: str) -> tuple[str, int | None]:
    if "," in place:
        raise UrlError(
            "names several addresses",
            f"{_FORM}: one address is wanted, of any node of a cluster or of what stands in front of it",
        )
    if place.startswith("["):
        quoted, bracket, behind = place[1:].partition("]")
        host = unquote(quoted)  # a scope is written fe80::1%25eth0
        if not bracket or not _is_ipv6(host) or behind[:1] not in ("", ":"):
            raise UrlError("has a malformed IPv6 address", f"{_FORM}, amqp://[::1]:5672")
        port = behind[1:]
    elif place.count(":") > 1:
        raise UrlError(
            "has several ':' in host and port",
            f"{_FORM}; an IPv6 address stands in brackets, amqp://[::1]:5672",
        )
    else:
        host, _, port = place.lower().partition(":")
        if not host:
            raise UrlError("names no host")
        if not _is_host(host):
            raise UrlError(f"names the host '{shortened(host)}', and none can be called so", _FORM)
    if not port:
        return host, None
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= _PORT_MAX:
        raise UrlError(
            "has something else than a number from 1 to 65535 as its port",
            f"{_FORM}; without port it is {PORT}, with amqps {PORT_TLS}",
        )
    return host, int(port)


def _is_ipv6(host: str) -> bool:
    from ipaddress import IPv6Address

    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def _is_host(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return not _NO_HOST.search(host)


def _decoded(part: str) -> str:
    try:
        decoded = unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise UrlError(
            "has percent-encoded bytes that are no UTF-8", f"{_FORM}; encode letters as UTF-8"
        ) from None
    if fault := text_fault(decoded):
        raise fault
    return decoded


def text_fault(text: str) -> UrlError | None:
    if "\0" in text:
        return UrlError("has a character 0 in it", "leave it out")
    if _SURROGATE.search(text):
        return UrlError("has half a character in it, a lone surrogate", "give Unicode text")
    return None


def shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def queue_address(queue: str) -> str:
    """Return the link address of a queue or stream; attaching does not declare it."""
    return f"/queues/{quote(queue, safe='')}"


def exchange_address(exchange: str, routing_key: str) -> str:
    if not exchange:
        return queue_address(routing_key)
    if not routing_key:
        return f"/exchanges/{quote(exchange, safe='')}"
    return f"/exchanges/{quote(exchange, safe='')}/{quote(routing_key, safe='')}"
