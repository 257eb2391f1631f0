"""Nodes with links to one replicated queue, and nothing else of a cluster.

The machine is real, one copy a member, and so are links, their codecs and `QueueCredit`. The log that the
members share is a list: entries are committed when the world says so, the leader changes when it says so, and
takes with it some of what was not committed. The network holds frames back, and loses them with their
connection. All is drawn from one seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amqp10broker.cluster.remote_queue.link import QueueLink
from amqp10broker.cluster.remote_queue.links import LinkServer, QueueLinks
from amqp10broker.cluster.remote_queue.messages import LinkPort
from amqp10broker.cluster.wire import FrameKind, PeerFrame
from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.message import Message
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.queues.commands import (
    Command,
    Deliver,
    DeliveryOutcome,
    Effect,
    Inspect,
    PeerId,
    Publish,
    Purge,
    ReplyTo,
)
from amqp10broker.queues.durability import LinkAdmission
from amqp10broker.queues.quorum.bodies import PagedBodies
from amqp10broker.queues.quorum.commands import (
    CHANGES_NOTHING,
    NodeBatch,
    QuorumCommand,
    decode_commands,
    encode_commands,
    joined,
)
from amqp10broker.queues.quorum.queue import QuorumQueue, decode_snapshot, encode_snapshot
from amqp10broker.queues.settings import QueueSettings
from tests.support.crash_history import name_of
from tests.support.queue_handles import FakeHandle
from tests.support.selecting import selector
from tests.support.sim_clients import SimClient, SimConsumer, UsedQueue, shown

GROUP = 7
HEAD = make_head(None, None, "", "q")
ALL = selector("JMSPriority IS NOT NULL")
Entry = tuple[list[QuorumCommand], bytes, int]
"""Commands as the leader has them, their bytes, and the index behind their last message."""


class _Handle(FakeHandle):
    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node

    def post(self, command: Command) -> None:
        self._node.client.post_all([command])


class Browser(SimConsumer):
    """A link that browses; `shown` is without what it gave back."""

    _client: Session

    def __init__(self, *given: Any, **named: Any) -> None:
        self.shown: list[bytes] = []
        super().__init__(*given, **named, counted=False, browse=True)

    def on_deliver(self, effect: Deliver) -> None:
        """A browser is shown each message once, unless another consumer held it."""
        if self.over or not self.credit.on_deliver(effect):
            return
        assert self.credit.seen <= self._most, f"{self.ref} was shown more than it asked for"
        for key, message in zip(effect.keys, effect.messages, strict=True):
            if self._client.node.world.browses == 1:
                assert message[1] not in self.shown, f"{self.ref} was shown {key} twice"
            self.shown.append(message[1])
            self.unsent[key] = message

    def send(self) -> None:
        count, self.unsent = self.credit.waiting, {}
        if count:
            self.credit.sent(count)

    def give_back(self) -> None:
        """Return the last of the undelivered messages and those in flight to the queue."""
        count = self.credit.waiting
        if count and len(self.unsent) == count:
            most = self._client.node.world.random.randrange(count)
            back = list(self.unsent.items())[most:]
            del self.shown[len(self.shown) - len(back) :]
            for key, _ in back:
                del self.unsent[key]
            self.credit.give_back([key for key, _ in back], [message for _, message in back])


class Session(SimClient):
    """One session of a node, which is told of effects at once."""

    def __init__(self, node: Node, number: int) -> None:
        self.node = node
        self.strict = node.world.strict
        handle = _Handle(node)
        queue = DeclaredQueue("q", "/", "quorum", True, None, False, {"x-queue-type": "quorum"}, handle)
        super().__init__(f"{node.number}.{node.incarnation}.{number}", node, queue, node.world.queue)

    def on_message(self, key: int, message: Message) -> None:
        world, name = self.node.world, name_of(message[1])
        assert name in world.queue.history.published
        assert world.placed.setdefault(name, key) == key, f"{name} is in the queue twice"


class Disk:
    """A member's: a `Room` and its journal; while `full` it refuses publishes, and counts them."""

    durable = 0
    reserve = True

    def __init__(self) -> None:
        self.full = False
        self.refused = 0
        self._for_room: list[Callable[[], None]] = []

    @property
    def journal(self) -> Disk:
        return self

    def admits(self, size: int, last: int) -> bool:
        assert last <= size
        self.refused += self.full
        return not self.full

    def withdraw(self) -> None:
        """All else is admitted as before."""

    def when_room(self, callback: Callable[[], None]) -> None:
        self._for_room.append(callback)

    def fill(self) -> None:
        self.full = True

    def free(self) -> None:
        self.full = False
        waiting, self._for_room = self._for_room, []
        for callback in waiting:
            callback()


