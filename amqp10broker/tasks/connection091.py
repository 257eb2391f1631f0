"""One AMQP 0-9-1 connection: its reader, its back-pressure, and its channels' tasks.

The reader gives contents to channels as long as it has credit for them. When a channel has none left,
because some queue does not follow, the reader waits, and with it everything on this connection: that
is how RabbitMQ does it, and what link credit of AMQP 1.0 was made to avoid. See `lifeline` for the
order of the connection's end.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import trio

from amqp10broker import __version__
from amqp10broker.amqp091.connection import Connection091 as Engine
from amqp10broker.amqp091.connection import ConnectionState
from amqp10broker.amqp091.errors import Amqp091Error, AmqpHardError, ReplyCode
from amqp10broker.amqp091.events import (
    ChannelItems,
    CloseOkReceived,
    CloseReceived,
    ConnectionEvent,
    ConnectionFailed,
    OpenReceived,
    SecureOkReceived,
    StartOkReceived,
    TuneDone,
    UpdateSecretReceived,
)
from amqp10broker.amqp091.framing import HEARTBEAT
from amqp10broker.amqp091.items import ContentOpened
from amqp10broker.amqp091.method_names import method_name
from amqp10broker.amqp10.heartbeat import IdleTimer
from amqp10broker.errors import NotAllowed, NotFound
from amqp10broker.management.snapshot import ConnectionView
from amqp10broker.security.login import Authentication, Challenge, Crowded, Failure, Peer, Step, Success
from amqp10broker.service.counters import ClientCounters
from amqp10broker.service.sessions.open import COMPATIBLE_VERSION, PRODUCT
from amqp10broker.tasks.channels091 import Channels
from amqp10broker.tasks.connection_log import ConnectionLog
from amqp10broker.tasks.lifeline import Lifeline
from amqp10broker.tasks.mail import AccessChanged, AlarmChanged, ConfigChanged, Stop
from amqp10broker.tasks.membership import Membership
from amqp10broker.tasks.stream import Stream
from amqp10broker.tasks.turns import PORTION

if TYPE_CHECKING:
    from amqp10broker.catalog.vhost import VirtualHost
    from amqp10broker.service.channels.surroundings import Surroundings
    from amqp10broker.tasks.broker import Broker
    from amqp10broker.tasks.channel import RunningChannel

# `flowevents.schema.Reason`, which is not loaded before somebody records; a test holds them together.
_CREDIT_FLOW: Final = 10
_ALARM: Final = 4

CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


class Connection091:
    """One client's connection.

    Attributes:
        number: unique in this broker's life, for logs and status.
        peer: the client's address as text.
        user: authenticated name, empty before.
        engine: the protocol state.
        line: stream, writer and tasks.
        log: what is logged of it.
    """

    protocol = "AMQP 0-9-1"

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
        self._channels = Channels(broker, self)
        self._member: Membership | None = None
        self._authentication: Authentication | None = None
        self._mechanism = ""
        self._no_alarm: trio.Event | None = None
        self.line = Lifeline(stream, first_bytes, broker.config.writer_buffer_bytes)
        self.log = ConnectionLog(self, broker.log_limits, broker.catalog)
        self.number = number
        self.peer = peer
        self.user = ""
        self.engine = Engine(
            content_bytes_max=broker.config.max_message_size_bytes,
            unfinished_bytes_max=broker.config.unfinished_bytes_max,
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
    def home(self) -> VirtualHost:
        """The virtual host of an open connection."""
        assert self._member is not None, "not open"
        return self._member.vhost

    @property
    def member(self) -> Membership | None:
        """Its place in a virtual host; None before it is open."""
        return self._member

    @property
    def client_name(self) -> str:
        """The connection name that the client gives itself, or its product; empty if it gives neither."""
        properties = self.engine.client_properties
        return str(properties.get("connection_name") or properties.get("product") or "")

    @property
    def parts(self) -> Mapping[int, RunningChannel]:
        """Its channels, by number."""
        return self._channels.by_number

    def around(self, channel: RunningChannel) -> Surroundings:
        """What it does for one of its channels at present."""
        return self._channels.around(channel)

    @property
    def reader_waits(self) -> int:
        """Why the connection is not read, as the number of a reason in flow events; 0 if it is."""
        if self._channels.held_by is not None:
            return _CREDIT_FLOW
        return _ALARM if self._no_alarm is not None else 0

    # --- life -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the client until the connection is over; closes the stream."""
        try:
            await self.line.run(self)
        finally:
            self._leave()

    def release(self) -> None:
        """Over: nothing of it refers back to it any more (see `BrokerChannel.release`)."""
        self.log.release()
        self._channels.release()

    def _leave(self) -> None:
        if self._member is not None:
            self._member.leave()

    async def read(self) -> None:
        """The reader: bytes to the engine, frames to channels, until the connection is over."""
        engine = self.engine
        broker = self._broker
        try:
            engine.start(
                [each.value for each in broker.authenticator.offered(self._origin)],
                server_properties=self._server_properties(),
            )
            self.flush()
            await self._handshake()
            await self._take(b"")  # what came behind the open
            while engine.state is ConnectionState.RUNNING:
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

    async def _take(self, data: bytes) -> None:
        """Work off what the client sent."""
        self._channels.begin_turn()
        engine = self.engine
        await self._dispatch(engine.receive(data))
        while engine.more:
            await self._channels.let_others()
            await self._dispatch(engine.receive(b""))
        self.flush()

    async def _handshake(self) -> None:
        """From start to open-ok, within the time allowed."""
        engine = self.engine
        with trio.move_on_after(self._broker.config.handshake_timeout_ms / 1000) as limit:
            while engine.state not in (
                ConnectionState.RUNNING,
                ConnectionState.CLOSE_RECEIVED,
                ConnectionState.CLOSING,
                ConnectionState.END,
            ):
                data = await self.line.receive()
                if not data:
                    self.line.end = "lost: the client's socket ended without a close"
                    engine.state = ConnectionState.END
                    return
                events = engine.receive(data)
                while events:
                    await self._dispatch(events)
                    if self._member is not None:
                        return  # it is open, and what is behind that does not hurry
                    # Bytes behind a frame that waited for our answer.
                    events = engine.receive(b"")
                self.flush()
        if limit.cancelled_caught:
            timeout_ms = self._broker.config.handshake_timeout_ms
            self.log.warning("handshake timed out", state=engine.state.name, timeout_ms=timeout_ms)
            engine.state = ConnectionState.END

    def stop_parts(self) -> None:
        """Tell the channels to end."""
        for channel in list(self._channels.by_number.values()):
            channel.inbox.put(Stop())
            channel.lane.abandon()

    def write_last(self) -> None:
        """All channels are over: the connection's own last frame, and nothing of it is left when it goes."""
        self._leave()
        if self.engine.state is ConnectionState.CLOSE_RECEIVED:
            self.engine.close_ok()
        self.flush()

    @property
    def awaits_close(self) -> bool:
        """Whether the client's close-ok is still to come."""
        return self.engine.state is ConnectionState.CLOSING

    def take_rest(self, data: bytes) -> None:
        """Bytes that come while the client's close-ok is awaited."""
        self.engine.receive(data)
        self.flush()

    def _server_properties(self) -> dict[str, Any]:
        broker = self._broker
        return {
            "capabilities": dict.fromkeys(CAPABILITIES, True),
            "cluster_name": broker.container_id,
            "copyright": "The amqp10broker developers",
            "information": f"amqp10broker {__version__}, compatible with RabbitMQ {COMPATIBLE_VERSION}",
            "platform": f"amqp10broker {__version__}, Python {platform.python_version()}",
            "product": PRODUCT,
            "version": COMPATIBLE_VERSION,
        }

    # --- events -----------------------------------------------------------------------------------

    async def _dispatch(self, events: list[ConnectionEvent]) -> None:
        for event in events:
            if type(event) is ChannelItems:
                await self._channels.pass_on(event)
                continue
            match event:
                case StartOkReceived():
                    self._authentication = self._broker.authenticator.begin(
                        self._origin, data_with_outcome=False
                    )
                    self._mechanism = event.mechanism
                    step = self._authentication.start(event.mechanism, event.response)
                    await self._log_in(self._authentication, step)
                case SecureOkReceived():
                    assert self._authentication is not None
                    await self._log_in(self._authentication, self._authentication.respond(event.response))
                case TuneDone():
                    self._start_heartbeats(event.heartbeat)
                case OpenReceived():
                    self._open(event)
                case UpdateSecretReceived():
                    # Passwords do not expire, so there is nothing to renew: RabbitMQ too says ok to whoever
                    # logged in with one, whatever the secret says.
                    self.engine.update_secret_ok()
                case CloseReceived():
                    if event.code != ReplyCode.REPLY_SUCCESS:
                        self.log.info("closed by the client with an error", code=event.code, text=event.text)
                case CloseOkReceived():
                    return
                case ConnectionFailed():
                    self._log_fault(event.error)

    async def _log_in(self, authentication: Authentication, step: Step) -> None:
        config = self._broker.config
        match await self._broker.logins.settle(authentication, step, self._origin.address):
            case Success() as success:
                self.user = success.user
                self._broker.tracing.join(self)
                self.engine.tune(
                    channel_max=config.channel_max,
                    frame_max=config.max_frame_size_bytes,
                    heartbeat_s=min(config.idle_timeout_ms // 1000, 65_535),
                )
            case Challenge() as challenge:
                self.engine.secure(challenge.data)
            case Crowded() as crowded:
                await self._refuse_login(AmqpHardError(ReplyCode.CONNECTION_FORCED, crowded.reason))
            case Failure() as failure:
                text = (
                    f"Login was refused using authentication mechanism {self._mechanism}. "
                    "For details see the broker logfile."
                )
                fault = AmqpHardError(ReplyCode.ACCESS_REFUSED, text)
                told = "authentication_failure_close" in self.engine.capabilities
                self.log.login_failed(failure, text=fault.reply_text if told else None)
                await self._refuse_login(fault)

    async def _refuse_login(self, fault: AmqpHardError) -> None:
        broker = self._broker
        await broker.logins.hold(self._origin.address, broker.config.auth_failure_delay_ms / 1000)
        if "authentication_failure_close" in self.engine.capabilities:
            self.engine.fail(fault)
        else:
            self.engine.state = ConnectionState.END
        self.line.end = "by the broker: login refused"

    def _open(self, event: OpenReceived) -> None:
        broker = self._broker
        try:
            self._member = Membership.enter(broker.catalog, event.vhost, self.user, self)
        except (NotAllowed, NotFound) as refusal:
            fault = AmqpHardError(ReplyCode.NOT_ALLOWED, refusal.description, 10, 40)
            self.engine.fail(fault)
            self._log_fault(fault)
            return
        self.engine.open_ok()
        self.flush()
        self.log.info("connection open", product=str(self.engine.client_properties.get("product", "")))

    # --- heartbeats -------------------------------------------------------------------------------

    def _start_heartbeats(self, heartbeat_s: int) -> None:
        if heartbeat_s:
            # Two intervals of silence are too many; ours are sent after half of one.
            timer = IdleTimer(2000 * heartbeat_s, 1000 * heartbeat_s, trio.current_time())
            assert timer.interval is not None
            self.line.start_companion(self._keep_alive, timer, timer.interval, heartbeat_s)

    async def _keep_alive(self, timer: IdleTimer, interval: float, heartbeat_s: int) -> None:
        line = self.line
        while not line.reading.cancel_called and self.engine.state in (
            ConnectionState.OPENING,
            ConnectionState.OPEN_RECEIVED,
            ConnectionState.RUNNING,
        ):
            await trio.sleep(interval)
            heartbeat, expired = timer.tick(
                trio.current_time(),
                line.bytes_received,
                line.writer.bytes_sent,
                listening=not self._is_held(),
            )
            if heartbeat:
                line.lane.put([HEARTBEAT])
            if expired:
                line.end = f"by the broker: missed heartbeats from client, timeout: {heartbeat_s}s"
                self.log.warning("missed heartbeats from client", timeout_s=heartbeat_s)
                self.engine.state = ConnectionState.END
                line.stop()
                return

    def _is_held(self) -> bool:
        """Whether the reader waits for something of ours, so that silence is not the client's."""
        return self._no_alarm is not None or self._channels.full

    # --- alarms -----------------------------------------------------------------------------------

    async def _wait_out_alarm(self) -> None:
        """A connection that has published during an alarm is not read until its end; others go on.

        One that is in the middle of a content publishes.
        """
        broker = self._broker
        while broker.alarms and self._publishes:
            self._no_alarm = trio.Event()
            self._channels.blocked_at = trio.current_time()
            told = self.engine.blocked(
                " & ".join(f"low on {name}" for name in sorted(broker.alarms, reverse=True))
            )
            self.flush()
            try:
                await self._no_alarm.wait()
            finally:
                self._no_alarm = self._channels.blocked_at = None
            self._channels.publishes = False
            if told:
                self.engine.unblocked()
                self.flush()

    @property
    def _publishes(self) -> bool:
        return self._channels.publishes or self.engine.publishing

    def discard(self, opened: ContentOpened) -> None:
        """A channel does not want a content that is coming."""
        self.engine.discard(opened)
        if self._no_alarm is not None and not self._publishes:
            self._no_alarm.set()

    def tell(self, letter: AlarmChanged | ConfigChanged | AccessChanged) -> None:
        """Put a letter into every channel's mailbox; let the reader go on when an alarm is over."""
        if isinstance(letter, AlarmChanged):
            if not letter.on and self._no_alarm is not None:
                self._no_alarm.set()
            return
        for channel in self._channels.by_number.values():
            channel.inbox.put(letter)

    # --- ends -------------------------------------------------------------------------------------

    def fail(self, fault: Amqp091Error, **details: Any) -> None:
        """Close the connection because the client, or the broker, cannot go on.

        Args:
            fault: what the client is told.
            details: for the log.
        """
        if self.engine.state is not ConnectionState.RUNNING:
            return
        self.engine.fail(fault)
        self._log_fault(fault, **details)
        self.line.stop()

    def expel(self, reason: str) -> None:
        """Close the connection because the user may not be in its virtual host any more."""
        self.fail(AmqpHardError(ReplyCode.NOT_ALLOWED, reason))

    def crash(self, error: Exception) -> None:
        """A fault of ours in this connection's tasks: log it once, with its cause, and end only this."""
        self.log.error("connection failed by a fault in the broker", exc_info=error)
        self.fail(AmqpHardError(ReplyCode.INTERNAL_ERROR, f"fault in the broker: {type(error).__name__}"))
        self.line.stop()

    def close(self, reason: str) -> None:
        """End in an orderly way because the broker stops, or somebody asked for it."""
        text = f"Connection forced: {reason}"
        if self.engine.state is ConnectionState.RUNNING:
            self.engine.close(ReplyCode.CONNECTION_FORCED, text)
        self.line.end = f"by the broker: {text}"
        self.line.stop()

    def flush(self) -> None:
        """Hand what the engine has to say to the writer."""
        out = self.engine.take_output()
        if out:
            self.line.lane.put([out])

    def _log_fault(self, fault: Amqp091Error, **details: Any) -> None:
        self.line.end = f"by the broker: {fault}"
        self.log.warning(
            "connection closed by the broker",
            code=int(fault.code),
            text=fault.reply_text,
            method=method_name(fault.class_id, fault.method_id),
            **details,
        )

    # --- status -----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """In a word, as RabbitMQ shows it: running, flow, blocked, ..."""
        if self.engine.state is not ConnectionState.RUNNING:
            return self.engine.state.name.lower()
        if self._no_alarm is not None:
            return "blocked"
        if self._broker.alarms:
            return "blocking"
        if self._channels.flows:
            return "flow"
        return "running"

    def counted(self) -> ClientCounters:
        """What its channels did and got, those that are gone included."""
        return self._channels.counted()

    def view(self) -> ConnectionView:
        """What doors show of this connection."""
        engine = self.engine
        line = self.line
        properties = engine.client_properties
        return ConnectionView(
            id=self.number,
            protocol=self.protocol,
            peer=self.peer,
            user=self.user,
            vhost=self.vhost,
            container_id=None,
            client={
                key: str(properties[key])
                for key in ("connection_name", "product", "version")
                if key in properties
            },
            state=self.state,
            channel_max=engine.channel_max,
            frame_max=engine.frame_max,
            idle_timeout_ms=1000 * engine.heartbeat_s or None,
            bytes_in=line.bytes_received,
            bytes_out=line.writer.bytes_sent,
            writer_waiting_bytes=line.writer.waiting_bytes,
            last_error=self.log.last_error,
            counters=self.counted().document(),
            channels=self._channels.views(),
        )
