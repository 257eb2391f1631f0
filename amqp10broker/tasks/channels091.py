"""The channels of one AMQP 0-9-1 connection, and what its reader gives them.

The reader gives contents to a channel as long as that has credit for them. Then it waits, and with it
everything on the connection: see `connection091`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from amqp10broker.amqp091.errors import AmqpHardError, ReplyCode
from amqp10broker.amqp091.events import ChannelItems
from amqp10broker.amqp091.items import Item, PublishRun
from amqp10broker.errors import RefusedError
from amqp10broker.management.snapshot import ChannelView
from amqp10broker.security.authorise import Access
from amqp10broker.service.channels.channel import BrokerChannel
from amqp10broker.service.channels.circumstances import Circumstances
from amqp10broker.service.channels.context import ChannelContext
from amqp10broker.service.channels.credit_flow import CreditFlowSettings
from amqp10broker.service.channels.status import channel_view
from amqp10broker.service.counters import ClientCounters
from amqp10broker.service.moment import Moment
from amqp10broker.tasks.channel import RunningChannel, contents_of, split
from amqp10broker.tasks.mail import Frames, SessionLetter
from amqp10broker.tasks.mailbox import Mailbox
from amqp10broker.tasks.writer import Lane

if TYPE_CHECKING:
    from amqp10broker.tasks.broker import Broker
    from amqp10broker.tasks.connection091 import Connection091

FLOW_SHOWN_S: Final = 1.0
"""A connection is shown in state `flow` for so long after the reader went on."""


class Channels:
    """See the module.

    Attributes:
        by_number: those that are there.
        held_by: the one whose credit the reader waits for.
        blocked_at: when the connection was blocked by an alarm, by Trio's clock; None: it is not.
        publishes: the client has published during an alarm.
    """

    def __init__(self, broker: Broker, connection: Connection091) -> None:
        self._broker = broker
        self._connection = connection
        self._flow = CreditFlowSettings.of(broker.config)
        self._held_until = -FLOW_SHOWN_S
        self.by_number: dict[int, RunningChannel] = {}
        self.held_by: RunningChannel | None = None
        self.blocked_at: float | None = None
        # The one that the reader waits for, for its credit or until it has taken its mail; and since when.
        self._waited_for: RunningChannel | None = None
        self._waits_at = 0.0
        self.publishes = False
        self._gone = ClientCounters()

    @property
    def full(self) -> bool:
        """Whether the reader waits, or soon will, for a channel."""
        return self.held_by is not None or any(channel.reads.full for channel in self.by_number.values())

    @property
    def working(self) -> Iterable[RunningChannel]:
        """Those whose task is not over: all."""
        return self.by_number.values()

    @property
    def flows(self) -> bool:
        """Whether the reader waits for a channel, or did a moment ago."""
        return self.held_by is not None or trio.current_time() < self._held_until + FLOW_SHOWN_S

    def counted(self) -> ClientCounters:
        """What the channels did and got, those that are gone included."""
        channels = [channel.service.counters for channel in self.by_number.values()]
        return ClientCounters.sum_of([self._gone, *channels])

    def views(self) -> tuple[ChannelView, ...]:
        """What doors show of them."""
        return tuple(
            channel_view(channel.service, self.around(channel))
            for _, channel in sorted(self.by_number.items())
        )

    def around(self, channel: RunningChannel) -> Circumstances:
        """What the connection does for one of its channels at present."""
        clock, writer, other = self._broker.clock, self._connection.line.writer, self._waited_for
        writer_waits = writer.waiting_bytes and not writer.broken
        return Circumstances(
            clock.now_ms(),
            writer_blocked=channel.lane.blocked,
            writer_ms=clock.ms_at(writer.waiting_since) if writer_waits else None,
            writer_bytes=writer.waiting_bytes,
            reader_credit=channel.credit.credit,
            holds_reader=self.held_by is channel,
            held_by=None if other is None or other is channel else other.service.number,
            held_ms=clock.ms_at(self._waits_at),
            alarms=tuple(sorted(self._broker.alarms)),
            blocked_ms=None if self.blocked_at is None else clock.ms_at(self.blocked_at),
        )

    def release(self) -> None:
        """The connection is over: let go of it."""
        del self._connection

    async def pass_on(self, event: ChannelItems) -> None:
        """Give a channel what the client sent on it, as much in one turn as others can wait for."""
        turn = self._connection.turn
        for items in turn.portions(event.items):
            await self._give(event.channel, items)
            if turn.over:
                await self._connection.let_others()

    async def _give(self, number: int, items: Sequence[Item]) -> None:
        """Give a channel what the client sent on it, waiting as long as its credit says."""
        channel = self._channel(number)
        batch: list[object] = []
        for item in items:
            contents = contents_of(item)
            if contents and self._broker.alarms:
                self.publishes = True
            while channel is not None and contents > channel.credit.credit:
                # More than it may be given now: what it may, and then everybody waits.
                if isinstance(item, PublishRun) and channel.credit.credit > 0:
                    first, item = split(item, channel.credit.credit)
                    contents -= len(first.bodies)
                    channel.credit.credit = 0
                    batch.append(first)
                channel = await self._put(channel, batch)
                batch = []
                if channel is not None:
                    await self._hold_for(channel)
                    channel = self._lasting(channel)
            if channel is None:
                return
            channel.credit.credit -= contents
            batch.append(item)
        channel = await self._put(channel, batch)
        if channel is not None and channel.credit.blocked:
            await self._hold_for(channel)

    def _channel(self, number: int) -> RunningChannel | None:
        """The channel of this number, begun now if there is none; None if there may be no more."""
        return self.by_number.get(number) or self._start_channel(number)

    def _lasting(self, channel: RunningChannel) -> RunningChannel | None:
        """The channel, or if it ended while the reader waited for it, the next one of its number."""
        return self._channel(channel.service.number) if channel.inbox.closed else channel

    async def _put(self, channel: RunningChannel | None, batch: list[object]) -> RunningChannel | None:
        """Give frames to a channel, or to the next one of its number; returns which."""
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
        if not channel.inbox.put(Frames(batch)):
            channel.reads.done()
        return channel

    async def _hold_for(self, channel: RunningChannel) -> None:
        """The reader of the whole connection waits until one channel takes contents again."""
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
        broker = self._broker
        vhost = self._connection.home
        limit = self._connection.engine.channel_max
        if len(self.by_number) >= limit:
            text = f"number of channels opened ({limit}) has reached the negotiated channel_max ({limit})"
            self._connection.fail(AmqpHardError(ReplyCode.NOT_ALLOWED, text, 20, 10), channel=number)
            return None
        try:
            broker.catalog.usage.open_channel(broker.catalog.users.lookup(self._connection.user))
        except RefusedError as refusal:
            error = AmqpHardError(ReplyCode.NOT_ALLOWED, refusal.description, 20, 10)
            self._connection.fail(error, channel=number)
            return None
        access = Access(broker.catalog.users, self._connection.user, vhost.name)
        inbox: Mailbox[SessionLetter] = Mailbox()
        context = ChannelContext(
            vhost=vhost,
            propose=broker.propose,
            access=access,
            config=broker.config,
            reply_to=broker.askers.open(f"connection {self._connection.number}, channel {number}", inbox),
            user=self._connection.user,
            connection=self._connection.owner,
            capabilities=self._connection.engine.capabilities,
            frame_max=self._connection.engine.frame_max,
            new_id=broker.new_id,
            volatile=broker.make_volatile,
            log=self._connection.log,
            moment=Moment(broker.clock.now_ms()),
        )
        lane = Lane(self._connection.line.writer, inbox, broker.config.writer_buffer_bytes)
        channel = RunningChannel(BrokerChannel(number, context), inbox, lane, self._flow, broker.clock)
        self.by_number[number] = channel
        if broker.recordings.recorder is not None:
            broker.recordings.recorder.join(self._connection, channel)
        self._connection.line.start_part(self._run_channel, number, channel)
        return channel

    async def _run_channel(self, number: int, channel: RunningChannel) -> None:
        try:
            await channel.run(
                lambda fault: self._connection.fail(fault, channel=number), self._connection.discard
            )
        except Exception as error:
            self._connection.crash(error)
        finally:
            self._gone.add(channel.service.counters)
            self._broker.askers.close(channel.service.context.reply_to)
            self._broker.catalog.usage.close_channel(self._connection.user)
            if self.by_number.get(number) is channel:
                del self.by_number[number]
            channel.service.release()
