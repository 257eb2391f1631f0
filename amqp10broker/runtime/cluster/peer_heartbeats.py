"""Heartbeats to the other nodes and of them (`cluster.liveness` decides)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import field
from typing import Final

import trio

from amqp10broker.cluster.hello import Identity
from amqp10broker.cluster.liveness import (
    HAND_OVER_MS,
    HEARTBEAT,
    Liveness,
    News,
    NodeHeartbeat,
    Suspected,
)
from amqp10broker.cluster.wire import Document, FrameKind, encode, encode_document, read_document
from amqp10broker.dataclass import dataclass
from amqp10broker.runtime.cluster.peer_link import PeerEvents, PeerLink
from amqp10broker.runtime.cluster.raft_node import now_ms
from amqp10broker.runtime.log import Log

_log = Log("amqp10broker.peers")

SILENT_TIMES: Final = 2
"""So many suspicion times without a frame, and the connections to a node are made anew: on one that was cut
the kernel waits longer and longer before it tries again."""


CLOCK: Final = "clock_ms"
"""Beside the facts of a heartbeat: the sender's time, since 1970."""
ECHO: Final = "clock_echo"
"""Likewise: the last time that the receiver has sent, and the sender's when that came: a round trip."""
CLOCK_TOLD_S: Final = 60
"""They are sent as often: clocks drift."""

BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024


@dataclass(eq=False)
class Heart:
    """Sends and receives heartbeats each `Liveness.beat_ms`. `silent`: called with each node whose connection
    has been silent for too long.
    """

    _liveness: Liveness
    _events: PeerEvents
    _identity: Callable[[], Identity]
    _links: Callable[[], Collection[PeerLink]]
    _silent: Callable[[int], None]
    _name_of: Callable[[int], str]
    _handed_over: bool = False
    _looked_at: float = 0.0
    _facts: Document = field(default_factory=dict, init=False)
    _version: int = 0

    async def run(self) -> None:
        at = trio.current_time()
        while True:
            self._look()
            at = max(at + self._liveness.beat_ms / 1000, trio.current_time())
            await trio.sleep_until(at)

    def beat(self, link: PeerLink) -> None:
        """Send a heartbeat over a connection for groups, before what waits there."""
        if link.backlog_bytes > BACKLOG_BYTES_MAX:
            return  # it does not read: more of them would only wait
        told = self._version, int(trio.current_time() / CLOCK_TOLD_S)
        facts = b""
        if self._version and link.facts_told != told:
            clock = {CLOCK: self._events.clock_ms()} | ({ECHO: link.clock_heard} if link.clock_heard else {})
            facts = encode_document(self._facts | clock)
            link.facts_told = told
        beat = NodeHeartbeat(
            self._identity().incarnation, self._events.unsynced_ms(), self._liveness.hears, facts
        )
        link.put(encode(FrameKind.HEARTBEAT, 0, HEARTBEAT.pieces(beat)), first=True)

    def received(self, link: PeerLink, body: bytes) -> None:
        """A heartbeat has come. Raises `BadBytes` if it is not valid."""
        beat, node = HEARTBEAT.decode(body), link.peer.node
        facts = read_document(beat.facts) if beat.facts else None
        known = node in self._liveness.hears
        if facts is not None:
            self._compare_clocks(link, facts.pop(CLOCK, None), facts.pop(ECHO, None))
        # What it says of its start was proved in its hello.
        beat = beat._replace(incarnation=link.peer.identity.incarnation)
        self.tell(self._liveness.received(node, beat, now_ms()))
        if (node in self._liveness.hears) != known:
            self.beat(link)  # it waits for that
        if facts is not None:
            self._events.told(node, facts)

    def _compare_clocks(self, link: PeerLink, sent_ms: object, echo: object) -> None:
        clock_ms = self._events.clock_ms()
        if type(sent_ms) is not int:
            return
        link.clock_heard = [sent_ms, clock_ms]
        match echo:
            case [int(asked_ms), int(asked_came_ms)]:
                # Before the node counts as alive: before anything is led by what its clock says.
                ahead_ms = (asked_came_ms - asked_ms + sent_ms - clock_ms) // 2
                round_trip_ms = clock_ms - asked_ms - (sent_ms - asked_came_ms)
                self._events.clock_compared(link.peer.node, ahead_ms, max(0, round_trip_ms) // 2 + 1)
            case _:
                link.facts_told = (0, 0)  # the next heartbeat has the echo

    def tell(self, notifications: Iterable[News]) -> None:
        for each in notifications:
            if isinstance(each, Suspected):
                _log.warning("node is not alive", node=self._name_of(each.node))
                self._events.suspected(each.node)
            else:
                _log.info("node is alive", node=self._name_of(each.node))
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
        self.tell(self._liveness.tick(now_ms()))
        now = trio.current_time()
        # A loop that hung has not read what came meanwhile.
        late = now - self._looked_at > 3 * self._liveness.beat_ms / 1000
        self._looked_at = now
        silent_s = SILENT_TIMES * self._liveness.suspect_ms / 1000
        for link in self._links():
            if now - link.read_at >= silent_s and not late:
                self._silent(link.peer.node)
            else:
                self.beat(link)
