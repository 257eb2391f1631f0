"""The broker under test as a process: start it, watch it, stop it.

Three kinds of target answer to the same questions: a broker of this repository started for one
measurement (`OwnBroker`), the floor peer (`OwnBroker` with another command), and a broker that runs
already (`RunningBroker`), whose processor time is known only when its process id is given.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from benchmarks import spec
from benchmarks.counted import read_count
from benchmarks.errors import BrokerError, PeerError
from benchmarks.peer import handshake
from benchmarks.processes import children_cpu_s, folder_bytes, process_cpu_s, process_rss_bytes, reserved_port

REPOSITORY: Final = Path(__file__).resolve().parent.parent
START_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 15.0
STATUS_TIMEOUT_S: Final = 15.0
DEFAULT_LINK_CREDIT: Final = 170
"""What RabbitMQ and the broker under test grant when nothing is set."""


class Target:
    """What a measurement asks of the broker it loads; None is what is not known of it."""

    endpoint: spec.Endpoint
    pid: int | None = None

    def cpu_s(self) -> float | None:
        """Return the processor time the broker has used so far."""
        return None if self.pid is None else process_cpu_s(self.pid)

    def helper_cpu_s(self) -> float | None:
        """Return that of the processes it has started: to sync its data folder, to record."""
        return None if self.pid is None else children_cpu_s(self.pid)

    def rss_bytes(self) -> int | None:
        """Return its resident memory now."""
        return None if self.pid is None else process_rss_bytes(self.pid)

    def disk_bytes(self) -> int | None:
        """Return the room that its data folder takes now."""
        return None

    def bytecodes(self) -> int | None:
        """Return the bytecodes it has carried out since the first call of this method."""
        return None

    def queue_counts(self) -> dict[str, int] | None:
        """Return the messages in each queue, ready and unsettled."""
        return None

    def connection_states(self) -> list[str] | None:
        """Return the state of each AMQP 0-9-1 connection."""
        return None


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings of the broker that a benchmark varies."""

    max_link_credit: int | None = 1000
    max_incoming_window: int | None = None
    max_queue_credit: int | None = None
    confirm_delays_ms: tuple[tuple[str, float], ...] = ()
    """Queue name pattern and delay: confirms of these queues come late. Needs the broker's test mode."""
    data_root: Path | None = None
    """Keep what is durable in a new folder in here, which goes with the broker; None keeps all in memory."""
    sync_delay_ms: int = 0
    """Each sync of the data folder takes so much longer. Needs the broker's test mode."""
    tree: Path = REPOSITORY
    """The checkout whose broker is started."""
    count_bytecodes: bool = False
    """Count what the broker carries out in a window, which makes it some fifty times slower there."""
    extra: tuple[str, ...] = ()
    """Arguments passed on as they are."""

    def arguments(self) -> list[str]:
        """Return the broker's command line arguments."""
        named = {
            "--max-link-credit": self.max_link_credit,
            "--max-incoming-window": self.max_incoming_window,
            "--max-queue-credit": self.max_queue_credit,
        }
        result = [text for name, value in named.items() if value for text in (name, str(value))]
        if self.confirm_delays_ms or self.sync_delay_ms:
            result.append("--test-mode")
        if self.sync_delay_ms:
            result += ["--sync-delay", str(self.sync_delay_ms)]
        for pattern, delay_ms in self.confirm_delays_ms:
            result += ["--confirm-delay", f"{pattern}={delay_ms:g}"]
        return [*result, *self.extra]


