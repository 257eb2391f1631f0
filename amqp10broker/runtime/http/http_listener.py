"""The HTTP port: bound with the others, served as long as clients are."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import trio

from amqp10broker.auth.login import Peer, turn_address
from amqp10broker.auth.tls import CertificateUser, certificate_user
from amqp10broker.config import Config
from amqp10broker.errors import ConfigError
from amqp10broker.runtime.admin.node import Administered
from amqp10broker.runtime.connections.sockets import (
    Address,
    SocketTransport,
    Stream,
    accept_forever,
    addresses_of,
    is_loopback,
    listen,
    open_sockets,
    peer_text,
)
from amqp10broker.runtime.log import Log

if TYPE_CHECKING:
    from amqp10broker.runtime.http.http_api import HttpApi

_log = Log("amqp10broker.http")


class HttpListener:
    def __init__(self, on_client: Callable[[], None] = lambda: None, *, metrics: bool = False) -> None:
        self._metrics = metrics
        self._what, self._setting = ("metrics", "prometheus_port") if metrics else ("HTTP API", "http_port")
        self._on_client = on_client
        self.addresses: list[Address] = []
        self.serving = 0
        self._sockets: list[socket.socket] = []
        self._tls: ssl.SSLContext | None = None
        self._open = 0
        self._api: HttpApi | None = None
        self._nursery: trio.Nursery | None = None

    async def bind(self, config: Config, tls: ssl.SSLContext | None) -> None:
        """Bind to the address of the configuration, if it has one. `tls`: context of the TLS listener; None
        without one. Raises `ConfigError` if it cannot be served, and is not optional.
        """
        port = config.prometheus_port if self._metrics else config.http_port
        if not config.http or port is None or (self._metrics and not config.prometheus):
            return
        try:
            if config.http_tls:
                if tls is None:
                    raise ConfigError(
                        "http_tls", "is on without a certificate", "give one with tls_certificate"
                    )
                self._tls = tls
            self._sockets = await _bound(config, self._setting, port)
        except ConfigError as error:
            self._may_lack(config, error)
        if self._sockets:
            # Before clients come: they are served by these alone.
            import_module("amqp10broker.runtime.http.http_api")
            if config.websocket and not self._metrics:
                import_module("amqp10broker.protocols.websocket")
        self.addresses = addresses_of(self._sockets)

    async def run(self, broker: Administered) -> None:
        def taken(sock: socket.socket, address: Address) -> None:
            turned_away = broker.logins.turns_away(turn_address(address[0]))
            if turned_away or self._open >= broker.config.http_connection_max:
                sock.close()
                return
            self._open += 1
            nursery.start_soon(self._serve, broker, sock, address)

        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for sock in self._sockets:
                try:
                    listen(sock, self._setting)
                except ConfigError as error:
                    self._may_lack(broker.config, error)
                    self.addresses.remove(sock.getsockname()[:2])
                    continue
                nursery.start_soon(
                    accept_forever,
                    sock,
                    taken,
                    lambda error: _log.error("cannot accept an HTTP connection", reason=str(error)),
                )
            if self.addresses:
                # A URL to open, and to copy into a client: one of all addresses.
                scheme = "http" if self._tls is None else "https"
                _log.info(self._what, address=f"{scheme}://{peer_text(self.addresses[0])}/")
            # What requests begin runs here, also those that come over no socket of ours.
            await trio.sleep_forever()

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None, "it does not run"
        self._nursery.start_soon(work)

    def _may_lack(self, config: Config, error: ConfigError) -> None:
        if not (config.prometheus_optional if self._metrics else config.http_optional):
            raise error
        _log.warning(f"no {self._what}", reason=str(error))

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()

    async def _serve(self, broker: Administered, sock: socket.socket, address: Address) -> None:
        peer = peer_text(address)
        run_inline = False
        try:
            run_inline = await self._serve_socket(broker, sock, address, peer)
        except (OSError, trio.BrokenResourceError) as error:
            _log.debug("HTTP connection lost", peer=peer, reason=str(error.__cause__ or error))
        except Exception as error:
            _log.error("HTTP connection failed by a fault in the broker", peer=peer, exc_info=error)
        finally:
            self._open -= 1
            if not run_inline:
                sock.close()

    async def _serve_socket(
        self, broker: Administered, sock: socket.socket, address: Address, peer: str
    ) -> bool:
        origin = Peer(
            *(is_loopback(address[0]), turn_address(address[0])),
            tls=self._tls is not None,
            local=peer_text(sock.getsockname()[:2]),
        )
        if self._tls is None:
            return await self.serve_stream(broker, SocketTransport(sock), peer, origin)
        stream = trio.SSLStream(
            trio.SocketStream(trio.socket.from_stdlib_socket(sock)),
            self._tls,
            server_side=True,
            https_compatible=True,
        )
        with trio.move_on_after(broker.config.handshake_timeout_ms / 1000) as limit:
            await stream.do_handshake()
        if limit.cancelled_caught:
            return False
        user = certificate_user(stream.getpeercert(), CertificateUser(broker.config.tls_user_from))
        return await self.serve_stream(broker, stream, peer, replace(origin, certificate_user=user))

    async def serve_stream(self, broker: Administered, stream: Stream, peer: str, origin: Peer) -> bool:
        """Serve any stream as a client's HTTP connection. `stream`: the transport; closed when this returns,
        unless it goes on as a connection of AMQP.
        """
        from amqp10broker.runtime.http.http_api import HttpApi
        from amqp10broker.runtime.http.http_connection import HttpConnection, serve_until_websocket

        if self._api is None:
            self._api = HttpApi(broker, self._start, metrics=self._metrics)
        limits, answering = self._api.limits, partial(self._api.answer, origin, peer)
        broker_listeners = broker.broker_listeners
        self.serving += 1
        self._on_client()
        try:
            if self._metrics or broker_listeners is None or not broker.config.websocket:
                await HttpConnection(stream, peer, answering, limits).serve()
                return False
            has_room = partial(broker_listeners.has_room_for, peer, origin.address)
            came = await serve_until_websocket(
                *(broker.config, has_room, stream, peer, origin), run=answering, limits=limits
            )
            if came is None:
                return False
            websocket, origin = came
            broker_listeners.take(websocket, peer, origin)
            return True
        finally:
            self.serving -= 1


async def _bound(config: Config, setting: str, port: int) -> list[socket.socket]:
    host = config.http_host or config.host
    try:
        return await open_sockets(host, port)
    except OSError as error:
        off = "metrics off with --no-prometheus" if "prometheus" in setting else "HTTP off with --no-http"
        raise ConfigError(
            setting,
            f"{port} on {host} cannot be used: {error.strerror or error}",
            f"choose another, 0 for any free one, or turn {off}",
        ) from error
