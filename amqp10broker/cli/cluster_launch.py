"""``run-cluster``: nodes on this machine, each in its own process; and files of a stopped node.

Nodes find each other, and a killed node ends neither the others nor the command. Each runs in its own
session, so that Ctrl-C reaches only this command, which then stops the nodes in order.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import signal
import socket
import string
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Final

from amqp10broker import portable
from amqp10broker.children import PYTHON, environment
from amqp10broker.cli.commands import Command, Parser
from amqp10broker.cli.exits import EXIT_FAILED, EXIT_OK, Failed
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.folder import inspect_data_folder


def write_secret(path: str) -> None:
    """Write a random secret to a new file that only its owner can read."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError(
            path,
            "exists already",
            "give another name; all nodes must have one secret",
        ) from error
    except OSError as error:
        raise ConfigError(path, f"cannot be written: {error.strerror}", "give another file") from error
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(f"{secrets.token_urlsafe(32)}\n")
        file.flush()
        os.fsync(fd)


def _secret_arguments(parser: Parser) -> None:
    parser.add_argument(
        "path", metavar="FILE", help="new file for the secret, for --cluster-secret-file of every node"
    )


def _standalone_arguments(parser: Parser) -> None:
    parser.add_argument("path", metavar="DIR", help="data folder of the stopped node")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation (default: ask)")


def force_standalone(path: str, confirmed: Callable[[str], bool]) -> str | None:
    """Make a cluster of one of a stopped node's data. Returns the result for people; None: not confirmed.
    Raises `StorageError` if the folder is in use, not a data folder, or unusable, and `NotInACluster`.
    """
    # These modules import the broker, which other commands do not need.
    from amqp10broker.runtime.journal.data import Data, standalone

    disk, path = Disk(), os.path.abspath(path)
    inspect_data_folder(disk, path).close()  # does not create a missing folder
    data = Data(disk, path)
    try:
        found = standalone(data, lambda: secrets.token_hex(16))
        me = found.membership.name
        lines = [
            f"node '{me}' becomes a cluster of one node; lost nodes: {', '.join(found.lost) or 'none'}",
            "confirmed messages and metadata that only the lost nodes had are lost",
            *(
                f"lost: queue '{name}' in vhost '{vhost}', which had no member on this node"
                for vhost, name in found.gone
            ),
        ]
        if not confirmed("\n".join(lines)):
            return None
        found.carry_out(data)
    finally:
        data.close()
    return (
        f"node '{me}' is a cluster of one node, with {found.kept} queues: start it; a lost node needs an "
        "empty folder to join it again"
    )


