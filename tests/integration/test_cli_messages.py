"""publish and get, definitions and completion, against the real process."""

from __future__ import annotations

import json
import os
import shutil
import socket
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
    """A queue that is there."""
    run("declare", "queue", queue)
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["publish", "--queue", b"q\xff", "x"], "an argument has bytes in it that are no UTF-8"),
        (["publish", "--queue", "q", "--user", b"me\xff", "x"], "an argument has bytes in it that are no"),
        (["get", b"q\xff"], "an argument has bytes in it that are no UTF-8"),
        (["ping", "--password", b"\xff"], "an argument has bytes in it that are no UTF-8"),
        (["publish", "--queue", "q", "--header", b"a=\xff", "x"], "header or annotation cannot be sent: "),
        (["publish", "--queue", "q", "--property", b"subject=\xff", "x"], "give texts in UTF-8"),
        (["publish", "--queue", "q", "--header", "a=9223372036854775808", "x"], "integers of 64 bits"),
        (["get", "q", "-n", "4294967296"], "must be an integer from 1 to 4294967295"),
        (["get", "q", "-n", "9" * 5000], "must be an integer from 1 to 4294967295"),
    ],
)
def test_what_no_frame_can_carry_is_a_wrong_use(
    broker: BrokerProcess, arguments: list[str | bytes], words: str
) -> None:
    """Exit code 2 and a sentence, no traceback."""
    command = [sys.executable, "-m", "amqp10broker", *arguments, "--port", str(broker.port)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_bodies_come_from_files_and_standard_input_as_they_are(
    run: CommandLine, declared: str, tmp_path: Path
) -> None:
    """Every byte of them."""
    data = bytes(range(256)) * 1000
    (tmp_path / "b").write_bytes(data)
    run("publish", "--queue", declared, "--file", str(tmp_path / "b"))
    run("publish", "--queue", declared, stdin=data[::-1])
    done = run.done("get", declared, "-n", "2", "--ack-mode", "ack", "--format", "body")
    assert done.stdout == data + data[::-1]


def test_unroutable_messages_are_a_failure(run: CommandLine, declared: str) -> None:
    """No binding fits: released, exit code 1, and why; with a binding it is accepted."""
    exchange = f"{declared}-x"
    run("declare", "exchange", exchange)
    publish = ("publish", "--exchange", exchange, "--key", "k", "m", "--count", "2")
    complaint = run.fails(1, *publish)
    assert complaint.startswith(f"exchange '{exchange}' with key 'k': 0 accepted, 2 released: ")
    assert "no queue to put it in" in complaint
    run("bind", exchange, declared, "--key", "k")
    assert run(*publish) == f"2 messages accepted by exchange '{exchange}' with key 'k'\n"


def test_the_default_exchange_takes_the_queue_from_the_key(run: CommandLine, declared: str) -> None:
    done = run("publish", "--exchange", "", "--key", declared, "m")
    assert done == f"1 message accepted by exchange '' with key '{declared}'\n"
    assert run("get", declared, "--format", "body") == "m"


def test_a_target_that_is_not_there_is_refused(run: CommandLine, queue: str) -> None:
    """Neither queue nor exchange is made by publishing or getting."""
    assert f"no queue '{queue}' in vhost '/'" in run.fails(1, "publish", "--queue", queue, "m")
    assert f"no exchange '{queue}' in vhost '/'" in run.fails(1, "publish", "--exchange", queue, "m")
    assert f"no queue '{queue}' in vhost '/'" in run.fails(1, "get", queue)
    assert run.broker.queue(queue) is None


def test_who_may_not_is_refused(run: CommandLine, declared: str) -> None:
    """A wrong password, and a virtual host that is not there: both are answers of a broker, code 1."""
    assert "refused user and password" in run.fails(1, "get", declared, "--password", "wrong")
    assert "virtual host 'no' does not exist" in run.fails(1, "get", declared, "--vhost", "no")


# --- get ------------------------------------------------------------------------------------------


def test_messages_go_back_to_their_places_or_away(run: CommandLine, declared: str) -> None:
    """requeue, the default, changes nothing; ack takes what was shown and no more."""
    for body in ("1", "2", "3"):
        run("publish", "--queue", declared, body)
    get = ("get", declared, "--format", "body", "-n")
    assert run(*get, "2") == "12"
    assert run(*get, "10") == "123"
    run.broker.wait_for_counts(declared, ready=3)
    assert run(*get, "2", "--ack-mode", "ack") == "12"
    run.broker.wait_for_counts(declared, ready=1)
    assert run(*get, "10") == "3"


def test_an_empty_queue_is_said_to_be_so(run: CommandLine, declared: str) -> None:
    """It is no failure."""
    assert run("get", declared) == f"queue '{declared}' has no ready message\n"
    assert run.json("get", declared) == []
    assert run("get", declared, "--format", "body", "--wait", "0.05") == ""


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
    one("add-vhost", "v")
    one("add-user", "u", "--tag", "management", stdin=b"secret")
    one("set-permissions", "u", ".*", ".*", ".*", "--vhost", "v")
    one("declare", "queue", "q", "--vhost", "v", "--argument", "x-max-length=5")
    one("declare", "exchange", "x", "--type", "topic", "--vhost", "v")
    one("bind", "x", "q", "--key", "a.#", "--vhost", "v")
    file = tmp_path / "definitions.json"
    told = one("export-definitions", str(file))
    assert "hashes of passwords" in told
    assert "warning: RabbitMQ gives no password to u: it does not read argon2id." in told
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # But for guest's password, which stands in the configuration: it gets a new salt each time.
    printed, written = json.loads(one("export-definitions", "-")), json.loads(file.read_text())
    for document in (printed, written):
        assert document["users"].pop(0)["name"] == "guest"
    assert printed == written

    assert two("import-definitions", str(file)).startswith("imported: users 2, vhosts 2, ")
    two("import-definitions", "-", stdin=file.read_bytes())
    publish = ("--exchange", "x", "--key", "a.b", "m", "--vhost", "v", "--user", "u", "--password", "secret")
    two("publish", *publish)
    for columns in ("list-queues name arguments", "list-bindings", "list-exchanges"):
        words = (*columns.split(), "--vhost", "v")
        assert two.json(*words) == one.json(*words)


@pytest.mark.rabbitmq("definition_import_SUITE", "import_invalid_file")
def test_definitions_with_a_fault_change_nothing(run: CommandLine, queue: str) -> None:
    """The complaint names the place in the file."""
    document = {
        "vhosts": [{"name": queue}],
        "queues": [{"name": "q", "vhost": queue, "durable": "yes", "auto_delete": False, "arguments": {}}],
    }
    complaint = run.fails(1, "import-definitions", "-", stdin=json.dumps(document).encode())
    assert "definitions: queues[0].durable" in complaint
    assert queue not in [row["name"] for row in run.json("list-vhosts")]
    assert "standard input is not JSON" in run.fails(2, "import-definitions", "-", stdin=b"{")


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
    assert "bindings 20000" in run("import-definitions", "-", stdin=document)
    assert len(run.json("list-bindings", "routing_key")) == 20_001  # with that of the default exchange


# --- where there is no broker ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "list-queues",
        "declare queue q",
        "delete queue q",
        "bind x q",
        "purge q",
        "set-tags u",
        "add-vhost v",
        "close-connection 1",
        "export-definitions -",
        "status",
    ],
)
def test_without_a_broker_the_exit_code_is_3(command: str, tmp_path: Path) -> None:
    """One line that says how to start one."""
    where = ("--admin-socket", str(tmp_path / "none.sock"))
    done = run_alone(*command.split(), *where)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert "start one with 'amqp10broker serve" in done.stderr


