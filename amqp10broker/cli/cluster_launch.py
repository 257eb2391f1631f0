"""``amqp10broker run-cluster``: some nodes of a cluster on this machine, each a process of its own.

The command only starts and ends processes: nodes find each other by themselves, and a killed node ends
neither the others nor the command. Each runs in a session of its own, so that ctrl-C reaches this command
alone, which then ends the nodes in order.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import string
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Final

from amqp10broker import portable
from amqp10broker.children import PYTHON, environment
from amqp10broker.cli import cluster_files
from amqp10broker.cli.commands import Command, Parser
from amqp10broker.cli.exits import EXIT_OK, Failed
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError

NAMES: Final = string.ascii_lowercase
HOST: Final = "127.0.0.1"
CLUSTER_PORTS_ABOVE: Final = 20_000
PORT_MAX: Final = 65_535

COMMAND: Final = "command"
"""File in a node's folder with its command line."""
PID: Final = "pid"
"""File in a node's folder with its process id, written by the node."""
LOG: Final = "log"
"""File in a node's folder with its output while this command runs it."""
SECRET: Final = "secret"
"""File beside the nodes' folders with the cluster's secret."""

_POLL_S: Final = 0.05
_TOLD_EACH_S: Final = 10.0
_STOP_S: Final = 20.0
"""Time limit of one node's orderly end: its `shutdown_timeout_ms`, and as long again."""


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
    """The nodes of one command, while it runs."""

    def __init__(self, plans: Sequence[NodePlan], data: str) -> None:
        self._plans = plans
        self._data = os.path.abspath(data)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._over: set[str] = set()
        self._signals = 0

    def run(self) -> int:
        """Start the nodes, and end them at a signal to this process."""
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
            # Another listener would be taken for the node when its port is probed.
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
        # Every node serves clients once it has the cluster's metadata. False if this process was signalled
        # before.
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
        self._say_how_to_look()
        return True

    def _say_how_to_look(self) -> None:
        typed = _own_name()
        first, last = self._plans[0], self._plans[-1]
        _say("Look at it:")
        _say(f"  {typed} cluster status --port {first.port}")
        _say(f"  {typed} status --port {last.port}")
        _say("Use it, at any node:")
        _say(f"  {typed} queue declare orders --type quorum --port {first.port}")
        _say(f"  {typed} publish --queue orders hello --port {last.port}")
        _say(f"  {typed} get orders --port {first.port}")
        _say(f"Lose a node:    kill -9 $(cat {shlex.quote(os.path.join(last.folder, PID))})")
        _say(f"Start it again: sh {shlex.quote(os.path.join(last.folder, COMMAND))}")
        _say("ctrl-C ends all nodes in order.")

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
    """Write a secret that the nodes share, readable for its owner only, unless there is one."""
    path = os.path.join(data, SECRET)
    try:
        os.makedirs(data, exist_ok=True)
    except OSError as error:
        raise Failed(f"{data} cannot be made: {error.strerror}; give another folder with --data") from error
    if not os.path.exists(path):
        cluster_files.make_secret(path)


def running_pid(plan: NodePlan) -> int | None:
    """Return the process id of a node by its pid file; None if it does not run."""
    try:
        with open(os.path.join(plan.folder, PID), encoding="ascii") as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except (OSError, ValueError):
        return None
    # The number may be another process's by now.
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
                f"port {plan.port} on {HOST} for node '{plan.name}' cannot be used: {error.strerror}; end "
                "what listens there, or give another --first-port"
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
    return lines[-1].removeprefix("amqp10broker: ") if lines else "it has said nothing"


def _how(code: int) -> str:
    return f"with code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"


def _own_name() -> str:
    called = sys.argv[0]
    if os.path.basename(called) == "amqp10broker":
        return os.path.relpath(called) if os.path.dirname(called) else called
    return f"{shlex.quote(sys.executable)} -m amqp10broker"


def _say(text: str) -> None:
    # The reader of a pipe may have gone; nodes must be ended all the same.
    with suppress(OSError):
        print(text, flush=True)


# --- the command ----------------------------------------------------------------------------------


def _arguments(parser: Parser) -> None:
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="how many (default 3)")
    parser.add_argument(
        "--first-port",
        type=int,
        default=5672,
        metavar="PORT",
        help="where the first listens for AMQP, the others on those that follow (default 5672); for each "
        "other they listen on ports 20000 above",
    )
    parser.add_argument(
        "--data",
        default="cluster",
        metavar="DIR",
        help="folder of their folders, DIR/a, DIR/b, ... (default: cluster); made if it is not there",
    )
    parser.add_argument(
        "serve_options", nargs="*", metavar="-- OPTION", help="options of serve, for each of them"
    )


def _run_cluster(arguments: argparse.Namespace) -> int:
    plans = plan_nodes(arguments.nodes, arguments.first_port, arguments.data, arguments.serve_options)
    return Launch(plans, arguments.data).run()


COMMANDS: Final = (
    Command(
        "run-cluster",
        _arguments,
        _run_cluster,
        "Run a cluster on this machine until ctrl-C, each node a process of its own. A node that is killed "
        "ends no other; the file command in its folder starts it again.",
    ),
)
