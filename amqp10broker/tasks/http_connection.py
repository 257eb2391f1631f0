"""One HTTP connection: requests in by an engine without I/O (h11), answers out, in their order.

A client that sends its head or body slowly, takes its answer slowly, or says nothing, is let go.
What is no HTTP is answered as the engine says, once, and then nothing more is read as a request: behind it
may stand a request that another server in front has not seen (ADR 0064).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, TypeAlias

import h11
import trio

from amqp10broker.dataclass import dataclass
from amqp10broker.http.front import BODY_BYTES_MAX, check_framing, compressed, too_large, wants_gzip
from amqp10broker.http.messages import Answer, Feed, Refused, Request
from amqp10broker.http.refusals import fault
from amqp10broker.http.websocket import asks_for_websocket
from amqp10broker.tasks.connection_lifecycle import CLOSE_WAIT_S, READ_BYTES
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.socket_transport import Stream

_log = Log("amqp10broker.http")

HEAD_BYTES_MAX: Final = 16_384
"""Of a request's line and headers; names of 255 characters need 2 kB of path."""
PACKED_HERE_BYTES_MAX: Final = 65_536
"""A larger body is packed in a thread: a millisecond of everybody's time is enough."""
PIECE_BYTES: Final = 262_144
"""Of an answer, that go out at a time."""

RunRequest: TypeAlias = Callable[[Request], Awaitable[Answer]]
Switch: TypeAlias = Callable[[Request], Iterable[tuple[str, str]]]
"""Gives the headers of the answer to a request for a WebSocket; raises `Refused` if there is none."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a client may take its time for, in seconds, and the size of what it sends.

    Attributes:
        idle_s: between two requests.
        head_s: from a head's first byte to its last.
        body_s: for a body.
        write_s: for taking an answer.
        body_bytes: of a request.
    """

    idle_s: float = 60.0
    head_s: float = 10.0
    body_s: float = 60.0
    write_s: float = 60.0
    body_bytes: int = BODY_BYTES_MAX


class _Gone(Exception):
    """The client has closed, lost or outstayed its connection."""


