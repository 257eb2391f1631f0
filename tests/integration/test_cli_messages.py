"""publish and get, definitions and completion, against the real process."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import REPOSITORY, BrokerProcess, StartBroker
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.integration


@pytest.fixture
def run(broker: BrokerProcess) -> CommandLine:
    return CommandLine(broker)


@pytest.fixture
def declared(run: CommandLine, queue: str) -> str:
    run("queue", "declare", queue)
    return queue


# --- publish --------------------------------------------------------------------------------------


def test_what_is_published_is_what_is_got(run: CommandLine, declared: str) -> None:
    """Body, properties, headers with their types, and how it should be kept."""
    run(
        *("publish", "--queue", declared, "hällo", "--priority", "5", "--ttl", "600000"),
        *("--property", "message-id=m-1", "--property", "content-type=text/plain"),
        *("--header", "n=5", "--header", "flag=true", "--header", 'text="5"', "--annotation", "x-mine=1"),
    )
    (got,) = run.json("get", declared, "--ack-mode", "ack")
    assert got["body"] == "hällo"
    assert got["properties"] == {"message_id": "m-1", "content_type": "text/plain"}
    assert got["application_properties"] == {"n": 5, "flag": True, "text": "5"}
    assert got["message_annotations"]["x-mine"] == 1
    assert (got["header"]["durable"], got["header"]["priority"]) == (True, 5)


def test_bodies_come_from_files_and_standard_input_as_they_are(
    run: CommandLine, declared: str, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 1000
    (tmp_path / "b").write_bytes(data)
    run("publish", "--queue", declared, "--file", str(tmp_path / "b"))
    run("publish", "--queue", declared, stdin=data[::-1])
    done = run.done("get", declared, "-n", "2", "--ack-mode", "ack", "--format", "body")
    assert done.stdout == data + data[::-1]


# --- get ------------------------------------------------------------------------------------------


def test_a_message_of_a_client_of_091_is_shown_in_words_of_10(
    run: CommandLine, channel: Any, declared: str
) -> None:
    """The conversion is the broker's; headers keep their types."""
    import pika

    properties = pika.BasicProperties(
        content_type="a/b", headers={"n": 7, "s": "x"}, message_id="m", delivery_mode=2
    )
    channel.basic_publish("", declared, b"body", properties)
    run.broker.wait_for_counts(declared, ready=1)
    (got,) = run.json("get", declared)
    assert got["body"] == "body"
    assert got["header"]["durable"] is True
    assert got["application_properties"] == {"n": 7, "s": "x"}
    assert (got["properties"]["content_type"], got["properties"]["message_id"]) == ("a/b", "m")


# --- definitions ----------------------------------------------------------------------------------


@pytest.mark.rabbitmq("definition_import_SUITE", "import_on_a_running_node")
def test_definitions_go_out_and_in_again(start_broker: StartBroker, tmp_path: Path) -> None:
    """Everything that was declared is there in the other broker, passwords included."""
    one, two = CommandLine(start_broker()), CommandLine(start_broker())
    one("vhost", "add", "v")
    one("user", "add", "u", "--tag", "management", stdin=b"secret")
    one("permission", "set", "u", ".*", ".*", ".*", "--vhost", "v")
    one("queue", "declare", "q", "--vhost", "v", "--argument", "x-max-length=5")
    one("exchange", "declare", "x", "--type", "topic", "--vhost", "v")
    one("binding", "add", "x", "q", "--key", "a.#", "--vhost", "v")
    file = tmp_path / "definitions.json"
    told = one("definitions", "export", str(file))
    assert "hashes of passwords" in told
    assert "warning: RabbitMQ gives no password to u: it does not read argon2id." in told
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # But for guest's password, which stands in the configuration: it gets a new salt each time.
    printed, written = json.loads(one("definitions", "export", "-")), json.loads(file.read_text())
    for document in (printed, written):
        assert document["users"].pop(0)["name"] == "guest"
    assert printed == written

    assert two("definitions", "import", str(file)).startswith("imported: users 2, vhosts 2, ")
    two("definitions", "import", "-", stdin=file.read_bytes())
    publish = ("--exchange", "x", "--key", "a.b", "m", "--vhost", "v", "--user", "u", "--password", "secret")
    two("publish", *publish)
    for columns in ("queue list name arguments", "binding list", "exchange list"):
        words = (*columns.split(), "--vhost", "v")
        assert two.json(*words) == one.json(*words)


@pytest.mark.rabbitmq("definition_import_SUITE", "(a big file)")
def test_a_big_definitions_file_is_imported(start_broker: StartBroker) -> None:
    """Longer than any buffer on the way: 20 000 bindings."""
    run = CommandLine(start_broker())
    bindings = [
        {
            "source": "amq.topic",
            "vhost": "/",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": f"key.{number}",
            "arguments": {},
        }
        for number in range(20_000)
    ]
    queue = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    document = json.dumps({"queues": [queue], "bindings": bindings}).encode()
    assert len(document) > 2_000_000
    assert "bindings 20000" in run("definitions", "import", "-", stdin=document)
    assert len(run.json("binding", "list", "routing_key")) == 20_001  # with that of the default exchange


# --- where there is no broker ---------------------------------------------------------------------


def test_a_reader_that_has_had_enough_is_no_failure(run: CommandLine) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    command = f'"{sys.executable}" -m amqp10broker "$@" | true; exit ${{PIPESTATUS[0]}}'
    where = ("--admin-socket", run.broker.admin_socket)
    done = subprocess.run(
        [bash, "-c", command, "bash", "exchange", "list", "--format", "json", *where],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
