"""The brokers of one run of tests: started when a test first needs one, stopped at the end of the run. They
run in a thread of this process, or in another process.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
import unittest
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

import trio

from amqp10broker import portable
from amqp10broker.children import PYTHON, environment
from amqp10broker.cli import admin
from amqp10broker.config import Config
from amqp10broker.config.settings import SETTINGS
from amqp10broker.errors import BrokerError, ConfigError, hint
from amqp10broker.operations.snapshot import document
from amqp10broker.runtime.admin.admin import run_operation
from amqp10broker.runtime.broker import Broker
from amqp10broker.runtime.observe.tracing import EVERYTHING
from amqp10broker.sessions.diagnosis.survey import Selection
from amqp10broker.testing.broker import AmqpBroker, Server
from amqp10broker.testing.frames import (
    NOT_KEPT,
    ConnectionFrames,
    RecordedFrames,
    frames_in,
    lines_in,
    lines_since,
)

START_S: Final = 30.0
# How long a broker in a thread, and one in a process, may take to end.
STOP_S: Final = 10.0
PROCESS_STOP_S: Final = 20.0
# This is more than any operation takes before its own time-out.
ASK_S: Final = 60.0
# Lines of the log in the error when the broker has ended by itself.
LOG_LINES: Final = 40
# A client that a test has left open may not answer the broker's close.
SHUTDOWN_MS: Final = 2_000
# Without this setting no fault can be injected.
FAULTS: Final = {"test_mode": True}
NAME_CHARACTERS_MAX: Final = 60
FRAMES: Final = 20
"""Frames of a connection in a report, as by default with pytest."""
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")


class InProcess(Server):
    """A broker in a thread with its own Trio loop, until `stop`.

    Calls come from any thread, whatever loop runs there: the test's may be asyncio's or Trio's.
    """

    is_shared = False

    def __init__(self, config: Config, frames: int) -> None:
        """Start the broker, and wait until clients can connect. `config`: its port is 0. `frames`: kept per
        connection; 0: none.
        """
        self._config = config
        self._frames = RecordedFrames(frames, self._waiting) if frames else None
        self._begun: Future[tuple[Broker, trio.lowlevel.TrioToken, trio.Nursery]] = Future()
        self._thread = threading.Thread(target=self._run, name="amqp10broker", daemon=True)
        self._thread.start()
        self._broker, self._token, self._nursery = self._begun.result(START_S)
        self.host, self.port = self._broker.addresses[0]

    @property
    def http_url(self) -> str | None:
        """The address of the HTTP API and the page, without a slash at its end; None if HTTP is off."""
        addresses = self._broker.http_addresses
        return f"http://{addresses[0][0]}:{addresses[0][1]}" if addresses else None

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def ask(self, operation: str, arguments: Mapping[str, Any], vhost: str | None) -> Any:
        answer: Future[Any] = Future()
        try:
            self._token.run_sync_soon(
                self._nursery.start_soon, self._answer, answer, operation, arguments, vhost
            )
        except trio.RunFinishedError:
            raise BrokerError("the test's broker has ended; its log says why") from None
        return answer.result(ASK_S)

    def frames(self, began_ns: int) -> dict[int, ConnectionFrames]:
        return {} if self._frames is None else self._frames.since(began_ns)

    def recorded(self, began_ns: int) -> list[list[str]]:
        frames = self._frames
        if frames is None:
            raise BrokerError(NOT_KEPT)
        kept: Future[list[str]] = Future()
        try:
            self._token.run_sync_soon(lambda: kept.set_result(frames.recording()))
        except trio.RunFinishedError:
            kept.set_result(frames.recording())
        return [lines_since(kept.result(ASK_S), began_ns)]

    def stop(self) -> None:
        try:
            self._token.run_sync_soon(self._broker.stop)
        except trio.RunFinishedError:
            return
        self._thread.join(STOP_S)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            if self._begun.done():
                raise
            self._begun.set_exception(error)

    async def _serve(self) -> None:
        async with Broker(self._config) as broker, trio.open_nursery() as nursery:
            if self._frames is not None:
                broker.tracing.begin(EVERYTHING, self._frames, "the report of a test")
                broker.tracing.record_into("the frames of tests", self._frames, "their lint")
            self._begun.set_result((broker, trio.lowlevel.current_trio_token(), nursery))
            await broker.over.wait()
            nursery.cancel_scope.cancel()

    async def _answer(
        self, answer: Future[Any], operation: str, arguments: Mapping[str, Any], vhost: str | None
    ) -> None:
        try:
            answer.set_result(await run_operation(self._broker, operation, arguments, vhost))
        except trio.Cancelled:
            answer.set_exception(BrokerError("the test's broker was stopped"))
            raise
        except Exception as error:
            answer.set_exception(error)

    def _waiting(self, connection: int) -> list[dict[str, Any]]:
        view = self._broker.view(Selection(connection=connection))
        return [document(each) for each in view.waiting]


ProcessPlace = tuple[str, int, int, str, str, str]
"""Host, port, frames shown per connection; the admin socket, the file of frames, the folder of recordings."""


class _Remote(Server):
    # A broker in another process.

    def __init__(self, place: ProcessPlace) -> None:
        self.host, self.port, self._frames, *paths = place
        self._admin_socket, self._frames_file, self._record_folder = paths

    @property
    def place(self) -> ProcessPlace:
        """Return the location, for `SharedProcess` in another process."""
        paths = self._admin_socket, self._frames_file, self._record_folder
        return self.host, self.port, self._frames, *paths

    def ask(self, operation: str, arguments: Mapping[str, Any], vhost: str | None) -> Any:
        request: dict[str, Any] = {"op": operation, "arguments": dict(arguments)}
        if vhost is not None:
            request["vhost"] = vhost
        return admin.ask(admin.Place(self.port, self._admin_socket), request)

    def frames(self, began_ns: int) -> dict[int, ConnectionFrames]:
        return frames_in(self._frames_file, self._frames, began_ns)

    def recorded(self, began_ns: int) -> Iterable[Sequence[str]]:
        return lines_in(self._record_folder, began_ns)


class Process(_Remote):
    """A broker that runs until `stop` or `kill`, and again after `start`."""

    is_shared = False

    def __init__(self, settings: Mapping[str, Any], frames: int, folder: Path | None) -> None:
        """Start the broker, and wait until clients can connect. `frames`: shown per connection; 0: none are
        recorded. `folder`: its data folder; None: all state is in memory. Raises `BrokerError` if it did not
        start; contains its log.
        """
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        # Not in the tests' folder: the path of a socket is limited to a hundred characters.
        self._own_folder = own = Path(tempfile.mkdtemp(prefix="amqp10broker-"))
        recorded = str(settings.get("record_frames") or own / "recorded") if frames else ""
        frames_file = str(own / "frames") if frames else ""
        super().__init__(("127.0.0.1", 0, frames, str(own / "admin.sock"), frames_file, recorded))
        if frames:
            settings = {**settings, "record_frames": recorded}
        self._folder = folder
        self._environment = {
            **{name: text for name, text in environment().items() if not name.startswith("AMQP10BROKER_")},
            # HTTP ports are off unless requested.
            **dict.fromkeys((SETTINGS["http"].variable, SETTINGS["prometheus"].variable), "false"),
            **{SETTINGS[name].variable: _written(value) for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of the current or last process."""
        assert self._process is not None
        return self._process.pid

    # --- start and stop ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process, and wait until clients can connect. Raises `BrokerError` if it is running, or
        did not start.
        """
        if self.alive:
            raise BrokerError("the test's broker runs already: stop() or kill() it first")
        data = () if self._folder is None else ("--data-dir", str(self._folder))
        self._process = subprocess.Popen(
            [
                *(*PYTHON, "-m", "amqp10broker.testing.child", "serve", "--log-format", "json"),
                *("--host", self.host, "--port", str(self.port), "--admin-socket", self._admin_socket),
                *data,
            ],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            **portable.OWN_SESSION,  # Ctrl-C is for the tests, which then stop it in order
        )
        up = threading.Event()
        self._reader = threading.Thread(target=self._read_log, args=(self._process, up), daemon=True)
        self._reader.start()
        up.wait(START_S)
        if not up.is_set() or self._process.poll() is not None:
            self.kill()
            raise BrokerError("the test's broker did not start:\n" + "\n".join(self.log))
        if self._frames_file:
            self.ask("trace", {"what": "everything", "on": True, "file": self._frames_file}, None)

    def end(self) -> None:
        """Stop the process in order; durable state remains for the next start."""
        if self._process is not None:
            self._process.send_signal(portable.STOP)
            self._gone()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._gone()

    def stop(self) -> None:
        self.end()
        shutil.rmtree(self._own_folder, ignore_errors=True)

    def _gone(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.wait(PROCESS_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PROCESS_STOP_S)
        self._process.stdin.close()
        if self._reader is not None:
            self._reader.join(PROCESS_STOP_S)

    def _read_log(self, process: subprocess.Popen[bytes], up: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                self.log.append(text)
                if not up.is_set() and '"listening"' in text:
                    # host:port
                    self.port = int(json.loads(text)["addresses"].rpartition(":")[2])
                    up.set()
        up.set()


class SharedProcess(_Remote):
    """A broker that the controller of pytest-xdist has started, for its workers."""

    alive = True
    is_shared = True

    def stop(self) -> None:
        # The controller stops it.
        pass


class WholeBroker(AmqpBroker):
    """A broker that one test or block has for itself, with the virtual host ``/``."""

    def __init__(self, server: Server) -> None:
        super().__init__(server, "/")

    def begin(self) -> None:
        self.ask("follow-links")


class RunningBroker(WholeBroker):
    """The broker of `amqp10broker.testing.running`."""

    def __init__(self, server: InProcess) -> None:
        super().__init__(server)
        self.http_url = server.http_url


class AmqpBrokerProcess(WholeBroker):
    """A broker for one test, in a process with a data folder: it can be stopped, killed and started again.

    Its port stays the same.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> list[str]:
        """The last lines of the log, as JSON."""
        return list(self._process.log)

    def stop(self) -> None:
        """Stop the broker in order, with notice to clients."""
        self._process.end()

    def kill(self) -> None:
        """Kill the broker as ``kill -9`` does."""
        self._process.kill()

    def start(self) -> None:
        """Start the broker again after `stop` or `kill`, with its durable state."""
        self._process.start()
        self.begin()

    def restart(self) -> None:
        self.stop()
        self.start()


