"""One connection: its nursery, its reader, and the order in which it ends.

::

    connection nursery
    |-- writer                     outlives the sessions, so that it can send their last words
    |-- keepalive                  heartbeats out, silence in
    `-- inner nursery
        |-- reader                 (this task's own body)
        `-- one task a session

The reader ends first, whatever the reason: the client's close, a lost socket, a fault, a shutdown.
Then the sessions are told to stop, then the connection's own close is written, then the writer ends.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from amqp10broker import __version__
from amqp10broker.amqp10.connection import Connection, ConnectionState
from amqp10broker.amqp10.errors import AmqpConnectionError, AmqpError, Condition
from amqp10broker.amqp10.events import (
    BeginReceived,
    CloseReceived,
    ConnectionEvent,
    ConnectionFailed,
    FramesReceived,
    OpenReceived,
    SaslInitReceived,
    SaslResponseReceived,
)
from amqp10broker.amqp10.frames import HEARTBEAT
from amqp10broker.amqp10.heartbeat import IdleTimer
from amqp10broker.amqp10.performatives import SaslCode
from amqp10broker.security.login import Login, authenticate
from amqp10broker.service.context import SessionContext
from amqp10broker.service.sessions.open import check_open, open_properties
from amqp10broker.service.sessions.session import BrokerSession
from amqp10broker.tasks.log import Log
from amqp10broker.tasks.mail import AlarmChanged, ConfigChanged, Frames, SessionLetter, Stop
from amqp10broker.tasks.mailbox import Mailbox
from amqp10broker.tasks.queue import SessionAddress
from amqp10broker.tasks.session import RunningSession
from amqp10broker.tasks.stream import Stream
from amqp10broker.tasks.writer import Lane, Writer

if TYPE_CHECKING:
    from amqp10broker.tasks.broker import Broker

READ_BYTES: Final = 65_536
CLOSE_WAIT_S: Final = 2.0
"""How long a connection that we closed waits for the peer's close before the socket goes."""


def shutting_down() -> AmqpConnectionError:
    """The error with which connections are closed when the broker stops."""
    return AmqpConnectionError(Condition.CONNECTION_FORCED, "the broker is shutting down")


_log = Log("amqp10broker.connection")