class Member:
    """One copy of the machine, at a node."""

    ahead = False

    def __init__(self, node: Node, settings: QueueSettings) -> None:
        self.queue = QuorumQueue("q", settings=settings, now_ms=0)
        self.queue.follow()
        self.applied = 0
        self.node = node
        self.believes: int | None = None
        self.pending: list[Entry] = []
        self.queue.browsers.scan_max = 3
        self.questions: list[tuple[int, list[QuorumCommand]]] = []
        self.looked = 0
        self.end = 0
        self.server = LinkServer(GROUP, self, self.post_all, node.links.port)
        self.mailbox: list[QuorumCommand] = []
        self.disk = Disk()
        self.admission = LinkAdmission(self.disk, lambda: None)
        self.admission.on_refused, self.admission.on_room = self.server.refused, self.server.room

    def post_all(self, commands: list[QuorumCommand]) -> None:
        """Post to a task's mailbox; a leader proposes it whatever the effect."""
        self.mailbox += commands
        if not self.node.world.disks_fill:
            self.work()

    def done(self, node: int, incarnation: int) -> int:
        return self.queue.link_last(node, incarnation)

    def work(self) -> None:
        """Propose what is in the mailbox, as far as there is room for it."""
        posted, self.mailbox = self.mailbox, []
        if self.believes is None:
            return
        admitted = self.admission.admitted(posted, self.node.world.now_ms)  # type: ignore[arg-type]
        if not admitted:
            return
        if not all(isinstance(each, CHANGES_NOTHING) for each in admitted):
            self._propose(joined(admitted))
        else:
            self.questions.append((len(self.node.world.log) + len(self.pending), admitted))

    def show_on(self) -> bool:
        """Answer queries and show browsers more; return whether there was work."""
        if self.believes is None:
            return False
        more = False
        while self.questions and self.questions[0][0] <= self.applied:
            more = True
            for each in self.questions.pop(0)[1]:
                self.queue.apply(each, self.node.world.now_ms)
        more = self.queue.show_on() or more
        self.server.tell(self.queue.take_effects(), self.applied)
        return more

    def _propose(self, commands: list[QuorumCommand]) -> None:
        encoded = encode_commands(commands, self.node.world.now_ms, self.end)
        self.end = encoded.end
        self.pending.append((commands, b"".join(encoded.pieces), encoded.end))

    def apply(self) -> None:
        """Apply the next committed entry; the leader emits the effects."""
        world = self.node.world
        index = self.applied + 1
        commands, payload, _ = world.log[self.applied]
        decoded = decode_commands(payload)
        leads = self.believes is not None
        self.queue.node_links.entry = index
        for command in commands if leads else decoded.commands:
            self.queue.apply(command, decoded.now_ms)
        self.applied = index
        if leads:
            self.server.tell(self.queue.take_effects(), index)
            if world.selects and self.looked <= index and (found := self.queue.look(3)) is not None:
                self._propose([found])
                self.looked = len(world.log) + len(self.pending)
        world.check_equal(index, self.queue)

    def catch_up(self, leader: QuorumQueue, applied: int) -> None:
        """Install the leader's state in place of the entries before it."""
        bodies = PagedBodies()
        for index in sorted(leader.live_indexes()):
            bodies.put(index, leader.parts()[0].bodies.fetch([index]))
        self.queue = decode_snapshot("q", encode_snapshot(leader), bodies)
        self.queue.follow()
        self.queue.browsers.scan_max = 3
        self.applied = applied


