"""Channels of AMQP 0-9-1 without tasks, sockets and time: clients' bytes in, every answer out.

`Harness` holds real `BrokerChannel`, `VirtualHost`, `ClassicQueue` and `VolatileQueue` objects and carries
their letters as the tasks do (`runtime/connections/connection091.py`,
`runtime/queues/queue_task.py`); a channel's turn is the one of its task (`sessions/context.py`).
What may be under way in a running broker is a list here; the test says what
moves next, or lets everything `rest`.

What a client sends is encoded and read by the broker's own `FrameReader`. What a channel writes is decoded
by it too, and in a `strict` world pamqp, an independent codec, must find the same methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import pamqp.frame

from amqp10broker.auth.authorise import Access, CatalogGrants
from amqp10broker.config import Config
from amqp10broker.metadata.catalog import VHOST, at_once
from amqp10broker.metadata.queue import DeclaredQueue, QueueHandle, QueueSpec
from amqp10broker.metadata.queue_requests import ConnectionEnded, QueueEnded
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.connection import FrameReader
from amqp10broker.protocols.amqp091.content import (
    AckRun,
    Content,
    ContentOpened,
    Heartbeat,
    Item,
    MethodFrame,
    content_frames,
    method_frame,
)
from amqp10broker.protocols.amqp091.errors import AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp091.methods import Method
from amqp10broker.protocols.amqp091.properties import BasicProperties, decode_properties, encode_properties
from amqp10broker.queues.commands import Command, Effect, PeerId
from amqp10broker.queues.volatile import VolatileQueue
from amqp10broker.routing.exchange import DIRECT_REPLY_TO
from amqp10broker.sessions.amqp091.channel import BrokerChannel, ChannelState
from amqp10broker.sessions.context import ChannelContext
from amqp10broker.sessions.counters import ClientCounters
from amqp10broker.sessions.messages import Frames, SessionMessage
from tests.support.queue_handles import MachineHandle, WaitingQueue
from tests.support.reply_addresses import new_reply_to
from tests.support.session_context import ClientLog, make_catalog

BUDGET_BYTES = 65_536
ALL_CAPABILITIES = frozenset({"consumer_cancel_notify", "publisher_confirms", "basic.nack"})

T = TypeVar("T")
Got = Method | Content
"""What a client receives: a method, or one with content."""


CHANNELS: WeakValueDictionary[PeerId, ChannelEnds] = WeakValueDictionary()
"""Those that queues may answer; a channel that is over is not there, as a closed mailbox."""


def deliver(effects: dict[PeerId, list[Effect]]) -> None:
    for reply_to, batch in effects.items():
        channel = CHANNELS.get(reply_to)
        if channel is not None:
            channel.inbox.append(batch)


class FakeQueueTask(WaitingQueue):
    """A queue that sends its effects to channels; `Harness.rest` leaves the commands of a `stalled` one."""

    stalled = False

    def run(self, commands: int) -> None:
        """Apply the first commands in one step, as the queue's task does."""
        deliver(self.work(commands))


class VolatileHandle(MachineHandle[VolatileQueue]):
    """A queue of direct reply-to: answers at once."""

    def post(self, command: Command) -> None:
        self.queue.apply(command, 0)
        deliver(self.queue.take_effects())


