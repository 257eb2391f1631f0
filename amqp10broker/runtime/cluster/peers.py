"""The other nodes of the cluster: connections to each, and their liveness.

Of two nodes the one with the lower number dials: a connection for each of `LINKS`. The handshake
(`cluster.hello`) comes before any other read; a second connection for a purpose then replaces the first.
Nothing here waits for a node but `call` and `ask_address`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from socket import socket
from typing import Final

import trio

from amqp10broker.cluster.hello import Acquaintances, Identity, PeerGreeting
from amqp10broker.cluster.liveness import Liveness
from amqp10broker.cluster.wire import BadFrame, ConnectionPurpose, Document, FrameKind, PeerFrame, encode
from amqp10broker.errors import PeerUnreachable
from amqp10broker.runtime.cluster.peer_calls import Calls
from amqp10broker.runtime.cluster.peer_greeting import PeerGreeter
from amqp10broker.runtime.cluster.peer_heartbeats import Heart
from amqp10broker.runtime.cluster.peer_link import PeerEvents, PeerLink
from amqp10broker.runtime.cluster.peer_streams import (
    ClusterListener,
    Complaints,
    Dial,
    Transport,
    Wires,
    close,
)
from amqp10broker.runtime.cluster.raft_node import now_ms
from amqp10broker.runtime.connections.sockets import Address

LINKS: Final = (ConnectionPurpose.RAFT, ConnectionPurpose.LETTERS, ConnectionPurpose.BULK)
RAFT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of messages of groups that may wait for a node: what is beyond is dropped, `raft` sends it again."""
BACK_OFF_S: Final = (0.05, 1.0)
"""The first wait before another attempt to connect, and the longest; it doubles."""


class _Peer:
    def __init__(self, name: str, address: Address) -> None:
        self.name = name
        self.address = address
        self.links: dict[ConnectionPurpose, PeerLink] = {}
        self.dialing = trio.CancelScope()


