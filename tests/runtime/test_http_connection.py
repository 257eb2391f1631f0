"""One HTTP connection, over a stream in memory: order, limits, and what is no HTTP."""

from __future__ import annotations

import json
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import h11
import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from amqp10broker.api.messages import HttpRequest, HttpResponse, RequestRefused, Send
from amqp10broker.runtime.connections.sockets import SocketTransport
from amqp10broker.runtime.http import http_connection
from amqp10broker.runtime.http.http_connection import HEAD_BYTES_MAX, HttpConnection, HttpLimits, ReadBody

LIMITS = HttpLimits(body_bytes=1000)


class Client:
    """The other end: h11 as a client."""

    def __init__(self, stream: trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream]) -> None:
        self.stream = stream
        self._rest = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def answer(self, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        engine = h11.Connection(h11.CLIENT)
        engine.send(h11.Request(method=method, target="/", headers=[("host", "h")]))
        engine.send(h11.EndOfMessage())
        if self._rest:
            engine.receive_data(self._rest)
        status, headers, body = 0, {}, b""
        while True:
            event = engine.next_event()
            if event is h11.NEED_DATA:
                engine.receive_data(await self.stream.receive_some(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self._rest = engine.trailing_data[0]
                return status, headers, body

    async def closed(self) -> bool:
        return await self.stream.receive_some(1) == b""


async def echo(request: HttpRequest, read: ReadBody) -> HttpResponse:
    match request.segments:
        case ("unread",):
            return HttpResponse(401)
        case ("refused",):
            raise RequestRefused(404, "not_found", "there is none")
        case ("fault",):
            raise KeyError("a slip")
        case ("none",):
            return HttpResponse(204)
        case ("long",):
            return HttpResponse.of_json("x" * int(request.query["bytes"]))
    body = await read(10 if request.segments == ("stranger",) else None)
    return HttpResponse.of_json([request.method, list(request.segments), body.decode()])


@asynccontextmanager
async def connected(limits: HttpLimits = LIMITS) -> AsyncIterator[Client]:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpConnection(theirs, "in-process", echo, limits).serve)
        yield Client(ours)
        await ours.aclose()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with connected() as one:
        yield one


def request(target: str, method: str = "GET", body: bytes = b"", headers: str = "") -> bytes:
    length = f"content-length: {len(body)}\r\n" if body else ""
    return f"{method} {target} HTTP/1.1\r\nhost: h\r\n{length}{headers}\r\n".encode() + body


@pytest.mark.real_clock
async def test_requests_are_answered_in_their_order_on_one_connection(client: Client) -> None:
    await client.send(request("/a") + request("/b", "PUT", b"x" * 500) + request("/c"))
    for expected in (["GET", ["a"], ""], ["PUT", ["b"], "x" * 500], ["GET", ["c"], ""]):
        status, headers, body = await client.answer()
        assert (status, json.loads(body)) == (200, expected)
        assert "date" in headers
    await client.send(request("/d"))
    assert (await client.answer())[0] == 200


@pytest.mark.real_clock
async def test_the_phrase_of_a_status_is_told(client: Client) -> None:
    """Clients read it after a delete of an absent object."""
    await client.send(request("/refused"))
    assert (await client.stream.receive_some(65536)).startswith(b"HTTP/1.1 404 Not Found\r\n")


@pytest.mark.real_clock
async def test_a_request_may_come_byte_by_byte_and_in_chunks() -> None:
    chunks = (
        b"POST /a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    async with connected() as client:
        for byte in chunks:
            await client.send(bytes([byte]))
        assert json.loads((await client.answer())[2]) == ["POST", ["a"], "abcde"]


@pytest.mark.real_clock
async def test_head_and_no_content_have_no_body(client: Client) -> None:
    await client.send(request("/a", "HEAD") + request("/none") + request("/c"))
    status, headers, body = await client.answer("HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0
    status, headers, body = await client.answer()
    assert (status, body, headers.get("content-length")) == (204, b"", None)
    assert (await client.answer())[0] == 200


@pytest.mark.real_clock
async def test_refusals_and_faults_leave_the_connection_open(client: Client) -> None:
    await client.send(request("/refused") + request("/fault") + request("/%FF") + request("/a"))
    for expected in (404, 500, 400, 200):
        assert (await client.answer())[0] == expected


@pytest.mark.real_clock
@pytest.mark.parametrize("size", [400, 200_000])
async def test_a_body_is_packed_for_a_client_that_takes_it(client: Client, size: int) -> None:
    await client.send(request(f"/long?bytes={size}", headers="accept-encoding: gzip\r\n"))
    _, headers, body = await client.answer()
    assert headers["content-encoding"] == "gzip"
    assert json.loads(zlib.decompress(body, 16 + zlib.MAX_WBITS)) == "x" * size


@pytest.mark.real_clock
async def test_a_client_that_asks_whether_to_go_on_is_told(client: Client) -> None:
    await client.send(b"PUT /a HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n")
    assert (await client.stream.receive_some(100)).startswith(b"HTTP/1.1 100")
    await client.send(b"abc")
    assert json.loads((await client.answer())[2]) == ["PUT", ["a"], "abc"]


@pytest.mark.real_clock
async def test_a_body_that_is_not_asked_for_is_not_waited_for(client: Client) -> None:
    """If the whole body has come already, the connection stays open."""
    await client.send(request("/unread", "PUT", b"x" * 500) + request("/a"))
    assert (await client.answer())[0] == 401
    assert (await client.answer())[0] == 200
    asks_first = "content-length: 1000\r\nexpect: 100-continue\r\n"
    await client.send(request("/unread", "PUT", headers=asks_first))
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (401, "close")
    await client.send(b"x" * 1000)
    await client.stream.send_stream.aclose()
    assert await client.closed()


@pytest.mark.real_clock
async def test_bodies_of_all_clients_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that are not logged in have a lower bound."""
    monkeypatch.setattr(http_connection, "BODIES_BYTES_MAX", 1_500)
    monkeypatch.setattr(http_connection, "ANONYMOUS_BYTES_MAX", 12)
    limits = HttpLimits(body_bytes=1000)
    unfinished = request("/a", "PUT", b"x" * 900)[:-1]
    async with connected(limits) as client, connected(limits) as other:
        await client.send(unfinished)
        await wait_all_tasks_blocked()
        await other.send(request("/a", "PUT", b"x" * 700) + request("/a", "PUT", b"x" * 500))
        assert [(await other.answer())[0] for _ in range(2)] == [503, 200]
        await client.send(b"x")
        assert (await client.answer())[0] == 200
        await other.send(request("/a", "PUT", b"x" * 700))
        assert (await other.answer())[0] == 200
    async with connected(limits) as client, connected(limits) as other:
        await client.send(request("/stranger", "PUT", b"x" * 8)[:-1])
        await wait_all_tasks_blocked()
        await other.send(request("/stranger", "PUT", b"x" * 6) + request("/a", "PUT", b"x" * 700))
        assert [(await other.answer())[0] for _ in range(2)] == [503, 200]
        await client.send(b"x")
        assert (await client.answer())[0] == 200
        await other.send(request("/stranger", "PUT", b"x" * 11))
        assert (await other.answer())[0] == 400


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


@pytest.mark.real_clock
async def test_others_have_a_turn_between_two_requests_of_one_read() -> None:
    """Real sockets take an answer at once."""
    order: list[str] = []

    async def run(name: str, _: HttpRequest, read: ReadBody) -> HttpResponse:
        order.append(name)
        return HttpResponse(204)

    clients = []
    async with trio.open_nursery() as nursery:
        for name in "ab":
            ours, theirs = tcp_pair()
            ours.sendall(request("/") * 50)
            ours.shutdown(socket.SHUT_WR)
            clients.append(ours)
            served = HttpConnection(SocketTransport(theirs), "peer", partial(run, name), LIMITS)
            nursery.start_soon(served.serve)
    for each in clients:
        each.close()
    turns = "".join(order)
    assert turns.count("a") == turns.count("b") == 50
    assert "aaaaa" not in turns
    assert "bbbbb" not in turns


@pytest.mark.real_clock
async def test_others_have_turns_while_a_body_comes_in_chunks() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with connected(HttpLimits()) as client, trio.open_nursery() as nursery:
        nursery.start_soon(others)
        began = turns
        await client.send(CHUNKED + b"2\r\nab\r\n" * 990 + b"0\r\n\r\n")
        assert json.loads((await client.answer())[2])[2] == "ab" * 990
        assert turns - began >= 10
        nursery.cancel_scope.cancel()


# --- bodies that are made while they go out -------------------------------------------------------


class Counting:
    """A body of numbers; the last one may be a fault, or never come."""

    def __init__(self, last: str = "") -> None:
        self.closed = 0
        self.cancelled = False
        self._last = last

    async def run(self, send: Send) -> None:
        for number in range(3):
            await send(b"%d," % number)
        if self._last == "fault":
            raise KeyError("a slip")
        if self._last == "never":
            try:
                await trio.sleep_forever()
            finally:
                self.cancelled = True

    def close(self) -> None:
        self.closed += 1


@asynccontextmanager
async def fed(feed: Counting) -> AsyncIterator[Client]:
    async def run(request: HttpRequest, read: ReadBody) -> HttpResponse:
        return HttpResponse(200, feed=feed)

    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpConnection(theirs, "in-process", run, LIMITS).serve)
        yield Client(ours)
        await ours.aclose()
    assert feed.closed == 1


@pytest.mark.real_clock
async def test_a_body_goes_out_while_it_is_made_and_the_connection_ends_with_it() -> None:
    """Bytes behind the request are not read as another request."""
    async with fed(Counting()) as client:
        await client.send(request("/a") + request("/b"))
        status, headers, body = await client.answer()
        assert (status, headers["transfer-encoding"], headers["connection"]) == (200, "chunked", "close")
        assert body == b"0,1,2,"
        assert not client._rest
        await client.stream.send_stream.aclose()
        assert await client.closed()


@pytest.mark.real_clock
async def test_a_client_of_http_1_0_hears_it_without_chunks() -> None:
    async with fed(Counting()) as client:
        await client.send(b"GET /a HTTP/1.0\r\nhost: h\r\n\r\n")
        status, headers, body = await client.answer()
        assert (status, body) == (200, b"0,1,2,")
        assert "transfer-encoding" not in headers


@pytest.mark.real_clock
async def test_a_body_ends_when_its_client_goes() -> None:
    """Bytes that it had sent meanwhile are dropped."""
    feed = Counting("never")
    async with fed(feed) as client:
        await client.send(request("/a"))
        while not (await client.stream.receive_some(1000)).endswith(b"2,\r\n"):
            pass
        await client.send(b"x" * 100_000)
        await client.stream.send_stream.aclose()
        assert await client.closed()
    assert feed.cancelled


async def test_a_client_that_does_not_take_a_body_is_let_go() -> None:
    feed = Counting("never")
    ours, theirs = memory_stream_pair()
    theirs.send_stream.send_all_hook = trio.sleep_forever

    async def run(request: HttpRequest, read: ReadBody) -> HttpResponse:
        return HttpResponse(200, feed=feed)

    await ours.send_all(request("/a"))
    await HttpConnection(theirs, "in-process", run, LIMITS).serve()
    assert trio.current_time() >= LIMITS.write_s
    assert (feed.closed, feed.cancelled) == (1, False)


@pytest.mark.real_clock
async def test_a_fault_in_a_body_is_raised_when_it_is_closed() -> None:
    feed = Counting("fault")

    async def ask() -> None:
        async with fed(feed) as client:
            await client.send(request("/a"))
            while await client.stream.receive_some(1000):
                pass

    with pytest.raises(ExceptionGroup) as caught:
        await ask()
    assert caught.group_contains(KeyError)
    assert feed.closed == 1


# --- what is refused, and ends the connection -----------------------------------------------------


POST = b"POST /a HTTP/1.1\r\nhost: h\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"AMQP\x00\x01\x00\x00\r\n\r\n", 400, id="AMQP"),
        pytest.param(
            POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            id="a length and chunks",
        ),
        pytest.param(
            b"POST /a HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400, id="chunks in 1.0"
        ),
        pytest.param(POST + b"content-length: 1001\r\n\r\n", 400, id="a length that is too long"),
        pytest.param(b"GET /a HTTP/1.1\r\n\r\n", 400, id="no host"),
        pytest.param(POST + b"bad header: x\r\n\r\n", 400, id="bad header"),
        pytest.param(POST + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 400, id="two lengths"),
        pytest.param(POST + b"content-length: +3\r\n\r\nabc", 400, id="no length"),
        pytest.param(POST + b"transfer-encoding: gzip, chunked\r\n\r\n", 501, id="an unknown coding"),
        pytest.param(CHUNKED + b"3\r\nabcXX0\r\n\r\n", 400, id="a chunk's end"),
        pytest.param(CHUNKED + b"3z\r\nabc\r\n0\r\n\r\n", 400, id="a chunk's size that is none"),
        pytest.param(CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n", 400, id="a chunk's size below 0"),
        pytest.param(CHUNKED + b"f" * 21 + b"\r\nabc", 400, id="a chunk's size without bound"),
        pytest.param(CHUNKED + b"3f0\r\n" + b"x" * 1008 + b"\r\n", 400, id="chunks that are too large"),
        pytest.param(POST + b"transfer-encoding : chunked\r\n\r\n", 400, id="a space before the colon"),
        pytest.param(POST + b"transfer-encoding: xchunked\r\n\r\n", 501, id="almost chunked"),
        pytest.param(request("/a", "PUT", b"x" * 1001), 400, id="too large"),
    ],
)
async def test_what_is_no_request_is_refused_and_nothing_behind_it_is_read(sent: bytes, status: int) -> None:
    smuggled = request("/smuggled")
    async with connected() as client:
        await client.send(sent + smuggled)
        got, headers, body = await client.answer()
        assert (got, headers["connection"]) == (status, "close")
        assert json.loads(body)["error"] == "bad_request"
        assert not client._rest
        await client.stream.send_stream.aclose()
        assert await client.closed()


@pytest.mark.real_clock
@pytest.mark.parametrize("count", [201, 500, 16_000])
async def test_a_head_has_so_many_headers_at_most(client: Client, count: int) -> None:
    await client.send(b"GET /a HTTP/1.1\r\nhost: h\r\n" + b"a:\n" * count + b"\r\n")
    status, _, body = await client.answer()
    assert (status, json.loads(body)["reason"]) == (431, "there are more than 200 headers: send fewer")


@pytest.mark.real_clock
async def test_few_headers_with_much_in_them_are_a_request(client: Client) -> None:
    await client.send(request("/a", headers="a: 1\r\n" * 198 + f"b: {'x' * 10_000}\r\n"))
    assert (await client.answer())[0] == 200


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        (b"2\r\nab\r\n" * 5_000, "its chunks have less than 256 bytes"),
        (b"0\r\n" + b"a:\n" * 20_000, "more than 4096 bytes are behind a chunk"),
        (b"2;" + b"x" * 9_000, "more than 4096 bytes are behind a chunk"),
    ],
)
async def test_a_body_that_is_cut_into_crumbs_is_refused(chunks: bytes, reason: str) -> None:
    """Each chunk costs as much as a kilobyte would."""
    async with connected(HttpLimits()) as client:
        await client.send(CHUNKED + chunks)
        status, headers, body = await client.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert json.loads(body)["reason"] == f"the body is cut too small: {reason}"


@pytest.mark.real_clock
async def test_a_head_without_end_is_refused_before_it_fills_the_memory(client: Client) -> None:
    await client.send(b"GET /" + b"a" * HEAD_BYTES_MAX * 2)
    assert (await client.answer())[0] == 431


# --- clients that are slow ------------------------------------------------------------------------


async def test_a_client_that_says_nothing_is_let_go(client: Client) -> None:
    assert await client.closed()
    assert trio.current_time() >= LIMITS.idle_s


async def test_slow_heads_and_bodies_are_refused() -> None:
    for sent in (b"GET /a HT", b"PUT /a HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\nab"):
        async with connected() as client:
            await client.send(sent)
            status, headers, body = await client.answer()
            assert (status, headers["connection"]) == (408, "close")
            assert "did not come within" in json.loads(body)["reason"]
            assert await client.closed()


async def test_one_byte_now_and_then_is_slow_as_well() -> None:
    async with connected() as client, trio.open_nursery() as nursery:

        async def drip() -> None:
            while True:
                await client.send(b"G")
                await trio.sleep(LIMITS.head_s / 3)

        nursery.start_soon(drip)
        assert (await client.answer())[0] == 408
        nursery.cancel_scope.cancel()


@pytest.mark.real_clock
async def test_a_client_that_goes_away_in_the_middle_ends_its_connection_alone() -> None:
    for sent in (b"", b"GET /a", b"PUT /a HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\nab"):
        async with connected() as client:
            await client.send(sent) if sent else None


async def test_a_client_that_does_not_take_its_answer_is_let_go() -> None:
    ours, theirs = memory_stream_pair()
    theirs.send_stream.send_all_hook = trio.sleep_forever
    await ours.send_all(request("/a") + request("/b"))
    await HttpConnection(theirs, "in-process", echo, LIMITS).serve()
    assert trio.current_time() >= LIMITS.write_s
    with pytest.raises(trio.ClosedResourceError):
        await theirs.receive_some(1)