class Servers:
    """The brokers of one run, started on demand. `shared`: location of the broker that the workers of a run
    share; None: there is none. Raises `ConfigError` if an option is invalid; contains the allowed values.
    """

    def __init__(self, settings: Sequence[str], frames: str, shared: ProcessPlace | None) -> None:
        self._settings = dict(map(_pair, settings))
        Config.load(flags=self._settings)
        if not frames.isdecimal():
            raise ConfigError("option amqp_broker_frames", f"is {frames!r}", "must be 0 or a positive number")
        self._frames = int(frames)
        self._shared = shared
        self._running: dict[tuple[tuple[str, Any], ...], Server] = {}
        self._of_workers: Process | None = None

    def shared_place(self) -> ProcessPlace:
        """Return the location of the broker that workers share, and start it at the first call."""
        if self._of_workers is None:
            self._of_workers = Process({**FAULTS, **self._settings}, self._frames, None)
        return self._of_workers.place

    def close(self) -> None:
        for server in self._running.values():
            server.stop()
        if self._of_workers is not None:
            self._of_workers.stop()

    @contextmanager
    def host(self, test: str, settings: Mapping[str, Any]) -> Iterator[AmqpBroker]:
        """Provide a new virtual host for a test, on a broker with these settings in addition to the run's."""
        server = self._server(settings)
        name = f"{_NO_NAME.sub('-', test)[:NAME_CHARACTERS_MAX].strip('-')}-{secrets.token_hex(4)}"
        broker = AmqpBroker(server, name)
        broker.begin()
        try:
            yield broker
        finally:
            broker.end()

    @contextmanager
    def process(self, settings: Mapping[str, Any], folder: Path) -> Iterator[AmqpBrokerProcess]:
        """Provide a new broker in a process, with this data folder."""
        given = {**FAULTS, **self._settings, **settings}
        Config.load(flags=given)
        process = Process(given, self._frames, folder)
        broker = AmqpBrokerProcess(process)
        try:
            broker.begin()
            yield broker
        finally:
            process.stop()

    def _server(self, settings: Mapping[str, Any]) -> Server:
        # Tests with the same settings share a broker.
        key = tuple(sorted(settings.items()))
        server = self._running.get(key)
        if server is not None and not server.alive:
            del self._running[key]
            raise BrokerError("the broker of the tests has ended; its log says why (caplog, or logging)")
        if server is None:
            if self._shared is not None and not settings:
                server = SharedProcess(self._shared)
            else:
                given = {**FAULTS, "shutdown_timeout_ms": SHUTDOWN_MS, **self._settings, **settings}
                config = Config.load(flags={**given, "port": 0, "admin_socket": ""})
                server = InProcess(config, self._frames)
            self._running[key] = server
        return server


