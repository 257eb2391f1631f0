"""HTTP connections: requests are read by an engine without I/O (h11), and answered in their order.

The head of a request may be answered without its body, which is read when it is needed. A client is
disconnected if it sends its head or body slowly, reads its answer slowly, or is silent. Bytes that are not
HTTP are answered as the engine decides, once, and then nothing more is read as a request: behind them may be
a request that another server in front has not seen (ADR 0064).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import field, replace
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, TypeAlias

import h11
import trio

from amqp10broker.api.front import (
    BODY_BYTES_MAX,
    accept,
    asks_for_websocket,
    check_framing,
    compressed,
    too_large,
    wants_gzip,
)
from amqp10broker.api.messages import (
    Feed,
    HttpRequest,
    HttpResponse,
    ReadBody,
    RequestRefused,
    bad_request,
    fault,
)
from amqp10broker.auth.login import Peer
from amqp10broker.config import Config
from amqp10broker.dataclass import dataclass
from amqp10broker.runtime.connections.sockets import (
    CLOSE_WAIT_S,
    READ_BYTES,
    Stream,
    WebSocketTransport,
)
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.http")

HEAD_BYTES_MAX: Final = 16_384
"""The size of a request's line and headers; names of 255 characters need 2 kB of path."""
PACKED_HERE_BYTES_MAX: Final = 65_536
"""A larger body is compressed in a thread: a millisecond in the main loop is enough."""
PIECE_BYTES: Final = 262_144
"""The bytes of an answer that are sent at a time."""

HEADERS_MAX: Final = 200
"""The number of headers of a request; parsing a thousand takes some milliseconds."""
_HEAD_PIECE_BYTES: Final = 2_048
"""The bytes that the engine gets at a time, of heads, and between the chunks of a body."""
BETWEEN_CHUNKS_BYTES_MAX: Final = 4_096
"""The bytes of a chunk's size, or of the fields after the last chunk."""
_CHUNKS_FREE: Final = 1_000
CHUNK_BYTES_MIN: Final = 256
"""The average size that chunks beyond the first thousand must have: a smaller chunk takes as long as one of
this size.
"""
_CHUNKS_AT_A_TIME: Final = 100
BODIES_BYTES_MAX: Final = 67_108_864
"""The bytes of all bodies in memory, unless one alone may have more."""
STRANGERS_BYTES_MAX: Final = 1_048_576
"""Of those, the bytes of clients that are not logged in."""

RunRequest: TypeAlias = Callable[[HttpRequest, ReadBody], Awaitable[HttpResponse]]
"""Called with a request without its body."""
Switch: TypeAlias = Callable[[HttpRequest], Iterable[tuple[str, str]]]
"""Returns the headers of the answer to a request for a WebSocket; raises `RequestRefused` if there is
none.
"""


class Bodies:
    """Counts the bytes of bodies in memory: those of clients that are not logged in, and of all."""

    def __init__(self) -> None:
        self._strangers = 0
        self._all = 0

    def add(self, size: int, one_max: int, *, stranger: bool) -> None:
        """Count bytes that have come, or with a size below 0, that were released. Raises `RequestRefused`
        (503) if there are too many; they are counted then.
        """
        self._all += size
        if stranger:
            self._strangers += size
        if size > 0 and (
            self._all > max(BODIES_BYTES_MAX, one_max) or (stranger and self._strangers > STRANGERS_BYTES_MAX)
        ):
            reason = "the bodies of other requests fill the room that there is: try again later"
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", reason)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Time-outs, in seconds, and size limits of a client's input."""

    idle_s: float = 60.0
    head_s: float = 10.0
    body_s: float = 60.0
    write_s: float = 60.0
    body_bytes: int = BODY_BYTES_MAX
    bodies: Bodies = field(default_factory=lambda: Bodies())


class _Gone(Exception):
    """The client has closed or lost its connection, or exceeded a time limit."""


