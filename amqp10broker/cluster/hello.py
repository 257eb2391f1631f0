"""The handshake of two nodes, and the heartbeats by which each detects that the other is alive.

::

    dialer                                   listener
    HELLO                               ->
                                        <-   HELLO
    PROOF                               ->               the dialer proves the secret first: a stranger that
                                        <-   VERDICT     dials gets nothing to try secrets on
    VERDICT                             ->

Each message is ``length u16 | kind u8 | content``, 1 024 bytes at most. A hello is `MAGIC` and the layout
`HELLO`, which begins with the versions of the protocol in all of them. A verdict is ``refused u8 | proof 32s
| reason in UTF-8``. A proof is the HMAC-SHA-256 by the secret over sender and step, the binding to the TLS
connection, both hellos, and a verdict's content: so it is invalid in the other direction and on another
connection. A refusal before the proof of the secret is not authenticated.

A node is alive here while its heartbeats arrive *and* list this node. So a connection that is broken in one
direction causes suspicion on both sides, and no group follows a leader without contact to its followers. As
`raft` requires, a restarted node is suspected, then reported alive. A heartbeat also reports how long the
oldest append has not been synced: from `HAND_OVER_MS` on the node transfers its leaderships, and from
`HUNG_MS` on its heartbeats are ignored. It carries facts between nodes as JSON, if they have changed.
"""

from __future__ import annotations

import enum
import hmac
import struct
from collections.abc import Callable, Collection, Iterable
from dataclasses import field, replace
from typing import Final, NamedTuple

from amqp10broker.cluster.wire import ConnectionPurpose
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError
from amqp10broker.layout import REST, TEXT, U8, U16, U32, U64, BadBytes, Fixed, Layout, Many, choice, row
from amqp10broker.queues.machine_version import carried_out, why_not

MAGIC: Final = b"AMQPnode"
VERSIONS: Final = (1, 1)
"""The oldest and the newest version of the protocol between nodes that this broker supports."""
START_BYTES: Final = 16
NONCE_BYTES: Final = 32
MESSAGE_BYTES_MAX: Final = 1_024
REASON_BYTES_MAX: Final = 600

_FRONT: Final = struct.Struct("<HB")
_PROOF_BYTES: Final = 32
_NO_PROOF: Final = bytes(_PROOF_BYTES)

WRONG_SECRET: Final = (
    "wrong secret: the file that cluster_secret_file names must hold the same on all nodes of a cluster"
)
NO_NODE: Final = "the other side is no node of a cluster: it does not say hello as one"
UNREADABLE: Final = "the other node's hello cannot be read"
ECHO: Final = "the other side sends back what it is told"
OTHER_VERSION: Final = "versions do not fit: "
"""The beginning of the reason if one of the nodes runs another version."""
OWN_ADDRESS: Final = "that is this node's own address: correct the addresses of the nodes"


class HelloRefused(BrokerError):
    """The handshake failed; the message is one line."""

    def __init__(self, reason: str, *, by_peer: bool = False) -> None:
        super().__init__(f"refused by the other node: {reason}" if by_peer else reason)
        self.reason = reason
        self.by_peer = by_peer


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a node.

    Attributes:
        node: its number; 0: it is not a member yet.
        incarnation: grows at each start, 0 to 2**64 - 1.
        cluster: the id of its cluster; empty: none yet.
        used: the version of the machines that its cluster uses; 0: unknown.
    """

    node: int
    name: str
    incarnation: int
    cluster: str = ""
    used: int = 0


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a node on a connection. `start`: random, to distinguish two processes with the
    same incarnation. `machines`: the oldest and the newest version of the machines that it supports.
    """

    identity: Identity
    purpose: ConnectionPurpose
    start: bytes
    nonce: bytes
    versions: tuple[int, int] = VERSIONS
    machines: tuple[int, int] = field(default_factory=carried_out)

    @property
    def node(self) -> int:
        return self.identity.node

    @property
    def name(self) -> str:
        return self.identity.name

    def encode(self) -> bytes:
        return MAGIC + HELLO.encode(self)


def _identity(node: int, incarnation: int, used: int, cluster: str, name: str) -> Identity:
    if not name or not (cluster + name).isprintable():
        raise ValueError("a text that cannot be printed, or the name is empty")
    return Identity(node, name, incarnation, cluster, used)


_VERSIONS: Final = row(U8, U8)
HELLO: Final = Layout(
    Hello,
    versions=_VERSIONS,
    machines=row(U16, U16),
    purpose=choice(ConnectionPurpose),
    start=Fixed(f"{START_BYTES}s"),
    nonce=Fixed(f"{NONCE_BYTES}s"),
    identity=Layout(Identity, _identity, node=U32, incarnation=U64, used=U16, cluster=TEXT, name=TEXT),
)


