"""The client on Trio: `blocking` with `await`, over any Trio stream.

::

    async with connect("127.0.0.1", 5672, user="guest", password="guest") as client:
        sender = await client.sender("orders")
        await sender.send(data_message(b"one"))

A reader, a writer and a heartbeat task run in the nursery of the `async with` block. Whatever a program's
tasks wait for, they look at the state of `core` again after each batch that the reader took in. What
is cancelled while it waits for outcomes takes back what it had not begun to send.
"""

from __future__ import annotations

import itertools
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
import trio.lowlevel

from amqp10broker.amqp10.performatives import PORT
from amqp10broker.client.checks import check_integer
from amqp10broker.client.core import ClientCore, ClientSession
from amqp10broker.client.ends import Delivery, LinkEnd, ReceiverEnd, SenderEnd
from amqp10broker.client.errors import (
    NO_CREDIT_HINT,
    ClientError,
    ConnectionEndedError,
    NotAcceptedError,
    TimedOutError,
    cannot_connect,
    connection_lost,
    place_of,
)
from amqp10broker.client.message import Message
from amqp10broker.client.options import (
    CLOSE_TIMEOUT_S,
    CREDIT,
    IN_FLIGHT_MAX,
    READ_BYTES,
    TIMEOUT_S,
    ClientOptions,
    made_up_container_id,
)
from amqp10broker.client.outcomes import ACCEPTED, Accepted, BatchesUnderWay, Outcome, encoded
from amqp10broker.client.transport import check_port, tls_failed


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
) -> AsyncIterator[Client]:
    """Connect over TCP; otherwise as `over`.

    Args:
        ssl_context: speak TLS, checked against `host`; None speaks plainly.

    Raises:
        ConnectError: nobody listens there, it cannot be reached, or it is no host and port.
        TlsError: TLS failed.
    """
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
) -> AsyncIterator[Client]:
    """Log in over a stream, open, begin a session; close all of it, and the stream, at the end.

    Args:
        stream: connected; ours from now on.
        user: None logs in as anonymous.
        password: of that user.
        options: None for the defaults, with a container id that is made up.
        timeout_s: seconds for it, and the default of everything that is waited for later.
        mechanism: of SASL, as of `blocking.connect`.

    Raises:
        LoginError: the broker refused user and password.
        ConnectionEndedError: the broker closed the connection, with its reason.
        TimedOutError: it took too long.
    """
    client = Client(
        stream, ClientCore(options or ClientOptions(container_id=made_up_container_id())), timeout_s
    )
    raised: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run_reader)
            nursery.start_soon(client.run_writer)
            try:
                await client.open(user, password, mechanism)
                nursery.start_soon(client.run_heartbeat)
                yield client
            except Exception as error:
                raised = error  # raised again outside, or the nursery would put it into a group
            await client.close()
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)
        client.core.fail(ConnectionEndedError("this program has closed the connection: connect again"))
    if raised is not None:
        raise raised


