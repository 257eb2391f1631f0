"""The tasks of AMQP 1.0 sessions and AMQP 0-9-1 channels. The meaning of messages is in `sessions`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

from amqp10broker.dataclass import dataclass
from amqp10broker.protocols.amqp091.content import ContentOpened
from amqp10broker.protocols.amqp091.errors import Amqp091Error
from amqp10broker.protocols.amqp10.errors import AmqpError
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.connections.writer import OutputBuffer
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.runtime.queues.handles import UnsentCommands, begin_to_send, send_commands, send_more
from amqp10broker.sessions.amqp091.channel import BrokerChannel, ChannelState
from amqp10broker.sessions.amqp091.credit_flow import CreditFlowSettings, CreditSender
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.endpoint import SessionEndpoint
from amqp10broker.sessions.messages import Frames, SessionMessage

READS_MAX: Final = 4
"""Socket reads (64 KiB each, or a share of `READ_BYTES_MAX`) whose frames may wait for one session before the
reader waits."""

EndpointT = TypeVar("EndpointT", bound=SessionEndpoint)


@dataclass(eq=False, slots=True)
class Bound:
    """One sender's share of a mailbox: waits when too many of its messages are not handled.

    `full`: whether the next message has to wait.
    """

    _limit: int
    outstanding: int = 0
    full: bool = False
    _freed: trio.Event | None = None

    async def wait(self) -> None:
        while self.full:
            self._freed = trio.Event()
            await self._freed.wait()

    def add(self) -> None:
        self.outstanding += 1
        self.full = self.outstanding >= self._limit

    def done(self) -> None:
        self.outstanding -= 1
        self.full = self.outstanding >= self._limit
        if self._freed is not None:
            self._freed.set()
            self._freed = None


class EndpointTask(ABC, Generic[EndpointT]):
    """A session or channel and its task.

    Attributes:
        on_wake: called at the end of each step, for observers; must not raise.
        on_turn: called at the end of each step, for watchers of a link; likewise.
        on_end: called when it is over, before what it holds goes back; likewise.
    """

    def __init__(
        self, service: EndpointT, inbox: Mailbox[SessionMessage], output: OutputBuffer, clock: WallClock
    ) -> None:
        self.service = service
        self.inbox = inbox
        self.reads = Bound(READS_MAX)
        self.output = output
        self.on_wake: Callable[[], None] | None = None
        self.on_turn: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self._clock = clock
        self._fault: AmqpError | Amqp091Error | None = None
        self._held = 0
        self._unsent: UnsentCommands = []

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether the task ends after this step."""

    def deliver(self, frames: Frames, *, inline: bool) -> None:
        """Put frames into the mailbox, if `reads` has room; `inline`: and have them handled now."""
        self.reads.add()
        if not (self.inbox.deliver if inline else self.inbox.put)(frames):
            self.reads.done()

    async def run(self) -> None:
        """Work until the session or channel is over.

        Raises:
            AmqpError: the connection must be closed; of a channel `Amqp091Error`.
        """
        service, output = self.service, self.output
        try:
            pieces = service.take_output()
            if pieces:
                output.put(pieces)  # the begin that answers the client's
            while not self.over:
                messages = await self.inbox.take_all(self._run_inline)
                if messages:
                    self._step(messages)
                while self._unsent:
                    await trio.lowlevel.checkpoint()
                    self._unsent = send_more(self._unsent)
                if self._fault is not None:
                    raise self._fault
                if output.overfull:
                    await output.wait_drained()
        finally:
            # No await from here: whatever ended it, its deliveries go back now.
            while self._unsent:
                self._unsent = send_more(self._unsent)
            if self.on_end is not None:
                self.on_end()
            service.close()
            for message in self.inbox.close():
                if isinstance(message, Frames):
                    self.reads.done()
                else:
                    service.handle_undelivered(message)
            send_commands(service.take_commands())

    def _run_inline(self, messages: list[SessionMessage]) -> bool:
        self._step(messages)
        return not (self._fault or self._unsent or self.output.overfull or self.over)

    def _step(self, messages: list[SessionMessage]) -> None:
        service = self.service
        service.moment.ms = self._clock.now_ms()
        try:
            for message in messages:
                self._held += type(message) is Frames
                service.handle(message)
            service.write_output(self.output)
        except (AmqpError, Amqp091Error) as fault:
            self._fault = fault
            self._on_fault()
            return
        if service.commands:
            self._unsent = begin_to_send(service.take_commands())
        self._release_reader()
        if self.on_wake is not None:
            self.on_wake()
        if self.on_turn is not None:
            self.on_turn()

    def _on_fault(self) -> None:
        pass

    def _release_reader(self) -> None:
        while self._held:
            self._held -= 1
            self.reads.done()


class SessionTask(EndpointTask[BrokerSession]):
    @property
    def over(self) -> bool:
        return self.service.over


class ChannelTask(EndpointTask[BrokerChannel]):
    """An AMQP 0-9-1 channel and its task. `credit`: the contents that the reader may still give it."""

    def __init__(
        self,
        service: BrokerChannel,
        inbox: Mailbox[SessionMessage],
        output: OutputBuffer,
        clock: WallClock,
        flow: CreditFlowSettings,
        discard: Callable[[ContentOpened], None],
    ) -> None:
        """Create a task that is ready to run. `discard`: called with contents not to be read whole."""
        super().__init__(service, inbox, output, clock)
        self.credit = CreditSender(flow)
        self._granted: trio.Event | None = None
        self._discard = discard

    @property
    def over(self) -> bool:
        # What the client sent before its close counts, also when a queue must answer first.
        service = self.service
        closed = service.state is ChannelState.CLOSED and not self.inbox.waiting
        return closed or (service.stopping and not service.busy)

    async def wait_for_credit(self) -> None:
        """Wait until the channel takes another content."""
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
        self.service.write_output(self.output)  # what was handled before it is answered

    def _release_reader(self) -> None:
        service = self.service
        if service.unwanted is not None:
            unwanted, service.unwanted = service.unwanted, None
            self._discard(unwanted)
        if self._held and not service.backlog:
            super()._release_reader()
        granted = service.take_grant()
        if granted:
            self.credit.credit += granted
            if self._granted is not None and not self.credit.blocked:
                self._granted.set()
                self._granted = None
