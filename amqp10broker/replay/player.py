"""One recorded connection being played: what is alike in both protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import field

from amqp10broker.amqp091.methods import ConnectionClose
from amqp10broker.amqp10.performatives import Close
from amqp10broker.dataclass import dataclass
from amqp10broker.frames.reader import Frame, FrameReader
from amqp10broker.replay.differences import Difference, Kind
from amqp10broker.replay.script import Part, Step


@dataclass(frozen=True, slots=True)
class Login:
    """As whom connections log in, whoever it was in the recording.

    Attributes:
        user: empty for anonymous.
        password: of that user.
        vhost: instead of the recorded one; None for that.
    """

    user: str
    password: str = field(repr=False)
    vhost: str | None = None


class Player(ABC):
    """Plays the client of one connection, step by step.

    Attributes:
        part: what is played.
        controls: places in the recording of frames that begin or end something, and whether the client sent
            them: those keep their order over all connections.
        place: of the next step in `part`.
        unsent: bytes for the socket.
        over: why nothing more can be played; None while all is well.
        closed: the broker has said, or heard, the last word: the socket may be closed.
        left_out: what of the connection is not played, one clause each.
        played: frames of the client that were sent.
        refused: the broker does not let the user in.
        sent_bytes, received_bytes: so far.
    """

    part: Part
    reader: FrameReader
    controls: list[tuple[int, bool]]

    def __init__(self, part: Part, login: Login) -> None:
        self.part = part
        self.login = login
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
        """The next frame of the client; None behind the last."""
        steps = self.part.steps
        while self.place < len(steps) and not steps[self.place].sent:
            self.hear(steps[self.place])
            self.place += 1
        return steps[self.place] if self.place < len(steps) else None

    def receive(self, data: bytes) -> bool:
        """Bytes from the broker; whether there was more in them than a heartbeat."""
        self.received_bytes += len(data)
        moved = False
        for frame in self.reader.feed(data):
            moved = moved or frame.body is not None or bool(frame.data)
            self.take(frame)
        return moved

    def lost(self, why: str) -> None:
        """The socket is of no more use."""
        if not self.closed and self.over is None:
            self.over = why
        self.closed = True

    def play(self) -> None:
        """Send the next step, or leave it out if it means nothing any more."""
        step = self.next_step
        assert step is not None
        self.place += 1
        self.say(step)

    def write(self, data: bytes) -> None:
        """Have bytes written."""
        self.unsent += data
        self.sent_bytes += len(data)

    def ends(self) -> Iterator[Difference]:
        """How the connection came to an end otherwise than it was recorded."""
        if self.over is not None:
            left = sum(step.sent for step in self.part.steps[self.place :])
            rest = f"; {left} frames of the client were left" if left else ""
            yield self.difference(Kind.ERROR, "", f"{self.over}{rest}")

    def difference(self, kind: Kind, where: object, said: str) -> Difference:
        """One of this connection."""
        return Difference(kind, self.part.number, str(where), said)

    @property
    @abstractmethod
    def answers(self) -> int:
        """Frames of the broker so far that begin or end something."""

    def broker_closes(self, close: type[Close | ConnectionClose]) -> bool:
        """Whether it was the recorded broker that closed the connection."""
        return next((not step.sent for step in self.part.steps if isinstance(step.frame.body, close)), False)

    @property
    def says_close(self) -> bool:
        """Whether the recorded connection was closed in words, by either side."""
        return any(isinstance(step.frame.body, Close | ConnectionClose) for step in self.part.steps)

    @abstractmethod
    def start(self) -> None:
        """The socket is there: begin to log in."""

    @abstractmethod
    def hear(self, step: Step) -> None:
        """The recorded broker says something."""

    @abstractmethod
    def take(self, frame: Frame) -> None:
        """The broker says something now."""

    @abstractmethod
    def waits_for(self, step: Step) -> str | None:
        """What has to come before a step can be played; None if nothing."""

    @abstractmethod
    def give_up(self, step: Step) -> None:
        """What a step waits for has not come; it is not waited for again."""

    @abstractmethod
    def say(self, step: Step) -> None:
        """Play a step."""

    @abstractmethod
    def still_owed(self) -> str | None:
        """What the recorded broker has said, and this one has not; None if nothing."""

    @abstractmethod
    def close(self) -> None:
        """Say the last word, where the recorded client did not."""

    @abstractmethod
    def heartbeat_s(self) -> float:
        """After so many seconds of silence something is to be sent; 0 for never."""

    @abstractmethod
    def beat(self) -> None:
        """Send a heartbeat."""

    @abstractmethod
    def differences(self) -> Iterator[Difference]:
        """What came otherwise."""
