"""The common base of the connections of both protocols: reader, login, heartbeats, end. README.md has its
tasks.

The reader ends first, whatever the reason: the client's close, a lost socket, a fault, a shutdown. Then
sessions or channels stop, then the connection's own last frame is written, then the writer ends.
`Connections.linger` closes the stream.

It is a base class because observers (status, tracing, rights, the recorder) need one object with one set of
names.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import field
from enum import Enum
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

import trio

from amqp10broker.auth.authorise import Access, CatalogGrants, Grants, account_of, check_vhost_access
from amqp10broker.auth.login import (
    Authentication,
    Challenge,
    Failure,
    Mechanism,
    Peer,
    Step,
    Success,
    Unverified,
)
from amqp10broker.auth.tokens import TokenGrants
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotAllowed, ResourceLocked
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.queue import Owner
from amqp10broker.metadata.queue_requests import ConnectionEnded
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.operations.snapshot import ConnectionView, OriginView
from amqp10broker.protocols.connection import Budget, IdleTimer
from amqp10broker.queues.commands import ReplyTo
from amqp10broker.runtime.connections.session_task import (
    PORTION,
    EndpointTask,
    OutputBuffer,
    ReadBudget,
    Writer,
)
from amqp10broker.runtime.connections.sockets import (
    CLOSE_WAIT_S,
    LINGER_S,
    READ_BYTES,
    Stream,
    WebSocketTransport,
)
from amqp10broker.runtime.context import ConnectionContext
from amqp10broker.runtime.log import ConnectionLog, Log
from amqp10broker.runtime.mailbox import LITTLE_BYTES, OTHERS_MAX, Mailbox
from amqp10broker.sessions.counters import ClientCounters, Measures, Moment
from amqp10broker.sessions.diagnosis.wait_reasons import WaitContext
from amqp10broker.sessions.messages import (
    AlarmChanged,
    ConfigChanged,
    Notice,
    SessionMessage,
    Stop,
)

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class VhostSlot:
    """A connection's place in a virtual host, which counts until it leaves."""

    _catalog: Catalog
    vhost: VirtualHost
    _grants: Grants
    _owner: Owner
    _container: str | None
    _left: bool = False
    _entry: Hashable | None = field(init=False)

    def __post_init__(self) -> None:
        self._entry = self._grants.entry(self.vhost.name)

    @classmethod
    def enter(
        cls,
        catalog: Catalog,
        vhost: str,
        grants: Grants,
        owner: Owner,
        *,
        container: str | None = None,
        sole: bool = False,
    ) -> Self:
        """Count a connection in. `sole`: it must be the only one of its container. Raises `ResourceLocked` if
        its container has a connection, and one of the two must be the only one; `NotFound` without such a
        virtual host; and `NotAllowed` if the user may not enter it, or a limit of connections is reached.
        """
        found = catalog.lookup_vhost(vhost)
        check_vhost_access(grants, vhost)
        usage = catalog.usage
        usage.open_connection(found, account_of(grants))
        if container is not None:
            try:
                usage.open_container(found.name, container, sole=sole)
            except ResourceLocked:
                usage.close_connection(found.name, grants.user)
                raise
        return cls(catalog, found, grants, owner, container)

    def permission_changed(self) -> bool:
        """Whether the user's permission has changed since the last call. Raises `NotAllowed` without one."""
        check_vhost_access(self._grants, self.vhost.name)
        before, self._entry = self._entry, self._grants.entry(self.vhost.name)
        return self._entry != before

    def leave(self) -> None:
        """Count it out, and delete its exclusive queues. May be called twice."""
        if self._left:
            return
        self._left = True
        usage = self._catalog.usage
        usage.close_connection(self.vhost.name, self._grants.user)
        if self._container is not None:
            usage.close_container(self.vhost.name, self._container)
        self._catalog.see_to(ConnectionEnded(self.vhost.name, self._owner))


Event = TypeVar("Event")
Fault = TypeVar("Fault", bound=Exception)
FaultIn = TypeVar("FaultIn", bound=Exception, contravariant=True)
TaskT = TypeVar("TaskT", bound=EndpointTask[Any])

