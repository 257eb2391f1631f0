"""The other nodes of the cluster: connections to each, requests to them, and their liveness.

Of two nodes the one with the lower number dials: a connection for each of `LINKS`. The handshake
(`cluster.hello`) comes before any other read. A second connection for a purpose then replaces the first.
Requests and answers use connections for commands, or a separate one for a single request. Only `call` and
`ask_address` wait for a node.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from socket import socket
from typing import Final

import trio

from amqp10broker.cluster.hello import (
    HAND_OVER_MS,
    HEARTBEAT,
    NONCE_BYTES,
    START_BYTES,
    Acquaintances,
    Hello,
    HelloRefused,
    Identity,
    Judge,
    Liveness,
    News,
    NodeHeartbeat,
    PeerGreeting,
    Suspected,
)
from amqp10broker.cluster.wire import (
    BadFrame,
    ConnectionPurpose,
    Document,
    FrameKind,
    PeerFrame,
    encode,
    encode_answer,
    encode_document,
    encode_refusal,
    read_answer,
    read_document,
)
from amqp10broker.errors import BrokerError, LimitExceeded, PeerUnreachable, RefusedError
from amqp10broker.runtime.cluster.peer_link import (
    ClusterListener,
    Complaints,
    Dial,
    PeerEvents,
    PeerLink,
    Transport,
    Wires,
    close,
    greet,
    why,
)
from amqp10broker.runtime.cluster.system_node import now_ms
from amqp10broker.runtime.connections.sockets import Address, peer_text
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.peers")

QUESTIONS_MAX: Final = 1_024
"""The unanswered requests of one connection; further ones are refused."""
UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""If so much waits to be sent when a further request comes, the connection ends: it is not read."""
_NUMBERS: Final = 2**32
QUESTION_BYTES_MAX: Final = 1024 * 1024
"""The largest request of a node that is not a member yet, and the largest answer."""
QUESTION_S: Final = 300.0
"""How long a connection for requests may last."""
LOST: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
SILENT_TIMES: Final = 2
"""After so many suspicion times without a frame, the connections to a node are made again: on a cut
connection the kernel waits longer and longer.
"""
CLOCK: Final = "clock_ms"
"""A field with the facts of a heartbeat: the sender's time in ms since 1970."""
ECHO: Final = "clock_echo"
"""Likewise: the last time that the receiver has sent, and the sender's at its arrival: a round trip."""
CLOCK_TOLD_S: Final = 60
"""The interval of these fields, because clocks drift."""
BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024
LINKS: Final = (ConnectionPurpose.RAFT, ConnectionPurpose.COMMANDS, ConnectionPurpose.BULK)
RAFT_BYTES_MAX: Final = 8 * 1024 * 1024
"""The bytes of groups' messages that may wait for a node. More are dropped, and `raft` sends them again."""
BACK_OFF_S: Final = (0.05, 1.0)
"""The first wait before another attempt to connect, and the longest."""


class _Waiting:
    def __init__(self, link: PeerLink) -> None:
        self.link = link
        self.over = trio.Event()
        self.answer: Document | None = None
        self.refused: RefusedError | None = None


class _Peer:
    def __init__(self, name: str, address: Address) -> None:
        self.name = name
        self.address = address
        self.links: dict[ConnectionPurpose, PeerLink] = {}
        self.dialing = trio.CancelScope()


