"""The playable part of a recorded connection, and what the players of both protocols share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from typing import Any, ClassVar, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.frames.link_state import Direction
from amqp10broker.observe.frames.records import (
    Ended,
    FrameSplitter,
    KnownLink,
    Listening,
    Record,
    RecordedFrame,
    TracedFrame,
)
from amqp10broker.protocols.amqp091.methods import ConnectionClose, ConnectionOpen
from amqp10broker.protocols.amqp10.performatives import Close, Open
from amqp10broker.protocols.connection import WireProtocol


@dataclass(frozen=True, slots=True)
class Step:
    """A frame of a recording, without the content of messages."""

    index: int
    at_ns: int
    sent: bool
    frame: TracedFrame

    @property
    def direction(self) -> Direction:
        return "in" if self.sent else "out"


@dataclass(slots=True)
class RecordedConnection:
    """One connection. `steps`: its frames in order, without protocol headers, SASL frames and heartbeats,
    which the player makes. `unreadable`: frames of the client that could not be decoded; they are not played.
    """

    number: int
    protocol: WireProtocol
    steps: list[Step] = field(default_factory=list)
    ended: bool = False
    unreadable: int = 0
    over: str = "TCP"


@dataclass(slots=True)
class Script:
    """The playable connections, in the order of their beginnings, and sentences on the others."""

    parts: list[RecordedConnection] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def start_ns(self) -> int:
        return min((part.steps[0].at_ns for part in self.parts), default=0)

    @property
    def end_ns(self) -> int:
        return max((part.steps[-1].at_ns for part in self.parts), default=0)


def read_script(records: Iterable[Record], connection: int | None = None) -> Script:
    """Collect the playable connections of a recording. `connection`: None: all. Raises `NoFrames`."""
    parts: dict[int, RecordedConnection] = {}
    script = Script()
    for index, record in enumerate(records):
        if connection not in (None, record.connection):
            continue
        match record:
            case Listening():
                parts.pop(record.connection, None)
                if record.begins:
                    part = parts[record.connection] = RecordedConnection(record.connection, record.protocol)
                    part.over = _over(record)
                    script.parts.append(part)
                else:
                    script.left_out.append(
                        f"connection {record.connection} was there when the recording began: what its client "
                        "had done before is not known"
                    )
            case RecordedFrame():
                _take(parts.get(record.connection), index, record)
            case Ended():
                ended = parts.pop(record.connection, None)
                if ended is not None:
                    ended.ended = True
            case KnownLink():
                pass  # it belongs to a connection that is omitted
    script.left_out += [
        f"connection {part.number} did not come as far as open, or frames of one address alone were recorded"
        for part in script.parts
        if not _opens(part)
    ]
    script.parts = [part for part in script.parts if _opens(part)]
    return script


def _over(record: Listening) -> str:
    if record.transport == "websocket":
        return "WebSocket over TLS" if record.tls else "WebSocket"
    return "TLS" if record.tls else "TCP"


def _take(part: RecordedConnection | None, index: int, record: RecordedFrame) -> None:
    if part is None:
        return
    frame = record.frame
    if frame.data and frame.channel >= 0:
        # Else an empty frame or heartbeat; without a body it may also be a content header or body.
        silent = part.protocol is WireProtocol.AMQP_10 or frame.said == "heartbeat"
        if frame.body is not None or frame.payload_bytes or not silent:
            part.steps.append(Step(index, record.at_ns, record.direction == "in", frame))
    elif record.direction == "in" and " undecodable: " in (frame.said or ""):
        part.unreadable += 1


def _opens(part: RecordedConnection) -> bool:
    return any(step.sent and isinstance(step.frame.body, Open | ConnectionOpen) for step in part.steps)


K = TypeVar("K", bound=Hashable)


class DifferenceKind(Enum):
    OUTCOME = "outcome"
    ERROR = "error"
    MISSING = "missing"
    CREDIT = "credit"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, or several of a kind at one place."""

    kind: DifferenceKind
    connection: int
    where: str
    said: str

    def __str__(self) -> str:
        where = f", {self.where}" if self.where else ""
        return f"{self.kind.value}: connection {self.connection}{where}: {self.said}"


def otherwise(recorded: Mapping[K, str], now: Mapping[K, str], noun: str) -> Iterator[str]:
    """Yield one clause for each pair of different answers, recorded and current, by the number of the object;
    `noun` is the word for one ("message").

    Objects without a current answer are omitted.
    """
    places: dict[K, int] = {thing: place for place, thing in enumerate(recorded, 1)}
    found: dict[tuple[str, str], list[K]] = {}
    for thing, was in recorded.items():
        is_now = now.get(thing, was)
        if is_now != was:
            found.setdefault((was, is_now), []).append(thing)
    for (was, is_now), things in found.items():
        which = f"{noun} {places[things[0]]}"
        if len(things) > 1:
            which = f"{len(things)} of {len(recorded)} {noun}s, {which} first"
        yield f"{which}: {was} in the recording, {is_now} now"