CREDENTIAL_EXPIRED: Final = "credential expired"
TOKEN_REFUSED: Final = "token refused: it is no token, or of another user, or has expired"
LOST: Final = "lost: the client's socket ended without a close"

READ_BYTES_MAX: Final = 512 * 1024
"""The size of a read while large frames come, for a client with one session or channel: half of what a
session may write of large messages in a step (`sessions.context`).
"""

LARGE_FRAME_BYTES: Final = 8192
"""The average size of a read's frames for the next read to be larger: it then has at most 128 frames."""

_log = Log("amqp10broker.connection")


class Engine(Protocol[Event, FaultIn]):
    """The protocol's state machine: bytes go in, events come out; commands go in, bytes come out."""

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


class ClientConnection(ABC, Generic[Event, Fault, TaskT]):
    """One client's connection.

    Attributes:
        member: its place in a virtual host; None before it is open.
        budget: how much the reader may still hand over before other tasks run.
        run_inline: whether frames of the last read are handled inline (`mailbox`).
        end: how the connection ended, for the log.
        parts: its sessions or channels by number. A session that its client has ended is not among them, and
            may still be among `working`.
        begun: the number of sessions or channels so far.
        no_alarm: the event for which the reader waits; None while it does not wait for the end of an alarm.
        held_by: the session or channel for which the reader waits.
    """

    protocol: ClassVar[str]
    word: ClassVar[str]
    """The word for its parts, in the log and in the names of queues' clients."""
    heartbeat: ClassVar[bytes]
    open_state: ClassVar[Enum]
    awaiting_states: ClassVar[frozenset[Any]]
    """The states in which the client's close, or its answer to ours, is still to come."""
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
        unfinished: Budget,
    ) -> None:
        """Create a connection that is ready to run. `unfinished`: bounds the bytes of incomplete messages."""
        self._node_context = node_context
        self._authentication: Authentication | None = None
        self._began_ms = node_context.clock.now_ms()
        self._refused: Fault | None = None
        self._given_up = False
        self.number = number
        self.owner = Owner(node_context.reply_registry.node, node_context.reply_registry.incarnation, number)
        self.peer = peer
        self.origin = origin
        self.user = ""
        self.grants: CatalogGrants | TokenGrants = CatalogGrants(node_context.catalog.users, "")
        self._renewed = trio.Event()
        self.engine = engine
        self.unfinished = unfinished
        self.log = ConnectionLog(number, peer, node_context.log_limits, node_context.catalog)
        self.member: VhostSlot | None = None
        # The stream, and the buffers for reading and writing.
        self.stream = stream
        self.writer = Writer(stream)
        self.output = OutputBuffer(self.writer, None, node_context.config.writer_buffer_bytes)
        self.reading = trio.CancelScope()
        self.end = "by the client"
        self.bytes_received = 0
        self.budget = ReadBudget()
        self.run_inline = False
        self._first_bytes = first_bytes
        self._read_bytes = READ_BYTES
        self._read_as = 0
        self._inner: trio.Nursery | None = None
        self._outer: trio.Nursery | None = None
        # Sessions or channels.
        self.parts: dict[int, TaskT] = {}
        self.working: set[TaskT] = set()
        self.begun = 0
        self.measures = Measures()
        self.held_by: TaskT | None = None
        self.no_alarm: trio.Event | None = None
        self._blocked_at = 0.0
        self._gone = ClientCounters()

    @property
    def vhost(self) -> str:
        return "" if self.member is None else self.member.vhost.name

    @property
    @abstractmethod
    def client_name(self) -> str:
        """The name that the client has sent; empty if it sent none."""

    @property
    def blocked_s(self) -> float:
        return self.writer.blocked_s

    @property
    def is_open(self) -> bool:
        return self.engine.state is self.open_state

    # --- the protocol's part ----------------------------------------------------------------------

    @abstractmethod
    async def greet(self) -> None:
        """Make the handshake, until the connection is open or over."""

    @abstractmethod
    async def dispatch(self, events: list[Event]) -> None:
        """Carry out the events that the client caused."""

    @abstractmethod
    def answer_login(self, step: Success | Challenge | Failure | Unverified) -> None:
        """Send the next step of the login. A failure has been delayed before."""

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
        """Close the connection because the user may not use its virtual host any more."""

    @abstractmethod
    def expire(self) -> None:
        """Close the connection because the user's token has ended."""

    @abstractmethod
    def close(self, reason: str, *, node_stops: bool) -> None:
        """End in order because the node stops serving, or an operator requested it."""

    @abstractmethod
    def on_idle_timeout(self) -> None:
        """End the connection because no bytes have come for too long."""

    @abstractmethod
    def write_last(self) -> None:
        """Write the connection's own last frame, when all parts have ended."""

    @abstractmethod
    def take_rest(self, data: bytes) -> None:
        """Handle bytes that come while the peer's close is expected."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether the reader waits, or soon will, for a part."""

    @abstractmethod
    async def wait_out_alarm(self) -> None:
        """Return when the client may send. Connections that have sent little in an alarm continue at once."""

    @abstractmethod
    async def work(self, number: int, part: TaskT) -> None:
        """Run the task of a part to its end, and close the connection if that fails."""

    @abstractmethod
    def view(self) -> ConnectionView: ...

    @abstractmethod
    def around(self, part: TaskT) -> WaitContext:
        """Return the connection's present activity, for one of its parts."""

    # --- life -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the client until the connection is over; the stream stays open for `linger_s`."""
        try:
            async with trio.open_nursery() as outer:
                self._outer = outer
                # A read resumes every coroutine frame above it: a task of its own has the fewest.
                outer.start_soon(self._run_reader, outer.cancel_scope)
                await self._run_writer()
        finally:
            self.leave()
            self.unfinished.leave()

    async def _run_reader(self, outer: trio.CancelScope) -> None:
        async with trio.open_nursery() as inner:
            self._inner = inner
            with self.reading:
                await self._read()
            self._stop_parts()
        self.write_last()
        # Otherwise a client that does not read would keep its connection alive forever.
        outer.deadline = trio.current_time() + CLOSE_WAIT_S
        await self._await_peer_close()

    def leave(self) -> None:
        if self.member is not None:
            self.member.leave()

    def release(self) -> None:
        """Drop the references back to it when it is over (see `SessionEndpoint.release`)."""

    def give_up(self) -> None:
        self._given_up = True
        self.engine.abandon()

    def stop(self) -> None:
        self.reading.cancel()

    @property
    def linger_s(self) -> float:
        """How long the client may take to close its socket when the connection is over."""
        if self._given_up or self.writer.waiting_bytes:
            return 0.0
        return CLOSE_WAIT_S if self.member is None else LINGER_S

    def start_companion(self, run: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        assert self._outer is not None
        self._outer.start_soon(run, *arguments)

    async def _run_writer(self) -> None:
        try:
            await self.writer.run()
        except trio.BrokenResourceError as error:
            self.end = f"lost: {error}"
            self.stop()
        except trio.ClosedResourceError:
            self.stop()
        assert self._outer is not None
        self._outer.cancel_scope.cancel()

    async def _await_peer_close(self) -> None:
        # After the broker's close: read and drop everything until the peer's close, the end, or the deadline.
        try:
            while self.engine.state in self.awaiting_states and not self.writer.broken:
                data = await self.receive()
                if not data:
                    break
                self.take_rest(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            _log.debug("connection lost while closing", reason=str(error))
        self.writer.finish(self.output)

    # --- the reader -------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            await self.greet()
            await self._take(b"")  # bytes that came after the open
            while self.is_open:
                if self._node_context.alarms:
                    await self.wait_out_alarm()
                data = await self.receive()
                if not data:
                    self.end = LOST
                    return
                await self._take(data)
        except trio.BrokenResourceError as error:
            self.end = f"lost: {error}"
        except trio.ClosedResourceError:
            return
        except Exception as error:
            self.crash(error)

    async def receive(self) -> bytes:
        """Wait for bytes; empty at the end. Raises `trio.BrokenResourceError` if the peer reset the
        connection.
        """
        if self._first_bytes:
            data, self._first_bytes = self._first_bytes, b""
        else:
            data = bytes(await self.stream.receive_some(self._read_bytes))
        self.bytes_received += len(data)
        if self.writer.tap is not None:
            self.writer.tap.received(data)
        return data

    async def _take(self, data: bytes) -> None:
        self.budget.left = PORTION
        inline = self._node_context.reply_registry.inline
        last, self._read_as = self._read_as, inline.reads + 1
        inline.reads += 1
        # Handle them inline if few other connections got little meanwhile: they would hardly make a batch.
        self.run_inline = len(data) <= LITTLE_BYTES and inline.reads - last <= 1 + OTHERS_MAX
        engine = self.engine
        frames = engine.frames_read
        await self.dispatch(engine.receive(data))
        while engine.more:
            await self.yield_to_others()
            await self.dispatch(engine.receive(b""))
        frames = engine.frames_read - frames
        out = engine.take_output()
        if out:
            self.output.put([out])
        self._read_bytes = next_read_bytes(len(data), frames, len(self.parts))

    async def yield_to_others(self) -> None:
        """Let every other task run once, and begin another portion."""
        self.flush()
        await trio.lowlevel.checkpoint()
        self.budget.left = PORTION

    def flush(self) -> None:
        out = self.engine.take_output()
        if out:
            self.output.put([out])

    # --- login ------------------------------------------------------------------------------------

    async def shake_hands(self) -> None:
        """Run the handshake, from the first byte to the answer to open, within the time allowed."""
        timeout_ms = self._node_context.config.handshake_timeout_ms
        with trio.move_on_after(timeout_ms / 1000) as limit:
            while not self.is_open and self.engine.state not in self.closed_states:
                data = await self.receive()
                if not data:
                    self.end = LOST
                    self.give_up()
                    return
                events = self.engine.receive(data)
                while events:
                    await self.dispatch(events)
                    if self.member is not None or self._refused is not None:
                        return  # it has its answer to open, and later bytes are not urgent
                    # These bytes followed a frame that waited for the broker's answer.
                    events = self.engine.receive(b"")
                self.flush()
        if limit.cancelled_caught:
            self.log.warning("handshake timed out", state=self.engine.state.name, timeout_ms=timeout_ms)
            self.give_up()

    def opened(self, frame_bytes_max: int, **said: object) -> None:
        """Note that the client has the answer to its open. `frame_bytes_max`: the most that it takes; 0:
        any.
        """
        if frame_bytes_max and isinstance(self.stream, WebSocketTransport):
            self.stream.take_at_most(frame_bytes_max)
        self.log.info("connection open", **said, transport=self.origin.transport)

    async def log_in(self, step: Step) -> None:
        """Make one step of the login, which may take time."""
        node_context = self._node_context
        assert self._authentication is not None
        answer = await node_context.logins.settle(
            self._authentication, step, self.origin.address, self.protocol
        )
        if isinstance(answer, Success):
            self.user = self.log.client["user"] = answer.user
            self.grants = answer.token or CatalogGrants(node_context.catalog.users, answer.user)
            self.unfinished.within = node_context.unfinished.of(answer.user)
            if answer.token is not None:
                self.start_companion(self._end_with_token)
            node_context.logged_in(self.number)
        elif not isinstance(answer, Challenge):
            if isinstance(answer, Failure):
                self.log.login_failed(answer, text=self.refusal_text())
            await node_context.logins.hold(
                self.origin.address, node_context.config.auth_failure_delay_ms / 1000
            )
        self.answer_login(answer)

    async def _end_with_token(self) -> None:
        # Wait for the end of the token, or of the last one that the client has sent.
        clock = self._node_context.clock
        while isinstance(self.grants, TokenGrants):
            self._renewed = trio.Event()
            deadline = math.inf
            if self.grants.expires_at is not None:
                # Authorities round `exp` down to whole seconds, so the present second counts, as in RabbitMQ:
                # a token that ends in three seconds is valid for that long.
                deadline = clock.trio_time(int(self.grants.expires_at * 1000) + clock.now_ms() % 1000)
            with trio.move_on_at(deadline) as limit:
                await self._renewed.wait()
            if limit.cancelled_caught:
                self.expire()
                return

    async def renew(self, token: bytes) -> bool:
        """Continue with another token. Returns whether it was accepted; if not, the connection is closed.

        After a login with a password any token is accepted, as in RabbitMQ; permissions are evaluated again.
        """
        problem = await self._take_token(self.grants, token) if isinstance(self.grants, TokenGrants) else None
        if problem is not None:
            self.log.warning("token refused", reason=problem)
            self.expel(TOKEN_REFUSED)
            return False
        if self.member is not None:
            try:
                self.member.permission_changed()
            except NotAllowed as refusal:
                self.expel(refusal.description)
            self.tell(Notice.ACCESS_CHANGED)
        return True

    async def _take_token(self, grants: TokenGrants, token: bytes) -> str | None:
        # Return None if it was accepted, else the reason, for the log. The old token then stays valid.
        authentication = self._node_context.authenticator.begin(self.origin)
        step = authentication.start(Mechanism.PLAIN.value, b"\0\0" + token)
        answer = await self._node_context.logins.settle(authentication, step, self.origin.address)
        if not isinstance(answer, Success):
            return "it is no answer" if isinstance(answer, Challenge) else answer.reason
        if answer.token is None or answer.user != grants.user:
            return f"it is of user '{answer.user}', not of '{grants.user}'"
        grants.renew(answer.token)
        self._renewed.set()
        return None

    async def go_on_with_login(self, response: bytes) -> None:
        assert self._authentication is not None
        await self.log_in(self._authentication.resume(response))

    def start_heartbeats(self, timer: IdleTimer) -> None:
        """Send heartbeats, and end the connection after the idle time-out."""
        if timer.interval is not None:
            self.start_companion(self._keep_alive, timer, timer.interval)

    async def _keep_alive(self, timer: IdleTimer, interval: float) -> None:
        while self.engine.state not in self.closed_states and not self.reading.cancel_called:
            await trio.sleep(interval)
            heartbeat, expired = timer.tick(
                trio.current_time(),
                self.bytes_received,
                self.writer.bytes_sent,
                # While the reader waits for a part of the broker, the client is not silent.
                listening=self.no_alarm is None and not self.full,
            )
            if heartbeat:
                self.output.put([self.heartbeat])
            if expired:
                self.on_idle_timeout()
                return

    # --- sessions or channels ---------------------------------------------------------------------

    def tell(self, message: AlarmChanged | ConfigChanged | Notice) -> None:
        for part in self.parts.values():
            part.inbox.put(message)

    def counted(self) -> ClientCounters:
        """The counters of its parts, including ended ones."""
        return ClientCounters.sum_of([self._gone, *(part.service.counted() for part in self.working)])

    def count_part(self) -> None:
        """Count one more part of the user. Raises `RefusedError`."""
        self._node_context.catalog.usage.open_channel(account_of(self.grants))

    def context_of(self, number: int, inbox: Mailbox[SessionMessage]) -> dict[str, Any]:
        """The context of one more part (`EndpointContext`)."""
        node_context = self._node_context
        assert self.member is not None, "not open"
        label = f"connection {self.number}, {self.word} {number}"
        return {
            "catalog": node_context.catalog,
            "vhost": self.member.vhost,
            "access": Access(self.grants, self.vhost),
            "config": node_context.config,
            "reply_to": node_context.reply_registry.open(label, inbox),
            "user": self.user,
            "propose": node_context.propose,
            "connection": self.owner,
            "new_id": node_context.new_id,
            "volatile": node_context.make_volatile,
            "log": self.log,
            "moment": Moment(node_context.clock.now_ms(), self.measures),
            "commits": node_context.commits(inbox),
        }

    def output_buffer(self, inbox: Mailbox[SessionMessage]) -> OutputBuffer:
        return OutputBuffer(self.writer, inbox, self._node_context.config.writer_buffer_bytes)

    def start(self, number: int, part: TaskT, reply_to: ReplyTo, *, counted: bool) -> None:
        """Start a part, whose task ends before the connection's last frame."""
        self.begun += 1
        self.parts[number] = part
        self.working.add(part)
        self._node_context.part_begun(self.number, number)
        assert self._inner is not None
        self._inner.start_soon(self._run_part, number, part, reply_to, counted)

    async def _run_part(self, number: int, part: TaskT, reply_to: ReplyTo, counted: bool) -> None:
        node_context = self._node_context
        try:
            await self.work(number, part)
        except Exception as error:
            self.crash(error)
        finally:
            self.working.discard(part)
            self._gone.add(part.service.counted())
            node_context.reply_registry.close(reply_to)
            if counted:
                node_context.catalog.usage.close_channel(self.user)
            if self.parts.get(number) is part:
                # Frames that the client still sends on it are dropped.
                del self.parts[number]
            part.service.release()

    async def wait_for_no_alarm(self) -> None:
        self.no_alarm, self._blocked_at = trio.Event(), trio.current_time()
        try:
            await self.no_alarm.wait()
        finally:
            self.no_alarm = None

    def wait_context(self, output: OutputBuffer) -> WaitContext:
        clock, writer = self._node_context.clock, self.writer
        waits = writer.waiting_bytes and not writer.broken
        return WaitContext(
            clock.now_ms(),
            writer_blocked=output.blocked,
            writer_ms=clock.ms_at(writer.waiting_since) if waits else None,
            writer_bytes=writer.waiting_bytes,
            alarms=tuple(sorted(self._node_context.alarms)),
            blocked_ms=None if self.no_alarm is None else clock.ms_at(self._blocked_at),
        )

    # --- ends -------------------------------------------------------------------------------------

    def _stop_parts(self) -> None:
        for part in self.working:
            part.inbox.put(Stop())
            part.output.abandon()

    def fail(self, fault: Fault, **details: Any) -> None:
        """Close the connection because the client, or the broker, cannot continue."""
        if not self.is_open:
            return
        self.engine.fail(fault)
        self.log_fault(fault, **details)
        self.stop()

    def log_fault(self, fault: Fault, **details: Any) -> None:
        self.end = f"by the broker: {fault}"
        self.log.warning("connection closed by the broker", **self.fault_fields(fault), **details)

    def crash(self, error: Exception) -> None:
        """Log an internal error in this connection's tasks once, with its cause, and end only the
        connection.
        """
        self.log.error("connection failed by a fault in the broker", exc_info=error)
        self.fail(self.fault_of_ours(error))
        self.stop()

    # --- status -----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return "blocked" if self.no_alarm is not None else self.engine.state.name.lower()

    def view_of(self, properties: Mapping[Any, Any] | None, **own: Any) -> ConnectionView:
        return ConnectionView(
            id=self.number,
            protocol=self.protocol,
            peer=self.peer,
            user=self.user,
            vhost=self.vhost,
            state=self.state,
            bytes_in=self.bytes_received,
            bytes_out=self.writer.bytes_sent,
            writer_waiting_bytes=self.writer.waiting_bytes,
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


def next_read_bytes(given: int, frames: int, parts: int) -> int:
    """Return the size of the next read. It may double while large frames fill the last one.

    `given`: bytes of the last read; `frames`: their number of frames; `parts`: sessions or channels of the
    connection. Each queues up to four messages of what is read, and processes them in one step. So reads
    shrink with the number of parts, and with small frames do not exceed `READ_BYTES`.
    """
    if given < READ_BYTES or frames * LARGE_FRAME_BYTES > given:
        return READ_BYTES
    return max(READ_BYTES, min(2 * given, READ_BYTES_MAX // max(1, parts)))
