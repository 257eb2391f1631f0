"""Operating the real process by command: what is declared, messages, definitions, completion, users."""

from __future__ import annotations

import csv
import io
import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import REPOSITORY, StartBroker
from tests.support.command_line import CommandLine
from tests.support.proton_client import ProtonClient


def test_the_articles_table(start_broker: StartBroker) -> None:
    """``queue list name type messages`` prints exactly this table, in the order of names."""
    run = CommandLine(start_broker())
    run("queue", "declare", "classic-queue-amqp-10", "--type", "classic")
    run("queue", "declare", "quorum-queue-amqp-10", "--type", "quorum")
    run("publish", "--queue", "classic-queue-amqp-10", "m", "--count", "1089")
    run("publish", "--queue", "quorum-queue-amqp-10", "m", "--count", "148")
    assert run("queue", "list", "name", "type", "messages") == (
        "┌───────────────────────┬─────────┬──────────┐\n"
        "│ name                  │ type    │ messages │\n"
        "├───────────────────────┼─────────┼──────────┤\n"
        "│ classic-queue-amqp-10 │ classic │ 1089     │\n"
        "├───────────────────────┼─────────┼──────────┤\n"
        "│ quorum-queue-amqp-10  │ quorum  │ 148      │\n"
        "└───────────────────────┴─────────┴──────────┘\n"
    )
    assert run("queue", "list", "messages", "--format", "plain", "--no-header") == "1089\n148\n"
    rows = list(csv.DictReader(io.StringIO(run("queue", "list", "name", "type", "--format", "csv"))))
    assert rows == [
        {"name": "classic-queue-amqp-10", "type": "classic"},
        {"name": "quorum-queue-amqp-10", "type": "quorum"},
    ]


@pytest.mark.rabbitmq("quorum_queue_SUITE", "format")
def test_a_queue_is_declared_with_its_arguments_and_found_as_such(run: CommandLine, queue: str) -> None:
    """Arguments have types; a second declaration agrees, or reports the difference."""
    declare = (
        "queue",
        "declare",
        queue,
        "--argument",
        "x-max-length=10",
        "--argument",
        "x-overflow=drop-head",
    )
    assert run(*declare) == f"queue '{queue}' declared\n"
    assert run(*declare) == f"queue '{queue}' exists already, with these properties\n"
    (row,) = [each for each in run.json("queue", "list", "name", "arguments") if each["name"] == queue]
    assert row["arguments"]["x-max-length"] == 10
    assert row["arguments"]["x-overflow"] == "drop-head"
    complaint = run.fails(1, "queue", "declare", queue)
    assert "inequivalent arg" in complaint
    assert complaint.endswith("(declare it with the same properties, or delete it first)")
    complaint = run.fails(1, "queue", "declare", f"{queue}2", "--argument", 'x-max-length="ten"')
    assert "x-max-length" in complaint
    assert "reserved prefix" in run.fails(1, "queue", "declare", "amq.mine")


@pytest.mark.rabbitmq("bindings_SUITE", "list_bindings")
def test_exchanges_and_bindings(run: CommandLine, queue: str) -> None:
    one, two = f"{queue}.1", f"{queue}.2"
    run("queue", "declare", queue)
    assert run("exchange", "declare", one, "--type", "topic") == f"exchange '{one}' declared\n"
    run("exchange", "declare", two, "--type", "headers", "--no-durable", "--internal")
    run("binding", "add", one, queue, "--key", "a.*")
    arguments = ("--argument", "x-match=any", "--argument", "n=1")
    run("binding", "add", one, two, "--to-exchange", "--key", "#")
    run("binding", "add", two, queue, *arguments)
    columns = ("name", "type", "durable", "internal")
    assert [each for each in run.json("exchange", "list", *columns) if each["name"] in (one, two)] == [
        {"name": one, "type": "topic", "durable": True, "internal": False},
        {"name": two, "type": "headers", "durable": False, "internal": True},
    ]
    mine = [each for each in run.json("binding", "list") if each["source_name"] in (one, two)]
    assert sorted(
        (
            each["source_name"],
            each["destination_name"],
            each["destination_kind"],
            each["routing_key"],
            each["arguments"],
        )
        for each in mine
    ) == [
        (one, queue, "queue", "a.*", {}),
        (one, two, "exchange", "#", {}),
        (two, queue, "queue", "", {"x-match": "any", "n": 1}),
    ]
    run("publish", "--exchange", one, "--key", "b", "--header", "n=1", "m")
    run.broker.wait_for_counts(queue, ready=1)

    assert "has no such binding" in run.fails(1, "binding", "delete", two, queue)
    run("binding", "delete", two, queue, *arguments)
    assert "in use" in run.fails(1, "exchange", "delete", one, "--if-unused")
    run("binding", "delete", one, two, "--to-exchange", "--key", "#")
    assert run("exchange", "delete", one) == f"exchange '{one}' deleted\n"
    run("exchange", "delete", two, "--if-unused")
    assert f"no exchange '{one}'" in run.fails(1, "exchange", "delete", one)
    assert "no exchange 'nothing'" in run.fails(1, "binding", "add", "nothing", queue)
    assert "x-nonsense" in run.fails(1, "exchange", "declare", one, "--type", "x-nonsense")


