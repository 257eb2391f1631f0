"""All links of a node, and the dispatch of frames and connection events to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from amqp10broker.cluster.remote_queue.home_link import HomeLink, HomeLinkServer
from amqp10broker.cluster.remote_queue.link import QueueLink
from amqp10broker.cluster.remote_queue.link_server import LinkServer
from amqp10broker.cluster.remote_queue.messages import (
    Browse,
    LeaderIs,
    LetterBatch,
    LinkMessage,
    LinkPort,
    RemoteEffects,
    RemoteResumed,
    ResumeRemote,
    decode,
)
from amqp10broker.cluster.wire import PeerFrame

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
