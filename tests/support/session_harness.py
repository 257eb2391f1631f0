"""A broker without tasks, sockets and time: clients' raw frames in, every answer out, in exact order.

`Harness` holds real `ClassicQueue`, `Catalog`, `Connection` and `BrokerSession` objects and carries their
letters as the tasks do (`runtime/connections/connection10.py`, `runtime/queues/queue_task.py`), one at a
time and always in the same order; a session's turn is the one of its task (`sessions/context.py`).
What tasks leave to chance is a switch here: a queue can be *stalled* (letters to it wait), *muted* (its
answers wait) or *withhold* its confirms, and a writer can be blocked.

Frames are encoded, cut into chunks as asked, and read by the broker's own `FrameReader`; what the
broker writes is decoded from its bytes into lines (see `notation`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from amqp10broker.config import Config, FlowOverride
from amqp10broker.message.amqp10 import MessageReader
from amqp10broker.message.message import Message
from amqp10broker.metadata.catalog import VHOST
from amqp10broker.metadata.queue import QueueCommand, QueueSpec
from amqp10broker.metadata.queue_arguments import selector_in
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.operations.snapshot import document
from amqp10broker.protocols.amqp10 import connection, performatives
from amqp10broker.protocols.amqp10.errors import AmqpError
from amqp10broker.protocols.amqp10.link import BeginReceived, ConnectionEvent, FramesReceived
from amqp10broker.protocols.amqp10.types import Symbol
from amqp10broker.queues.classic.queue import ClassicQueue
from amqp10broker.queues.commands import (
    AttachPublisher,
    Command,
    Confirmed,
    Credit,
    CreditReply,
    Delete,
    Deliver,
    DetachPublisher,
    Effect,
    GiveBack,
    PeerId,
    Publish,
    PublisherRef,
    QueueDeleted,
    ReplyTo,
    Settle,
    Subscribe,
    Unconfirmed,
    Unsubscribe,
)
from amqp10broker.sessions.amqp10.resumable_links import ResumableLink, ResumableLinks
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.context import LinkNames
from amqp10broker.sessions.diagnosis.wait_reasons import WaitContext
from amqp10broker.sessions.diagnosis.why_link import session_view
from amqp10broker.sessions.messages import AlarmChanged, ConfigChanged, Frames, Notice, SessionMessage
from tests.support.declaring import declare, remove
from tests.support.notation import body_bytes as make_body
from tests.support.notation import build, message, show, show_bodies, show_message
from tests.support.queue_handles import MachineHandle
from tests.support.rawframes import FrameCutter, Got
from tests.support.reply_addresses import new_reply_to
from tests.support.session_context import make_catalog, make_context

MASK = 0xFFFF_FFFF
WRITER_BYTES = 65_536


# --- queues --------------------------------------------------------------------------------------


@dataclass
class HeldPublish:
    """One message whose queue has not taken it yet."""

    publisher: PublisherRef
    id: int
    message: Message
    settled: bool


class FakeQueueTask(MachineHandle[ClassicQueue]):
    """A queue, and the switches on its way in and out.

    Attributes:
        stalled: letters to it wait.
        muted: its answers wait.
        withholding: published messages wait; everything else goes on.
    """

    def __init__(self, world: Harness, queue: ClassicQueue) -> None:
        super().__init__(queue)
        self.world = world
        self.stalled = False
        self.muted = False
        self.withholding = False
        self.inbox: deque[Command] = deque()
        self.outbox: deque[tuple[PeerId, list[Effect]]] = deque()
        self.held: list[HeldPublish] = []
        self.published = 0

    def post(self, command: Command) -> None:
        self.inbox.append(command)

    def wake(self) -> bool:
        """Process pending work, as the queue's task would; return False when no work was possible."""
        moved = False
        if self.inbox and not self.stalled:
            moved = True
            while self.inbox:
                self._apply(self.inbox.popleft())
            self._take_effects()
        if self.outbox and not self.muted:
            moved = True
            while self.outbox:
                reply_to, batch = self.outbox.popleft()
                self._answer(reply_to, batch)
            self._take_effects()
        return moved

    def _apply(self, command: Command) -> None:
        self.world.note_letter(self.queue.name, command)
        if type(command) is Publish and self.withholding:
            for number, content in zip(command.ids, command.messages, strict=True):
                self.held.append(HeldPublish(command.publisher, number, content, command.settled))
        else:
            self.queue.apply(command, 0)

    def _take_effects(self) -> None:
        effects = self.queue.take_effects()
        while effects:
            self.outbox.extend(effects.items())
            effects = self.queue.take_effects()

    def _answer(self, reply_to: PeerId, batch: list[Effect]) -> None:
        kept = self.world.boxes.get(reply_to)
        if kept is not None:
            kept.put(batch)
            return
        session = self.world.sessions.get(reply_to)
        if session is None:
            return
        for effect in batch:
            self.world.note_answer(self.queue.name, effect)
        if not session.over:
            session.letters.append(batch)

    def confirm(self, numbers: Sequence[int]) -> None:
        """Confirm withheld messages, chosen by their position in order of arrival."""
        for number in numbers:
            held = self.held[number]
            self.queue.apply(Publish(held.publisher, [held.id], [held.message], held.settled), 0)
        gone = set(numbers)
        self.held = [held for number, held in enumerate(self.held) if number not in gone]
        self._take_effects()