@pytest.mark.rabbitmq("amqp_client_SUITE", "list_connections")
@pytest.mark.rabbitmq("per_user_connection_channel_limit_SUITE", "single_node_list_in_user")
@pytest.mark.rabbitmq("per_vhost_connection_limit_SUITE", "single_node_list_in_vhost")
def test_what_clients_do_is_listed(run: CommandLine, client: ProtonClient, queue: str) -> None:
    """AMQP 1.0 connections, sessions, links and consumers are joined by the connection's number."""
    client.sender(queue).send("1")
    client.receiver(queue, credit=5).take()
    (link, other) = run.broker.wait_until(
        lambda: [each for each in run.json("link", "list", *LINK) if each["queue"] == queue], "links"
    )
    assert {link["role"], other["role"]} == {"sender", "receiver"}
    number = link["connection"]
    (connection,) = [
        each
        for each in run.json("connection", "list", "id", "user", "client", "sessions")
        if each["id"] == number
    ]
    assert (connection["user"], connection["sessions"]) == ("guest", 1)
    (session,) = [
        each for each in run.json("session", "list", "connection", "links") if each["connection"] == number
    ]
    assert session["links"] == 2
    (consumer,) = [each for each in run.json("consumer", "list") if each["connection"] == number]
    assert (consumer["queue"], consumer["prefetch"], consumer["unacknowledged"]) == (queue, 4, 1)
    assert run.json("connection", "list", "--vhost", "nothing") == []


LINK = ("connection", "role", "queue")


@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE",
    "consumer_metrics_cleaned_on_connection_close",
    note="consumers are listed while they are there",
)
@pytest.mark.rabbitmq("unit_queue_consumers_SUITE", "list_consumers")
def test_channels_and_their_consumers_are_listed(run: CommandLine, channel: object, queue: str) -> None:
    channel.queue_declare(queue)  # type: ignore[attr-defined]
    channel.confirm_delivery()  # type: ignore[attr-defined]
    channel.basic_qos(prefetch_count=7)  # type: ignore[attr-defined]
    channel.basic_consume(queue, lambda *_: None, consumer_tag="mine")  # type: ignore[attr-defined]
    (consumer,) = run.broker.wait_until(
        lambda: [each for each in run.json("consumer", "list") if each["queue"] == queue], "the consumer"
    )
    assert (consumer["tag"], consumer["prefetch"]) == ("mine", 7)
    columns = ("connection", "channel", "confirm", "consumers")
    (row,) = [
        each for each in run.json("channel", "list", *columns) if each["connection"] == consumer["connection"]
    ]
    assert (row["channel"], row["confirm"], row["consumers"]) == (consumer["channel"], True, 1)


@pytest.fixture
def declared(run: CommandLine, queue: str) -> str:
    run("queue", "declare", queue)
    return queue


# --- publish --------------------------------------------------------------------------------------


def test_what_is_published_is_what_is_got(run: CommandLine, declared: str) -> None:
    """Body, properties, typed headers and the persistence are kept."""
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
    """The broker converts the message; headers keep their types."""
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
    """The other broker has everything that was declared, passwords included."""
    one, two = CommandLine(start_broker()), CommandLine(start_broker())
    one("vhost", "add", "v")
    one("user", "add", "u", "--tag", "management", stdin=b"secret")
    one("permission", "set", "u", ".*", ".*", ".*", "--vhost", "v")
    one("queue", "declare", "q", "--vhost", "v", "--argument", "x-max-length=5")
    one("exchange", "declare", "x", "--type", "topic", "--vhost", "v")
    one("binding", "add", "x", "q", "--key", "a.#", "--vhost", "v")
    file = tmp_path / "definitions.json"
    told = one("definitions", "export", str(file))
    assert "password hashes" in told
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
    """With 20 000 bindings it is longer than any buffer in between."""
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


