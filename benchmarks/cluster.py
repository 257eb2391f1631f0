"""What do a cluster of three nodes, and the loss of one, cost?

The nodes are processes on this machine, all with folders on one disk, and the load beside them. Figures of
processor time are those of all nodes. The floor is what one disk allows: three processes that append and sync
at once. With ``--cluster-peer`` another broker's cluster is measured in the same run, in turns.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import spec
from benchmarks.broker_process import REPOSITORY, START_TIMEOUT_S, BrokerSettings, Target
from benchmarks.cases import publish_and_consume
from benchmarks.errors import BenchmarkError, BrokerError, MeasureError
from benchmarks.load import LoadProcess
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context, options, window
from benchmarks.processes import SyncTime, children_cpu_s, process_cpu_s, process_rss_bytes
from benchmarks.queues091 import Queues
from benchmarks.results import Outcome, Row

NODES: Final = 3
UP_TIMEOUT_S: Final = 3 * START_TIMEOUT_S
PAUSE_TIMEOUT_S: Final = 30.0
PAUSE_IN_FLIGHT: Final = 64
_LOOK_S: Final = 0.001
_COMMAND_S: Final = 120.0
COLUMNS: Final = (
    *STANDARD_COLUMNS,
    *("pause_p50_s", "pause_max_s", "idle_cpu_percent", "fdatasync_p50_ms", "fdatasync_p99_ms"),
)


# --- clusters ---------------------------------------------------------------------------------------------


class Cluster(ABC):
    """Three nodes, numbered from 0."""

    name: str
    """As the tables call it."""

    @abstractmethod
    def endpoint(self, node: int) -> spec.Endpoint:
        """Return where a node listens."""

    @abstractmethod
    def pid(self, node: int) -> int:
        """Return a node's process now."""

    @abstractmethod
    def start(self, node: int) -> None:
        """Start a node and wait until it is up."""

    @abstractmethod
    def stop(self, node: int) -> None:
        """Drain a node, and end it in order."""

    def signal(self, node: int, number: int) -> None:
        """Send a node a signal; after SIGKILL wait until it is gone."""
        pid = self.pid(node)
        os.kill(pid, number)
        while number == signal.SIGKILL and os.path.exists(f"/proc/{pid}/fd/0"):
            time.sleep(_LOOK_S)