# --- sessions ------------------------------------------------------------------------------------


class FakeSessionTask:
    """A session and its letters; and its way to the writer, an `Outlet`."""

    def __init__(self, client: Client, service: BrokerSession, reply_to: ReplyTo) -> None:
        self.client = client
        self.service = service
        # To begin with, the begin is written.
        self.letters: deque[SessionMessage] = deque([Notice.WRITER_READY])
        self.over = False
        client.world.sessions[reply_to.id] = self

    def wake(self) -> bool:
        """Process all pending work; return False when there was none."""
        if self.over or not self.letters or self.client.asleep:
            return False
        service = self.service
        letters = list(self.letters)
        self.letters.clear()
        try:
            for letter in letters:
                service.handle(letter)
        except AmqpError as fault:
            self.client.engine.fail(fault)
            self.client.flush()
            self.stop()
            return True
        service.write_output(self)
        self.post()
        if service.over:
            self.stop()
        return True

    @property
    def room(self) -> int:
        """The room is full size or 0: written bytes are sent at once."""
        return 0 if self.client.blocked else WRITER_BYTES

    def put(self, pieces: Sequence[bytes | memoryview], transfer_bytes: int = 0) -> None:
        """A blocked client gets the bytes too: they contain no transfer."""
        self.client.written(b"".join(pieces))

    def want(self) -> None:
        """The writer has sent all bytes and sends a notice."""
        if not self.client.blocked:
            self.letters.append(Notice.WRITER_READY)

    def stop(self) -> None:
        """End the session; its deliveries are requeued."""
        if self.over:
            return
        self.over = True
        self.service.close()
        while self.letters:
            self.service.handle_undelivered(self.letters.popleft())
        self.post()
        if self.client.sessions.get(self.service.session.channel) is self:
            del self.client.sessions[self.service.session.channel]

    def post(self) -> None:
        for handle, command in self.service.take_commands():
            handle.post(command)


# --- clients -------------------------------------------------------------------------------------


@dataclass
class ClientLink:
    """One link as the client sees it."""

    name: str
    receiver: bool
    partial: bytes = b""


@dataclass
class ClientSession:
    """The client's side of one session: what it must know to fill its frames in."""

    next_outgoing_id: int = 0
    next_incoming_id: int = 0
    incoming_window: int = 0
    next_delivery_id: int = 0
    links: dict[int, ClientLink] = field(default_factory=dict)
    """By the broker's handle."""
    received: list[str] = field(default_factory=list)
    """Bodies, in order of arrival."""
    unsettled: list[int] = field(default_factory=list)


