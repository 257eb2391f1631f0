"""The real broker as a process of its own, and a blocking client of raw frames for it."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections import deque
from types import TracebackType
from typing import Any, Self

from amqp10broker.protocols.amqp10.performatives import SaslOutcome
from tests.support.rawframes import FrameCutter, Got, begin, login, open_frame

PATIENCE_S = 30.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class BrokerProcess:
    """``python -m amqp10broker serve`` on a free port of loopback.

    Attributes:
        port: where it listens.
        log: its log entries so far.
    """

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "amqp10broker", "serve", "--port", "0", "--admin-socket", ""]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("AMQP10BROKER_")
        }
        self._process = subprocess.Popen(
            [*command, "--log-format", "json", "--log-level", "info", *flags],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self.log: list[dict[str, Any]] = []
        self.other_lines: list[str] = []
        ports: queue.Queue[int] = queue.Queue()
        self._reader = threading.Thread(target=self._read_log, args=(ports,), daemon=True)
        self._reader.start()
        try:
            self.port = ports.get(timeout=PATIENCE_S)
        except queue.Empty:
            self.stop()
            raise AssertionError(f"the broker did not start: {self.other_lines}") from None

    def _read_log(self, ports: queue.Queue[int]) -> None:
        for line in self._process.stderr:
            try:
                entry = json.loads(line)
            except ValueError:
                self.other_lines.append(line)
                continue
            self.log.append(entry)
            if entry.get("event") == "listening":
                ports.put(int(entry["addresses"].split(",")[0].rpartition(":")[2]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def rss_bytes(self) -> int:
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * PAGE_BYTES

    def faults(self) -> list[dict[str, Any]]:
        """Entries that say that something of ours went wrong."""
        return [entry for entry in self.log if entry.get("level") in ("error", "critical")]

    def stop(self) -> int:
        """End the process that this object started, in order if it can."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
        code = self._process.wait(5)
        self._reader.join(5)
        if self._process.stderr is not None:
            self._process.stderr.close()
        return code


class RawSocket:
    def __init__(self, port: int, *, timeout_s: float = PATIENCE_S, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(timeout_s)
        self.socket.connect(("127.0.0.1", port))
        self.cutter = FrameCutter()
        self.waiting: deque[Got] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *frames: bytes) -> None:
        """Everything, or as much as the broker takes before it closes."""
        try:
            self.socket.sendall(b"".join(frames))
        except (BrokenPipeError, ConnectionResetError):
            pass

    def half_close(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def next(self) -> Got | None:
        """The next frame that is no heartbeat; None at the end."""
        while True:
            while self.waiting:
                got = self.waiting.popleft()
                if got.body is not None:
                    return got
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.waiting.extend(self.cutter.feed(data))

    def until(self, kind: type) -> Got:
        """Skip frames up to the next of a kind."""
        while True:
            got = self.next()
            assert got is not None, f"the broker closed before {kind.__name__}"
            if type(got.body) is kind:
                return got

    def rest(self) -> list[Got]:
        taken = []
        while (got := self.next()) is not None:
            taken.append(got)
        return taken

    def open(self, *, channels: int = 1, **fields: Any) -> Self:
        self.send(login())
        assert self.until(SaslOutcome).body.code == 0
        self.send(open_frame(**fields), *[begin(channel) for channel in range(channels)])
        for _ in range(1 + channels):
            assert self.next() is not None
        return self
