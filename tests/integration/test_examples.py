"""Every program in examples/ runs as it is and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.broker_process import REPOSITORY, BrokerProcess
from tests.support.spark_process import QUICK_SPARK

EXAMPLES = REPOSITORY / "examples"
ELSEWHERE = {"spark_demo.py": "tests/spark/test_demo.py"}
"""Examples that are tested in another file."""


def run(
    name: str,
    *arguments: str,
    code: int = 0,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 40,
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        # As if the package were installed. Spark's Java goes through a file in the user's cache.
        env={
            "PYTHONPATH": str(REPOSITORY),
            "PATH": "",
            "HOME": os.environ.get("HOME", ""),
            **(environment or {}),
        },
    )
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr, done.stderr
    return done


def url(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@{broker.host}:{broker.port}"


def test_all_examples_are_tested_and_listed() -> None:
    """A new example gets a test here and a line in examples/README.md."""
    tests = Path(__file__).read_text()
    readme = (EXAMPLES / "README.md").read_text()
    for name, place in ELSEWHERE.items():
        assert f'"{name}"' in (REPOSITORY / place).read_text(), name
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.name}"' in tests, path.name
        assert f"`{path.name}`" in readme, path.name


def test_simple_send_and_recv(broker: BrokerProcess, queue: str) -> None:
    """simple_recv.py receives the ten messages of simple_send.py in order and leaves none."""
    assert run("simple_send.py", url(broker), queue).stdout == f"10 messages sent to '{queue}' and accepted\n"
    broker.wait_for_counts(queue, ready=10)
    assert run("simple_recv.py", url(broker), queue).stdout.splitlines() == [
        f"waiting for 10 messages from '{queue}' (press Ctrl-C to stop)",
        *(f"message {number}" for number in range(1, 11)),
    ]
    broker.wait_for_counts(queue, ready=0)


def test_simple_recv_takes_as_many_as_asked_and_leaves_the_rest(broker: BrokerProcess, queue: str) -> None:
    """What was prefetched beyond the count goes back to the queue, in order."""
    run("simple_send.py", url(broker), queue, "1000")
    first = run("simple_recv.py", url(broker), queue, "300").stdout.splitlines()
    assert first[1:] == [f"message {number}" for number in range(1, 301)]
    broker.wait_for_counts(queue, ready=700)
    second = run("simple_recv.py", url(broker), queue, "700").stdout.splitlines()
    assert second[1:] == [f"message {number}" for number in range(301, 1001)]
    broker.wait_for_counts(queue, ready=0)


def test_blocking_send_receive(broker: BrokerProcess, queue: str) -> None:
    """A message is sent, received, released and received again."""
    lines = run("blocking_send_receive.py", url(broker), queue).stdout.splitlines()
    assert lines[0] == "sent, outcome: accepted"
    assert "received: hello {'language': 'en'}" in lines
    assert "received again; first acquirer: False" in lines
    broker.wait_for_counts(queue, ready=0)


def test_fetch_with_timeout(broker: BrokerProcess, queue: str) -> None:
    """The fetches yield a message, a time-out, and a late message that waited for its fetch."""
    assert run("fetch_with_timeout.py", url(broker), queue).stdout.splitlines() == [
        "fetch 1: the only message",
        "fetch 2: no message; credit left: 0",
        "before the third fetch: 0 messages arrived",
        "fetch 3: a late message",
    ]


def test_stop_and_resume(broker: BrokerProcess, queue: str) -> None:
    """Nothing arrives while it is stopped, and nothing is lost."""
    lines = run("stop_and_resume.py", url(broker), queue).stdout.splitlines()
    assert lines[1] == "no credit yet: 0 messages arrived"
    assert lines[2] == "credit 20: [0, 1, 2, 3, 4] ..."
    assert "while stopped: 0 messages arrived" in lines
    assert lines[-1] == "all messages arrived once and in order: True"
    broker.wait_for_counts(queue, ready=0)


def test_request_response(broker: BrokerProcess, queue: str) -> None:
    """It gets three answers, and the reply queue is gone afterwards."""
    before = reply_queues(broker)
    assert run("request_response.py", url(broker), queue).stdout.splitlines() == [
        "reply address: /queues/amq.dyn-...",
        "one -> ONE",
        "two -> TWO",
        "three -> THREE",
    ]
    broker.wait_until(lambda: reply_queues(broker) <= before, "the end of the reply queue")


def reply_queues(broker: BrokerProcess) -> set[str]:
    return {each["name"] for each in broker.status()["queues"] if each["name"].startswith("amq.dyn")}


def test_embedded_broker() -> None:
    """The example starts and ends a broker and a client in one program."""
    lines = run("embedded_broker.py").stdout.splitlines()
    assert lines[0] == "the broker listens on 127.0.0.1, on a free port"
    assert "received: hello Ada" in lines
    assert "queue 'greetings' has 2 messages left" in lines
    assert lines[-1] == "the broker has stopped"


def test_watch_credit(broker: BrokerProcess, queue: str) -> None:
    """Credit is spent, topped up at half, granted and handed back."""
    lines = run("watch_credit.py", url(broker), queue, "0").stdout.splitlines()
    credit = [int(line.split("sender: credit")[1].split()[0]) for line in lines]
    assert credit[:5] == [170, 150, 130, 86, 170]
    assert [line.split("receiver: credit")[1].split()[0].rstrip(",") for line in lines[5:]] == [
        *("0", "0", "0", "130", "0")
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("simple_send.py", "simple_recv.py", "blocking_send_receive.py", "fetch_with_timeout.py"),
        *("stop_and_resume.py", "request_response.py", "watch_credit.py"),
    ],
)
def test_without_a_broker_the_example_says_how_to_start_one(name: str) -> None:
    """It exits with 1 and a hint instead of a traceback."""
    # Port 1 is for nobody: a connection to it is refused at once.
    done = run(name, "amqp://guest:guest@127.0.0.1:1", "q", code=1)
    assert "make run-broker" in done.stderr


def test_pika_publish_consume(broker: BrokerProcess, queue: str) -> None:
    """Five messages are confirmed, one is returned, and five are received in order."""
    assert run("pika_publish_consume.py", url(broker), queue).stdout.splitlines() == [
        f"5 messages confirmed for queue '{queue}'",
        "the broker returned an unroutable message",
        *(f"order {number}, delivery {number}" for number in range(1, 6)),
    ]


def test_two_protocols(broker: BrokerProcess, queue: str) -> None:
    """A message keeps the properties that the other protocol can express."""
    assert run("two_protocols.py", url(broker), queue).stdout.splitlines() == [
        "over AMQP 1.0: b'from 0-9-1', id m-1, durable True",
        "  application-properties {'count': int32(7)}",
        "  annotation x-route north",
        "over AMQP 0-9-1: b'from 1.0', id m-2, delivery mode 2",
        "  header count 8, 0 left",
    ]


@pytest.mark.parametrize("name", ["pika_publish_consume.py", "two_protocols.py"])
def test_an_example_with_pika_says_when_there_is_no_broker(name: str) -> None:
    done = run(name, "amqp://guest:guest@127.0.0.1:1", code=1)
    assert "is the broker running? start it with: make run-broker" in done.stderr


@pytest.mark.long
def test_spark_stream_says_what_is_wrong_with_a_name(broker: BrokerProcess, tmp_path: Path) -> None:
    """The error is one line. The reading into Parquet is tested in tests/spark/test_demo.py."""
    environment = {**QUICK_SPARK, "PATH": os.environ["PATH"]}  # Spark's scripts need one
    arguments = ("spark_stream.py", url(broker), "not-a-stream", str(tmp_path))
    wrong = run(*arguments, code=1, environment=environment, timeout_s=300)
    assert wrong.stderr.count("\n") == 1
    assert "there is no stream 'not-a-stream'" in wrong.stderr
