"""The commands that a user types, against the real process: what they print, and that it is true."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pika
import pytest
from proton import Delivery, Message

from amqp10broker.client.blocking import connect
from amqp10broker.client.message import data_message
from tests.support.broker_process import REPOSITORY, BrokerProcess, StartBroker
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.integration


def run(broker: BrokerProcess, *arguments: str) -> str:
    """Run a command, expect success and an empty standard error, return what it printed."""
    done = broker.run_command(*arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def waits(broker: BrokerProcess, queue: str, role: str, reason: str) -> dict[str, Any]:
    """Wait until a link waits for this reason; returns its status."""

    def find() -> dict[str, Any] | None:
        return next(
            (each for each in broker.links(queue) if (each["role"], each["waits"]) == (role, reason)), None
        )

    found: dict[str, Any] = broker.wait_until(find, f"{role} of '{queue}' waits: {reason}")
    return found


# --- status ---------------------------------------------------------------------------------------


def test_status_of_an_idle_broker(start_broker: StartBroker) -> None:
    """No connection and no queue is said in words."""
    text = run(start_broker(), "status")
    assert re.search(r"^amqp10broker \d+\.\d+\.\d+  amqp10broker@\S+  pid \d+  up ", text)
    assert "max_link_credit 170  max_incoming_window 400  max_queue_credit 256" in text
    assert "No connections." in text
    assert "No queues." in text


def test_status_says_why_each_link_waits(broker: BrokerProcess, client: ProtonClient, queue: str) -> None:
    """Each reason with its evidence, in the table and in the JSON document."""
    sender = client.sender(queue)
    sender.send("1", "2", "3")
    receiver = client.receiver(queue)
    link = waits(broker, queue, "receiver", "no-credit-never-granted")
    assert "granted no credit yet" in link["waits_why"]
    assert (link["credit"], link["delivery_count"]) == (0, 0)

    receiver.grant(2)
    receiver.take(2)
    link = waits(broker, queue, "receiver", "no-credit-used-up")
    assert "used up at delivery-count 2" in link["waits_why"]
    assert link["unsettled"] == 2

    receiver.grant(10)
    receiver.take(1)
    link = waits(broker, queue, "receiver", "unsettled-here")
    assert (link["credit"], link["delivery_count"], link["unsettled"]) == (9, 3, 3)
    assert queue in link["waits_why"]

    text = run(broker, "status")
    assert "waits: unsettled-here" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    document = json.loads(run(broker, "status", "--format", "json"))
    shown = [
        link
        for connection in document["connections"]
        for session in connection["sessions"]
        for link in session["links"]
        if link["queue"] == queue
    ]
    assert {each["role"]: each["credit"] for each in shown} == {"sender": 167, "receiver": 9}


def test_status_shows_credit_withheld_from_a_publisher(
    start_broker: StartBroker, clients: Any, queue: str
) -> None:
    """A queue that does not confirm: the publisher's link says so, with the numbers."""
    broker = start_broker("--test-mode", "--confirm-delay", "*=120000", "--shutdown-timeout-ms", "200")
    sender = clients(broker).sender(queue)
    for number in range(255):
        sender.transfer(Message(body=number))
    sender.client.flush()
    link = waits(broker, queue, "sender", "credit-withheld")
    assert "255 deliveries are not confirmed" in link["waits_why"]
    assert "max_link_credit is 170" in link["waits_why"]
    assert link["unsettled"] == 255
    assert "waits: credit-withheld" in run(broker, "status")


def test_alarm_shuts_the_window_of_publishers_and_clearing_opens_it(
    start_broker: StartBroker, clients: Any, queue: str
) -> None:
    """F11: publishers stop, consumers go on, new connections are served; afterwards everything flows."""
    broker = start_broker()
    client = clients(broker)
    sender = client.sender(queue)
    sender.send("before")
    assert run(broker, "alarm", "memory", "on") == "the memory alarm is on\n"
    link = waits(broker, queue, "sender", "blocked-by-alarm")
    assert "alarm" in link["waits_why"]
    text = run(broker, "status")
    assert "ALARM: memory (publishers are held)" in text
    assert "waits: blocked-by-alarm" in text

    client.flush()  # the client has read the closed window by now
    tag = sender.transfer(Message(body="during"))
    client.flush()
    receiver = client.receiver(queue, credit=10)
    receiver.settle(receiver.take())
    late = clients(broker)
    late_sender = late.sender(queue)
    late_tag = late_sender.transfer(Message(body="late"))
    late.flush()
    broker.wait_for_counts(queue, ready=0)
    assert tag not in sender.outcomes
    assert late_tag not in late_sender.outcomes

    assert run(broker, "alarm", "memory", "off") == "the memory alarm is off\n"
    assert sender.outcome(tag).state == Delivery.ACCEPTED
    assert late_sender.outcome(late_tag).state == Delivery.ACCEPTED
    receiver.take(2)
    assert sorted(receiver.bodies) == ["before", "during", "late"]


