"""A client on a blocking socket, for programs without an event loop.

::

    with connect("127.0.0.1", 5672, user="guest", password="guest") as client:
        sender = client.sender("orders")
        sender.send(data_message(b"one"))                    # raises unless it was accepted
        outcomes = sender.send_many([data_message(b"two"), data_message(b"three")])
        receiver = client.receiver("orders", credit=100)
        for delivery in receiver.receive_many(10, timeout_s=1.0):
            print(delivery.message().body)
            receiver.accept(delivery)

A client belongs to one thread. The socket is read and written only while a method waits: a program that makes
no other calls for a while must call `Client.poll`, or the broker closes the connection.
"""

from __future__ import annotations

import functools
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Concatenate, Final, Self

from amqp10broker.client import core, links
from amqp10broker.client.core import ClientBase, ClientCore, H, LinkBase, P, Steps, T, WaitFor
from amqp10broker.client.errors import (
    ClientError,
    ConnectionEndedError,
    TimedOutError,
    cannot_connect,
    connection_lost,
    place_of,
)
from amqp10broker.client.links import ReceiverBase
from amqp10broker.client.message import BodyKind, Message
from amqp10broker.client.options import (
    CLOSE_TIMEOUT_S,
    TIMEOUT_S,
    WOULD_BLOCK,
    ClientOptions,
    check_port,
    receive_some,
    with_tls,
)
from amqp10broker.client.session import ClientSession, ReceiverEnd, SenderEnd
from amqp10broker.protocols.amqp10.link import DeliveriesReceived, ReceiverLink
from amqp10broker.protocols.amqp10.performatives import PORT, Attach, Flow, Properties, Source
from amqp10broker.protocols.amqp10.settling import ACCEPTED, RELEASED, Outcome
from amqp10broker.protocols.amqp10.types import ULong

