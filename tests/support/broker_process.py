"""The real broker as a process, for integration tests: started, asked, and stopped in order.

``broker`` is one broker for the whole run, on a port of its own; tests share it and keep apart by
queue names (fixture ``queue``). ``start_broker`` starts one more with other settings for one test.
Either way the log is read line by line while the broker runs, and a fault in it fails the test
during which it appeared.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self

import pytest

from amqp10broker.cli import admin

REPOSITORY: Final = Path(__file__).resolve().parents[2]
START_S: Final = 30.0
STOP_S: Final = 60.0
WAIT_S: Final = 60.0
_POLL_S: Final = 0.01

SLOW_QUEUES: Final = "slow*"
"""Queues of the shared broker whose confirms come late."""
SLOW_MS: Final = 50


def run_program(
    *arguments: str,
    timeout_s: float = WAIT_S,
    program: Sequence[str] = ("-m", "amqp10broker"),
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run ``amqp10broker ARGUMENTS`` to its end, in an environment without settings of a broker."""
    plain = {name: text for name, text in os.environ.items() if not name.startswith("AMQP10BROKER_")}
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=REPOSITORY,
        env=plain | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


class BrokerProcess:
    """One broker process on the loopback interface.

    Attributes:
        host, port: where it listens.
        admin_socket: where `amqp10broker status` reaches it.
        log: its log entries so far; written by the reading thread, append only.
    """

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        program: Sequence[str] = ("-m", "amqp10broker"),
        python: str | Path = sys.executable,
        up: bool = True,
    ) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.admin_socket = str(directory / "admin.sock")
        self.log: list[dict[str, Any]] = []
        self._not_json: list[str] = []
        self._notifications = threading.Condition()
        self._stdout = directory / "stdout"
        with self._stdout.open("wb") as stdout:
            self._process = subprocess.Popen(
                [
                    *(python, *program, "serve"),
                    *("--port", "0", "--log-format", "json", "--admin-socket", self.admin_socket),
                    *arguments,
                ],
                cwd=REPOSITORY,
                env={name: text for name, text in os.environ.items() if not name.startswith("AMQP10BROKER_")},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.PIPE,
                start_new_session=True,  # ctrl-C belongs to pytest, which then stops the broker in order
            )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        if up:
            try:
                self.wait_until_up()
            except BaseException:
                self.kill()
                raise

    def wait_until_up(self) -> None:
        entry = self.wait_for_log("listening", timeout_s=START_S)
        # host:port, of the first address if there are several
        self.port = int(entry["addresses"].partition(",")[0].rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"amqp://{self.host}:{self.port}"

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    # --- asking -----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = self.ask("status")
        return document

    def ask(self, op: str, **arguments: Any) -> Any:
        request = {"op": op, "arguments": arguments}
        return admin.ask(admin.Place(self.port, self.admin_socket), request)

    def run_command(self, *arguments: str, timeout_s: float = WAIT_S) -> subprocess.CompletedProcess[str]:
        """Run ``amqp10broker ARGUMENTS --admin-socket ...`` as a user would."""
        return run_program(*arguments, "--admin-socket", self.admin_socket, timeout_s=timeout_s)

    def queue(self, name: str) -> dict[str, Any] | None:
        """Return the status of one queue, None if there is no such queue."""
        return next((queue for queue in self.status()["queues"] if queue["name"] == name), None)

    def links(self, queue: str) -> list[dict[str, Any]]:
        """Return the status of all links to one queue, in order of connection and handle."""
        return [
            link
            for connection in self.status()["connections"]
            for session in connection["sessions"]
            for link in session["links"]
            if link["queue"] == queue
        ]

    def connection(self, container_id: str) -> dict[str, Any] | None:
        return next(
            (each for each in self.status()["connections"] if each["container_id"] == container_id), None
        )

    # --- waiting ----------------------------------------------------------------------------------

    def wait_until(self, condition: Callable[[], Any], what: str, *, timeout_s: float = WAIT_S) -> Any:
        """Poll until the condition holds, and return its value, for states without a notification."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert not self.ended, f"the broker ended while waiting for {what}\n{self.log_end()}"
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}\n{self.status()}"
            time.sleep(_POLL_S)
        return value

    def wait_for_counts(
        self, name: str, *, ready: int, unsettled: int = 0, timeout_s: float = WAIT_S
    ) -> None:
        expected = {"messages_ready": ready, "messages_unsettled": unsettled}

        def holds() -> bool:
            found = self.queue(name)
            return found is not None and expected.items() <= found.items()

        self.wait_until(holds, f"{expected} in queue '{name}'", timeout_s=timeout_s)

    def wait_for_log(self, event: str, *, timeout_s: float = WAIT_S, **values: Any) -> dict[str, Any]:
        """Wait for a log entry with this event and these values; entries written before count."""
        seen = 0
        deadline = time.monotonic() + timeout_s
        with self._notifications:
            while True:
                for entry in self.log[seen:]:
                    if entry.get("event") == event and values.items() <= entry.items():
                        return entry
                seen = len(self.log)
                assert not (self.ended and not self._reader.is_alive()), (
                    f"the broker ended before it logged '{event}'\n{self.log_end()}"
                )
                left = deadline - time.monotonic()
                assert left > 0, f"no '{event}' in the log within {timeout_s:g} s\n{self.log_end()}"
                self._notifications.wait(min(left, 0.2))

    # --- ending -----------------------------------------------------------------------------------

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait_ended(self) -> int:
        code = self._process.wait(STOP_S)
        self._reader.join(STOP_S)
        return code

    def stop(self) -> None:
        """Stop by SIGTERM unless it is over; fail if that was not orderly."""
        if not self.ended:
            self.terminate()
        try:
            code = self.wait_ended()
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"the broker did not end {STOP_S:g} s after SIGTERM\n{self.log_end()}")
        assert code == 0, f"the broker ended with {code}\n{self.log_end()}"
        assert self.log[-1]["event"] == "stopped", self.log_end()
        assert not self._stdout.read_bytes(), "the broker's log belongs on standard error"
        self.check_log()

    def kill(self) -> None:
        """End the process at once, without checks."""
        self._process.kill()
        self._process.wait()
        self._reader.join(STOP_S)

    def check_log(self, since: int = 0) -> None:
        """Fail if the broker logged a fault of its own, or anything that is not JSON."""
        faults = [
            entry
            for entry in self.log[since:]
            if entry.get("level") in ("error", "critical") or "exception" in entry
        ]
        text = "\n".join(str(entry.get("exception", entry)) for entry in faults)
        assert not faults, f"faults in the broker's log:\n{text}"
        assert not self._not_json, f"not JSON in the broker's log: {self._not_json}"

    def log_end(self) -> str:
        """Return the last entries as text, for messages of failing tests."""
        return "\n".join([*(json.dumps(entry) for entry in self.log[-30:]), *self._not_json])

    def _read_log(self) -> None:
        with self._process.stderr as stream:
            for line in stream:
                with self._notifications:
                    try:
                        self.log.append(json.loads(line))
                    except ValueError:
                        self._not_json.append(line.decode(errors="replace"))
                    self._notifications.notify_all()
        with self._notifications:
            self._notifications.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is None:
            self.stop()
        else:
            self.kill()


class StartBroker(Protocol):
    """The type of the fixture `start_broker`."""

    def __call__(self, *arguments: str, **process: Any) -> BrokerProcess:
        """Start a broker with these options of ``amqp10broker serve``, as a `BrokerProcess` of this kind."""


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Most tests use this one broker; ask for `broker` instead, which also checks its log."""
    slow = f"{SLOW_QUEUES}={SLOW_MS}"
    with BrokerProcess(
        tmp_path_factory.mktemp("broker"),
        *("--auth-failure-delay-ms", "20", "--test-mode", "--confirm-delay", slow),
    ) as process:
        yield process


@pytest.fixture
def broker(shared_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """Yield the shared broker. A fault that it logs during the test fails the test."""
    since = len(shared_broker.log)
    yield shared_broker
    shared_broker.check_log(since)
    assert not shared_broker.ended, "the broker ended during the test"


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start brokers for this test alone; afterwards stop them and check their logs."""
    started: list[BrokerProcess] = []

    def start(*arguments: str, **process: Any) -> BrokerProcess:
        directory = tmp_path / f"broker{len(started)}"
        directory.mkdir()
        started.append(BrokerProcess(directory, *arguments, **process))
        return started[-1]

    yield start
    for process in started:
        if process.ended:
            process.check_log()
        else:
            process.stop()


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return f"{request.node.originalname}-{secrets.token_hex(4)}"