def read_hello(content: bytes) -> Hello:
    """The inverse of `Hello.encode`. Raises `HelloRefused` if it is not valid, or of another version."""
    if not content.startswith(MAGIC):
        raise HelloRefused(NO_NODE)
    try:
        (oldest, newest), _ = _VERSIONS.decode_part(content, len(MAGIC))
    except BadBytes as error:
        raise HelloRefused(NO_NODE) from error
    if oldest > VERSIONS[1] or newest < VERSIONS[0]:
        raise HelloRefused(
            f"{OTHER_VERSION}the other node speaks versions {oldest} to {newest} of the protocol between "
            f"nodes, this one {VERSIONS[0]} to {VERSIONS[1]}: upgrade the older one of them"
        )
    try:
        return HELLO.decode(content[len(MAGIC) :])
    except BadBytes as error:
        raise HelloRefused(UNREADABLE) from error


def misfit(one: Hello, other: Hello) -> str | None:
    """Return why two nodes cannot be in one cluster by their machine versions, or None. One of them may not
    have the cluster's version yet.
    """
    used = max(one.identity.used, other.identity.used)
    for each, peer in ((one, other), (other, one)):
        reason = why_not(each.name, each.machines, used) if used else None
        if reason is not None:
            oldest, newest = peer.machines
            return f"{OTHER_VERSION}{reason} (node '{peer.name}' carries out {oldest} to {newest})"
    return None


class _Step(enum.IntEnum):
    HELLO = 1
    PROOF = 2
    VERDICT = 3


Judge = Callable[[Hello], str | None]
"""Called with a hello after the proof of the secret: None accepts it, else the reason in one line."""


class PeerGreeting:
    """One side of the exchange: bytes in, bytes out.

    Args:
        own: the hello of this node; the purpose of a listener's is set to the dialer's.
        binding: of the TLS connection, so that a proof cannot be passed on through another one; empty without
            TLS.

    Attributes:
        peer: the other side, authenticated when `done`.
        rest: bytes after the exchange.
    """

    def __init__(self, own: Hello, secret: bytes, judge: Judge, *, dials: bool, binding: bytes = b"") -> None:
        self._own = own
        self._own_bytes = own.encode() if dials else b""
        self._peer_bytes = b""
        self._secret = secret
        self._judge = judge
        self._dials = dials
        self._binding = binding
        self._proved = False
        self._awaited = _Step.HELLO
        self._kept = b""
        self.peer: Hello | None = None
        self.done = False
        self.rest = b""

    def begin(self) -> bytes:
        return _message(_Step.HELLO, self._own_bytes) if self._dials else b""

    def received(self, data: bytes) -> tuple[bytes, HelloRefused | None]:
        """Take bytes of the other side until it is `done` or refused. Returns the bytes to send, and the
        refusal after which the connection ends.
        """
        self._kept += data
        answers = bytearray()
        try:
            while not self.done and (content := self._next()) is not None:
                answers += self._take(content)
        except HelloRefused as refused:
            if not refused.by_peer:
                answers += self._verdict(refused.reason)
            return bytes(answers), refused
        if self.done:
            self.rest, self._kept = self._kept, b""
        return bytes(answers), None

    def _next(self) -> bytes | None:
        if len(self._kept) < _FRONT.size:
            return None
        size, kind = _FRONT.unpack_from(self._kept)
        early = kind == _Step.VERDICT  # a refusal may come at any time
        if size > MESSAGE_BYTES_MAX or not (kind == self._awaited or early):
            raise HelloRefused(NO_NODE)
        end = _FRONT.size + size
        if len(self._kept) < end:
            return None
        if kind != self._awaited:
            self._awaited = _Step.VERDICT
        content, self._kept = self._kept[_FRONT.size : end], self._kept[end:]
        return content

    def _take(self, content: bytes) -> bytes:
        if self._awaited is _Step.HELLO:
            return self._take_hello(content)
        if self._awaited is _Step.PROOF:
            if not hmac.compare_digest(content, self._proof(b"dialer proves", b"")):
                raise HelloRefused(WRONG_SECRET)
            self._proved = True
            self._look_at_peer()
            self._awaited = _Step.VERDICT
            return self._verdict("")
        self._take_outcome(content)
        if not self._dials:
            self.done = True
            return b""
        self._proved = True
        self._look_at_peer()
        self.done = True
        return self._verdict("")

    def _take_hello(self, content: bytes) -> bytes:
        self.peer = read_hello(content)
        self._peer_bytes = content
        if self._dials:
            if self.peer.nonce == self._own.nonce:
                raise HelloRefused(ECHO)
            if self.peer.purpose is not self._own.purpose:
                raise HelloRefused(UNREADABLE)
            self._awaited = _Step.VERDICT
            return _message(_Step.PROOF, self._proof(b"dialer proves", b""))
        own = self._own
        self._own = replace(own, purpose=self.peer.purpose)
        self._own_bytes = self._own.encode()
        self._awaited = _Step.PROOF
        return _message(_Step.HELLO, self._own_bytes)

    def _take_outcome(self, content: bytes) -> None:
        refused, proof, reason = content[:1], content[1 : 1 + _PROOF_BYTES], content[1 + _PROOF_BYTES :]
        if len(proof) < _PROOF_BYTES or refused not in (b"\0", b"\1"):
            raise HelloRefused(UNREADABLE)
        if refused == b"\1":
            raise HelloRefused(_one_line(reason), by_peer=True)
        if not (self._dials or self._proved):  # a welcome without a proof would bypass the judge
            raise HelloRefused(NO_NODE)
        label = b"listener's verdict" if self._dials else b"dialer's verdict"
        if self.peer is None or not hmac.compare_digest(proof, self._proof(label, refused + reason)):
            raise HelloRefused(WRONG_SECRET)

    def _look_at_peer(self) -> None:
        assert self.peer is not None
        if self.peer.start == self._own.start:
            raise HelloRefused(OWN_ADDRESS)
        reason = self._judge(self.peer) or misfit(self._own, self.peer)
        if reason is not None:
            raise HelloRefused(reason)

    def _verdict(self, reason: str) -> bytes:
        said = bytes((bool(reason),)) + reason.encode()[:REASON_BYTES_MAX]
        label = b"dialer's verdict" if self._dials else b"listener's verdict"
        proof = self._proof(label, said) if self._proved else _NO_PROOF
        return _message(_Step.VERDICT, said[:1] + proof + said[1:])

    def _proof(self, label: bytes, said: bytes) -> bytes:
        dialer, listener = self._own_bytes, self._peer_bytes
        if not self._dials:
            dialer, listener = listener, dialer
        parts = (label, self._binding, dialer, listener, said)
        counted = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hmac.digest(self._secret, counted, "sha256")


