"""The real process on a data folder: a recovery that takes its time, and one that cannot be."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Message

from amqp10broker.errors import AdminSocketError
from tests.support.broker_process import REPOSITORY, BrokerProcess
from tests.support.pika_client import Properties, parameters
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.usefixtures("deadline")

KINDS = ("classic", "quorum")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Start a broker on this test's data folder; those still running at the end are killed."""
    started: list[BrokerProcess] = []

    def start_one(*arguments: str, **options: Any) -> BrokerProcess:
        folder = tmp_path / f"broker{len(started)}"
        folder.mkdir()
        started.append(BrokerProcess(folder, "--data-dir", str(tmp_path / "data"), *arguments, **options))
        return started[-1]

    yield start_one
    for broker in started:
        broker.kill()


def test_a_service_manager_is_told_by_the_real_process(
    start: Callable[..., BrokerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, over the socket that systemd names."""
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(place)
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", place)
        start()
        assert manager.recv(100) == b"READY=1"


def fill(broker: BrokerProcess) -> None:
    """Declare a queue of each kind and a stream, with three confirmed messages each."""
    from pika.adapters.blocking_connection import BlockingConnection

    connection = BlockingConnection(parameters(broker))
    channel = connection.channel()
    channel.confirm_delivery()
    for kind in (*KINDS, "stream"):
        channel.queue_declare(kind, durable=True, arguments={"x-queue-type": kind})
        for number in range(3):
            channel.basic_publish("", kind, f"{number}".encode(), Properties(delivery_mode=2))
    connection.close()


def status_of_one_that_starts(broker: BrokerProcess) -> dict[str, Any]:
    """Operators are answered while it reads its folder; their socket is there a little after the process."""

    def ask() -> dict[str, Any] | None:
        try:
            return broker.status()
        except AdminSocketError:
            return None

    status: dict[str, Any] = broker.wait_until(ask, "the administration socket")
    return status


def text_of(message: Message) -> str:
    body = message.body
    return bytes(body).decode() if isinstance(body, bytes | memoryview) else str(body)


def test_clients_are_accepted_when_the_folder_has_been_read_and_not_before(
    start: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """The port is taken but refuses; `status` says why. Then everything is there at once."""
    broker = start()
    fill(broker)
    broker.kill()
    gate = tmp_path / "gate"
    broker = start(program=("-m", "tests.support.gated_serve", str(gate)), up=False)
    told = status_of_one_that_starts(broker)["broker"]
    assert told["journal"]["recovered"] is False
    host, _, port = told["listeners"][0].rpartition(":")
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port))):
        pass
    assert not [entry for entry in broker.log if entry.get("event") == "listening"]
    gate.touch()
    broker.wait_until_up()
    assert broker.port == int(port)
    counts = {queue["name"]: queue["messages_ready"] for queue in broker.status()["queues"]}
    assert counts == {"classic": 3, "quorum": 3, "stream": 3}
    client = ProtonClient(broker.port)
    for kind in KINDS:
        receiver = client.receiver(f"/queues/{kind}", credit=10)
        assert [text_of(each.message) for each in receiver.take(3)] == ["0", "1", "2"]
    client.close()
    broker.stop()


def test_a_broker_is_stopped_while_it_recovers(start: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    """In order, with exit code 0; it never listened, and everything is there at the next start."""
    broker = start()
    fill(broker)
    broker.kill()
    broker = start(program=("-m", "tests.support.gated_serve", str(tmp_path / "never")), up=False)
    assert status_of_one_that_starts(broker)["broker"]["journal"]["recovered"] is False
    broker.stop()
    assert not [entry for entry in broker.log if entry.get("event") == "listening"]
    broker = start()
    client = ProtonClient(broker.port)
    for kind in KINDS:
        receiver = client.receiver(f"/queues/{kind}", credit=10)
        assert [text_of(each.message) for each in receiver.take(3)] == ["0", "1", "2"]
    client.close()
    broker.stop()


@pytest.mark.parametrize("part", ["journal", "catalog", "streams"])
def test_a_damaged_file_stops_the_start_and_storage_check_says_the_same(
    start: Callable[..., BrokerProcess], tmp_path: Path, part: str
) -> None:
    """File, offset and what to do, exit code 1; and nothing is changed."""
    broker = start()
    fill(broker)
    broker.stop()
    data = tmp_path / "data"
    path = max((each for each in (data / part).rglob("*.log")), key=lambda each: each.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)
    served = run("serve", "--port", "0", "--admin-socket", "", "--data-dir", str(data))
    assert served.returncode == 1, served.stderr
    assert "listening" not in served.stderr
    found = re.search(re.escape(str(path)) + r" at offset (\d+): ([^;\n]+); ([^\n\"]+)", served.stderr)
    assert found is not None, served.stderr
    offset, problem, remedy = found.groups()
    checked = run("storage", "check", str(data))
    assert checked.returncode == 1
    line = next(line for line in checked.stdout.splitlines() if line.startswith(f"{path.relative_to(data)}:"))
    assert f"BAD at offset {offset}: {problem}" in line
    assert remedy[:40] in line
    assert path.read_bytes() == content


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "amqp10broker", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