class Peers:
    """All connections to other nodes. `identity`: this node's; `become` changes it to that of a member."""

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
        """Create the table. `wires`: None: plain, on this machine only. `dial`: connects to an address; None:
        as `wires` does.
        """
        self.identity = identity
        self._events = events
        self._random_source = random_source
        self._peers: dict[int, _Peer] = {}
        self._acquaintances = Acquaintances()
        self._secret = secret
        self._start = secrets.token_bytes(START_BYTES)
        self._complaints = Complaints()
        wires = wires or Wires()
        self._connect = dial or wires.dial
        self._listener = ClusterListener(sockets, wires, self._complaints, self.serve)
        self._nursery: trio.Nursery | None = None
        # Requests: the last number, those of this node, and the number of others' that are being answered.
        self._last = 0
        self._waiting: dict[int, _Waiting] = {}
        self._answering: Counter[PeerLink] = Counter()
        # Heartbeats: the facts in them, which are sent when their version has grown.
        self.liveness = Liveness(identity.node, suspect_ms)
        self._facts: Document = {}
        self._version = 0
        self._handed_over = False
        self._looked_at = 0.0
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
        """End the connections to a node that is not a member any more."""
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

    def backlog_bytes(self, node: int, purpose: ConnectionPurpose = ConnectionPurpose.COMMANDS) -> int:
        """Return the bytes that wait to be sent; 0 without a connection."""
        link = self._link(node, purpose)
        return 0 if link is None else link.backlog_bytes

    # -- sending

    def send(
        self, node: int, purpose: ConnectionPurpose, kind: FrameKind, group: int, body: Sequence[bytes]
    ) -> bool:
        """Send a frame without waiting; return whether it was accepted.

        The result is false without a connection, or if too much of groups waits on it: the frame was dropped.
        If it is true, the frame is sent unless the connection is lost, which is reported then. Raises
        `ValueError` if the body is above `wire.BODY_BYTES_MAX`.
        """
        link = self._link(node, purpose)
        if link is None:
            return False
        waits = link.backlog_bytes if purpose is ConnectionPurpose.RAFT else 0
        # A frame that is larger by itself is sent when nothing waits: it could never be sent otherwise.
        if waits and waits + sum(map(len, body)) > RAFT_BYTES_MAX:
            self.dropped += 1
            return False
        if kind is FrameKind.RAFT:
            link.put_message(group, b"".join(body))
        else:
            link.put(encode(kind, group, body))
        return True

    async def call(self, node: int, question: Document, timeout_s: float) -> Document:
        """Send a request to a member. Raises `PeerUnreachable` if it is not connected, its connection is
        lost, or it takes too long, and `RefusedError` as the other node raised it.
        """
        link = self._link(node, ConnectionPurpose.COMMANDS)
        if link is None:
            peer = self._peers.get(node)
            name = f"node '{peer.name}'" if peer is not None else f"node number {node}"
            raise PeerUnreachable(f"{name} is not connected")
        return await self._call(link, question, timeout_s)

    async def ask_address(
        self, address: Address, question: Document, timeout_s: float, identity: Identity | None = None
    ) -> Document:
        """Send a request to a node that is not known, or before this one is in a cluster, on a separate
        connection. `identity`: that of the sender; None: this node's. Raises as `call`, and `HelloRefused`.
        """
        own = identity or self.identity
        place = peer_text(address)
        try:
            with trio.move_on_after(timeout_s):
                transport = await self._connect(address)
                greeting = self._greeting(
                    ConnectionPurpose.QUESTION,
                    lambda hello: self._acquaintances.judge(own, hello),
                    transport,
                    dials=True,
                    identity=own,
                )
                await greet(transport, greeting)
                return await self._ask(transport, greeting, question, timeout_s)
            raise PeerUnreachable(f"{place} has not answered within {timeout_s:g} s")
        except LOST as error:
            raise PeerUnreachable(f"{place} cannot be reached: {why(error)}") from error

    # -- running

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, dial, and send heartbeats, until cancelled. Started when it listens."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                self._listener.start(nursery)
                nursery.start_soon(self._beat_forever)
                for node in self._peers:
                    self._begin_dialing(node)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def serve(self, transport: Transport, proved: Callable[[], None]) -> None:
        greeting = await self._meet(transport, proved)
        if greeting is None or greeting.peer is None:
            return
        if greeting.peer.purpose is ConnectionPurpose.QUESTION:
            await self._serve_questions(transport, greeting)
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
            met = await self._visit(node, peer.name, peer.address, purpose)
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
        # Since it was checked, the node may have been removed, or have started again.
        if peer is None or self._judge(hello) is not None:
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
            self._beat(link)
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
                self._heartbeat(link, frame.body)
            elif kind is FrameKind.REQUEST or kind is FrameKind.RESPONSE:
                if purpose is not ConnectionPurpose.COMMANDS or self._nursery is None:
                    raise BadFrame("a question on a connection that is not for commands")
                if kind is FrameKind.REQUEST:
                    self._asked(link, frame, self._nursery)
                else:
                    self._answered(link, frame)
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

    def _drop(self, link: PeerLink, reason: str) -> None:
        node, purpose = link.peer.node, link.peer.purpose
        link.close(reason)
        if self._link(node, purpose) is not link:
            return
        del self._peers[node].links[purpose]
        self._unanswered(link)
        self._events.disconnected(node, purpose)
        if purpose is ConnectionPurpose.RAFT:
            self._tell(self.liveness.lost(node))

    # -- greetings

    async def _meet(self, transport: Transport, proved: Callable[[], None]) -> PeerGreeting | None:
        """Greet a node that has connected; None: it was refused, or lost."""
        greeting = self._greeting(ConnectionPurpose.QUESTION, self._judge, transport, dials=False)
        try:
            await greet(transport, greeting)
        except (HelloRefused, *LOST) as error:
            name = greeting.peer.name if greeting.peer is not None else None
            self._complaints.warn("connection of a node refused", transport.host, why(error), says_it_is=name)
            return None
        proved()
        return greeting

    async def _visit(
        self, node: int, name: str, address: Address, purpose: ConnectionPurpose
    ) -> tuple[Transport, PeerGreeting] | None:
        """Dial a known node, and greet it; None: it was refused, or cannot be reached."""

        def judge(hello: Hello) -> str | None:
            if not hello.node and hello.name == name:
                return f"node '{name}' is not ready to be a member yet"
            if hello.node != node:
                return (
                    f"node '{hello.name}' answers at {peer_text(address)}, which should be the address of "
                    f"node '{name}': correct the addresses of the nodes"
                )
            return self._judge(hello)

        peer_name = f"{peer_text(address)} ('{name}')"
        try:
            transport = await self._connect(address)
            greeting = self._greeting(purpose, judge, transport, dials=True)
            await greet(transport, greeting)
        except (HelloRefused, *LOST) as error:
            self._complaints.warn("cannot connect to a node", peer_name, why(error))
            return None
        self._complaints.forget(peer_name)
        return transport, greeting

    async def _serve_questions(self, transport: Transport, greeting: PeerGreeting) -> None:
        assert greeting.peer is not None
        async with trio.open_nursery() as nursery:

            def frames(link: PeerLink, frames: Sequence[PeerFrame]) -> None:
                for frame in frames:
                    if frame.kind is not FrameKind.REQUEST:
                        raise BadFrame(f"a frame of kind {frame.kind} on a connection for questions")
                    self._asked(link, frame, nursery)

            link = self._question_link(transport, greeting, frames)
            with trio.move_on_after(QUESTION_S):
                await link.run()
            nursery.cancel_scope.cancel()

    def _judge(self, hello: Hello) -> str | None:
        return self._acquaintances.judge(self.identity, hello)

    async def _ask(
        self, transport: Transport, greeting: PeerGreeting, question: Document, timeout_s: float
    ) -> Document:
        def frames(link: PeerLink, frames: Sequence[PeerFrame]) -> None:
            for frame in frames:
                if frame.kind is not FrameKind.RESPONSE:
                    raise BadFrame(f"a frame of kind {frame.kind} where an answer is awaited")
                self._answered(link, frame)

        link = self._question_link(transport, greeting, frames)

        async def run() -> None:
            await link.run()
            self._unanswered(link)

        answer: Document = {}
        failed: BrokerError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            try:
                answer = await self._call(link, question, timeout_s)
            except BrokerError as error:  # as itself, not in a group
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        return answer

    def _question_link(
        self,
        transport: Transport,
        greeting: PeerGreeting,
        frames: Callable[[PeerLink, Sequence[PeerFrame]], None],
    ) -> PeerLink:
        assert greeting.peer is not None
        return PeerLink(
            transport.stream, greeting.peer, greeting.rest, frames, body_bytes_max=QUESTION_BYTES_MAX
        )

    def _greeting(
        self,
        purpose: ConnectionPurpose,
        judge: Judge,
        transport: Transport,
        *,
        dials: bool,
        identity: Identity | None = None,
    ) -> PeerGreeting:
        own = Hello(identity or self.identity, purpose, self._start, secrets.token_bytes(NONCE_BYTES))
        return PeerGreeting(own, self._secret, judge, dials=dials, binding=transport.binding)

    # -- questions

    async def _call(self, link: PeerLink, question: Document, timeout_s: float) -> Document:
        self._last = number = (self._last + 1) % _NUMBERS
        waiting = self._waiting[number] = _Waiting(link)
        name = link.peer.name
        try:
            link.put(encode(FrameKind.REQUEST, number, [encode_document(question)]))
            with trio.move_on_after(timeout_s):
                await waiting.over.wait()
                if waiting.refused is not None:
                    raise waiting.refused
                if waiting.answer is None:
                    raise PeerUnreachable(f"node '{name}' cannot be reached: {link.end}")
                return waiting.answer
        finally:
            del self._waiting[number]
        raise PeerUnreachable(f"node '{name}' has not answered within {timeout_s:g} s")

    def _answered(self, link: PeerLink, frame: PeerFrame) -> None:
        waiting = self._waiting.get(frame.group)
        if waiting is not None and waiting.link is link:
            try:
                waiting.answer = read_answer(frame.body)
            except RefusedError as error:
                waiting.refused = error
            waiting.over.set()

    def _unanswered(self, link: PeerLink) -> None:
        # This connection will not bring any answer.
        for waiting in self._waiting.values():
            if waiting.link is link:
                waiting.over.set()

    def _asked(self, link: PeerLink, frame: PeerFrame, nursery: trio.Nursery) -> None:
        """Answer a request in a task of the nursery. Raises `BadBytes` and, if answers are not read,
        `BadFrame`.
        """
        question = read_document(frame.body)
        if link.backlog_bytes > UNREAD_BYTES_MAX:
            raise BadFrame(f"questions, while {UNREAD_BYTES_MAX} bytes wait to be read")
        if self._answering[link] >= QUESTIONS_MAX:
            busy = LimitExceeded("node", f"{QUESTIONS_MAX} questions wait for this node's answer: ask later")
            link.put(encode(FrameKind.RESPONSE, frame.group, [encode_refusal(busy)]))
            return
        self._answering[link] += 1
        nursery.start_soon(self._answer, link, frame.group, question)

    async def _answer(self, link: PeerLink, number: int, question: Document) -> None:
        try:
            try:
                answer = encode_answer(await self._events.asked(link.peer.node, question))
            except BrokerError as error:
                answer = encode_refusal(error)
            except Exception as error:
                _log.error("question of a node failed by a fault in the broker", exc_info=error)
                fault = RefusedError(
                    "node", "the question failed by a fault in the broker; its log says more"
                )
                answer = encode_refusal(fault)
            link.put(encode(FrameKind.RESPONSE, number, [answer]))
        finally:
            self._answering[link] -= 1
            if not self._answering[link]:
                del self._answering[link]

    # -- heartbeats

    async def _beat_forever(self) -> None:
        at = trio.current_time()
        while True:
            self._look()
            at = max(at + self.liveness.beat_ms / 1000, trio.current_time())
            await trio.sleep_until(at)

    def _beat(self, link: PeerLink) -> None:
        """Send a heartbeat over a connection for groups, before all waiting frames."""
        if link.backlog_bytes > BACKLOG_BYTES_MAX:
            return  # the other node does not read: more heartbeats would only wait
        told = self._version, int(trio.current_time() / CLOCK_TOLD_S)
        facts = b""
        if self._version and link.facts_told != told:
            clock = {CLOCK: self._events.clock_ms()} | ({ECHO: link.clock_heard} if link.clock_heard else {})
            facts = encode_document(self._facts | clock)
            link.facts_told = told
        unsynced_ms = self._events.unsynced_ms()
        beat = NodeHeartbeat(self.identity.incarnation, unsynced_ms, self.liveness.hears, facts)
        link.put(encode(FrameKind.HEARTBEAT, 0, HEARTBEAT.pieces(beat)), first=True)

    def _heartbeat(self, link: PeerLink, body: bytes) -> None:
        beat, node = HEARTBEAT.decode(body), link.peer.node
        facts = read_document(beat.facts) if beat.facts else None
        known = node in self.liveness.hears
        if facts is not None:
            self._compare_clocks(link, facts.pop(CLOCK, None), facts.pop(ECHO, None))
        # Its number of starts was proved in its hello.
        beat = beat._replace(incarnation=link.peer.identity.incarnation)
        self._tell(self.liveness.received(node, beat, now_ms()))
        if (node in self.liveness.hears) != known:
            self._beat(link)  # the other node waits for it
        if facts is not None:
            self._events.told(node, facts)

    def _compare_clocks(self, link: PeerLink, sent_ms: object, echo: object) -> None:
        clock_ms = self._events.clock_ms()
        if type(sent_ms) is not int:
            return
        link.clock_heard = [sent_ms, clock_ms]
        match echo:
            case [int(asked_ms), int(asked_came_ms)]:
                # This comes before the node counts as alive: nothing may be led by its clock before.
                ahead_ms = (asked_came_ms - asked_ms + sent_ms - clock_ms) // 2
                round_trip_ms = clock_ms - asked_ms - (sent_ms - asked_came_ms)
                self._events.clock_compared(link.peer.node, ahead_ms, max(0, round_trip_ms) // 2 + 1)
            case _:
                link.facts_told = (0, 0)  # the next heartbeat has the echo

    def _tell(self, notifications: Iterable[News]) -> None:
        for each in notifications:
            if isinstance(each, Suspected):
                _log.warning("node is not alive", node=self._peers[each.node].name)
                self._events.suspected(each.node)
            else:
                _log.info("node is alive", node=self._peers[each.node].name)
                self._events.heard(each.node, each.incarnation)

    def _look(self) -> None:
        slow = self._events.unsynced_ms() >= HAND_OVER_MS
        if slow and not self._handed_over:
            _log.warning("the disk is slow: other nodes should lead", unsynced_ms=self._events.unsynced_ms())
            self._events.hand_over()
        self._handed_over = slow
        facts = self._events.heartbeat()
        if facts != self._facts or not self._version:
            self._facts = facts
            self._version += 1
        self._tell(self.liveness.tick(now_ms()))
        now = trio.current_time()
        # A loop that hung has not read the frames that came meanwhile.
        late = now - self._looked_at > 3 * self.liveness.beat_ms / 1000
        self._looked_at = now
        silent_s = SILENT_TIMES * self.liveness.suspect_ms / 1000
        for peer in list(self._peers.values()):
            link = peer.links.get(ConnectionPurpose.RAFT)
            if link is None:
                continue
            if now - link.read_at >= silent_s and not late:
                for each in list(peer.links.values()):
                    self._drop(each, "nothing has come for long")
            else:
                self._beat(link)
