"""Options of a connection, its URL (``amqp://user:password@host:port/vhost``), addresses, and time-outs.

Arguments that no frame can carry are refused where the program passes them: in the output, which is encoded
when it is written, they would break the connection for all.

A password with a raw ``/``, ``?`` or ``#`` shifts everything behind it. Such a URL is refused, and an error
shows nothing that could be a part of a password.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final, Self
from urllib.parse import quote, unquote

from amqp10broker.client.errors import PORT_MAX, TimedOutError, TlsError, place_of
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.errors import EncodeError
from amqp10broker.protocols.amqp10.performatives import Accepted, Modified, Rejected, Released
from amqp10broker.protocols.amqp10.types import Symbol

UINT_MAX: Final = 4_294_967_295
ULONG_MAX: Final = 18_446_744_073_709_551_615


def check_integer(name: str, value: int, least: int, most: int) -> None:
    if not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; give an integer from {least} to {most}")


def check_text(name: str, value: str | None) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}; give a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has half a character in it, a lone surrogate: give Unicode text") from error


def fields(name: str, given: Mapping[str, Any] | None) -> dict[Symbol, Any] | None:
    """Make a map of the type `fields` (part 2, section 2.8.15)."""
    if given is None:
        return None
    made: dict[Symbol, Any] = {}
    for key, value in given.items():
        try:
            made[Symbol(key)] = value
            encode(value)
        except (EncodeError, AttributeError) as error:
            raise ValueError(f"{name} has {key!r}: {value!r}, which cannot be sent: {error}") from error
    return made


def check_outcome(outcome: Any) -> None:
    match outcome:
        case Accepted() | Released():
            return
        case Rejected() | Modified():
            try:
                encode(outcome)
            except EncodeError as error:
                raise ValueError(f"outcome is {outcome!r}, which cannot be sent: {error}") from error
        case _:
            raise ValueError(
                f"outcome is {outcome!r}; give ACCEPTED, RELEASED, rejected(...) or modified(...) of "
                "amqp10broker.client.links"
            )


TIMEOUT_S: Final = 30.0
"""Default of every wait for the broker."""
CLOSE_TIMEOUT_S: Final = 5.0
"""The time after which the socket is closed in any case."""
IN_FLIGHT_MAX: Final = 1024
"""Default of messages without outcome; more than the broker's default credit."""
CREDIT: Final = 100
READ_BYTES: Final = 262_144

_container_numbers = itertools.count(1)


def made_up_container_id() -> str:
    return f"amqp10broker-client@{socket.gethostname()}-{os.getpid()}-{next(_container_numbers)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of a connection. Raises `ValueError` if one fits no frame."""

    container_id: str = field(default_factory=made_up_container_id)
    """Identifies this program; must be unique, because link names are scoped by it."""
    hostname: str | None = None
    """``vhost:NAME`` selects a virtual host. None: `connect` takes the host's name."""
    frame_size_max_bytes: int = 1_048_576
    """Largest frame that the client accepts, at least 512."""
    channel_max: int = 255
    handle_max: int = 4_294_967_295
    """Number of links of a session less one."""
    incoming_window: int = 2048
    """Transfer frames in transit to one session; re-opened at half."""
    idle_timeout_ms: int = 60_000
    """Silence of the broker after which the connection counts as lost; 0 for never."""
    properties: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_text("container_id", self.container_id)
        check_text("hostname", self.hostname)
        check_integer("frame_size_max_bytes", self.frame_size_max_bytes, 512, UINT_MAX)
        check_integer("channel_max", self.channel_max, 0, 65_535)
        check_integer("handle_max", self.handle_max, 0, UINT_MAX)
        check_integer("incoming_window", self.incoming_window, 1, UINT_MAX)
        check_integer("idle_timeout_ms", self.idle_timeout_ms, 0, UINT_MAX)
        fields("properties", self.properties)

    def to_host(self, host: str) -> Self:
        return self if self.hostname is not None else replace(self, hostname=host)


WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""A socket has no data, or no room. To be caught before OSError."""


def check_port(port: int) -> None:
    """Check a port. Sockets also accept a number above 65535, and use its lower 16 bits."""
    if not 0 < port <= PORT_MAX:
        raise ValueError(f"port is {port}")


def with_tls(sock: socket.socket, context: ssl.SSLContext, host: str, port: int) -> ssl.SSLSocket:
    """Do the TLS handshake within the socket's time-out. A failure closes the socket."""
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except TimeoutError as error:
        sock.close()
        raise TimedOutError(
            f"TLS handshake with {place_of(host, port)}",
            sock.gettimeout() or 0.0,
            "is that the broker's TLS port?",
        ) from error
    except OSError as error:
        sock.close()
        raise tls_failed(host, port, error) from error


def tls_failed(host: str, port: int, error: OSError) -> TlsError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(
            f"the certificate of {place_of(host, port)} is not trusted: {error.verify_message}; give the "
            "certificate of the authority that signed it, and the host name that stands in it"
        )
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    return TlsError(
        f"no TLS with {place_of(host, port)}: {reason}; is that the broker's TLS port, and does the broker "
        "ask for a client certificate?"
    )


def receive_some(sock: socket.socket) -> bytes:
    """Read. Raises one of `WOULD_BLOCK` if nothing has arrived; returns nothing at the end of the stream."""
    data = sock.recv(READ_BYTES)
    if not isinstance(sock, ssl.SSLSocket) or not data:
        return data
    # A TLS record has 16 KiB at most, and no selector reports data that OpenSSL has decrypted already.
    pieces = [data]
    size = len(data)
    while size < READ_BYTES or sock.pending():
        try:
            data = sock.recv(READ_BYTES)
        except (*WOULD_BLOCK, OSError):
            break  # the next call gets the same error
        if not data:
            break
        pieces.append(data)
        size += len(data)
    return b"".join(pieces)


PORT: Final = 5672
PORT_TLS: Final = 5671
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
    """Parse an ``amqp://`` or ``amqps://`` URL. Raises `UrlError`, which never shows a password."""
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
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= PORT_MAX:
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
    """Return the link address of a queue or stream."""
    return f"/queues/{quote(queue, safe='')}"


def exchange_address(exchange: str, routing_key: str) -> str:
    if not exchange:
        return queue_address(routing_key)
    if not routing_key:
        return f"/exchanges/{quote(exchange, safe='')}"
    return f"/exchanges/{quote(exchange, safe='')}/{quote(routing_key, safe='')}"