@pytest.mark.parametrize("command", ["publish --queue q m", "get q"])
def test_clients_without_a_broker_end_with_3_too(command: str) -> None:
    """And ping with 1, as health checks expect."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens: no other program can take the port meanwhile
        port = str(taken.getsockname()[1])
        done = run_alone(*command.split(), "--port", port)
        assert (done.returncode, done.stdout) == (3, "")
        assert f"cannot connect to 127.0.0.1:{port}" in done.stderr
        assert run_alone("ping", "--port", port).returncode == 1


def test_a_server_that_says_nothing_is_no_broker() -> None:
    """Not reachable as a broker: 3, after the time that was given."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = run_alone("get", "q", "--port", str(server.getsockname()[1]), "--timeout", "0.1")
    assert done.returncode == 3
    assert "no answer to our open frame within 0.1 s: " in done.stderr


def run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as it is."""
    return subprocess.run(
        [sys.executable, "-m", "amqp10broker", *arguments],
        cwd=REPOSITORY,
        env={name: text for name, text in os.environ.items() if not name.startswith("AMQP10BROKER_")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_a_reader_that_has_had_enough_is_no_failure(run: CommandLine) -> None:
    """``| head`` closes the pipe."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    command = f'"{sys.executable}" -m amqp10broker "$@" | true; exit ${{PIPESTATUS[0]}}'
    where = ("--admin-socket", run.broker.admin_socket)
    done = subprocess.run(
        [bash, "-c", command, "bash", "list-exchanges", "--format", "json", *where],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_completion_script_is_sourced_by_bash() -> None:
    """As the help says: it defines the completion, and prints nothing."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    command = (
        f'eval "$("{sys.executable}" -m amqp10broker completion bash)"; complete -p amqp10broker; '
        "COMP_WORDS=(amqp10broker list-queues mes); COMP_CWORD=2; "
        "_shtab_amqp10broker amqp10broker mes list-queues; echo ${COMPREPLY[0]}"
    )
    done = subprocess.run(
        [bash, "--norc", "-c", command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o bashdefault -F _shtab_amqp10broker amqp10broker",
        "messages",
    ]
