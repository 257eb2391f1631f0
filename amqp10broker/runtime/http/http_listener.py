"""The ports of the HTTP API and of metrics."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import trio

from amqp10broker.api.messages import HttpRequest, HttpResponse, ReadBody
from amqp10broker.auth.login import Peer
from amqp10broker.auth.tls import CertificateUser, certificate_user
from amqp10broker.config import Config
from amqp10broker.errors import ConfigError
from amqp10broker.runtime.admin.serving_node import ServingContext
from amqp10broker.runtime.connections.sockets import (
    Address,
    SocketTransport,
    Stream,
    accept_forever,
    addresses_of,
    listen,
    open_sockets,
    origin_of,
    peer_text,
    tls_stream,
    turn_address,
)
from amqp10broker.runtime.log import Log

if TYPE_CHECKING:
    from amqp10broker.runtime.http.http_connection import HttpLimits

_log = Log("amqp10broker.http")


class HttpListener:
    """The HTTP port, or that of metrics: bound with the others, and served as long as clients are."""

    def __init__(self, on_client: Callable[[], None] = lambda: None, *, metrics: bool = False) -> None:
        self._metrics = metrics
        self._what, self._setting = ("metrics", "prometheus_port") if metrics else ("HTTP API", "http_port")
        self._on_client = on_client
        self.addresses: list[Address] = []
        self.serving = 0
        self._sockets: list[socket.socket] = []
        self._tls: ssl.SSLContext | None = None
        self._open = 0
        self._answer: Callable[[Peer, str, HttpRequest, ReadBody], Awaitable[HttpResponse]] | None = None
        self._limits: HttpLimits | None = None
        self._nursery: trio.Nursery | None = None

    async def bind(self, config: Config, tls: ssl.SSLContext | None) -> None:
        """Bind to the address of the configuration, if it has one. `tls`: context of the TLS listener. Raises
        `ConfigError` if it cannot be served, and is not optional.
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
            host = config.http_host or config.host
            try:
                self._sockets = await open_sockets(host, port)
            except OSError as error:
                off = "metrics off with --no-prometheus" if self._metrics else "HTTP off with --no-http"
                raise ConfigError(
                    self._setting,
                    f"{port} on {host} cannot be used: {error.strerror or error}",
                    f"choose another, 0 for any free one, or turn {off}",
                ) from error
        except ConfigError as error:
            self._may_lack(config, error)
        if self._sockets:
            # Modules are imported before clients come, because only clients of these ports use them.
            import_module("amqp10broker.runtime.http.http_api")
            import_module("amqp10broker.runtime.http.http_connection")
            if config.websocket and not self._metrics:
                import_module("amqp10broker.protocols.websocket")
        self.addresses = addresses_of(self._sockets)

    async def run(self, broker: ServingContext) -> None:
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
                # This is a URL to open, and to copy into a client: one of all addresses.
                scheme = "http" if self._tls is None else "https"
                _log.info(self._what, address=f"{scheme}://{peer_text(self.addresses[0])}/")
            # The tasks that requests start run here, even those of requests over other sockets.
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

    async def _serve(self, broker: ServingContext, sock: socket.socket, address: Address) -> None:
        peer = peer_text(address)
        goes_on = False
        try:
            origin = origin_of(sock, address, tls=self._tls is not None)
            stream: Stream
            if self._tls is None:
                stream = SocketTransport(sock)
            else:
                stream = tls_stream(sock, self._tls)
                with trio.move_on_after(broker.config.handshake_timeout_ms / 1000) as limit:
                    await stream.do_handshake()
                if limit.cancelled_caught:
                    return
                user = certificate_user(stream.getpeercert(), CertificateUser(broker.config.tls_user_from))
                origin = replace(origin, certificate_user=user)
            goes_on = await self.serve_stream(broker, stream, peer, origin)
        except (OSError, trio.BrokenResourceError) as error:
            _log.debug("HTTP connection lost", peer=peer, reason=str(error.__cause__ or error))
        except Exception as error:
            _log.error("HTTP connection failed by a fault in the broker", peer=peer, exc_info=error)
        finally:
            self._open -= 1
            if not goes_on:
                sock.close()

    async def serve_stream(self, broker: ServingContext, stream: Stream, peer: str, origin: Peer) -> bool:
        """Serve any stream as a client's HTTP connection. It is closed when this returns, unless it continues
        as a connection of AMQP.
        """
        # This imports h11 and the endpoints, half a megabyte that a broker without HTTP does not need.
        from amqp10broker.runtime.http.http_api import HttpApi
        from amqp10broker.runtime.http.http_connection import (
            HttpConnection,
            HttpLimits,
            serve_until_websocket,
        )

        if self._answer is None or self._limits is None:
            self._answer = HttpApi(broker, self._start, metrics=self._metrics).answer
            self._limits = HttpLimits(body_bytes=broker.config.http_body_bytes_max)
        limits, answering = self._limits, partial(self._answer, origin, peer)
        self.serving += 1
        self._on_client()
        try:
            if self._metrics or not broker.config.websocket:
                await HttpConnection(stream, peer, answering, limits).serve()
                return False
            has_room = partial(broker.listener.has_room_for, peer, origin.address)
            came = await serve_until_websocket(
                *(broker.config, has_room, stream, peer, origin), run=answering, limits=limits
            )
            if came is None:
                return False
            websocket, origin = came
            broker.listener.take(websocket, peer, origin)
            return True
        finally:
            self.serving -= 1
