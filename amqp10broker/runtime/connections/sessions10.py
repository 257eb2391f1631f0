"""The sessions of one AMQP 1.0 connection, and what its reader gives them: see `connection10`."""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from amqp10broker.errors import RefusedError
from amqp10broker.metadata.proposing import Decided
from amqp10broker.operations.snapshot import SessionView
from amqp10broker.protocols.amqp10.connection import Connection
from amqp10broker.protocols.amqp10.errors import AmqpError, AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.events import BeginReceived, ConnectionEvent, FramesReceived
from amqp10broker.protocols.amqp10.transfer import payload_bytes
from amqp10broker.protocols.amqp10.unfinished import Unfinished
from amqp10broker.queues.commands import RequestRef
from amqp10broker.runtime.connections.connection_shell import ConnectionShell
from amqp10broker.runtime.connections.parts import RunningParts
from amqp10broker.runtime.connections.read_budget import HEAVY
from amqp10broker.runtime.connections.session import RunningSession
from amqp10broker.runtime.context import ConnectionContext
from amqp10broker.runtime.mailbox import Bound, Mailbox
from amqp10broker.runtime.queues.commits import SessionCommits
from amqp10broker.sessions.amqp10.names import LinkNames
from amqp10broker.sessions.amqp10.status import session_view
from amqp10broker.sessions.amqp10.transactions import TransactionNumbers, Transactions
from amqp10broker.sessions.circumstances import WaitContext
from amqp10broker.sessions.context import SessionContext
from amqp10broker.sessions.mail import TRANSACTIONS_DUE, Frames, LinkStolen, SessionLetter, Stop
from amqp10broker.sessions.moment import Moment

