"""The broker and its commands where Python has nothing of POSIX, as on Windows: real processes."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amqp10broker import portable
from tests.support.broker_process import BrokerProcess, run_program
from tests.support.crash_load import connected
from tests.support.pika_client import Properties, put

pytestmark = pytest.mark.usefixtures("deadline")

PROGRAM = ("-m", "tests.support.no_posix")
PATIENCE_S = 60.0
KINDS = ("classic", "quorum", "stream")


def command(*words: str, fails: bool = False) -> str:
    done = run_program(*words, program=PROGRAM)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def start(tmp_path: Path, *arguments: str) -> BrokerProcess:
    return BrokerProcess(tmp_path, *arguments, program=PROGRAM)


def publish(broker: BrokerProcess, queue: str, *bodies: str) -> None:
    with connected(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        put(channel, queue, *bodies, properties=Properties(delivery_mode=2))


def is_closed_after(stream: socket.socket, data: bytes) -> bool:
    """Return whether it is closed without an answer, at any moment from the first byte on."""
    try:
        stream.sendall(data)
        stream.shutdown(socket.SHUT_WR)
        return stream.recv(1) == b""
    except OSError as error:
        return error.errno in (errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE)


def test_commands_reach_a_broker_in_memory_by_a_port_and_a_secret(tmp_path: Path) -> None:
    """Only its owner can read the admin socket's file, which is removed when the broker ends."""
    broker = start(tmp_path)
    try:
        file = Path(broker.admin_socket)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        there = ("--admin-socket", broker.admin_socket)
        command("queue", "declare", "q", *there)
        command("publish", "--queue", "q", "a message", "--port", str(broker.port))
        assert "a message" in command("get", "q", "--ack-mode", "ack", "--port", str(broker.port))
        port, secret = file.read_text().split()
        for sent in (b"{}\n" * len(secret), secret[:-1].encode() + b"x", b""):
            with closing(socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE_S)) as stream:
                assert is_closed_after(stream, sent + b'{"op": "status"}\n')
        broker.wait_for_log("admin request without the secret of the socket's file refused")
        file.write_text("notes")
        assert "is not a socket" in command("status", *there, fails=True)
        file.write_text(f"{port} {secret}\n")
    finally:
        broker.stop()
    assert not file.exists()


def test_what_was_confirmed_is_there_after_a_kill(tmp_path: Path) -> None:
    """This covers each kind of queue, with files that cannot be removed or renamed while open."""
    data = ("--data-dir", str(tmp_path / "data"))
    broker = start(tmp_path, *data)
    there = ("--admin-socket", broker.admin_socket)
    for kind in KINDS:
        command("queue", "declare", kind, "--type", kind, *there)
        publish(broker, kind, *(f"{kind} {number}" for number in range(20)))
    assert "is in use by process" in command("serve", "--port", "0", *data, "--admin-socket", "", fails=True)
    broker.kill()
    broker = start(tmp_path, *data)  # a stale file of the admin socket is replaced
    try:
        status = json.loads(command("status", "--format", "json", *there))
        assert {each["name"]: each["messages_ready"] for each in status["queues"]} == dict.fromkeys(KINDS, 20)
        assert "quorum 0" in command("get", "quorum", "--port", str(broker.port))
    finally:
        broker.stop()
    command("storage", "check", str(tmp_path / "data"))


def test_files_are_replaced_and_removed_while_the_broker_runs(tmp_path: Path) -> None:
    """No file is open when the catalog is rewritten, journal files are removed or a stream is deleted."""
    data = tmp_path / "data"
    broker = start(tmp_path, "--data-dir", str(data))
    try:
        there = ("--admin-socket", broker.admin_socket)
        command("queue", "declare", "q", *there)
        command("queue", "declare", "s", "--type", "stream", *there)
        publish(broker, "s", "x")
        (stream,) = (data / "streams").iterdir()
        command("queue", "delete", "s", *there)
        broker.wait_until(lambda: not stream.exists(), "the stream's folder is removed")
        with connected(broker) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            first = set(os.listdir(data / "journal"))
            while first & set(os.listdir(data / "journal")):
                channel.basic_publish("", "q", bytes(1_000_000), Properties(delivery_mode=2))
                channel.queue_purge("q")
            catalog = data / "catalog" / "catalog.log"
            before = catalog.stat().st_ino
            while catalog.stat().st_ino == before:
                channel.exchange_declare("x", durable=True, arguments={"note": "x" * 50_000})
                channel.exchange_delete("x")
        assert not [each for each in broker.log if each["level"] in ("error", "critical")]
    finally:
        broker.stop()


@pytest.mark.parametrize(("call", "index", "read"), [
    ("GlobalMemoryStatusEx", 1, lambda: portable._windows("GlobalMemoryStatusEx", 64, 8)),
    ("K32GetProcessMemoryInfo", 2, lambda: portable._windows("K32GetProcessMemoryInfo", 72, 16)),
])  # fmt: skip
def test_windows_fills_a_structure_that_says_its_size(
    monkeypatch: pytest.MonkeyPatch, call: str, index: int, read: Any
) -> None:
    """Layouts are MEMORYSTATUSEX and PROCESS_MEMORY_COUNTERS; a failed call yields no figure."""
    done = [1]

    def fill(*given: Any) -> int:
        (answer,) = (each._obj for each in given if hasattr(each, "_obj"))
        assert ctypes.c_uint32.from_buffer(answer).value == ctypes.sizeof(answer)
        answer[index] = 1 << 40
        return done[0]

    kernel = type("Kernel", (), {call: staticmethod(fill)})
    monkeypatch.setattr(ctypes, "windll", type("Windll", (), {"kernel32": kernel}), raising=False)
    assert read() == 1 << 40
    done[0] = 0
    assert read() is None