class Harness:
    """A broker's queues and channels.

    Attributes:
        boxes: every queue that ever was, in order of declaration.
        connections: every client.
        strict: what channels write is read by pamqp as well.
        ended: what channels did that are over.
        on_written: called with a channel when it has written something.
    """

    task = FakeQueueTask

    def __init__(self, config: Config | None = None, *, strict: bool = True) -> None:
        self.config = config or Config()
        self.catalog = make_catalog(self)
        self.vhost = self.catalog.lookup_vhost(VHOST)
        self.boxes: list[FakeQueueTask] = []
        self.connections: list[ConnectionEnds] = []
        self.strict = strict
        self.ended = ClientCounters()
        self.on_written: Callable[[ChannelEnds], None] | None = None
        self._ids = count(1)

    def start_queue(self, queue: QueueSpec) -> FakeQueueTask:
        box = self.task(queue, self._forget)
        self.boxes.append(box)
        return box

    def _forget(self, box: FakeQueueTask) -> None:
        self.catalog.propose(QueueEnded(box.spec.vhost, box.spec.name, box))

    def make_volatile(
        self, vhost: VirtualHost, connection: object, allowed: Callable[[str], None]
    ) -> DeclaredQueue:
        name = f"{DIRECT_REPLY_TO}.{self.new_id()}"
        allowed(name)
        return vhost.add_volatile(name, connection, VolatileHandle(VolatileQueue(name)))

    def new_id(self) -> str:
        return f"id-{next(self._ids)}"

    def box(self, name: str) -> FakeQueueTask:
        handle = self.vhost.lookup(name).handle
        assert isinstance(handle, FakeQueueTask)
        return handle

    def counts(self, name: str) -> tuple[int, int]:
        queue = self.box(name).queue
        return queue.ready, queue.unsettled

    def connect(self, **options: Any) -> ConnectionEnds:
        connection = ConnectionEnds(self, **options)
        self.connections.append(connection)
        return connection

    def channel(self, **options: Any) -> ChannelEnds:
        return self.connect(**options).channel(1)

    def rest(self) -> None:
        """Move until nothing can move; answers of queues come before new requests to them."""
        for _ in range(100_000):
            if not self._move():
                return
        raise AssertionError("the world does not come to rest")

    def _move(self) -> bool:
        moved = False
        for connection in self.connections:
            while connection.pass_on():
                moved = True
            for channel in list(connection.channels.values()):
                while channel.inbox or channel.letters:
                    moved = True
                    channel.take_letters(1000)
                    channel.wake()
                moved = channel.write_more() or moved
        for box in list(self.boxes):
            if box.commands and not box.stalled:
                moved = True
                box.run(1000)
        return moved


class ConnectionEnds:
    """A client's connection: its reader, and its channels.

    Attributes:
        channels: as the connection's reader knows them.
        fault: the error that closed the connection.
        waiting: items that the reader has not given to channels yet.
        log: what was logged of it.
    """

    def __init__(
        self,
        world: Harness,
        *,
        user: str = "guest",
        capabilities: Collection[str] = ALL_CAPABILITIES,
        frame_max: int = 131_072,
    ) -> None:
        self.world = world
        self.user = user
        self.capabilities = capabilities
        self.frame_max = frame_max
        self.channels: dict[int, ChannelEnds] = {}
        self.fault: AmqpHardError | None = None
        self.log = ClientLog()
        self.waiting: deque[Item] = deque()
        self.reader = FrameReader(frame_max, content_bytes_max=world.config.max_message_size_bytes)

    def channel(self, number: int) -> ChannelEnds:
        channel = ChannelEnds(self, number)
        self.channels[number] = channel
        assert channel.call(methods.ChannelOpen()) == methods.ChannelOpenOk()
        return channel

    def send(self, data: bytes) -> None:
        self.waiting.extend(self.reader.feed(data))

    def pass_on(self) -> bool:
        """Pass one item from the reader to its channel, if allowed; False if nothing moved."""
        if not self.waiting or self.fault is not None:
            return False
        item = self.waiting[0]
        channel = self.channels[item.channel]
        now, rest = channel.credit.admit(item)
        if now is None:
            return False
        if rest is None:
            self.waiting.popleft()
        else:
            self.waiting[0] = rest
        channel.letters.append(now)
        return True

    def fail(self, fault: AmqpHardError) -> None:
        self.fault = fault
        self.close()

    def close(self) -> None:
        for channel in list(self.channels.values()):
            channel.stop()
        self.waiting.clear()
        self.world.catalog.propose(ConnectionEnded(self.world.vhost.name, self))


