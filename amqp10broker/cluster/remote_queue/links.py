"""All links of a node, and the dispatch of frames and connection events to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum, auto
from typing import ClassVar, Final

from amqp10broker.cluster.remote_queue.consumers import HomeUsers
from amqp10broker.cluster.remote_queue.link import QueueLink
from amqp10broker.cluster.remote_queue.link_server import HomeLinkServer, LinkServer
from amqp10broker.cluster.remote_queue.messages import (
    Browse,
    EffectsBySession,
    LeaderIs,
    LetterBatch,
    LinkMessage,
    LinkPort,
    RemoteEffects,
    RemoteResumed,
    ResumeRemote,
    add_effect,
    decode,
    refuse,
)
from amqp10broker.cluster.wire import PeerFrame
from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import (
    Answer,
    AttachPublisher,
    Command,
    Confirmed,
    ConsumerRef,
    CreditReply,
    Delete,
    DetachPublisher,
    Effect,
    Inspect,
    Publish,
    PublisherRef,
    PublishRejected,
    Purge,
    QueueDeleted,
    QueueDown,
    Refusal,
    RequestRef,
    Settle,
    Settled,
    Unconfirmed,
)

OPENING_MS: Final = 5_000
"""How long commands wait for the announcement of a queue that was just declared, or whose home has just
started."""


class _State(Enum):
    OPENING = auto()
    UP = auto()
    DOWN = auto()


@dataclass(slots=True, eq=False)
class HomeLink:
    """The link to a queue that is at one other node only: a classic queue or a stream.

    Commands are sent at once. Both ends reset when the connection is lost: unconfirmed publishes are not
    taken, consumers end, and callers get the error that the queue's node is down (docs/adr/0049), until the
    home announces the queue again. `down_ms`: since when it cannot be reached; None: it can. `full_ms`: None:
    publishes wait at its node.
    """

    full_ms: ClassVar[None] = None
    queue: str
    group: int
    home: int
    _port: LinkPort
    available: int = 0
    ended: bool = False
    _next: int = 1
    _state: _State = _State.OPENING
    _opening_ms: int = field(init=False)
    _lost: bool = False
    down_ms: int | None = None
    _waiting: list[Command] = field(default_factory=list, init=False)
    _users: HomeUsers = field(default_factory=HomeUsers, init=False)
    _requests: dict[RequestRef, None] = field(default_factory=dict, init=False)
    # Of each publisher what is not confirmed: number -> whether it was published settled.
    _unconfirmed: dict[PublisherRef, dict[int, bool]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._opening_ms = self._port.now_ms()
        self._port.stir(self.group)

    @property
    def unled_ms(self) -> int | None:
        return self._opening_ms if self._state is _State.OPENING else self.down_ms

    @property
    def consumers(self) -> int:
        """Consumers of this node, with cancelled ones that hold deliveries."""
        return len(self._users.consumers)

    @property
    def open(self) -> bool:
        return self._state is _State.UP

    # --- from sessions ----------------------------------------------------------------------------

    def post_all(self, commands: Sequence[Command]) -> None:
        if self.ended:
            self._port.tell(self._refused(commands, Refusal.GONE))
        elif self._state is _State.OPENING:
            self._waiting += commands
        elif self._state is _State.UP:
            self._send(commands)
        else:
            self._port.tell(self._refused(commands, Refusal.NO_LEADER))

    def _send(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self._note(command)
        batch = LetterBatch(0, self._next, 0, commands)
        self._next += len(commands)
        if not self._port.send(self.home, self.group, batch):
            self._fall()

    def _note(self, command: Command) -> None:
        match command:
            case Publish():
                outstanding = self._unconfirmed.setdefault(command.publisher, {})
                outstanding.update(dict.fromkeys(command.ids, command.settled))
            case Inspect() | Purge() | Delete():
                if command.request is not None:
                    self._requests[command.request] = None
            case _:
                self._users.note(command)

    # --- the way there ----------------------------------------------------------------------------

    def leader_is(self, node: int, leader: LeaderIs) -> None:
        if node != self.home or self.ended:
            return
        if self._state is _State.UP:
            self._fall()  # it has begun anew
        if self._lost:
            # It may not have noticed that this node was away, and must reset its end.
            self._port.send(node, self.group, ResumeRemote(0, 0, 0, 1, {}))
        self._state, self._lost = _State.UP, False
        self.down_ms = None
        waiting, self._waiting = self._waiting, []
        attached: list[Command] = [AttachPublisher(each) for each in self._users.publishers]
        if attached or waiting:
            self._send([*attached, *waiting])

    def node_alive(self, node: int) -> None:
        if node == self.home and not self.ended and self._state is _State.DOWN:
            self._state, self._opening_ms, self.down_ms = _State.OPENING, self._port.now_ms(), None
            self._port.stir(self.group)

    def node_down(self, node: int) -> None:
        if node == self.home and not self.ended:
            self._fall()

    def _fall(self) -> None:
        if self._state is _State.DOWN:
            return
        self._state, self._lost = _State.DOWN, True
        self.down_ms = self._port.now_ms()
        waiting, self._waiting = self._waiting, []
        out: EffectsBySession = {}
        self._refuse_outstanding(out, Refusal.NO_LEADER)
        for ref in self._users.consumers:
            add_effect(out, ref.reply_to, QueueDown(ref, self.queue))
        self._users.consumers.clear()
        for peer, effects in self._refused(waiting, Refusal.NO_LEADER).items():
            out.setdefault(peer, []).extend(effects)
        self._port.tell(out)

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` is due; None: never."""
        return self._opening_ms + OPENING_MS if self._state is _State.OPENING and not self.ended else None

    def tick(self) -> None:
        deadline_ms = self.deadline_ms
        if deadline_ms is not None and self._port.now_ms() >= deadline_ms:
            self._fall()

    # --- from the queue ---------------------------------------------------------------------------

    def told(self, node: int, told: RemoteEffects) -> None:
        if node != self.home or self._state is not _State.UP:
            return
        out: EffectsBySession = {}
        for peer, effects in told.effects.items():
            for effect in effects:
                heard = self._heard(effect)
                if heard is not None:
                    add_effect(out, peer, heard)
        if out:
            self._port.tell(out)

    def _heard(self, effect: Effect) -> Effect | None:
        match effect:
            case Confirmed() | Unconfirmed() | PublishRejected():
                return self._outstanding_of(effect)
            case Answer():
                known = effect.request in self._requests
                self._requests.pop(effect.request, None)
                if effect.refused is None:
                    self.available = effect.ready
            case _:
                known = self._users.counts(effect)
                if type(effect) is CreditReply:
                    self.available = effect.available
        return effect if known else None

    def _outstanding_of(self, effect: Confirmed | Unconfirmed | PublishRejected) -> Effect | None:
        outstanding = self._unconfirmed.get(effect.publisher)
        if outstanding is None:
            return None
        ids = [number for number in effect.ids if outstanding.pop(number, None) is not None]
        if not outstanding:
            del self._unconfirmed[effect.publisher]
        if len(ids) == len(effect.ids):
            return effect
        return replace(effect, ids=ids) if ids else None

    def resumed(self, node: int, resumed: RemoteResumed) -> None:
        """Such a link has nothing to resume."""

    # --- the end ----------------------------------------------------------------------------------

    def forget(self) -> None:
        self.end()

    def end(self) -> None:
        if self.ended:
            return
        self.ended = True
        out = self._refused(self._waiting, Refusal.GONE)
        self._refuse_outstanding(out, Refusal.GONE)
        refs: list[ConsumerRef | PublisherRef] = [*self._users.consumers, *self._users.publishers]
        for ref in refs:
            add_effect(out, ref.reply_to, QueueDeleted(ref, self.queue))
        self._waiting = []
        self._users.consumers.clear()
        self._users.publishers.clear()
        self._port.tell(out)

    def _refuse_outstanding(self, out: EffectsBySession, why: Refusal) -> None:
        for publisher, numbers in self._unconfirmed.items():
            for settled in (False, True):
                ids = [number for number, of in numbers.items() if of is settled]
                if ids:
                    failed = why is not Refusal.GONE
                    refused = Unconfirmed(publisher, ids, settled, failed=failed, queue=self.queue)
                    add_effect(out, publisher.reply_to, refused)
        for request in self._requests:
            add_effect(out, request.reply_to, Answer(request, 0, 0, why))
        self._unconfirmed.clear()
        self._requests.clear()

    def _refused(self, commands: Iterable[Command], why: Refusal) -> EffectsBySession:
        out: EffectsBySession = {}
        for command in commands:
            match command:
                case AttachPublisher() if why is not Refusal.GONE:
                    self._users.publishers[command.publisher] = None
                case DetachPublisher():
                    self._users.publishers.pop(command.publisher, None)
                case Settle() if command.answer:
                    add_effect(out, command.consumer.reply_to, Settled(command.consumer, command.keys))
                case _:
                    refuse(out, [command], self.queue, why)
        return out