def _message(step: _Step, content: bytes) -> bytes:
    return _FRONT.pack(len(content), step) + content


def _one_line(reason: bytes) -> str:
    text = reason[:REASON_BYTES_MAX].decode(errors="replace")
    return "".join(char if char.isprintable() else "?" for char in text) or "it does not say why"


@dataclass(slots=True)
class _KnownPeer:
    name: str
    incarnation: int
    start: bytes


class Acquaintances:
    """The members, and the last start seen of each."""

    def __init__(self) -> None:
        self._known: dict[int, _KnownPeer] = {}

    def know(self, node: int, name: str, incarnation: int = 0) -> None:
        """Add a member, or update its name and start."""
        known = self._known.setdefault(node, _KnownPeer(name, incarnation, b""))
        known.name = name
        if incarnation > known.incarnation:
            known.incarnation, known.start = incarnation, b""

    def forget(self, node: int) -> None:
        self._known.pop(node, None)

    def judge(self, own: Identity, hello: Hello) -> str | None:
        """Return why a connection is refused, or None."""
        peer = hello.identity
        about = f"node '{peer.name}'"
        if hello.purpose is not ConnectionPurpose.QUESTION and not (peer.node and own.node):
            return f"{about} and '{own.name}' are not both members of the cluster yet"
        apart = own.cluster and peer.cluster if hello.purpose is ConnectionPurpose.QUESTION else True
        if apart and own.cluster != peer.cluster:
            return (
                f"{about} belongs to {_cluster(peer)}, node '{own.name}' to {_cluster(own)}: "
                "nodes of different clusters do not talk to each other"
            )
        if hello.purpose is ConnectionPurpose.QUESTION:
            return None
        if peer.node == own.node:
            return (
                f"{about} has number {peer.node}, as node '{own.name}' itself: it is a copy of its folder; "
                "stop it and delete the copy"
            )
        known = self._known.get(peer.node)
        if known is None:
            return (
                f"{about}, number {peer.node}, is not a member that node '{own.name}' knows: if it was "
                "forgotten, it can only join anew with an empty folder"
            )
        if known.name != peer.name:
            return (
                f"{about} has number {peer.node}, which is node '{known.name}': the name stays with the "
                "data, start it with that name"
            )
        again = peer.incarnation == known.incarnation and known.start and known.start != hello.start
        if peer.incarnation < known.incarnation or again:
            return (
                f"{about} began its start number {peer.incarnation}, and number {known.incarnation} was seen "
                "before: it runs on an old copy of its folder; stop it and use the newest one"
            )
        return None

    def proved(self, hello: Hello) -> bool:
        """Note a connection of a known node; return whether it is the first of a new start."""
        known = self._known[hello.node]
        new = known.start != hello.start
        known.incarnation, known.start = hello.identity.incarnation, hello.start
        return new


