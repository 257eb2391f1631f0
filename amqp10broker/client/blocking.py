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

One thread uses a client. The socket is read and written while a method waits, never in between, so
that a program which does something else for long calls `Client.poll` now and then: without it no
heartbeat goes out, and the broker takes the client for dead.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from amqp10broker.amqp10.performatives import PORT
from amqp10broker.client.blocking_links import Receiver, Sender
from amqp10broker.client.checks import milliseconds
from amqp10broker.client.core import ClientCore, ClientSession
from amqp10broker.client.ends import LinkEnd
from amqp10broker.client.errors import (
    ClientError,
    ConnectionEndedError,
    TimedOutError,
    cannot_connect,
    connection_lost,
    place_of,
)
from amqp10broker.client.options import (
    CLOSE_TIMEOUT_S,
    CREDIT,
    TIMEOUT_S,
    ClientOptions,
    made_up_container_id,
)
from amqp10broker.client.transport import WOULD_BLOCK, check_port, receive_some, with_tls

_SELECT_MAX_S: Final = 3600.0
"""Selectors and sockets refuse waits of some 25 days and more; who waits longer than this waits again."""


def connect(
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    user: str | None = None,
    password: str | None = None,
    container_id: str | None = None,
    timeout_s: float = TIMEOUT_S,
    idle_timeout_s: float = 60.0,
    hostname: str | None = None,
    properties: Mapping[str, Any] | None = None,
    incoming_window: int = 2048,
    frame_size_max_bytes: int = 1_048_576,
    ssl_context: ssl.SSLContext | None = None,
    mechanism: str | None = None,
) -> Client:
    """Connect, log in, open, and begin a session.

    Args:
        host: name or address.
        port: TCP port.
        user: None logs in as anonymous.
        password: of that user.
        container_id: names this program in the broker's status; None makes one up.
        timeout_s: seconds for all of it, and the default of everything that is waited for later.
        idle_timeout_s: seconds of the broker's silence after which it is given up; 0 for never.
        hostname: of the open frame; ``vhost:NAME`` chooses a virtual host. None sends `host`.
        properties: of the open frame, shown in the broker's status.
        incoming_window: transfer frames that may be under way to us in one session.
        frame_size_max_bytes: largest frame that we take.
        ssl_context: speak TLS, checked against `host`; None speaks plainly.
        mechanism: of SASL: ``PLAIN``, ``ANONYMOUS`` or ``EXTERNAL`` (by our certificate); None chooses
            by `user`.

    Returns:
        A client with one session; use it as a context manager, or close it.

    Raises:
        ConnectError: nobody listens there, it cannot be reached, or it is no host and port.
        TlsError: TLS failed.
        LoginError: the broker refused user and password.
        ConnectionEndedError: the broker closed the connection, with its reason.
        TimedOutError: it took too long.
        ValueError: an argument fits no frame; nothing was connected, or it is closed.
    """
    options = ClientOptions(
        container_id=container_id or made_up_container_id(),
        hostname=host if hostname is None else hostname,
        idle_timeout_ms=milliseconds("idle_timeout_s", idle_timeout_s),
        properties=properties,
        incoming_window=incoming_window,
        frame_size_max_bytes=frame_size_max_bytes,
    )
    started = time.monotonic()
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
    client = Client(sock, ClientCore(options), timeout_s=timeout_s)
    try:
        client.open(user, password, mechanism, timeout_s=timeout_s, started=started)
    except BaseException:
        client.abort()
        raise
    return client


