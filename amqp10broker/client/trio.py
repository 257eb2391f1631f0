"""The client on Trio: `blocking` with `await`, over any Trio stream.

::

    async with connect("127.0.0.1", 5672, user="guest", password="guest") as client:
        sender = await client.sender("orders")
        await sender.send(data_message(b"one"))

A reader, a writer and a heartbeat task run in the nursery of the `async with` block. Several tasks may share
a sender, but not a receiver.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Concatenate

import trio
import trio.lowlevel

from amqp10broker.client import core, links
from amqp10broker.client.core import ClientBase, ClientCore, H, LinkBase, P, Steps, T, WaitFor
from amqp10broker.client.errors import (
    ConnectionEndedError,
    TimedOutError,
    cannot_connect,
    connection_lost,
    place_of,
)
from amqp10broker.client.links import ReceiverBase
from amqp10broker.client.options import READ_BYTES, TIMEOUT_S, ClientOptions, check_port, tls_failed
from amqp10broker.client.session import SenderEnd
from amqp10broker.protocols.amqp10.performatives import PORT


def _awaits(
    steps: Callable[Concatenate[H, P], Steps[T]],
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    @functools.wraps(steps)
    async def method(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        value: T = await self.client.run(steps(self, *args, **kwargs))
        return value

    return method


@asynccontextmanager
async def connect(
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    user: str | None = None,
    password: str | None = None,
    options: ClientOptions | None = None,
    timeout_s: float = TIMEOUT_S,
    ssl_context: ssl.SSLContext | None = None,
    mechanism: str | None = None,
) -> AsyncIterator[TrioClient]:
    """Connect over TCP, or with `ssl_context` over TLS, verified against `host`; otherwise as `over`."""
    stream: trio.abc.Stream | None = None
    try:
        check_port(port)
        with trio.move_on_after(timeout_s):
            stream = await trio.open_tcp_stream(host, port)
    except (OSError, ValueError) as error:
        raise cannot_connect(host, port, error) from error
    if stream is None:
        raise TimedOutError(f"answer from {place_of(host, port)}", timeout_s)
    if ssl_context is not None:
        stream = await _with_tls(stream, ssl_context, host, port, timeout_s)
    options = (options or ClientOptions()).to_host(host)
    async with over(
        stream, user=user, password=password, options=options, timeout_s=timeout_s, mechanism=mechanism
    ) as client:
        yield client


async def _with_tls(
    stream: trio.abc.Stream, context: ssl.SSLContext, host: str, port: int, timeout_s: float
) -> trio.SSLStream[trio.abc.Stream]:
    secured = trio.SSLStream(stream, context, server_hostname=host)
    try:
        with trio.fail_after(timeout_s):
            await secured.do_handshake()
    except trio.TooSlowError:
        await trio.aclose_forcefully(stream)
        raise TimedOutError(
            f"TLS handshake with {place_of(host, port)}", timeout_s, "is that the broker's TLS port?"
        ) from None
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        cause = error.__cause__
        raise tls_failed(host, port, cause if isinstance(cause, OSError) else OSError(str(error))) from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured


@asynccontextmanager
async def over(
    stream: trio.abc.Stream,
    *,
    user: str | None = None,
    password: str | None = None,
    options: ClientOptions | None = None,
    timeout_s: float = TIMEOUT_S,
    mechanism: str | None = None,
) -> AsyncIterator[TrioClient]:
    """Log in over a stream and begin a session, as `blocking.connect`; close the stream at the end."""
    client = TrioClient(stream, ClientCore(options or ClientOptions()), timeout_s)
    raised: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run_reader)
            nursery.start_soon(client.run_writer)
            try:
                await client.open(user, password, mechanism, timeout_s, client.clock())
                nursery.start_soon(client.run_heartbeat)
                yield client
            except Exception as error:
                raised = error  # raised again outside, or the nursery would put it into a group
            with suppress(TimedOutError):  # the stream is closed next, which ends it as well
                await client.close()
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)
        client.core.fail(ConnectionEndedError("this program has closed the connection: connect again"))
    if raised is not None:
        raise raised


class TrioSender(LinkBase[SenderEnd]):
    """A link for sending, made by `TrioClient.sender`."""

    send = _awaits(links.send)
    send_many = _awaits(links.send_many)
    detach = _awaits(links.detach)


class TrioReceiver(ReceiverBase):
    """A link for receiving, made by `TrioClient.receiver`."""

    receive = _awaits(links.receive)
    receive_many = _awaits(links.receive_many)
    fetch = _awaits(links.fetch)
    drain = _awaits(links.drain)
    detach = _awaits(links.detach)


class TrioClient(ClientBase[TrioSender, TrioReceiver]):
    begin_session = _awaits(core.begin_session)
    end_session = _awaits(core.end_session)
    sender = _awaits(core.sender)
    receiver = _awaits(core.receiver)
    attach = _awaits(core.attach)
    wait = _awaits(core.wait)
    flush = _awaits(core.flush)
    open = _awaits(core.open_client)
    close = _awaits(core.close)

    def __init__(self, stream: trio.abc.Stream, core: ClientCore, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(core, timeout_s, TrioSender, TrioReceiver)
        self._stream = stream
        self._notifications = trio.lowlevel.ParkingLot()
        self._to_write = trio.Event()
        self._writing = False
        self._writer_ended = False

    # --- tasks ------------------------------------------------------------------------------------

    async def run_reader(self) -> None:
        try:
            while data := await self._stream.receive_some(READ_BYTES):
                self.core.receive(bytes(data))
                self._wake()
            self.core.receive_end()
        except trio.BrokenResourceError as error:
            self.core.fail(connection_lost(str(error)))
        except trio.ClosedResourceError:
            pass
        self._wake()

    async def run_writer(self) -> None:
        try:
            while True:
                data = self.core.take_output()
                if data:
                    self._writing = True
                    await self._stream.send_all(data)
                    continue
                if self._writing:
                    self._writing = False
                    self._notifications.unpark_all()
                self._to_write = trio.Event()
                await self._to_write.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The reader, which may find the broker's reason before the end, notifies the waiting tasks.
            self._writer_ended = True

    async def run_heartbeat(self) -> None:
        self.core.tick(trio.current_time())
        while (interval := self.core.tick_interval) is not None and self.core.failure is None:
            await trio.sleep(interval)
            self.core.tick(trio.current_time())
            self._wake()

    # --- the driver -------------------------------------------------------------------------------

    async def run(self, steps: Steps[T]) -> T:
        try:
            waiting = next(steps)
            while True:
                try:
                    await self._wait(waiting)
                except BaseException as error:
                    waiting = steps.throw(error)
                else:
                    waiting = next(steps)
        except StopIteration as done:
            value: T = done.value
            return value
        finally:
            self._to_write.set()

    def clock(self) -> float:
        return trio.current_time()

    def write_soon(self) -> None:
        self._to_write.set()

    def writing(self) -> Callable[[], bool]:
        self._writing = True
        return lambda: self._writer_ended or not self._writing

    async def _wait(self, waiting: WaitFor) -> None:
        limit = self.timeout_s if waiting.timeout_s is None else waiting.timeout_s
        deadline = (trio.current_time() if waiting.began is None else waiting.began) + limit
        self._to_write.set()
        await trio.lowlevel.checkpoint()
        with trio.move_on_at(deadline):
            while not waiting.condition():
                error = waiting.failure()
                if error is not None:
                    raise error.with_traceback(None)
                await self._notifications.park()
            return
        raise TimedOutError(waiting.what, limit, waiting.hint)

    def _wake(self) -> None:
        self._to_write.set()
        self._notifications.unpark_all()
