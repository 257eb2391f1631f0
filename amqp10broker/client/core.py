"""One client connection without a socket, and the steps that wait for its states.

An operation that needs an answer of the broker is a generator of steps, here and in `links`: it changes the
state of the core, and yields a `WaitFor` for each state to wait for. `blocking` and `trio` drive the
generators, and turn them into methods with the same names and arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, assert_never

from amqp10broker.client.errors import (
    ClientError,
    ConnectionEndedError,
    LoginError,
    SessionEndedError,
)
from amqp10broker.client.options import CLOSE_TIMEOUT_S, CREDIT, ClientOptions, check_text, fields
from amqp10broker.client.session import ClientSession, LinkEnd, ReceiverEnd, SenderEnd, ended
from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp10.connection import (
    ESTABLISHMENT_FAILED,
    HEARTBEAT,
    Connection,
    ConnectionState,
)
from amqp10broker.protocols.amqp10.errors import AmqpConnectionError, AmqpError, Condition
from amqp10broker.protocols.amqp10.link import (
    BeginReceived,
    ConnectionEvent,
    ConnectionFailed,
    FramesReceived,
)
from amqp10broker.protocols.amqp10.performatives import (
    Close,
    Open,
    SaslCode,
    SaslInit,
    SaslOutcome,
    SaslResponse,
)
from amqp10broker.protocols.amqp10.session import Session, SessionState
from amqp10broker.protocols.connection import IdleTimer

OUTPUT_BUDGET_BYTES: Final = 262_144
"""Transfers written by one `take_output`: little enough that the broker's frames are read soon."""


