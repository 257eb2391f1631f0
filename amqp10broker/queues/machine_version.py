"""Which versions of the replicated machines this broker carries out: the metadata, and quorum queues.

A version says what an entry of a log does, and by what bytes it is written. It is agreed on, never guessed:
the cluster *uses* one (`catalog.nodes.ClusterFacts.version`), which goes up by an entry of the metadata when
every node has said that it can; then the leader of each queue has an entry written that raises the queue's
(`quorum.commands.RaiseVersion`). Until that entry, and before it in the log for ever, the older one counts.

Whoever changes what a command does, or its bytes, raises `NEWEST`, and keeps the old behaviour for two minor
versions of the broker: in the code that is a look at `QuorumQueue.version`.
"""

from __future__ import annotations

OLDEST = 1
NEWEST = 4

SELECTING = 2
"""From which on a quorum queue has consumers that select, and in a cluster such that browse."""

DELAYING = 3
"""From which on a quorum queue keeps messages that were published to be delivered later until then."""

ROTATING = 4
"""From which on the consumers of a quorum queue get messages one each in rotation. Before, each had several
at a time; who may settle what, in a log, depends on that."""


class NewerMachine(ValueError):
    """A state, or what stands behind a place of a log, is of a version that this broker does not carry out.

    Args:
        version: that version.
    """

    def __init__(self, version: int) -> None:
        super().__init__(
            f"has machine version {version}, and this broker carries out versions {OLDEST} to {NEWEST}"
        )
        self.version = version


def carried_out() -> tuple[int, int]:
    """The oldest and the newest version that this broker carries out."""
    return OLDEST, NEWEST


def check(version: int) -> int:
    """A version that this broker carries out.

    Raises:
        NewerMachine: it does not.
    """
    if not OLDEST <= version <= NEWEST:
        raise NewerMachine(version)
    return version


def why_not(name: str, machines: tuple[int, int], used: int) -> str | None:
    """Why a node cannot be of a cluster; None: it can.

    Args:
        name: of the node.
        machines: the oldest and the newest version that it carries out.
        used: the version that the cluster uses.
    """
    oldest, newest = machines
    if oldest <= used <= newest:
        return None
    which = "a newer" if used > newest else "an older"
    return (
        f"node '{name}' carries out machine versions {oldest} to {newest}, and the cluster uses version "
        f"{used}: install {which} broker at node '{name}'"
    )