class HttpConnection:
    def __init__(
        self,
        stream: Stream,
        peer: str,
        run: RunRequest,
        limits: HttpLimits,
        switch: Switch | None = None,
        first_bytes: bytes = b"",
    ) -> None:
        """Create the connection. `switch`: to WebSocket; None: no upgrade is possible."""
        self._stream = stream
        self._peer = peer
        self._run = run
        self._limits = limits
        self._engine = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._switch = switch
        self._switched = False
        self._unread = memoryview(first_bytes)
        self._piece_bytes = READ_BYTES
        self._counted = 0
        self._stranger = False

    async def serve(self) -> bytes | None:
        """Answer requests until the connection is over; the stream is closed then. Returns None. If the
        stream becomes an open WebSocket, it returns the bytes that were read of that.
        """
        try:
            while await self._serve_one():
                self._engine.start_next_cycle()
                # One read may bring a thousand requests.
                await trio.lowlevel.checkpoint()
            if self._switched:
                return bytes(self._engine.trailing_data[0]) + bytes(self._unread)
            # If the socket was closed with unread bytes, the kernel would drop the last answer.
            with trio.move_on_after(CLOSE_WAIT_S):
                while await self._stream.receive_some(READ_BYTES):
                    pass
        except (_Gone, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            _log.debug("HTTP connection over", peer=self._peer, reason=str(error))
        finally:
            if not self._switched:
                with trio.CancelScope(shield=True):
                    await self._stream.aclose()
        return None

    async def _serve_one(self) -> bool:
        head: h11.Request | None = None
        try:
            head = await self._head()
            chunked = check_framing(list(head.headers), head.http_version, self._limits.body_bytes)
            self._piece_bytes = _HEAD_PIECE_BYTES if chunked else READ_BYTES
            upgrade = asks_for_websocket(list(head.headers), head.http_version)
            try:
                request = HttpRequest.read(head.method, head.target, list(head.headers))
                if self._switch is not None and upgrade:
                    await self._body(0)
                    await self._go_over(self._switch(request))
                    return False
                answer = await self._answer(request)
            except RequestRefused as refusal:
                answer = refusal.answer
            self._skip_body()
        except h11.RemoteProtocolError as error:
            reason = f"this is no request of HTTP/1.1: {error}"
            answer = RequestRefused(error.error_status_hint, "bad_request", reason).answer
        except RequestRefused as refusal:
            answer = refusal.answer
        finally:
            self._limits.bodies.add(-self._counted, self._limits.body_bytes, stranger=self._stranger)
            self._counted = 0
        if answer.feed is not None:
            await self._send_feed(answer, answer.feed)
            return False
        await self._send(answer, bodyless=head is not None and head.method == b"HEAD")
        return self._engine.our_state is h11.DONE and self._engine.their_state is h11.DONE

    # --- in -----------------------------------------------------------------------------------------

    async def _head(self) -> h11.Request:
        event = self._engine.next_event()
        if event is h11.NEED_DATA and not self._engine.trailing_data[0] and not self._unread:
            with trio.move_on_after(self._limits.idle_s) as idle:
                await self._read()
            if idle.cancelled_caught:
                raise _Gone("idle")
        lines = 0
        with trio.move_on_after(self._limits.head_s):
            while event is h11.NEED_DATA:
                if lines > HEADERS_MAX:
                    raise _too_many_headers()
                lines += (await self._receive(_HEAD_PIECE_BYTES)).count(b"\n")
                event = self._engine.next_event()
            if not isinstance(event, h11.Request):
                raise _Gone("closed by the client")
            if len(event.headers) > HEADERS_MAX:
                raise _too_many_headers()
            # The engine checks only heads that come in parts.
            size = len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers)
            if size > HEAD_BYTES_MAX:
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                raise RequestRefused(
                    status, "bad_request", f"the headers have more than {HEAD_BYTES_MAX} bytes"
                )
            return event
        raise _too_slow("its line and headers", self._limits.head_s)

    async def _body(self, stranger_bytes: int | None) -> bytes:
        stranger = stranger_bytes is not None
        most = self._limits.body_bytes if stranger_bytes is None else stranger_bytes
        self._stranger = stranger
        body = bytearray()
        chunks = between = 0
        with trio.move_on_after(self._limits.body_s):
            while True:
                event = self._engine.next_event()
                if event is h11.NEED_DATA:
                    if between > BETWEEN_CHUNKS_BYTES_MAX:
                        raise _bad_chunks(f"more than {BETWEEN_CHUNKS_BYTES_MAX} bytes are behind a chunk")
                    if self._engine.they_are_waiting_for_100_continue:
                        go_on = h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[])
                        await self._write([self._engine.send(go_on) or b""])
                    between += len(await self._receive(self._piece_bytes))
                elif isinstance(event, h11.Data):
                    self._counted += len(event.data)
                    self._limits.bodies.add(len(event.data), self._limits.body_bytes, stranger=stranger)
                    body += event.data
                    between = 0
                    if len(body) > most:
                        raise too_large(most)
                    if event.chunk_start:
                        chunks += 1
                        if chunks > _CHUNKS_FREE + len(body) // CHUNK_BYTES_MIN:
                            raise _bad_chunks(f"its chunks have less than {CHUNK_BYTES_MIN} bytes")
                        if chunks % _CHUNKS_AT_A_TIME == 0:
                            await trio.lowlevel.checkpoint()
                elif isinstance(event, h11.EndOfMessage):
                    return bytes(body)
                else:
                    raise _Gone("closed by the client")
        raise _too_slow("its body", self._limits.body_s)

    def _skip_body(self) -> None:
        try:
            for _ in range(_CHUNKS_AT_A_TIME):
                event = self._engine.next_event() if self._engine.their_state is h11.SEND_BODY else None
                if event is h11.NEED_DATA and self._unread:
                    self._hand_over(self._piece_bytes)
                elif not isinstance(event, h11.Data):
                    return
        except h11.RemoteProtocolError as error:
            _log.debug("HTTP body is none", peer=self._peer, reason=str(error))

    async def _receive(self, most: int) -> bytes:
        if not self._unread:
            await self._read()
        return self._hand_over(most)

    async def _read(self) -> None:
        try:
            self._unread = memoryview(await self._stream.receive_some(READ_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _Gone(str(error)) from error

    def _hand_over(self, most: int) -> bytes:
        piece, self._unread = bytes(self._unread[:most]), self._unread[most:]
        self._engine.receive_data(piece)
        return piece

    # --- out ----------------------------------------------------------------------------------------

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        try:
            answer = await self._run(request, self._body)
        except (RequestRefused, h11.RemoteProtocolError, _Gone):
            raise
        except Exception as error:
            _log.error("request failed by a fault in the broker", peer=self._peer, exc_info=error)
            return fault(error).answer
        if not wants_gzip(request, answer):
            return answer
        if len(answer.body) <= PACKED_HERE_BYTES_MAX:
            return compressed(answer)
        return await trio.to_thread.run_sync(compressed, answer)

    async def _send(self, answer: HttpResponse, *, bodyless: bool) -> None:
        headers = [(name, value) for name, value in answer.headers]
        headers.append(("date", formatdate(usegmt=True)))
        if answer.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            headers.append(("content-length", str(len(answer.body))))
        if self._engine.their_state is not h11.DONE:
            headers.append(("connection", "close"))
        reason = HTTPStatus(answer.status).phrase  # some clients show it instead of the status
        head = h11.Response(status_code=answer.status, headers=headers, reason=reason)
        await self._write(self._pieces(head, b"" if bodyless else answer.body))

    def _pieces(self, head: h11.Response, body: bytes) -> Iterator[bytes]:
        engine = self._engine
        data = engine.send(head) or b""
        for start in range(0, len(body), PIECE_BYTES):
            if start:
                yield data
                data = b""
            data += engine.send(h11.Data(data=body[start : start + PIECE_BYTES])) or b""
        yield data + (engine.send(h11.EndOfMessage()) or b"")

    async def _send_feed(self, answer: HttpResponse, feed: Feed) -> None:
        # Send an answer while it is made, until it ends or the client disconnects. Bytes that come meanwhile
        # are dropped: the connection ends with this answer.
        headers = [*answer.headers, ("date", formatdate(usegmt=True)), ("connection", "close")]
        engine = self._engine

        async def send(piece: bytes) -> None:
            await self._write([engine.send(h11.Data(data=piece)) or b""])

        async def hear(scope: trio.CancelScope) -> None:
            try:
                while await self._stream.receive_some(READ_BYTES):
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                _log.debug("HTTP client gone", peer=self._peer, reason=str(error))
            scope.cancel()

        try:
            await self._write([engine.send(h11.Response(status_code=answer.status, headers=headers)) or b""])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hear, nursery.cancel_scope)
                try:
                    await feed.run(send)
                    await self._write([engine.send(h11.EndOfMessage()) or b""])
                except _Gone as error:
                    _log.debug("HTTP stream over", peer=self._peer, reason=str(error))
                nursery.cancel_scope.cancel()
        finally:
            feed.close()

    async def _go_over(self, headers: Iterable[tuple[str, str]]) -> None:
        head = h11.InformationalResponse(status_code=HTTPStatus.SWITCHING_PROTOCOLS, headers=list(headers))
        await self._write([self._engine.send(head) or b""])
        self._switched = True

    async def _write(self, pieces: Iterable[bytes]) -> None:
        with trio.move_on_after(self._limits.write_s) as limit:
            try:
                for piece in pieces:
                    await self._stream.send_all(piece)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise _Gone(str(error)) from error
        if limit.cancelled_caught:
            raise _Gone("the client does not take its answer")


def _too_many_headers() -> RequestRefused:
    status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    return RequestRefused(status, "bad_request", f"there are more than {HEADERS_MAX} headers: send fewer")


def _bad_chunks(why: str) -> RequestRefused:
    return bad_request(f"the body is cut too small: {why}")


def _too_slow(what: str, seconds: float) -> RequestRefused:
    return RequestRefused(
        HTTPStatus.REQUEST_TIMEOUT,
        "request_timeout",
        f"{what} did not come within {seconds:g} s: send faster",
    )


PIECE_OF_FRAMES: Final = 2
"""The size of a message, or of a fragment, as a multiple of the largest AMQP frame."""

_NO_BODY: Final = HttpLimits(body_bytes=0)


async def serve_until_websocket(
    config: Config,
    has_room: Callable[[], bool],
    stream: Stream,
    peer: str,
    origin: Peer,
    *,
    run: RunRequest,
    limits: HttpLimits = _NO_BODY,
    first_bytes: bytes = b"",
) -> tuple[WebSocketTransport, Peer] | None:
    """Answer a connection's requests until it is over, or becomes a WebSocket. Returns None if the stream is
    closed; otherwise the WebSocket, and the properties of the client then.
    """
    origins = {each.strip() for each in config.websocket_origins.split(",")}
    foreign = False

    def switch(request: HttpRequest) -> Iterable[tuple[str, str]]:
        nonlocal foreign
        accepted = accept(request, origins)
        if not has_room():
            reason = "the broker takes no more connections at present"
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", reason)
        foreign = accepted.foreign
        return accepted.headers

    rest = await HttpConnection(stream, peer, run, limits, switch, first_bytes).serve()
    if rest is None:
        return None
    from amqp10broker.protocols.websocket import WebSocketLayer  # needs the extra

    layer = WebSocketLayer(PIECE_OF_FRAMES * config.max_frame_size_bytes)
    # A page of any author also runs on this machine, and can use the known password of guest.
    loopback = origin.loopback and not foreign
    return WebSocketTransport(stream, layer, rest), replace(origin, loopback=loopback, transport="websocket")


async def only_websocket(_: HttpRequest, __: ReadBody) -> HttpResponse:
    refusal = RequestRefused(
        HTTPStatus.UPGRADE_REQUIRED,
        "upgrade_required",
        "at this port is AMQP, also over WebSocket; the HTTP API has a port of its own",
    )
    return refusal.answer.with_headers(("upgrade", "websocket"), ("connection", "close"))
