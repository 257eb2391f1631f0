"""The common part of the sessions of an AMQP 1.0 connection and the channels of a 0-9-1 one.

Their input is handled in `sessions10` and `channels091`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic

import trio

from amqp10broker.auth.authorise import Access
from amqp10broker.auth.grants import account_of
from amqp10broker.queues.commands import ReplyTo
from amqp10broker.runtime.connections.connection_shell import ConnectionShell, PartT
from amqp10broker.runtime.connections.writer import OutputBuffer
from amqp10broker.runtime.context import ConnectionContext
from amqp10broker.runtime.mailbox import Mailbox
from amqp10broker.sessions.circumstances import WaitContext
from amqp10broker.sessions.counters import ClientCounters
from amqp10broker.sessions.mail import AccessChanged, AlarmChanged, ConfigChanged, SessionLetter
from amqp10broker.sessions.measures import Measures


class RunningParts(ABC, Generic[PartT]):
    """The sessions or channels of a connection (`connection_shell.Parts`).

    Attributes:
        by_number: those that are there. A session that its client has ended is not, and may still work.
        no_alarm: the reader waits for it; None while it does not wait out an alarm.
    """

    word: ClassVar[str]
    """What it is, in the log and in the names of those that ask queues."""

    def __init__(self, node_context: ConnectionContext, connection: ConnectionShell[Any, Any, PartT]) -> None:
        self._node_context = node_context
        self._connection = connection
        self._gone = ClientCounters()
        self.by_number: dict[int, PartT] = {}
        self.working: set[PartT] = set()
        self.held_by: PartT | None = None
        self.no_alarm: trio.Event | None = None
        self._blocked_at = 0.0
        self.begun = 0
        self.measures = Measures()

    @abstractmethod
    async def _work(self, number: int, part: PartT) -> None: ...

    @abstractmethod
    async def wait_out_alarm(self) -> None:
        """Return when the client may send; connections that have sent little during an alarm go on."""

    def alarm_over(self) -> None:
        """Let the reader go on."""
        if self.no_alarm is not None:
            self.no_alarm.set()

    def tell(self, letter: AlarmChanged | ConfigChanged | AccessChanged) -> None:
        """Put a letter into every mailbox."""
        for part in self.by_number.values():
            part.inbox.put(letter)

    def counted(self) -> ClientCounters:
        """Their counters, including ended ones."""
        return ClientCounters.sum_of([self._gone, *(part.service.counted() for part in self.working)])

    def release(self) -> None:
        """The connection is over: let go of it."""
        del self._connection

    def _access(self) -> Access:
        connection = self._connection
        return Access(connection.credential.grants, connection.vhost)

    def _wait_context(self, lane: OutputBuffer) -> WaitContext:
        clock, writer = self._node_context.clock, self._connection.line.writer
        waits = writer.waiting_bytes and not writer.broken
        return WaitContext(
            clock.now_ms(),
            writer_blocked=lane.blocked,
            writer_ms=clock.ms_at(writer.waiting_since) if waits else None,
            writer_bytes=writer.waiting_bytes,
            alarms=tuple(sorted(self._node_context.alarms)),
            blocked_ms=None if self.no_alarm is None else clock.ms_at(self._blocked_at),
        )

    async def _wait_for_no_alarm(self) -> None:
        self.no_alarm, self._blocked_at = trio.Event(), trio.current_time()
        try:
            await self.no_alarm.wait()
        finally:
            self.no_alarm = None

    def _count(self) -> None:
        catalog = self._node_context.catalog
        catalog.usage.open_channel(account_of(self._connection.credential.grants))

    def _address(self, number: int, inbox: Mailbox[SessionLetter]) -> ReplyTo:
        label = f"connection {self._connection.number}, {self.word} {number}"
        return self._node_context.reply_registry.open(label, inbox)

    def _lane(self, inbox: Mailbox[SessionLetter]) -> OutputBuffer:
        return OutputBuffer(
            self._connection.line.writer, inbox, self._node_context.config.writer_buffer_bytes
        )

    def _start(self, number: int, part: PartT, reply_to: ReplyTo, *, counted: bool) -> None:
        self.begun += 1
        self.by_number[number] = part
        self.working.add(part)
        self._node_context.part_begun(self._connection.number, number)
        self._connection.line.start_part(self._run_part, number, part, reply_to, counted)

    async def _run_part(self, number: int, part: PartT, reply_to: ReplyTo, counted: bool) -> None:
        connection, node_context = self._connection, self._node_context
        try:
            await self._work(number, part)
        except Exception as error:
            connection.crash(error)
        finally:
            self.working.discard(part)
            self._gone.add(part.service.counted())
            node_context.reply_registry.close(reply_to)
            if counted:
                node_context.catalog.usage.close_channel(connection.user)
            if self.by_number.get(number) is part:
                # What the client still sends on it is for nobody.
                del self.by_number[number]
            part.service.release()
