"""One AMQP 0-9-1 connection: its open, its channels, and the reader's handling of events.

The reader passes contents to a channel as long as that has credit for them. Then it waits, and with it
everything on the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, assert_never

import trio

from amqp10broker.auth.login import Challenge, Failure, Peer, Success, Unverified
from amqp10broker.errors import NotAllowed, NotFound, RefusedError
from amqp10broker.operations.snapshot import ConnectionView
from amqp10broker.protocols.amqp091.codec import method_name
from amqp10broker.protocols.amqp091.connection import (
    ChannelItems,
    ConnectionEvent,
    ConnectionFailed,
    ConnectionState,
)
from amqp10broker.protocols.amqp091.connection import Connection091 as Engine
from amqp10broker.protocols.amqp091.content import HEARTBEAT, ContentOpened, Item
from amqp10broker.protocols.amqp091.errors import Amqp091Error, AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp091.methods import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
)
from amqp10broker.protocols.connection import IdleTimer
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.connections.client_connection import (
    CREDENTIAL_EXPIRED,
    ClientConnection,
    VhostSlot,
)
from amqp10broker.runtime.connections.session_task import PORTION, EndpointTask, OutputBuffer
from amqp10broker.runtime.connections.sockets import Stream
from amqp10broker.runtime.context import ConnectionContext
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.sessions.amqp091.channel import BrokerChannel, ChannelState
from amqp10broker.sessions.amqp091.publishing import contents_of
from amqp10broker.sessions.amqp10.open import login_refused, server_properties
from amqp10broker.sessions.context import ChannelContext
from amqp10broker.sessions.diagnosis.wait_reasons import Wait, WaitContext
from amqp10broker.sessions.diagnosis.why_channel import channel_view
from amqp10broker.sessions.messages import AlarmChanged, ConfigChanged, Frames, Notice, SessionMessage

FLOW_SHOWN_S: Final = 1.0
"""A connection is shown in state `flow` for so long after the reader has continued."""


class ChannelsContext(ConnectionContext):
    """The context of a connection with channels. `channel_type`: makes one."""

    channel_type: Callable[..., BrokerChannel]


class ChannelTask(EndpointTask[BrokerChannel]):
    """An AMQP 0-9-1 channel and its task. `credit`: that of the connection's reader. `discard`: called with
    contents that need not be read completely.
    """

    def __init__(
        self,
        service: BrokerChannel,
        inbox: Mailbox[SessionMessage],
        output: OutputBuffer,
        clock: WallClock,
        discard: Callable[[ContentOpened], None],
    ) -> None:
        super().__init__(service, inbox, output, clock)
        self.credit = service.credit
        self._granted: trio.Event | None = None
        self._discard = discard

    @property
    def over(self) -> bool:
        # All frames before the client's close count, even when a queue must answer first.
        service = self.service
        closed = service.state is ChannelState.CLOSED and not self.inbox.waiting
        return closed or (service.stopping and not service.busy)

    async def wait_for_credit(self) -> None:
        """Wait until the channel accepts another content."""
        while self.credit.blocked and not self.inbox.closed:
            self._granted = trio.Event()
            await self._granted.wait()

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            if self._granted is not None:
                self._granted.set()

    def _on_fault(self) -> None:
        self.service.write_output(self.output)  # frames that were handled before it are answered

    def _release_reader(self) -> None:
        service = self.service
        if service.unwanted is not None:
            unwanted, service.unwanted = service.unwanted, None
            self._discard(unwanted)
        if self._held and not service.backlog:
            super()._release_reader()
        credit = self.credit
        # While a queue stops the channel, the channel returns no credit.
        if credit.unreturned >= credit.more_after and not service.publishing.blocked:
            credit.give_back()
            if self._granted is not None and not credit.blocked:
                self._granted.set()
                self._granted = None


class ConnectionTask091(ClientConnection[ConnectionEvent, Amqp091Error, ChannelTask]):
    protocol = "AMQP 0-9-1"
    word = "channel"
    heartbeat = HEARTBEAT
    open_state = ConnectionState.RUNNING
    awaiting_states = frozenset((ConnectionState.CLOSING,))
    closed_states = awaiting_states | {ConnectionState.CLOSE_RECEIVED, ConnectionState.END}
    engine: Engine
    _node_context: ChannelsContext

    def __init__(
        self,
        node_context: ChannelsContext,
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
        super().__init__(
            node_context, stream, number, peer, origin, first_bytes, engine, engine.reader.unfinished
        )
        self._mechanism = ""
        self._held_until = -FLOW_SHOWN_S
        # The channel for whose credit or mailbox the reader waits, and since when.
        self._waited_for: ChannelTask | None = None
        self._waits_at = 0.0
        self._published = False

    @property
    def client_name(self) -> str:
        properties = self.engine.client_properties
        return str(properties.get("connection_name") or properties.get("product") or "")

    @property
    def reader_waits(self) -> int:
        """The reason why the connection is not read, as a number in flow events; 0 if it is read."""
        if self.held_by is not None:
            return Wait.CREDIT_FLOW.number
        return Wait.BLOCKED_BY_ALARM.number if self.no_alarm is not None else 0

    # --- life -------------------------------------------------------------------------------------

    async def greet(self) -> None:
        node_context = self._node_context
        cluster = node_context.catalog.cluster_name(node_context.container_id)
        self.engine.start(
            [each.value for each in self._node_context.authenticator.offered(self.origin)],
            server_properties=server_properties(cluster, node_context.identity),
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
                    await self._pass_on(event)
                case ConnectionStartOk():
                    authenticator = self._node_context.authenticator
                    self._authentication = authenticator.begin(self.origin, data_with_outcome=False)
                    self._mechanism = event.mechanism
                    await self.log_in(self._authentication.start(event.mechanism, event.response))
                case ConnectionSecureOk():
                    await self.go_on_with_login(event.response)
                case ConnectionTuneOk():
                    if event.heartbeat:
                        # The connection ends after two intervals of silence; the broker sends after half of
                        # one.
                        ms = 1000 * event.heartbeat
                        self.start_heartbeats(IdleTimer(2 * ms, ms, trio.current_time()))
                case ConnectionOpen():
                    self._open(event)
                case ConnectionUpdateSecret():
                    if await self.renew(event.new_secret):
                        self.engine.update_secret_ok()
                case ConnectionClose():
                    if event.reply_code != ReplyCode.REPLY_SUCCESS:
                        self.log.info(
                            "closed by the client with an error", code=event.reply_code, text=event.reply_text
                        )
                case ConnectionCloseOk():
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
        self.end = "by the broker: login refused"

    def _open(self, event: ConnectionOpen) -> None:
        catalog = self._node_context.catalog
        try:
            self.member = VhostSlot.enter(catalog, event.virtual_host, self.grants, self.owner)
        except (NotAllowed, NotFound) as refusal:
            fault = AmqpHardError(ReplyCode.NOT_ALLOWED, refusal.description, 10, 40)
            self.engine.fail(fault)
            self.log_fault(fault)
            return
        self.log.client["vhost"] = self.vhost
        self.engine.open_ok()
        self.flush()
        self.opened(self.engine.frame_max, product=str(self.engine.client_properties.get("product", "")))

    def on_idle_timeout(self) -> None:
        timeout_s = self.engine.heartbeat_s
        self.end = f"by the broker: missed heartbeats from client, timeout: {timeout_s}s"
        self.log.warning("missed heartbeats from client", timeout_s=timeout_s)
        self.give_up()
        self.stop()

    # --- channels ---------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self.held_by is not None or any(channel.reads.full for channel in self.parts.values())

    def around(self, channel: ChannelTask) -> WaitContext:
        other = self._waited_for
        return self.wait_context(channel.output)._replace(
            reader_credit=channel.credit.credit,
            holds_reader=self.held_by is channel,
            held_by=None if other is None or other is channel else f"channel {other.service.number}",
            held_ms=self._node_context.clock.ms_at(self._waits_at),
        )

    async def wait_out_alarm(self) -> None:
        while self._node_context.alarms and self._publishes:
            low = " & ".join(f"low on {name}" for name in sorted(self._node_context.alarms, reverse=True))
            told = self.engine.blocked(low)
            self.flush()
            await self.wait_for_no_alarm()
            self._published = False
            if told:
                self.engine.unblocked()
                self.flush()

    def tell(self, message: AlarmChanged | ConfigChanged | Notice) -> None:
        if not isinstance(message, AlarmChanged):
            super().tell(message)
        elif not message.on and self.no_alarm is not None:
            self.no_alarm.set()

    @property
    def _publishes(self) -> bool:
        return self._published or self.engine.reader.publishing

    def _discard(self, opened: ContentOpened) -> None:
        self.engine.reader.discard(opened)
        if self.no_alarm is not None and not self._publishes:
            self.no_alarm.set()

    async def _pass_on(self, event: ChannelItems) -> None:
        # Pass a channel its items, in portions between which other tasks run.
        budget = self.budget
        for items in budget.portions(event.items):
            await self._give(event.channel, items)
            if budget.left <= 0:
                await self.yield_to_others()

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
                    # The batch exceeds the channel's credit: pass the part that fits, then let the reader
                    # wait.
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

    def _channel(self, number: int) -> ChannelTask | None:
        return self.parts.get(number) or self._start_channel(number)

    def _lasting(self, channel: ChannelTask) -> ChannelTask | None:
        if not channel.inbox.closed:
            return channel
        following = self._channel(channel.service.number)
        if following is not None:
            # Frames after the close were sent before its answer was read.
            following.service.state = ChannelState.CLOSED
        return following

    async def _put(self, channel: ChannelTask | None, batch: list[object]) -> ChannelTask | None:
        if channel is None or not batch:
            return channel
        if channel.reads.full:
            self.flush()
            with self._waiting_for(channel):
                await channel.reads.wait()
            lasting = self._lasting(channel)
            if lasting is None:
                return None
            channel = lasting
        channel.deliver(Frames(batch), inline=self.run_inline)
        return channel

    async def _hold_for(self, channel: ChannelTask) -> None:
        # The reader of the whole connection waits until one channel takes contents again.
        self.flush()
        self.held_by = channel
        try:
            with self._waiting_for(channel):
                await channel.wait_for_credit()
        finally:
            self.held_by = None
            self._held_until = trio.current_time()
            if channel.on_wake is not None:
                channel.on_wake()  # until now it has waited for this task

    @contextmanager
    def _waiting_for(self, channel: ChannelTask) -> Iterator[None]:
        self._waited_for, self._waits_at = channel, trio.current_time()
        try:
            yield
        finally:
            self._waited_for = None

    def _start_channel(self, number: int) -> ChannelTask | None:
        node_context, engine = self._node_context, self.engine
        limit = engine.channel_max
        if len(self.parts) >= limit:
            text = f"number of channels opened ({limit}) has reached the negotiated channel_max ({limit})"
            self.fail(AmqpHardError(ReplyCode.NOT_ALLOWED, text, 20, 10), channel=number)
            return None
        try:
            self.count_part()
        except RefusedError as refusal:
            error = AmqpHardError(ReplyCode.NOT_ALLOWED, refusal.description, 20, 10)
            self.fail(error, channel=number)
            return None
        inbox: Mailbox[SessionMessage] = Mailbox(node_context.reply_registry.inline)
        context = ChannelContext(
            **self.context_of(number, inbox), capabilities=engine.capabilities, frame_max=engine.frame_max
        )
        service = node_context.channel_type(number, context)
        channel = ChannelTask(service, inbox, self.output_buffer(inbox), node_context.clock, self._discard)
        self.start(number, channel, context.reply_to, counted=True)
        return channel

    async def work(self, number: int, part: ChannelTask) -> None:
        try:
            await part.run()
        except Amqp091Error as fault:
            self.fail(fault, channel=number)

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
        """End in order because the node stops serving, or an operator requested it."""
        if self.engine.state is ConnectionState.RUNNING:
            self.engine.close(ReplyCode.CONNECTION_FORCED, reason)
        self.end = f"by the broker: {reason}"
        self.stop()

    # --- status -----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        if self.engine.state is not ConnectionState.RUNNING:
            return self.engine.state.name.lower()
        if self.no_alarm is not None:
            return "blocked"
        if self._node_context.alarms:
            return "blocking"
        if self.held_by is not None or trio.current_time() < self._held_until + FLOW_SHOWN_S:
            return "flow"
        return "running"

    def view(self) -> ConnectionView:
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
            channels=tuple(
                channel_view(channel.service, self.around(channel))
                for _, channel in sorted(self.parts.items())
            ),
        )