class Client:
    """One connection. Made by `connect`.

    Attributes:
        core: the protocol state, for what this class does not offer.
        timeout_s: seconds, the default of everything that is waited for.
        session: the first session, which `sender` and `receiver` use unless told otherwise.
    """

    session: ClientSession

    def __init__(self, sock: socket.socket, core: ClientCore, *, timeout_s: float = TIMEOUT_S) -> None:
        """Take a connected socket over."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.core = core
        self.timeout_s = timeout_s
        self._socket = sock
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._waits_to_write = False
        self._out = memoryview(b"")
        self._tick_at: float | None = None

    def open(
        self,
        user: str | None,
        password: str | None,
        mechanism: str | None = None,
        *,
        timeout_s: float,
        started: float,
    ) -> None:
        """Log in, open, begin the first session. Called by `connect`.

        Args:
            user, password, mechanism: as of `connect`.
            timeout_s: seconds, of which some are over; an error names all of them.
            started: when they began, by `time.monotonic`.

        Raises:
            ClientError: as `connect`.
        """
        deadline = started + timeout_s
        self.core.start(user, password, mechanism)
        self._wait(lambda: self.core.opened, self._failure, deadline, timeout_s, "answer to our open frame")
        self._tick()
        session = self.core.begin()
        self._wait(
            lambda: session.begun, lambda: session.failure, deadline, timeout_s, "answer to our begin frame"
        )
        self.session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:  # ctrl-C must not wait for a broker
            self.abort()

    # --- sessions and links -----------------------------------------------------------------------

    def begin_session(self, *, timeout_s: float | None = None) -> ClientSession:
        """Begin another session, for links that are not to share a window with the others.

        Raises:
            ClientError: the connection has ended, or the broker allows no more sessions.
        """
        session = self.core.begin()
        self.wait(lambda: session.begun, lambda: session.failure, timeout_s, "answer to our begin frame")
        return session

    def end_session(self, session: ClientSession, *, timeout_s: float | None = None) -> None:
        """End a session and its links.

        Raises:
            ClientError: the connection has ended.
            TimedOutError: the broker did not answer.
        """
        session.end()
        self.wait(lambda: session.ended, _never, timeout_s, "answer to our end frame")

    def sender(
        self,
        address: str | None,
        *,
        settled: bool = False,
        properties: Mapping[str, Any] | None = None,
        session: ClientSession | None = None,
        timeout_s: float | None = None,
    ) -> Sender:
        """Attach a link for sending.

        Args:
            address: where messages go; None: each says so in its property `to`.
            settled: send without asking for outcomes.
            properties: of the attach.
            session: another one than the first.
            timeout_s: seconds for the broker's answer.

        Raises:
            LinkRefusedError: the broker did not attach it; the condition says why.
        """
        end = (session or self.session).sender(address, settled=settled, properties=properties)
        self.attach(end, timeout_s)
        return Sender(self, end)

    def receiver(
        self,
        address: str | None,
        *,
        credit: int = CREDIT,
        settled: bool = False,
        max_message_size_bytes: int = 0,
        filters: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        session: ClientSession | None = None,
        timeout_s: float | None = None,
    ) -> Receiver:
        """Attach a link for receiving.

        Args:
            address: where messages come from; None: a queue of our own, deleted with the link, whose
                name is then in `Receiver.address`.
            credit: messages that may be under way to us; topped up as they are received. 0 leaves it to
                `Receiver.grant` and `Receiver.fetch`.
            settled: the broker is to forget messages as it sends them.
            max_message_size_bytes: larger ones end the link; 0 for no limit.
            filters: of the source.
            properties: of the attach.
            session: another one than the first.
            timeout_s: seconds for the broker's answer.

        Raises:
            LinkRefusedError: the broker did not attach it; the condition says why.
        """
        end = (session or self.session).receiver(
            address,
            credit_limit=credit,
            settled=settled,
            max_message_size_bytes=max_message_size_bytes,
            filters=filters,
            properties=properties,
        )
        self.attach(end, timeout_s)
        return Receiver(self, end)

    def attach(self, end: LinkEnd, timeout_s: float | None = None) -> None:
        """Wait until the broker has attached an end that a `ClientSession` made.

        Raises:
            LinkRefusedError: the broker did not attach it; the condition says why.
        """
        try:
            self.wait(lambda: end.attached, lambda: end.failure, timeout_s, "answer to our attach frame")
        except BaseException:
            end.detach()  # or messages would arrive on a link that nobody has
            raise

    # --- waiting ----------------------------------------------------------------------------------

    def poll(self, timeout_s: float = 0.0) -> None:
        """Read, write and heartbeat for so long. For programs that call nothing else for a while.

        Raises:
            ClientError: the connection has ended.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self._turn(max(0.0, deadline - time.monotonic()))
            if self.core.failure is not None:
                raise self.core.failure.with_traceback(None)
            if time.monotonic() >= deadline:
                return

    def wait(
        self,
        condition: Callable[[], bool],
        failure: Callable[[], ClientError | None],
        timeout_s: float | None,
        what: str,
        hint: str = "",
    ) -> None:
        """Read and write until a condition holds. For states of `core` that this class does not offer.

        Args:
            condition: looked at after everything that arrived.
            failure: why it can never hold any more; None while it can.
            timeout_s: seconds; None takes the client's.
            what: what is waited for, a clause for the error: "outcome of 3 messages".
            hint: what to do when it does not come.

        Raises:
            ClientError: `failure` gave one.
            TimedOutError: it took too long.
        """
        limit = self.timeout_s if timeout_s is None else timeout_s
        self._wait(condition, failure, time.monotonic() + limit, limit, what, hint)

    def flush_now(self) -> None:
        """Write what the socket takes without waiting."""
        if self.core.failure is None:
            self._flush()

    def flush(self, timeout_s: float | None = None) -> None:
        """Write everything that can be written now.

        Raises:
            ClientError: the connection has ended.
            TimedOutError: the broker does not read.
        """
        self.wait(self._flush, self._failure, timeout_s, "room in the socket", "the broker does not read")

    # --- closing ----------------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Close in order: write what was decided, tell the broker, wait for its answer, close the socket.

        Unsettled messages go back to their queues. A connection that has ended already is no error.

        Returns:
            Whether the broker answered, and so has read all that was written before.
        """
        if self._socket.fileno() < 0:
            return self.core.closed_in_order
        try:
            self.core.close()
            self._wait(
                lambda: self.core.closed,
                self._failure,
                time.monotonic() + timeout_s,
                timeout_s,
                "close frame",
            )
            self._flush()
        except ClientError:
            pass  # it is over, and that is what was wanted
        finally:
            self.abort()
        return self.core.closed_in_order

    def abort(self) -> None:
        """Close the socket at once. The broker treats the connection as lost."""
        if self._socket.fileno() >= 0:
            self._selector.close()
            self._socket.close()
            self.core.fail(ConnectionEndedError("this program has closed the connection: connect again"))

    # --- helpers ----------------------------------------------------------------------------------

    def _failure(self) -> ClientError | None:
        return self.core.failure

    def _wait(
        self,
        condition: Callable[[], bool],
        failure: Callable[[], ClientError | None],
        deadline: float,
        timeout_s: float,
        what: str,
        hint: str = "",
    ) -> None:
        while not condition():
            error = failure()
            if error is not None:
                raise error.with_traceback(None)
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimedOutError(what, timeout_s, hint)
            self._turn(left)

    def _turn(self, timeout_s: float) -> None:
        """Write what goes, wait for the socket or the time, take in what came."""
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
        """Write without waiting; whether everything was written."""
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
            # What the broker said before it closed the socket is a better reason than the reset.
            self._read_rest()
            self._lost(error)
            return True

    def _read_rest(self) -> None:
        try:
            while data := receive_some(self._socket):
                self.core.receive(data)
        except OSError:
            pass

    def _lost(self, error: OSError) -> None:
        self.core.fail(connection_lost(error.strerror or str(error)))

    def _tick(self) -> None:
        now = time.monotonic()
        self.core.tick(now)
        interval = self.core.tick_interval
        self._tick_at = None if interval is None else now + interval


def _never() -> None:
    """Of what cannot fail: a broken connection ends it, too."""


__all__ = ["Client", "Receiver", "Sender", "connect"]
