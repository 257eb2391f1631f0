"""The brokers of one run of tests: started when a test first needs one, stopped at the end of the run."""

from __future__ import annotations

import re
import secrets
import unittest
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

from amqp10broker.config import Config
from amqp10broker.config.settings import SETTINGS
from amqp10broker.errors import BrokerError, ConfigError, hint
from amqp10broker.testing.broker import AmqpBroker, AmqpBrokerProcess, RunningBroker
from amqp10broker.testing.server import InProcess, Process, ProcessPlace, Server, SharedProcess

# A client that a test has left open may not answer the broker's close.
SHUTDOWN_MS: Final = 2_000
# Without this setting no fault can be injected.
FAULTS: Final = {"test_mode": True}
NAME_CHARACTERS_MAX: Final = 60
FRAMES: Final = 20
"""Frames of a connection in a report, as by default with pytest."""
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")


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


def _pair(written: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not equals:
        raise ConfigError(
            "option amqp_broker_settings", f"has {written!r}", "must have NAME=VALUE: max_link_credit=10"
        )
    return name.strip(), value.strip()


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
