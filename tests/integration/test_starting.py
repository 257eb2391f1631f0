"""The real process on a data folder: a recovery that takes its time, and one that cannot be."""

from __future__ import annotations

import re
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.errors import AdminSocketError
from tests.support.broker_process import BrokerProcess, StartBroker, run_program
from tests.support.crash_load import connected
from tests.support.pika_client import Properties, get_all, put

pytestmark = pytest.mark.usefixtures("deadline")

KINDS = ("classic", "quorum")


@pytest.fixture
def start(start_broker: StartBroker, tmp_path: Path) -> StartBroker:
    return partial(start_broker, "--data-dir", str(tmp_path / "data"))


def test_a_service_manager_is_told_by_the_real_process(
    start: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notice comes once, over the socket systemd names."""
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(place)
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", place)
        start()
        assert manager.recv(100) == b"READY=1"


def fill(broker: BrokerProcess) -> None:
    """Declare a queue of each kind and a stream, with three confirmed messages each."""
    with connected(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for kind in (*KINDS, "stream"):
            channel.queue_declare(kind, durable=True, arguments={"x-queue-type": kind})
            put(channel, kind, "0", "1", "2", properties=Properties(delivery_mode=2))


def assert_filled(broker: BrokerProcess) -> None:
    with connected(broker) as connection:
        for kind in KINDS:
            assert get_all(connection.channel(), kind) == ["0", "1", "2"]


def status_of_one_that_starts(broker: BrokerProcess) -> dict[str, Any]:
    """The admin socket opens a little after the process starts, and answers while it reads its folder."""

    def ask() -> dict[str, Any] | None:
        try:
            return broker.status()
        except AdminSocketError:
            return None

    status: dict[str, Any] = broker.wait_until(ask, "the administration socket")
    return status


def test_clients_are_accepted_when_the_folder_has_been_read_and_not_before(
    start: StartBroker, tmp_path: Path
) -> None:
    """The port is bound but refuses, and `status` says why. Then everything is there at once."""
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
    assert_filled(broker)


def test_a_broker_is_stopped_while_it_recovers(start: StartBroker, tmp_path: Path) -> None:
    """It ends in order with exit code 0 and never listened; the next start has all its contents."""
    broker = start()
    fill(broker)
    broker.kill()
    broker = start(program=("-m", "tests.support.gated_serve", str(tmp_path / "never")), up=False)
    assert status_of_one_that_starts(broker)["broker"]["journal"]["recovered"] is False
    broker.stop()
    assert not [entry for entry in broker.log if entry.get("event") == "listening"]
    broker = start()
    assert_filled(broker)


@pytest.mark.parametrize("part", ["journal", "catalog", "streams"])
def test_a_damaged_file_stops_the_start_and_storage_check_says_the_same(
    start: StartBroker, tmp_path: Path, part: str
) -> None:
    """Both name file, offset and remedy; the exit code is 1, and no file is changed."""
    broker = start()
    fill(broker)
    broker.stop()
    data = tmp_path / "data"
    path = max((each for each in (data / part).rglob("*.log")), key=lambda each: each.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)
    served = run_program("serve", "--port", "0", "--admin-socket", "", "--data-dir", str(data))
    assert served.returncode == 1, served.stderr
    assert "listening" not in served.stderr
    found = re.search(re.escape(str(path)) + r" at offset (\d+): ([^;\n]+); ([^\n\"]+)", served.stderr)
    assert found is not None, served.stderr
    offset, problem, remedy = found.groups()
    checked = run_program("storage", "check", str(data))
    assert checked.returncode == 1
    line = next(line for line in checked.stdout.splitlines() if line.startswith(f"{path.relative_to(data)}:"))
    assert f"BAD at offset {offset}: {problem}" in line
    assert remedy[:40] in line
    assert path.read_bytes() == content
