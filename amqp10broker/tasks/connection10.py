"""One AMQP 1.0 connection: its reader, and its sessions' tasks. See `lifeline` for the order of its end."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import trio

from amqp10broker import __version__
from amqp10broker.amqp10.connection import Connection, ConnectionState
from amqp10broker.amqp10.errors import AmqpConnectionError, AmqpError, AmqpSessionError, Condition
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
from amqp10broker.amqp10.transfer import payload_bytes
from amqp10broker.amqp10.unfinished import Unfinished
from amqp10broker.errors import NotAllowed, RefusedError
from amqp10broker.management.snapshot import ConnectionView
from amqp10broker.security.authorise import Access
from amqp10broker.security.login import Authentication, Challenge, Crowded, Failure, Peer, Step, Success
from amqp10broker.service.context import SessionContext
from amqp10broker.service.counters import ClientCounters
from amqp10broker.service.moment import Moment
from amqp10broker.service.sessions.names import LinkNames
from amqp10broker.service.sessions.open import (
    check_open,
    open_properties,
    refused_properties,
    vhost_of,
)
from amqp10broker.service.sessions.session import BrokerSession
from amqp10broker.service.sessions.status import session_view
from amqp10broker.service.sessions.surroundings import Surroundings
from amqp10broker.tasks.connection_log import ConnectionLog
from amqp10broker.tasks.lifeline import Lifeline
from amqp10broker.tasks.mail import (
    AccessChanged,
    AlarmChanged,
    ConfigChanged,
    Frames,
    LinkStolen,
    SessionLetter,
    Stop,
)
from amqp10broker.tasks.mailbox import Bound, Mailbox
from amqp10broker.tasks.membership import Membership
from amqp10broker.tasks.queue import SessionAddress
from amqp10broker.tasks.session import RunningSession
from amqp10broker.tasks.stream import Stream
from amqp10broker.tasks.turns import HEAVY, PORTION, Turn
from amqp10broker.tasks.writer import Lane

if TYPE_CHECKING:
    from amqp10broker.tasks.broker import Broker

EXCESS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Payload of transfers that is taken from one connection during an alarm: what a client had given to its
socket before it heard that its windows are closed. The windows alone would let 52 MB come on each session,
400 frames of 128 KiB."""


