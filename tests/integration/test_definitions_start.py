"""A broker that starts from what a RabbitMQ exported: its users log in, may do what they might, and route."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingConnection

from tests.support.broker_process import REPOSITORY, BrokerProcess, StartBroker
from tests.support.pika_client import parameters
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.usefixtures("deadline")

EXPORTED = REPOSITORY / "tests" / "unit" / "metadata" / "rabbitmq-definitions.json"
PASSWORDS = {"guest": "not guest", "orders-service": "größe & stärke", "legacy": "old"}
SALT = b"\x90\x8d\xc6\x0a"


def hashed(password: str, algorithm: str) -> str:
    digest = hashlib.new(algorithm.rpartition("_")[2], SALT + password.encode()).digest()
    return base64.b64encode(SALT + digest).decode()


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(EXPORTED.read_text(encoding="utf-8"))
    for user in found["users"]:
        if user["name"] in PASSWORDS:
            user["password_hash"] = hashed(PASSWORDS[user["name"]], user["hashing_algorithm"])
    return found


def write(folder: Path, content: object) -> str:
    path = folder / "definitions.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("definitions")
    with BrokerProcess(
        folder, "--definitions", write(folder, document()), "--auth-failure-delay-ms", "10"
    ) as process:
        yield process
        process.check_log()


Proton = Callable[..., ProtonClient]


@pytest.fixture
def proton(rabbit: BrokerProcess, clients: Any) -> Proton:
    def connect(user: str, vhost: str = "/", password: str | None = None) -> ProtonClient:
        client: ProtonClient = clients(
            rabbit, user=user, password=password or PASSWORDS[user], virtual_host=f"vhost:{vhost}"
        )
        return client

    return connect


@pytest.fixture
def connect_pika(rabbit: BrokerProcess) -> Iterator[Callable[..., BlockingConnection]]:
    opened: list[BlockingConnection] = []

    def connect(user: str, vhost: str = "/", password: str | None = None) -> BlockingConnection:
        given = parameters(rabbit, user=user, password=password or PASSWORDS[user], virtual_host=vhost)
        connection = BlockingConnection(given)
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        if connection.is_open:
            connection.close()


# --- users ---------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("definition_import_SUITE", "import_on_a_booting_node")
@pytest.mark.parametrize(("user", "vhost"), [("guest", "/"), ("orders-service", "shop"), ("legacy", "/")])
def test_users_log_in_with_the_passwords_that_they_had(
    proton: Proton, connect_pika: Any, rabbit: BrokerProcess, user: str, vhost: str
) -> None:
    """Salted SHA-256, SHA-512 and MD5, in both protocols."""
    proton(user, vhost)
    connect_pika(user, vhost)
    shown = [each for each in rabbit.status()["connections"] if each["user"] == user]
    assert sorted((each["protocol"], each["vhost"]) for each in shown) == [
        ("AMQP 0-9-1", vhost),
        ("AMQP 1.0", vhost),
    ]


# --- together with the configuration -------------------------------------------------------------


def test_what_cannot_be_is_left_out_at_the_start(start_broker: StartBroker, tmp_path: Path) -> None:
    """A queue of a plugin of RabbitMQ, and the binding of an exchange that its export leaves out."""
    content = document()
    queue = {"name": "log", "vhost": "/", "durable": True, "arguments": {"x-queue-type": "jms"}}
    binding = {"source": "inner", "vhost": "/", "destination": "tasks", "destination_type": "queue"}
    content["queues"].append(queue)
    content["bindings"].append(binding | {"routing_key": "", "arguments": {}})
    broker = start_broker("--definitions", write(tmp_path, content))
    unsupported = (
        "invalid arg 'x-queue-type' for queue 'log' in vhost '/': "
        "must be one of classic, quorum, stream, not 'jms'"
    )
    for reason in (
        f"queues[{len(content['queues']) - 1}] (log): {unsupported}",
        f"bindings[{len(content['bindings']) - 1}] (inner to tasks): no exchange 'inner' in vhost '/'",
    ):
        broker.wait_for_log("left out of the definitions", reason=f"definitions: {reason}")


# --- files that are none -------------------------------------------------------------------------


def without_vhost(content: dict[str, Any]) -> dict[str, Any]:
    """A queue in a virtual host that nobody declared."""
    return content | {"vhosts": content["vhosts"][:1]}


@pytest.mark.rabbitmq("definition_import_SUITE", "import_invalid_file")
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory; must be a JSON file"),
        ("{", "is not JSON: "),
        ("[]", "cannot be imported: definitions: is "),
        (
            '{"services": {}}',
            "cannot be imported: definitions: there are none, but services; give a file of",
        ),
        (without_vhost, "cannot be imported: "),
    ],
    ids=["no file", "no JSON", "a list", "another file", "no such virtual host"],
)
def test_a_file_that_cannot_be_taken_over_ends_the_start(tmp_path: Path, content: Any, problem: str) -> None:
    """One sentence on standard error that names the file and the place in it, and exit code 1."""
    path = str(tmp_path / "definitions.json")
    if content is not None:
        write(tmp_path, content(document()) if callable(content) else content)
    command = [sys.executable, "-m", "amqp10broker", "serve", "--port", "0", "--admin-socket", ""]
    result = subprocess.run(
        [*command, "--definitions", path],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"amqp10broker: definitions file {path} {problem}"), line
    if content is without_vhost:
        assert "shop" in line
