"""The observer of one connection, for all of its traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.link_state import AttachObserved, Direction, ObservedConnection, ObservedLink
from amqp10broker.observe.frames.reader import FrameSplitter, TracedFrame
from amqp10broker.observe.frames.records import (
    ARROWS,
    Ended,
    KnownLink,
    Listening,
    Role,
    ended_line,
    frame_line,
    known_line,
    listening_line,
)
from amqp10broker.operations.node import TraceSink
from amqp10broker.operations.snapshot import TraceView
from amqp10broker.protocols.amqp091.methods import BasicPublish, ChannelCloseOk
from amqp10broker.protocols.amqp10.performatives import Detach, Disposition, End, Flow, Transfer
from amqp10broker.protocols.preface import Protocol
from amqp10broker.routing.address import BadAddress, QueueAddress, parse, queue_address
from amqp10broker.runtime.connections.connection10 import Connection10
from amqp10broker.runtime.connections.connections import Connection
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.publisher import LinkPublisher


@dataclass(slots=True)
class TraceTarget:
    """The subject of a trace. `address`: only frames of this address; None: all of a connection.
    `connection`: the number of the one connection that is meant, if it is one.
    """

    text: str
    covers: Callable[[Connection], bool]
    address: Matches | None = None
    connection: int | None = None


@dataclass(eq=False, slots=True)
class Trace:
    what: str
    target: TraceTarget
    sink: TraceSink
    place: str
    frames: bool = False
    lines: int = field(default=0)

    @property
    def view(self) -> TraceView:
        return TraceView(self.what, self.target.text, self.place, self.lines, self.sink.ended)

    def put(self, lines: list[str]) -> None:
        self.lines += len(lines)
        self.sink.put(lines)


class ConnectionTap:
    """The observer of one connection in both directions, for all of its traces."""

    def __init__(self, connection: Connection, *, begins: bool) -> None:
        self.traces: dict[Trace, LinkScope | ChannelScope | None] = {}
        self._connection = connection
        protocol = Protocol.AMQP_10 if isinstance(connection, Connection10) else Protocol.AMQP_091
        rest = b"" if begins else connection.engine.unread
        self._in = FrameSplitter(protocol, rest, logged_in=not begins)
        self._out = FrameSplitter(protocol, logged_in=not begins)

    def add(self, trace: Trace, *, begins: bool = False) -> None:
        """Listen for another trace too, from the connection's first byte on if it `begins`."""
        self.traces[trace] = None
        matches = trace.target.address
        if matches is not None:
            self.traces[trace] = _scope(self._connection, matches)
        if trace.frames:
            self._begin_recording(trace, begins)

    def _begin_recording(self, trace: Trace, begins: bool) -> None:
        connection, at_ns = self._connection, time.time_ns()
        origin = connection.origin
        listening = Listening(
            at_ns,
            connection.number,
            connection.peer,
            self._in.protocol,
            begins,
            origin.tls,
            origin.transport,
        )
        matches = trace.target.address
        trace.put(
            [
                listening_line(listening),
                *(
                    known_line(each)
                    for each in _known(connection, at_ns)
                    if matches is None or (each.address is not None and matches(each.address))
                ),
            ]
        )

    def received(self, data: bytes) -> None:
        self._write("in", self._in.feed(data))

    def sent(self, data: bytes | memoryview) -> None:
        self._write("out", self._out.feed(bytes(data)))

    def ended(self, reason: str) -> None:
        record = Ended(time.time_ns(), self._connection.number, reason)
        for trace in self.traces:
            if trace.frames:
                trace.put([ended_line(record)])

    def _write(self, direction: Direction, frames: list[TracedFrame]) -> None:
        if not frames:
            return
        arrow, at_ns = ARROWS[direction], time.time_ns()
        for trace, scope in self.traces.items():
            shown = [frame for frame in frames if scope is None or scope.shows(direction, frame)]
            if not shown:
                continue
            if trace.frames:
                number = self._connection.number
                trace.put([frame_line(number, at_ns, direction, frame) for frame in shown])
            else:
                trace.lines += len(shown)
                lines = [f"{arrow} {frame.text}" for frame in shown]
                trace.sink.write(self._connection.number, self._connection.peer, lines)


def _scope(connection: Connection, matches: Matches) -> LinkScope | ChannelScope:
    if not isinstance(connection, Connection10):
        channels = ChannelScope(matches)
        for number, channel in connection.parts.items():
            consumers = channel.service.consuming.consumers.values()
            channels.know(number, [consumer.queue.name for consumer in consumers])
        return channels
    links = LinkScope(matches)
    for number, session in connection.parts.items():
        known: dict[ObservedLink, list[str]] = {}
        ends: list[LinkConsumer | LinkPublisher] = [*session.service.consumers, *session.service.publishers]
        for end in ends:
            # A consumer's address may be a name of the client's; its queue is what both mean.
            names = (end.address, end.queue.name if end.queue is not None else None)
            known[_known_link(connection, 0, number, end).observed()] = [each for each in names if each]
        links.know(number, known)
    return links