@dataclass
class OwnBroker(Target):
    """A broker process that lives as long as the `with` block."""

    settings: BrokerSettings = field(default_factory=BrokerSettings)
    python: str = sys.executable
    user: str | None = None
    password: str = ""
    floor: tuple[str, ...] | None = None
    """Start the floor peer in the broker's place, with these arguments."""
    folder: Path | None = None
    """Use this data folder, whatever the settings say, and leave it: for a broker that is started again."""
    recording: tuple[str, ...] = ()
    """Arguments that make the broker record flow events."""
    _count: Any = field(init=False, default=None)
    """The file of the count of bytecodes."""
    endpoint: spec.Endpoint = field(init=False)
    pid: int | None = field(init=False, default=None)
    _own_folder: Path | None = field(init=False, default=None)
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)
    _log: Any = field(init=False, default=None)

    def command(self, port: int) -> list[str]:
        """Return the command line that starts the process."""
        if self.floor is not None:
            credit = str(self.settings.max_link_credit or DEFAULT_LINK_CREDIT)
            command = [self.python, "-m", "benchmarks.floor", "--port", str(port), "--credit", credit]
            return [*command, *self.floor]
        program = ["-m", "amqp10broker"]
        if self._count is not None:
            program = [str(REPOSITORY / "benchmarks" / "counted.py"), self._count.name]
        serve = [self.python, *program, "serve", "--host", "127.0.0.1", "--port", str(port)]
        if self.data_folder is not None:
            serve += ["--data-dir", str(self.data_folder)]
        return [*serve, *self.settings.arguments(), *self.recording]

    def __enter__(self) -> Self:
        """Start the process and wait until it accepts and opens a connection.

        Raises:
            BrokerError: it ended, or did not listen in time.
        """
        self._log = tempfile.TemporaryFile()
        if self.settings.count_bytecodes:
            self._count = tempfile.NamedTemporaryFile(prefix="bytecodes-")
        # Reserved until the process listens: what others start meanwhile must not get the port.
        with reserved_port() as port:
            self._start(port)
        return self

    def _start(self, port: int) -> None:
        self.endpoint = spec.Endpoint("127.0.0.1", port, self.user, self.password)
        if self.settings.data_root is not None and self.folder is None:
            self._own_folder = Path(tempfile.mkdtemp(prefix="amqp10broker-", dir=self.settings.data_root))
        began = time.monotonic()
        process = subprocess.Popen(
            self.command(port),
            cwd=REPOSITORY if self.floor is not None else self.settings.tree,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # Ctrl-C belongs to the benchmark, which then stops the broker in order.
            start_new_session=True,
        )
        self._process, self.pid = process, process.pid
        try:
            self._await_port(port, process, began)
            handshake(self.endpoint).socket.close()
        except (OSError, PeerError) as error:
            message = f"the broker refused the first connection: {error}\n{self._log_end()}"
            self._stop()
            raise BrokerError(message) from error
        except BaseException:
            self._stop()
            raise

    def _await_port(self, port: int, process: subprocess.Popen[bytes], began: float) -> None:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                return
            except OSError:
                if process.poll() is not None:
                    why = f"the broker ended with {process.returncode}"
                elif time.monotonic() - began > START_TIMEOUT_S:
                    why = f"no listener after {START_TIMEOUT_S:g} s"
                else:
                    time.sleep(0.002)
                    continue
                raise BrokerError(f"{why}:\n{self._log_end()}") from None

    def _log_end(self) -> str:
        self._log.seek(0)
        return bytes(self._log.read())[-4000:].decode(errors="replace")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Stop the process; if the measurement failed, show the end of its log."""
        if error is not None and not isinstance(error, KeyboardInterrupt):
            print(f"--- end of the broker's log ---\n{self._log_end()}", file=sys.stderr)
        self._stop()

    def _stop(self) -> None:
        """Ask the process to end by SIGTERM; kill it only if it does not."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                print("the broker did not end after SIGTERM; killed", file=sys.stderr)
                process.kill()
                process.wait()
        self._log.close()
        if self._count is not None:
            self._count.close()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    def kill(self) -> None:
        """End the process by SIGKILL, as a crash does: it writes nothing any more."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def data_folder(self) -> Path | None:
        """Where it keeps what is durable; None if it does not."""
        return self.folder or self._own_folder

    def helper_cpu_s(self) -> float | None:
        """Return that of its helpers; None if it has no data folder and does not record."""
        return Target.helper_cpu_s(self) if self.data_folder is not None or self.recording else None

    def disk_bytes(self) -> int | None:
        """Return the room that its data folder takes now; None if it has none."""
        return None if self.data_folder is None else folder_bytes(self.data_folder)

    def queue_counts(self) -> dict[str, int] | None:
        """Ask the broker's own `status` command; None if it does not answer."""
        found = self._status("queues")
        if found is None:
            return None
        return {one["name"]: one["messages_ready"] + one["messages_unsettled"] for one in found}

    def connection_states(self) -> list[str] | None:
        """Ask the same command."""
        found = self._status("connections")
        if found is None:
            return None
        return [str(one.get("state")) for one in found if "0-9-1" in str(one.get("protocol"))]

    def bytecodes(self) -> int | None:
        """Return what its process has counted since the first call; None if it does not count."""
        if self._count is None or self.pid is None:
            return None
        count = read_count(Path(self._count.name))
        if not count:
            os.kill(self.pid, signal.SIGUSR1)
        return count

    def _status(self, part: str) -> list[dict[str, Any]] | None:
        """Return one part of the status document; None if the broker does not answer."""
        if self.floor is not None:
            return None
        command = [self.python, "-m", "amqp10broker", "status", "--format", "json"]
        command += ["--port", str(self.endpoint.port)]
        try:
            done = subprocess.run(
                command, cwd=self.settings.tree, capture_output=True, timeout=STATUS_TIMEOUT_S, check=True
            )
            found: list[dict[str, Any]] = json.loads(done.stdout)[part]
            return found
        except (subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
            print(f"no {part} from the broker's status command: {error}", file=sys.stderr)
            return None


@dataclass
class RunningBroker(Target):
    """A broker that somebody else started and will stop; where it keeps its messages is not known."""

    endpoint: spec.Endpoint
    pid: int | None = None
