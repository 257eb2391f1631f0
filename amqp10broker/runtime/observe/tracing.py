"""Traces of connections, users, addresses, or everything, while the broker runs. A traced connection has a
`ConnectionTap` for all of its traces at its stream and writer, which parses its bytes a second time. For
others it costs one attribute look-up for each read and write.
"""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotAllowed, NotFound, StorageError
from amqp10broker.metadata.users import Users
from amqp10broker.observe.frames.link_state import AttachObserved, Direction, ObservedConnection, ObservedLink
from amqp10broker.observe.frames.records import (
    ARROWS,
    Ended,
    FrameSplitter,
    KnownLink,
    Listening,
    Role,
    TracedFrame,
    ended_line,
    first_line,
    frame_line,
    header_text,
    known_line,
    listening_line,
)
from amqp10broker.operations.node import TraceSink
from amqp10broker.operations.snapshot import TraceView
from amqp10broker.protocols.amqp091.methods import BasicPublish, ChannelCloseOk
from amqp10broker.protocols.amqp10.performatives import Detach, Disposition, End, Flow, Transfer
from amqp10broker.protocols.connection import AMQP_091_HEADER, WireProtocol
from amqp10broker.routing.address import BadAddress, QueueAddress, parse, queue_address
from amqp10broker.runtime.connections.connection10 import Connection10
from amqp10broker.runtime.connections.connections import Connection, Connections
from amqp10broker.runtime.connections.session_task import Tap
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.observe.trace_sinks import FileSink, LogSink
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.publisher import LinkPublisher


@dataclass(slots=True)
class TraceTarget:
    """The subject of a trace. `address`: only frames of this address; None: all of a connection.
    `connection`: the number of the traced connection.
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
        protocol = WireProtocol.AMQP_10 if isinstance(connection, Connection10) else WireProtocol.AMQP_091
        rest = b"" if begins else connection.engine.unread
        self._in = FrameSplitter(protocol, rest, logged_in=not begins)
        self._out = FrameSplitter(protocol, logged_in=not begins)

    def add(self, trace: Trace, *, begins: bool = False) -> None:
        """Add another trace, from the connection's first byte on if it `begins`."""
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
            # A consumer's address may be a name given by the client; both refer to its queue.
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
    """Return the function that matches an address, as written, or as that of the queue with a bare name."""

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
    """The traced frames of an AMQP 1.0 connection: of links with the traced address, and of sessions if they
    concern all links.
    """

    def __init__(self, matches: Matches) -> None:
        self._matches = matches
        self._state = ObservedConnection()
        self._shown: set[ObservedLink] = set()

    def know(self, channel: int, links: Mapping[ObservedLink, Iterable[str]]) -> None:
        """Add a session that already exists, with its links and all names of their addresses."""
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
                # A dynamic address is known when the attach is answered.
                links = [event.link]
                if self._matches(event.link.address):
                    self._shown.add(event.link)
        shown = not self._shown.isdisjoint(links)
        if isinstance(body, Detach | End):
            self._shown &= {link for each in self._state.sessions() for link in each.all_links()}
        return shown


class ChannelScope:
    """The traced frames of an AMQP 0-9-1 connection, which has no links: a channel is shown from the first
    method that names the queue or exchange, except for its publishes to other addresses.
    """

    def __init__(self, matches: Matches) -> None:
        self._matches = matches
        self._channels: set[int] = set()
        self._elsewhere: set[tuple[Direction, int]] = set()

    def know(self, channel: int, queues: Iterable[str]) -> None:
        """Add a channel that already exists, with the queues from which it consumes."""
        if any(self._matches(queue_address(queue)) for queue in queues):
            self._channels.add(channel)

    def shows(self, direction: Direction, frame: TracedFrame) -> bool:
        """Return whether a frame is shown. It must be called with each frame, in order."""
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


_log = Log("amqp10broker.trace")

EVERYTHING: Final = "everything"
RECORDED: Final = "recorded frames"
"""The subject of the trace that the configuration requests; ``trace`` can end it."""
_ALL: Final = TraceTarget(EVERYTHING, lambda connection: True)
GONE: Final = "the connection has ended"


