"""The sockets that a broker listens on, and addresses as text."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import trio

from amqp10broker import portable
from amqp10broker.auth.tls import TlsSettings, Verify, server_context
from amqp10broker.config import Config
from amqp10broker.errors import ConfigError

BACKLOG: Final = 1024
OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
OUT_OF_FILES_PAUSE_S: Final = 0.1
FREE_PORT_ATTEMPTS: Final = 20
_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

Address: TypeAlias = tuple[str, int]


class BoundSockets:
    """The sockets of one broker: bound first, so that a wrong port is reported at once, and listening last.
    `tls`: their context; None without TLS.
    """

    def __init__(self) -> None:
        self.plain: list[socket.socket] = []
        self.encrypted: list[socket.socket] = []
        self.tls: ssl.SSLContext | None = None

    async def bind(self, config: Config) -> None:
        """Bind to the addresses of the configuration; the kernel refuses clients until `listen`. Raises
        `OSError` if the address cannot be used, and `ConfigError` if the one for TLS cannot, or one of its
        files.
        """
        self.tls = _tls_context(config)
        self.plain = await open_sockets(config.host, config.port)
        if self.tls is None:
            return
        try:
            self.encrypted = await open_sockets(config.host, config.tls_port)
        except OSError as error:
            raise ConfigError(
                "tls_port",
                f"{config.tls_port} on {config.host} cannot be used: {error.strerror or error}",
                "choose another, 0 for any free one",
            ) from error

    def listen(self) -> None:
        """Accept clients. Raises `ConfigError` as `listen`."""
        for setting, sockets in (("port", self.plain), ("tls_port", self.encrypted)):
            for sock in sockets:
                listen(sock, setting)

    def close(self) -> None:
        for sock in (*self.plain, *self.encrypted):
            sock.close()


async def accept_forever(
    listener: socket.socket,
    taken: Callable[[socket.socket, Address], None],
    on_out_of_files: Callable[[OSError], None],
) -> None:
    """Accept connections until cancelled, or until the socket is closed. `on_out_of_files`: called each time
    that no connection could be accepted for lack of files or memory.
    """
    while listener.fileno() >= 0:  # it is closed when the broker stops, perhaps before this has begun
        try:
            await trio.lowlevel.wait_readable(listener)
            if listener.fileno() < 0:
                return
            sock, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            continue
        except OSError as error:
            if error.errno not in OUT_OF_FILES:
                raise
            # Nothing is lost: the connection waits in the backlog until a file is free.
            on_out_of_files(error)
            await trio.sleep(OUT_OF_FILES_PAUSE_S)
            continue
        taken(sock, address)


def addresses_of(sockets: list[socket.socket]) -> list[Address]:
    return [sock.getsockname()[:2] for sock in sockets]


def _tls_context(config: Config) -> ssl.SSLContext | None:
    if config.tls_certificate is None:
        return None
    return server_context(
        TlsSettings(
            certificate_file=config.tls_certificate,
            key_file=config.tls_key,
            key_password=config.tls_key_password,
            ca_file=config.tls_ca,
            verify=Verify(config.tls_verify),
            minimum_version=config.tls_minimum_version,
        )
    )


async def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Bind to every address that the host name has; the kernel refuses clients until the caller listens.

    IPv4 comes first. ``localhost`` is ``127.0.0.1`` and ``::1`` (RFC 6761), whatever the file of hosts says.
    Of several addresses those that this machine does not have are left out. Raises `OSError` if an address
    cannot be used, or none is there.
    """
    addresses: list[tuple[int, tuple[Any, ...]]]
    if host == "localhost":
        addresses = [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET6, ("::1", port, 0, 0))]
    else:
        infos = await trio.socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in sorted(infos)))
    attempts = FREE_PORT_ATTEMPTS if port == 0 else 1
    while True:
        attempts -= 1
        try:
            return _bound(addresses)
        except OSError as error:
            # A port that is free at the first address may be taken at another.
            if not attempts or error.errno != errno.EADDRINUSE:
                raise


def _bound(addresses: Sequence[tuple[int, tuple[Any, ...]]]) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in addresses:
            if sockets:  # one number for all addresses
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            try:
                sockets.append(_bound_to(family, address))
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                missing = error
        if not sockets and missing is not None:
            raise missing
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bound_to(family: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, portable.REUSE_ADDRESS, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def listen(sock: socket.socket, setting: str) -> None:
    """Accept clients at a bound socket. Raises `ConfigError` if another program listens there, since two may
    bind to one address.
    """
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        address = peer_text(sock.getsockname()[:2])
        raise ConfigError(
            setting,
            f"cannot be used at {address}: {error.strerror or error}",
            "choose another, 0 for any free one, or end what listens there",
        ) from error


def peer_text(address: tuple[str, int]) -> str:
    """An address as logs and status show it."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a client's address is this machine's own."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