_SELECT_MAX_S: Final = 3600.0
"""Selectors and sockets refuse waits of some 25 days and more."""
_AT_ONCE: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that end the program: the client does not wait for the broker then."""


def _waits(steps: Callable[Concatenate[H, P], Steps[T]]) -> Callable[Concatenate[H, P], T]:
    @functools.wraps(steps)
    def method(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        value: T = self.client.run(steps(self, *args, **kwargs))
        return value

    return method


def connect(
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    user: str | None = None,
    password: str | None = None,
    options: ClientOptions | None = None,
    timeout_s: float = TIMEOUT_S,
    ssl_context: ssl.SSLContext | None = None,
    mechanism: str | None = None,
) -> Client:
    """Connect, log in, open the connection, and begin a session.

    Args:
        user: None logs in as anonymous.
        ssl_context: use TLS, verified against `host`; None uses plain TCP.
        mechanism: SASL mechanism ``PLAIN``, ``ANONYMOUS`` or ``EXTERNAL`` (client certificate); None
            chooses by `user`.

    Raises:
        ConnectError: the server cannot be reached, or host or port is invalid.
        TlsError: TLS failed.
        LoginError: the broker refused user and password.
        ConnectionEndedError: the broker closed the connection, with its reason.
        TimedOutError: no connection within the time-out.
        ValueError: an argument fits no frame.
    """
    began = time.monotonic()
    try:
        check_port(port)
        sock = socket.create_connection((host, port), timeout=min(max(timeout_s, 0.001), _SELECT_MAX_S))
    except TimeoutError as error:
        raise TimedOutError(
            f"answer from {place_of(host, port)}",
            timeout_s,
            "is the address right, and does a firewall let it pass?",
        ) from error
    except (OSError, ValueError) as error:
        raise cannot_connect(host, port, error) from error
    if ssl_context is not None:
        sock = with_tls(sock, ssl_context, host, port)
    client = Client(sock, ClientCore((options or ClientOptions()).to_host(host)), timeout_s=timeout_s)
    try:
        client.open(user, password, mechanism, timeout_s, began)
        client._tick()
    except BaseException:
        client.abort()
        raise
    return client


class Sender(LinkBase[SenderEnd]):
    """A link for sending, made by `Client.sender`."""

    send = _waits(links.send)
    send_many = _waits(links.send_many)
    detach = _waits(links.detach)


class Receiver(ReceiverBase):
    """A link for receiving, made by `Client.receiver`."""

    receive = _waits(links.receive)
    receive_many = _waits(links.receive_many)
    fetch = _waits(links.fetch)
    drain = _waits(links.drain)
    detach = _waits(links.detach)


class Client(ClientBase[Sender, Receiver]):
    begin_session = _waits(core.begin_session)
    end_session = _waits(core.end_session)
    sender = _waits(core.sender)
    receiver = _waits(core.receiver)
    attach = _waits(core.attach)
    wait = _waits(core.wait)
    flush = _waits(core.flush)
    open = _waits(core.open_client)
    _close = _waits(core.close)

    def __init__(self, sock: socket.socket, core: ClientCore, *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(core, timeout_s, Sender, Receiver)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._waits_to_write = False
        self._out = memoryview(b"")
        self._tick_at: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None or not issubclass(kind, _AT_ONCE):
            self.close()
        else:
            self.abort()

    def poll(self, timeout_s: float = 0.0) -> None:
        """Read, write and send heartbeats."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._turn(max(0.0, deadline - time.monotonic()))
            if self.core.failure is not None:
                raise self.core.failure.with_traceback(None)
            if time.monotonic() >= deadline:
                return

    # --- closing ----------------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Write pending output, close the connection, wait for the broker's answer, and close the socket.
        Returns whether the broker answered, and so has read everything that was written before.
        """
        if self._socket.fileno() >= 0:
            try:
                self._close(timeout_s)
            except ClientError:
                pass  # the connection has ended, as intended
            finally:
                self.abort()
        return self.core.closed_in_order

    def abort(self) -> None:
        if self._socket.fileno() >= 0:
            self._selector.close()
            self._socket.close()
            self.core.fail(ConnectionEndedError("this program has closed the connection: connect again"))

    # --- the driver -------------------------------------------------------------------------------

    def run(self, steps: Steps[T]) -> T:
        try:
            waiting = next(steps)
            while True:
                try:
                    self._wait(waiting)
                except BaseException as error:
                    waiting = steps.throw(error)
                else:
                    waiting = next(steps)
        except StopIteration as done:
            value: T = done.value
            return value

    def clock(self) -> float:
        return time.monotonic()

    def write_soon(self) -> None:
        if self.core.failure is None:
            self._flush()

    def writing(self) -> Callable[[], bool]:
        return lambda: self._flush() or self.core.failure is not None

    def _wait(self, waiting: WaitFor) -> None:
        limit = self.timeout_s if waiting.timeout_s is None else waiting.timeout_s
        deadline = (time.monotonic() if waiting.began is None else waiting.began) + limit
        while not waiting.condition():
            error = waiting.failure()
            if error is not None:
                raise error.with_traceback(None)
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimedOutError(waiting.what, limit, waiting.hint)
            self._turn(left)

    def _turn(self, timeout_s: float) -> None:
        if self.core.failure is not None:
            return
        flushed = self._flush()
        if flushed is self._waits_to_write:
            self._waits_to_write = not flushed
            events = selectors.EVENT_READ if flushed else selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(self._socket, events)
        if self._tick_at is not None:
            timeout_s = min(timeout_s, max(0.0, self._tick_at - time.monotonic()))
        for _, events in self._selector.select(min(timeout_s, _SELECT_MAX_S)):
            if events & selectors.EVENT_READ:
                self._read()
        if self._tick_at is not None and time.monotonic() >= self._tick_at:
            self._tick()
        self._flush()

    def _read(self) -> None:
        try:
            data = receive_some(self._socket)
        except WOULD_BLOCK:
            return
        except OSError as error:
            self._lost(error)
            return
        if data:
            self.core.receive(data)
        else:
            self.core.receive_end()

    def _flush(self) -> bool:
        try:
            while True:
                if not self._out:
                    self._out = memoryview(self.core.take_output())
                    if not self._out:
                        return True
                self._out = self._out[self._socket.send(self._out) :]
        except WOULD_BLOCK:
            return False
        except OSError as error:
            # The broker's last frames before it closed the socket give a better reason than the reset.
            with suppress(OSError):
                while data := receive_some(self._socket):
                    self.core.receive(data)
            self._lost(error)
            return True

    def _lost(self, error: OSError) -> None:
        self.core.fail(connection_lost(error.strerror or str(error)))

    def _tick(self) -> None:
        now = time.monotonic()
        self.core.tick(now)
        interval = self.core.tick_interval
        self._tick_at = None if interval is None else now + interval


Keep = Callable[[Sequence[int]], int]
"""(sizes of messages in bytes) -> how many of them to keep, from the first on."""


class BulkEnd(ReceiverEnd):
    """The end of a `BulkReceiver`. `unsettled`: delivery numbers of kept messages. `keep`: decides how many
    of the arriving messages are kept; None: all. `BulkReceiver.release_surplus` releases the others.
    """

    def __init__(
        self, session: ClientSession, link: ReceiverLink, address: str | None, credit_limit: int
    ) -> None:
        super().__init__(session, link, address, credit_limit)
        self.payloads: list[bytes] = []
        self.received = 0
        self.filters_in_place: frozenset[str] = frozenset()
        self.keep: Keep | None = None
        self.stopped = True
        self.unsettled: list[int] = []
        self.surplus: list[int] = []

    def on_attached(self, attach: Attach) -> None:
        super().on_attached(attach)
        if isinstance(attach.source, Source):
            self.filters_in_place = frozenset(map(str, attach.source.filter or ()))

    def on_received(self, event: DeliveriesReceived) -> None:
        payloads: Sequence[bytes] = event.payloads
        count = len(payloads)
        kept = count if self.keep is None else self.keep([len(payload) for payload in payloads])
        self.payloads += payloads if kept == count else payloads[:kept]
        self.received += count
        if not event.settled:
            self.unsettled += event.delivery_ids[:kept]
            self.surplus += event.delivery_ids[kept:]
        # Finished on arrival: the window does not wait for the program.
        self._engine.inbound.finish(self.link, count)

    def on_flowed(self, flow: Flow) -> None:
        if not flow.link_credit:
            self.stopped = True

    def stop(self) -> None:
        """Take the remaining credit back; `stopped` becomes true when all messages in transit have arrived.
        Call it only after part of the last grant has arrived: the next flow with a credit of 0 then follows
        all its messages, and is not the answer to an earlier drain.
        """
        self.check()
        self.stopped = False
        self._engine.grant(self.link, 0, echo=True)

    def settle_all(self, ids: list[int], outcome: Outcome) -> None:
        if ids:
            self.check()
            self._engine.settling.settle_received(ids, outcome)
            ids.clear()


class BulkReceiver:
    """A link on which many messages arrive, made by `bulk_receiver`. It returns bytes, and settles all
    messages at once: without a `Delivery` a message costs about half as much. Credit is granted by hand. The
    methods raise `ClientError` once the link has ended.
    """

    def __init__(self, client: Client, end: BulkEnd) -> None:
        self.end = end
        self._client = client
        self._goal = 0

    @property
    def credit(self) -> int:
        return self.end.credit

    @property
    def exhausted(self) -> bool:
        """Whether the broker gave back credit of the last `grant` with drain."""
        return self.end.drained and self.end.received < self._goal

    def grant(self, credit: int, *, drain: bool = False) -> None:
        """Grant as `ReceiverBase.grant`. `drain`: unusable credit is given back; `exhausted` becomes true."""
        self.end.grant(credit, drain=drain)
        self._goal = self.end.received + credit

    def wait(self, timeout_s: float, until: Callable[[], bool] | None = None) -> bool:
        """Read until a message can be taken, or another condition holds."""
        try:
            self.wait_for("message", timeout_s, until or (lambda: bool(self.end.payloads)))
        except TimedOutError:
            return False
        return True

    def wait_for(self, what: str, timeout_s: float, until: Callable[[], bool]) -> None:
        self._client.wait(WaitFor(until, lambda: self.end.failure, timeout_s, what))

    def take(self) -> list[bytes]:
        taken = self.end.payloads
        self.end.payloads = []
        return taken

    def accept(self) -> None:
        self.end.settle_all(self.end.unsettled, ACCEPTED)
        self._client.write_soon()

    def release(self) -> None:
        self.end.settle_all(self.end.unsettled, RELEASED)
        self.release_surplus()

    def release_surplus(self) -> None:
        # Release is not a failed delivery (3.4.4).
        self.end.settle_all(self.end.surplus, RELEASED)
        self._client.write_soon()

    def detach(self) -> None:
        self.end.detach()
        self._client.write_soon()


def bulk_receiver(
    client: Client,
    address: str,
    *,
    settled: bool = True,
    filters: Mapping[str, Any] | None = None,
    desired_capabilities: Sequence[str] = (),
    max_message_size_bytes: int = 0,
    timeout_s: float | None = None,
) -> BulkReceiver:
    """Attach a link for receiving, without credit. `settled`: the broker removes messages as it sends them.
    Raises `LinkRefusedError`.
    """
    end = client.session.receiver(
        address,
        settled=settled,
        filters=filters,
        desired_capabilities=desired_capabilities,
        max_message_size_bytes=max_message_size_bytes,
        end_type=BulkEnd,
    )
    assert isinstance(end, BulkEnd)
    client.attach(end, timeout_s)
    return BulkReceiver(client, end)


ADDRESS = "/management"


class Management:
    """A pair of links to the management node; one request at a time. It has a session of its own, because a
    broker without that node may end the session. A request has the method as its subject and the path as its
    `to`; the response comes on a second link of the same name, as in RabbitMQ 4.
    """

    def __init__(self, client: Client, *, timeout_s: float | None = None) -> None:
        self._client = client
        self._timeout_s = timeout_s
        name = f"management-{client.core.next_number()}"
        paired = {"paired": True}
        self._session = session = client.begin_session(timeout_s=timeout_s)
        self._responses = session.receiver(ADDRESS, settled=True, properties=paired, name=name)
        self._requests = session.sender(ADDRESS, settled=True, properties=paired, name=name)
        client.attach(self._responses, timeout_s)
        client.attach(self._requests, timeout_s)
        self._number = 0

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request and wait for the response: its status, such as 200 or 404, and its value."""
        self._number += 1
        request = Message(
            body,
            Properties(message_id=ULong(self._number), to=path, subject=method, reply_to="$me"),
            kind=BodyKind.VALUE,
        )
        responses = self._responses
        responses.grant(1)
        self._requests.send([request.encode()])
        self._client.wait(
            WaitFor(
                lambda: bool(responses.ready),
                lambda: responses.failure or self._requests.failure,
                self._timeout_s,
                f"response to {method} {path}",
            )
        )
        (delivery,) = responses.take(1)
        message = delivery.message()
        properties = message.properties or Properties()
        if properties.correlation_id != self._number or properties.subject is None:
            raise ClientError(f"the response to {method} {path} answers another request: connect again")
        return int(properties.subject), message.body

    def close(self) -> None:
        self._client.end_session(self._session, timeout_s=self._timeout_s)