def _known(connection: Connection, at_ns: int) -> Iterator[KnownLink]:
    if not isinstance(connection, Connection10):
        for number, channel in connection.parts.items():
            for tag, consumer in channel.service.consuming.consumers.items():
                yield KnownLink(at_ns, connection.number, number, "receiver", tag, consumer.queue.name)
        return
    for number, session in connection.parts.items():
        for receiver in session.service.consumers:
            yield _known_link(connection, at_ns, number, receiver)
        for publisher in session.service.publishers:
            yield _known_link(connection, at_ns, number, publisher)


def _known_link(
    connection: Connection, at_ns: int, channel: int, end: LinkConsumer | LinkPublisher
) -> KnownLink:
    link = end.link
    role: Role = "receiver" if isinstance(end, LinkConsumer) else "sender"
    return KnownLink(
        at_ns,
        connection.number,
        channel,
        role,
        link.name,
        end.address,
        link.handle,
        link.remote_handle,
    )


Matches = Callable[[str], bool]

EXCHANGES: Final = "/exchanges/"


def matching(pattern: str) -> Matches:
    """Whether an address is meant: as it was written, or as that of the queue that a bare name names."""

    def matches(address: str) -> bool:
        return any(fnmatchcase(each, pattern) for each in _ways_to_write(address))

    return matches


def _ways_to_write(address: str) -> Iterator[str]:
    yield address
    try:
        parsed = parse(address)
    except BadAddress:
        return
    if isinstance(parsed, QueueAddress):
        yield queue_address(parsed.queue)


class LinkScope:
    """The traced frames of an AMQP 1.0 connection: of links with the traced address, and those session frames
    that concern all links.
    """

    def __init__(self, matches: Matches) -> None:
        self._matches = matches
        self._state = ObservedConnection()
        self._shown: set[ObservedLink] = set()

    def know(self, channel: int, links: Mapping[ObservedLink, Iterable[str]]) -> None:
        """Add a session that has begun, with its links and all names of their addresses."""
        self._state.know(channel, *links)
        self._shown |= {link for link, names in links.items() if any(map(self._matches, names))}

    def shows(self, direction: Direction, frame: TracedFrame) -> bool:
        body, channel = frame.body, frame.channel
        session = self._state.session(direction, channel)
        links: list[ObservedLink] = []
        if session is not None and isinstance(body, Transfer | Flow | Detach) and body.handle is not None:
            link = session.links[direction].get(body.handle)
            links = [] if link is None else [link]
        elif session is not None and isinstance(body, Flow | Disposition | End):
            links = session.all_links()
        for event in self._state.apply(direction, channel, body):
            if isinstance(event, AttachObserved):
                # A dynamic address is known from the answer on.
                links = [event.link]
                if self._matches(event.link.address):
                    self._shown.add(event.link)
        shown = not self._shown.isdisjoint(links)
        if isinstance(body, Detach | End):
            self._shown &= {link for each in self._state.sessions() for link in each.all_links()}
        return shown


class ChannelScope:
    """The traced frames of an AMQP 0-9-1 connection, which has no links: a channel is shown from the method
    on that names the queue or exchange, except for its publishes to other addresses.
    """

    def __init__(self, matches: Matches) -> None:
        self._matches = matches
        self._channels: set[int] = set()
        self._elsewhere: set[tuple[Direction, int]] = set()

    def know(self, channel: int, queues: Iterable[str]) -> None:
        """A channel that is there already, and the queues that it consumes from."""
        if any(self._matches(queue_address(queue)) for queue in queues):
            self._channels.add(channel)

    def shows(self, direction: Direction, frame: TracedFrame) -> bool:
        """Whether a frame is shown; it must be called with each, in order."""
        channel, method = frame.channel, frame.body
        content = (direction, channel)
        if method is None:  # a content's header or body, or a heartbeat
            return channel in self._channels and content not in self._elsewhere
        self._elsewhere.discard(content)
        named = any(map(self._matches, _addresses(method)))
        if named:
            self._channels.add(channel)
        elif isinstance(method, BasicPublish):
            self._elsewhere.add(content)
            return False
        shown = channel in self._channels
        if isinstance(method, ChannelCloseOk):
            self._channels.discard(channel)
        return shown


def _addresses(method: object) -> Iterator[str]:
    queue = getattr(method, "queue", "")
    if queue:
        yield queue_address(queue)
    exchange = getattr(method, "exchange", "")
    if exchange:
        yield f"{EXCHANGES}{exchange}"
        yield f"{EXCHANGES}{exchange}/{getattr(method, 'routing_key', '')}"
    elif isinstance(method, BasicPublish):
        yield queue_address(method.routing_key)