# --- policies -------------------------------------------------------------------------------------


def test_the_policies_of_the_documentation_are_set_and_listed(run: CommandLine) -> None:
    """The examples are those of quorum queues, as commands of this program."""
    overrides = ("qq-overrides", r"^qq\.", '{"delivery-limit": 50}')
    options = ("--priority", "123", "--apply-to", "quorum_queues")
    try:
        run("policy", "set", *overrides, *options)
        run("policy", "set", "qq-unlimited", r"^qq\.unlimited", '{"delivery-limit": -1}', *options)
        (row, unlimited) = (
            row for row in run.json("policy", "list") if row["name"] in ("qq-overrides", "qq-unlimited")
        )
        assert row == {
            "name": "qq-overrides",
            "pattern": r"^qq\.",
            "apply_to": "quorum_queues",
            "definition": {"delivery-limit": 50},
            "priority": 123,
        }
        assert unlimited["definition"] == {"delivery-limit": -1}
        dead_letters = '{"delivery-limit": 50, "dead-letter-exchange": "redeliveries.limit.dlx"}'
        run("policy", "set", *overrides[:2], dead_letters, *options)
    finally:
        run.done("policy", "clear", "qq-overrides")
        run.done("policy", "clear", "qq-unlimited")


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


FIRST_PASSWORD = "halibut"

"""Of the fixture's user: a word that no other test writes, for the log is looked through for it."""


@pytest.fixture
def user(run: CommandLine, queue: str) -> Any:
    run("user", "add", queue, "--tag", "monitoring", stdin=FIRST_PASSWORD.encode() + b"\n")
    yield queue
    run.done("user", "delete", queue)


def as_user(user: str, password: str = FIRST_PASSWORD) -> tuple[str, ...]:
    return ("--user", user, "--password", password)


def test_a_user_may_do_what_the_permissions_say(run: CommandLine, user: str) -> None:
    mine = f"{user}-mine"
    run("queue", "declare", mine)
    publish = ("publish", "--queue", mine, "m", *as_user(user))
    assert f"access to vhost '/' refused for user '{user}'" in run.fails(1, *publish)
    assert run("permission", "set", user, "", ".*", "^never$") == f"permissions of user '{user}' set\n"
    assert run(*publish) == f"1 message accepted by queue '{mine}'\n"
    complaint = run.fails(1, "get", mine, *as_user(user))
    assert f"read access to queue '{mine}' in vhost '/' refused for user '{user}'" in complaint
    rows = run.json("permission", "list")
    assert {"user": user, "configure": "", "write": ".*", "read": "^never$"} in rows
    run("permission", "clear", user)
    assert user not in [row["user"] for row in run.json("permission", "list")]
    assert "refused" in run.fails(1, *publish)


def test_passwords_come_from_files_or_standard_input(run: CommandLine, user: str, tmp_path: Path) -> None:
    """They are never on the command line; a new one counts at once, and the log has neither."""
    since = len(run.broker.log)
    run("permission", "set", user, ".*", ".*", ".*")
    run("queue", "declare", user)
    run("publish", "--queue", user, "m", *as_user(user))
    (tmp_path / "p").write_text("swordfish\n")
    run("user", "set-password", user, "--password-file", str(tmp_path / "p"))
    assert "refused user and password" in run.fails(1, "publish", "--queue", user, "m", *as_user(user))
    run("publish", "--queue", user, "m", "--user", user, "--password-file", str(tmp_path / "p"))
    run("user", "set-password", user, "--no-password")
    refused = run.fails(1, "publish", "--queue", user, "m", *as_user(user, "swordfish"))
    assert "refused user and password" in refused
    assert "the password is empty" in run.fails(2, "user", "set-password", user, stdin=b"\n")
    assert "exists" in run.fails(1, "user", "add", user, stdin=b"x")
    logged = str(run.broker.log[since:])
    assert user in logged
    assert "swordfish" not in logged
    assert FIRST_PASSWORD not in logged