class Tracing:
    def __init__(self, connections: Connections, users: Users, *, everything: bool) -> None:
        self._connections = connections
        self._users = users
        self._traces: dict[str, Trace] = {}
        self._taps: dict[int, ConnectionTap] = {}
        if everything:
            self._traces[EVERYTHING] = Trace(EVERYTHING, _ALL, LogSink(), "the log")

    def begin(self, what: str, sink: TraceSink, place: str, *, frames: bool = False) -> Trace:
        """Trace something from now on. `what`: a connection's number, a user's name, a peer's address (host,
        or host:port), the address of links (``/queues/orders``, with ``*`` and ``?``), or ``everything``.
        Raises `NotFound` if there is nothing of that kind, and `NotAllowed` if it is being traced.
        """
        target = self._target(what)
        if what in self._traces:
            place = self._traces[what].place
            raise NotAllowed(
                "trace", f"{target.text} is being traced already, into {place}: switch that off first"
            )
        trace = Trace(what, target, sink, place, frames)
        self._begin(trace)
        return trace

    def _begin(self, trace: Trace) -> None:
        self._traces[trace.what] = trace
        if trace.frames:
            trace.sink.put([first_line()])
        for connection in self._connections.values():
            self._listen(connection, trace)
        _log.info("a trace has begun", what=trace.target.text, into=trace.place)

    def record(self, folder: str) -> None:
        """Record all frames from the start on into a new file of a folder. Raises `StorageError`."""
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(
                folder, f"cannot be made: {error.strerror}", "name a folder that the broker's user may write"
            ) from error
        begun = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        path = os.path.join(folder, f"frames-{begun}-{os.getpid()}.jsonl")
        self.record_into(RECORDED, FileSink(path), path)

    def record_into(self, what: str, sink: TraceSink, place: str) -> None:
        self._begin(Trace(what, _ALL, sink, place, frames=True))

    def end(self, what: str, reason: str = "it was switched off") -> Trace:
        """End a trace. Raises `NotFound` if it is not on."""
        trace = self._traces.pop(what, None)
        if trace is None:
            traced = ", ".join(self._traces) or "nothing"
            raise NotFound("trace", f"'{what}' is not being traced; {traced} is")
        for number, tap in list(self._taps.items()):
            if tap.traces.pop(trace, trace) is not trace and not tap.traces:
                del self._taps[number]
                self._connections[number].writer.tap = None
        trace.sink.close(reason)
        _log.info("a trace has ended", what=trace.target.text, into=trace.place, reason=reason)
        return trace

    def close(self) -> None:
        for trace in self._traces.values():
            trace.sink.close("the broker has ended")

    def join(self, connection: Connection, *, begins: bool = False) -> None:
        """Add a connection that has opened, or has a user now."""
        for trace in self._traces.values():
            self._listen(connection, trace, begins=begins)
        tap = self._taps.get(connection.number)
        if begins and tap is not None and not isinstance(connection, Connection10):
            tap.received(AMQP_091_HEADER)  # the engine of this protocol begins after it

    def leave(self, connection: Connection) -> None:
        tap = self._taps.pop(connection.number, None)
        if tap is not None:
            tap.ended(str(connection.end))
        for trace in [each for each in self._traces.values() if each.target.connection == connection.number]:
            self.end(trace.what, f"{GONE}: {connection.end}")

    def greeting(self, number: int, peer: str, data: bytes, reply: bytes) -> None:
        """Trace a protocol header that is not supported, and the answer."""
        trace = self._traces.get(EVERYTHING)
        if trace is not None and not trace.frames:
            lines = [f"<- no protocol header: {data[: len(reply)].hex(' ')}", f"-> {header_text(reply)}"]
            trace.sink.write(number, peer, lines)

    def views(self) -> tuple[TraceView, ...]:
        return tuple(trace.view for trace in self._traces.values())

    def _listen(self, connection: Connection, trace: Trace, *, begins: bool = False) -> None:
        if not trace.target.covers(connection):
            return
        tap = self._taps.get(connection.number)
        if tap is None:
            tap = ConnectionTap(connection, begins=begins)
            self._taps[connection.number] = tap
            connection.writer.tap = Tap(tap.received, tap.sent)
        if trace not in tap.traces:
            tap.add(trace, begins=begins)

    def _target(self, what: str) -> TraceTarget:
        if what == EVERYTHING:
            return _ALL
        if what.isdecimal() and int(what) in self._connections:
            number = int(what)
            connection = self._connections[number]
            text = f"connection {number} (user {connection.user or '-'}, from {connection.peer})"
            return TraceTarget(text, lambda each: each is connection, connection=number)
        if what.startswith("/"):
            return TraceTarget(f"address {what}", lambda connection: True, matching(what))
        if what in self._users:
            return TraceTarget(f"user {what}", lambda connection: connection.user == what)
        if _is_host(what):
            return TraceTarget(f"peer {what}", lambda connection: what in _ways_to_say(connection.peer))
        raise NotFound(
            "trace",
            f"'{what}' is no connection's number, no user, and no address: see 'amqp10broker "
            "connection list' and 'user list', and write the address of a queue as /queues/NAME",
        )


def _ways_to_say(peer: str) -> tuple[str, ...]:
    host = peer.rpartition(":")[0]
    return peer, host, host.strip("[]")


def _is_host(what: str) -> bool:
    host = (
        what.rpartition(":")[0] if what.count(":") == 1 or (what.startswith("[") and "]:" in what) else what
    )
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