class ChannelEnds:
    """A channel: the client's end and the broker's.

    Attributes:
        service: the broker's end.
        letters: items from the reader that the channel has not taken.
        inbox: answers of queues that the channel has not taken.
        credit: contents that the reader may give.
        got: what the client received since the last look.
        room: bytes of deliveries that may be written in this turn.
    """

    def __init__(self, connection: ConnectionEnds, number: int) -> None:
        self.connection = connection
        self.world = connection.world
        self.number = number
        self.letters: deque[Item] = deque()
        self.inbox: deque[list[Effect]] = deque()
        self.got: list[Got] = []
        self.room = self.budget_bytes = BUDGET_BYTES
        self._reader = FrameReader(0)
        self._begin()

    def _begin(self) -> None:
        world = self.world
        connection = self.connection
        config = world.config
        self.reply_to = new_reply_to(f"connection {id(connection)}, channel {self.number}")
        CHANNELS[self.reply_to.id] = self
        context = ChannelContext(
            catalog=world.catalog,
            vhost=world.vhost,
            propose=at_once(world.catalog),
            access=Access(CatalogGrants(world.catalog.users, connection.user), VHOST),
            config=config,
            reply_to=self.reply_to,
            user=connection.user,
            connection=connection,
            capabilities=connection.capabilities,
            frame_max=connection.frame_max,
            new_id=world.new_id,
            volatile=world.make_volatile,
            log=connection.log,
        )
        self.service = BrokerChannel(self.number, context)
        self.credit = self.service.credit

    # --- the broker's end -------------------------------------------------------------------------

    def take_letters(self, number: int = 1, *, answers_first: bool = True) -> None:
        """Give the channel some of its waiting letters; `wake` ends its turn."""
        for _ in range(number):
            letter: SessionMessage
            if self.inbox and (answers_first or not self.letters):
                letter = self.inbox.popleft()
            elif self.letters:
                letter = Frames([self.letters.popleft()])
            else:
                return
            try:
                self.service.handle(letter)
            except AmqpHardError as fault:
                self.wake()
                self.connection.fail(fault)

    def put(self, pieces: Sequence[bytes | memoryview], transfer_bytes: int = 0) -> None:
        """Give the client the bytes: the channel is its own `Outlet` to the writer."""
        self.room -= transfer_bytes
        self._read(b"".join(pieces))

    def want(self) -> None:
        """See `write_more`."""

    def wake(self, budget_bytes: int | None = None) -> int:
        """End the channel's turn: write, post; return the number of delivery bytes written."""
        service = self.service
        budget = self.room = self.budget_bytes if budget_bytes is None else budget_bytes
        service.write_output(self)
        self._post(service.take_commands())
        unwanted, service.unwanted = service.unwanted, None
        if unwanted is not None:
            self.connection.reader.discard(unwanted)
        credit = self.credit
        if credit.unreturned >= credit.more_after and not service.publishing.blocked:
            credit.give_back()
        if service.state is ChannelState.CLOSED and not self.letters and not self.inbox:
            self.stop()
        return budget - self.room

    def write_more(self) -> bool:
        """Give the writer room again; False if there was nothing to write."""
        return bool(self.service.has_unsent and self.wake())

    def stop(self) -> None:
        """End the channel's task; another task begins when frames arrive."""
        CHANNELS.pop(self.reply_to.id, None)
        self.inbox.clear()
        self.letters.clear()
        self.service.close()
        self._post(self.service.take_commands())
        self.world.ended.add(self.service.counted())
        self._begin()

    def _post(self, mail: list[tuple[QueueHandle, Command]]) -> None:
        for handle, command in mail:
            handle.post(command)

    # --- the client's end -------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        new: list[Got] = []
        for item in self._reader.feed(data) if data else ():
            for channel, got in each_of(item):
                assert channel == self.number
                new.append(got)
        if self.world.strict:
            assert [name_of(got) for got in new] == read_by_pamqp(data)
        self.got += new
        if new and self.world.on_written is not None:
            self.world.on_written(self)

    def send(self, *parts: Method | bytes) -> None:
        """Send methods and contents in one write, without letting any task run."""
        data = b"".join(
            part if isinstance(part, bytes) else method_frame(self.number, part) for part in parts
        )
        self.connection.send(data)

    def content(self, routing_key: str, body: bytes = b"", exchange: str = "", **fields: Any) -> bytes:
        """Encode a publish; fields are mandatory, immediate, and message properties."""
        flags = {name: fields.pop(name) for name in ("mandatory", "immediate") if name in fields}
        method = methods.BasicPublish(exchange, routing_key, **flags)
        properties = encode_properties(BasicProperties(**fields))
        return content_frames(self.number, method, properties, body, self.connection.frame_max)

    def take(self) -> list[Got]:
        got, self.got = self.got, []
        return got

    def say(self, *parts: Method | bytes) -> list[Got]:
        """Send, let all tasks come to rest, and return what arrived."""
        self.send(*parts)
        self.world.rest()
        return self.take()

    def call(self, *parts: Method | bytes) -> Got:
        got = self.say(*parts)
        assert len(got) == 1, f"one answer expected: {got}"
        return got[0]

    def publish(self, routing_key: str, *bodies: bytes, **fields: Any) -> list[Got]:
        """Publish, let all tasks come to rest, and return what arrived."""
        return self.say(*[self.content(routing_key, body, **fields) for body in bodies])

    def refused(self, *parts: Method | bytes) -> tuple[int, str]:
        """Require that the last part closes the channel; return reply code and text."""
        closed = self.say(*parts)[-1]
        assert isinstance(closed, methods.ChannelClose), closed
        assert self.connection.fault is None
        blamed = parts[-1] if isinstance(parts[-1], Method) else methods.BasicPublish()
        assert (closed.class_id, closed.method_id) == (blamed.CLASS_ID, blamed.METHOD_ID)
        self.send(methods.ChannelCloseOk(), methods.ChannelOpen())
        self.world.rest()
        assert self.take() == [methods.ChannelOpenOk()]
        return closed.reply_code, text_of(closed.reply_code, closed.reply_text)

    def fatal(self, *parts: Method | bytes) -> tuple[int, str]:
        """Require that the last part closes the connection; return reply code and text."""
        self.say(*parts)
        fault = self.connection.fault
        assert fault is not None, "the connection goes on"
        blamed = parts[-1] if isinstance(parts[-1], Method) else methods.BasicPublish()
        assert (fault.class_id, fault.method_id) == (blamed.CLASS_ID, blamed.METHOD_ID)
        return int(fault.code), text_of(fault.code, fault.reply_text)

    def consume(self, queue: str, tag: str = "c", **fields: Any) -> list[Got]:
        """Start a consumer; return what arrived after the consume-ok."""
        first, *rest = self.say(methods.BasicConsume(queue, tag, **fields))
        assert first == methods.BasicConsumeOk(tag), first
        return rest