class ConnectionTask:
    """One client's connection.

    Attributes:
        number: unique in this broker's life, for logs and status.
        peer: the client's address as text.
        user: authenticated name, empty before.
        engine: the protocol state.
        bytes_received: so far.
        end: how it ended, for the log.
    """

    def __init__(self, broker: Broker, stream: Stream, number: int, peer: str, *, loopback: bool) -> None:
        self._broker = broker
        self._stream = stream
        self._loopback = loopback
        self._writer = Writer(stream)
        self._lane = Lane(self._writer, None, broker.config.writer_buffer_bytes)
        self._sessions: dict[int, RunningSession] = {}
        self._reading = trio.CancelScope()
        self._inner: trio.Nursery | None = None
        self._outer: trio.Nursery | None = None
        self._stopped_by: AmqpError | None = None
        self.number = number
        self.end = "by the client"
        self.peer = peer
        self.user = ""
        self.bytes_received = 0
        config = broker.config
        self.engine = Connection(
            server=True,
            frame_size_max=config.max_frame_size_bytes,
            channel_max=config.session_max_per_connection - 1,
            mechanisms=tuple(mechanism.value for mechanism in broker.mechanisms),
        )

    # --- life -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the client until the connection is over; closes the stream."""
        try:
            async with trio.open_nursery() as outer:
                self._outer = outer
                outer.start_soon(self._run_writer)
                await self._run_inner()
                self._finish()
                # A client that does not read must not keep its connection alive for ever.
                outer.cancel_scope.deadline = trio.current_time() + CLOSE_WAIT_S
                await self._await_peer_close()
        finally:
            # A socket left open would be a leak; aclose never blocks long.
            with trio.CancelScope(shield=True):
                await self._stream.aclose()

    async def _run_writer(self) -> None:
        try:
            await self._writer.run()
        except trio.BrokenResourceError as error:
            self.end = f"lost: {error}"
            self._reading.cancel()
        except trio.ClosedResourceError:
            self._reading.cancel()
        assert self._outer is not None
        self._outer.cancel_scope.cancel()

    async def _run_inner(self) -> None:
        async with trio.open_nursery() as inner:
            self._inner = inner
            with self._reading:
                await self._read()
            for session in list(self._sessions.values()):
                session.inbox.put(Stop())
                session.lane.abandon()

    async def _read(self) -> None:
        """The reader: bytes to the engine, frames to sessions, until the connection is over."""
        try:
            await self._handshake()
            while self.engine.state is ConnectionState.OPENED:
                data = await self._stream.receive_some(READ_BYTES)
                if not data:
                    self.end = "lost: the client's socket ended without a close"
                    return
                self.bytes_received += len(data)
                await self._dispatch(self.engine.receive(bytes(data)))
                self._flush()
        except trio.BrokenResourceError as error:
            self.end = f"lost: {error}"
        except trio.ClosedResourceError:
            return
        except Exception as error:
            self.crash(error)

    async def _handshake(self) -> None:
        """From the protocol header to open, within the time allowed."""
        engine = self.engine
        with trio.move_on_after(self._broker.config.handshake_timeout_ms / 1000) as limit:
            while engine.state not in (
                ConnectionState.OPENED,
                ConnectionState.DISCARDING,
                ConnectionState.END,
            ):
                data = await self._stream.receive_some(READ_BYTES)
                if not data:
                    return
                self.bytes_received += len(data)
                events = engine.receive(bytes(data))
                while events:
                    await self._dispatch(events)
                    # Bytes behind a frame that waited for our answer.
                    events = engine.receive(b"")
                self._flush()
        if limit.cancelled_caught:
            _log.warning(
                "handshake timed out", connection=self.number, peer=self.peer, state=engine.state.name
            )
            engine.state = ConnectionState.END

    async def _await_peer_close(self) -> None:
        """After our close: read and throw away until the peer's close, the end, or the deadline."""
        engine = self.engine
        waits = engine.state in (ConnectionState.DISCARDING, ConnectionState.CLOSE_SENT)
        try:
            while waits and not self._writer.broken:
                data = await self._stream.receive_some(READ_BYTES)
                if not data:
                    break
                engine.receive(bytes(data))
                waits = engine.state in (ConnectionState.DISCARDING, ConnectionState.CLOSE_SENT)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            _log.debug("connection lost while closing", connection=self.number, reason=str(error))
        self._writer.finish(self._lane)

    # --- events -----------------------------------------------------------------------------------

    async def _dispatch(self, events: list[ConnectionEvent]) -> None:
        for event in events:
            match event:
                case FramesReceived():
                    await self._pass_on(event)
                case BeginReceived():
                    self._begin(event)
                case SaslInitReceived():
                    await self._log_in(event)
                case SaslResponseReceived():
                    raise AssertionError("no mechanism of ours sends a challenge")
                case OpenReceived():
                    self._open(event)
                case CloseReceived():
                    if event.error is not None:
                        _log.info(
                            "closed by the client with an error",
                            connection=self.number,
                            peer=self.peer,
                            condition=str(event.error.condition),
                            description=event.error.description,
                        )
                case ConnectionFailed():
                    self._log_fault(event.fault)

    async def _pass_on(self, event: FramesReceived) -> None:
        session = self._sessions.get(event.channel)
        if event.ended:
            self._sessions.pop(event.channel, None)
        if session is None:
            return
        if session.reads.full:
            self._flush()
            await session.reads.wait()
        session.reads.add()
        if not session.inbox.put(Frames(event.items)):
            session.reads.done()

    async def _log_in(self, event: SaslInitReceived) -> None:
        broker = self._broker
        login = authenticate(
            event.mechanism,
            event.initial_response or b"",
            users={user.name: user.password for user in broker.config.users},
            mechanisms=broker.mechanisms,
            anonymous_user=broker.config.anonymous_login_user,
            loopback_users=broker.config.loopback_users,
            loopback=self._loopback,
        )
        match login:
            case Login(user=str(user)):
                self.user = user
                self.engine.sasl_outcome(SaslCode.OK)
            case _:
                _log.warning("login failed", connection=self.number, peer=self.peer, reason=login.reason)
                # Guessing passwords has to be slow.
                await trio.sleep(broker.config.auth_failure_delay_ms / 1000)
                self.engine.sasl_outcome(SaslCode.AUTH)

    def _open(self, event: OpenReceived) -> None:
        config = self._broker.config
        fault = check_open(event.performative)
        if fault is not None:
            self.engine.fail(fault)
            self._log_fault(fault)
            return
        self.engine.open(
            self._broker.container_id,
            idle_time_out_ms=config.idle_timeout_ms // 2 or None,
            offered_capabilities=self._broker.offered_capabilities,
            properties=open_properties(
                self._broker.container_id, __version__, f"Python {platform.python_version()}"
            ),
        )
        self._flush()
        _log.info(
            "connection open",
            connection=self.number,
            peer=self.peer,
            user=self.user,
            container_id=event.performative.container_id,
        )
        timer = IdleTimer(config.idle_timeout_ms, event.performative.idle_time_out, trio.current_time())
        if timer.interval is not None:
            assert self._outer is not None
            self._outer.start_soon(self._keep_alive, timer, timer.interval)

    async def _keep_alive(self, timer: IdleTimer, interval: float) -> None:
        while self.engine.state is ConnectionState.OPENED and not self._reading.cancel_called:
            await trio.sleep(interval)
            heartbeat, expired = timer.tick(
                trio.current_time(),
                self.bytes_received,
                self._writer.bytes_sent,
                listening=not self._waits_for_session(),
            )
            if heartbeat:
                self._lane.put([HEARTBEAT])
            if expired:
                self.fail(
                    AmqpConnectionError(
                        Condition.RESOURCE_LIMIT_EXCEEDED,
                        "no frame received from client within idle timeout threshold",
                    )
                )
                return

    def _waits_for_session(self) -> bool:
        return any(session.reads.full for session in self._sessions.values())

    def _begin(self, event: BeginReceived) -> None:
        broker = self._broker
        inbox: Mailbox[SessionLetter] = Mailbox()
        opened = self.engine.remote_open
        assert opened is not None
        context = SessionContext(
            catalog=broker.catalog,
            config=broker.config,
            reply_to=SessionAddress(f"{self.number}.{event.channel}", inbox),
            user=self.user,
            container_id=opened.container_id,
            connection=self,
            new_id=broker.new_id,
        )
        service = BrokerSession(
            event.channel,
            event.performative,
            context,
            frame_size_max=self.engine.frame_size_max,
            alarm=bool(broker.alarms),
        )
        session = RunningSession(service, inbox, Lane(self._writer, inbox, broker.config.writer_buffer_bytes))
        self._sessions[event.channel] = session
        assert self._inner is not None
        self._inner.start_soon(self._run_session, event.channel, session)

    async def _run_session(self, channel: int, session: RunningSession) -> None:
        try:
            await session.run(self.fail)
        except Exception as error:
            self.crash(error)
        finally:
            if self._sessions.get(channel) is session:
                # The client's end is still to come: its frames until then are for nobody.
                del self._sessions[channel]

    # --- ends -------------------------------------------------------------------------------------

    def fail(self, fault: AmqpError) -> None:
        """Close the connection because the peer, or the broker, cannot go on."""
        if self.engine.state is not ConnectionState.OPENED:
            return
        self.engine.fail(fault)
        self._log_fault(fault)
        self._reading.cancel()

    def crash(self, error: Exception) -> None:
        """A fault of ours in this connection's tasks: log it once, with its cause, and end only this."""
        _log.error(
            "connection failed by a fault in the broker",
            connection=self.number,
            peer=self.peer,
            exc_info=error,
        )
        self.fail(AmqpConnectionError(Condition.INTERNAL_ERROR, f"Session error: {type(error).__name__}"))
        self._reading.cancel()

    def shut_down(self, fault: AmqpError) -> None:
        """End in an orderly way because the broker stops, or somebody asked for it."""
        self._stopped_by = fault
        self.end = f"by the broker: {fault}"
        self._reading.cancel()

    def tell_sessions(self, letter: AlarmChanged | ConfigChanged) -> None:
        """Put a letter into every session's mailbox."""
        for session in self._sessions.values():
            session.inbox.put(letter)

    def _finish(self) -> None:
        """All sessions are over: the connection's own last frame."""
        engine = self.engine
        if engine.state is ConnectionState.CLOSE_RECEIVED:
            engine.close()
        elif engine.state is ConnectionState.OPENED and self._stopped_by is not None:
            engine.close(self._stopped_by)
        self._flush()

    def _flush(self) -> None:
        out = self.engine.take_output()
        if out:
            self._lane.put([out])

    def _log_fault(self, fault: AmqpError) -> None:
        self.end = f"by the broker: {fault}"
        _log.warning(
            "connection closed by the broker",
            connection=self.number,
            peer=self.peer,
            condition=fault.condition,
            description=fault.description,
        )

    # --- status -----------------------------------------------------------------------------------

    def status(self, session_status: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        """What `amqp10broker status` shows of this connection."""
        engine = self.engine
        opened = engine.remote_open
        return {
            "id": self.number,
            "peer": self.peer,
            "user": self.user,
            "container_id": opened.container_id if opened else None,
            "state": engine.state.name.lower(),
            "channel_max": engine.channel_max,
            "frame_max": engine.frame_size_max,
            "idle_timeout_ms": opened.idle_time_out if opened else None,
            "bytes_in": self.bytes_received,
            "bytes_out": self._writer.bytes_sent,
            "writer_waiting_bytes": self._writer.waiting_bytes,
            "sessions": [
                session_status(session.service, writer_blocked=session.lane.blocked)
                for _, session in sorted(self._sessions.items())
            ],
        }