class Peers:
    """All connections to other nodes.

    Attributes:
        identity: of this node; another one by `become`, when the node is a member, before others are added.
    """

    def __init__(
        self,
        identity: Identity,
        secret: bytes,
        events: PeerEvents,
        *,
        sockets: Sequence[socket] = (),
        wires: Wires | None = None,
        dial: Dial | None = None,
        suspect_ms: int = 1_000,
        random_source: Callable[[], float] = random.random,
    ) -> None:
        """Start without connections.

        Args:
            wires: with which TLS; None: plain, on this machine only.
            dial: connects to an address; None: as `wires` does.
            random_source: gives numbers from 0 to below 1.
        """
        self.identity = identity
        self._events = events
        self._random_source = random_source
        self._peers: dict[int, _Peer] = {}
        self._acquaintances = Acquaintances()
        self._calls = Calls(events)
        complaints, own = Complaints(), lambda: self.identity
        wires = wires or Wires()
        self._broker_listeners = PeerGreeter(
            own, secret, self._acquaintances, events, self._calls, complaints, dial or wires.dial
        )
        self._listener = ClusterListener(sockets, wires, complaints, self.serve)
        self._nursery: trio.Nursery | None = None
        self.liveness = Liveness(identity.node, suspect_ms)
        self._heart = Heart(
            self.liveness, events, own, self._raft_links, self._silent, lambda node: self._peers[node].name
        )
        self.dropped = 0

    def become(self, identity: Identity) -> None:
        self.identity = identity
        self.liveness.node = identity.node

    # -- whom it knows

    def know(self, node: int, name: str, address: Address, incarnation: int = 0) -> None:
        """Add a member, or change its address. It is suspected until its first heartbeat."""
        if node == self.identity.node:
            return
        self._acquaintances.know(node, name, incarnation)
        peer = self._peers.get(node)
        if peer is not None:
            peer.name, peer.address = name, address
            return
        self._peers[node] = _Peer(name, address)
        for notifications in self.liveness.know(node):
            self._events.suspected(notifications.node)
        self._begin_dialing(node)

    def forget(self, node: int) -> None:
        """A node is a member no more: its connections end, and it is not let in again."""
        peer = self._peers.get(node)
        if peer is None:
            return
        for link in list(peer.links.values()):
            self._drop(link, "the node was forgotten")
        del self._peers[node]
        peer.dialing.cancel()
        self._acquaintances.forget(node)
        self.liveness.forget(node)

    def connected(self, node: int, purpose: ConnectionPurpose) -> bool:
        return self._link(node, purpose) is not None

    def backlog_bytes(self, node: int, purpose: ConnectionPurpose = ConnectionPurpose.LETTERS) -> int:
        """Bytes that wait to be sent; 0 without a connection."""
        link = self._link(node, purpose)
        return 0 if link is None else link.backlog_bytes

    # -- sending

    def send(
        self, node: int, purpose: ConnectionPurpose, kind: FrameKind, group: int, body: Sequence[bytes]
    ) -> bool:
        """Send a frame without waiting. All frames of one step are sent together. Returns false if there is
        no connection, or too much waits on it for groups: the frame was dropped. True: it is sent unless the
        connection is lost, which is reported then. Raises `ValueError` if the body is above
        `wire.BODY_BYTES_MAX`.
        """
        link = self._link(node, purpose)
        if link is None:
            return False
        waits = link.backlog_bytes if purpose is ConnectionPurpose.RAFT else 0
        # One that is larger by itself goes when nothing waits: it could never be sent otherwise.
        if waits and waits + sum(map(len, body)) > RAFT_BYTES_MAX:
            self.dropped += 1
            return False
        if kind is FrameKind.RAFT:
            link.put_message(group, b"".join(body))
        else:
            link.put(encode(kind, group, body))
        return True

    async def call(self, node: int, question: Document, timeout_s: float) -> Document:
        """Ask a member. Raises as `Calls.call`, also if it is not connected."""
        link = self._link(node, ConnectionPurpose.LETTERS)
        if link is None:
            peer = self._peers.get(node)
            name = f"node '{peer.name}'" if peer is not None else f"node number {node}"
            raise PeerUnreachable(f"{name} is not connected")
        return await self._calls.call(link, question, timeout_s)

    async def ask_address(
        self, address: Address, question: Document, timeout_s: float, identity: Identity | None = None
    ) -> Document:
        """Ask a node that is not known, or before this one is in a cluster, on a connection of its own.
        `identity`: of the sender; None: this node's. Raises as `call`, and `HelloRefused` if one of the two
        does not talk to the other.
        """
        return await self._broker_listeners.ask(address, question, timeout_s, identity or self.identity)

    # -- running

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, dial, and send heartbeats, until cancelled. Started when it listens."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                self._listener.start(nursery)
                nursery.start_soon(self._heart.run)
                for node in self._peers:
                    self._begin_dialing(node)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def serve(self, transport: Transport, proved: Callable[[], None]) -> None:
        """Serve one connection that has come, from its greeting to its end."""
        greeting = await self._broker_listeners.meet(transport, proved)
        if greeting is None or greeting.peer is None:
            return
        if greeting.peer.purpose is ConnectionPurpose.QUESTION:
            await self._broker_listeners.answer(transport, greeting)
        else:
            await self._run_link(transport, greeting)

    def _begin_dialing(self, node: int) -> None:
        if self._nursery is not None and self.identity.node < node:
            self._nursery.start_soon(self._dial, node, self._peers[node])

    async def _dial(self, node: int, peer: _Peer) -> None:
        with peer.dialing:
            async with trio.open_nursery() as nursery:
                for purpose in LINKS:
                    nursery.start_soon(self._dial_forever, node, peer, purpose)

    async def _dial_forever(self, node: int, peer: _Peer, purpose: ConnectionPurpose) -> None:
        first, longest = BACK_OFF_S
        pause = first
        while True:
            met = await self._broker_listeners.visit(node, peer.name, peer.address, purpose)
            if met is not None:
                began = trio.current_time()
                await self._run_link(*met)
                if trio.current_time() - began >= longest:
                    pause = first
            await trio.sleep(pause * (0.5 + self._random_source() / 2))
            pause = min(2 * pause, longest)

    async def _run_link(self, transport: Transport, greeting: PeerGreeting) -> None:
        hello = greeting.peer
        assert hello is not None
        peer = self._peers.get(hello.node)
        # It may have been forgotten, or have started anew, since it was judged.
        if peer is None or self._broker_listeners.judge(hello) is not None:
            await close(transport.stream)
            return
        if self._acquaintances.proved(hello):
            for old in list(peer.links.values()):
                self._drop(old, "the node has started anew")
        if hello.purpose in peer.links:
            self._drop(peer.links[hello.purpose], "another connection took its place")
        link = PeerLink(transport.stream, hello, greeting.rest, self._frames)
        peer.links[hello.purpose] = link
        self._events.connected(hello.node, hello.purpose)
        if hello.purpose is ConnectionPurpose.RAFT:
            self._heart.beat(link)
        try:
            await link.run()
        finally:
            self._drop(link, link.end)

    def _frames(self, link: PeerLink, frames: Sequence[PeerFrame]) -> None:
        node, purpose = link.peer.node, link.peer.purpose
        others: list[PeerFrame] = []
        for frame in frames:
            kind = frame.kind
            if kind is FrameKind.HEARTBEAT:
                if purpose is not ConnectionPurpose.RAFT:
                    raise BadFrame("a heartbeat on a connection that is not for groups")
                self._heart.received(link, frame.body)
            elif kind is FrameKind.REQUEST or kind is FrameKind.RESPONSE:
                if purpose is not ConnectionPurpose.LETTERS or self._nursery is None:
                    raise BadFrame("a question on a connection that is not for letters")
                if kind is FrameKind.REQUEST:
                    self._calls.asked(link, frame, self._nursery)
                else:
                    self._calls.answered(link, frame)
            else:
                others.append(frame)
        if others:
            if purpose is ConnectionPurpose.RAFT:
                self.liveness.seen(node, now_ms())
            self._events.frames(node, purpose, others)

    # -- the table

    def _link(self, node: int, purpose: ConnectionPurpose) -> PeerLink | None:
        peer = self._peers.get(node)
        return None if peer is None else peer.links.get(purpose)

    def _raft_links(self) -> list[PeerLink]:
        links = (peer.links.get(ConnectionPurpose.RAFT) for peer in self._peers.values())
        return [link for link in links if link is not None]

    def _silent(self, node: int) -> None:
        for link in list(self._peers[node].links.values()):
            self._drop(link, "nothing has come for long")

    def _drop(self, link: PeerLink, reason: str) -> None:
        node, purpose = link.peer.node, link.peer.purpose
        link.close(reason)
        if self._link(node, purpose) is not link:
            return
        del self._peers[node].links[purpose]
        self._calls.lost(link)
        self._events.disconnected(node, purpose)
        if purpose is ConnectionPurpose.RAFT:
            self._heart.tell(self.liveness.lost(node))
