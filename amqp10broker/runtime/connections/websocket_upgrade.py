"""Where a connection of HTTP becomes one of AMQP: at the HTTP port, and by a setting at that of AMQP."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from http import HTTPStatus
from typing import Final, TypeAlias

from amqp10broker.api.messages import HttpRequest, HttpResponse, RequestRefused
from amqp10broker.api.websocket import accept
from amqp10broker.auth.login import Peer
from amqp10broker.config import Config
from amqp10broker.protocols.websocket import WebSocketLayer
from amqp10broker.runtime.connections.socket_transport import Stream
from amqp10broker.runtime.connections.websocket_transport import WebSocketTransport
from amqp10broker.runtime.http.http_connection import HttpConnection, HttpLimits, ReadBody, RunRequest

PIECE_OF_FRAMES: Final = 2
"""How many of the largest AMQP frames a message, or a fragment of one, may be as large as."""

NO_BODY: Final = HttpLimits(body_bytes=0)

Came: TypeAlias = tuple[WebSocketTransport, Peer]


class WebSocketDoor:
    """Serves a connection's requests until it is over, or is a WebSocket."""

    def __init__(self, config: Config, has_room: Callable[[], bool]) -> None:
        self._config = config
        self._has_room = has_room
        self._origins = {each.strip() for each in config.websocket_origins.split(",")}
        self._foreign = False

    async def serve(
        self,
        stream: Stream,
        peer: str,
        origin: Peer,
        *,
        run: RunRequest,
        limits: HttpLimits = NO_BODY,
        first_bytes: bytes = b"",
    ) -> Came | None:
        """Answer requests; the stream is closed when there is none to come.

        Returns:
            None; or the WebSocket, and what is known of the client then.
        """
        rest = await HttpConnection(stream, peer, run, limits, self._switch, first_bytes).serve()
        if rest is None:
            return None
        layer = WebSocketLayer(PIECE_OF_FRAMES * self._config.max_frame_size_bytes)
        # A page that anybody may have written runs on this machine too, and knows the password of guest.
        loopback = origin.loopback and not self._foreign
        return WebSocketTransport(stream, layer, rest), replace(
            origin, loopback=loopback, transport="websocket"
        )

    def _switch(self, request: HttpRequest) -> Iterable[tuple[str, str]]:
        accepted = accept(request, self._origins)
        if not self._has_room():
            reason = "the broker takes no more connections at present"
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", reason)
        self._foreign = accepted.foreign
        return accepted.headers


async def only_websocket(_: HttpRequest, __: ReadBody) -> HttpResponse:
    """The answer to a request at a port where there is nothing but WebSocket."""
    refusal = RequestRefused(
        HTTPStatus.UPGRADE_REQUIRED,
        "upgrade_required",
        "at this port is AMQP, also over WebSocket; the HTTP API has a port of its own",
    )
    return refusal.answer.with_headers(("upgrade", "websocket"), ("connection", "close"))