class Connection10:
    """One client's connection.

    Attributes:
        number: unique in this broker's life, for logs and status.
        peer: the client's address as text.
        user: authenticated name, empty before.
        engine: the protocol state.
        line: stream, writer and tasks.
        log: what is logged of it.
    """

    protocol = "AMQP 1.0"

    def __init__(
        self,
        broker: Broker,
        stream: Stream,
        number: int,
        peer: str,
        *,
        origin: Peer,
        first_bytes: bytes = b"",
    ) -> None:
        self._broker = broker
        self._origin = origin
        self._sessions: dict[int, RunningSession] = {}
        # The session for which the reader waits, its channel, and since when, by Trio's clock.
        self._held_by: RunningSession | None = None
        self._held_channel = 0
        self._held_at = 0.0
        self._link_names = LinkNames()
        self._stopped_by: AmqpError | None = None
        # Those whose task is not over; the client may have ended them already.
        self._working: set[RunningSession] = set()
        self._gone = ClientCounters()
        self._refused: AmqpConnectionError | None = None
        self._authentication: Authentication | None = None
        self._member: Membership | None = None
        self._turn = Turn()
        self._no_alarm: trio.Event | None = None
        self._excess_bytes = 0
        config = broker.config
        # A session counts until its task is gone, which is later than its channel is free again.
        self._running = Bound(config.session_max_per_connection)
        self._unfinished = Unfinished(max(config.unfinished_bytes_max, 2 * config.max_message_size_bytes))
        self.line = Lifeline(stream, first_bytes, config.writer_buffer_bytes)
        self.log = ConnectionLog(self, broker.log_limits, broker.catalog)
        self.number = number
        self.peer = peer
        self.user = ""
        self.engine = Connection(
            server=True,
            frame_size_max=config.max_frame_size_bytes,
            channel_max=config.session_max_per_connection - 1,
            mechanisms=tuple(each.value for each in broker.authenticator.offered(origin)),
            frames_singly_max=PORTION,
        )

    @property
    def end(self) -> str:
        """How the connection ended, for the log."""
        return self.line.end

    @property
    def vhost(self) -> str:
        """The virtual host it is in, empty before it is open."""
        return "" if self._member is None else self._member.vhost.name

    @property
    def member(self) -> Membership | None:
        """Its place in a virtual host; None before it is open."""
        return self._member

    @property
    def client_name(self) -> str:
        """The container-id of the client, empty before it has opened."""
        opened = self.engine.remote_open
        return opened.container_id if opened else ""

    @property
    def parts(self) -> Mapping[int, RunningSession]:
        """Its sessions, by channel."""
        return self._sessions

    # --- life -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the client until the connection is over; closes the stream."""
        try:
            await self.line.run(self)
        finally:
            self._leave()

    def release(self) -> None:
        """Over: nothing of it refers back to it any more (see `BrokerSession.release`)."""
        self.log.release()

    def _leave(self) -> None:
        if self._member is not None:
            self._member.leave()

    async def read(self) -> None:
        """The reader: bytes to the engine, frames to sessions, until the connection is over."""
        try:
            await self._handshake()
            if self._refused is not None:
                await self._refuse(self._refused)
                return
            await self._take(b"")  # what came behind the open
            while self.engine.state is ConnectionState.OPENED:
                await self._wait_out_alarm()
                data = await self.line.receive()
                if not data:
                    self.line.end = "lost: the client's socket ended without a close"
                    return
                await self._take(data)
        except trio.BrokenResourceError as error:
            self.line.end = f"lost: {error}"
        except trio.ClosedResourceError:
            return
        except Exception as error:
            self.crash(error)

    def stop_parts(self) -> None:
        """Tell the sessions to end."""
        for session in list(self._sessions.values()):
            session.inbox.put(Stop())
            session.lane.abandon()

    async def _take(self, data: bytes) -> None:
        """Work off what the client sent."""
        self._turn.begin()
        engine = self.engine
        await self._dispatch(engine.receive(data))
        while engine.more:
            await self._let_others()
            await self._dispatch(engine.receive(b""))
        self._flush()

    async def _handshake(self) -> None:
        """From the protocol header to open, within the time allowed."""
        engine = self.engine
        with trio.move_on_after(self._broker.config.handshake_timeout_ms / 1000) as limit:
            while engine.state not in (
                ConnectionState.OPENED,
                ConnectionState.DISCARDING,
                ConnectionState.END,
            ):
                data = await self.line.receive()
                if not data:
                    return
                events = engine.receive(data)
                while events:
                    await self._dispatch(events)
                    if self._member is not None or self._refused is not None:
                        return  # it is open, and what is behind that does not hurry
                    # Bytes behind a frame that waited for our answer.
                    events = engine.receive(b"")
                self._flush()
        if limit.cancelled_caught:
            timeout_ms = self._broker.config.handshake_timeout_ms
            self.log.warning("handshake timed out", state=engine.state.name, timeout_ms=timeout_ms)
            engine.state = ConnectionState.END

    async def _refuse(self, fault: AmqpConnectionError) -> None:
        """Close what was opened only to say why it is refused: when the client goes on, or after a while.

        A client that gets open and close at one time hears of the close alone (`refused_properties`). And
        trying names of virtual hosts has to be as slow as guessing passwords.
        """
        if not self.engine.receive(b""):
            with trio.move_on_after(self._broker.config.auth_failure_delay_ms / 1000):
                data = await self.line.receive()
                if not data:
                    return
                self.engine.receive(data)
        self.engine.fail(fault)
        self._flush()

    @property
    def awaits_close(self) -> bool:
        """Whether the client's close is still to come."""
        return self.engine.state in (ConnectionState.DISCARDING, ConnectionState.CLOSE_SENT)

    def take_rest(self, data: bytes) -> None:
        """Bytes that come while the client's close is awaited."""
        self.engine.receive(data)

    # --- events -----------------------------------------------------------------------------------

    async def _dispatch(self, events: list[ConnectionEvent]) -> None:
        for event in events:
            match event:
                case FramesReceived():
                    await self._pass_on(event)
                case BeginReceived():
                    await self._make_room()
                    self._begin(event)
                case SaslInitReceived():
                    self._authentication = self._broker.authenticator.begin(self._origin)
                    step = self._authentication.start(event.mechanism, event.initial_response)
                    await self._log_in(self._authentication, step)
                case SaslResponseReceived():
                    assert self._authentication is not None
                    await self._log_in(self._authentication, self._authentication.respond(event.response))
                case OpenReceived():
                    self._open(event)
                case CloseReceived():
                    if event.error is not None:
                        self.log.info(
                            "closed by the client with an error",
                            condition=str(event.error.condition),
                            text=event.error.description,
                        )
                case ConnectionFailed():
                    self._log_fault(event.fault)

    async def _pass_on(self, event: FramesReceived) -> None:
        session = self._sessions.get(event.channel)
        if event.ended:
            self._sessions.pop(event.channel, None)
        if session is None:
            return
        if self._broker.alarms:
            self._excess_bytes += payload_bytes(event.items)
        for items in self._turn.portions(event.items):
            if session.reads.full:
                await self._wait_for(session, session.reads)
            session.reads.add()
            if not session.inbox.put(Frames(items)):
                session.reads.done()
            if self._turn.over:
                await self._let_others()

    async def _wait_for(self, session: RunningSession, bound: Bound) -> None:
        """Read nothing until a bound is kept again that a session uses up."""
        self._flush()
        self._held_by, self._held_channel = session, session.service.session.channel
        self._held_at = trio.current_time()
        await bound.wait()
        self._held_by = None

    async def _wait_out_alarm(self) -> None:
        """A connection that has sent too much during an alarm is not read until its end; others go on."""
        while self._broker.alarms and self._excess_bytes > EXCESS_BYTES_MAX:
            self._no_alarm = trio.Event()
            try:
                await self._no_alarm.wait()
            finally:
                self._no_alarm = None

    async def _let_others(self) -> None:
        """This turn is over: every other task runs once."""
        self._flush()
        await trio.lowlevel.checkpoint()
        self._turn.begin()

    async def _make_room(self) -> None:
        """Wait until one more session may be there, and for a turn in which it may begin."""
        if self._running.full:
            mapped = set(self._sessions.values())
            await self._wait_for(next(each for each in self._working if each not in mapped), self._running)
        self._turn.spend(HEAVY)
        if self._turn.over:
            await self._let_others()

    async def _log_in(self, authentication: Authentication, step: Step) -> None:
        match await self._broker.logins.settle(authentication, step, self._origin.address):
            case Success() as success:
                self.user = success.user
                self._broker.tracing.join(self)
                self.engine.sasl_outcome(SaslCode.OK, success.data or None)
            case Challenge() as challenge:
                self.engine.sasl_challenge(challenge.data)
            case Crowded():
                await self._hold()
                self.engine.sasl_outcome(SaslCode.SYS_TEMP)
            case Failure() as failure:
                self.log.login_failed(failure, text="sasl-outcome auth")
                await self._hold()
                self.engine.sasl_outcome(SaslCode.AUTH)

    async def _hold(self) -> None:
        broker = self._broker
        await broker.logins.hold(self._origin.address, broker.config.auth_failure_delay_ms / 1000)

    def _open(self, event: OpenReceived) -> None:
        config = self._broker.config
        broker = self._broker
        name = vhost_of(event.performative, config.default_vhost)
        fault = check_open(name, self.user, broker.catalog)
        if fault is None:
            try:
                self._member = Membership.enter(broker.catalog, name, self.user, self)
            except NotAllowed as refusal:  # checked by now: what is left are limits
                fault = AmqpConnectionError(Condition.RESOURCE_LIMIT_EXCEEDED, refusal.description)
        properties = open_properties(broker.container_id, __version__, f"Python {platform.python_version()}")
        if fault is not None:
            self._log_fault(fault)
            self._refused = fault
            self.engine.open(broker.container_id, properties=refused_properties(properties, fault))
            self._flush()
            return
        self.engine.open(
            broker.container_id,
            idle_time_out_ms=config.idle_timeout_ms // 2 or None,
            offered_capabilities=broker.offered_capabilities,
            properties=properties,
        )
        self._flush()
        self.log.info("connection open", container_id=event.performative.container_id)
        timer = IdleTimer(config.idle_timeout_ms, event.performative.idle_time_out, trio.current_time())
        if timer.interval is not None:
            self.line.start_companion(self._keep_alive, timer, timer.interval)

    async def _keep_alive(self, timer: IdleTimer, interval: float) -> None:
        line = self.line
        while self.engine.state is ConnectionState.OPENED and not line.reading.cancel_called:
            await trio.sleep(interval)
            heartbeat, expired = timer.tick(
                trio.current_time(),
                line.bytes_received,
                line.writer.bytes_sent,
                listening=self._no_alarm is None and self._held_by is None,
            )
            if heartbeat:
                line.lane.put([HEARTBEAT])
            if expired:
                error = AmqpConnectionError(
                    Condition.RESOURCE_LIMIT_EXCEEDED,
                    "no frame received from client within idle timeout threshold",
                )
                self.fail(error, timeout_ms=self._broker.config.idle_timeout_ms)
                return

    def _begin(self, event: BeginReceived) -> None:
        broker = self._broker
        inbox: Mailbox[SessionLetter] = Mailbox()
        opened = self.engine.remote_open
        member = self._member
        assert opened is not None
        assert member is not None
        context = SessionContext(
            catalog=broker.catalog,
            vhost=member.vhost,
            access=Access(broker.catalog.users, self.user, member.vhost.name),
            config=broker.config,
            reply_to=SessionAddress(f"{self.number}.{event.channel}", inbox),
            user=self.user,
            container_id=opened.container_id,
            names=self._link_names,
            tell_stolen=lambda link: inbox.put(LinkStolen(link)),
            connection=self,
            new_id=broker.new_id,
            volatile=broker.make_volatile,
            node=broker.container_id,
            log=self.log,
            moment=Moment(broker.clock.now_ms()),
        )
        service = BrokerSession(
            event.channel,
            event.performative,
            context,
            frame_size_max=self.engine.frame_size_max,
            alarm=bool(broker.alarms),
            unfinished=self._unfinished,
        )
        buffer_bytes = broker.config.writer_buffer_bytes
        lane = Lane(self.line.writer, inbox, buffer_bytes)
        session = RunningSession(service, inbox, lane, broker.clock)
        self._sessions[event.channel] = session
        self._working.add(session)
        if broker.recordings.recorder is not None:
            broker.recordings.recorder.join(self, session)
        counted = True
        try:
            broker.catalog.usage.open_channel(broker.catalog.users.lookup(self.user))
        except RefusedError as refusal:
            counted = False
            error = AmqpSessionError(Condition.RESOURCE_LIMIT_EXCEEDED, refusal.description)
            inbox.put(Stop(tell=True, error=error))
        self._running.add()
        self.line.start_part(self._run_session, event.channel, session, counted)

    async def _run_session(self, channel: int, session: RunningSession, counted: bool) -> None:
        try:
            await session.run(lambda fault: self.fail(fault, session=channel))
        except Exception as error:
            self.crash(error)
        finally:
            self._running.done()
            self._working.discard(session)
            self._gone.add(session.service.counted())
            if counted:
                self._broker.catalog.usage.close_channel(self.user)
            if self._sessions.get(channel) is session:
                # The client's end is still to come: its frames until then are for nobody.
                del self._sessions[channel]
            session.service.release()

    # --- ends -------------------------------------------------------------------------------------

    def fail(self, fault: AmqpError, **details: Any) -> None:
        """Close the connection because the peer, or the broker, cannot go on.

        Args:
            fault: what the client is told.
            details: for the log.
        """
        if self.engine.state is not ConnectionState.OPENED:
            return
        self.engine.fail(fault)
        self._log_fault(fault, **details)
        self.line.stop()

    def expel(self, reason: str) -> None:
        """Close the connection because the user may not be in its virtual host any more."""
        self.fail(AmqpConnectionError(Condition.UNAUTHORIZED_ACCESS, reason))

    def crash(self, error: Exception) -> None:
        """A fault of ours in this connection's tasks: log it once, with its cause, and end only this."""
        self.log.error("connection failed by a fault in the broker", exc_info=error)
        self.fail(AmqpConnectionError(Condition.INTERNAL_ERROR, f"Session error: {type(error).__name__}"))
        self.line.stop()

    def close(self, reason: str) -> None:
        """End in an orderly way because the broker stops, or somebody asked for it."""
        self._stopped_by = AmqpConnectionError(Condition.CONNECTION_FORCED, f"Connection forced: {reason}")
        self.line.end = f"by the broker: {self._stopped_by}"
        self.line.stop()

    def tell(self, letter: AlarmChanged | ConfigChanged | AccessChanged) -> None:
        """Put a letter into every session's mailbox; let the reader go on when an alarm is over."""
        if isinstance(letter, AlarmChanged) and not letter.on:
            self._excess_bytes = 0
            if self._no_alarm is not None:
                self._no_alarm.set()
        for session in self._sessions.values():
            session.inbox.put(letter)

    def write_last(self) -> None:
        """All sessions are over: the connection's own last frame, and nothing of it is left when it goes."""
        self._leave()
        engine = self.engine
        if engine.state is ConnectionState.CLOSE_RECEIVED:
            engine.close()
        elif engine.state is ConnectionState.OPENED and self._stopped_by is not None:
            engine.close(self._stopped_by)
        self._flush()

    def _flush(self) -> None:
        out = self.engine.take_output()
        if out:
            self.line.lane.put([out])

    def _log_fault(self, fault: AmqpError, **details: Any) -> None:
        self.line.end = f"by the broker: {fault}"
        self.log.warning(
            "connection closed by the broker",
            condition=str(fault.condition),
            text=fault.description,
            **details,
        )

    def counted(self) -> ClientCounters:
        """What its sessions did and got, those that are gone included."""
        sessions = [session.service.counted() for session in self._working]
        return ClientCounters.sum_of([self._gone, *sessions])

    # --- status -----------------------------------------------------------------------------------

    def around(self, session: RunningSession) -> Surroundings:
        """What it does for one of its sessions at present."""
        clock, writer, held = self._broker.clock, self.line.writer, self._held_by
        waits = writer.waiting_bytes and not writer.broken
        return Surroundings(
            clock.now_ms(),
            writer_blocked=session.lane.blocked,
            writer_ms=clock.ms_at(writer.waiting_since) if waits else None,
            writer_bytes=writer.waiting_bytes,
            held_by=None if held is None or held is session else f"session {self._held_channel}",
            held_ms=clock.ms_at(self._held_at),
            alarms=tuple(sorted(self._broker.alarms)),
            unread=self._no_alarm is not None,
        )

    def view(self) -> ConnectionView:
        """What doors show of this connection."""
        engine = self.engine
        opened = engine.remote_open
        line = self.line
        return ConnectionView(
            id=self.number,
            protocol=self.protocol,
            peer=self.peer,
            user=self.user,
            vhost=self.vhost,
            container_id=opened.container_id if opened else None,
            client=None,
            state="blocked" if self._no_alarm is not None else engine.state.name.lower(),
            channel_max=engine.channel_max,
            frame_max=engine.frame_size_max,
            idle_timeout_ms=opened.idle_time_out if opened else None,
            bytes_in=line.bytes_received,
            bytes_out=line.writer.bytes_sent,
            writer_waiting_bytes=line.writer.waiting_bytes,
            last_error=self.log.last_error,
            counters=self.counted().document(),
            sessions=tuple(
                session_view(session.service, self.around(session))
                for _, session in sorted(self._sessions.items())
            ),
        )