class Client:
    """One connection. Made by `connect` or `over`.

    Attributes:
        core: the protocol state, for what this class does not offer.
        timeout_s: seconds, the default of everything that is waited for.
        session: the first session, which `sender` and `receiver` use unless told otherwise.
    """

    session: ClientSession

    def __init__(self, stream: trio.abc.Stream, core: ClientCore, timeout_s: float) -> None:
        self.core = core
        self.timeout_s = timeout_s
        self._stream = stream
        self._news = trio.lowlevel.ParkingLot()
        self._to_write = trio.Event()
        self._writing = False

    # --- tasks ------------------------------------------------------------------------------------

    async def run_reader(self) -> None:
        """Take in what comes, and wake who waits, until the stream ends."""
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
        """Write what there is, then sleep until somebody has made more."""
        try:
            while True:
                data = self.core.take_output()
                if data:
                    self._writing = True
                    await self._stream.send_all(data)
                    continue
                if self._writing:
                    self._writing = False
                    self._news.unpark_all()
                self._to_write = trio.Event()
                await self._to_write.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the reader finds the end, too, and in front of it what the broker gave as its reason
        self._writing = False
        self._wake()

    async def run_heartbeat(self) -> None:
        """Keep the connection alive, and see when the broker does not."""
        self.core.tick(trio.current_time())
        while (interval := self.core.tick_interval) is not None and self.core.failure is None:
            await trio.sleep(interval)
            self.core.tick(trio.current_time())
            self._wake()

    async def open(self, user: str | None, password: str | None, mechanism: str | None = None) -> None:
        """Log in, open, begin the first session. Called by `over`."""
        self.core.start(user, password, mechanism)
        await self.wait(lambda: self.core.opened, self._failure, None, "answer to our open frame")
        self.session = await self.begin_session()

    async def close(self) -> None:
        """Tell the broker and wait for its answer. Called at the end of the `async with` block."""
        self.core.close()
        try:
            await self.wait(
                lambda: self.core.closed and self._all_written(), _never, CLOSE_TIMEOUT_S, "close frame"
            )
        except TimedOutError:
            pass  # the stream is closed next, which ends it as well

    # --- sessions and links -----------------------------------------------------------------------

    async def begin_session(self, *, timeout_s: float | None = None) -> ClientSession:
        """As `blocking.Client.begin_session`."""
        session = self.core.begin()
        await self.wait(
            lambda: session.begun, lambda: session.failure, timeout_s, "answer to our begin frame"
        )
        return session

    async def end_session(self, session: ClientSession, *, timeout_s: float | None = None) -> None:
        """As `blocking.Client.end_session`."""
        session.end()
        await self.wait(lambda: session.ended, _never, timeout_s, "answer to our end frame")

    async def sender(
        self,
        address: str | None,
        *,
        session: ClientSession | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> Sender:
        """Attach a link for sending; `options` as of `core.ClientSession.sender`.

        Raises:
            LinkRefusedError: the broker did not attach it; the condition says why.
        """
        end = (session or self.session).sender(address, **options)
        await self._attach(end, timeout_s)
        return Sender(self, end)

    async def receiver(
        self,
        address: str | None,
        *,
        credit: int = CREDIT,
        session: ClientSession | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> Receiver:
        """Attach a link for receiving; `options` as of `core.ClientSession.receiver`.

        Raises:
            LinkRefusedError: the broker did not attach it; the condition says why.
        """
        end = (session or self.session).receiver(address, credit_limit=credit, **options)
        await self._attach(end, timeout_s)
        return Receiver(self, end)

    # --- waiting ----------------------------------------------------------------------------------

    async def wait(
        self,
        condition: Callable[[], bool],
        failure: Callable[[], ClientError | None],
        timeout_s: float | None,
        what: str,
        hint: str = "",
    ) -> None:
        """Write what there is and wait until a condition holds; as `blocking.Client.wait`."""
        limit = self.timeout_s if timeout_s is None else timeout_s
        self._to_write.set()
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(limit):
            while not condition():
                error = failure()
                if error is not None:
                    raise error.with_traceback(None)
                await self._news.park()
            return
        raise TimedOutError(what, limit, hint)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything that can be written now is written."""
        self._writing = True
        await self.wait(self._all_written, self._failure, timeout_s, "room in the socket")

    def write_soon(self) -> None:
        """Have the writer look whether there is something to write."""
        self._to_write.set()

    async def _attach(self, end: LinkEnd, timeout_s: float | None) -> None:
        try:
            await self.wait(
                lambda: end.attached, lambda: end.failure, timeout_s, "answer to our attach frame"
            )
        except BaseException:
            end.detach()  # or messages would arrive on a link that nobody has
            self.write_soon()
            raise

    def _all_written(self) -> bool:
        return not self._writing

    def _failure(self) -> ClientError | None:
        return self.core.failure

    def _wake(self) -> None:
        self._to_write.set()
        self._news.unpark_all()


class Sender:
    """A link for sending; several tasks may use it. Made by `Client.sender`."""

    def __init__(self, client: Client, end: SenderEnd) -> None:
        self.end = end
        self._client = client

    async def send(self, message: Message | bytes, *, timeout_s: float | None = None) -> None:
        """As `blocking.Sender.send`."""
        (outcome,) = await self.send_many((message,), timeout_s=timeout_s)
        if outcome is not None and not isinstance(outcome, Accepted):
            raise NotAcceptedError(outcome)

    async def send_many(
        self,
        messages: Iterable[Message | bytes],
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        timeout_s: float | None = None,
    ) -> list[Outcome | None]:
        """As `blocking.Sender.send_many`. Cancelled, it takes back what it has not begun to send."""
        deadline = None if timeout_s is None else trio.current_time() + timeout_s
        end = self.end
        under_way = BatchesUnderWay(end, in_flight_max)
        iterator = iter(messages)
        try:
            while True:
                room = in_flight_max - under_way.count()
                batch = encoded(itertools.islice(iterator, room))
                if batch:
                    under_way.add(end.send(batch))
                full = len(batch) == room
                if not full and not under_way.count():
                    break
                await self._client.wait(
                    partial(under_way.at_most, in_flight_max // 2 if full else 0),
                    lambda: end.failure,
                    timeout_s if deadline is None else max(0.0, deadline - trio.current_time()),
                    f"outcome of {under_way.count()} messages" if end.credit else "link credit",
                    "" if end.credit else NO_CREDIT_HINT,
                )
        except BaseException as error:
            outcomes = under_way.abandon()
            if isinstance(error, ClientError):
                error.outcomes = outcomes
            raise
        if end.settled:
            await self._client.flush(timeout_s)
        return under_way.outcomes()

    async def detach(self, *, timeout_s: float | None = None) -> None:
        """Close the link."""
        self.end.detach()
        await self._client.wait(lambda: self.end.detached, _never, timeout_s, "answer to our detach frame")


class Receiver:
    """A link for receiving; one task uses it. Made by `Client.receiver`."""

    def __init__(self, client: Client, end: ReceiverEnd) -> None:
        self.end = end
        self._client = client

    async def receive(self, *, timeout_s: float | None = None) -> Delivery | None:
        """As `blocking.Receiver.receive`."""
        taken = await self.receive_many(1, timeout_s=timeout_s)
        return taken[0] if taken else None

    async def receive_many(
        self, count_max: int, *, timeout_s: float | None = None, count_min: int = 1
    ) -> list[Delivery]:
        """As `blocking.Receiver.receive_many`."""
        deadline = trio.current_time() + (self._client.timeout_s if timeout_s is None else timeout_s)
        check_integer("count_max", count_max, 0, sys.maxsize)
        count_min = min(count_min, count_max)  # or it would wait with no room for those that come
        end = self.end
        taken = end.take(count_max)
        try:
            while len(taken) < count_min:
                await self._client.wait(
                    lambda: bool(end.ready),
                    lambda: end.failure,
                    max(0.0, deadline - trio.current_time()),
                    "message",
                )
                taken += end.take(count_max - len(taken))
        except TimedOutError:
            pass
        except ClientError:
            if not taken:
                raise
        self._client.write_soon()
        return taken

    async def fetch(
        self, count: int, *, timeout_s: float | None = None, drain_timeout_s: float | None = None
    ) -> list[Delivery]:
        """As `blocking.Receiver.fetch`."""
        end = self.end
        missing = count - len(end.ready)
        if missing > 0:
            end.begin_fetch(missing)
            try:
                if timeout_s != 0:
                    try:
                        await self._client.wait(
                            lambda: len(end.ready) >= count, lambda: end.failure, timeout_s, "messages"
                        )
                    except TimedOutError:
                        pass
                await self.drain(timeout_s=drain_timeout_s)
            finally:
                end.end_drain()
        return end.take(count)

    async def drain(self, *, timeout_s: float | None = None) -> None:
        """As `blocking.Receiver.drain`."""
        end = self.end
        if end.drained:
            return
        end.begin_drain()
        try:
            await self._client.wait(
                lambda: end.drained, lambda: end.failure, timeout_s, "answer to our drain"
            )
        finally:
            end.end_drain()

    def grant(self, credit: int) -> None:
        """Let the broker send so many messages from now on; replaces what was granted before."""
        self.end.grant(credit)
        self._client.write_soon()

    def settle(self, deliveries: Delivery | Sequence[Delivery], outcome: Outcome = ACCEPTED) -> None:
        """Tell the broker the outcome of messages; the writer writes it soon.

        Raises:
            ClientError: the link or what it stands on has ended; unsettled messages are the queue's.
            ValueError: that is no outcome, or none that can be sent.
        """
        self.end.settle((deliveries,) if isinstance(deliveries, Delivery) else deliveries, outcome)
        self._client.write_soon()

    async def detach(self, *, timeout_s: float | None = None) -> None:
        """Close the link; what was received and not settled goes back to the queue."""
        self.end.detach()
        await self._client.wait(lambda: self.end.detached, _never, timeout_s, "answer to our detach frame")


def _never() -> None:
    """Of what cannot fail: a broken connection ends it, too."""
