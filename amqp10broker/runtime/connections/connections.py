"""All connections of a broker, of both protocols, and its suspended links with their timers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import count
from typing import Any, Final, TypeAlias

import trio

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import DamagedFile, NotAllowed
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.plan import Key as PlanKey
from amqp10broker.metadata.queue import DeclaredQueue, QueueCommand
from amqp10broker.operations.snapshot import ConnectionView, QueueView, SummaryView, TotalsView, WaitingView
from amqp10broker.protocols.amqp10.errors import AmqpError
from amqp10broker.protocols.amqp10.performatives import Target
from amqp10broker.queues.commands import ReplyTo
from amqp10broker.runtime.connections.client_connection import ClientConnection
from amqp10broker.runtime.connections.sockets import LINGER_BYTES_MAX, READ_BYTES, Stream
from amqp10broker.runtime.context import BrokerContext
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.mailbox import send_commands
from amqp10broker.sessions.amqp10.resumable_links import (
    ResumableConsumer,
    ResumableLink,
    ResumableLinks,
    ResumablePublisher,
    survivor,
)
from amqp10broker.sessions.counters import Measures, Totals, Whose
from amqp10broker.sessions.diagnosis.survey import Selection, Survey, queue_view
from amqp10broker.sessions.messages import AlarmChanged, ConfigChanged, Notice

_log = Log("amqp10broker.connection")

Connection: TypeAlias = ClientConnection[Any, Any, Any]

PARTS_AT_ONCE: Final = 100
"""The number of connections and their parts that are visited before other tasks run: a few milliseconds."""


class LoopYield:
    """Lets other tasks run while many connections are visited."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts = 0

    async def after(self, view: ConnectionView) -> None:
        self._parts += 1 + sum([1 + len(session.links) for session in view.sessions])
        self._parts += sum([1 + len(channel.consumers) for channel in view.channels])
        if self._parts >= PARTS_AT_ONCE:
            self._parts = 0
            await trio.lowlevel.checkpoint()


@dataclass(slots=True)
class ClosedConnections:
    """Sums over connections that have ended."""

    connections: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    measures: defaultdict[str, Measures] = field(default_factory=lambda: defaultdict(Measures))
    blocked_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0