EXCESS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Payload of transfers that is taken from one connection during an alarm: what a client had given to its
socket before it heard that its windows are closed. The windows alone would let 52 MB come on each session,
400 frames of 128 KiB."""


class Sessions(RunningParts[RunningSession]):
    """The sessions of an AMQP 1.0 connection."""

    word = "session"

    def __init__(
        self,
        node_context: ConnectionContext,
        connection: ConnectionShell[ConnectionEvent, AmqpError, RunningSession],
        engine: Connection,
    ) -> None:
        super().__init__(node_context, connection)
        config = node_context.config
        self._engine = engine
        self.of_jms = False
        self._names = LinkNames()
        self._numbers: TransactionNumbers | None = None
        # Sessions with transactions whose time runs; one task looks after all of them, while there are any.
        self._timed: dict[Mailbox[SessionLetter], Transactions] = {}
        self._times = False
        # A session counts until its task is gone, which is later than its channel is free again.
        self._running = Bound(config.session_max_per_connection)
        self.unfinished = Unfinished(max(config.unfinished_bytes_max, 2 * config.max_message_size_bytes))
        self._held_channel = 0
        self._held_at = 0.0
        # Payload of transfers that came during an alarm.
        self._excess_bytes = 0

    @property
    def full(self) -> bool:
        """Whether the reader waits for a session."""
        return self.held_by is not None

    def views(self) -> tuple[SessionView, ...]:
        """Return their views for front ends."""
        return tuple(
            session_view(session.service, self.around(session))
            for _, session in sorted(self.by_number.items())
        )

    def around(self, session: RunningSession) -> WaitContext:
        """Return the present activity of the connection for one of its sessions."""
        held = self.held_by
        return self._wait_context(session.lane)._replace(
            held_by=None if held is None or held is session else f"session {self._held_channel}",
            held_ms=self._node_context.clock.ms_at(self._held_at),
        )

    async def pass_on(self, event: FramesReceived) -> None:
        """Give a session what the client sent on it, as much in one turn as others can wait for."""
        turn, relay = self._connection.turn, self._node_context.reply_registry.relay
        session = self.by_number.get(event.channel)
        if event.ended:
            self.by_number.pop(event.channel, None)
        if session is None:
            return
        if self._node_context.alarms:
            self._excess_bytes += payload_bytes(event.items)
        for items in turn.portions(event.items):
            if session.reads.full:
                await self._wait_for(session, session.reads)
            session.reads.add()
            relay.open = self._connection.run_inline
            if not session.inbox.put(Frames(items)):
                session.reads.done()
            relay.carry()
            if turn.over:
                await self._connection.let_others()

    async def wait_out_alarm(self) -> None:
        while self._node_context.alarms and self._excess_bytes > EXCESS_BYTES_MAX:
            await self._wait_for_no_alarm()

    def alarm_over(self) -> None:
        self._excess_bytes = 0
        super().alarm_over()

    async def begin(self, event: BeginReceived) -> None:
        """Begin a session: when one more may be there, and in a turn in which it may begin."""
        if self._running.full:
            mapped = set(self.by_number.values())
            await self._wait_for(next(each for each in self.working if each not in mapped), self._running)
        self._connection.turn.spend(HEAVY)
        if self._connection.turn.over:
            await self._connection.let_others()
        self._begin(event)

    async def _wait_for(self, session: RunningSession, bound: Bound) -> None:
        # Read nothing until a bound is kept again that a session uses up.
        self._connection.flush()
        self.held_by, self._held_channel = session, session.service.session.channel
        self._held_at = trio.current_time()
        await bound.wait()
        self.held_by = None

    def _begin(self, event: BeginReceived) -> None:
        node_context, connection = self._node_context, self._connection
        inbox: Mailbox[SessionLetter] = Mailbox(node_context.reply_registry.relay)
        if self._numbers is None:
            self._numbers = TransactionNumbers(connection.number)
        moment = Moment(node_context.clock.now_ms(), self.measures)
        transactions = Transactions(
            self._numbers,
            moment,
            timeout_ms=node_context.config.transaction_timeout_ms,
            watch=lambda: self._watch_time(inbox, transactions),
        )
        reply_to = self._address(event.channel, inbox)
        context = SessionContext(
            catalog=node_context.catalog,
            vhost=connection.home,
            access=self._access(),
            config=node_context.config,
            reply_to=reply_to,
            user=connection.user,
            container_id=connection.client_name,
            of_jms=self.of_jms,
            names=self._names,
            tell_stolen=lambda link: inbox.put(LinkStolen(link)),
            propose=node_context.propose,
            connection=connection.owner,
            new_id=node_context.new_id,
            volatile=node_context.make_volatile,
            node=node_context.config.node_name or node_context.container_id,
            log=connection.log,
            offer_token=partial(self._offer_token, inbox),
            moment=moment,
            transactions=transactions,
            commits=SessionCommits(inbox, node_context.journal_task),
            kept=node_context.kept,
            tell=inbox.put,
            is_memory_tight=node_context.is_memory_tight,
        )
        service = node_context.session_type(
            event.channel,
            event.performative,
            context,
            frame_size_max=self._engine.frame_size_max,
            alarm=bool(node_context.alarms),
            unfinished=self.unfinished,
        )
        session = RunningSession(service, inbox, self._lane(inbox), node_context.clock)
        counted = True
        try:
            self._count()
        except RefusedError as refusal:
            counted = False
            error = AmqpSessionError(Condition.RESOURCE_LIMIT_EXCEEDED, refusal.description)
            inbox.put(Stop(tell=True, error=error))
        self._running.add()
        self._start(event.channel, session, reply_to, counted=counted)

    def _offer_token(self, inbox: Mailbox[SessionLetter], token: bytes, ref: RequestRef) -> None:
        self._connection.line.start_companion(self._renew, inbox, token, ref)

    async def _renew(self, inbox: Mailbox[SessionLetter], token: bytes, ref: RequestRef) -> None:
        if await self._connection.renew(token):
            inbox.put(Decided(ref))

    def release(self) -> None:
        self._node_context.kept.let_run(self._names)
        super().release()

    async def _work(self, number: int, part: RunningSession) -> None:
        try:
            await part.run(lambda fault: self._connection.fail(fault, session=number))
        finally:
            self._timed.pop(part.inbox, None)
            self._running.done()

    # --- transactions whose time runs -------------------------------------------------------------

    def _watch_time(self, inbox: Mailbox[SessionLetter], transactions: Transactions) -> None:
        self._timed[inbox] = transactions
        if not self._times:
            self._times = True
            self._connection.line.start_companion(self._tell_overdue, transactions.due_ms)

    async def _tell_overdue(self, first_ms: int | None) -> None:
        # While the time of a transaction runs. All run equally long: a later one is due later. It outlives
        # the one that started it, which is due at `first_ms`: most are discharged before this begins.
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
                # The session asks again: when it begins another, or has ended what is overdue and has more.
                del self._timed[inbox]
                if due_ms is not None:
                    inbox.put(TRANSACTIONS_DUE)
        self._times = False