def text_of(code: int, reply_text: str) -> str:
    name = f"{ReplyCode(code).name} - "
    assert reply_text.startswith(name)
    return reply_text.removeprefix(name)


def read_by_pamqp(data: bytes) -> list[str]:
    """Return the names of the methods in the bytes, as pamqp reads them."""
    names = []
    while data:
        consumed, _, frame = pamqp.frame.unmarshal(data)
        data = data[consumed:]
        if frame.name not in ("ContentHeader", "ContentBody"):
            names.append(frame.name.replace(".", "").lower())
    return names


def each_of(item: Item) -> list[tuple[int, Any]]:
    """Return each channel with the method, content or heartbeat that arrived on it."""
    match item:
        case MethodFrame():
            return [(item.channel, item.method)]
        case AckRun():
            return [(item.channel, methods.BasicAck(tag, multiple)) for tag, multiple in item.tags]
        case Content():
            return [(item.channel, item)]
        case ContentOpened():
            return []
        case Heartbeat():
            return [(0, item)]
        case _:
            raise AssertionError(f"a client gets {item!r}")


def name_of(got: Got) -> str:
    method = got.method if isinstance(got, Content) else got
    return type(method).__name__.lower()


def contents(got: list[Got], kind: type[Method] = methods.BasicDeliver) -> list[Content]:
    return [each for each in got if isinstance(each, Content) and isinstance(each.method, kind)]


def bodies(got: list[Got]) -> list[bytes]:
    return [each.body for each in contents(got)]


def tags(got: list[Got]) -> list[int]:
    return [
        each.method.delivery_tag for each in contents(got) if isinstance(each.method, methods.BasicDeliver)
    ]


def redelivered(got: list[Got]) -> list[bool]:
    return [
        each.method.redelivered for each in contents(got) if isinstance(each.method, methods.BasicDeliver)
    ]


def properties_of(content: Content) -> BasicProperties:
    return decode_properties(content.properties)


def kinds(got: list[Got]) -> list[str]:
    """Return class names of what arrived; a content has that of its method."""
    return [type(each.method if isinstance(each, Content) else each).__name__ for each in got]
