"""What the connections to other nodes tell, and ask, of the rest of the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from amqp10broker.cluster.asking import Document
from amqp10broker.cluster.hello import Hello
from amqp10broker.cluster.wire import Frame, Purpose


class PeerEvents(Protocol):
    """Told by `Peers`, in its tasks. All but `asked` must not wait, and may send."""

    def frames(self, node: int, purpose: Purpose, frames: Sequence[Frame]) -> None:
        """All frames of one read; heartbeats, questions and answers are taken out."""

    def connected(self, node: int, purpose: Purpose) -> None:
        """A connection is there. After a new start of the node, all older ones were told to be gone."""

    def disconnected(self, node: int, purpose: Purpose) -> None:
        """It is gone, with what was not sent. Another one may be told at once."""

    def suspected(self, node: int) -> None:
        """A node is not alive: told when it becomes known, and then whenever it is not any more."""

    def heard(self, node: int, incarnation: int) -> None:
        """A node is alive from now on, and hears this one."""

    def admit(self, hello: Hello) -> str | None:
        """Asked of a node that has proved the secret, beyond what `Acquaintances` judges. Returns None for
        welcome; else the reason, one line that both sides log.
        """

    async def asked(self, node: int, question: Document) -> Document:
        """A node asks; cancelled if its connection is lost.

        Args:
            node: its number; 0: it is not a member yet.

        Raises:
            BrokerError: it is refused; a `RefusedError` is raised as such at the node that asks.
        """

    def heartbeat(self) -> Document:
        """Small facts that every other node should know; sent when they differ from the last ones."""

    def told(self, node: int, facts: Document) -> None:
        """Another node's facts, when they have changed or its connection is new."""

    def clock_ms(self) -> int:
        """This node's time, since 1970."""

    def clock_told(self, node: int, clock_ms: int) -> None:
        """Another node's, as its heartbeat was sent."""

    def unsynced_ms(self) -> int:
        """For how long the oldest append here has not been synced; 0: none waits."""

    def hand_over(self) -> None:
        """The disk is slow (`liveness.HAND_OVER_MS`): others should lead. Told once until it works again."""
