"""One AMQP 0-9-1 connection: what its reader does with events; its channels are `channels091`'s."""

from __future__ import annotations

import platform
from typing import Any, assert_never

import trio

from amqp10broker import __version__
from amqp10broker.auth.login import Challenge, Failure, Peer, Success, Unverified
from amqp10broker.errors import NotAllowed, NotFound
from amqp10broker.operations.snapshot import ConnectionView
from amqp10broker.protocols.amqp091.connection import Connection091 as Engine
from amqp10broker.protocols.amqp091.connection import ConnectionState
from amqp10broker.protocols.amqp091.errors import Amqp091Error, AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp091.events import (
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
from amqp10broker.protocols.amqp091.framing import HEARTBEAT
from amqp10broker.protocols.amqp091.method_names import method_name
from amqp10broker.protocols.amqp10.heartbeat import IdleTimer
from amqp10broker.runtime.connections.channels091 import Channels
from amqp10broker.runtime.connections.connection_shell import CREDENTIAL_EXPIRED, ConnectionShell
from amqp10broker.runtime.connections.read_budget import PORTION
from amqp10broker.runtime.connections.session_task import ChannelTask
from amqp10broker.runtime.connections.socket_transport import Stream
from amqp10broker.runtime.connections.vhost_slot import VhostSlot
from amqp10broker.runtime.context import ConnectionContext
from amqp10broker.sessions.amqp091.open import login_refused, server_properties
from amqp10broker.sessions.diagnosis.waits import Wait


class ConnectionTask091(ConnectionShell[ConnectionEvent, Amqp091Error, ChannelTask]):
    protocol = "AMQP 0-9-1"
    heartbeat = HEARTBEAT
    open_state = ConnectionState.RUNNING
    awaiting_states = frozenset((ConnectionState.CLOSING,))
    closed_states = awaiting_states | {ConnectionState.CLOSE_RECEIVED, ConnectionState.END}
    engine: Engine

    def __init__(
        self,
        node_context: ConnectionContext,
        stream: Stream,
        number: int,
        peer: str,
        *,
        origin: Peer,
        first_bytes: bytes = b"",
    ) -> None:
        engine = Engine(
            content_bytes_max=node_context.config.max_message_size_bytes,
            unfinished_bytes_max=node_context.config.unfinished_bytes_max,
            frames_singly_max=PORTION,
        )
        self._channels = Channels(node_context, self, engine)
        super().__init__(node_context, stream, number, peer, origin, first_bytes, engine, self._channels)
        self._mechanism = ""

    @property
    def client_name(self) -> str:
        properties = self.engine.client_properties
        return str(properties.get("connection_name") or properties.get("product") or "")

    @property
    def reader_waits(self) -> int:
        """Why the connection is not read, as the number of a reason in flow events; 0 if it is."""
        if self._channels.held_by is not None:
            return Wait.CREDIT_FLOW.number
        return Wait.BLOCKED_BY_ALARM.number if self._channels.no_alarm is not None else 0

    # --- life -------------------------------------------------------------------------------------

    async def greet(self) -> None:
        node_context = self._node_context
        cluster = node_context.catalog.cluster_name(node_context.container_id)
        self.engine.start(
            [each.value for each in self._node_context.authenticator.offered(self.origin)],
            server_properties=server_properties(cluster, __version__, f"Python {platform.python_version()}"),
        )
        self.flush()
        await self.shake_hands()

    def write_last(self) -> None:
        self.leave()
        if self.engine.state is ConnectionState.CLOSE_RECEIVED:
            self.engine.close_ok()
        self.flush()

    def take_rest(self, data: bytes) -> None:
        self.engine.receive(data)
        self.flush()

    # --- events -----------------------------------------------------------------------------------

    async def dispatch(self, events: list[ConnectionEvent]) -> None:
        for event in events:
            match event:
                case ChannelItems():
                    await self._channels.pass_on(event)
                case StartOkReceived():
                    authenticator = self._node_context.authenticator
                    self._authentication = authenticator.begin(self.origin, data_with_outcome=False)
                    self._mechanism = event.mechanism
                    await self.log_in(self._authentication.start(event.mechanism, event.response))
                case SecureOkReceived():
                    await self.go_on_with_login(event.response)
                case TuneDone():
                    self._start_heartbeats(event.heartbeat)
                case OpenReceived():
                    self._open(event)
                case UpdateSecretReceived():
                    if await self.renew(event.secret):
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

    def answer_login(self, step: Success | Challenge | Failure | Unverified) -> None:
        config = self._node_context.config
        match step:
            case Success():
                self.engine.tune(
                    channel_max=config.channel_max,
                    frame_max=config.max_frame_size_bytes,
                    heartbeat_s=min(config.idle_timeout_ms // 1000, 65_535),
                )
            case Challenge():
                self.engine.secure(step.data)
            case Unverified():
                self._refuse_login(AmqpHardError(ReplyCode.CONNECTION_FORCED, step.reason))
            case Failure():
                self._refuse_login(login_refused(self._mechanism))
            case _:
                assert_never(step)

    def refusal_text(self) -> str | None:
        told = "authentication_failure_close" in self.engine.capabilities
        return login_refused(self._mechanism).reply_text if told else None

    def _refuse_login(self, fault: AmqpHardError) -> None:
        if "authentication_failure_close" in self.engine.capabilities:
            self.engine.fail(fault)
        else:
            self.give_up()
        self.line.end = "by the broker: login refused"

    def _open(self, event: OpenReceived) -> None:
        catalog = self._node_context.catalog
        try:
            self.member = VhostSlot.enter(catalog, event.vhost, self.credential.grants, self.owner)
        except (NotAllowed, NotFound) as refusal:
            fault = AmqpHardError(ReplyCode.NOT_ALLOWED, refusal.description, 10, 40)
            self.engine.fail(fault)
            self.log_fault(fault)
            return
        self.engine.open_ok()
        self.flush()
        self.opened(self.engine.frame_max, product=str(self.engine.client_properties.get("product", "")))

    def _start_heartbeats(self, heartbeat_s: int) -> None:
        if heartbeat_s:
            # Two intervals of silence are too many; ours are sent after half of one.
            self.start_heartbeats(IdleTimer(2000 * heartbeat_s, 1000 * heartbeat_s, trio.current_time()))

    def on_idle_timeout(self) -> None:
        timeout_s = self.engine.heartbeat_s
        self.line.end = f"by the broker: missed heartbeats from client, timeout: {timeout_s}s"
        self.log.warning("missed heartbeats from client", timeout_s=timeout_s)
        self.give_up()
        self.line.stop()

    # --- ends -------------------------------------------------------------------------------------

    def expel(self, reason: str) -> None:
        self.fail(AmqpHardError(ReplyCode.NOT_ALLOWED, reason))

    def expire(self) -> None:
        self.fail(AmqpHardError(ReplyCode.CONNECTION_FORCED, CREDENTIAL_EXPIRED))

    def fault_of_ours(self, error: Exception) -> AmqpHardError:
        return AmqpHardError(ReplyCode.INTERNAL_ERROR, f"fault in the broker: {type(error).__name__}")

    def fault_fields(self, fault: Amqp091Error) -> dict[str, Any]:
        method = method_name(fault.class_id, fault.method_id)
        return {"code": int(fault.code), "text": fault.reply_text, "method": method}

    def close(self, reason: str, *, node_stops: bool) -> None:
        """End in an orderly way because the node stops serving, or an operator asked for it."""
        if self.engine.state is ConnectionState.RUNNING:
            self.engine.close(ReplyCode.CONNECTION_FORCED, reason)
        self.line.end = f"by the broker: {reason}"
        self.line.stop()

    # --- status -----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        if self.engine.state is not ConnectionState.RUNNING:
            return self.engine.state.name.lower()
        if self._channels.no_alarm is not None:
            return "blocked"
        if self._node_context.alarms:
            return "blocking"
        if self._channels.flows:
            return "flow"
        return "running"

    def view(self) -> ConnectionView:
        """Return the connection's view for front ends."""
        engine, properties = self.engine, self.engine.client_properties
        return self.view_of(
            properties,
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
