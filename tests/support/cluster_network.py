"""Nodes of real processes whose network a test cuts, slows down and resets, each direction by itself.

Each node is told the addresses of the others behind proxies, one for each that may dial it; its own is the
true one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from itertools import permutations
from pathlib import Path

from amqp10broker.cli.cluster_launch import COMMAND, HOST, make_secret, plan_nodes
from tests.support.cluster_process import ClusterNode, ClusterProcess
from tests.support.cutting_proxy import BACK, TO_TARGET, CuttingProxy


class ClusterNetwork:
    """What is between the cluster ports of some nodes, which are known by name."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._ports = ports
        self._proxies = {
            (dialer, dialed): CuttingProxy(ports[dialed]) for dialer, dialed in permutations(ports, 2)
        }

    def list_for(self, node: str) -> str:
        places = {
            other: port if other == node else self._proxies[node, other].port
            for other, port in self._ports.items()
        }
        return ",".join(f"{name}={HOST}:{port}" for name, port in places.items())

    def cut_way(self, sender: str, receiver: str) -> None:
        """Drop packets from one node to another, but not in the reverse direction."""
        self._proxies[sender, receiver].cut(TO_TARGET)
        self._proxies[receiver, sender].cut(BACK)

    def cut(self, one: str, *others: str) -> None:
        """Drop packets between a node and these nodes; by default, all nodes."""
        for other in others or [each for each in self._ports if each != one]:
            self.cut_way(one, other)
            self.cut_way(other, one)

    def delay(self, sender: str, receiver: str, seconds: float) -> None:
        """Delay packets from one node to another."""
        self._proxies[sender, receiver].delay(seconds, TO_TARGET)
        self._proxies[receiver, sender].delay(seconds, BACK)

    def reset(self, one: str, other: str) -> None:
        """Reset the connections between two nodes; both ends see the reset."""
        for pair in ((one, other), (other, one)):
            self._proxies[pair].reset()

    def mend(self) -> None:
        for proxy in self._proxies.values():
            proxy.mend()

    def close(self) -> None:
        for proxy in self._proxies.values():
            proxy.__exit__(None, None, None)


class CutCluster(ClusterProcess):
    """A cluster on such a network; there is no ``run-cluster`` above its nodes."""

    network: ClusterNetwork

    def __init__(
        self, directory: Path, nodes: int = 3, options: Iterable[str] = (), *, small_disks: bool = False
    ) -> None:
        self._small_disks = small_disks
        super().__init__(directory, nodes, options)

    def fill(self, node: ClusterNode) -> None:
        """Fill the disk of a node to the last byte."""
        self._full(node.folder).touch()

    def make_room(self, node: ClusterNode) -> None:
        self._full(node.folder).unlink(missing_ok=True)

    def heal(self) -> None:
        self.network.mend()
        for node in self.nodes:
            self.make_room(node)
        super().heal()

    def _full(self, folder: Path) -> Path:
        return folder.with_suffix(".full")

    def _launch(self, first: int, nodes: int, options: Iterable[str]) -> None:
        plans = plan_nodes(nodes, first, str(self.folder), ["--log-format", "json", *options])
        make_secret(str(self.folder))
        self.network = ClusterNetwork({plan.name: plan.cluster_port for plan in plans})
        for plan in plans:
            folder = Path(plan.folder)
            folder.mkdir()
            words = list(plan.command)
            words[words.index("--cluster-nodes") + 1] = self.network.list_for(plan.name)
            if self._small_disks:
                at = words.index("amqp10broker")
                words[at : at + 1] = ["tests.support.small_disk_serve", str(self._full(folder))]
            (folder / COMMAND).write_text(f"{shlex.join(words)}\n")
            node = ClusterNode(folder, plan.port)
            node.start()
            self.nodes.append(node)

    def _is_up(self) -> bool:
        return all(node.accepts for node in self.nodes)

    def _check_launcher(self) -> None:
        """There is none."""

    def _stop_launcher(self) -> None:
        for node in reversed(self.nodes):
            if node.pid is not None:
                node.stop()

    def _kill_all(self) -> None:
        for node in self.nodes:
            node.finish()
        self.network.close()
