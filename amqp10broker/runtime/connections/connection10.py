"""One AMQP 1.0 connection: its open, its sessions, and the reader's handling of events."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, assert_never

import trio

from amqp10broker.auth.login import Challenge, Failure, Peer, Success, Unverified
from amqp10broker.errors import NotAllowed, RefusedError, ResourceLocked
from amqp10broker.metadata.plan import Decided
from amqp10broker.operations.snapshot import ConnectionView
from amqp10broker.protocols.amqp10.connection import (
    ESTABLISHMENT_FAILED,
    HEARTBEAT,
    Connection,
    ConnectionState,
)
from amqp10broker.protocols.amqp10.errors import AmqpConnectionError, AmqpError, AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.link import (
    BeginReceived,
    ConnectionEvent,
    ConnectionFailed,
    FramesReceived,
    payload_bytes,
)
from amqp10broker.protocols.amqp10.performatives import (
    Close,
    Open,
    SaslCode,
    SaslInit,
    SaslOutcome,
    SaslResponse,
)
from amqp10broker.protocols.connection import IdleTimer, Unfinished
from amqp10broker.queues.commands import RequestRef
from amqp10broker.runtime.connections.client_connection import (
    CREDENTIAL_EXPIRED,
    ClientConnection,
    VhostSlot,
)
from amqp10broker.runtime.connections.session_task import HEAVY, PORTION, Bound, EndpointTask
from amqp10broker.runtime.connections.sockets import Stream
from amqp10broker.runtime.context import ConnectionContext
from amqp10broker.runtime.mailbox import Mailbox
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
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.amqp10.transactions import TransactionNumbers, Transactions
from amqp10broker.sessions.context import LinkNames, SessionContext
from amqp10broker.sessions.diagnosis.wait_reasons import WaitContext
from amqp10broker.sessions.diagnosis.why_link import session_view
from amqp10broker.sessions.messages import (
    AlarmChanged,
    ConfigChanged,
    Frames,
    Notice,
    SessionMessage,
    Stop,
)

EXCESS_BYTES_MAX: Final = 4 * 1024 * 1024
"""The payload of transfers that is accepted from one connection during an alarm: transfers that the client
had sent before it received the closed windows. The windows alone would permit 52 MB on each session, 400
frames of 128 KiB.
"""


class SessionsContext(ConnectionContext):
    """The context of a connection with sessions. `session_type`: makes one."""

    session_type: Callable[..., BrokerSession]


class SessionTask(EndpointTask[BrokerSession]):
    """An AMQP 1.0 session and its task."""


class Connection10(ClientConnection[ConnectionEvent, AmqpError, SessionTask]):
    protocol = "AMQP 1.0"
    word = "session"
    heartbeat = HEARTBEAT
    open_state = ConnectionState.OPENED
    awaiting_states = frozenset((ConnectionState.DISCARDING, ConnectionState.CLOSE_SENT))
    closed_states = awaiting_states | {ConnectionState.CLOSE_RECEIVED, ConnectionState.END}
    engine: Connection
    _node_context: SessionsContext

    def __init__(
        self,
        node_context: SessionsContext,
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
        unfinished = Unfinished(max(config.unfinished_bytes_max, 2 * config.max_message_size_bytes))
        super().__init__(node_context, stream, number, peer, origin, first_bytes, engine, unfinished)
        self.unfinished: Unfinished = unfinished
        self._stopped_by: AmqpError | None = None
        self._of_jms = False
        self._names = LinkNames()
        self._numbers = TransactionNumbers(number)
        # Sessions with a running timeout of a transaction. One task checks all of them, while there are any.
        self._timed: dict[Mailbox[SessionMessage], Transactions] = {}
        self._times = False
        # A session counts until its task has ended, which is later than its channel is free again.
        self._running = Bound(config.session_max_per_connection)
        self._held_channel = 0
        self._held_at = 0.0
        # The payload of transfers that came during an alarm.
        self._excess_bytes = 0

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
            # Guessing names of virtual hosts must be as slow as guessing passwords.
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
        return open_properties(opened, ours, cluster, self._node_context.identity)

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

    def _open(self, opened: Open) -> None:
        node_context = self._node_context
        config = node_context.config
        name = vhost_of(opened, config.default_vhost)
        fault = check_open(name, self.grants, node_context.catalog)
        if fault is None:
            try:
                self.member = VhostSlot.enter(
                    *(node_context.catalog, name, self.grants, self.owner),
                    container=opened.container_id,
                    sole=wants_sole_connection(opened),
                )
            except NotAllowed as refusal:  # all checks but the limits were made before
                fault = AmqpConnectionError(Condition.RESOURCE_LIMIT_EXCEEDED, refusal.description)
            except ResourceLocked as refusal:
                fault = not_sole(refusal)
        if fault is not None:
            self.log_fault(fault)
            self._refused = fault
            return
        self.log.client["vhost"] = self.vhost
        self._of_jms = is_of_jms(opened)
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
                    await self._pass_on(event)
                case BeginReceived():
                    await self._begin(event)
                case SaslInit():
                    self._authentication = self._node_context.authenticator.begin(self.origin)
                    await self.log_in(self._authentication.start(event.mechanism, event.initial_response))
                case SaslResponse():
                    await self.go_on_with_login(event.response)
                case Open():
                    self._open(event)
                case Close():
                    if event.error is not None:
                        self.log.info(
                            "closed by the client with an error",
                            condition=str(event.error.condition),
                            text=event.error.description,
                        )
                case ConnectionFailed():
                    self.log_fault(event.fault)
                case SaslOutcome():
                    raise AssertionError(f"{event} is for a client")
                case _:
                    assert_never(event)

    # --- sessions ---------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self.held_by is not None

    def around(self, session: SessionTask) -> WaitContext:
        held = self.held_by
        return self.wait_context(session.output)._replace(
            held_by=None if held is None or held is session else f"session {self._held_channel}",
            held_ms=self._node_context.clock.ms_at(self._held_at),
        )

    async def _pass_on(self, event: FramesReceived) -> None:
        # Pass a session its frames, in portions between which other tasks run.
        session = self.parts.get(event.channel)
        if event.ended:
            self.parts.pop(event.channel, None)
        if session is None:
            return
        if self._node_context.alarms:
            self._excess_bytes += payload_bytes(event.items)
        budget, reads = self.budget, session.reads
        for items in budget.portions(event.items):
            frames = Frames(items)
            if reads.full:
                await self._wait_for(session, reads)
            session.deliver(frames, inline=self.run_inline)
            if budget.left <= 0:
                await self.yield_to_others()

    async def wait_out_alarm(self) -> None:
        while self._node_context.alarms and self._excess_bytes > EXCESS_BYTES_MAX:
            await self.wait_for_no_alarm()

    def tell(self, message: AlarmChanged | ConfigChanged | Notice) -> None:
        if isinstance(message, AlarmChanged) and not message.on:
            self._excess_bytes = 0
            if self.no_alarm is not None:
                self.no_alarm.set()
        super().tell(message)

    async def _begin(self, event: BeginReceived) -> None:
        # The session begins when there is room for one more, and in a portion that has room for it.
        if self._running.full:
            mapped = set(self.parts.values())
            await self._wait_for(next(each for each in self.working if each not in mapped), self._running)
        self.budget.left -= HEAVY
        if self.budget.left <= 0:
            await self.yield_to_others()
        self._start_session(event)

    async def _wait_for(self, session: SessionTask, bound: Bound) -> None:
        # Read nothing while a session exceeds a bound.
        self.flush()
        self.held_by, self._held_channel = session, session.service.session.channel
        self._held_at = trio.current_time()
        await bound.wait()
        self.held_by = None

    def _start_session(self, event: BeginReceived) -> None:
        node_context = self._node_context
        inbox: Mailbox[SessionMessage] = Mailbox(node_context.reply_registry.inline)
        given = self.context_of(event.channel, inbox)
        transactions = Transactions(
            self._numbers,
            given["moment"],
            node_context.config.transaction_timeout_ms,
            partial(self._watch_time, inbox),
        )
        context = SessionContext(
            **given,
            container_id=self.client_name,
            of_jms=self._of_jms,
            names=self._names,
            to_session=inbox.put,
            node=node_context.config.node_name or node_context.container_id,
            offer_token=partial(self.start_companion, self._renew, inbox),
            transactions=transactions,
            resumable_links=node_context.resumable_links,
            is_memory_tight=node_context.is_memory_tight,
        )
        service = node_context.session_type(
            event.channel,
            event.performative,
            context,
            frame_size_max=self.engine.frame_size_max,
            alarm=bool(node_context.alarms),
            unfinished=self.unfinished,
        )
        session = SessionTask(service, inbox, self.output_buffer(inbox), node_context.clock)
        counted = True
        try:
            self.count_part()
        except RefusedError as refusal:
            counted = False
            error = AmqpSessionError(Condition.RESOURCE_LIMIT_EXCEEDED, refusal.description)
            inbox.put(Stop(tell=True, error=error))
        self._running.add()
        self.start(event.channel, session, context.reply_to, counted=counted)

    async def _renew(self, inbox: Mailbox[SessionMessage], token: bytes, ref: RequestRef) -> None:
        if await self.renew(token):
            inbox.put(Decided(ref))

    def release(self) -> None:
        self._node_context.resumable_links.let_run(self._names)

    async def work(self, number: int, part: SessionTask) -> None:
        try:
            await part.run()
        except AmqpError as fault:
            self.fail(fault, session=number)
        finally:
            self._timed.pop(part.inbox, None)
            self._running.done()

    # --- transactions whose time runs -------------------------------------------------------------

    def _watch_time(self, inbox: Mailbox[SessionMessage], transactions: Transactions) -> None:
        self._timed[inbox] = transactions
        if not self._times:
            self._times = True
            self.start_companion(self._tell_overdue, transactions.due_ms)

    async def _tell_overdue(self, first_ms: int | None) -> None:
        # This runs while the time of a transaction runs. All have the same timeout, so a later one is due
        # later. It outlives the transaction that started it, which is due at `first_ms`: most are discharged
        # before this begins.
        clock = self._node_context.clock
        due = [] if first_ms is None else [first_ms]
        while self._timed:
            if due:
                await trio.sleep_until(clock.trio_time(min(due)))
            now_ms, due = clock.now_ms(), []
            for inbox, transactions in list(self._timed.items()):
                if (due_ms := transactions.due_ms) is not None and due_ms > now_ms:
                    due.append(due_ms)
                    continue
                # The session requests it again for its next transaction, or if more are left after the
                # overdue ones.
                del self._timed[inbox]
                if due_ms is not None:
                    inbox.put(Notice.TRANSACTIONS_DUE)
        self._times = False

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
        """End in order because the node stops serving, or an operator requested it.

        `amqp:connection:forced` makes many clients connect again, which is right only if the node stops. The
        container of Proton for Python ignores it, and ends with any other condition.
        """
        condition = Condition.CONNECTION_FORCED if node_stops else Condition.INTERNAL_ERROR
        self._stopped_by = AmqpConnectionError(condition, f"Connection forced: {reason}")
        self.end = f"by the broker: {self._stopped_by}"
        self.stop()

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
        engine = self.engine
        opened = engine.remote_open
        return self.view_of(
            opened.properties if opened else None,
            container_id=opened.container_id if opened else None,
            client={},
            channel_max=engine.channel_max,
            frame_max=engine.frame_size_max,
            idle_timeout_ms=opened.idle_time_out if opened else None,
            sessions=tuple(
                session_view(session.service, self.around(session))
                for _, session in sorted(self.parts.items())
            ),
        )
