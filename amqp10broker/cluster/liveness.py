"""Liveness of nodes, by one heartbeat a pair of nodes.

A node is alive here while its heartbeats arrive *and* list this node: a broken direction causes suspicion on
both sides, so that no group follows a leader without contact to its followers. As `raft` requires, a
restarted node is suspected, then reported alive.

A heartbeat also reports how long the oldest append has not been synced: from `HAND_OVER_MS` on the node
transfers its leaderships, and from `HUNG_MS` on its heartbeats are ignored (the connection stays). A loop
that hangs sends no heartbeats.

A heartbeat also carries facts, additional data between nodes as JSON; unchanged ones are left out on a
connection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import field
from typing import Final, NamedTuple

from amqp10broker.dataclass import dataclass
from amqp10broker.layout import REST, U32, U64, Fixed, Layout, Many

HEARTBEAT_MS_MAX: Final = 200
BEATS: Final = 5
"""Heartbeats within the silence after which a node is suspected: one that is late is none that is missing."""
HAND_OVER_MS: Final = 2_000
HUNG_MS: Final = 5_000
UNSYNCED_MS_MAX: Final = 2**32 - 1
FACTS_BYTES_MAX: Final = 1024 * 1024


class NodeHeartbeat(NamedTuple):
    """The content of a heartbeat, sent each `Liveness.beat_ms`. `unsynced_ms`: for how long its oldest append
    has not been synced; 0: none waits.
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
    """A node was alive, or has just become known, and is not alive now."""

    node: int


class NodeAlive(NamedTuple):
    """A node is alive from now on, in this incarnation."""

    node: int
    incarnation: int


News = Suspected | NodeAlive


@dataclass(slots=True)
class _Node:
    alive: bool = False
    heard_ms: int | None = None
    """When its last heartbeat came; None: none since it was lost, or known."""
    hears_us: bool = False
    incarnation: int = 0


@dataclass(slots=True)
class Liveness:
    """The liveness of the other nodes as one node sees it."""

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
        """Anything else has come of a node: its heartbeats are behind what is being worked off."""
        it = self._nodes.get(node)
        if it is not None and it.heard_ms is not None:
            it.heard_ms = now_ms

    def tick(self, now_ms: int) -> Iterable[News]:
        """Time has passed; to be called each `beat_ms`."""
        if self._ticked_ms is not None:
            # A loop that hung, or a machine that slept, heard nothing meanwhile: that is not their silence.
            own_ms = now_ms - self._ticked_ms - self.beat_ms
            if own_ms > self.beat_ms:
                for it in self._nodes.values():
                    if it.heard_ms is not None:
                        it.heard_ms = min(it.heard_ms + own_ms, now_ms)
        self._ticked_ms = now_ms
        for node, it in self._nodes.items():
            if it.heard_ms is not None and now_ms - it.heard_ms >= self.suspect_ms:
                yield from self.lost(node)
