"""One AMQP 1.0 session's task. Moves mail; what it means is decided in `service` and `amqp10`."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from amqp10broker.amqp10.errors import AmqpError
from amqp10broker.amqp10.session_state import SessionState
from amqp10broker.catalog.proposing import Decided
from amqp10broker.service.sessions.session import BrokerSession
from amqp10broker.tasks.clock import WallClock
from amqp10broker.tasks.letter_box import post_mail
from amqp10broker.tasks.mail import (
    AccessChanged,
    AlarmChanged,
    ConfigChanged,
    Frames,
    LinkStolen,
    SessionLetter,
    Stop,
    WriterReady,
)
from amqp10broker.tasks.mailbox import Bound, Mailbox
from amqp10broker.tasks.writer import Lane

READS_MAX = 4
"""Socket reads (64 KiB each at most) whose frames may wait for one session before the reader waits."""

WRITES_MAX = 4
"""Buffers of transfers that one session writes, while the socket takes them, before others have their
turn."""


class RunningSession:
    """A session and its task.

    Attributes:
        service: what the session does.
        inbox: its letters.
        reads: the reader's share of the inbox.
        lane: its way to the writer.
        on_wake: called at the end of each wake, for who observes it; must not raise.
        on_end: called when it is over, before what it holds goes back; likewise.
    """

    __slots__ = ("_clock", "_stopping", "inbox", "lane", "on_end", "on_wake", "reads", "service")

    def __init__(
        self, service: BrokerSession, inbox: Mailbox[SessionLetter], lane: Lane, clock: WallClock
    ) -> None:
        self.service = service
        self._clock = clock
        self.inbox = inbox
        self.reads = Bound(READS_MAX)
        self.lane = lane
        self.on_wake: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self._stopping = False

    async def run(self, fail: Callable[[AmqpError], None]) -> None:
        """Work until the session is over.

        Args:
            fail: closes the connection with an error of its scope.
        """
        service = self.service
        session = service.session
        lane = self.lane
        try:
            self._send(0)  # the begin that answers the client's
            while not self._stopping and session.state is not SessionState.UNMAPPED:
                letters = await self.inbox.take_all()
                service.moment.ms = self._clock.now_ms()
                try:
                    for letter in letters:
                        self._handle(letter)
                except AmqpError as fault:
                    fail(fault)
                    return
                self._write()
                self._post()
                if self.on_wake is not None:
                    self.on_wake()
                if lane.overfull:
                    await lane.wait_drained()
        finally:
            # No await from here: whatever ended the session, its deliveries go back now.
            if self.on_end is not None:
                self.on_end()
            service.close()
            for letter in self.inbox.close():
                if isinstance(letter, Frames):
                    self.reads.done()
            self._post()

    def _handle(self, letter: SessionLetter) -> None:
        match letter:
            case Frames():
                self.reads.done()
                self.service.receive(letter.items)
            case list():
                self.service.on_effects(letter)
            case Decided():
                self.service.on_decided(letter)
            case WriterReady():
                return
            case AlarmChanged():
                self.service.on_alarm(on=letter.on)
            case ConfigChanged():
                self.service.on_config(letter.config)
            case AccessChanged():
                self.service.on_access_changed()
            case LinkStolen():
                self.service.on_stolen(letter.link)
            case Stop():
                if letter.tell:
                    self.service.end(letter.error)
                self._stopping = True
            case _:
                assert_never(letter)

    def _write(self) -> None:
        """Write answers, and transfers as far as credit, window and the writer's buffer allow."""
        lane = self.lane
        spent = 0
        for _ in range(WRITES_MAX):
            spent = self.service.pump(lane.room)
            self._send(spent)
            if not spent or lane.room <= 0:
                break
        if self.service.session.has_pending and (spent or lane.room <= 0):
            lane.want()

    def _send(self, transfer_bytes: int) -> None:
        pieces = self.service.session.take_output()
        if pieces:
            self.lane.put(pieces, transfer_bytes)

    def _post(self) -> None:
        post_mail(self.service.take_mail())