def _ask(told: str) -> bool:
    print(told, file=sys.stderr)
    if not sys.stdin.isatty():
        raise Failed("nothing was changed: give --yes to confirm")
    print("continue? (yes/no) ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == "yes"


def _tell(told: str) -> bool:
    print(told, file=sys.stderr)
    return True


def _new_secret(arguments: argparse.Namespace) -> int:
    write_secret(arguments.path)
    print(
        f"copy {arguments.path} to every node, readable by its owner only, and give it there with "
        "--cluster-secret-file"
    )
    return EXIT_OK


def _force_standalone(arguments: argparse.Namespace) -> int:
    done = force_standalone(arguments.path, _tell if arguments.yes else _ask)
    print(done or "nothing was changed")
    return EXIT_OK if done else EXIT_FAILED


NAMES: Final = string.ascii_lowercase
HOST: Final = "127.0.0.1"
CLUSTER_PORTS_ABOVE: Final = 20_000
PORT_MAX: Final = 65_535

COMMAND: Final = "command"
PID: Final = "pid"
"""File of its process id, written by the node."""
LOG: Final = "log"
SECRET: Final = "secret"

_POLL_S: Final = 0.05
_TOLD_EACH_S: Final = 10.0
_STOP_S: Final = 20.0
"""The time limit for one node's orderly stop: twice its `shutdown_timeout_ms`."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    name: str
    folder: str
    port: int
    cluster_port: int
    command: tuple[str, ...]


def plan_nodes(count: int, first_port: int, data: str, options: Sequence[str]) -> list[NodePlan]:
    if not 1 <= count <= len(NAMES):
        raise ConfigError("option --nodes", f"is {count}", f"must be 1 to {len(NAMES)}")
    if not 1 <= first_port <= PORT_MAX + 1 - count:
        raise ConfigError(
            "option --first-port",
            f"is {first_port}",
            f"must be 1 to {PORT_MAX + 1 - count} for {count} nodes",
        )
    last = first_port + count - 1
    above = CLUSTER_PORTS_ABOVE if last + CLUSTER_PORTS_ABOVE <= PORT_MAX else -CLUSTER_PORTS_ABOVE
    ports = {name: first_port + place for place, name in enumerate(NAMES[:count])}
    nodes = ",".join(f"{name}={HOST}:{port + above}" for name, port in ports.items())
    folder = os.path.abspath(data)
    return [
        NodePlan(
            name,
            os.path.join(folder, name),
            port,
            port + above,
            (
                *(*PYTHON, "-m", "amqp10broker", "serve", "--node-name", name),
                *("--data-dir", os.path.join(folder, name), "--host", HOST, "--port", str(port)),
                *("--cluster-port", str(port + above), "--cluster-nodes", nodes),
                *("--cluster-secret-file", os.path.join(folder, SECRET), *options),
            ),
        )
        for name, port in ports.items()
    ]


class Launch:
    def __init__(self, plans: Sequence[NodePlan], data: str) -> None:
        self._plans = plans
        self._data = os.path.abspath(data)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._over: set[str] = set()
        self._signals = 0

    def run(self) -> int:
        before = {number: signal.getsignal(number) for number in portable.SERVICE_SIGNALS}
        try:
            for number in before:
                signal.signal(number, self._signalled)
            try:
                self._start()
                if self._wait_until_up():
                    self._watch()
            finally:
                self._stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return EXIT_OK

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    # --- start ------------------------------------------------------------------------------------

    def _start(self) -> None:
        make_secret(self._data)
        environ = {name: text for name, text in environment().items() if not name.startswith("AMQP10BROKER_")}
        for plan in self._plans:
            running = running_pid(plan)
            if running is not None:
                raise Failed(
                    f"node '{plan.name}' runs already (process {running}): stop it, or give another --data"
                )
            # Otherwise another listener would be mistaken for the node when its port is probed.
            _check_free(plan)
        for plan in self._plans:
            try:
                os.makedirs(plan.folder, mode=0o700, exist_ok=True)
                command = os.path.join(plan.folder, COMMAND)
                # A reader that waits for the file must find it complete.
                with open(f"{command}.new", "w", encoding="utf-8") as file:
                    file.write(f"{shlex.join(plan.command)}\n")
                os.replace(f"{command}.new", command)
                with open(os.path.join(plan.folder, LOG), "ab") as log:
                    self._processes[plan.name] = subprocess.Popen(
                        plan.command,
                        env=environ,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        **portable.OWN_SESSION,
                    )
            except OSError as error:
                raise Failed(
                    f"{plan.folder} cannot be used: {error.strerror}; give another --data"
                ) from error
            _say(
                f"node {plan.name}: process {self._processes[plan.name].pid}, AMQP on {HOST}:{plan.port}, "
                f"other nodes on {plan.cluster_port}, in {plan.folder}"
            )
        if self._plans[0].cluster_port < self._plans[0].port:
            _say("(other nodes on the AMQP port less 20000: above it would be no port)")

    def _wait_until_up(self) -> bool:
        # A node serves clients when it has the cluster's metadata. False: this process was signalled before.
        started = told = time.monotonic()
        waiting = list(self._plans)
        while waiting:
            if self._signals:
                return False
            for plan in waiting:
                process = self._processes[plan.name]
                if process.poll() is not None:
                    raise Failed(
                        f"node '{plan.name}' cannot start: {_last_line(plan)} (its log: "
                        f"{os.path.join(plan.folder, LOG)})"
                    )
            waiting = [plan for plan in waiting if not _serves(plan)]
            if time.monotonic() - told >= _TOLD_EACH_S:
                told = time.monotonic()
                for plan in waiting:
                    _say(f"still waiting for node {plan.name}: {_last_line(plan)}")
            time.sleep(_POLL_S)
        _say("")
        _say(f"The cluster is up: {len(self._plans)} nodes after {time.monotonic() - started:.1f} s.")
        self._print_status_hint()
        return True

    def _print_status_hint(self) -> None:
        typed = _own_name()
        first, last = self._plans[0], self._plans[-1]
        _say("Look at it:")
        _say(f"  {typed} cluster status --port {first.port}")
        _say(f"  {typed} status --port {last.port}")
        _say("Use it, on any node:")
        _say(f"  {typed} queue declare orders --type quorum --port {first.port}")
        _say(f"  {typed} publish --queue orders hello --port {last.port}")
        _say(f"  {typed} get orders --port {first.port}")
        _say(f"Lose a node:    kill -9 $(cat {shlex.quote(os.path.join(last.folder, PID))})")
        _say(f"Start it again: sh {shlex.quote(os.path.join(last.folder, COMMAND))}")
        _say("Press Ctrl-C to stop all nodes cleanly.")

    # --- running, and the end ---------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._signals:
            for plan in self._plans:
                process = self._processes[plan.name]
                if plan.name not in self._over and process.poll() is not None:
                    self._over.add(plan.name)
                    _say(
                        f"node {plan.name}: process {process.pid} ended {_how(process.returncode)}; start it "
                        f"again with: sh {shlex.quote(os.path.join(plan.folder, COMMAND))}"
                    )
            time.sleep(_POLL_S)

    def _stop(self) -> None:
        # The last node first, so that the founder has seen all others leave. Nodes that were started again by
        # hand are ended as well. A second signal kills.
        for plan in reversed(self._plans):
            process = self._processes.get(plan.name)
            pid = running_pid(plan) if process is None or process.poll() is not None else process.pid
            if pid is None:
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, portable.STOP)
            deadline = time.monotonic() + _STOP_S
            while (lives := _lives(pid, process)) and self._signals < 2 and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            if lives:
                with suppress(ProcessLookupError):
                    os.kill(pid, portable.KILL)
            _say(f"node {plan.name}: {'killed' if lives else 'stopped'}")


# --- one node -------------------------------------------------------------------------------------


def make_secret(data: str) -> None:
    path = os.path.join(data, SECRET)
    try:
        os.makedirs(data, exist_ok=True)
    except OSError as error:
        raise Failed(f"{data} cannot be made: {error.strerror}; give another folder with --data") from error
    if not os.path.exists(path):
        write_secret(path)


def running_pid(plan: NodePlan) -> int | None:
    """Return the process id of a node; None: it does not run."""
    try:
        with open(os.path.join(plan.folder, PID), encoding="ascii") as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except (OSError, ValueError):
        return None
    # The number may belong to another process by now.
    return pid if os.fsencode(plan.folder) in words else None


def _lives(pid: int, process: subprocess.Popen[bytes] | None) -> bool:
    if process is not None and process.pid == pid:
        return process.poll() is None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def _check_free(plan: NodePlan) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, portable.REUSE_ADDRESS, 1)
        try:
            probe.bind((HOST, plan.port))
        except OSError as error:
            raise Failed(
                f"port {plan.port} on {HOST} for node '{plan.name}' cannot be used: {error.strerror}; stop "
                "the program that listens there, or give another --first-port"
            ) from error


def _serves(plan: NodePlan) -> bool:
    try:
        socket.create_connection((HOST, plan.port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _last_line(plan: NodePlan) -> str:
    try:
        with open(os.path.join(plan.folder, LOG), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    return lines[-1].removeprefix("amqp10broker: ") if lines else "it wrote no log"


def _how(code: int) -> str:
    return f"with code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"


def _own_name() -> str:
    called = sys.argv[0]
    if os.path.basename(called) == "amqp10broker":
        return os.path.relpath(called) if os.path.dirname(called) else called
    return f"{shlex.quote(sys.executable)} -m amqp10broker"


def _say(text: str) -> None:
    # The reader of a pipe may have ended; nodes must be stopped all the same.
    with suppress(OSError):
        print(text, flush=True)


# --- the command ----------------------------------------------------------------------------------


def _arguments(parser: Parser) -> None:
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="number of nodes (default: 3)")
    parser.add_argument(
        "--first-port",
        type=int,
        default=5672,
        metavar="PORT",
        help="AMQP port of the first node; the others use the next ports (default: 5672). The ports between "
        "nodes are 20000 above",
    )
    parser.add_argument(
        "--data",
        default="cluster",
        metavar="DIR",
        help="folder for the nodes' data folders DIR/a, DIR/b, ... (default: cluster)",
    )
    parser.add_argument(
        "serve_options", nargs="*", metavar="-- OPTION", help="options of serve, for every node"
    )


def _run_cluster(arguments: argparse.Namespace) -> int:
    plans = plan_nodes(arguments.nodes, arguments.first_port, arguments.data, arguments.serve_options)
    return Launch(plans, arguments.data).run()


COMMANDS: Final = (
    Command(
        "run-cluster",
        _arguments,
        _run_cluster,
        "Run a cluster on this machine until Ctrl-C, each node in its own process. You can kill a node; "
        "the script 'command' in its folder starts it again.",
    ),
    Command(
        "cluster new-secret",
        _secret_arguments,
        _new_secret,
        "Generate the secret that the nodes of a cluster share, and write it to a new file that only its "
        "owner can read.",
    ),
    Command(
        "cluster force-standalone",
        _standalone_arguments,
        _force_standalone,
        "When most nodes of a cluster are lost permanently, make a cluster of one node from a stopped "
        "node's data folder: its metadata, and every quorum queue that has a member there. Other nodes can "
        "join it then. The command prints what is lost, and asks for confirmation before it changes "
        "anything.",
    ),
)
