"""The decisions with which a starting node finds, joins or founds its cluster.

Only the first node of the list founds, so that two clusters cannot arise. A founder that has lost its folder
searches for the cluster before it founds. A node that is in a cluster uses the members in its folder, and
ignores its list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError
from amqp10broker.metadata.entry_codec import encoded
from amqp10broker.metadata.plan import CLUSTER, NODE_NUMBERS, Key
from amqp10broker.metadata.queue import ClusterFacts, NodeFacts
from amqp10broker.metadata.queue_arguments import QueueType
from amqp10broker.raft.ids import member_id

NAME_MAX: Final = 64

_NAME_MARKS: Final = "-_.@"


class ClusterRefused(BrokerError):
    """A node cannot be in the cluster in its present state; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class MemberAt:
    number: int
    name: str
    address: Address

    def document(self) -> dict[str, object]:
        return {"number": self.number, "name": self.name, **asdict(self.address)}

    @classmethod
    def of(cls, document: Mapping[str, object]) -> MemberAt:
        """The inverse of `document`. Raises `KeyError` or `ValueError`."""
        number, name, host, port = _typed(document, number=int, name=str, host=str, port=int)
        return cls(number, name, Address(host, port))


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The cluster facts in a node's folder."""

    cluster: str
    number: int
    name: str
    members: tuple[MemberAt, ...]

    def document(self) -> dict[str, object]:
        return asdict(self) | {"members": [each.document() for each in self.members]}

    @classmethod
    def of(cls, document: Mapping[str, object]) -> ClusterIdentity:
        """The inverse of `document`. Raises `KeyError` or `ValueError`."""
        cluster, number, name, members = _typed(document, cluster=str, number=int, name=str, members=list)
        return cls(cluster, number, name, tuple(MemberAt.of(each) for each in members))


def _typed(document: Mapping[str, object], **kinds: type) -> list[Any]:
    if any(type(document[key]) is not kind for key, kind in kinds.items()):
        raise ValueError(f"no facts of a cluster: {document}")
    return [document[key] for key in kinds]


# --- names and lists ------------------------------------------------------------------------------


def check_name(name: str) -> None:
    """Check the name of a node. Raises `ClusterRefused`."""
    if (
        not 1 <= len(name) <= NAME_MAX
        or not name[0].isalnum()
        or not all(each.isascii() and (each.isalnum() or each in _NAME_MARKS) for each in name)
    ):
        raise ClusterRefused(
            f"{name[: NAME_MAX + 1]!r} cannot be the name of a node: give 1 to {NAME_MAX} letters, digits, "
            f"or {' '.join(_NAME_MARKS)}, beginning with a letter or a digit"
        )


def read_nodes(written: str) -> dict[str, Address]:
    """Read ``a=host:port,b=[::1]:port``. Raises `ClusterRefused`."""
    nodes: dict[str, Address] = {}
    for each in filter(None, (part.strip() for part in written.split(","))):
        name, equals, place = each.partition("=")
        host, colon, port = place.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not equals or not colon or not bare or not port.isdecimal() or not 1 <= int(port) <= 65_535:
            raise ClusterRefused(f"the list of nodes has {each!r}: write each as NAME=HOST:PORT")
        check_name(name)
        address = Address(bare, int(port))
        if name in nodes:
            raise ClusterRefused(f"the list of nodes has node '{name}' twice: give each name once")
        if address in nodes.values():
            raise ClusterRefused(f"the list of nodes has address {address} twice: give each node its own")
        nodes[name] = address
    return nodes


def target_nodes(given: int, listed: str | None) -> int:
    """Return the size of the complete cluster. `given`: the setting; 0: the length of the list."""
    return given or max(1, len(read_nodes(listed or "")))


# --- the start of a node that has no cluster ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The answer of a node on the list. `cluster`: the id of its cluster, or None. `taken`: the name of the
    querying node belongs to another folder in that cluster.
    """

    name: str
    cluster: str | None
    taken: bool = False


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """Found a cluster."""


@dataclass(frozen=True, slots=True)
class Join:
    by: str


@dataclass(frozen=True, slots=True)
class WaitForNodes:
    names: tuple[str, ...]
    why: str


def next_step(
    name: str, listed: Sequence[str], heard: Mapping[str, NodeAnswer], *, has_data: bool
) -> FoundCluster | Join | WaitForNodes:
    """Return the next action of a node that is in no cluster.

    Args:
        listed: names of its list, in order. It may be missing itself. Without a list a node founds at once.
        has_data: its folder has content, which becomes the cluster's if it founds.

    Raises:
        ClusterRefused: an operator has to act.
    """
    clusters = sorted({each.cluster for each in heard.values() if each.cluster is not None})
    if len(clusters) > 1:
        told = " and ".join(
            f"'{each.name}' is in {each.cluster}" for each in heard.values() if each.cluster is not None
        )
        raise ClusterRefused(f"the list names nodes of different clusters ({told}): give the nodes of one")
    if clusters:
        member = next(each for each in heard.values() if each.cluster is not None)
        if member.taken:
            raise taken(name, member.name)
        if has_data:
            raise ClusterRefused(
                f"node '{name}' has data of its own, which would be gone when it joins the cluster of node "
                f"'{member.name}': give it an empty folder, or start it once with --discard-my-data"
            )
        return Join(member.name)
    others = [each for each in listed if each != name]
    silent = tuple(each for each in others if each not in heard)
    if listed and listed[0] != name:
        founder = listed[0]
        if founder in heard:
            return WaitForNodes((founder,), f"node '{founder}', the first of the list, has no cluster yet")
        return WaitForNodes(
            silent or (founder,), f"node '{founder}', the first of the list, founds the cluster"
        )
    majority = len(listed) // 2 + 1
    if not listed or 1 + len(others) - len(silent) >= majority:
        return FoundCluster()
    return WaitForNodes(
        silent, f"{majority} of {len(listed)} nodes of the list must be up to found a cluster"
    )


def taken(name: str, by: str) -> ClusterRefused:
    """Return the refusal for a node name that belongs to another folder."""
    return ClusterRefused(
        f"the cluster has a node '{name}' already, whose data is not in this folder: bring that folder back, "
        f"or run 'amqp10broker cluster forget-node {name}' at node '{by}' first, or choose another name"
    )


def check_still_member(membership: ClusterIdentity, told: Mapping[str, Any]) -> None:
    """Check the answer of a member. Raises `ClusterRefused` if this node's number was assigned and is not a
    member's any more. A node that does not have the number yet answers without it.
    """
    if told.get("cluster") != membership.cluster or membership.number in told.get("numbers", ()):
        return
    if membership.number <= told.get("highest", 0):
        raise ClusterRefused(
            f"node '{membership.name}' is not in the cluster of node '{told.get('name')}' any more: it was "
            "forgotten; give it an empty folder to let it join anew"
        )


def founded(
    entries: Iterable[tuple[Key, Any]], node: NodeFacts, cluster: ClusterFacts
) -> list[tuple[Key, Any]]:
    """Return the initial content of a cluster: the catalog of the founder, with all its queues."""
    begun: list[tuple[Key, Any]] = []
    for key, value in entries:
        if key[0] == "queue":
            quorum = value["type"] == QueueType.QUORUM
            place = {"members": [member_id(node.number)]} if quorum else {"home": node.number}
            value = {**value, **place}
        begun.append((key, value))
    for key, record in ((CLUSTER, cluster), (NODE_NUMBERS, node.number), (("node", node.name), node)):
        begun.append((key, encoded(key, record)))
    return begun
