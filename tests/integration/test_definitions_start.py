"""A broker that starts from what a RabbitMQ exported: its users log in, may do what they might, and route."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import REPOSITORY, BrokerProcess, run_program
from tests.support.pika_client import Connect

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


# --- users ---------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("definition_import_SUITE", "import_on_a_booting_node")
@pytest.mark.parametrize(("user", "vhost"), [("guest", "/"), ("orders-service", "shop"), ("legacy", "/")])
def test_users_log_in_with_the_passwords_that_they_had(
    clients: Any, connect: Connect, rabbit: BrokerProcess, user: str, vhost: str
) -> None:
    password = PASSWORDS[user]
    clients(rabbit, user=user, password=password, virtual_host=f"vhost:{vhost}")
    connect(rabbit, user=user, password=password, virtual_host=vhost)
    shown = [each for each in rabbit.status()["connections"] if each["user"] == user]
    assert sorted((each["protocol"], each["vhost"]) for each in shown) == [
        ("AMQP 0-9-1", vhost),
        ("AMQP 1.0", vhost),
    ]


# --- files that are none -------------------------------------------------------------------------


def without_vhost(content: dict[str, Any]) -> dict[str, Any]:
    return content | {"vhosts": content["vhosts"][:1]}


@pytest.mark.rabbitmq("definition_import_SUITE", "import_invalid_file")
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory; must be a JSON file"),
        ("{", "is not JSON: "),
        ("[]", "cannot be imported: definitions: is "),
        ('{"services": {}}', "cannot be imported: definitions: there are none, but services; give a file of"),
        (without_vhost, "cannot be imported: "),
    ],
    ids=["no file", "no JSON", "a list", "another file", "no such virtual host"],
)
def test_a_file_that_cannot_be_taken_over_ends_the_start(tmp_path: Path, content: Any, problem: str) -> None:
    """One sentence on standard error has the file and the place in it; the exit code is 1."""
    path = str(tmp_path / "definitions.json")
    if content is not None:
        write(tmp_path, content(document()) if callable(content) else content)
    result = run_program("serve", "--port", "0", "--admin-socket", "", "--definitions", path)
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"amqp10broker: definitions file {path} {problem}"), line
    if content is without_vhost:
        assert "shop" in line
