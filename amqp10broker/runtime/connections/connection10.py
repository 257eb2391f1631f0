"""One AMQP 1.0 connection: what its reader does with events; its sessions are `sessions10`'s."""

from __future__ import annotations

import platform
from typing import Any, assert_never

import trio

from amqp10broker import __version__
from amqp10broker.auth.login import Challenge, Failure, Peer, Success, Unverified
from amqp10broker.errors import NotAllowed, ResourceLocked
from amqp10broker.operations.snapshot import ConnectionView
from amqp10broker.protocols.amqp10.connection import ESTABLISHMENT_FAILED, Connection, ConnectionState
from amqp10broker.protocols.amqp10.errors import AmqpConnectionError, AmqpError, Condition
from amqp10broker.protocols.amqp10.events import (
    BeginReceived,
    CloseReceived,
    ConnectionEvent,
    ConnectionFailed,
    FramesReceived,
    OpenReceived,
    SaslFinished,
    SaslInitReceived,
    SaslResponseReceived,
)
from amqp10broker.protocols.amqp10.frames import HEARTBEAT
from amqp10broker.protocols.amqp10.heartbeat import IdleTimer
from amqp10broker.protocols.amqp10.performatives import Open, SaslCode
from amqp10broker.runtime.connections.connection_shell import CREDENTIAL_EXPIRED, ConnectionShell
from amqp10broker.runtime.connections.read_budget import PORTION
from amqp10broker.runtime.connections.session_task import SessionTask
from amqp10broker.runtime.connections.sessions10 import Sessions
from amqp10broker.runtime.connections.socket_transport import Stream
from amqp10broker.runtime.connections.vhost_slot import Container, VhostSlot
from amqp10broker.runtime.context import ConnectionContext
from amqp10broker.sessions.amqp10.open import (
    check_open,
    is_of_jms,
    is_of_rabbitmq,
    not_sole,
    offered_capabilities,
    open_properties,
    vhost_of,
    wants_sole_connection,
)


