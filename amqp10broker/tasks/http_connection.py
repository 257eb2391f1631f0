"""One HTTP connection: requests in by an engine without I/O (h11), answers out, in their order.

A client that sends its head or body slowly, takes its answer slowly, or says nothing, is let go.
What is no HTTP is answered as the engine says, once, and then nothing more is read as a request: behind it
may stand a request that another server in front has not seen (ADR 0064).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, TypeAlias

import h11
import trio

from amqp10broker.http.front import BODY_BYTES_MAX, compressed, too_large, wants_gzip
from amqp10broker.http.messages import Answer, Refused, Request
from amqp10broker.tasks.connection_lifecycle import CLOSE_WAIT_S, READ_BYTES
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.socket_transport import Stream

_log = Log("amqp10broker.http")

HEAD_BYTES_MAX: Final = 16_384
"""Of a request's line and headers; names of 255 characters need 2 kB of path."""
PACKED_HERE_BYTES_MAX: Final = 65_536
"""A larger body is packed in a thread: a millisecond of everybody's time is enough."""

RunRequest: TypeAlias = Callable[[Request], Awaitable[Answer]]


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

    def __init__(self, stream: Stream, peer: str, run: RunRequest, limits: HttpLimits) -> None:
        """Take a connection.

        Args:
            stream: to the client.
            peer: its address, for the log.
            run: answers a request.
            limits: of time and size.
        """
        self._stream = stream
        self._peer = peer
        self._run = run
        self._limits = limits
        self._engine = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)

    async def serve(self) -> None:
        """Answer until the connection is over; the stream is closed then."""
        try:
            while await self._serve_one():
                self._engine.start_next_cycle()
            # Closed with something unread, the kernel would take our last answer back.
            with trio.move_on_after(CLOSE_WAIT_S):
                while await self._stream.receive_some(READ_BYTES):
                    pass
        except (_Gone, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            _log.debug("HTTP connection over", peer=self._peer, reason=str(error))
        finally:
            with trio.CancelScope(shield=True):
                await self._stream.aclose()

    async def _serve_one(self) -> bool:
        """One request and its answer; whether another one may follow."""
        head: h11.Request | None = None
        request: Request | None = None
        try:
            head = await self._head()
            _check_framing(head, self._limits.body_bytes)
            body = await self._body()
            request = Request.read(head.method, head.target, list(head.headers), body)
            answer = await self._answer(request)
        except h11.RemoteProtocolError as error:
            reason = f"this is no request of HTTP/1.1: {error}"
            answer = Refused(error.error_status_hint, "bad_request", reason).answer
        except Refused as refusal:
            answer = refusal.answer
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
            reason = f"a fault in the broker ({type(error).__name__}); its log says more"
            return Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_server_error", reason).answer
        if not wants_gzip(request, answer):
            return answer
        if len(answer.body) <= PACKED_HERE_BYTES_MAX:
            return compressed(answer)
        return await trio.to_thread.run_sync(compressed, answer)

    async def _send(self, answer: Answer, *, bodyless: bool) -> None:
        headers = [(name, value) for name, value in answer.headers]
        headers.append(("date", formatdate(usegmt=True)))
        if answer.status != HTTPStatus.NO_CONTENT:
            headers.append(("content-length", str(len(answer.body))))
        if self._engine.their_state is not h11.DONE:
            headers.append(("connection", "close"))
        engine = self._engine
        data = engine.send(h11.Response(status_code=answer.status, headers=headers)) or b""
        if answer.body and not bodyless:
            data += engine.send(h11.Data(data=answer.body)) or b""
        data += engine.send(h11.EndOfMessage()) or b""
        with trio.move_on_after(self._limits.write_s) as limit:
            await self._stream.send_all(data)
        if limit.cancelled_caught:
            raise _Gone("the client does not take its answer")


def _check_framing(head: h11.Request, body_bytes: int) -> None:
    """Look at how the body is announced, before any of it is waited for.

    Raises:
        Refused: 400, it is too long, or its length is told in two ways: another server on the way may go by
            the other one, and take for a request what is a body here (RFC 9112, section 6.1).
    """
    told = {name: value for name, value in head.headers if name in (b"content-length", b"transfer-encoding")}
    if b"transfer-encoding" in told and (len(told) > 1 or head.http_version < b"1.1"):
        reason = "the length of the body is told in two ways: send content-length or transfer-encoding"
        raise Refused(HTTPStatus.BAD_REQUEST, "bad_request", reason)
    if int(told.get(b"content-length", b"0")) > body_bytes:
        raise too_large(body_bytes)


def _too_slow(what: str, seconds: float) -> Refused:
    return Refused(
        HTTPStatus.REQUEST_TIMEOUT,
        "request_timeout",
        f"{what} did not come within {seconds:g} s: send faster",
    )