@contextmanager
def run_alone(settings: Mapping[str, Any]) -> Iterator[RunningBroker]:
    """Run a broker in a thread until the end of the block; see `amqp10broker.testing.running`."""
    for name in settings:
        if name not in SETTINGS:
            raise ConfigError(name, "is not a setting", hint(name, SETTINGS))
    given = {**FAULTS, "shutdown_timeout_ms": SHUTDOWN_MS, "http_port": 0, "prometheus": False, **settings}
    server = InProcess(Config.load(flags={"port": 0, **given, "admin_socket": ""}), FRAMES)
    try:
        broker = RunningBroker(server)
        broker.begin()
        yield broker
    finally:
        server.stop()


class BrokerTestCase(unittest.TestCase):
    """A test case with a virtual host of its own for each test, on a broker in a thread for the class.

    Attributes:
        broker: with the calls and assertions of `docs/testing.md`.
        broker_settings: settings of the broker by name: ``{"max_link_credit": 10}``.
        topology: path of a definitions file, whose queues, exchanges, bindings and policies each test has;
            None: none.
    """

    broker: AmqpBroker
    broker_settings: ClassVar[Mapping[str, Any]] = {}
    topology: ClassVar[str | None] = None
    _servers: ClassVar[Servers]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls._servers = Servers([], str(FRAMES), None)
        cls.addClassCleanup(cls._servers.close)

    def setUp(self) -> None:
        super().setUp()
        host = self._servers.host(self.id().rpartition(".")[2], self.broker_settings)
        self.broker = self.enterContext(host)
        if self.topology is not None:
            self.broker.load(self.topology)


def _pair(written: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not equals:
        raise ConfigError(
            "option amqp_broker_settings", f"has {written!r}", "must have NAME=VALUE: max_link_credit=10"
        )
    return name.strip(), value.strip()


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