def test_two_alarms_must_both_be_cleared(start_broker: StartBroker, clients: Any, queue: str) -> None:
    """Publishers are held while any alarm is on."""
    broker = start_broker()
    sender = clients(broker).sender(queue)
    run(broker, "alarm", "memory", "on")
    run(broker, "alarm", "disk", "on")
    run(broker, "alarm", "memory", "off")
    assert "ALARM: disk" in run(broker, "status")
    waits(broker, queue, "sender", "blocked-by-alarm")
    run(broker, "alarm", "disk", "off")
    broker.wait_until(lambda: broker.links(queue)[0]["waits"] is None, "the link flows")
    sender.send("x")


def test_set_takes_effect_for_new_grants(start_broker: StartBroker, clients: Any, queue: str) -> None:
    """F13: a link that exists is granted by the new value from its next grant on, a new one at once."""
    broker = start_broker()
    client = clients(broker)
    old = client.sender(queue)
    client.wait(lambda: old.link.credit == 170, "the credit of the start")
    assert run(broker, "set", "max_link_credit", "10") == "max_link_credit is now 10\n"
    new = client.sender(queue)
    client.wait(lambda: new.link.credit, "credit")
    assert new.link.credit == 10
    for number in range(165):
        old.outcome(old.transfer(Message(body=number)))
    client.wait(lambda: old.link.credit == 10, "a grant of the old link by the new value")
    assert "max_link_credit 10 " in run(broker, "status")
    for number in range(100):
        old.transfer(Message(body=number))
    broker.wait_until(lambda: max(link["credit"] for link in broker.links(queue)) <= 10, "small grants")


def test_set_queue_credit_and_window(start_broker: StartBroker, clients: Any, queue: str) -> None:
    """The other two settings, too."""
    broker = start_broker()
    client = clients(broker)
    run(broker, "set", "max_queue_credit", "3")
    run(broker, "set", "max_incoming_window", "50")
    session = client.session()
    sender = client.sender(queue, session=session)
    sender.send(*(str(number) for number in range(200)))
    receiver = client.receiver(queue, credit=200, session=session)
    receiver.settle(receiver.take(200))
    assert receiver.bodies == [str(number) for number in range(200)]
    document = broker.status()
    assert document["broker"]["flow"] == {
        "max_link_credit": 170,
        "max_incoming_window": 50,
        "max_queue_credit": 3,
    }
    (connection,) = document["connections"]
    assert connection["sessions"][-1]["incoming_window"] <= 50


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("set", "max_link_credit", "0"), 2, "must be an integer from 1 to 4294967295"),
        (("set", "max_link_credit", "many"), 2, "must be an integer from 1 to 4294967295"),
        (("set", "max_message_size_bytes", "5"), 2, "max_link_credit, max_incoming_window, max_queue_credit"),
        (("alarm", "cpu", "on"), 2, "memory"),
        (("status", "--watch", "0"), 2, "must be 0.1 to 3600 seconds"),
        (("nonsense",), 2, "there is no command nonsense"),
        (("declare", "queue", "q", "--argument", "x-max-lenght=5"), 1, "did you mean x-max-length?"),
    ],
)
def test_mistakes_are_answered_by_what_is_right(
    broker: BrokerProcess, arguments: tuple[str, ...], code: int, words: str
) -> None:
    """One line that says what is allowed; nothing on standard output; no traceback."""
    done = broker.run_command(*arguments)
    assert done.returncode == code
    assert words in done.stderr.replace("'", "")
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_status_without_a_broker_says_how_to_start_one(tmp_path: Path) -> None:
    """Exit code 3 and a sentence."""
    done = subprocess.run(
        [sys.executable, "-m", "amqp10broker", "status", "--admin-socket", str(tmp_path / "none.sock")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "amqp10broker serve" in done.stderr


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
    deadline = time.monotonic() + 20
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


def test_trace_frames_prints_each_frame_readably(start_broker: StartBroker, clients: Any, queue: str) -> None:
    """--trace-frames: one line a frame, both directions, with names for fields, without the password."""
    broker = start_broker("--trace-frames")
    client = clients(broker)
    client.sender(queue).send("seen")
    receiver = client.receiver(queue, credit=1)
    receiver.settle(receiver.take())
    client.close()
    broker.stop()  # the log is complete when it has ended
    lines = [entry["event"] for entry in broker.log]
    for direction, name, fields in (
        ("<-", "OPEN", "container-id="),
        ("->", "OPEN", "max-frame-size=131072"),
        ("<-", "BEGIN", "incoming-window="),
        ("->", "BEGIN", "incoming-window=400"),
        ("<-", "ATTACH", f"address={queue}"),
        ("->", "FLOW", "link-credit=170"),
        ("<-", "TRANSFER", "payload("),
        ("->", "DISPOSITION", "state=accepted"),
        ("<-", "FLOW", "link-credit=1"),
        ("->", "TRANSFER", "delivery-id=0"),
        ("<-", "DISPOSITION", "settled=true"),
        ("<-", "CLOSE", ""),
        ("->", "CLOSE", ""),
    ):
        assert any(line.startswith(direction) and f" {name}" in line and fields in line for line in lines), (
            f"{direction} {name} {fields}"
        )
    assert not any("guest" in line and "SASL" in line for line in lines), "the password is in the log"


def test_trace_shows_frames_while_the_broker_runs(broker: BrokerProcess, tmp_path: Path) -> None:
    """Into the terminal until it is switched off elsewhere, and into a file; the password is in neither."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "amqp10broker", "trace", "guest", "on"),
            *("--admin-socket", broker.admin_socket),
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "tracing user guest until ctrl-C\n"
        file = tmp_path / "trace.txt"
        assert run(broker, "trace", "127.0.0.1", "on", "--file", str(file)).startswith(
            "tracing peer 127.0.0.1"
        )
        assert "tracing user guest  into a terminal  lines 0" in run(broker, "status")
        with connect("127.0.0.1", broker.port, user="guest", password="guest") as client:
            client.sender(client.receiver(None, credit=1).address).send(data_message(b"m"))
        ended = run(broker, "trace", "127.0.0.1", "off")
        assert re.fullmatch(rf"peer 127\.0\.0\.1 was traced into {file}: \d+ lines\n", ended)
        run(broker, "trace", "guest", "off")
        shown, complaint = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, complaint) == (0, "the trace has ended: it was switched off\n")
    for text in (shown, file.read_text()):
        assert all(f" ch 0 {name} " in text for name in ("OPEN", "BEGIN", "ATTACH", "FLOW", "TRANSFER"))
    assert "SASL-INIT mechanism=PLAIN initial-response=(hidden)" in file.read_text()
    assert b"\0guest\0guest".hex() not in file.read_text()
    assert "SASL-INIT" not in shown, "a user is known from the login on"


def test_lint_looks_at_frames_while_the_broker_runs(broker: BrokerProcess) -> None:
    """Until its time is over, or what it looks at is not traced any more."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "amqp10broker", "lint", "127.0.0.1", "--for", "600"),
            *("--admin-socket", broker.admin_socket),
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "looking at peer 127.0.0.1 for 600 s\n"
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, heartbeat=0)):
            pass
        run(broker, "trace", "127.0.0.1", "off")
        shown, complaint = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, complaint) == (1, "")
    assert shown.startswith("risk: no-heartbeat: connection ")
    assert re.search(r"^1 finding in \d+ frames of 1 connection$", shown, re.MULTILINE)


