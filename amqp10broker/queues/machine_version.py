"""The versions of the replicated state machines (metadata, quorum queues) that this broker supports.

A version determines the effect and the encoding of log entries. The cluster *uses* one version
(`metadata.queue.ClusterFacts.version`). An entry of the metadata raises it when every node has announced
support. Then the leader of each queue writes an entry that raises the queue's version
(`quorum.commands.RaiseVersion`). The older version applies to all entries up to that one.

A change of a command's effect or bytes must raise `NEWEST`, and retain the old behavior for two minor
versions of the broker, as a check of `QuorumQueue.version`.
"""

from __future__ import annotations

OLDEST = 1
NEWEST = 1


class NewerMachine(ValueError):
    def __init__(self, version: int) -> None:
        super().__init__(
            f"has machine version {version}, and this broker carries out versions {OLDEST} to {NEWEST}"
        )
        self.version = version


def carried_out() -> tuple[int, int]:
    return OLDEST, NEWEST


def check(version: int) -> int:
    """Return the version. Raises `NewerMachine` if this broker does not support it."""
    if not OLDEST <= version <= NEWEST:
        raise NewerMachine(version)
    return version


def why_not(name: str, machines: tuple[int, int], used: int) -> str | None:
    """Return why a node with this range of versions cannot join a cluster; None: it can."""
    oldest, newest = machines
    if oldest <= used <= newest:
        return None
    which = "a newer" if used > newest else "an older"
    return (
        f"node '{name}' carries out machine versions {oldest} to {newest}, and the cluster uses version "
        f"{used}: install {which} broker at node '{name}'"
    )
