"""One AMQP 0-9-1 channel's task. Moves mail; what it means is decided in `service.channels`."""

from __future__ import annotations

from collections.abc import Callable

import trio

from amqp10broker.protocols.amqp091.content import ContentOpened
from amqp10broker.protocols.amqp091.errors import Amqp091Error
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.connections.session import READS_MAX
from amqp10broker.runtime.connections.writer import OutputBuffer
from amqp10broker.runtime.mailbox import Bound, Mailbox
from amqp10broker.runtime.queues.handles import Unposted, begin_to_post, post_mail, post_more
from amqp10broker.sessions.amqp091.channel import BrokerChannel, ChannelState
from amqp10broker.sessions.amqp091.credit_flow import CreditFlowSettings, CreditSender
from amqp10broker.sessions.mail import Frames, SessionLetter
from amqp10broker.sessions.session_step import write


class RunningChannel:
    """A channel and its task. `on_wake`: called at the end of each step, for observers; must not raise.
    `on_end`: called when it is over, before what it holds goes back; likewise.
    """

    __slots__ = (
        "_clock",
        "_fault",
        "_granted",
        "_held",
        "_unposted",
        "credit",
        "inbox",
        "lane",
        "on_end",
        "on_turn",
        "on_wake",
        "reads",
        "service",
    )

    def __init__(
        self,
        service: BrokerChannel,
        inbox: Mailbox[SessionLetter],
        lane: OutputBuffer,
        flow: CreditFlowSettings,
        clock: WallClock,
    ) -> None:
        self._clock = clock
        self.service = service
        self.inbox = inbox
        self.reads = Bound(READS_MAX)
        self.credit = CreditSender(flow)
        self.lane = lane
        self.on_wake: Callable[[], None] | None = None
        self.on_turn: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self._held = 0
        self._granted: trio.Event | None = None
        self._fault: Amqp091Error | None = None
        self._unposted: Unposted = []

    async def wait_for_credit(self) -> None:
        """Wait until the channel takes another content."""
        while self.credit.blocked and not self.inbox.closed:
            self._granted = trio.Event()
            await self._granted.wait()

    async def run(
        self, fail: Callable[[Amqp091Error], None], discard: Callable[[ContentOpened], None]
    ) -> None:
        """Work until the channel is closed and nothing is left to do."""
        service = self.service
        lane = self.lane
        self.inbox.at_once = lambda letters: self._at_once(letters, discard)
        try:
            # What the client sent before its close counts, also when a queue must answer first.
            while not service.stopping or service.busy:
                letters = await self.inbox.take_all()
                if letters:
                    self._turn(letters, discard)
                while self._unposted:
                    await trio.lowlevel.checkpoint()
                    self._unposted = post_more(self._unposted)
                if self._fault is not None:
                    fail(self._fault)
                    return
                if lane.overfull:
                    await lane.wait_drained()
                if service.state is ChannelState.CLOSED and not self.inbox.waiting:
                    return
        finally:
            # No await from here: whatever ended the channel, its deliveries go back now.
            while self._unposted:
                self._unposted = post_more(self._unposted)
            if self.on_end is not None:
                self.on_end()
            service.close()
            for letter in self.inbox.close():
                if isinstance(letter, Frames):
                    self.reads.done()
            post_mail(service.take_mail())
            if self._granted is not None:
                self._granted.set()

    def _at_once(self, letters: list[SessionLetter], discard: Callable[[ContentOpened], None]) -> bool:
        self._turn(letters, discard)
        service = self.service
        return (
            self._fault is None
            and not service.stopping
            and not self._unposted
            and not self.lane.overfull
            and service.state is not ChannelState.CLOSED
        )

    def _turn(self, letters: list[SessionLetter], discard: Callable[[ContentOpened], None]) -> None:
        service = self.service
        service.context.moment.ms = self._clock.now_ms()
        try:
            for letter in letters:
                self._held += isinstance(letter, Frames)
                service.handle(letter)
        except Amqp091Error as fault:
            write(service, self.lane)  # what was handled before it is answered
            self._fault = fault
            return
        write(service, self.lane)
        self._unposted = begin_to_post(service.take_mail(), self._unposted)
        unwanted = service.take_unwanted()
        if unwanted is not None:
            discard(unwanted)
        self._give_way()
        if self.on_wake is not None:
            self.on_wake()
        if self.on_turn is not None:
            self.on_turn()

    def _give_way(self) -> None:
        if self._held and not self.service.waiting:
            for _ in range(self._held):
                self.reads.done()
            self._held = 0
        granted = self.service.take_grant()
        if granted:
            self.credit.credit += granted
            if self._granted is not None and not self.credit.blocked:
                self._granted.set()
                self._granted = None
