"""One AMQP 0-9-1 connection: its reader, its back-pressure, and its channels' tasks.

The reader gives contents to channels as long as it has credit for them. When a channel has none left,
because some queue does not follow, the reader waits, and with it everything on this connection: that
is how RabbitMQ does it, and what link credit of AMQP 1.0 was made to avoid. See `lifeline` for the
order of the connection's end.
"""

from __future__ import annotations

import platform
from typing import Any, Final, assert_never

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
from amqp10broker.amqp091.method_names import method_name
from amqp10broker.amqp10.heartbeat import IdleTimer
from amqp10broker.errors import NotAllowed, NotFound
from amqp10broker.management.snapshot import ConnectionView
from amqp10broker.security.login import Challenge, Crowded, Failure, Peer, Success
from amqp10broker.service.channels.circumstances import Circumstances
from amqp10broker.service.sessions.open import COMPATIBLE_VERSION, PRODUCT
from amqp10broker.tasks.channel import RunningChannel
from amqp10broker.tasks.channels091 import Channels
from amqp10broker.tasks.connection_shell import ConnectionShell
from amqp10broker.tasks.mail import AccessChanged, AlarmChanged, ConfigChanged
from amqp10broker.tasks.membership import Membership
from amqp10broker.tasks.stream import Stream
from amqp10broker.tasks.surroundings import ConnectionSurroundings
from amqp10broker.tasks.turns import PORTION

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


