"""A broker in a separate process that can be stopped, killed, and started again on the same port."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from amqp10broker import portable
from amqp10broker.children import PYTHON, environment
from amqp10broker.cli import admin
from amqp10broker.config.records import SETTINGS
from amqp10broker.errors import BrokerError
from amqp10broker.testing.linting import lines_in
from amqp10broker.testing.server import LINE_CHARACTERS_MAX, OWN, ConnectionFrames

START_S: Final = 30.0
STOP_S: Final = 20.0
# Lines of the log in the error when the broker has ended by itself.
LOG_LINES: Final = 40
# The part of the file with frames that a report reads.
TAIL_BYTES: Final = 4 * 1024 * 1024


ProcessPlace = tuple[str, int, int, str, str, str]
"""Host, port, frames shown per connection; the admin socket, the file of frames, the folder of recordings."""


class _Remote:
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
        return self._runs()

    def _runs(self) -> bool:
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
            **portable.OWN_SESSION,  # ctrl-C is for the tests, which then stop it in order
        )
        up = threading.Event()
        self._reader = threading.Thread(target=self._read_log, args=(self._process, up), daemon=True)
        self._reader.start()
        up.wait(START_S)
        if not (up.is_set() and self._runs()):
            self.kill()
            raise BrokerError("the test's broker did not start:\n" + "\n".join(self.log))
        if self._frames_file:
            self.ask("trace", {"what": "everything", "on": True, "file": self._frames_file}, None)

    def end(self) -> None:
        """Stop the process in order; durable state remains for the next start."""
        if self._process is not None:
            self._process.send_signal(portable.STOP)
            self._gone(STOP_S)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._gone(STOP_S)

    def stop(self) -> None:
        self.end()
        shutil.rmtree(self._own_folder, ignore_errors=True)

    def _gone(self, within_s: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(within_s)
        self._process.stdin.close()
        if self._reader is not None:
            self._reader.join(within_s)

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


def frames_in(file: str, most: int, began_ns: int) -> dict[int, ConnectionFrames]:
    """Read the end of a trace's file, for connections with a frame since `began_ns`, by number.

    A line is ``2026-11-23T15:04:05.678901Z connection 3 <- ch 0 OPEN ...``.
    """
    kept: dict[int, ConnectionFrames] = {}
    if not file or not os.path.exists(file):
        return kept
    with open(file, "rb") as lines:
        size = lines.seek(0, os.SEEK_END)
        lines.seek(max(0, size - TAIL_BYTES))
        if size > TAIL_BYTES:
            lines.readline()  # an incomplete line
        for line in lines:
            when, _, number, text = line.decode(errors="replace").rstrip("\n").split(" ", 3)
            found = kept.setdefault(int(number), ConnectionFrames("", deque(maxlen=most)))
            found.total += 1
            found.own = found.own or f"OPEN container-id={OWN}" in text
            found.lines.append((_nanoseconds(when), text[:LINE_CHARACTERS_MAX]))
    return {number: each for number, each in kept.items() if not each.own and each.lines[-1][0] >= began_ns}


def _nanoseconds(when: str) -> int:
    return round(datetime.fromisoformat(when).timestamp() * 1_000_000) * 1_000


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