class Connections(dict[int, Connection]):
    """Open connections by number. `lingering`: the sockets of connections that are over, oldest first.
    `past`: sums of ended connections, besides the counters of their clients (`gone`).
    """

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self._catalog = catalog
        self.numbers = count(1)
        self.gone = Totals()
        self.past = ClosedConnections()
        self.greetings: set[trio.CancelScope] = set()
        self.lingering: dict[trio.CancelScope, None] = {}
        self.stopping = False

    def tell(self, message: AlarmChanged | ConfigChanged | Notice) -> None:
        for connection in list(self.values()):
            connection.tell(message)

    def ended(self, number: int) -> None:
        connection = self.pop(number)
        self.gone.add(_whose(connection), connection.counted(), self._catalog.users, self._catalog.vhosts)
        past = self.past
        past.connections += 1
        past.parts[connection.protocol] += connection.begun
        past.measures[connection.protocol].add(connection.measures)
        past.blocked_s += connection.blocked_s
        past.bytes_in += connection.bytes_received
        past.bytes_out += connection.writer.bytes_sent

    @property
    def count(self) -> int:
        """The number of open connections, including those before their protocol header."""
        return len(self) + len(self.greetings)

    def has_room(self, maximum: int) -> bool:
        """Return whether there is room for one more connection. A lingering socket is closed to make room."""
        if self.count + len(self.lingering) >= maximum and self.lingering:
            oldest = next(iter(self.lingering))
            del self.lingering[oldest]
            oldest.cancel()
        return self.count < maximum

    async def linger(self, stream: Stream, seconds: float) -> None:
        """Read and drop further bytes on a connection that is over, until the client closes the socket.

        A client that finds the socket closed considers the connection lost, whatever it has read. And if the
        broker closed it with unread bytes, the kernel would reset it, and drop the broker's last frames.
        """
        with trio.move_on_after(seconds) as scope:
            if self.stopping:
                scope.cancel()
            self.lingering[scope] = None
            try:
                left = LINGER_BYTES_MAX
                while left > 0 and (data := await stream.receive_some(READ_BYTES)):
                    left -= len(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                _log.debug("connection lost behind its close", reason=str(error))
            finally:
                self.lingering.pop(scope, None)

    def stop(self, reason: str) -> None:
        """Accept no new connection, and end the present ones in order."""
        self.stopping = True
        self.turn_out(reason)

    def turn_out(self, reason: str) -> None:
        """End the present connections in order."""
        for scope in (*self.greetings, *self.lingering):
            scope.cancel()
        for connection in list(self.values()):
            connection.close(reason, node_stops=True)

    def _by(self) -> Iterator[dict[str, dict[str, int | None]]]:
        present = [(_whose(each), each.counted()) for each in self.values()]
        for sums in self.gone.by(present, self._catalog.users, self._catalog.vhosts):
            yield {name: total.document() for name, total in sorted(sums.items())}

    def totals(self) -> TotalsView:
        """Counters of clients since the start, by protocol, virtual host and user."""
        protocols, vhosts, users = self._by()
        return TotalsView(
            protocols,
            vhosts,
            users,
            queues={name: vhost.counted() for name, vhost in sorted(self._catalog.vhosts.items())},
        )

    def totals_of_vhosts(self) -> dict[str, dict[str, int | None]]:
        """Return the same counters by virtual host alone; no queue is visited."""
        _, vhosts, _ = self._by()
        return vhosts

    async def views(self, after: int = 0, most: int | None = None) -> list[ConnectionView]:
        """Return views of authenticated connections, by number, in portions. `most`: at most so many."""
        found: list[ConnectionView] = []
        turns = LoopYield()
        for number in sorted(number for number in self if number > after):
            if len(found) == most:
                break
            connection = self.get(number)
            if connection is not None and connection.member is not None:
                found.append(connection.view())
                await turns.after(found[-1])
        return found


async def what_waits(
    connections: Connections, queues: Iterable[DeclaredQueue], selection: Selection
) -> tuple[SummaryView, Sequence[WaitingView]]:
    """Return the requested diagnosis of connections and queues, in portions."""
    survey = Survey(selection, len(connections))
    turns = LoopYield()
    for connection in list(connections.values()):
        if connection.member is not None and selection.wants(connection.number, connection.user):
            view = connection.view()
            survey.add(view)
            await turns.after(view)
    counted: list[QueueView] = []
    for place, queue in enumerate(list(queues), 1):
        counted.append(queue_view(queue))
        if not place % PARTS_AT_ONCE:
            await trio.lowlevel.checkpoint()
    return survey.summary(survey.queues(counted)), survey.waiting()


class ClientsContext(BrokerContext):
    """The context of code that visits all connections."""

    connections: Connections


def _whose(connection: Connection) -> Whose:
    return Whose(connection.protocol, connection.vhost, connection.user)


class Rights:
    """Checks all connections after a change of users or permissions; simultaneous changes, such as those of a
    definitions file, together. A connection is closed if its user has lost access to its virtual host. After
    a change of permissions, sessions and channels check each of their consumers; publishes are always checked
    (`sessions.routes`).
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._changed = trio.Event()

    def note(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            for connection in list(self._connections.values()):
                member = connection.member
                if member is None or connection.reading.cancel_called:
                    continue  # it checks when it opens; or it is closing for another reason
                try:
                    if member.permission_changed():
                        connection.tell(Notice.ACCESS_CHANGED)
                except NotAllowed as refusal:
                    connection.expel(refusal.description)


_links_log = Log("amqp10broker.keeping")


class SuspendedLinks:
    """Connects `ResumableLinks` with the broker, and has the task that ends links when their time is over."""

    def __init__(self, node_context: BrokerContext) -> None:
        self._node_context = node_context
        self._sooner = trio.Event()
        self.links = ResumableLinks(self)

    def open(self, label: str, box: ResumableLink) -> ReplyTo:
        return self._node_context.reply_registry.open(label, box)

    def close(self, reply_to: ReplyTo) -> None:
        self._node_context.reply_registry.close(reply_to)

    def post(self, commands: list[QueueCommand]) -> None:
        send_commands(commands)

    def now_ms(self) -> int:
        return self._node_context.clock.now_ms()

    def timer_started(self) -> None:
        self._sooner.set()

    def has_account(self, user: str) -> bool:
        return user in self._node_context.catalog.users

    def left(self, key: PlanKey) -> None:
        """End the links of a deleted user or virtual host (`Catalog.on_left`)."""
        if key[0] == "user":
            self.links.revoke(user=key[1])
        else:
            self.links.revoke(vhost=key[1])

    def restore(self) -> None:
        """Restore the links of the journal, after queues and before clients. A link without its virtual host
        or user is ended: its end may not have been durable before a power failure. Raises `DamagedFile` if a
        record is malformed.
        """
        records, vhosts = self.links.records, self._node_context.catalog.vhosts
        if records is None:
            return
        for number, document, tags in records.found():
            try:
                found = survivor(document)
            except (ValueError, TypeError, AmqpError) as error:
                raise DamagedFile(
                    "the journal",
                    f"what it says of link {number} cannot be understood: {error}",
                    "start the version that wrote it, or restore the data folder from a copy",
                ) from error
            if found.key.vhost not in vhosts or (found.account and not self.has_account(found.key.user)):
                records.end(number)
                continue
            resumable: ResumableLink
            if isinstance(found.terminus, Target):
                resumable = ResumablePublisher(found.key, self, found.terminus)
                resumable.restore(tags)
            else:
                resumable = ResumableConsumer(found.key, self.links, found.terminus)
            self.links.restore(resumable, number, found.terms, found.deadline_ms)
        if len(self.links):
            _links_log.info("suspended links restored", links=len(self.links))
        self.links.expire()

    async def run(self) -> None:
        while True:
            self._sooner = trio.Event()
            due_ms = self.links.deadline_ms
            due = math.inf if due_ms is None else self._node_context.clock.trio_time(due_ms)
            with trio.move_on_at(due):
                await self._sooner.wait()
            self.links.expire()