class Connection091(ConnectionShell[ConnectionEvent, Amqp091Error, RunningChannel, Circumstances]):
    """One client's connection."""

    protocol = "AMQP 0-9-1"
    heartbeat = HEARTBEAT
    open_state = ConnectionState.RUNNING
    awaiting_states = frozenset((ConnectionState.CLOSING,))
    closed_states = awaiting_states | {ConnectionState.CLOSE_RECEIVED, ConnectionState.END}
    engine: Engine

    def __init__(
        self,
        surroundings: ConnectionSurroundings,
        stream: Stream,
        number: int,
        peer: str,
        *,
        origin: Peer,
        first_bytes: bytes = b"",
    ) -> None:
        engine = Engine(
            content_bytes_max=surroundings.config.max_message_size_bytes,
            unfinished_bytes_max=surroundings.config.unfinished_bytes_max,
            frames_singly_max=PORTION,
        )
        self._channels = Channels(surroundings, self, engine)
        super().__init__(surroundings, stream, number, peer, origin, first_bytes, engine, self._channels)
        self._mechanism = ""

    @property
    def client_name(self) -> str:
        """The connection name that the client gives itself, or its product; empty if it gives neither."""
        properties = self.engine.client_properties
        return str(properties.get("connection_name") or properties.get("product") or "")

    @property
    def reader_waits(self) -> int:
        """Why the connection is not read, as the number of a reason in flow events; 0 if it is."""
        if self._channels.held_by is not None:
            return _CREDIT_FLOW
        return _ALARM if self.no_alarm is not None else 0

    # --- life -------------------------------------------------------------------------------------

    async def greet(self) -> None:
        self.engine.start(
            [each.value for each in self._surroundings.authenticator.offered(self.origin)],
            server_properties=self._server_properties(),
        )
        self.flush()
        await self.shake_hands()

    def write_last(self) -> None:
        """All channels are over: the connection's own last frame, and nothing of it is left when it goes."""
        self.leave()
        if self.engine.state is ConnectionState.CLOSE_RECEIVED:
            self.engine.close_ok()
        self.flush()

    def take_rest(self, data: bytes) -> None:
        """Bytes that come while the client's close-ok is awaited."""
        self.engine.receive(data)
        self.flush()

    def _server_properties(self) -> dict[str, Any]:
        surroundings = self._surroundings
        return {
            "capabilities": dict.fromkeys(CAPABILITIES, True),
            "cluster_name": surroundings.container_id,
            "copyright": "The amqp10broker developers",
            "information": f"amqp10broker {__version__}, compatible with RabbitMQ {COMPATIBLE_VERSION}",
            "platform": f"amqp10broker {__version__}, Python {platform.python_version()}",
            "product": PRODUCT,
            "version": COMPATIBLE_VERSION,
        }

    # --- events -----------------------------------------------------------------------------------

    async def dispatch(self, events: list[ConnectionEvent]) -> None:
        for event in events:
            match event:
                case ChannelItems():
                    await self._channels.pass_on(event)
                case StartOkReceived():
                    self._authentication = self._surroundings.authenticator.begin(
                        self.origin, data_with_outcome=False
                    )
                    self._mechanism = event.mechanism
                    await self.log_in(self._authentication.start(event.mechanism, event.response))
                case SecureOkReceived():
                    assert self._authentication is not None
                    await self.log_in(self._authentication.respond(event.response))
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
                    self.log_fault(event.error)
                case _:
                    assert_never(event)

    def answer_login(self, step: Success | Challenge | Failure | Crowded) -> None:
        config = self._surroundings.config
        match step:
            case Success():
                self._surroundings.logged_in(self.number)
                self.engine.tune(
                    channel_max=config.channel_max,
                    frame_max=config.max_frame_size_bytes,
                    heartbeat_s=min(config.idle_timeout_ms // 1000, 65_535),
                )
            case Challenge():
                self.engine.secure(step.data)
            case Crowded():
                self._refuse_login(AmqpHardError(ReplyCode.CONNECTION_FORCED, step.reason))
            case Failure():
                self._refuse_login(self._login_fault())
            case _:
                assert_never(step)

    def _login_fault(self) -> AmqpHardError:
        text = (
            f"Login was refused using authentication mechanism {self._mechanism}. "
            "For details see the broker logfile."
        )
        return AmqpHardError(ReplyCode.ACCESS_REFUSED, text)

    def refusal_text(self) -> str | None:
        told = "authentication_failure_close" in self.engine.capabilities
        return self._login_fault().reply_text if told else None

    def _refuse_login(self, fault: AmqpHardError) -> None:
        if "authentication_failure_close" in self.engine.capabilities:
            self.engine.fail(fault)
        else:
            self.give_up()
        self.line.end = "by the broker: login refused"

    def _open(self, event: OpenReceived) -> None:
        surroundings = self._surroundings
        try:
            self.member = Membership.enter(surroundings.catalog, event.vhost, self.user, self.owner)
        except (NotAllowed, NotFound) as refusal:
            fault = AmqpHardError(ReplyCode.NOT_ALLOWED, refusal.description, 10, 40)
            self.engine.fail(fault)
            self.log_fault(fault)
            return
        self.engine.open_ok()
        self.flush()
        self.log.info("connection open", product=str(self.engine.client_properties.get("product", "")))

    def _start_heartbeats(self, heartbeat_s: int) -> None:
        if heartbeat_s:
            # Two intervals of silence are too many; ours are sent after half of one.
            self.start_heartbeats(IdleTimer(2000 * heartbeat_s, 1000 * heartbeat_s, trio.current_time()))

    def fall_silent(self) -> None:
        timeout_s = self.engine.heartbeat_s
        self.line.end = f"by the broker: missed heartbeats from client, timeout: {timeout_s}s"
        self.log.warning("missed heartbeats from client", timeout_s=timeout_s)
        self.give_up()
        self.line.stop()

    # --- alarms -----------------------------------------------------------------------------------

    async def wait_out_alarm(self) -> None:
        """A connection that has published during an alarm is not read until its end; others go on.

        One that is in the middle of a content publishes.
        """
        surroundings = self._surroundings
        while surroundings.alarms and self._channels.publishes:
            self.no_alarm = trio.Event()
            self._channels.blocked_at = trio.current_time()
            told = self.engine.blocked(
                " & ".join(f"low on {name}" for name in sorted(surroundings.alarms, reverse=True))
            )
            self.flush()
            try:
                await self.no_alarm.wait()
            finally:
                self.no_alarm = self._channels.blocked_at = None
            self._channels.forget_publishes()
            if told:
                self.engine.unblocked()
                self.flush()

    def tell(self, letter: AlarmChanged | ConfigChanged | AccessChanged) -> None:
        """Put a letter into every channel's mailbox; let the reader go on when an alarm is over."""
        if isinstance(letter, AlarmChanged):
            if not letter.on and self.no_alarm is not None:
                self.no_alarm.set()
            return
        for channel in self._channels.by_number.values():
            channel.inbox.put(letter)

    # --- ends -------------------------------------------------------------------------------------

    def expel(self, reason: str) -> None:
        """Close the connection because the user may not be in its virtual host any more."""
        self.fail(AmqpHardError(ReplyCode.NOT_ALLOWED, reason))

    def fault_of_ours(self, error: Exception) -> AmqpHardError:
        return AmqpHardError(ReplyCode.INTERNAL_ERROR, f"fault in the broker: {type(error).__name__}")

    def fault_fields(self, fault: Amqp091Error) -> dict[str, Any]:
        method = method_name(fault.class_id, fault.method_id)
        return {"code": int(fault.code), "text": fault.reply_text, "method": method}

    def close(self, reason: str) -> None:
        """End in an orderly way because the broker stops, or somebody asked for it."""
        text = f"Connection forced: {reason}"
        if self.engine.state is ConnectionState.RUNNING:
            self.engine.close(ReplyCode.CONNECTION_FORCED, text)
        self.line.end = f"by the broker: {text}"
        self.line.stop()

    # --- status -----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """In a word, as RabbitMQ shows it: running, flow, blocked, ..."""
        if self.engine.state is not ConnectionState.RUNNING:
            return self.engine.state.name.lower()
        if self.no_alarm is not None:
            return "blocked"
        if self._surroundings.alarms:
            return "blocking"
        if self._channels.flows:
            return "flow"
        return "running"

    def view(self) -> ConnectionView:
        """What doors show of this connection."""
        engine = self.engine
        properties = engine.client_properties
        return self.view_of(
            container_id=None,
            client={
                key: str(properties[key])
                for key in ("connection_name", "product", "version")
                if key in properties
            },
            channel_max=engine.channel_max,
            frame_max=engine.frame_max,
            idle_timeout_ms=1000 * engine.heartbeat_s or None,
            channels=self._channels.views(),
        )