def test_lint_ends_when_its_time_is_over(broker: BrokerProcess) -> None:
    """By its own timer, in a thread; nobody connects meanwhile."""
    process = subprocess.run(
        [
            *(sys.executable, "-m", "amqp10broker", "lint", "127.0.0.9", "--for", "0"),
            *("--admin-socket", broker.admin_socket),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "looking at peer 127.0.0.9 for 0 s\n")
    assert process.stdout.startswith("0 findings in 0 frames")


def test_log_for_people_has_no_colours_in_a_file_and_names_what_happened(tmp_path: Path) -> None:
    """The console format: one line an event, plain text when it is not a terminal."""
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "amqp10broker", "serve", "--port", "0", "--no-http"),
                *("--admin-socket", str(tmp_path / "admin.sock")),
            ],
            cwd=REPOSITORY,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        deadline = time.monotonic() + 20
        while not (match := re.search(r"127\.0\.0\.1:(\d+)", (tmp_path / "log").read_text())):
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.01)
        ProtonClient(int(match[1]), container_id="somebody").close()
        while "connection closed" not in (tmp_path / "log").read_text():
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    text = (tmp_path / "log").read_text()
    lines = text.splitlines()
    assert [line.split("]")[1].split("  ")[0].strip() for line in lines] == [
        "listening",
        "connection open",
        "connection closed",
        "stopping",
        "stopped",
    ]
    assert "container_id=somebody" in text
    assert "\x1b" not in text


def test_second_broker_on_the_same_port_says_what_to_do(broker: BrokerProcess, tmp_path: Path) -> None:
    """Exit code 1 and one sentence that names the way out."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "amqp10broker", "serve", "--port", str(broker.port)),
            *("--admin-socket", str(tmp_path / "admin.sock")),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    assert f"another program listens on 127.0.0.1:{broker.port}" in done.stderr
    assert "Traceback" not in done.stderr
