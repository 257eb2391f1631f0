"""The commands that a user types, against the real process: what they print, and that it is true."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest

from amqp10broker.client.blocking import connect
from amqp10broker.client.message import data_message
from tests.support.broker_process import REPOSITORY, BrokerProcess


def run(broker: BrokerProcess, *arguments: str) -> str:
    done = broker.run_command(*arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def waits(broker: BrokerProcess, queue: str, role: str, reason: str) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        return next(
            (each for each in broker.links(queue) if (each["role"], each["waits"]) == (role, reason)), None
        )

    found: dict[str, Any] = broker.wait_until(find, f"{role} of '{queue}' waits: {reason}")
    return found


# --- status ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("set", "max_link_credit", "0"), 2, "must be an integer from 1 to 4294967295"),
        (("set", "max_link_credit", "many"), 2, "must be an integer from 1 to 4294967295"),
        (("set", "max_message_size_bytes", "5"), 2, "max_link_credit, max_incoming_window, max_queue_credit"),
        (("alarm", "set", "cpu", "on"), 2, "memory"),
        (("status", "--watch", "0"), 2, "must be 0.1 to 3600 seconds"),
        (("nonsense",), 2, "there is no command nonsense"),
        (("queue", "declare", "q", "--argument", "x-max-lenght=5"), 1, "did you mean x-max-length?"),
    ],
)
def test_mistakes_are_answered_by_what_is_right(
    broker: BrokerProcess, arguments: tuple[str, ...], code: int, words: str
) -> None:
    """There is one line with the allowed values, no standard output, and no traceback."""
    done = broker.run_command(*arguments)
    assert done.returncode == code
    assert words in done.stderr.replace("'", "")
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_watch_on_a_terminal_is_redrawn_and_leaves_it_clean(broker: BrokerProcess) -> None:
    """The alternate screen is entered, drawn at least twice, and left on ctrl-C, with exit code 0."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "amqp10broker", "status", "--watch", "0.1"),
            *("--admin-socket", broker.admin_socket),
        ],
        cwd=REPOSITORY,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        # As a terminal starts it: a shell's background job, which tests may run in, ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(follower)
    screen = b""
    deadline = time.monotonic() + 60
    try:
        while screen.count(b"\x1b[H") < 3:
            assert time.monotonic() < deadline, screen
            if select.select([leader], [], [], 0.5)[0]:
                screen += os.read(leader, 65_536)
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            assert time.monotonic() < deadline, "still running"
            if select.select([leader], [], [], 0.05)[0]:
                try:
                    screen += os.read(leader, 65_536)
                except OSError:  # the other end is closed
                    break
        assert process.wait(20) == 0
        while select.select([leader], [], [], 0)[0]:
            try:
                screen += os.read(leader, 65_536)
            except OSError:
                break
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    assert screen.startswith(b"\x1b[?1049h")
    assert b"amqp10broker" in screen
    assert screen.endswith(b"\x1b[?1049l")
    assert b"Traceback" not in screen


# --- serve ----------------------------------------------------------------------------------------


@contextmanager
def running(broker: BrokerProcess, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "amqp10broker", "frames", *words, "--admin-socket", broker.admin_socket],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_trace_shows_frames_while_the_broker_runs(broker: BrokerProcess, tmp_path: Path) -> None:
    """Frames go to the terminal until another command stops it, and to a file; neither has the password."""
    with running(broker, "trace", "guest", "on") as process:
        assert process.stderr.readline() == "tracing user guest until Ctrl-C\n"
        file = tmp_path / "trace.txt"
        assert run(broker, "frames", "trace", "127.0.0.1", "on", "--file", str(file)).startswith(
            "tracing peer 127.0.0.1"
        )
        assert "tracing user guest  into a terminal  lines 0" in run(broker, "status")
        with connect("127.0.0.1", broker.port, user="guest", password="guest") as client:
            client.sender(client.receiver(None, credit=1).address).send(data_message(b"m"))
        ended = run(broker, "frames", "trace", "127.0.0.1", "off")
        assert re.fullmatch(rf"peer 127\.0\.0\.1 was traced to {file}: \d+ lines\n", ended)
        run(broker, "frames", "trace", "guest", "off")
        shown, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (0, "the trace has ended: it was switched off\n")
    for text in (shown, file.read_text()):
        assert all(f" ch 0 {name} " in text for name in ("OPEN", "BEGIN", "ATTACH", "FLOW", "TRANSFER"))
    assert "SASL-INIT mechanism=PLAIN initial-response=(hidden)" in file.read_text()
    assert b"\0guest\0guest".hex() not in file.read_text()
    assert "SASL-INIT" not in shown, "a user is known from the login on"


def test_lint_looks_at_frames_while_the_broker_runs(broker: BrokerProcess) -> None:
    """It ends when its time is over, or when its trace ends."""
    with running(broker, "lint", "127.0.0.1", "--for", "600") as process:
        assert process.stderr.readline() == "checking peer 127.0.0.1 for 600 s\n"
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, heartbeat=0)):
            pass
        run(broker, "frames", "trace", "127.0.0.1", "off")
        shown, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (1, "")
    assert shown.startswith("risk: no-heartbeat: connection ")
    assert re.search(r"^1 finding in \d+ frames of 1 connection$", shown, re.MULTILINE)
