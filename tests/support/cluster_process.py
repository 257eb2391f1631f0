"""A cluster of real processes: started by ``run-cluster``, hurt node by node, and ended to the last process.

A node is known by its folder: there are its command line, the number of its process and its log. What is
ended here is ended by that number, and by no name.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Final, Self

import pytest

from amqp10broker import syncing
from amqp10broker.cli.main import main
from tests.support.broker_process import REPOSITORY
from tests.support.cluster_history import TotalQueue
from tests.support.crash_load import connected, look

START_S: Final = 60.0
STOP_S: Final = 40.0
WAIT_S: Final = 60.0
COMMAND_S: Final = 60.0
RETURN_S: Final = 75.0
"""What a consumer of a lost node held is back after 60 s at the latest."""
_POLL_S: Final = 0.05
# Their other port is 20000 above: both lie below those that systems give to clients.
_FIRST_PORTS: Final = range(10_000, 12_700)
_CLUSTER_PORTS_ABOVE: Final = 20_000
_random_source: Final = random.SystemRandom()
_kept_ports: Final[list[ExitStack]] = []
_one_command: Final = threading.Lock()
"""What a command says goes to the one standard output that there is."""


class ClusterNode:
    """One node; its folder has its data, command line, process number and log."""

    def __init__(self, folder: Path, port: int) -> None:
        self.name = folder.name
        self.folder = folder
        self.host = "127.0.0.1"
        self.port = port
        self.exit_code: int | None = None
        self._again: list[subprocess.Popen[bytes]] = []
        self._paused = False
        self._said_before = 0

    @property
    def cluster_port(self) -> int:
        return self.port + _CLUSTER_PORTS_ABOVE

    @property
    def pid(self) -> int | None:
        """Return the node's process id, or None if the node does not run."""
        try:
            pid = int((self.folder / "pid").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        # The number may be another process's by now; a dead one that nobody has waited for has no words.
        return pid if os.fsencode(self.folder) in words else None

    def kill(self) -> None:
        """End the process with SIGKILL, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Suspend the process until `resume`: its connections stay open and send nothing."""
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self._paused = False

    def hang_disk(self) -> None:
        """Stop the sync helpers until `free_disk`, so that nothing becomes durable."""
        for pid in self._syncers():
            os.kill(pid, signal.SIGSTOP)

    def free_disk(self) -> None:
        for pid in self._syncers():
            os.kill(pid, signal.SIGCONT)

    def _syncers(self) -> list[int]:
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.pid and os.fsencode(syncing.__file__) in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        assert found, f"node {self.name} has nothing that syncs"
        return found

    def start(self) -> None:
        """Start the node by its own command line; `Cluster.wait_until_up` waits."""
        assert self.pid is None, f"node {self.name} runs"
        environ = {name: text for name, text in os.environ.items() if not name.startswith("AMQP10BROKER_")}
        with (self.folder / "log").open("ab") as log:
            self._said_before = log.tell()
            self._again.append(
                subprocess.Popen(
                    shlex.split((self.folder / "command").read_text()),
                    cwd=REPOSITORY,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    @property
    def accepts(self) -> bool:
        """Return whether clients can connect; a node accepts them once it has caught up."""
        if self._paused:
            return False  # the system would accept for it
        try:
            socket.create_connection((self.host, self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def empty(self) -> None:
        """Delete all files but the command line; the node must not run."""
        assert self.pid is None, f"node {self.name} runs"
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "command":
                path.unlink()

    def said(self, words: str) -> bool:
        """Return whether a log line since the last `start` contains these words."""
        return words in (self.folder / "log").read_bytes()[self._said_before :].decode(errors="replace")

    def log(self) -> list[dict[str, Any]]:
        """Return its log entries so far; a line that is not JSON is under ``not JSON``."""
        entries: list[dict[str, Any]] = []
        with suppress(FileNotFoundError):
            for line in (self.folder / "log").read_text(errors="replace").splitlines():
                try:
                    entries.append(json.loads(line))
                except ValueError:
                    entries.append({"not JSON": line})
        return entries

    @property
    def ended(self) -> bool:
        """Return whether every process started here has ended and was waited for."""
        self.reap()
        return not self._again and self.pid is None

    def reap(self) -> None:
        """Wait for the ended processes that were started here."""
        for process in self._again:
            self.exit_code = process.poll()
        self._again = [process for process in self._again if process.returncode is None]

    def refusal(self) -> str:
        """Start the node, require that it exits with 1, and return its last line."""
        self.start()
        deadline = time.monotonic() + WAIT_S
        while not self.ended:
            assert time.monotonic() < deadline, f"node {self.name} is not refused: {self.log()[-10:]}"
            time.sleep(_POLL_S)
        words = (self.folder / "log").read_text()
        assert self.exit_code == 1, words
        return words.splitlines()[-1]

    def finish(self) -> None:
        """Kill the node and every process started here, with or without a pid file."""
        if self.pid is not None:
            self.kill()
        for process in self._again:
            process.kill()
            process.wait()
        self._again.clear()

    def _signal(self, number: signal.Signals) -> int:
        pid = self.pid
        assert pid is not None, f"node {self.name} does not run: {self.log()[-10:]}"
        os.kill(pid, number)
        return pid

    def _end(self, number: signal.Signals) -> None:
        pid = self._signal(number)
        self._paused = False
        deadline = time.monotonic() + STOP_S
        while _runs(pid):
            self.reap()
            assert time.monotonic() < deadline, f"node {self.name} is still there after {number.name}"
            time.sleep(_POLL_S / 5)


class ClusterProcess:
    """Nodes of ``amqp10broker run-cluster``, in order of their ports, while the ``with`` block lasts."""

    def __init__(self, directory: Path, nodes: int = 3, options: Iterable[str] = ()) -> None:
        self.folder = directory / "cluster"
        self.nodes: list[ClusterNode] = []
        self._output = directory / "run-cluster.log"
        try:
            self._launch(free_ports(nodes), nodes, options)
            self.wait_until(self._is_up, "all nodes up", START_S)
        except BaseException:
            self._kill_all()
            raise

    def _launch(self, first: int, nodes: int, options: Iterable[str]) -> None:
        command = [sys.executable, "-m", "amqp10broker", "run-cluster", "--nodes", str(nodes)]
        command += ["--first-port", str(first), "--data", str(self.folder)]
        with self._output.open("wb") as output:
            self._launcher = subprocess.Popen(
                [*command, "--", "--log-format", "json", *options],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.wait_until(lambda: len(list(self.folder.glob("*/command"))) == nodes, "folders of all nodes")
        folders = sorted(self.folder.glob("*/command"), key=_port_of)
        self.nodes = [ClusterNode(path.parent, _port_of(path)) for path in folders]

    def _is_up(self) -> bool:
        return "is up" in self._output.read_text()

    def _check_launcher(self) -> None:
        assert self._launcher.poll() is None, f"run-cluster has ended\n{self.words()}"

    def another(self, folder: Path, name: str, port: int | None = None, **options: str | None) -> ClusterNode:
        """Make a node with the first one's options and these (None removes one); the test runs it."""
        words = shlex.split((self.nodes[0].folder / "command").read_text())
        first = words.index("serve") + 1
        given: dict[str, str | None] = dict(zip(words[first::2], words[first + 1 :: 2], strict=True))
        node = ClusterNode(folder / name, port or free_ports(1))
        given |= {"--node-name": name, "--data-dir": str(node.folder), "--port": str(node.port)}
        given["--cluster-port"] = str(node.cluster_port)
        given |= {f"--{option.replace('_', '-')}": value for option, value in options.items()}
        pairs = [word for option, value in given.items() if value is not None for word in (option, value)]
        node.folder.mkdir(mode=0o700, exist_ok=True)
        (node.folder / "command").write_text(shlex.join([*words[:first], *pairs]))
        return node

    # --- asking -----------------------------------------------------------------------------------

    def node(self, name: str) -> ClusterNode:
        """Return the node of this name; the part after an ``@`` is ignored."""
        return next(each for each in self.nodes if each.name == name.partition("@")[0])

    def others(self, *nodes: ClusterNode) -> list[ClusterNode]:
        return [each for each in self.nodes if each not in nodes]

    def run_command(self, node: ClusterNode, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Return exit code and output of ``amqp10broker ARGUMENTS --port PORT``. It runs in this process,
        one command at a time: a process of its own takes half a second to start, and there are hundreds
        of them.
        """
        words = [*arguments, "--port", str(node.port)]
        said, complained = io.StringIO(), io.StringIO()
        with _one_command, redirect_stdout(said), redirect_stderr(complained):
            code = main(words)
        return subprocess.CompletedProcess(words, code, said.getvalue(), complained.getvalue())

    def ask(self, node: ClusterNode, *arguments: str) -> Any:
        """Return the JSON that a command prints; fail if the command is refused."""
        done = self.run_command(node, *arguments, "--formatter", "json")
        assert done.returncode == 0, f"{arguments} at {node.name}: {done.returncode}, {done.stderr}"
        return json.loads(done.stdout)

    def status(self, node: ClusterNode) -> dict[str, Any]:
        document: dict[str, Any] = self.ask(node, "cluster", "status")
        return document

    def look(self, node: ClusterNode, notes: TotalQueue) -> list[tuple[str, bool]]:
        """Return all that a queue holds, in order, with marks, once lost clients' messages are requeued."""
        wanted = len(notes.wanted)

        def counted() -> bool:
            with connected(node) as connection:
                declared = connection.channel().queue_declare(notes.queue, passive=True)
                return bool(declared.method.message_count >= wanted)

        deadline = time.monotonic() + RETURN_S
        while not counted() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return look(node, notes.queue)

    # --- waiting ----------------------------------------------------------------------------------

    def wait_until_up(self, *nodes: ClusterNode, at: ClusterNode | None = None) -> None:
        """Wait until these nodes (or all) accept clients, and a running node sees them as running."""
        wanted = nodes or tuple(self.nodes)
        self.wait_until(lambda: all(each.accepts for each in wanted), f"{[each.name for each in wanted]} up")
        seer = at or wanted[0]
        names = {each.name for each in wanted}

        def seen() -> bool:
            running = {name.partition("@")[0] for name in self.status(seer)["running_nodes"]}
            return names <= running

        self.wait_until(seen, f"{sorted(names)} run, as {seer.name} sees it")

    def wait_until(self, condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            self._check_launcher()
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}\n{self.words()}"
            time.sleep(_POLL_S)
        return value

    def words(self) -> str:
        """Return the ends of all logs, for messages of failing tests."""
        parts = [self._output.read_text()[-2000:] if self._output.exists() else ""]
        for node in self.nodes:
            parts += [f"--- {node.name}", *(json.dumps(entry) for entry in node.log()[-25:])]
        return "\n".join(parts)

    def check_logs(self, allowed: Callable[[Mapping[str, Any]], bool] = lambda entry: False) -> None:
        """Fail if a node has logged an internal fault, or a line that is not JSON."""
        for node in self.nodes:
            faults = [
                entry
                for entry in node.log()
                if (
                    "not JSON" in entry or "exception" in entry or entry.get("level") in ("error", "critical")
                )
                and not allowed(entry)
            ]
            text = "\n".join(str(entry.get("exception", entry)) for entry in faults[:10])
            assert not faults, f"{len(faults)} faults in the log of node {node.name}:\n{text}"

    # --- ending -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop all nodes in order; fail if a process remains."""
        self._resume_all()
        try:
            self._stop_launcher()
        finally:
            left = [node.name for node in self.nodes if node.pid is not None]
            self._kill_all()
        assert not left, f"still there: {left}\n{self.words()}"

    def _stop_launcher(self) -> None:
        self._launcher.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while self._launcher.poll() is None and time.monotonic() < deadline:
            for node in self.nodes:
                node.reap()
            time.sleep(_POLL_S)
        code = self._launcher.poll()
        assert code == 0, f"run-cluster ended with {code}\n{self.words()}"

    def _resume_all(self) -> None:
        for node in self.nodes:
            if node.pid is not None:
                node.resume()

    def _kill_all(self) -> None:
        if self._launcher.poll() is None:
            self._launcher.kill()
        self._launcher.wait()
        # Those of a start that failed before `nodes` was known, too: a node outlives its launcher.
        begun = self.nodes or [
            ClusterNode(path.parent, _port_of(path)) for path in self.folder.glob("*/command")
        ]
        for node in begun:
            node.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is None:
            self.stop()
        else:
            self._kill_all()

    def heal(self) -> None:
        """Start or resume all nodes, and wait until they run."""
        self._resume_all()
        for node in self.nodes:
            node.reap()
            if node.pid is None:
                node.start()
        self.wait_until_up()


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Most tests share this cluster of three nodes; use `cluster` instead, which heals it."""
    with ClusterProcess(tmp_path_factory.mktemp("cluster")) as process:
        yield process


@pytest.fixture
def cluster(shared_cluster: ClusterProcess) -> Iterator[ClusterProcess]:
    """Give three running nodes; heal them after the test, and fail on faults in their logs."""
    with healed(shared_cluster):
        yield shared_cluster


@contextmanager
def healed(
    process: ClusterProcess, allowed: Callable[[Mapping[str, Any]], bool] = lambda entry: False
) -> Iterator[None]:
    """Heal the nodes after a block, and check their logs (`check_logs`)."""
    loggers = [logging.getLogger(name) for name in ("pika", "proton")]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)  # each lost connection is a page of theirs
    yield
    for logger in loggers:
        logger.setLevel(logging.NOTSET)
    process.heal()
    process.check_logs(allowed)


def http(at: ClusterNode, method: str, path: str, /, **body: Any) -> Any:
    """Return what a node answers to an HTTP request to its API; None without a body."""
    request = urllib.request.Request(
        f"http://{at.host}:{at.port + 10_000}/api{path}",
        method=method,
        data=json.dumps(body).encode(),
        headers={
            "authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}",
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        said = answer.read()
    return json.loads(said) if said else None


def free_ports(count: int) -> int:
    """Return the first of this many free ports in a row; those 20000 above are free too. This process keeps
    them. A socket that is bound and does not listen lets a broker bind and listen, which sets
    SO_REUSEADDR, and no other test find the port free, which does not.
    """
    for _ in range(200):
        first = _random_source.choice(_FIRST_PORTS)
        ports = [*range(first, first + count)]
        ports += [port + _CLUSTER_PORTS_ABOVE for port in ports]
        with ExitStack() as taken:
            for port in ports:
                probe = taken.enter_context(socket.socket())
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    break
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            else:
                _kept_ports.append(taken.pop_all())
                return first
    raise AssertionError("no free ports in a row")


def _port_of(command: Path) -> int:
    words = shlex.split(command.read_text())
    return int(words[words.index("--port") + 1])


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