class FakeNetwork:
    def __init__(self, world: LinkSimulation, node: int) -> None:
        self._world = world
        self._node = node

    def send(self, node: int, kind: FrameKind, group: int, body: Sequence[bytes]) -> bool:
        way = self._world.ways.get((self._node, node))
        if way is None:
            return False
        way.append(PeerFrame(kind, group, b"".join(body)))
        return True

    def waiting_bytes(self, node: int) -> int:
        return 2**40 if self._world.crowded else 0


class Node:
    """A node: its links, its sessions, perhaps a member."""

    def __init__(self, world: LinkSimulation, number: int, incarnation: int) -> None:
        self.world = world
        self.number = number
        self.incarnation = incarnation
        self.sessions: dict[PeerId, Session] = {}
        ways = FakeNetwork(world, number)
        port = LinkPort(
            *(number, incarnation, ways.send, ways.waiting_bytes, self._tell), lambda: world.now_ms
        )
        self.links = QueueLinks(port)
        self.links.port.incarnations = dict.fromkeys(world.numbers, 0) | {number: incarnation}
        self.client = QueueLink("q", GROUP, self.links.port)
        self.links.add_client(self.client)
        self.member: Member | None = None

    def _tell(self, effects: Mapping[PeerId, Sequence[Effect]]) -> None:
        for peer, told in effects.items():
            session = self.sessions.get(peer)
            if session is not None:
                self.world.note(f"{peer} {[shown(each) for each in told]}")
                session.put(list(told))
                session.listen()

    def open(self, label: str, session: Session) -> ReplyTo:
        peer = PeerId(self.number, self.incarnation, len(self.sessions) + 1)
        self.sessions[peer] = session
        return ReplyTo(peer, label)

    def serve(self, member: Member) -> None:
        self.member = member
        self.links.servers[GROUP] = member.server