class ClientCore:
    """One client connection.

    Attributes:
        failure: why the connection cannot be used any more; None while it can.
        closed_in_order: whether the broker answered a local close, and so has read everything before it.
    """

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.remote_open: Open | None = None
        self._refused = False
        self.failure: ClientError | None = None
        self.closed_in_order = False
        self.bytes_received = 0
        self.bytes_sent = 0
        self._connection = Connection(
            server=False,
            frame_size_max=options.frame_size_max_bytes,
            channel_max=options.channel_max,
        )
        self._sessions: dict[int, ClientSession] = {}
        self._by_remote_channel: dict[int, ClientSession] = {}
        self._first: list[bytes | memoryview] = []
        self._closing = False
        self._mechanism = ""
        self._idle: IdleTimer | None = None
        self._numbers = 0

    # --- states -----------------------------------------------------------------------------------

    @property
    def opened(self) -> bool:
        return self._connection.state is ConnectionState.OPENED and not self._refused

    @property
    def closed(self) -> bool:
        """Whether the broker can send nothing more."""
        return self._connection.state is ConnectionState.END or self.failure is not None

    @property
    def tick_interval(self) -> float | None:
        return None if self._idle is None else self._idle.interval

    # --- lifetime ---------------------------------------------------------------------------------

    def start(self, user: str | None, password: str | None, mechanism: str | None = None) -> None:
        """Begin to log in; `opened` becomes true, or `failure` is set. `mechanism`: None takes PLAIN if there
        is a user, else ANONYMOUS.
        """
        check_text("user", user)
        check_text("password", password)
        if mechanism is None:
            mechanism = "ANONYMOUS" if user is None else "PLAIN"
        match mechanism:
            case "PLAIN":
                response = b"\0" + (user or "").encode() + b"\0" + (password or "").encode()
            case "ANONYMOUS":
                response = self.options.container_id.encode()
            case "EXTERNAL":
                response = b""  # no identity besides the certificate's
            case _:
                raise ValueError(f"mechanism is {mechanism!r}; it must be PLAIN, ANONYMOUS or EXTERNAL")
        self._mechanism = mechanism
        self._connection.start(mechanism, response, self.options.hostname)

    def begin(self) -> ClientSession:
        """Begin a session; `ClientSession.begun` becomes true, or `ClientSession.failure` is set."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if not self.opened:
            raise ConnectionEndedError("the connection is not open: wait until it is, or connect again")
        channel_max = self._connection.channel_max
        channel = next((each for each in range(channel_max + 1) if each not in self._sessions), None)
        if channel is None:
            raise SessionEndedError(
                f"all {channel_max + 1} sessions that the broker allows are in use: end one, or connect again"
            )
        engine = Session(
            channel,
            incoming_window=self.options.incoming_window,
            handle_max=self.options.handle_max,
            frame_size_max=self._connection.frame_size_max,
        )
        session = self._sessions[channel] = ClientSession(engine, lambda: self.failure, self.next_number)
        return session

    def close(self) -> None:
        """Close the connection after the queued output; `closed` becomes true."""
        if self.opened:
            # Before the close, because nothing may follow it. Messages without credit stay unsent.
            self._first.insert(0, self._connection.take_output())
            for session in self._sessions.values():
                self._first.extend(session.engine.take_output())
            self._connection.close()
        self._closing = True

    def tick(self, now: float) -> None:
        """Check idle time-outs and send heartbeats, every `tick_interval` seconds once `opened`."""
        if self.remote_open is None or not self.opened:
            return
        if self._idle is None:
            self._idle = IdleTimer(self.options.idle_timeout_ms, self.remote_open.idle_time_out, now)
        heartbeat, expired = self._idle.tick(now, self.bytes_received, self.bytes_sent)
        if expired:
            self.fail(
                ConnectionEndedError(
                    f"the broker was silent for {self.options.idle_timeout_ms / 1000:g} s: it hangs, or the "
                    "network between is cut; connect again"
                )
            )
        elif heartbeat:
            self._first.append(HEARTBEAT)

    def fail(self, failure: ClientError) -> None:
        if self.failure is None:
            self.failure = failure

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # --- bytes in ---------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        self.bytes_received += len(data)
        for event in self._connection.receive(data):
            try:
                self._on_event(event)
            except AmqpConnectionError as fault:
                self._connection.fail(fault)
                self._failed(fault)
                return

    def receive_end(self) -> None:
        self._connection.abandon()
        if self._closing:
            return
        self.fail(
            ConnectionEndedError(
                "the broker closed the socket before the connection was open: is it an AMQP 1.0 broker? its "
                "log says why"
                if self.remote_open is None
                else "the connection was lost: the broker has gone, or was killed; connect again"
            )
        )

    def _on_event(self, event: ConnectionEvent) -> None:
        match event:
            case FramesReceived():
                session = self._by_remote_channel.get(event.channel)
                if event.ended:
                    self._by_remote_channel.pop(event.channel, None)
                if session is not None:
                    session.receive(event.items)
                    if event.ended:
                        self._forget(session)
            case BeginReceived():
                self._on_begin(event)
            case SaslOutcome(code=SaslCode.OK):
                options = self.options
                self._connection.open(
                    options.container_id,
                    hostname=options.hostname,
                    # Half of the local limit, so that one lost or late frame does no harm (2.4.5).
                    idle_time_out_ms=options.idle_timeout_ms // 2 or None,
                    properties=fields("properties", options.properties),
                )
            case SaslOutcome():
                self.fail(LoginError(self._login_refused(event.code)))
            case Open():
                self.remote_open = event
                # The reason comes with the close.
                self._refused = bool((event.properties or {}).get(ESTABLISHMENT_FAILED))
            case Close():
                if self._connection.state is ConnectionState.CLOSE_RECEIVED:
                    self._connection.close()
                if not self._closing or event.error is not None:
                    self.fail(ended(ConnectionEndedError, "the broker closed the connection", event.error))
                else:
                    self.closed_in_order = True
            case ConnectionFailed():
                self._failed(event.fault)
            case SaslInit() | SaslResponse():
                raise AssertionError(f"{event} is for a server")
            case _:
                assert_never(event)

    def _on_begin(self, event: BeginReceived) -> None:
        session = self._sessions.get(
            -1 if event.performative.remote_channel is None else event.performative.remote_channel
        )
        if session is None or session.engine.state is not SessionState.BEGIN_SENT:
            raise AmqpConnectionError(
                Condition.NOT_ALLOWED, "this client takes no sessions that the peer begins"
            )
        session.engine.receive_begin(event.channel, event.performative)
        self._by_remote_channel[event.channel] = session

    def _login_refused(self, code: int) -> str:
        if code != SaslCode.AUTH:
            return f"the broker cannot check logins now (SASL code {code}): try again later"
        if self._mechanism == "EXTERNAL":
            return "the broker has no user for our certificate: a user must have the name that stands in it"
        return (
            "the broker refused user and password: correct them; note that guest may log in from the "
            "broker's own machine only"
        )

    def _failed(self, fault: AmqpError) -> None:
        if self.remote_open is None and fault.condition == Condition.UNAUTHORIZED_ACCESS:
            self.fail(
                LoginError(
                    f"the broker offers no such login: {fault.description}; give user and password, or allow "
                    "anonymous logins",
                    condition=fault.condition,
                    description=fault.description,
                )
            )
            return
        self.fail(
            ConnectionEndedError(
                f"what the broker sent is no good AMQP 1.0: {fault}; is it an AMQP 1.0 broker?",
                condition=fault.condition,
                description=fault.description,
            )
        )

    def _forget(self, session: ClientSession) -> None:
        self._first.extend(session.engine.take_output())
        if self._sessions.get(session.engine.channel) is session:
            del self._sessions[session.engine.channel]

    # --- bytes out --------------------------------------------------------------------------------

    def take_output(self, budget_bytes: int = OUTPUT_BUDGET_BYTES) -> bytes:
        """Return the bytes to write now. Call again after writing them."""
        if not self.opened:
            pieces = self._first
            pieces.append(self._connection.take_output())
        else:
            pieces = [self._connection.take_output(), *self._first]
            for session in self._sessions.values():
                budget_bytes -= session.write(pieces, budget_bytes)
        self._first = []
        out = b"".join(pieces)
        self.bytes_sent += len(out)
        return out


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")
E = TypeVar("E", bound=LinkEnd)


@dataclass(frozen=True, slots=True)
class WaitFor:
    """A state to wait for. `failure`: returns why it can never be reached, or None. `what`: for the error:
    "outcome of 3 messages". `began`: start of the time-out; None: now.
    """

    condition: Callable[[], bool]
    failure: Callable[[], ClientError | None]
    timeout_s: float | None
    what: str
    hint: str = ""
    began: float | None = None


Steps: TypeAlias = Generator[WaitFor, None, T]
"""A driver throws in the exception that ends a wait early."""


class ClientBase(ABC, Generic[S, R]):
    """One connection, completed by a driver. Methods that wait raise `ClientError` once it has ended, and
    `TimedOutError` after `timeout_s` seconds; None takes the client's time-out.
    """

    session: ClientSession

    def __init__(
        self,
        core: ClientCore,
        timeout_s: float,
        make_sender: Callable[[ClientBase[S, R], SenderEnd], S],
        make_receiver: Callable[[ClientBase[S, R], ReceiverEnd], R],
    ) -> None:
        self.core = core
        self.timeout_s = timeout_s
        self.make_sender = make_sender
        self.make_receiver = make_receiver

    @property
    def client(self) -> ClientBase[S, R]:
        return self

    @abstractmethod
    def run(self, steps: Steps[Any]) -> Any:
        """Run steps and return their value, on Trio an awaitable of it."""

    @abstractmethod
    def clock(self) -> float:
        """Return seconds."""

    @abstractmethod
    def write_soon(self) -> None:
        """Write pending output without waiting, or schedule that."""

    @abstractmethod
    def writing(self) -> Callable[[], bool]:
        """Begin to write everything; return a function that returns whether that is over."""


class LinkBase(Generic[E]):
    """A link. Its methods raise `ClientError` once it has ended."""

    def __init__(self, client: ClientBase[Any, Any], end: E) -> None:
        self.client = client
        self.end = end

    @property
    def address(self) -> str | None:
        return self.end.address

    @property
    def credit(self) -> int:
        return self.end.credit


H = TypeVar("H", bound=ClientBase[Any, Any] | LinkBase[Any])


def wait(client: ClientBase[S, R], state: WaitFor) -> Steps[None]:
    yield state


def open_client(
    client: ClientBase[S, R],
    user: str | None,
    password: str | None,
    mechanism: str | None,
    timeout_s: float,
    began: float,
) -> Steps[None]:
    core = client.core
    core.start(user, password, mechanism)
    yield WaitFor(
        lambda: core.opened, lambda: core.failure, timeout_s, "answer to our open frame", began=began
    )
    session = core.begin()
    yield _begun(session, timeout_s, began)
    client.session = session


def begin_session(client: ClientBase[S, R], *, timeout_s: float | None = None) -> Steps[ClientSession]:
    """Begin another session, for links that do not share a window with the others."""
    session = client.core.begin()
    yield _begun(session, timeout_s)
    return session


def _begun(session: ClientSession, timeout_s: float | None, began: float | None = None) -> WaitFor:
    return WaitFor(
        lambda: session.begun, lambda: session.failure, timeout_s, "answer to our begin frame", began=began
    )


def end_session(
    client: ClientBase[S, R], session: ClientSession, *, timeout_s: float | None = None
) -> Steps[None]:
    session.end()
    yield WaitFor(lambda: session.ended, never, timeout_s, "answer to our end frame")


def attach(client: ClientBase[S, R], end: LinkEnd, timeout_s: float | None = None) -> Steps[None]:
    try:
        yield WaitFor(lambda: end.attached, lambda: end.failure, timeout_s, "answer to our attach frame")
    except BaseException:
        end.detach()  # or messages would arrive on a link that the program does not have
        raise


def sender(
    client: ClientBase[S, R],
    address: str | None,
    *,
    settled: bool = False,
    properties: Mapping[str, Any] | None = None,
    session: ClientSession | None = None,
    timeout_s: float | None = None,
) -> Steps[S]:
    """Attach a link for sending. `session`: None takes the first. Raises `LinkRefusedError`."""
    end = (session or client.session).sender(address, settled=settled, properties=properties)
    yield from attach(client, end, timeout_s)
    return client.make_sender(client, end)


def receiver(
    client: ClientBase[S, R],
    address: str | None,
    *,
    credit: int = CREDIT,
    settled: bool = False,
    max_message_size_bytes: int = 0,
    filters: Mapping[str, Any] | None = None,
    properties: Mapping[str, Any] | None = None,
    session: ClientSession | None = None,
    timeout_s: float | None = None,
) -> Steps[R]:
    """Attach a link for receiving. `credit`: messages that may be in transit; 0 leaves it to `Receiver.grant`
    and `Receiver.fetch`. `session`: None takes the first. Raises `LinkRefusedError`.
    """
    end = (session or client.session).receiver(
        address,
        credit_limit=credit,
        settled=settled,
        max_message_size_bytes=max_message_size_bytes,
        filters=filters,
        properties=properties,
    )
    yield from attach(client, end, timeout_s)
    return client.make_receiver(client, end)


def flush(client: ClientBase[S, R], timeout_s: float | None = None) -> Steps[None]:
    written = client.writing()
    yield WaitFor(
        lambda: written() and client.core.failure is None,
        lambda: client.core.failure,
        timeout_s,
        "room in the socket",
        "the broker does not read",
    )


def close(client: ClientBase[S, R], timeout_s: float = CLOSE_TIMEOUT_S) -> Steps[None]:
    client.core.close()
    written = client.writing()
    yield WaitFor(lambda: client.core.closed and written(), never, timeout_s, "close frame")


def never() -> None:
    pass
