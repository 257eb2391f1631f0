"""The common base of connections of either protocol: reader, login, heartbeats, end.

It is a base class because observers (status, tracing, rights, the recorder) need one object with one set of
names. The protocol's part is the abstract half below; streams, writer and the order of the end are in
`connection_lifecycle`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import trio

from amqp10broker.auth.login import Authentication, Challenge, Failure, Peer, Step, Success, Unverified
from amqp10broker.errors import NotAllowed
from amqp10broker.metadata.queue import Owner
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.operations.snapshot import ConnectionView, OriginView
from amqp10broker.protocols.amqp10.heartbeat import IdleTimer
from amqp10broker.protocols.budget import Budget
from amqp10broker.runtime.connections.channel import RunningChannel
from amqp10broker.runtime.connections.connection_lifecycle import (
    CLOSE_WAIT_S,
    LINGER_S,
    ConnectionLifecycle,
    Speaker,
)
from amqp10broker.runtime.connections.connection_log import ConnectionLog
from amqp10broker.runtime.connections.credential import Credential
from amqp10broker.runtime.connections.read_budget import ReadBudget
from amqp10broker.runtime.connections.session import RunningSession
from amqp10broker.runtime.connections.socket_transport import Stream
from amqp10broker.runtime.connections.vhost_slot import VhostSlot
from amqp10broker.runtime.context import ConnectionContext
from amqp10broker.runtime.queues.relay import LITTLE_BYTES, OTHERS_MAX
from amqp10broker.sessions.circumstances import WaitContext
from amqp10broker.sessions.counters import ClientCounters
from amqp10broker.sessions.mail import ACCESS_CHANGED, AccessChanged, AlarmChanged, ConfigChanged, Stop
from amqp10broker.sessions.measures import Measures

Event = TypeVar("Event")
Fault = TypeVar("Fault", bound=Exception)
FaultIn = TypeVar("FaultIn", bound=Exception, contravariant=True)
PartT = TypeVar("PartT", bound=RunningSession | RunningChannel)

CREDENTIAL_EXPIRED: Final = "credential expired"
TOKEN_REFUSED: Final = "token refused: it is no token, or of another user, or has expired"
LOST: Final = "lost: the client's socket ended without a close"


class Engine(Protocol[Event, FaultIn]):
    """The protocol's state machine: bytes in, events out; orders in, bytes out."""

    @property
    def state(self) -> Enum: ...

    @property
    def more(self) -> bool: ...

    @property
    def unread(self) -> bytes: ...

    @property
    def frames_read(self) -> int: ...

    def receive(self, data: bytes) -> list[Event]: ...

    def fail(self, fault: FaultIn) -> None: ...

    def abandon(self) -> None: ...

    def take_output(self) -> bytes: ...


class Parts(Protocol[PartT]):
    """The sessions or channels of one connection.

    `full`: the reader waits, or soon will, for one of them. `working`: those whose task runs, including those
    that the client has ended, which are not in `by_number` any more. `unfinished`: bounds the bytes of
    incomplete messages.
    """

    by_number: dict[int, PartT]
    no_alarm: trio.Event | None
    begun: int
    measures: Measures

    @property
    def unfinished(self) -> Budget: ...

    @property
    def full(self) -> bool: ...

    @property
    def working(self) -> Collection[PartT]: ...

    def counted(self) -> ClientCounters: ...

    def around(self, part: PartT, /) -> WaitContext: ...

    async def wait_out_alarm(self) -> None: ...

    def alarm_over(self) -> None: ...

    def tell(self, letter: AlarmChanged | ConfigChanged | AccessChanged) -> None: ...

    def release(self) -> None: ...