class HttpConnection:
    """A client of the HTTP listener."""

    def __init__(
        self,
        stream: Stream,
        peer: str,
        run: RunRequest,
        limits: HttpLimits,
        switch: Switch | None = None,
        first_bytes: bytes = b"",
    ) -> None:
        """Take a connection.

        Args:
            stream: to the client.
            peer: its address, for the log.
            run: answers a request.
            limits: of time and size.
            switch: to WebSocket; None: what asks for that is a request like others.
            first_bytes: what was read from the stream already.
        """
        self._stream = stream
        self._peer = peer
        self._run = run
        self._limits = limits
        self._engine = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._switch = switch
        self._switched = False
        if first_bytes:
            self._engine.receive_data(first_bytes)

    async def serve(self) -> bytes | None:
        """Answer until the connection is over; the stream is closed then.

        Returns:
            None; or, of a stream that is a WebSocket from now on and open, what was read of that.
        """
        try:
            while await self._serve_one():
                self._engine.start_next_cycle()
            if self._switched:
                return bytes(self._engine.trailing_data[0])
            # Closed with something unread, the kernel would take our last answer back.
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
        """One request and its answer; whether another one may follow."""
        head: h11.Request | None = None
        try:
            head = await self._head()
            check_framing(list(head.headers), head.http_version, self._limits.body_bytes)
            body = await self._body()
            request = Request.read(head.method, head.target, list(head.headers), body)
            if self._switch is not None and asks_for_websocket(list(head.headers), head.http_version):
                await self._go_over(self._switch(request))
                return False
            answer = await self._answer(request)
        except h11.RemoteProtocolError as error:
            reason = f"this is no request of HTTP/1.1: {error}"
            answer = Refused(error.error_status_hint, "bad_request", reason).answer
        except Refused as refusal:
            answer = refusal.answer
        if answer.feed is not None:
            await self._send_feed(answer, answer.feed)
            return False
        await self._send(answer, bodyless=head is not None and head.method == b"HEAD")
        return self._engine.our_state is h11.DONE and self._engine.their_state is h11.DONE

    # --- in -----------------------------------------------------------------------------------------

    async def _head(self) -> h11.Request:
        """The next request's line and headers.

        Raises:
            h11.RemoteProtocolError: it is no HTTP.
            Refused: 408, it took too long.
            _Gone: there is no next one.
        """
        event = self._engine.next_event()
        if event is h11.NEED_DATA and not self._engine.trailing_data[0]:
            with trio.move_on_after(self._limits.idle_s) as idle:
                await self._receive()
            if idle.cancelled_caught:
                raise _Gone("idle")
            event = self._engine.next_event()
        with trio.move_on_after(self._limits.head_s):
            while event is h11.NEED_DATA:
                await self._receive()
                event = self._engine.next_event()
            if not isinstance(event, h11.Request):
                raise _Gone("closed by the client")
            # The engine looks at heads that come in parts alone.
            size = len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers)
            if size > HEAD_BYTES_MAX:
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                raise Refused(status, "bad_request", f"the headers have more than {HEAD_BYTES_MAX} bytes")
            return event
        raise _too_slow("its line and headers", self._limits.head_s)

    async def _body(self) -> bytes:
        """The request's body.

        Raises:
            h11.RemoteProtocolError: it is not as its headers say.
            Refused: it is too large, or took too long.
            _Gone: it was not all.
        """
        parts: list[bytes] = []
        size = 0
        with trio.move_on_after(self._limits.body_s):
            while True:
                event = self._engine.next_event()
                if event is h11.NEED_DATA:
                    if self._engine.they_are_waiting_for_100_continue:
                        go_on = h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[])
                        await self._stream.send_all(self._engine.send(go_on) or b"")
                    await self._receive()
                elif isinstance(event, h11.Data):
                    size += len(event.data)
                    if size > self._limits.body_bytes:
                        raise too_large(self._limits.body_bytes)
                    parts.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    return b"".join(parts)
                else:
                    raise _Gone("closed by the client")
        raise _too_slow("its body", self._limits.body_s)

    async def _receive(self) -> None:
        self._engine.receive_data(await self._stream.receive_some(READ_BYTES))

    # --- out ----------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Answer:
        try:
            answer = await self._run(request)
        except Refused:
            raise
        except Exception as error:
            _log.error("request failed by a fault in the broker", peer=self._peer, exc_info=error)
            return fault(error).answer
        if not wants_gzip(request, answer):
            return answer
        if len(answer.body) <= PACKED_HERE_BYTES_MAX:
            return compressed(answer)
        return await trio.to_thread.run_sync(compressed, answer)

    async def _send(self, answer: Answer, *, bodyless: bool) -> None:
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
        """An answer as it goes out: a long one is not copied as a whole, and others run between its parts."""
        engine = self._engine
        data = engine.send(head) or b""
        for start in range(0, len(body), PIECE_BYTES):
            if start:
                yield data
                data = b""
            data += engine.send(h11.Data(data=body[start : start + PIECE_BYTES])) or b""
        yield data + (engine.send(h11.EndOfMessage()) or b"")

    async def _send_feed(self, answer: Answer, feed: Feed) -> None:
        """Send an answer while it is made, until it ends or the client goes.

        What the client sends meanwhile is dropped: the connection ends with this answer.
        """
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
                except (_Gone, trio.BrokenResourceError, trio.ClosedResourceError) as error:
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
            for piece in pieces:
                await self._stream.send_all(piece)
        if limit.cancelled_caught:
            raise _Gone("the client does not take its answer")


def _too_slow(what: str, seconds: float) -> Refused:
    return Refused(
        HTTPStatus.REQUEST_TIMEOUT,
        "request_timeout",
        f"{what} did not come within {seconds:g} s: send faster",
    )
