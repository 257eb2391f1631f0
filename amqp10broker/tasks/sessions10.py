"""The sessions of one AMQP 1.0 connection, and what its reader gives them: see `connection10`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from amqp10broker.amqp10.errors import AmqpSessionError, Condition
from amqp10broker.amqp10.events import BeginReceived, FramesReceived
from amqp10broker.amqp10.transfer import payload_bytes
from amqp10broker.amqp10.unfinished import Unfinished
from amqp10broker.errors import RefusedError
from amqp10broker.management.snapshot import SessionView
from amqp10broker.security.authorise import Access
from amqp10broker.service.context import SessionContext
from amqp10broker.service.counters import ClientCounters
from amqp10broker.service.moment import Moment
from amqp10broker.service.sessions.circumstances import Circumstances
from amqp10broker.service.sessions.names import LinkNames
from amqp10broker.service.sessions.session import BrokerSession
from amqp10broker.service.sessions.status import session_view
from amqp10broker.tasks.mail import Frames, LinkStolen, SessionLetter, Stop
from amqp10broker.tasks.mailbox import Bound, Mailbox
from amqp10broker.tasks.session import RunningSession
from amqp10broker.tasks.turns import HEAVY
from amqp10broker.tasks.writer import Lane

if TYPE_CHECKING:
    from amqp10broker.tasks.broker import Broker
    from amqp10broker.tasks.connection10 import Connection10


class Sessions:
    """See the module.

    Attributes:
        by_number: those that the client has not ended.
        working: those whose task is not over; the client may have ended them already.
        held_by: the one that the reader waits for.
        excess_bytes: payload of transfers that came during an alarm.
        unfinished: what they hold of deliveries that are not whole.
    """

    def __init__(self, broker: Broker, connection: Connection10) -> None:
        config = broker.config
        self._broker = broker
        self._connection = connection
        self._names = LinkNames()
        self._gone = ClientCounters()
        # A session counts until its task is gone, which is later than its channel is free again.
        self._running = Bound(config.session_max_per_connection)
        self.unfinished = Unfinished(max(config.unfinished_bytes_max, 2 * config.max_message_size_bytes))
        self._held_channel = 0
        self._held_at = 0.0
        self.by_number: dict[int, RunningSession] = {}
        self.working: set[RunningSession] = set()
        self.held_by: RunningSession | None = None
        self.excess_bytes = 0

    @property
    def full(self) -> bool:
        """Whether the reader waits for a session."""
        return self.held_by is not None

    def counted(self) -> ClientCounters:
        """What the sessions did and got, those that are gone included."""
        sessions = [session.service.counted() for session in self.working]
        return ClientCounters.sum_of([self._gone, *sessions])

    def views(self) -> tuple[SessionView, ...]:
        """What doors show of them."""
        return tuple(
            session_view(session.service, self.around(session))
            for _, session in sorted(self.by_number.items())
        )

    def around(self, session: RunningSession) -> Circumstances:
        """What the connection does for one of its sessions at present."""
        clock, writer, held = self._broker.clock, self._connection.line.writer, self.held_by
        waits = writer.waiting_bytes and not writer.broken
        return Circumstances(
            clock.now_ms(),
            writer_blocked=session.lane.blocked,
            writer_ms=clock.ms_at(writer.waiting_since) if waits else None,
            writer_bytes=writer.waiting_bytes,
            held_by=None if held is None or held is session else f"session {self._held_channel}",
            held_ms=clock.ms_at(self._held_at),
            alarms=tuple(sorted(self._broker.alarms)),
            unread=self._connection.no_alarm is not None,
        )

    def release(self) -> None:
        """The connection is over: let go of it."""
        del self._connection

    async def pass_on(self, event: FramesReceived) -> None:
        """Give a session what the client sent on it, as much in one turn as others can wait for."""
        turn = self._connection.turn
        session = self.by_number.get(event.channel)
        if event.ended:
            self.by_number.pop(event.channel, None)
        if session is None:
            return
        if self._broker.alarms:
            self.excess_bytes += payload_bytes(event.items)
        for items in turn.portions(event.items):
            if session.reads.full:
                await self._wait_for(session, session.reads)
            session.reads.add()
            if not session.inbox.put(Frames(items)):
                session.reads.done()
            if turn.over:
                await self._connection.let_others()

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
        """Read nothing until a bound is kept again that a session uses up."""
        self._connection.flush()
        self.held_by, self._held_channel = session, session.service.session.channel
        self._held_at = trio.current_time()
        await bound.wait()
        self.held_by = None

    def _begin(self, event: BeginReceived) -> None:
        broker, connection = self._broker, self._connection
        inbox: Mailbox[SessionLetter] = Mailbox()
        context = SessionContext(
            catalog=broker.catalog,
            vhost=connection.home,
            access=Access(broker.catalog.users, connection.user, connection.vhost),
            config=broker.config,
            reply_to=broker.askers.open(f"connection {connection.number}, session {event.channel}", inbox),
            user=connection.user,
            container_id=connection.client_name,
            names=self._names,
            tell_stolen=lambda link: inbox.put(LinkStolen(link)),
            propose=broker.propose,
            connection=connection.owner,
            new_id=broker.new_id,
            volatile=broker.make_volatile,
            node=broker.container_id,
            log=connection.log,
            moment=Moment(broker.clock.now_ms()),
        )
        service = BrokerSession(
            event.channel,
            event.performative,
            context,
            frame_size_max=connection.engine.frame_size_max,
            alarm=bool(broker.alarms),
            unfinished=self.unfinished,
        )
        lane = Lane(connection.line.writer, inbox, broker.config.writer_buffer_bytes)
        session = RunningSession(service, inbox, lane, broker.clock)
        self.by_number[event.channel] = session
        self.working.add(session)
        if broker.recordings.recorder is not None:
            broker.recordings.recorder.join(connection, session)
        counted = True
        try:
            broker.catalog.usage.open_channel(broker.catalog.users.lookup(connection.user))
        except RefusedError as refusal:
            counted = False
            error = AmqpSessionError(Condition.RESOURCE_LIMIT_EXCEEDED, refusal.description)
            inbox.put(Stop(tell=True, error=error))
        self._running.add()
        connection.line.start_part(self._run_session, event.channel, session, counted)

    async def _run_session(self, channel: int, session: RunningSession, counted: bool) -> None:
        connection = self._connection
        try:
            await session.run(lambda fault: connection.fail(fault, session=channel))
        except Exception as error:
            connection.crash(error)
        finally:
            self._running.done()
            self.working.discard(session)
            self._gone.add(session.service.counted())
            self._broker.askers.close(session.service.reply_to)
            if counted:
                self._broker.catalog.usage.close_channel(connection.user)
            if self.by_number.get(channel) is session:
                # The client's end is still to come: its frames until then are for nobody.
                del self.by_number[channel]
            session.service.release()
