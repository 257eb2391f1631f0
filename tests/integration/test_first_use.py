"""The first minutes: a bare `amqp10broker`, a broker in a block, and one started from another language."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pika
import pytest

from amqp10broker.testing import running
from tests.support.broker_process import REPOSITORY

BIN = Path(sys.executable).parent
EXAMPLES = REPOSITORY / "examples"
GUEST = "Basic Z3Vlc3Q6Z3Vlc3Q="


def environment(**more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AMQP10BROKER_")}
    return {**plain, "PATH": f"{BIN}{os.pathsep}{plain.get('PATH', '')}", **more}


@contextmanager
def started(*words: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "amqp10broker", *words],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def ports_in(file: Path, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the ports of the ready file, once the broker has replaced an old one."""
    while True:
        assert process.poll() is None
        try:
            return cast("dict[str, Any]", json.loads(file.read_text()))
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.01)


def test_without_a_command_it_serves_and_prints_five_lines() -> None:
    """The lines have address and login, the page, the note on memory, and the next step."""
    with started(AMQP10BROKER_PORT="0") as process:
        lines = [process.stdout.readline().rstrip("\n") for _ in range(5)]
        url = lines[0].rpartition(" ")[2]
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            assert connection.channel().queue_declare("orders").method.message_count == 0
        page = urllib.request.urlopen(lines[1].rpartition(" ")[2], timeout=60)
        assert page.headers["content-type"].startswith("text/html")
        assert "guest" in lines[2]
        assert "in memory" in lines[3]
        assert "--help" in lines[4]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
        assert (rest, errors, process.returncode) == ("", "", 0)


def test_the_ready_file_has_the_ports_while_clients_can_connect(tmp_path: Path) -> None:
    """It is written whole, that of a killed broker is not left, and it is gone after the end."""
    file = tmp_path / "ready.json"
    file.write_text("of a broker that was killed")
    with started("serve", "--port", "0", "--ready-file", str(file)) as process:
        ports = ports_in(file, process)
        assert ports["pid"] == process.pid
        assert ports["url"] == f"amqp://127.0.0.1:{ports['port']}"
        assert ports["tls_port"] is None
        with pika.BlockingConnection(pika.ConnectionParameters(port=ports["port"])) as connection:
            connection.channel()
        request = urllib.request.Request(
            f"{ports['http_url']}/api/overview", headers={"authorization": GUEST}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
        process.terminate()
        process.communicate(timeout=60)
    assert not file.exists()


def test_a_ready_file_that_cannot_be_written_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    with started("serve", "--port", "0", "--ready-file", str(tmp_path / "no" / "f")) as process:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "cannot be written: No such file or directory; choose another" in errors
        assert "Traceback" not in errors


def test_a_block_runs_a_broker_for_blocking_code() -> None:
    with running(max_link_credit=10) as one, running(data_dir=None, http=False) as other:
        assert one.port != other.port
        assert other.http_url is None
        one.declare("orders")
        with pika.BlockingConnection(pika.URLParameters(one.url)) as connection:
            connection.channel().basic_publish("", "orders", b"tea")
        message = one.get("orders", within_s=5)
        assert message.body == b"tea"
        request = urllib.request.Request(f"{one.http_url}/api/queues", headers={"authorization": GUEST})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert [queue["name"] for queue in json.load(answer)] == ["orders"]
        port = one.port
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.ConnectionParameters(port=port))


def run(*command: str | Path, folder: Path = REPOSITORY, **more: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment(**more), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_django_runs_tests_with_a_broker(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text(
        "SECRET_KEY = 'a'\nUSE_TZ = True\nTEST_RUNNER = 'django_runner.BrokerRunner'\n"
    )
    (tmp_path / "test_orders.py").write_text(
        "import pika\n"
        "from django.conf import settings\n"
        "from django.test import SimpleTestCase\n\n"
        "class Orders(SimpleTestCase):\n"
        "    def test_connects(self):\n"
        "        pika.BlockingConnection(pika.URLParameters(settings.BROKER_URL)).close()\n"
    )
    path = os.pathsep.join((str(tmp_path), str(EXAMPLES / "testing")))
    text = run(
        *(sys.executable, "-m", "django", "test"),
        folder=tmp_path,
        PYTHONPATH=path,
        DJANGO_SETTINGS_MODULE="conf",
    )
    assert "Ran 1 test" in text


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("node", ("--test", "broker.test.mjs"), "pass 1"),
        # The first run compiles: that of Java needs a JDK, that of Go compiles its library of networks.
        pytest.param("java", ("BrokerExample.java",), "the broker answered AMQP", marks=pytest.mark.long),
        pytest.param("go", ("test", "-count=1", "broker_test.go"), "ok", marks=pytest.mark.long),
    ],
)
def test_programs_of_other_languages_start_a_broker(
    tool: str, arguments: tuple[str, ...], expected: str
) -> None:
    """They wait for the ready file, and read the port from it."""
    found = shutil.which(tool, path=environment()["PATH"])
    if found is None or (tool == "java" and shutil.which("javac") is None):
        pytest.skip(f"{tool} is not installed")
    assert expected in run(found, *arguments, folder=EXAMPLES / "ready_file")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("port", "choose another port with --port"),
        ("http-port", "choose another, 0 for any free one, or turn HTTP off with --no-http"),
        ("prometheus-port", "choose another, 0 for any free one, or turn metrics off with --no-prometheus"),
    ],
)
def test_two_brokers_with_one_port_get_a_sentence_that_says_what_to_do(
    setting: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "ready.json"
    first = ("serve", "--port", "0", "--http-port", "0", "--prometheus-port", "0", "--ready-file", str(file))
    with started(*first) as one:
        ports = ports_in(file, one)
        taken = {"port": "port", "http-port": "http_port", "prometheus-port": "metrics_port"}[setting]
        other = [] if setting == "port" else ["--port", "0"]
        with started("serve", *other, f"--{setting}", str(ports[taken])) as two:
            _, errors = two.communicate(timeout=20)
            assert two.returncode == 1
            assert said in errors
            assert str(ports[taken]) in errors
            assert errors.count("\n") == 1
        assert one.poll() is None


def test_a_port_that_is_taken_while_the_broker_starts_is_a_sentence_too() -> None:
    """The kernel lets two bind to one address, and refuses the second that listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with started("serve", "--port", port, "--http-port", port) as process:
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 1
        assert f"http_port cannot be used at 127.0.0.1:{port}" in errors
        assert "choose another" in errors
        assert "Traceback" not in errors


def test_the_lines_of_curl_do_what_the_page_says(tmp_path: Path) -> None:
    """Only the port is changed; the message got from the queue is the published one."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    page = (REPOSITORY / "docs" / "http-api.md").read_text(encoding="utf-8")
    part = page.partition("## With curl")[2].partition("\n## ")[0]
    lines = [line.removeprefix("$ ") for line in part.splitlines() if line.startswith("$ curl ")]
    with running() as broker:
        answers = [
            run(
                "bash",
                "-c",
                line.replace("http://127.0.0.1:15672", broker.http_url or "") + " --fail --silent",
            )
            for line in lines
        ]
    assert json.loads(answers[3]) == {"routed": True}
    assert json.loads(answers[4])["type"] == "quorum"
    (message,) = json.loads(answers[5])
    assert (message["payload"], message["routing_key"]) == ("tea", "order.new")
    assert len(lines) == 7
