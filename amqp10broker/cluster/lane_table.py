"""All lanes of a node, and the dispatch of frames and connection events to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from amqp10broker.cluster.home_lane import HomeClient
from amqp10broker.cluster.lane_codec import decode, encode
from amqp10broker.cluster.lane_messages import (
    Browse,
    LaneMessage,
    LeaderIs,
    LetterBatch,
    RemoteEffects,
    RemoteResumed,
    ResumeRemote,
)
from amqp10broker.cluster.lane_server import HomeServer, LaneServer
from amqp10broker.cluster.lanes import LaneClient
from amqp10broker.cluster.wire import FrameKind, PeerFrame
from amqp10broker.queues.commands import PeerId
from amqp10broker.queues.effects import Effect

WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that may wait for the way to one peer before letters stay in their lanes."""

Client = LaneClient | HomeClient
Server = LaneServer | HomeServer


class Ways(Protocol):
    """The connections to other nodes, as lanes use them."""

    def send(self, node: int, kind: FrameKind, group: int, body: Sequence[bytes]) -> bool:
        """Send a frame; False: there is no way to the node."""

    def waiting_bytes(self, node: int) -> int: ...

    @property
    def connected(self) -> Collection[int]:
        """Other nodes to which there is a way."""


class Lanes:
    """All lanes of the node, and their port.

    Attributes:
        incarnations: the last known start of each node of the cluster, 0: none; updated by the owner.
        on_leader: called with the number of a queue when a leader of it is known.
        on_stirred: called when lanes begin to wait for something: `tick` is to be called until none does.
    """

    def __init__(
        self,
        node: int,
        incarnation: int,
        ways: Ways,
        tell: Callable[[Mapping[PeerId, list[Effect]]], None],
        is_open: Callable[[PeerId], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self.incarnations: dict[int, int] = {node: incarnation}
        self.suspected: frozenset[int] = frozenset()
        self.clients: dict[int, Client] = {}
        self.servers: dict[int, Server] = {}
        self.on_leader: Callable[[int], None] = lambda group: None
        self.on_stirred: Callable[[], None] = lambda: None
        self.tell = tell
        self.is_open = is_open
        self.now_ms = now_ms
        self._ways = ways
        # Who said that it leads, also of queues that this node does not know yet.
        self._leaders: dict[int, tuple[int, LeaderIs]] = {}
        # Queues whose lanes have deadlines, or had.
        self._stirred: dict[int, None] = {}

    @property
    def peers(self) -> Sequence[int]:
        return [self.node, *self._ways.connected]

    def crowded(self, node: int) -> bool:
        return node != self.node and self._ways.waiting_bytes(node) > WAITING_BYTES_MAX

    def stir(self, group: int) -> None:
        if not self._stirred:
            self.on_stirred()
        self._stirred[group] = None

    @property
    def stirred(self) -> bool:
        """Whether a lane waits for something, or has since `tick` was called last."""
        return bool(self._stirred)

    # --- queues -------------------------------------------------------------------------------------

    def add_client(self, client: Client) -> None:
        """Sessions of this node may ask a queue from now on."""
        self.clients[client.group] = client
        leader = self._leaders.get(client.group)
        if leader is not None:
            client.leader_is(*leader)

    def remove_client(self, group: int) -> None:
        self.clients.pop(group, None)
        self._leaders.pop(group, None)

    def leader_of(self, group: int) -> int | None:
        """Return the last known leader node of a queue; None if there is none."""
        known = self._leaders.get(group)
        return None if known is None else known[0]

    def reachable(self, node: int) -> bool:
        """Whether a node is connected and not suspected."""
        return node == self.node or (node in self._ways.connected and node not in self.suspected)

    # --- sending ------------------------------------------------------------------------------------

    def send(self, node: int, group: int, message: LaneMessage) -> bool:
        """See `LanePort`. Within the node records go as they are."""
        if node == self.node:
            self._take(node, group, message)
            return True
        kind, body = encode(message)
        return self._ways.send(node, kind, group, body)

    # --- from other nodes ---------------------------------------------------------------------------

    def received(self, node: int, frame: PeerFrame) -> None:
        """Handle a frame of a kind in `lane_codec.BODIES`. Raises `BadBytes` if it is malformed; its
        connection must end.
        """
        self._take(node, frame.group, decode(frame))

    def _take(self, node: int, group: int, message: LaneMessage) -> None:
        match message:
            case LetterBatch():
                server = self.servers.get(group)
                if server is not None:
                    server.received(node, message)
            case Browse():
                server = self.servers.get(group)
                if isinstance(server, LaneServer):
                    server.browse(node, message)
            case RemoteEffects():
                client = self.clients.get(group)
                if client is not None:
                    client.told(node, message)
            case ResumeRemote():
                server = self.servers.get(group)
                if server is not None:
                    server.resume(node, message)
            case RemoteResumed():
                client = self.clients.get(group)
                if client is not None:
                    client.resumed(node, message)
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
        """There is a way to a node."""
        for server in list(self.servers.values()):
            server.node_up(node)

    def disconnected(self, node: int) -> None:
        """The way to a node is lost."""
        self._leaders = {group: leader for group, leader in self._leaders.items() if leader[0] != node}
        for server in list(self.servers.values()):
            server.node_down(node)
        for client in list(self.clients.values()):
            client.node_down(node)

    def suspect(self, node: int) -> None:
        """Suspect a node, whatever the state of its connections."""
        self.suspected |= {node}
        for client in list(self.clients.values()):
            client.node_down(node)
        for server in list(self.servers.values()):
            server.node_changed(node)

    def heard(self, node: int, incarnation: int) -> None:
        """End the suspicion of a node, which may have restarted."""
        self.suspected -= {node}
        self.incarnations[node] = max(incarnation, self.incarnations.get(node, 0))
        for server in list(self.servers.values()):
            server.node_changed(node)
        for group, (leader, said) in list(self._leaders.items()):
            client = self.clients.get(group)
            if leader == node and client is not None and not client.open:
                client.leader_is(node, said)

    def know(self, nodes: Mapping[int, int]) -> None:
        """Which nodes are of the cluster. `nodes`: all of them, with the last start that is known of each; 0:
        none.
        """
        before = self.incarnations
        self.incarnations = {
            node: max(incarnation, before.get(node, 0)) for node, incarnation in nodes.items()
        } | {self.node: self.incarnation}
        self.suspected = frozenset(node for node in self.suspected if node in self.incarnations)
        for node in before:
            if before[node] != self.incarnations.get(node):
                for server in list(self.servers.values()):
                    server.node_changed(node)

    # --- time ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Time has passed: a few times a second while lanes are stirred. Those at rest cost nothing."""
        now_ms = self.now_ms()
        stirred, self._stirred = self._stirred, {}
        for group in stirred:
            client = self.clients.get(group)
            deadline_ms = None if client is None else client.deadline_ms
            if client is not None and deadline_ms is not None:
                self._stirred[group] = None
                if deadline_ms <= now_ms:
                    client.tick()
