"""The channels of one AMQP 0-9-1 connection, and what its reader gives them.

The reader gives contents to a channel as long as that has credit for them. Then it waits, and with it
everything on the connection: see `connection091`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio

from amqp10broker.errors import RefusedError
from amqp10broker.operations.snapshot import ChannelView
from amqp10broker.protocols.amqp091.connection import Connection091 as Engine
from amqp10broker.protocols.amqp091.content import ContentOpened, Item
from amqp10broker.protocols.amqp091.errors import Amqp091Error, AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp091.events import ChannelItems, ConnectionEvent
from amqp10broker.runtime.connections.channel import RunningChannel
from amqp10broker.runtime.connections.connection_shell import ConnectionShell
from amqp10broker.runtime.connections.parts import RunningParts
from amqp10broker.runtime.context import ConnectionContext
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.queues.commits import SessionCommits
from amqp10broker.sessions.amqp091.channel import ChannelState
from amqp10broker.sessions.amqp091.context import ChannelContext
from amqp10broker.sessions.amqp091.credit_flow import CreditFlowSettings, contents_of
from amqp10broker.sessions.amqp091.status import channel_view
from amqp10broker.sessions.circumstances import WaitContext
from amqp10broker.sessions.mail import AccessChanged, AlarmChanged, ConfigChanged, Frames, SessionLetter
from amqp10broker.sessions.moment import Moment

FLOW_SHOWN_S: Final = 1.0
"""A connection is shown in state `flow` for so long after the reader went on."""


class Channels(RunningParts[RunningChannel]):
    word = "channel"

    def __init__(
        self,
        node_context: ConnectionContext,
        connection: ConnectionShell[ConnectionEvent, Amqp091Error, RunningChannel],
        engine: Engine,
    ) -> None:
        super().__init__(node_context, connection)
        self._engine = engine
        self.unfinished = engine.unfinished
        self._flow = CreditFlowSettings.of(node_context.config)
        self._held_until = -FLOW_SHOWN_S
        # The one that the reader waits for, for its credit or until it has taken its mail; and since when.
        self._waited_for: RunningChannel | None = None
        self._waits_at = 0.0
        self._published = False

    @property
    def full(self) -> bool:
        """Whether the reader waits, or soon will, for a channel."""
        return self.held_by is not None or any(channel.reads.full for channel in self.by_number.values())

    @property
    def flows(self) -> bool:
        """Whether the reader waits for a channel, or did a moment ago."""
        return self.held_by is not None or trio.current_time() < self._held_until + FLOW_SHOWN_S

    def views(self) -> tuple[ChannelView, ...]:
        """Return their views for front ends."""
        return tuple(
            channel_view(channel.service, self.around(channel))
            for _, channel in sorted(self.by_number.items())
        )

    def around(self, channel: RunningChannel) -> WaitContext:
        """Return the present activity of the connection for one of its channels."""
        other = self._waited_for
        return self._wait_context(channel.lane)._replace(
            reader_credit=channel.credit.credit,
            holds_reader=self.held_by is channel,
            held_by=None if other is None or other is channel else f"channel {other.service.number}",
            held_ms=self._node_context.clock.ms_at(self._waits_at),
        )

    # --- alarms -----------------------------------------------------------------------------------

    async def wait_out_alarm(self) -> None:
        while self._node_context.alarms and self._publishes:
            low = " & ".join(f"low on {name}" for name in sorted(self._node_context.alarms, reverse=True))
            told = self._engine.blocked(low)
            self._connection.flush()
            await self._wait_for_no_alarm()
            self._published = False
            if told:
                self._engine.unblocked()
                self._connection.flush()

    def tell(self, letter: AlarmChanged | ConfigChanged | AccessChanged) -> None:
        if not isinstance(letter, AlarmChanged):
            super().tell(letter)

    @property
    def _publishes(self) -> bool:
        return self._published or self._engine.publishing

    def _discard(self, opened: ContentOpened) -> None:
        self._engine.discard(opened)
        if self.no_alarm is not None and not self._publishes:
            self.no_alarm.set()

    # --- what the reader gives --------------------------------------------------------------------

    async def pass_on(self, event: ChannelItems) -> None:
        """Give a channel what the client sent on it, as much in one turn as others can wait for."""
        turn = self._connection.turn
        for items in turn.portions(event.items):
            await self._give(event.channel, items)
            if turn.over:
                await self._connection.let_others()

    async def _give(self, number: int, items: Sequence[Item]) -> None:
        channel = self._channel(number)
        batch: list[object] = []
        for item in items:
            if self._node_context.alarms and contents_of(item):
                self._published = True
            rest: Item | None = item
            while channel is not None and rest is not None:
                now, rest = channel.credit.admit(rest)
                if now is not None:
                    batch.append(now)
                if rest is not None:
                    # More than it may be given now: what it may, and then everybody waits.
                    channel = await self._put(channel, batch)
                    batch = []
                    if channel is not None:
                        await self._hold_for(channel)
                        channel = self._lasting(channel)
            if channel is None:
                return
        channel = await self._put(channel, batch)
        if channel is not None and channel.credit.blocked:
            await self._hold_for(channel)

    def _channel(self, number: int) -> RunningChannel | None:
        return self.by_number.get(number) or self._start_channel(number)

    def _lasting(self, channel: RunningChannel) -> RunningChannel | None:
        if not channel.inbox.closed:
            return channel
        following = self._channel(channel.service.number)
        if following is not None:
            # What is behind the close was sent before its answer was read.
            following.service.state = ChannelState.CLOSED
        return following

    async def _put(self, channel: RunningChannel | None, batch: list[object]) -> RunningChannel | None:
        if channel is None or not batch:
            return channel
        if channel.reads.full:
            self._connection.flush()
            with self._waiting_for(channel):
                await channel.reads.wait()
            lasting = self._lasting(channel)
            if lasting is None:
                return None
            channel = lasting
        channel.reads.add()
        relay = self._node_context.reply_registry.relay
        relay.open = self._connection.run_inline
        if not channel.inbox.put(Frames(batch)):
            channel.reads.done()
        relay.carry()
        return channel

    async def _hold_for(self, channel: RunningChannel) -> None:
        # The reader of the whole connection waits until one channel takes contents again.
        self._connection.flush()
        self.held_by = channel
        try:
            with self._waiting_for(channel):
                await channel.wait_for_credit()
        finally:
            self.held_by = None
            self._held_until = trio.current_time()
            if channel.on_wake is not None:
                channel.on_wake()  # until now it has waited for us

    @contextmanager
    def _waiting_for(self, channel: RunningChannel) -> Iterator[None]:
        self._waited_for, self._waits_at = channel, trio.current_time()
        try:
            yield
        finally:
            self._waited_for = None

    def _start_channel(self, number: int) -> RunningChannel | None:
        node_context, connection, engine = self._node_context, self._connection, self._engine
        limit = engine.channel_max
        if len(self.by_number) >= limit:
            text = f"number of channels opened ({limit}) has reached the negotiated channel_max ({limit})"
            connection.fail(AmqpHardError(ReplyCode.NOT_ALLOWED, text, 20, 10), channel=number)
            return None
        try:
            self._count()
        except RefusedError as refusal:
            error = AmqpHardError(ReplyCode.NOT_ALLOWED, refusal.description, 20, 10)
            connection.fail(error, channel=number)
            return None
        inbox: Mailbox[SessionLetter] = Mailbox(node_context.reply_registry.relay)
        reply_to = self._address(number, inbox)
        context = ChannelContext(
            catalog=node_context.catalog,
            vhost=connection.home,
            propose=node_context.propose,
            access=self._access(),
            config=node_context.config,
            reply_to=reply_to,
            user=connection.user,
            connection=connection.owner,
            capabilities=engine.capabilities,
            frame_max=engine.frame_max,
            new_id=node_context.new_id,
            volatile=node_context.make_volatile,
            log=connection.log,
            moment=Moment(node_context.clock.now_ms(), self.measures),
            commits=SessionCommits(inbox, node_context.journal_task),
        )
        service = node_context.channel_type(number, context)
        channel = RunningChannel(service, inbox, self._lane(inbox), self._flow, node_context.clock)
        self._start(number, channel, reply_to, counted=True)
        return channel

    async def _work(self, number: int, part: RunningChannel) -> None:
        await part.run(lambda fault: self._connection.fail(fault, channel=number), self._discard)