class Client:
    """One connection: its client's bookkeeping, and the broker's end of it.

    Attributes:
        label: what stands before ``>`` in its lines.
        blocked: the client does not read, so that the broker's writer is blocked.
        bodies: where the bodies of the broker's frames are collected; None for nowhere.
        asleep: its sessions have not had their turn: what comes is handled in one wake later.
    """

    def __init__(self, world: Harness, label: str, open_fields: dict[str, str]) -> None:
        self.world = world
        self.label = label
        self.blocked = False
        self.asleep = False
        self.bodies: list[bytes] | None = None
        self.sessions: dict[int, FakeSessionTask] = {}
        self.mine: dict[int, ClientSession] = {}
        self.all_sessions: list[FakeSessionTask] = []
        self._link_names = LinkNames()
        self.lost = False
        self._cutter = FrameCutter()
        config = world.config
        self.engine = connection.Connection(
            server=True,
            frame_size_max=config.max_frame_size_bytes,
            channel_max=config.session_max_per_connection - 1,
            mechanisms=("PLAIN", "ANONYMOUS"),
        )
        open_fields.setdefault("container_id", open_fields.pop("container", f"client-{label}"))
        init = performatives.SaslInit(mechanism=Symbol("ANONYMOUS"), initial_response=b"")
        opening = build("open", open_fields)
        self.container_id = opening.container_id
        for data in (
            connection.HEADER_SASL + connection.encode_frame(0, init.encode(), connection.TYPE_SASL),
            connection.HEADER_AMQP + connection.encode_frame(0, opening.encode()),
        ):
            self.feed(data)
            self.flush()

    # --- to the broker ----------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Feed bytes in chunks of the world's size; sessions get them in one wake."""
        chunk = self.world.chunk or len(data)
        for start in range(0, len(data), chunk):
            events = self.engine.receive(data[start : start + chunk])
            while events:
                for event in events:
                    self._dispatch(event)
                events = self.engine.receive(b"")

    def send(self, text: str) -> None:
        """Encode and feed frames in one read: one line, or several separated by `` ; ``."""
        data = b"".join(self.encode(part) for part in text.split(" ; "))
        self.feed(data)
        self.flush()

    def encode(self, text: str) -> bytes:
        """Return the bytes of one line, which may stand for many frames: ``did=0..84``."""
        name, *rest = text.split()
        values = {}
        for word in rest:
            key, equals, value = word.partition("=")
            assert equals, f"{word!r} in {text!r} is not key=value"
            values[key] = value
        channel = int(values.pop("ch", "0"))
        if name == "RAW":
            return bytes.fromhex(values["hex"])
        if name == "EMPTY":
            return connection.encode_frame(channel, b"")
        if name == "TRANSFER":
            return self._encode_transfers(channel, values)
        session = self.mine.get(channel)
        if name == "FLOW":
            session = self.mine.setdefault(channel, ClientSession())
            if "iw" in values:
                session.incoming_window = int(values["iw"])
            values.setdefault("nii", str(session.next_incoming_id))
            values.setdefault("iw", str(session.incoming_window))
            values.setdefault("noi", str(session.next_outgoing_id))
            values.setdefault("ow", str(MASK))
        if name == "ATTACH" and channel:
            # A link's name is one in all sessions.
            values.setdefault("name", f"link-{channel}-{values['h']}")
        frame = build(name, values)
        if isinstance(frame, performatives.Begin):
            self.mine[channel] = ClientSession(
                next_outgoing_id=frame.next_outgoing_id, incoming_window=frame.incoming_window
            )
        return connection.encode_frame(channel, frame.encode())

    def _encode_transfers(self, channel: int, values: dict[str, str]) -> bytes:
        session = self.mine.setdefault(channel, ClientSession())
        did = values.pop("did", None)
        part, _, parts = values.pop("part", "1/1").partition("/")
        size = values.pop("size", None)
        body = values.pop("body", None)
        to = values.pop("to", None)
        before = b"" if to is None else performatives.Properties(to=to).encode()
        payload = values.pop("payload", None)
        count = 1
        first: int | None
        if did is None:
            first = session.next_delivery_id if part == "1" else None
        elif did == "none":
            first = None
        else:
            start, dots, stop = did.partition("..")
            first = int(start)
            count = ((int(stop) - first) & MASK) + 1 if dots else 1
        frames: list[bytes] = []
        for step in range(count):
            number = None if first is None else (first + step) & MASK
            if number is not None:
                session.next_delivery_id = (number + 1) & MASK
            given = dict(values)
            if number is not None:
                given.setdefault("did", str(number))
                given.setdefault("tag", str(number))
            if part != parts:
                given.setdefault("more", "true")
            transfer = build("transfer", given)
            if payload is not None:
                content = bytes.fromhex(payload)
            else:
                name = body or (f"m{number}" if parts == "1" else "big")
                content = message(make_body(name, int(size) if size else None), before=before)
            share = -(-len(content) // int(parts))
            piece = content[share * (int(part) - 1) : share * int(part)]
            frames.append(connection.encode_frame(channel, transfer.encode() + piece))
            session.next_outgoing_id = (session.next_outgoing_id + 1) & MASK
        return b"".join(frames)

    # --- the broker's end -------------------------------------------------------------------------

    def _dispatch(self, event: ConnectionEvent) -> None:
        match event:
            case performatives.SaslInit():
                self.engine.sasl_outcome(0)
            case performatives.Open():
                self.engine.open("broker")
            case BeginReceived():
                self._begin(event)
            case FramesReceived():
                session = self.sessions.get(event.channel)
                if event.ended:
                    self.sessions.pop(event.channel, None)
                if session is not None and not session.over:
                    session.letters.append(Frames(event.items))
            case performatives.Close():
                # The reader ends first, then the sessions, then the connection's own close.
                self.stop()
                if self.engine.state is connection.ConnectionState.CLOSE_RECEIVED:
                    self.engine.close()
            case _:
                self.stop()

    def _begin(self, event: BeginReceived) -> None:
        reply_to = new_reply_to(f"connection {self.label}, session {event.channel}")
        context = make_context(
            self.world.catalog,
            self.world.config,
            reply_to,
            self,
            container_id=self.container_id,
            new_id=self.world.new_id,
            names=self._link_names,
            resumable_links=self.world.resumable_links,
            to_session=lambda message: session.letters.append(message),
        )
        service = BrokerSession(
            event.channel,
            event.performative,
            context,
            frame_size_max=self.engine.frame_size_max,
            alarm=bool(self.world.alarms),
        )
        session = FakeSessionTask(self, service, reply_to)
        self.sessions[event.channel] = session
        self.all_sessions.append(session)

    def stop(self) -> None:
        self.asleep = False
        for session in self.all_sessions:
            while session.letters and not session.over:
                session.wake()
            session.stop()
        self.world.resumable_links.let_run(self._link_names)

    def flush(self) -> None:
        out = self.engine.take_output()
        if out:
            self.written(out)

    # --- from the broker --------------------------------------------------------------------------

    def written(self, data: bytes) -> None:
        """The client records the broker's bytes as lines."""
        for got in self._cutter.feed(data):
            sasl = isinstance(got.body, performatives.SaslMechanisms | performatives.SaslOutcome)
            assert sasl or got.size <= self.engine.frame_size_max, "a frame over the client's limit"
            if self.bodies is not None:
                self.bodies.append(got.raw)
            self._on_frame(got)

    def _on_frame(self, got: Got) -> None:
        channel, frame = got.channel, got.body
        if frame is None:
            self.note(channel, "EMPTY")
            return
        session = self.mine.setdefault(channel, ClientSession())
        if isinstance(frame, performatives.Transfer):
            self._on_transfer(channel, session, frame, got.payload)
            return
        assert not got.payload
        if isinstance(frame, performatives.Begin):
            session.next_incoming_id = frame.next_outgoing_id
        elif isinstance(frame, performatives.Flow):
            assert frame.next_outgoing_id == session.next_incoming_id, (
                "the broker's next-outgoing-id is wrong"
            )
        elif isinstance(frame, performatives.Attach):
            session.links[frame.handle] = ClientLink(frame.name, not frame.role)
        elif isinstance(frame, performatives.Detach):
            session.links.pop(frame.handle, None)
        self.note(channel, show(frame))

    def _on_transfer(
        self, channel: int, session: ClientSession, frame: performatives.Transfer, payload: bytes
    ) -> None:
        session.next_incoming_id = (session.next_incoming_id + 1) & MASK
        link = session.links[frame.handle]
        begun = bool(link.partial)
        link.partial += payload
        frame.message_format = None if frame.message_format == 0 else frame.message_format
        line = show(frame)
        if frame.more:
            self.note(channel, f"{line} part")
            return
        content, link.partial = link.partial, b""
        shown = show_message(content)
        session.received.append(shown.partition(" ")[0].removeprefix("body="))
        if not frame.settled:
            session.unsettled.append(frame.delivery_id)
        self.note(channel, f"{line} last part: {shown}" if begun else f"{line} {shown}")

    def note(self, channel: int, line: str) -> None:
        on = f"ch={channel} " if channel else ""
        name, _, rest = line.partition(" ")
        self.world.trace.append(f"B>{'' if self.label == 'C' else self.label} {name} {on}{rest}".rstrip())


# --- the whole -----------------------------------------------------------------------------------


class Harness:
    """Queues, clients and everything between them.

    Attributes:
        sessions: all that ever were, as queues know them.
        chunk: bytes of each read of the broker; 0 for whole sends.
        trace: lines since `take_trace`.
        letters_shown: letters to and from queues are in the trace, too.
    """

    def __init__(self, *, config: Config | None = None, chunk: int = 0) -> None:
        self.config = config or Config()
        self.chunk = chunk
        self.catalog = make_catalog(self)
        self.queues: dict[str, FakeQueueTask] = {}
        self.clients: dict[str, Client] = {}
        self.sessions: dict[PeerId, FakeSessionTask] = {}
        self.resumable_links = ResumableLinks(self)
        self.boxes: dict[PeerId, ResumableLink] = {}
        self.now = 0
        self.alarms: set[str] = set()
        self.trace: list[str | _Letters] = []
        self.letters_shown = False
        self._ids = 0

    # --- what the broker's rooms ask of their living room ----------------------------------------

    def start_queue(self, queue: QueueSpec) -> FakeQueueTask:
        """Run an empty queue, as the broker does."""
        name = queue.name
        running = self.queues[name] = FakeQueueTask(
            self,
            ClassicQueue(
                name, durable=queue.durable, settings=queue.settings, selector=selector_in(queue.arguments)
            ),
        )
        return running

    @property
    def vhost(self) -> VirtualHost:
        return self.catalog.lookup_vhost(VHOST)

    def new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    def open(self, label: str, box: ResumableLink) -> ReplyTo:
        """Return an address for a kept link, as the broker does."""
        reply_to = new_reply_to(label)
        self.boxes[reply_to.id] = box
        return reply_to

    def close(self, reply_to: ReplyTo) -> None:
        del self.boxes[reply_to.id]

    def post(self, commands: list[QueueCommand]) -> None:
        for handle, command in commands:
            handle.post(command)

    def now_ms(self) -> int:
        """Return the time of kept links; the queues' time is constant."""
        return self.now

    def timer_started(self) -> None:
        """Nobody waits: `pass_time` says when."""

    def has_account(self, user: str) -> bool:
        return user in self.catalog.users

    # --- what a test does -------------------------------------------------------------------------

    def connect(self, label: str = "C", open_fields: dict[str, str] | None = None) -> Client:
        client = self.clients[label] = Client(self, label, dict(open_fields or {}))
        del self.trace[:]
        return client

    def declare(self, name: str, *, durable: bool = True) -> FakeQueueTask:
        declare(self.catalog, self.vhost, name, durable=durable)
        return self.queues[name]

    def publish(self, name: str, count: int, *, body: str = "m", size: int | None = None) -> None:
        """Publish messages to a queue from outside: m0, m1, ... over all calls."""
        queue = self.queues[name]
        read = MessageReader("", name, "guest").read
        first = queue.published
        queue.published += count
        messages = [read(message(make_body(f"{body}{first + step}", size))) for step in range(count)]
        queue.queue.apply(Publish(new_reply_to("elsewhere").publisher(), range(count), messages, True), 0)
        queue._take_effects()
        self.settle()

    def delete(self, name: str) -> None:
        declared = remove(self.catalog, self.vhost, name)
        assert declared is not None
        self.settle()

    def alarm(self, name: str, *, on: bool) -> None:
        """Raise or clear an alarm; sessions get the first and the last notice only, as in the broker."""
        before = bool(self.alarms)
        (self.alarms.add if on else self.alarms.discard)(name)
        if bool(self.alarms) is not before:
            for session in self.living_sessions():
                session.letters.append(AlarmChanged(on))
        self.settle()

    def configure(self, config: Config) -> None:
        """Replace the configuration and notify sessions, as the broker does."""
        self.config = config
        for session in self.living_sessions():
            session.letters.append(ConfigChanged(config))
        self.settle()

    def set_flow(self, name: str, value: int | str) -> None:
        self.configure(replace(self.config, flow=self.config.flow.changed(name, value, source=f"set {name}")))

    def override(self, **changes: Any) -> None:
        self.configure(replace(self.config, overrides=(*self.config.overrides, FlowOverride(**changes))))

    def lose(self, label: str) -> None:
        self.clients.pop(label).stop()
        self.settle()

    def pass_time(self, seconds: int) -> None:
        self.now += seconds * 1000
        self.resumable_links.expire()
        self.settle()

    def unblock(self, label: str) -> None:
        client = self.clients[label]
        client.blocked = False
        for session in client.sessions.values():
            session.letters.append(Notice.WRITER_READY)
        self.settle()

    def living_sessions(self) -> Iterable[FakeSessionTask]:
        for client in self.clients.values():
            yield from client.sessions.values()

    def settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for client in list(self.clients.values()):
                for session in list(client.all_sessions):
                    moved = session.wake() or moved
            for queue in list(self.queues.values()):
                moved = queue.wake() or moved

    def take_trace(self) -> list[str]:
        trace, self.trace = self.trace, []
        return [str(line) for line in trace]

    def status(self, label: str = "C", channel: int = 0) -> dict[str, Any]:
        client = self.clients[label]
        around = WaitContext(writer_blocked=client.blocked)
        return document(session_view(client.sessions[channel].service, around))

    # --- letters in the trace ---------------------------------------------------------------------

    def note_letter(self, queue: str, command: Command) -> None:
        match command:
            case Publish():
                kind = "publish settled" if command.settled else "publish"
                self._note_many(f"Q< {queue} {kind}", messages=command.messages)
            case Settle():
                self._note_many(
                    f"Q< {queue} settle {command.delivery_outcome.name.lower()}", ids=command.keys
                )
            case GiveBack():
                self._note_many(f"Q< {queue} give-back", messages=command.messages)
            case Credit():
                drain = " drain=true" if command.drain else ""
                self._note(f"Q< {queue} credit dc={command.delivery_count} cr={command.credit}{drain}")
            case Unsubscribe():
                unsent = f"unsent={_show_ids(command.unsent)} seen={command.seen}"
                self._note(f"Q< {queue} unsubscribe {command.delivery_outcome.name.lower()} {unsent}")
            case Subscribe():
                self._note(f"Q< {queue} subscribe{' settled' if command.settled else ''}")
            case AttachPublisher():
                self._note(f"Q< {queue} attach-publisher")
            case DetachPublisher():
                self._note(f"Q< {queue} detach-publisher")
            case Delete():
                self._note(f"Q< {queue} delete")

    def note_answer(self, queue: str, effect: Effect) -> None:
        match effect:
            case Confirmed():
                kind = "confirmed settled" if effect.settled else "confirmed"
                self._note_many(f"Q> {queue} {kind}", ids=effect.ids)
            case Unconfirmed():
                kind = "unconfirmed settled" if effect.settled else "unconfirmed"
                self._note_many(f"Q> {queue} {kind}", ids=effect.ids)
            case Deliver():
                self._note_many(f"Q> {queue} deliver", messages=effect.messages)
            case CreditReply():
                drain = " drain=true" if effect.drain else ""
                count = f"dc={effect.delivery_count} cr={effect.credit}"
                self._note(f"Q> {queue} reply {count} available={effect.available}{drain}")
            case QueueDeleted():
                self._note(f"Q> {queue} deleted")

    def _note(self, line: str) -> None:
        if self.letters_shown:
            self.trace.append(line)

    def _note_many(
        self, head: str, *, messages: Sequence[Message] | None = None, ids: Sequence[int] | None = None
    ) -> None:
        """Join neighbouring letters of one kind in one line: no rule depends on how they are cut."""
        if not self.letters_shown:
            return
        last = self.trace[-1] if self.trace else None
        if not isinstance(last, _Letters) or last.head != head:
            last = _Letters(head)
            self.trace.append(last)
        last.bodies += [_body_of(content) for content in messages or ()]
        last.ids += ids or ()


class _Letters:
    """One line about a run of letters."""

    def __init__(self, head: str) -> None:
        self.head = head
        self.bodies: list[str] = []
        self.ids: list[int] = []

    def __str__(self) -> str:
        return f"{self.head} {show_bodies(self.bodies) if self.bodies else _show_ids(self.ids)}"


def _body_of(content: Message) -> str:
    return show_message(b"".join(content)).partition(" ")[0].removeprefix("body=")


def _show_ids(ids: Sequence[int]) -> str:
    numbers = list(ids)
    if not numbers:
        return "none"
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}..{last}" for first, last in spans)