def other_end(was: str | None, is_now: str | None) -> str | None:
    """Return how two ends differ; None if they do not. Each is the broker's error, "" without one, None if it
    did not end anything.
    """
    if was == is_now:
        return None
    return f"{_end(was)} in the recording, {_end(is_now)} now"


def _end(error: str | None) -> str:
    if error is None:
        return "not ended by the broker"
    return f"ended by the broker with {error}" if error else "ended by the broker without an error"


@dataclass(frozen=True, slots=True)
class ReplayLogin:
    """The login of all replayed connections. `vhost`: None: the recorded one."""

    user: str
    password: str = field(repr=False)
    vhost: str | None = None


class Player(ABC):
    """Plays the client of one connection, step by step. `controls`: places in the recording of frames that
    begin or end something, and whether the client sent them: those keep their order over all connections.
    `over`: why nothing more can be played; None during the replay.
    """

    protocol: ClassVar[WireProtocol]
    header: ClassVar[bytes]
    heartbeat: ClassVar[bytes]
    controls: list[tuple[int, bool]]
    # The ledgers of the recording and of the replay.
    _was: Any
    _now: Any

    def __init__(self, part: RecordedConnection, login: ReplayLogin) -> None:
        self.part = part
        self.login = login
        self.reader = FrameSplitter(self.protocol)
        self.place = 0
        self.unsent = bytearray()
        self.over: str | None = None
        self.closed = False
        self.left_out: dict[str, None] = {}
        self.played = 0
        self.refused = False
        self.sent_bytes = 0
        self.received_bytes = 0

    @property
    def next_step(self) -> Step | None:
        """The next frame of the client; None after the last one."""
        steps = self.part.steps
        while self.place < len(steps) and not (step := steps[self.place]).sent:
            self._was.apply("out", step.frame.channel, step.frame.body)
            self.place += 1
        return steps[self.place] if self.place < len(steps) else None

    def receive(self, data: bytes) -> bool:
        """Process bytes from the broker; return whether they contain more than a heartbeat."""
        self.received_bytes += len(data)
        moved = False
        for frame in self.reader.feed(data):
            moved = moved or frame.body is not None or bool(frame.data)
            self.take(frame)
        return moved

    def lost(self, why: str) -> None:
        """The socket is no longer usable."""
        if not self.closed and self.over is None:
            self.over = why
        self.closed = True

    def play(self) -> None:
        """Send the next step, or omit it if it has become meaningless."""
        step = self.next_step
        assert step is not None
        self.place += 1
        self.say(step)

    def start(self) -> None:
        """Begin the login on a new socket."""
        self.write(self.header)

    def beat(self) -> None:
        self.write(self.heartbeat)

    def send(self, data: bytes) -> None:
        """Write a frame that counts as played."""
        self.played += 1
        self.write(data)

    def write(self, data: bytes) -> None:
        self.unsent += data
        self.sent_bytes += len(data)

    def ends(self) -> Iterator[Difference]:
        if self.over is not None:
            left = sum(step.sent for step in self.part.steps[self.place :])
            rest = f"; {left} frames of the client were left" if left else ""
            yield self.difference(DifferenceKind.ERROR, "", f"{self.over}{rest}")

    def difference(self, kind: DifferenceKind, where: object, said: str) -> Difference:
        return Difference(kind, self.part.number, str(where), said)

    @property
    def answers(self) -> int:
        """How many frames of the broker so far begin or end something."""
        answers: int = self._now.answers
        return answers

    def broker_closes(self, close: type[Close | ConnectionClose]) -> bool:
        return next((not step.sent for step in self.part.steps if isinstance(step.frame.body, close)), False)

    @property
    def says_close(self) -> bool:
        """Whether the recorded connection was closed by a close frame, by either side."""
        return any(isinstance(step.frame.body, Close | ConnectionClose) for step in self.part.steps)

    @abstractmethod
    def take(self, frame: TracedFrame) -> None:
        """Process a frame of this broker."""

    @abstractmethod
    def waits_for(self, step: Step) -> str | None:
        """Return the condition that a step waits for; None if it can be played."""

    @abstractmethod
    def give_up(self, step: Step) -> None:
        """Stop waiting for the condition of a step."""

    @abstractmethod
    def say(self, step: Step) -> None:
        """Send the frame of a step."""

    @abstractmethod
    def still_owed(self) -> str | None:
        """Return an answer that the recorded broker sent and this one has not; None: none is missing."""

    @abstractmethod
    def close(self) -> None:
        """Send the closing frame if the recorded client did not."""

    @abstractmethod
    def heartbeat_s(self) -> float:
        """Return the interval of heartbeats in seconds; 0 for none."""

    @abstractmethod
    def differences(self) -> Iterator[Difference]:
        """Yield the differences between the recording and the replay."""
