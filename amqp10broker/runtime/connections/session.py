"""One AMQP 1.0 session's task. Moves mail; what it means is decided in `service` and `amqp10`."""

from __future__ import annotations

from collections.abc import Callable

import trio

from amqp10broker.protocols.amqp10.errors import AmqpError
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.connections.writer import OutputBuffer
from amqp10broker.runtime.mailbox import Bound, Mailbox
from amqp10broker.runtime.queues.handles import Unposted, begin_to_post, post_mail, post_more
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.mail import Frames, SessionLetter
from amqp10broker.sessions.session_step import write

READS_MAX = 4
"""Socket reads (64 KiB each, or a share of `READ_BYTES_MAX`) whose frames may wait for one session before the
reader waits."""


class RunningSession:
    """A session and its task.

    Attributes:
        on_wake: called at the end of each step, for observers; must not raise.
        on_turn: called at the end of each step, for watchers of a link; likewise.
        on_end: called when it is over, before what it holds goes back; likewise.
    """

    __slots__ = (
        "_clock",
        "_fault",
        "_unposted",
        "inbox",
        "lane",
        "on_end",
        "on_turn",
        "on_wake",
        "reads",
        "service",
    )

    def __init__(
        self, service: BrokerSession, inbox: Mailbox[SessionLetter], lane: OutputBuffer, clock: WallClock
    ) -> None:
        self.service = service
        self._clock = clock
        self.inbox = inbox
        self.reads = Bound(READS_MAX)
        self.lane = lane
        self.on_wake: Callable[[], None] | None = None
        self.on_turn: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self._fault: AmqpError | None = None
        self._unposted: Unposted = []
        inbox.at_once = self._at_once

    async def run(self, fail: Callable[[AmqpError], None]) -> None:
        """Work until the session is over."""
        service = self.service
        lane = self.lane
        try:
            lane.put(service.take_output())  # the begin that answers the client's
            while not service.over:
                letters = await self.inbox.take_all()
                if letters:
                    self._turn(letters)
                while self._unposted:
                    await trio.lowlevel.checkpoint()
                    self._unposted = post_more(self._unposted)
                if self._fault is not None:
                    fail(self._fault)
                    return
                if lane.overfull:
                    await lane.wait_drained()
        finally:
            # No await from here: whatever ended the session, its deliveries go back now.
            while self._unposted:
                self._unposted = post_more(self._unposted)
            if self.on_end is not None:
                self.on_end()
            service.close()
            for letter in self.inbox.close():
                if isinstance(letter, Frames):
                    self.reads.done()
                else:
                    service.handle_undelivered(letter)
            post_mail(service.take_mail())

    def _turn(self, letters: list[SessionLetter]) -> None:
        service = self.service
        service.moment.ms = self._clock.now_ms()
        try:
            for letter in letters:
                if isinstance(letter, Frames):
                    self.reads.done()
                service.handle(letter)
            write(service, self.lane)
        except AmqpError as fault:
            self._fault = fault
            return
        self._unposted = begin_to_post(service.take_mail(), self._unposted)
        if self.on_wake is not None:
            self.on_wake()
        if self.on_turn is not None:
            self.on_turn()

    def _at_once(self, letters: list[SessionLetter]) -> bool:
        self._turn(letters)
        more = self._unposted or self.lane.overfull
        return self._fault is None and not self.service.over and not more
