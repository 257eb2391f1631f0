"""Events and requests from the connections to other nodes, for the rest of the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from amqp10broker.cluster.asking import Document
from amqp10broker.cluster.hello import Hello
from amqp10broker.cluster.wire import ConnectionPurpose, PeerFrame


class PeerEvents(Protocol):
    """The receiver of events of `Peers`, in its tasks. All methods but `asked` must not wait, and may
    send.
    """

    def frames(self, node: int, purpose: ConnectionPurpose, frames: Sequence[PeerFrame]) -> None:
        """All frames of one read; heartbeats, questions and answers are taken out."""

    def connected(self, node: int, purpose: ConnectionPurpose) -> None:
        """A connection exists. After a restart of the node, all older ones were reported as disconnected."""

    def disconnected(self, node: int, purpose: ConnectionPurpose) -> None:
        """A connection is lost, with its unsent frames. Another one may be reported at once."""

    def suspected(self, node: int) -> None:
        """A node is not alive: called when the node becomes known, and whenever it ceases to be alive."""

    def heard(self, node: int, incarnation: int) -> None:
        """A node is alive from now on, and receives this one's heartbeats."""

    def admit(self, hello: Hello) -> str | None:
        """Check an authenticated node, beyond `Acquaintances`. Returns None to accept it; else the reason,
        one line that both sides log.
        """

    async def asked(self, node: int, question: Document) -> Document:
        """Answer a request of a node; cancelled if its connection is lost. `node`: its number; 0: it is not a
        member yet. Raises `BrokerError` if it is refused; a `RefusedError` is raised as such at the node that
        asks.
        """

    def heartbeat(self) -> Document:
        """Small facts that every other node should know; sent when they differ from the last ones."""

    def told(self, node: int, facts: Document) -> None:
        """Another node's facts, when they have changed or its connection is new."""

    def clock_ms(self) -> int:
        """This node's time, since 1970."""

    def clock_compared(self, node: int, ahead_ms: int, within_ms: int) -> None:
        """Another node's is so much ahead of it, give or take `within_ms`."""

    def unsynced_ms(self) -> int:
        """For how long the oldest append here has not been synced; 0: none waits."""

    def hand_over(self) -> None:
        """The disk is slow (`liveness.HAND_OVER_MS`): others should lead. Called once until it recovers."""