class OwnCluster(Cluster):
    """The broker of this repository, by `run-cluster`."""

    name = "ours"

    def __init__(self, python: str, folder: Path, options: list[str]) -> None:
        """Start the nodes and wait until they are up.

        Args:
            python: interpreter.
            folder: of their folders.
            options: for each of them.

        Raises:
            BrokerError: they did not come up.
        """
        self._python = python
        self._folder = folder
        self._again: list[subprocess.Popen[bytes]] = []
        self._ports = _free_ports()
        command = [python, "-m", "amqp10broker", "run-cluster", "--nodes", str(NODES)]
        command += ["--first-port", str(self._ports[0]), "--data", str(folder), "--", *options]
        self._log = folder / "run-cluster.log"
        with self._log.open("wb") as log:
            self._launcher = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _await(self._is_up, UP_TIMEOUT_S, "cluster that is up")
        except BrokerError as error:
            self.end()
            raise BrokerError(f"{error}:\n{self._log.read_text()[-2000:]}") from error
        self._nodes = sorted(path.parent for path in folder.glob("*/command"))

    def _is_up(self) -> bool:
        if self._launcher.poll() is not None:
            raise BrokerError("the cluster did not start")
        return "is up" in self._log.read_text()

    def endpoint(self, node: int) -> spec.Endpoint:
        """Return where a node listens."""
        return spec.Endpoint("127.0.0.1", self._ports[node])

    def pid(self, node: int) -> int:
        """Return a node's process now."""
        return int((self._nodes[node] / "pid").read_text())

    def start(self, node: int) -> None:
        """Start a node by its own command line, and wait until it accepts clients."""
        command = shlex.split((self._nodes[node] / "command").read_text())
        with (self._nodes[node] / "log").open("ab") as log:
            self._again.append(
                subprocess.Popen(
                    command,
                    cwd=REPOSITORY,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        _await(partial(_accepts, self._ports[node]), UP_TIMEOUT_S, f"node {node} that accepts clients")

    def stop(self, node: int) -> None:
        """Drain a node, and end it in order."""
        command = [self._python, "-m", "amqp10broker", "cluster", "drain", "--port", str(self._ports[node])]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=_COMMAND_S, check=False)
        if done.returncode:
            raise BrokerError(f"drain: {done.stderr.decode(errors='replace')}")
        pid = self.pid(node)
        os.kill(pid, signal.SIGTERM)
        _await(lambda: not self._runs(pid), UP_TIMEOUT_S, f"end of node {node}")

    def _runs(self, pid: int) -> bool:
        self._again = [process for process in self._again if process.poll() is None]
        return os.path.exists(f"/proc/{pid}/fd/0")

    def end(self) -> None:
        """End all nodes, in order if they let themselves be."""
        self._launcher.send_signal(signal.SIGTERM)
        try:
            self._launcher.wait(UP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()
        for process in self._again:
            process.kill()
            process.wait()


class PeerCluster(Cluster):
    """Another broker's nodes, by a program of the user's: ``PROGRAM port|pid|start|stop NUMBER``, from 1."""

    name = "peer"

    def __init__(self, program: str) -> None:
        """Start the nodes side by side."""
        self._program = program
        with ThreadPoolExecutor(NODES) as side_by_side:
            list(side_by_side.map(self.start, range(NODES)))
        self._ports = [int(self._run("port", node)) for node in range(NODES)]

    def _run(self, what: str, node: int) -> str:
        # Its output goes to a file: what a program starts in the background would keep a pipe open.
        with tempfile.TemporaryFile("w+") as output:
            command = [self._program, what, str(node + 1)]
            try:
                done = subprocess.run(command, stdout=output, timeout=_COMMAND_S, check=False)
            except subprocess.TimeoutExpired as error:
                raise BrokerError(f"'{shlex.join(command)}' did not end in {_COMMAND_S:g} s") from error
            output.seek(0)
            text = output.read()
        if done.returncode:
            raise BrokerError(f"'{shlex.join(command)}' ended with {done.returncode}: {text}")
        return text.strip()

    def endpoint(self, node: int) -> spec.Endpoint:
        """Return where a node listens."""
        return spec.Endpoint("127.0.0.1", self._ports[node])

    def pid(self, node: int) -> int:
        """Return a node's process now."""
        return int(self._run("pid", node))

    def start(self, node: int) -> None:
        """Start a node and wait until it is up."""
        self._run("start", node)

    def stop(self, node: int) -> None:
        """Drain a node, and end it in order."""
        self._run("stop", node)

    def end(self) -> None:
        """End all nodes."""
        for node in range(NODES):
            self._run("stop", node)


@contextmanager
def own_cluster(context: Context, settings: BrokerSettings) -> Iterator[OwnCluster]:
    """Give a cluster of this repository's broker, with empty folders that go with it."""
    folder = Path(tempfile.mkdtemp(prefix="amqp10broker-", dir=context.options.data_root))
    try:
        cluster = OwnCluster(context.options.python, folder, settings.arguments())
        try:
            yield cluster
        finally:
            cluster.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _clusters(context: Context) -> Iterator[list[Cluster]]:
    """Give the clusters that are asked for, all running; a cluster at rest costs the other one little."""
    with ExitStack() as running:
        clusters: list[Cluster] = []
        if not context.options.cluster_peer_only:
            clusters.append(
                running.enter_context(own_cluster(context, context.settings(max_link_credit=2000)))
            )
        if context.options.cluster_peer:
            peer = PeerCluster(context.options.cluster_peer)
            running.callback(_end, context, peer)
            clusters.append(peer)
        yield clusters


def _end(context: Context, cluster: PeerCluster) -> None:
    """End another broker's nodes; if they do not end, that is said: what was measured counts all the same."""
    try:
        cluster.end()
    except (BrokerError, OSError) as error:
        context.say(f"{cluster.name:6} does not end: {error}")


@dataclass
class ClusterTarget(Target):
    """All nodes of a cluster, loaded at one of them."""

    cluster: Cluster
    node: int

    def __post_init__(self) -> None:
        """Look up the processes once: no node ends while this is in use."""
        self.endpoint = self.cluster.endpoint(self.node)
        self._pids = [self.cluster.pid(node) for node in range(NODES)]

    def cpu_s(self) -> float:
        """Return the processor time of all nodes."""
        return sum(map(process_cpu_s, self._pids))

    def helper_cpu_s(self) -> float:
        """Return that of the processes they have started."""
        return sum(map(children_cpu_s, self._pids))

    def rss_bytes(self) -> int:
        """Return the resident memory of the largest node."""
        return max(map(process_rss_bytes, self._pids))


def _declare(cluster: Cluster, queue: str, leader: int) -> str:
    """Declare a quorum queue with its leader at a node, where it is declared; return its address."""
    with Queues(cluster.endpoint(leader)) as known:
        known.declare({queue: "quorum"})
    return f"/queues/{queue}"


# --- cases ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rate:
    """A case of steady load."""

    name: str
    connections: Callable[[str, int], spec.Connections]
    """Given the address and the size of messages."""
    counter: str
    node: int = 0
    """That is loaded; the leader is at 0."""

    def measure(self, context: Context, cluster: Cluster, queue: str) -> list[Row]:
        """Return the sample of one window."""
        address = _declare(cluster, queue, 0)
        target = ClusterTarget(cluster, self.node)
        load = spec.Load(target.endpoint, self.connections(address, context.size_bytes), name=self.name)
        taken = window(target, load, warmup_s=context.warmup_s, duration_s=context.duration_s)
        if taken.counts[0].refused:
            raise MeasureError(f"{self.name}: {taken.counts[0].refused} messages were refused")
        with Queues(cluster.endpoint(0)) as known:
            known.purge((queue,))
        return [taken.row(self.name, cluster.name, getattr(taken.counts[0], self.counter))]


@dataclass(frozen=True, slots=True)
class Pause:
    """A case in which a publisher waits for a new leader, again and again, each node losing it in turn."""

    name: str
    fault: Callable[[Cluster, int], None]
    heal: Callable[[Cluster, int], None]
    quick: int
    times: int

    def measure(self, context: Context, cluster: Cluster, queue: str) -> list[Row]:
        """Return one sample of all pauses."""
        pauses = [
            self._one(context, cluster, f"{queue}-{number}", number % NODES)
            for number in range(self.quick if context.quick else self.times)
        ]
        context.say(f"{cluster.name:6} {self.name:32} {', '.join(f'{pause:.3f}' for pause in pauses)} s")
        row: Row = {"case": self.name, "target": cluster.name, "pauses_s": pauses}
        return [row | {"pause_p50_s": median(pauses), "pause_max_s": max(pauses)}]

    def _one(self, context: Context, cluster: Cluster, queue: str, leader: int) -> float:
        address = _declare(cluster, queue, leader)
        group = spec.Publish((address,), size_bytes=context.size_bytes, in_flight_max=PAUSE_IN_FLIGHT)
        elsewhere = cluster.endpoint((leader + 1) % NODES)
        load = spec.Load(elsewhere, (spec.connection(group),), seconds_max=600.0, name=self.name)
        with LoadProcess(load) as process:
            process.start()
            watch = _Watch(process)
            watch.look(context.warmup_s)
            if not watch.confirmed:
                raise MeasureError(f"{self.name}: nothing was confirmed before the fault")
            watch.longest_s = 0.0
            with ThreadPoolExecutor(1) as beside:
                fault = beside.submit(self.fault, cluster, leader)
                watch.look(context.warmup_s, until=fault.done)
                fault.result()
                watch.await_progress()
                heal = beside.submit(self.heal, cluster, leader)
                watch.look(context.warmup_s, until=heal.done)
                heal.result()
            result = process.stop()
        if result.counts[0].refused:
            raise MeasureError(f"{self.name}: {result.counts[0].refused} messages were refused")
        return watch.longest_s


class _Watch:
    """Looks at what a load process has had confirmed, and keeps the longest time without news."""

    def __init__(self, process: LoadProcess) -> None:
        self._process = process
        self.confirmed = 0
        self.longest_s = 0.0
        self._since = time.monotonic()

    def look(self, seconds: float, until: Callable[[], bool] = lambda: True) -> None:
        """Watch for so long, and until the condition holds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or not until():
            self._once()

    def await_progress(self) -> None:
        """Watch until something more is confirmed."""
        before, end = self.confirmed, time.monotonic() + PAUSE_TIMEOUT_S
        while self.confirmed == before:
            if time.monotonic() > end:
                raise MeasureError(f"nothing was confirmed for {PAUSE_TIMEOUT_S:g} s")
            self._once()

    def _once(self) -> None:
        time.sleep(_LOOK_S)
        confirmed, now = self._process.counts().confirmed, time.monotonic()
        self.longest_s = max(self.longest_s, now - self._since)
        if confirmed != self.confirmed:
            self.confirmed, self._since = confirmed, now


@dataclass(frozen=True, slots=True)
class Idle:
    """Queues at rest."""

    name: str = "idle quorum queues"

    def measure(self, context: Context, cluster: Cluster, queue: str) -> list[Row]:
        """Return the processor time of the busiest node, and the memory of the largest."""
        count: int = context.options.cluster_idle_queues or (50 if context.quick else 1000)
        queues = [f"{queue}-{number}" for number in range(count)]
        for node in range(NODES):
            with Queues(cluster.endpoint(node)) as known:
                known.declare(dict.fromkeys(queues[node::NODES], "quorum"))
        time.sleep(context.duration_s)
        pids = [cluster.pid(node) for node in range(NODES)]
        before, began = [process_cpu_s(pid) for pid in pids], time.monotonic()
        time.sleep(3 * context.duration_s)
        used = max(process_cpu_s(pid) - cpu_s for pid, cpu_s in zip(pids, before, strict=True))
        row: Row = {"case": f"{count} {self.name}", "target": cluster.name}
        row["idle_cpu_percent"] = used / (time.monotonic() - began) * 100
        row["rss_mb"] = max(map(process_rss_bytes, pids)) / 1e6
        # What is measured behind this is not to have them beside it.
        with Queues(cluster.endpoint(0)) as known:
            known.delete(queues)
        context.say(
            f"{cluster.name:6} {row['case']:32} {row['idle_cpu_percent']:.2f} % of a processor a node"
        )
        return [row]


def _publishing(in_flight: int) -> Callable[[str, int], spec.Connections]:
    def connections(address: str, size_bytes: int) -> spec.Connections:
        return (spec.connection(spec.Publish((address,), size_bytes=size_bytes, in_flight_max=in_flight)),)

    return connections


def _both(address: str, size_bytes: int) -> spec.Connections:
    return publish_and_consume(address, size_bytes=size_bytes, credit=2000)


CASES: Final[tuple[Rate | Pause | Idle, ...]] = (
    Rate("publish, 2 000 in flight", _publishing(2000), "confirmed"),
    Rate("publish, 64 in flight", _publishing(64), "confirmed"),
    Rate("publish, 1 in flight", _publishing(1), "confirmed"),
    Rate("publish + consume", _both, "delivered"),
    Rate("publish, 2 000 in flight, at a follower", _publishing(2000), "confirmed", node=1),
    Rate("publish + consume, at a follower", _both, "delivered", node=1),
    Pause(
        "pause: leader killed",
        lambda cluster, node: cluster.signal(node, signal.SIGKILL),
        lambda cluster, node: cluster.start(node),
        quick=1,
        times=10,
    ),
    Pause(
        "pause: leader stopped by SIGSTOP",
        lambda cluster, node: cluster.signal(node, signal.SIGSTOP),
        lambda cluster, node: cluster.signal(node, signal.SIGCONT),
        quick=1,
        times=5,
    ),
    Pause(
        "pause: restart with drain",
        lambda cluster, node: cluster.stop(node),
        lambda cluster, node: cluster.start(node),
        quick=1,
        times=3,
    ),
    Idle(),
)


def run(context: Context) -> Outcome:
    """Measure all cases at each cluster, in turns."""
    cases = [case for case in CASES if context.options.cluster_case in case.name]
    outcome = Outcome(COLUMNS, context.described_settings())
    outcome.samples += _floor(context.options.data_root)
    with _clusters(context) as clusters:
        for repetition in range(context.repetitions):
            for number, case in enumerate(cases):
                once = repetition == 0 or isinstance(case, Rate)
                for cluster in clusters if once else ():
                    outcome.samples += _told(context, case, cluster, f"bench-{repetition}-{number}")
    outcome.samples += _floor(context.options.data_root)
    return outcome


def _told(context: Context, case: Rate | Pause | Idle, cluster: Cluster, queue: str) -> list[Row]:
    try:
        rows = case.measure(context, cluster, queue)
    except (BenchmarkError, OSError) as error:
        context.say(f"{cluster.name:6} {case.name:32} failed: {error}")
        return [{"case": case.name, "target": cluster.name, "failed": str(error)}]
    for row in rows:
        if "rate_per_s" in row:
            context.say_row(row)
    return rows


def _floor(folder: Path) -> list[Row]:
    """Return what three processes take that append and sync at once."""
    with ProcessPoolExecutor(NODES, multiprocessing.get_context("spawn")) as at_once:
        times = [each.result() for each in [at_once.submit(SyncTime.measure, folder) for _ in range(NODES)]]
    row: Row = {"case": "append 4 KiB and sync, three at once", "target": "floor"}
    row["fdatasync_p50_ms"] = median(each.p50_ms for each in times)
    row["fdatasync_p99_ms"] = max(each.p99_ms for each in times)
    return [row]


# --- helpers ----------------------------------------------------------------------------------------------


def _await(condition: Callable[[], Any], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise BrokerError(f"no {what} after {seconds:g} s")
        time.sleep(0.01)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _free_ports() -> list[int]:
    """Return ports in a row that nobody has, nor those for nodes; the system gives neither to clients."""
    for first in range(12_000 + os.getpid() % 500, 12_700, NODES):
        ports = list(range(first, first + NODES))
        if not any(_accepts(port + above) for port in ports for above in (0, 20_000)):
            return ports
    raise BrokerError("no free ports in a row")


BENCHMARK: Final = Benchmark(
    "cluster",
    "What do three nodes cost, and how long does a publisher wait when one is lost?",
    run,
    options(
        cluster_case=("", "only cases with this text in their name; default: all"),
        cluster_peer=(str, "program that runs another broker's nodes: PROGRAM port|pid|start|stop 1|2|3"),
        cluster_peer_only=(False, "measure only that"),
        cluster_idle_queues=(int, "queues at rest (1000, with --quick 50)"),
    ),
    in_all=False,
)
