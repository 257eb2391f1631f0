"""All links of a node: their ends at replicated queues, and the dispatch of frames and connection events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from amqp10broker.cluster.remote_queue.home_link import HomeLink, HomeLinkServer
from amqp10broker.cluster.remote_queue.link import QueueLink
from amqp10broker.cluster.remote_queue.messages import (
    Browse,
    CommandBatch,
    LeaderIs,
    LinkMessage,
    LinkPort,
    RemoteEffects,
    RemoteResumed,
    ResumeRemote,
    decode,
    is_browsers,
)
from amqp10broker.cluster.wire import PeerFrame
from amqp10broker.dataclass import dataclass
from amqp10broker.queues.commands import Effect, PeerId
from amqp10broker.queues.quorum.commands import (
    BrowsersGone,
    Browsing,
    NodeBack,
    NodeBatch,
    NodeGone,
    NodeSuspect,
    QuorumCommand,
)
from amqp10broker.queues.quorum.durability import QuorumInLog
from amqp10broker.queues.quorum.node_links import is_of

Effects = Mapping[PeerId, list[Effect]]
PostAll = Callable[[list[QuorumCommand]], None]


@dataclass(slots=True, eq=False)
class _Link:
    """A link that has resumed. `done`: the last reported number of an executed command."""

    incarnation: int
    token: int
    done: int
    index: int


@dataclass(slots=True, eq=False)
class LinkServer:
    """The links of a member of a replicated queue: commands of nodes in, effects for their sessions out.

    A link gets effects only after it has resumed under this leader and on this connection: the queue's state
    has the effects that it missed. `term`: the term in which the member leads; None: it does not.
    """

    _group: int
    _backend: QuorumInLog
    _post_all: PostAll
    _port: LinkPort
    term: int | None = None
    _links: dict[int, _Link] = field(default_factory=dict, init=False)
    # (Node, incarnation) -> number of the last command that was put into the queue's mailbox.
    _posted: dict[tuple[int, int], int] = field(default_factory=dict, init=False)
    # (Node, incarnation) -> whether the last command in the mailbox about it was a suspicion.
    _said: dict[tuple[int, int], bool] = field(default_factory=dict, init=False)
    # Nodes that wait for their answer until such commands are executed.
    _asking: dict[int, ResumeRemote] = field(default_factory=dict, init=False)
    # Nodes that have had browsers since this member leads.
    _browsed: set[int] = field(default_factory=set, init=False)
    # The queue has refused publishes since it last had room.
    _full: bool = False

    # --- this member ------------------------------------------------------------------------------

    def lead(self, term: int) -> None:
        self.term = term
        self._full = False
        self._links.clear()
        self._posted.clear()
        self._said.clear()
        self._asking.clear()
        self._browsed.clear()
        for node in {peer[0] for peer in self._known()}:
            self._look_at(node)
        for node in self._port.peers:
            self._announce(node)

    def follow(self) -> None:
        term, self.term = self.term, None
        links, self._links = self._links, {}
        self._posted.clear()
        self._asking.clear()
        if term is not None:
            for node in links:
                self._port.send(node, self._group, LeaderIs(term, no_more=True))

    def _announce(self, node: int, *, again: bool = False) -> None:
        if self.term is not None:
            self._port.send(node, self._group, LeaderIs(self.term, again, full=self._full))

    # --- nodes --------------------------------------------------------------------------------------

    def node_up(self, node: int) -> None:
        self._links.pop(node, None)
        self._announce(node)

    def node_down(self, node: int) -> None:
        """Note the loss of the connection to a node, which may be alive."""
        self._links.pop(node, None)
        self._asking.pop(node, None)

    def node_changed(self, node: int) -> None:
        """Note that a node is suspected, reachable again, restarted, or removed from the cluster."""
        if self.term is None:
            return
        self._look_at(node)
        if node not in self._port.suspected and node not in self._links:
            self._announce(node)

    def _known(self) -> set[tuple[int, int]]:
        machine = self._backend.queue
        return {
            *machine.node_links.by_node,
            *machine.suspects,
            *(ref.reply_to[:2] for ref in machine.queue_status().parts),
        }

    def _look_at(self, node: int) -> None:
        machine, port = self._backend.queue, self._port
        present = port.incarnations.get(node)
        commands: list[QuorumCommand] = []
        gone = -1
        for peer, incarnation in sorted(self._known()):
            if peer != node:
                continue
            if present is None or incarnation < present:
                gone = max(gone, incarnation)
                continue
            key, suspected = (node, incarnation), node in port.suspected
            if suspected != self._said.get(key, key in machine.suspects):
                self._said[key] = suspected
                commands.append((NodeSuspect if suspected else NodeBack)(node, incarnation))
        if gone >= 0:
            commands.insert(0, NodeGone(node, gone))
            for key in [each for each in self._said if each[0] == node and each[1] <= gone]:
                del self._said[key]
        if commands:
            self._post_all(commands)

    # --- from links ---------------------------------------------------------------------------------

    def resume(self, node: int, resume: ResumeRemote) -> None:
        """Answer a node when the state is committed, the earlier commands of its link are executed
        (`ConsumerFacts.missed`), and its suspicion has ended, because the queue delivers nothing to a
        suspected node.
        """
        if self.term is None:
            return
        machine, port = self._backend.queue, self._port
        if resume.incarnation < port.incarnations.get(node, 0):
            return
        key = node, resume.incarnation
        asked = self._asking.pop(node, None)
        if node not in port.suspected:
            self._look_at(node)
        again = asked is not None and asked.token == resume.token
        if node in port.suspected or self._backend.ahead or not (again or self._has_carried_out(key)):
            self._asking[node] = resume
            self._links.pop(node, None)
            return
        found = machine.resume(*key, resume.heard, resume.seen)
        index = machine.node_links.entry
        self._links[node] = _Link(resume.incarnation, resume.token, found.last, index)
        self._posted[key] = max(found.last, self._posted.get(key, 0))
        if node in self._browsed:
            self._post_all([BrowsersGone(*key)])
        kept = [effect for _, _, effect in found.kept]
        answer = RemoteResumed(
            resume.token, index, found.last, found.deleted, kept, found.deliveries, found.consumers
        )
        port.send(node, self._group, answer)

    def received(self, node: int, batch: CommandBatch) -> None:
        if self.term is None:
            return
        link = self._links.get(node)
        if link is None or link.token != batch.token:
            self._announce(node, again=True)
            return
        key = node, link.incarnation
        posted, first, last, commands = self._posted[key], batch.first, batch.last, batch.commands
        if first > posted + 1:
            self._links.pop(node)
            self._announce(node, again=True)
            return
        if last <= posted:
            return  # they came before the link was lost, and are being handled
        if first <= posted:
            commands = commands[posted + 1 - first :]
            first = posted + 1
        self._posted[key] = last
        self._post_all([NodeBatch(*key, first, last, batch.heard, commands)])

    def browse(self, node: int, browse: Browse) -> None:
        if self.term is None:
            return
        link = self._links.get(node)
        if link is None or link.token != browse.token:
            self._announce(node, again=True)
            return
        self._browsed.add(node)
        self._post_all(
            [
                Browsing(each)  # type: ignore[arg-type]
                for each in browse.commands
                if is_browsers(each) and is_of(each, node, link.incarnation)
            ]
        )

    # --- room -----------------------------------------------------------------------------------------

    def refused(self, node: int, incarnation: int, first: int) -> None:
        """Drop the commands of a link from one on, because there is no room for its publishes. The node sends
        them again without the publishes: its settlements make room, and must not wait behind them.
        """
        self._full = True
        self._posted[node, incarnation] = first - 1
        self._announce(node, again=self._links.pop(node, None) is not None)
        self._answer_those_who_ask()

    def room(self) -> None:
        if self._full:
            self._full = False
            for node in self._port.peers:
                self._announce(node)

    # --- to links -----------------------------------------------------------------------------------

    def _has_carried_out(self, key: tuple[int, int]) -> bool:
        machine = self._backend.queue
        return machine.link_last(*key) >= self._posted.get(key, 0) and key not in machine.suspects

    def _answer_those_who_ask(self) -> None:
        if self._backend.ahead:
            return
        for node, resume in list(self._asking.items()):
            if node not in self._port.suspected and self._has_carried_out((node, resume.incarnation)):
                self.resume(node, resume)

    def tell(self, effects: Effects, index: int) -> None:
        """Send the effects of entries up to this one; 0: effects of a deleted queue, which are in no log."""
        links = self._links
        machine = self._backend.queue
        self._answer_those_who_ask()
        if not links:
            return
        by_node: dict[int, dict[PeerId, list[Effect]]] = {}
        for peer, told in effects.items():
            link = links.get(peer.node)
            # The link has the state of these entries already.
            if link is None or link.incarnation != peer.incarnation:
                continue
            if index and index <= link.index:
                # Browsers are in no state. Effects for those from before the link have an older epoch.
                told = [each for each in told if getattr(each, "consumer", None) in machine.browsers.by_ref]
            if told:
                by_node.setdefault(peer.node, {})[peer] = told
        for node, link in list(links.items()):
            done = self._backend.done(node, link.incarnation)
            for_node = by_node.get(node)
            if for_node or done != link.done:
                link.done = done
                told_now = RemoteEffects(link.token, index, done, for_node or {})
                self._port.send(node, self._group, told_now)


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
            case CommandBatch() | Browse() | ResumeRemote():
                server = self.servers.get(group)
                if server is None:
                    return
                if isinstance(message, CommandBatch):
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
        """Handle what is due. Call it a few times a second while links are stirred."""
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