class ConnectionShell(Speaker, Generic[Event, Fault, PartT]):
    """One client's connection.

    Attributes:
        member: its place in a virtual host; None before it is open.
        turn: how much the reader may still hand over before others are next.
        goes_on: what came with the last read goes its whole way at once (`relay`).
        awaiting_states: the client's close, or its answer to ours, is still to come.
    """

    protocol: ClassVar[str]
    heartbeat: ClassVar[bytes]
    open_state: ClassVar[Enum]
    awaiting_states: ClassVar[frozenset[Any]]
    closed_states: ClassVar[frozenset[Any]]

    def __init__(
        self,
        node_context: ConnectionContext,
        stream: Stream,
        number: int,
        peer: str,
        origin: Peer,
        first_bytes: bytes,
        engine: Engine[Event, Fault],
        parts: Parts[PartT],
    ) -> None:
        self._node_context = node_context
        self._authentication: Authentication | None = None
        self._began_ms = node_context.clock.now_ms()
        self._refused: Fault | None = None
        self._given_up = False
        self._parts = parts
        self.number = number
        self.owner = Owner(node_context.reply_registry.node, node_context.reply_registry.incarnation, number)
        self.peer = peer
        self.origin = origin
        self.user = ""
        self.credential = Credential(node_context, origin)
        self.engine = engine
        self.line = ConnectionLifecycle(stream, first_bytes, node_context.config.writer_buffer_bytes)
        self.log = ConnectionLog(self, node_context.log_limits, node_context.catalog)
        self.member: VhostSlot | None = None
        self.turn = ReadBudget()
        self.run_inline = False
        self._read_as = 0

    @property
    def end(self) -> str:
        """How the connection ended, for the log."""
        return self.line.end

    @property
    def vhost(self) -> str:
        """The virtual host it is in, empty before it is open."""
        return "" if self.member is None else self.member.vhost.name

    @property
    @abstractmethod
    def client_name(self) -> str:
        """The name that the client has sent; empty without one."""

    @property
    def home(self) -> VirtualHost:
        assert self.member is not None, "not open"
        return self.member.vhost

    @property
    def parts(self) -> Mapping[int, PartT]:
        """Its sessions, or channels, by number."""
        return self._parts.by_number

    @property
    def is_open(self) -> bool:
        """Whether it is open, and neither side has closed it."""
        return self.engine.state is self.open_state

    @property
    def awaits_close(self) -> bool:
        return self.engine.state in self.awaiting_states

    @property
    def state(self) -> str:
        """In a word, for status."""
        return "blocked" if self._parts.no_alarm is not None else self.engine.state.name.lower()

    def counted(self) -> ClientCounters:
        """The counters of its sessions or channels, including ended ones."""
        return self._parts.counted()

    @property
    def begun(self) -> int:
        """How many sessions or channels there have been."""
        return self._parts.begun

    @property
    def working(self) -> int:
        """How many sessions or channels are at work."""
        return len(self._parts.working)

    @property
    def blocked_s(self) -> float:
        """For how long bytes have waited for its socket."""
        return self.line.writer.blocked_s

    @property
    def measures(self) -> Measures:
        """Of its sessions or channels."""
        return self._parts.measures

    def around(self, part: PartT) -> WaitContext:
        """Return its present activity for one of its sessions or channels."""
        return self._parts.around(part)

    # --- what a protocol says ---------------------------------------------------------------------

    @abstractmethod
    async def greet(self) -> None:
        """The handshake, until the connection is open or over: around `shake_hands`."""

    @abstractmethod
    async def dispatch(self, events: list[Event]) -> None:
        """Do what the client wants."""

    @abstractmethod
    def answer_login(self, step: Success | Challenge | Failure | Unverified) -> None:
        """Send the next step of the login; a failure has been delayed before."""

    @abstractmethod
    def refusal_text(self) -> str | None:
        """Return the client's text for a failed login, for the log."""

    @abstractmethod
    def fault_fields(self, fault: Fault) -> dict[str, Any]:
        """Return the error sent to the client, for the log."""

    @abstractmethod
    def fault_of_ours(self, error: Exception) -> Fault:
        """Return the error that the client gets for an internal error."""

    @abstractmethod
    def expel(self, reason: str) -> None:
        """Close the connection because the user may not be in its virtual host any more."""

    @abstractmethod
    def expire(self) -> None:
        """Close the connection because the user's token has ended."""

    @abstractmethod
    def on_idle_timeout(self) -> None:
        """Nothing has come for too long: end it."""

    # --- life -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the client until the connection is over; the stream stays open for `linger_s`."""
        try:
            await self.line.run(self)
        finally:
            self.leave()
            self._parts.unfinished.leave()

    def leave(self) -> None:
        """Leave the virtual host, if it was entered."""
        if self.member is not None:
            self.member.leave()

    def release(self) -> None:
        """Over: nothing of it refers back to it any more (see `BrokerSession.release`)."""
        self.log.release()
        self._parts.release()

    def give_up(self) -> None:
        self._given_up = True
        self.engine.abandon()

    @property
    def linger_s(self) -> float:
        """For how long the client has time to close its socket when the connection is over."""
        if self._given_up or self.line.writer.waiting_bytes:
            return 0.0
        return CLOSE_WAIT_S if self.member is None else LINGER_S

    async def read(self) -> None:
        try:
            await self.greet()
            await self._take(b"")  # what came behind the open
            while self.is_open:
                await self._parts.wait_out_alarm()
                data = await self.line.receive()
                if not data:
                    self.line.end = LOST
                    return
                await self._take(data)
        except trio.BrokenResourceError as error:
            self.line.end = f"lost: {error}"
        except trio.ClosedResourceError:
            return
        except Exception as error:
            self.crash(error)

    async def _take(self, data: bytes) -> None:
        self.turn.begin()
        self.run_inline = len(data) <= LITTLE_BYTES and self._few_others()
        frames = self.engine.frames_read
        await self.dispatch(self.engine.receive(data))
        while self.engine.more:
            await self.let_others()
            await self.dispatch(self.engine.receive(b""))
        self.flush()
        self.line.read_on(len(data), self.engine.frames_read - frames, len(self._parts.by_number))

    def _few_others(self) -> bool:
        # Whether few others were given little since this one was, so that theirs would hardly be a batch.
        relay = self._node_context.reply_registry.relay
        last, relay.reads = self._read_as, relay.reads + 1
        self._read_as = relay.reads
        return relay.reads - last <= 1 + OTHERS_MAX

    def tell(self, letter: AlarmChanged | ConfigChanged | AccessChanged) -> None:
        """Put a letter into every mailbox of its parts; an alarm that is over lets the reader go on."""
        if isinstance(letter, AlarmChanged) and not letter.on:
            self._parts.alarm_over()
        self._parts.tell(letter)

    async def let_others(self) -> None:
        """This turn is over: every other task runs once."""
        self.flush()
        await trio.lowlevel.checkpoint()
        self.turn.begin()

    async def shake_hands(self) -> None:
        """From the first byte to the answer to open, within the time allowed."""
        timeout_ms = self._node_context.config.handshake_timeout_ms
        with trio.move_on_after(timeout_ms / 1000) as limit:
            while not self.is_open and self.engine.state not in self.closed_states:
                data = await self.line.receive()
                if not data:
                    self.line.end = LOST
                    self.give_up()
                    return
                events = self.engine.receive(data)
                while events:
                    await self.dispatch(events)
                    if self.member is not None or self._refused is not None:
                        return  # it has its answer to open, and what is behind that does not hurry
                    # Bytes behind a frame that waited for our answer.
                    events = self.engine.receive(b"")
                self.flush()
        if limit.cancelled_caught:
            self.log.warning("handshake timed out", state=self.engine.state.name, timeout_ms=timeout_ms)
            self.give_up()

    def opened(self, frame_bytes_max: int, **said: object) -> None:
        """The client has the answer to its open. `frame_bytes_max`: of the largest frame that it takes; 0:
        any.
        """
        self.line.take_at_most(frame_bytes_max)
        self.log.info("connection open", **said, transport=self.origin.transport)

    async def log_in(self, step: Step) -> None:
        """One step of the login, with the time that it takes."""
        node_context = self._node_context
        assert self._authentication is not None
        answer = await node_context.logins.settle(self._authentication, step, self.origin.address)
        if isinstance(answer, Success | Failure):
            node_context.logins.attempts.count(self.protocol, succeeded=isinstance(answer, Success))
        if isinstance(answer, Success):
            self.user = answer.user
            self.credential.take(answer)
            self._parts.unfinished.within = node_context.unfinished.of(answer.user)
            if self.credential.is_token:
                self.line.start_companion(self._end_with_token)
            node_context.logged_in(self.number)
        elif not isinstance(answer, Challenge):
            if isinstance(answer, Failure):
                self.log.login_failed(answer, text=self.refusal_text())
            await node_context.logins.hold(
                self.origin.address, node_context.config.auth_failure_delay_ms / 1000
            )
        self.answer_login(answer)

    async def _end_with_token(self) -> None:
        await self.credential.over()
        self.expire()

    async def renew(self, token: bytes) -> bool:
        """Continue with another token. Returns whether it was accepted; if not, the connection is closed.

        After a login with a password any token is accepted, as in RabbitMQ: permissions are evaluated again.
        """
        problem = await self.credential.renew(token) if self.credential.is_token else None
        if problem is not None:
            self.log.warning("token refused", reason=problem)
            self.expel(TOKEN_REFUSED)
            return False
        if self.member is not None:
            try:
                self.member.permission_changed()
            except NotAllowed as refusal:
                self.expel(refusal.description)
            self.tell(ACCESS_CHANGED)
        return True

    async def go_on_with_login(self, response: bytes) -> None:
        """The client answers a challenge."""
        assert self._authentication is not None
        await self.log_in(self._authentication.respond(response))

    def start_heartbeats(self, timer: IdleTimer) -> None:
        """Send heartbeats, and end the connection after the idle time-out."""
        if timer.interval is not None:
            self.line.start_companion(self._keep_alive, timer, timer.interval)

    async def _keep_alive(self, timer: IdleTimer, interval: float) -> None:
        line = self.line
        while self.engine.state not in self.closed_states and not line.reading.cancel_called:
            await trio.sleep(interval)
            heartbeat, expired = timer.tick(
                trio.current_time(),
                line.bytes_received,
                line.writer.bytes_sent,
                # While the reader waits for something of ours, silence is not the client's.
                listening=self._parts.no_alarm is None and not self._parts.full,
            )
            if heartbeat:
                line.lane.put([self.heartbeat])
            if expired:
                self.on_idle_timeout()
                return

    def flush(self) -> None:
        """Pass the engine's output to the writer."""
        out = self.engine.take_output()
        if out:
            self.line.lane.put([out])

    # --- ends -------------------------------------------------------------------------------------

    def stop_parts(self) -> None:
        for part in self._parts.working:
            part.inbox.put(Stop())
            part.lane.abandon()

    def fail(self, fault: Fault, **details: Any) -> None:
        """Close the connection because the client, or the broker, cannot go on."""
        if not self.is_open:
            return
        self.engine.fail(fault)
        self.log_fault(fault, **details)
        self.line.stop()

    def log_fault(self, fault: Fault, **details: Any) -> None:
        """Log the error with which the connection is closed."""
        self.line.end = f"by the broker: {fault}"
        self.log.warning("connection closed by the broker", **self.fault_fields(fault), **details)

    def crash(self, error: Exception) -> None:
        """A fault of ours in this connection's tasks: log it once, with its cause, and end only this."""
        self.log.error("connection failed by a fault in the broker", exc_info=error)
        self.fail(self.fault_of_ours(error))
        self.line.stop()

    # --- status -----------------------------------------------------------------------------------

    def view_of(self, properties: Mapping[Any, Any] | None, **own: Any) -> ConnectionView:
        """Return the connection's view for front ends."""
        line = self.line
        return ConnectionView(
            id=self.number,
            protocol=self.protocol,
            peer=self.peer,
            user=self.user,
            vhost=self.vhost,
            state=self.state,
            bytes_in=line.bytes_received,
            bytes_out=line.writer.bytes_sent,
            writer_waiting_bytes=line.writer.waiting_bytes,
            last_error=self.log.last_error,
            counters=self.counted().document(),
            origin=OriginView(
                self.origin.local,
                self._began_ms,
                "" if self._authentication is None else self._authentication.mechanism,
                self.origin.tls,
                properties or {},
                self.origin.transport,
            ),
            **own,
        )