Client = QueueLink | HomeLink
Server = LinkServer | HomeLinkServer


class QueueLinks:
    """All links of the node. `on_leader`: called with the number of a queue when a leader of it is known."""

    def __init__(self, port: LinkPort) -> None:
        self.port = port
        port.deliver = self._take
        self.clients: dict[int, Client] = {}
        self.servers: dict[int, Server] = {}
        self.on_leader: Callable[[int], None] = lambda group: None
        # The last announced leaders, also of queues that this node does not know yet.
        self._leaders: dict[int, tuple[int, LeaderIs]] = {}

    # --- queues -------------------------------------------------------------------------------------

    def add_client(self, client: Client) -> None:
        self.clients[client.group] = client
        leader = self._leaders.get(client.group)
        if leader is not None:
            client.leader_is(*leader)

    def remove_client(self, group: int) -> None:
        self.clients.pop(group, None)
        self._leaders.pop(group, None)

    def leader_of(self, group: int) -> int | None:
        known = self._leaders.get(group)
        return None if known is None else known[0]

    # --- from other nodes ---------------------------------------------------------------------------

    def received(self, node: int, frame: PeerFrame) -> None:
        """Handle a frame of a kind in `messages.BODIES`. Raises `BadBytes`."""
        self._take(node, frame.group, decode(frame))

    def _take(self, node: int, group: int, message: LinkMessage) -> None:
        match message:
            case RemoteEffects() | RemoteResumed():
                client = self.clients.get(group)
                if client is None:
                    return
                if isinstance(message, RemoteEffects):
                    client.told(node, message)
                else:
                    client.resumed(node, message)
            case LetterBatch() | Browse() | ResumeRemote():
                server = self.servers.get(group)
                if server is None:
                    return
                if isinstance(message, LetterBatch):
                    server.received(node, message)
                elif isinstance(message, ResumeRemote):
                    server.resume(node, message)
                elif isinstance(server, LinkServer):
                    server.browse(node, message)
            case LeaderIs():
                known = self._leaders.get(group)
                if message.no_more and known == (node, LeaderIs(message.term)):
                    del self._leaders[group]
                elif not message.no_more and (known is None or message.term >= known[1].term):
                    self._leaders[group] = node, LeaderIs(message.term)
                client = self.clients.get(group)
                if client is not None:
                    client.leader_is(node, message)
                if group in self._leaders:
                    self.on_leader(group)

    # --- other nodes come and go --------------------------------------------------------------------

    def connected(self, node: int) -> None:
        self.port.connected[node] = None
        for server in list(self.servers.values()):
            server.node_up(node)

    def disconnected(self, node: int) -> None:
        self.port.connected.pop(node, None)
        self._leaders = {group: leader for group, leader in self._leaders.items() if leader[0] != node}
        for end in [*self.servers.values(), *self.clients.values()]:
            end.node_down(node)

    def suspect(self, node: int) -> None:
        self.port.suspected |= {node}
        for client in list(self.clients.values()):
            client.node_down(node)
        self._changed(node)

    def heard(self, node: int, incarnation: int) -> None:
        port = self.port
        port.suspected -= {node}
        port.incarnations[node] = max(incarnation, port.incarnations.get(node, 0))
        self._changed(node)
        for link in list(self.clients.values()):
            if isinstance(link, HomeLink):
                link.node_alive(node)
        for group, (leader, said) in list(self._leaders.items()):
            client = self.clients.get(group)
            if leader == node and client is not None and not client.open:
                client.leader_is(node, said)

    def know(self, nodes: Mapping[int, int]) -> None:
        """Set the nodes of the cluster, each with its last known start; 0: none."""
        port = self.port
        before = port.incarnations
        port.incarnations = {
            node: max(incarnation, before.get(node, 0)) for node, incarnation in nodes.items()
        } | {port.node: port.incarnation}
        port.suspected &= port.incarnations.keys()
        for node in before:
            if before[node] != port.incarnations.get(node):
                self._changed(node)

    def _changed(self, node: int) -> None:
        for server in list(self.servers.values()):
            server.node_changed(node)

    # --- time ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Call it a few times a second while links are stirred."""
        port = self.port
        now_ms = port.now_ms()
        stirred, port.stirred = port.stirred, {}
        for group in stirred:
            client = self.clients.get(group)
            deadline_ms = None if client is None else client.deadline_ms
            if client is not None and deadline_ms is not None:
                port.stirred[group] = None
                if deadline_ms <= now_ms:
                    client.tick()
