"""What listens to one connection, for all traces that it is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from amqp10broker.greeting import Protocol
from amqp10broker.management.node import Sink
from amqp10broker.management.snapshot import TraceView
from amqp10broker.service.sessions.consumer import Consumer
from amqp10broker.service.sessions.publisher import Publisher
from amqp10broker.tasks.connection10 import Connection10
from amqp10broker.tasks.connections import Connection
from amqp10broker.tasks.trace import FrameTracer, Shown
from amqp10broker.tasks.trace_scope import ChannelScope, LinkScope, Matches


@dataclass(slots=True)
class Target:
    """What is traced.

    Attributes:
        text: it, for people.
        covers: whether a connection is to be listened to.
        address: only frames of this address; None: all of a connection.
        connection: the number of the one connection that is meant, if it is one.
    """

    text: str
    covers: Callable[[Connection], bool]
    address: Matches | None = None
    connection: int | None = None


@dataclass(eq=False, slots=True)
class Trace:
    """One that is on.

    Attributes:
        what: as it was asked for; `end` takes it.
        target: what that is.
        sink: where its lines go.
        place: a file's name, ``log``, or ``a terminal``.
        lines: written so far.
    """

    what: str
    target: Target
    sink: Sink
    place: str
    lines: int = field(default=0)

    @property
    def view(self) -> TraceView:
        """What doors show of it."""
        return TraceView(self.what, self.target.text, self.place, self.lines, self.sink.ended)


class ConnectionTap:
    """What listens to one connection: both directions, for all traces that it is in."""

    def __init__(self, connection: Connection, *, begins: bool) -> None:
        """Begin between two frames.

        Args:
            connection: which.
            begins: nothing has been read from it yet.
        """
        self.traces: dict[Trace, LinkScope | ChannelScope | None] = {}
        self._connection = connection
        protocol = Protocol.AMQP_10 if isinstance(connection, Connection10) else Protocol.AMQP_091
        rest = b"" if begins else connection.engine.unread
        self._in = FrameTracer(protocol, rest, logged_in=not begins)
        self._out = FrameTracer(protocol, logged_in=not begins)

    def add(self, trace: Trace) -> None:
        """Listen for another trace too."""
        self.traces[trace] = None
        matches = trace.target.address
        if matches is not None:
            self.traces[trace] = _scope(self._connection, matches)

    def received(self, data: bytes) -> None:
        """Bytes that came."""
        self._write("<-", self._in.feed(data))

    def sent(self, data: bytes | memoryview) -> None:
        """Bytes for the writer: whole frames."""
        self._write("->", self._out.feed(bytes(data)))

    def _write(self, arrow: str, frames: list[Shown]) -> None:
        if not frames:
            return
        for trace, scope in self.traces.items():
            lines = [
                f"{arrow} {frame.text}" for frame in frames if scope is None or scope.shows(arrow, frame)
            ]
            if lines:
                trace.lines += len(lines)
                trace.sink.write(self._connection.number, self._connection.peer, lines)


def _scope(connection: Connection, matches: Matches) -> LinkScope | ChannelScope:
    """An address's part of a connection, with what is there already."""
    if not isinstance(connection, Connection10):
        channels = ChannelScope(matches)
        for number, channel in connection.parts.items():
            consumers = channel.service.consuming.consumers.values()
            channels.know(number, [consumer.queue.name for consumer in consumers])
        return channels
    links = LinkScope(matches)
    for number, session in connection.parts.items():
        ends: list[Consumer | Publisher] = [*session.service.consumers, *session.service.publishers]
        for end in ends:
            # A consumer's address may be a name of the client's; its queue is what both mean.
            names = (end.address, end.queue.name if end.queue is not None else None)
            links.know(number, end.link.handle, end.link.remote_handle, [each for each in names if each])
    return links