class LinkSimulation:
    """See the module.

    Attributes:
        trace: what sessions were told, in order.
        log: what is committed.
        queue: the queue, with what clients know of it.
        placed: name of a message -> index in the queue.
    """

    def __init__(
        self,
        seed: int,
        *,
        settings: QueueSettings,
        strict: bool = True,
        disks_fill: bool = False,
        selects: bool = False,
        browses: float = 0,
    ) -> None:
        """Make four connected nodes with two sessions each; three have a member of the queue."""
        self.selects = selects
        self.browses = browses
        self.strict = strict
        self.disks_fill = disks_fill
        self._purged = seed % 4 == 3
        self.random = random.Random(seed)
        self.settings = settings
        self.numbers = range(1, 5)
        self.now_ms = 0
        self.crowded = False
        self.ways: dict[tuple[int, int], deque[PeerFrame]] = {}
        self.log: list[Entry] = []
        self.term = 0
        self.leader: int | None = None
        self.trace: list[str] = []
        self.queue = UsedQueue("q", "quorum", {})
        self.placed: dict[str, int] = {}
        self.restarts = 0
        self.purges = 0
        self._states: dict[int, bytes] = {}
        self.nodes: dict[int, Node] = {}
        for number in self.numbers:
            self.nodes[number] = Node(self, number, 1)
        for number in self.numbers[:3]:
            node = self.nodes[number]
            node.serve(Member(node, settings))
        for at in self.numbers:
            for to in self.numbers:
                if at < to:
                    self.connect(at, to)
        for node in self.nodes.values():
            for _ in range(2):
                Session(node, len(node.sessions))
        self.elect(1)

    def note(self, what: str) -> None:
        self.trace.append(f"{self.now_ms} {what}")

    def check_equal(self, index: int, machine: QuorumQueue) -> None:
        if index % 7:
            return
        state = encode_snapshot(machine)
        assert self._states.setdefault(index, state) == state, f"members differ at entry {index}"

    # --- network ----------------------------------------------------------------------------------

    def connect(self, one: int, other: int) -> None:
        if (one, other) in self.ways:
            return
        self.ways[one, other], self.ways[other, one] = deque(), deque()
        self.nodes[one].links.heard(other, self.nodes[other].incarnation)
        self.nodes[other].links.heard(one, self.nodes[one].incarnation)
        self.nodes[one].links.connected(other)
        self.nodes[other].links.connected(one)

    def cut(self, one: int, other: int, *, suspect: bool) -> None:
        """Cut a connection; what is in flight is lost."""
        if (one, other) not in self.ways:
            return
        del self.ways[one, other], self.ways[other, one]
        for at, to in ((one, other), (other, one)):
            self.nodes[at].links.disconnected(to)
            if suspect:
                self.nodes[at].links.suspect(to)

    def deliver(self, way: tuple[int, int]) -> None:
        at, to = way
        frames = self.ways.get(way)
        if frames:
            self.nodes[to].links.received(at, frames.popleft())

    # --- the log ----------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit the leader's next entry on a majority."""
        if self.leader is None:
            return
        member = self._member(self.leader)
        if member.pending:
            self.log.append(member.pending.pop(0))

    def elect(self, number: int) -> None:
        """Elect another leader; some entries that the old one had not committed are lost."""
        old = None if self.leader is None else self._member(self.leader)
        if old is not None:
            kept = self.random.randrange(len(old.pending) + 1)
            self.log += old.pending[:kept]
            old.pending = old.pending[kept:]
        self.term += 1
        self.leader = number
        member = self._member(number)
        if old is not None and (old is member or self.random.random() < 0.7):
            self.step_down(old)
        self.step_down(member)
        while member.applied < len(self.log):
            member.apply()
        member.end = self.log[-1][2] if self.log else 0
        member.looked = 0
        member.believes = self.term
        member.queue.lead()
        self.note(f"{number} leads")
        member.server.lead(self.term)

    def step_down(self, member: Member) -> None:
        """Notify a member that leads, or believes so, that it does not."""
        if member.believes is not None:
            member.believes = None
            member.pending.clear()
            member.mailbox.clear()
            member.questions.clear()
            member.admission.follow()
            member.queue.follow()
            member.server.follow()

    def lose_leader(self) -> None:
        if self.leader is not None:
            member = self._member(self.leader)
            self.log += member.pending
            member.pending = []
            self.leader = None
            self.step_down(member)

    def _member(self, number: int) -> Member:
        member = self.nodes[number].member
        assert member is not None
        return member

    @property
    def members(self) -> list[Member]:
        return [node.member for node in self.nodes.values() if node.member is not None]

    # --- nodes ------------------------------------------------------------------------------------

    def restart(self, number: int) -> None:
        """Kill a node without a leading member and start it again without its sessions."""
        if number == self.leader:
            return
        old = self.nodes[number]
        if old.member is not None and old.member.believes is not None:
            return
        self.restarts += 1
        for other in self.numbers:
            if other != number:
                self.cut(*sorted((number, other)), suspect=True)
        node = self.nodes[number] = Node(self, number, old.incarnation + 1)
        if old.member is not None:
            node.serve(Member(node, self.settings))
        for _ in range(2):
            Session(node, len(node.sessions))

    # --- steps ------------------------------------------------------------------------------------

    def step(self) -> None:
        rng = self.random
        self.now_ms += rng.choice((0, 0, 1, 5, 40))
        if self.disks_fill and rng.random() < 0.03:
            disk = rng.choice(self.members).disk
            disk.free() if disk.full else disk.fill()
        what = rng.random()
        if what < 0.55:
            self._progress()
        elif what < 0.95:
            self._ask()
        elif what < 0.965:
            self._fault()
        else:
            for node in self.nodes.values():
                node.links.tick()

    def _progress(self) -> None:
        rng = self.random
        if self.disks_fill:
            for member in self.members:
                if rng.random() < 0.5:
                    member.work()
        if self.browses and rng.random() < 0.5:
            rng.choice(self.members).show_on()
        for _ in range(rng.randrange(1, 6)):
            busy = [way for way, frames in self.ways.items() if frames]
            choice = rng.random()
            if choice < 0.5 and busy:
                way = rng.choice(busy)
                for _ in range(rng.randrange(1, 4)):
                    self.deliver(way)
            elif choice < 0.7:
                self.commit()
            else:
                # One that was deposed and does not know has no entries but its own.
                able = [
                    each
                    for each in self.members
                    if each.applied < len(self.log) and (each.believes is None or each.believes == self.term)
                ]
                if able:
                    rng.choice(able).apply()

    def _ask(self) -> None:
        rng = self.random
        node = self.nodes[rng.choice(self.numbers)]
        session = rng.choice(list(node.sessions.values()))
        consumers = [each for each in session.consumers.values() if not each.over]
        what = rng.random()
        if what < 0.25:
            session.publish(rng.randrange(1, 5))
        elif what < 0.40 and len(consumers) < 2:
            if self.browses and rng.random() < self.browses:
                session.consume(Browser)
                return
            settled = rng.random() < 0.3
            filters = ALL if self.selects and rng.random() < 0.7 else None
            session.consume(settled=settled, filters=filters)
        elif what < 0.43:
            purges = self._purged and rng.random() < 0.05
            self.purges += purges
            session.ask(Purge if purges else Inspect)
        elif consumers:
            consumer = rng.choice(consumers)
            if what < 0.65:
                count = rng.randrange(1, 6)
                consumer.want(count, drain=bool(self.selects or self.browses) and rng.random() < 0.4)
            elif what < 0.75:
                consumer.send()
            elif what < 0.90:
                delivery_outcome = DeliveryOutcome.ACCEPT if rng.random() < 0.8 else DeliveryOutcome.REQUEUE
                keys = list(consumer.held)[: rng.randrange(1, 4)]
                if keys or isinstance(consumer, Browser):
                    consumer.settle(keys, delivery_outcome, answer=rng.random() < 0.5)
            elif what < 0.95:
                consumer.give_back()
            elif what < 0.97 and consumer.subscribed:
                consumer.leave()

    def _fault(self) -> None:
        rng = self.random
        one, other = sorted(rng.sample(self.numbers, 2))
        what = rng.random()
        if what < 0.35:
            self.cut(one, other, suspect=rng.random() < 0.5)
        elif what < 0.65:
            self.connect(one, other)
        elif what < 0.85:
            self.elect(rng.choice(self.members).node.number)
        elif what < 0.92:
            self.crowded = not self.crowded
        elif what < 0.94:
            self.lose_leader()
            self.now_ms += rng.choice((0, 1_000, 31_000))
        elif what < 0.97:
            for member in self.members:
                if member.believes is not None and member.believes != self.term:
                    self.step_down(member)
        elif what < 0.985 and self.leader is not None:
            leader = self._member(self.leader)
            behind = [
                each for each in self.members if each.believes is None and each.applied < leader.applied
            ]
            for member in behind:
                member.catch_up(leader.queue, leader.applied)
        else:
            self.restart(rng.choice(self.numbers))

    def published_in_log(self) -> int:
        inner = (each.commands for entry in self.log for each in entry[0] if isinstance(each, NodeBatch))
        return sum(isinstance(command, Publish) for commands in inner for command in commands)

    def heal(self, *, disks: bool = True) -> None:
        """End all faults, except on disks perhaps, and let all that is under way finish."""
        self.crowded = False
        for member in self.members:
            if disks:
                member.disk.free()
            if member.believes is not None and member.believes != self.term:
                self.step_down(member)
        for one in self.numbers:
            for other in self.numbers:
                if one < other:
                    self.connect(one, other)
        for node in self.nodes.values():
            for other in self.nodes.values():
                if other is not node:
                    node.links.heard(other.number, other.incarnation)
        if self.leader is None:
            self.elect(self.members[0].node.number)
        self.settle_down()

    def settle_down(self) -> None:
        for _ in range(200):
            self.now_ms += 100
            moved = False
            for way in list(self.ways):
                while self.ways[way]:
                    moved = True
                    self.deliver(way)
            for member in self.members:
                moved = moved or bool(member.mailbox)
                member.work()
            while self.leader is not None and self._member(self.leader).pending:
                moved = True
                self.commit()
            for member in self.members:
                while member.applied < len(self.log):
                    moved = True
                    member.apply()
            for member in self.members:
                moved = member.show_on() or moved
            for node in self.nodes.values():
                node.links.tick()
            if not moved and self.now_ms % 1500 == 0:
                return