class Connection10(ConnectionShell[ConnectionEvent, AmqpError, SessionTask]):
    protocol = "AMQP 1.0"
    heartbeat = HEARTBEAT
    open_state = ConnectionState.OPENED
    awaiting_states = frozenset((ConnectionState.DISCARDING, ConnectionState.CLOSE_SENT))
    closed_states = awaiting_states | {ConnectionState.CLOSE_RECEIVED, ConnectionState.END}
    engine: Connection

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
        config = node_context.config
        engine = Connection(
            server=True,
            frame_size_max=config.max_frame_size_bytes,
            channel_max=config.session_max_per_connection - 1,
            mechanisms=tuple(each.value for each in node_context.authenticator.offered(origin)),
            frames_singly_max=PORTION,
        )
        self._sessions = Sessions(node_context, self, engine)
        super().__init__(node_context, stream, number, peer, origin, first_bytes, engine, self._sessions)
        self._stopped_by: AmqpError | None = None

    @property
    def client_name(self) -> str:
        opened = self.engine.remote_open
        return opened.container_id if opened else ""

    # --- login and open ---------------------------------------------------------------------------

    async def greet(self) -> None:
        await self.shake_hands()
        if self._refused is not None:
            await self._refuse(self._refused)

    async def _refuse(self, fault: AmqpError) -> None:
        node_context = self._node_context
        if fault.condition != Condition.INVALID_FIELD:
            # Trying names of virtual hosts has to be as slow as guessing passwords.
            delay_s = node_context.config.auth_failure_delay_ms / 1000
            await node_context.logins.hold(self.origin.address, delay_s)
        opened = self.engine.remote_open
        assert opened is not None
        if is_of_rabbitmq(opened):
            self.give_up()
            return
        properties = {**self._open_properties(opened), ESTABLISHMENT_FAILED: True}
        self.engine.open(node_context.container_id, properties=properties)
        self.engine.fail(fault)
        self.flush()

    def _open_properties(self, opened: Open) -> dict[Any, Any]:
        ours = self._node_context.container_id
        cluster = self._node_context.catalog.cluster_name(ours)
        return open_properties(opened, ours, cluster, __version__, f"Python {platform.python_version()}")

    def answer_login(self, step: Success | Challenge | Failure | Unverified) -> None:
        match step:
            case Success():
                self.engine.sasl_outcome(SaslCode.OK, step.data or None)
            case Challenge():
                self.engine.sasl_challenge(step.data)
            case Unverified():
                self.engine.sasl_outcome(SaslCode.SYS_TEMP)
            case Failure():
                self.engine.sasl_outcome(SaslCode.AUTH)
            case _:
                assert_never(step)

    def refusal_text(self) -> str:
        return "sasl-outcome auth"

    def _open(self, event: OpenReceived) -> None:
        node_context = self._node_context
        config = node_context.config
        opened = event.performative
        name = vhost_of(opened, config.default_vhost)
        fault = check_open(name, self.credential.grants, node_context.catalog)
        if fault is None:
            try:
                self.member = VhostSlot.enter(
                    *(node_context.catalog, name, self.credential.grants, self.owner),
                    container=Container(opened.container_id, sole=wants_sole_connection(opened)),
                )
            except NotAllowed as refusal:  # checked by now: what is left are limits
                fault = AmqpConnectionError(Condition.RESOURCE_LIMIT_EXCEEDED, refusal.description)
            except ResourceLocked as refusal:
                fault = not_sole(refusal)
        if fault is not None:
            self.log_fault(fault)
            self._refused = fault
            return
        self._sessions.of_jms = is_of_jms(opened)
        self.engine.open(
            node_context.container_id,
            idle_time_out_ms=config.idle_timeout_ms // 2 or None,
            offered_capabilities=offered_capabilities(opened, alone=node_context.catalog.alone),
            properties=self._open_properties(opened),
        )
        self.flush()
        self.opened(self.engine.frame_size_max, container_id=opened.container_id)
        idle_ms = opened.idle_time_out
        self.start_heartbeats(IdleTimer(config.idle_timeout_ms, idle_ms, trio.current_time()))

    # --- events -----------------------------------------------------------------------------------

    async def dispatch(self, events: list[ConnectionEvent]) -> None:
        for event in events:
            match event:
                case FramesReceived():
                    await self._sessions.pass_on(event)
                case BeginReceived():
                    await self._sessions.begin(event)
                case SaslInitReceived():
                    self._authentication = self._node_context.authenticator.begin(self.origin)
                    await self.log_in(self._authentication.start(event.mechanism, event.initial_response))
                case SaslResponseReceived():
                    await self.go_on_with_login(event.response)
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
                    self.log_fault(event.fault)
                case SaslFinished():
                    raise AssertionError(f"{event} is for a client")
                case _:
                    assert_never(event)

    # --- ends -------------------------------------------------------------------------------------

    def fault_fields(self, fault: AmqpError) -> dict[str, Any]:
        return {"condition": str(fault.condition), "text": fault.description}

    def fault_of_ours(self, error: Exception) -> AmqpError:
        return AmqpConnectionError(Condition.INTERNAL_ERROR, f"Session error: {type(error).__name__}")

    def on_idle_timeout(self) -> None:
        text = "no frame received from client within idle timeout threshold"
        error = AmqpConnectionError(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        self.fail(error, timeout_ms=self._node_context.config.idle_timeout_ms)

    def expel(self, reason: str) -> None:
        self.fail(AmqpConnectionError(Condition.UNAUTHORIZED_ACCESS, reason))

    def expire(self) -> None:
        self.fail(AmqpConnectionError(Condition.UNAUTHORIZED_ACCESS, CREDENTIAL_EXPIRED))

    def close(self, reason: str, *, node_stops: bool) -> None:
        """End in an orderly way because the node stops serving, or an operator asked for it.

        `amqp:connection:forced` makes many clients connect again, which is right after the former only. The
        container of Proton for Python does nothing about it, and ends with any other condition.
        """
        condition = Condition.CONNECTION_FORCED if node_stops else Condition.INTERNAL_ERROR
        self._stopped_by = AmqpConnectionError(condition, f"Connection forced: {reason}")
        self.line.end = f"by the broker: {self._stopped_by}"
        self.line.stop()

    def write_last(self) -> None:
        self.leave()
        engine = self.engine
        if engine.state is ConnectionState.CLOSE_RECEIVED:
            engine.close()
        elif engine.state is ConnectionState.OPENED and self._stopped_by is not None:
            engine.close(self._stopped_by)
        self.flush()

    def take_rest(self, data: bytes) -> None:
        self.engine.receive(data)

    # --- status -----------------------------------------------------------------------------------

    def view(self) -> ConnectionView:
        """Return the connection's view for front ends."""
        engine = self.engine
        opened = engine.remote_open
        return self.view_of(
            opened.properties if opened else None,
            container_id=opened.container_id if opened else None,
            client={},
            channel_max=engine.channel_max,
            frame_max=engine.frame_size_max,
            idle_timeout_ms=opened.idle_time_out if opened else None,
            sessions=self._sessions.views(),
        )