def _cluster(identity: Identity) -> str:
    return f"cluster {identity.cluster}" if identity.cluster else "no cluster"


HEARTBEAT_MS_MAX: Final = 200
BEATS: Final = 5
"""The number of heartbeats within the silence after which a node is suspected, so that one may be late."""
HAND_OVER_MS: Final = 2_000
HUNG_MS: Final = 5_000
UNSYNCED_MS_MAX: Final = 2**32 - 1
FACTS_BYTES_MAX: Final = 1024 * 1024


class NodeHeartbeat(NamedTuple):
    """A heartbeat, sent each `Liveness.beat_ms`. `unsynced_ms`: for how long the oldest append has not been
    synced; 0: none waits.
    """

    incarnation: int
    unsynced_ms: int
    hears: frozenset[int]
    facts: bytes


def _heartbeat(incarnation: int, unsynced_ms: int, hears: frozenset[int], facts: bytes) -> NodeHeartbeat:
    if len(facts) > FACTS_BYTES_MAX:
        raise ValueError(f"{len(facts)} bytes of facts")
    return NodeHeartbeat(incarnation, unsynced_ms, hears, facts)


HEARTBEAT: Final = Layout(
    NodeHeartbeat,
    _heartbeat,
    incarnation=U64,
    unsynced_ms=Fixed("I", f"min({{0}}, {UNSYNCED_MS_MAX})"),
    hears=Many(U32, frozenset, sorted),
    facts=REST,
)


class Suspected(NamedTuple):
    """A node is not alive any more, or has just become known."""

    node: int


class NodeAlive(NamedTuple):
    node: int
    incarnation: int


News = Suspected | NodeAlive


@dataclass(slots=True)
class _Node:
    # `heard_ms`: when its last heartbeat came; None: there was none since it was lost, or added.
    alive: bool = False
    heard_ms: int | None = None
    hears_us: bool = False
    incarnation: int = 0


@dataclass(slots=True)
class Liveness:
    """The liveness of the other nodes, as one node determines it."""

    node: int
    suspect_ms: int
    _nodes: dict[int, _Node] = field(default_factory=dict)
    _ticked_ms: int | None = None

    @property
    def beat_ms(self) -> int:
        return min(HEARTBEAT_MS_MAX, self.suspect_ms // BEATS)

    @property
    def hears(self) -> frozenset[int]:
        return frozenset(node for node, it in self._nodes.items() if it.heard_ms is not None)

    @property
    def alive(self) -> Collection[int]:
        return [node for node, it in self._nodes.items() if it.alive]

    def know(self, node: int) -> Iterable[News]:
        if node in self._nodes:
            return
        self._nodes[node] = _Node()
        yield Suspected(node)

    def forget(self, node: int) -> None:
        self._nodes.pop(node, None)

    def lost(self, node: int) -> Iterable[News]:
        it = self._nodes.get(node)
        if it is None:
            return
        it.heard_ms = None
        it.hears_us = False
        if it.alive:
            it.alive = False
            yield Suspected(node)

    def received(self, node: int, beat: NodeHeartbeat, now_ms: int) -> Iterable[News]:
        it = self._nodes.get(node)
        if it is None:
            return
        if beat.unsynced_ms >= HUNG_MS:
            yield from self.lost(node)
            return
        if beat.incarnation != it.incarnation:
            yield from self.lost(node)
        it.incarnation = beat.incarnation
        it.heard_ms = now_ms
        it.hears_us = self.node in beat.hears
        if it.alive and not it.hears_us:
            it.alive = False
            yield Suspected(node)
        elif it.hears_us and not it.alive:
            it.alive = True
            yield NodeAlive(node, beat.incarnation)

    def seen(self, node: int, now_ms: int) -> None:
        """Note other input from a node: its heartbeats are behind input that is being processed."""
        it = self._nodes.get(node)
        if it is not None and it.heard_ms is not None:
            it.heard_ms = now_ms

    def tick(self, now_ms: int) -> Iterable[News]:
        """Return changes of liveness. Call it each `beat_ms`."""
        if self._ticked_ms is not None:
            # The time in which this loop hung, or this machine slept, is not the other nodes' silence.
            own_ms = now_ms - self._ticked_ms - self.beat_ms
            if own_ms > self.beat_ms:
                for it in self._nodes.values():
                    if it.heard_ms is not None:
                        it.heard_ms = min(it.heard_ms + own_ms, now_ms)
        self._ticked_ms = now_ms
        for node, it in self._nodes.items():
            if it.heard_ms is not None and now_ms - it.heard_ms >= self.suspect_ms:
                yield from self.lost(node)
