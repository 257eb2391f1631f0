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
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker
from proton import Delivery, Message

from tests.support.broker_process import REPOSITORY, BrokerProcess, StartBroker
from tests.support.pika_client import parameters
from tests.support.proton_client import Disconnected, ProtonClient

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

EXPORTED = REPOSITORY / "tests" / "unit" / "metadata" / "rabbitmq-definitions.json"
PASSWORDS = {"guest": "not guest", "orders-service": "größe & stärke", "legacy": "old"}
SALT = b"\x90\x8d\xc6\x0a"


def hashed(password: str, algorithm: str) -> str:
    """As rabbitmqctl hash_password does it."""
    digest = hashlib.new(algorithm.rpartition("_")[2], SALT + password.encode()).digest()
    return base64.b64encode(SALT + digest).decode()


def document() -> dict[str, Any]:
    """The export, with passwords that are known here."""
    found: dict[str, Any] = json.loads(EXPORTED.read_text(encoding="utf-8"))
    for user in found["users"]:
        if user["name"] in PASSWORDS:
            user["password_hash"] = hashed(PASSWORDS[user["name"]], user["hashing_algorithm"])
    return found


def write(folder: Path, content: object) -> str:
    """A definitions file."""
    path = folder / "definitions.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that was started from the export."""
    folder = tmp_path_factory.mktemp("definitions")
    with BrokerProcess(
        folder, "--definitions", write(folder, document()), "--auth-failure-delay-ms", "10"
    ) as process:
        yield process
        process.check_log()


Proton = Callable[..., ProtonClient]


@pytest.fixture
def proton(rabbit: BrokerProcess, clients: Any) -> Proton:
    """Connect proton as a user of the export."""

    def connect(user: str, vhost: str = "/", password: str | None = None) -> ProtonClient:
        client: ProtonClient = clients(
            rabbit, user=user, password=password or PASSWORDS[user], virtual_host=f"vhost:{vhost}"
        )
        return client

    return connect


@pytest.fixture
def connect_pika(rabbit: BrokerProcess) -> Iterator[Callable[..., BlockingConnection]]:
    """Connect pika as a user of the export."""
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


# --- permissions ---------------------------------------------------------------------------------


def test_virtual_hosts_are_open_to_those_who_had_them(proton: Proton, connect_pika: Any) -> None:
    """Also the virtual host in which nobody has permissions is there."""
    for user, vhost in (("legacy", "shop"), ("orders-service", "/"), ("guest", "bare")):
        with pytest.raises(AMQPConnectionError) as caught:
            connect_pika(user, vhost)
        assert f"access to vhost '{vhost}' refused for user '{user}'" in str(caught.value.args[0])
        client = None
        try:
            client = proton(user, vhost)
            assert client.wait_closed()[0] == "amqp:unauthorized-access"
        except Disconnected:
            assert client is None, "refused before it was open"


@pytest.mark.rabbitmq("definition_import_SUITE", "(permissions and topic permissions)")
def test_permissions_hold(proton: Proton, connect_pika: Any) -> None:
    """The three patterns, in both protocols."""
    client = proton("orders-service", "shop")
    assert client.receiver("/queues/orders.new").attached
    session = client.session()
    client.receiver("/queues/archive", session=session, wait=False)
    client.wait(lambda: session.closed, "end of the session")
    assert (session.condition, session.description) == (
        "amqp:unauthorized-access",
        "read access to queue 'archive' in vhost 'shop' refused for user 'orders-service'",
    )
    channel = connect_pika("orders-service", "shop").channel()
    channel.queue_declare("orders.mine", durable=True)
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare("mine", durable=True)
    assert caught.value.reply_text == (
        "ACCESS_REFUSED - configure access to queue 'mine' in vhost 'shop' refused for user 'orders-service'"
    )
    reading = connect_pika("legacy").channel()
    assert reading.basic_get("tasks")[0] is None
    reading.queue_purge("tasks")
    with pytest.raises(ChannelClosedByBroker) as caught:
        reading.queue_bind("tasks", "celery", "x")
    assert "write access to queue 'tasks'" in caught.value.reply_text


@pytest.mark.rabbitmq("definition_import_SUITE", "(permissions and topic permissions)")
def test_topic_permissions_hold(proton: Proton) -> None:
    """The pattern names the user by ``{username}``."""
    client = proton("orders-service", "shop")
    session = client.session()
    sender = client.sender("/exchanges/orders.events/orders.other.created", session=session)
    sender.transfer(Message(body="x"))
    client.wait(lambda: session.closed, "end of the session")
    assert session.description == (
        "write access to topic 'orders.other.created' in exchange 'orders.events' in vhost 'shop' refused "
        "for user 'orders-service'"
    )


# --- routing -------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("definition_import_SUITE", "import_on_a_booting_node")
def test_what_was_bound_routes(proton: Proton, connect_pika: Any) -> None:
    """Topic to queue, topic to a headers exchange to another queue, and the alternate exchange at the end."""
    client = proton("orders-service", "shop")
    sender = client.sender("/exchanges/orders.events/orders.orders-service.created")
    here = Message(body="here", properties={"region": "eu", "priority": 1})
    there = Message(body="there", properties={"region": "us", "priority": 1})
    assert [outcome.state for outcome in sender.send(here, there)] == [Delivery.ACCEPTED] * 2
    nowhere = client.sender("/exchanges/orders.events/orders.orders-service.deleted")
    assert [outcome.state for outcome in nowhere.send("gone")] == [Delivery.RELEASED]
    receiver = client.receiver("/queues/orders.new", credit=10)
    got = receiver.take(2)
    assert [each.message.body for each in got] == ["here", "there"]
    receiver.settle(got)
    channel = connect_pika("guest", "shop").channel()
    method, properties, _ = channel.basic_get("archive", auto_ack=True)
    assert (method.exchange, method.routing_key) == ("orders.events", "orders.orders-service.created")
    assert properties.headers == {"region": "eu", "priority": 1}
    assert channel.basic_get("archive")[0] is None


# --- together with the configuration -------------------------------------------------------------


def test_users_of_the_configuration_come_on_top(start_broker: StartBroker, tmp_path: Path) -> None:
    """They may do everything in every virtual host of the file; the file's users stay as they are."""
    broker = start_broker(
        *("--definitions", write(tmp_path, document()), "--auth-failure-delay-ms", "10"),
        *("--user", "operator:secret", "--anonymous-login-user", ""),
    )
    for user, password in (("operator", "secret"), ("guest", PASSWORDS["guest"])):
        BlockingConnection(parameters(broker, user=user, password=password, virtual_host="shop")).close()
    BlockingConnection(parameters(broker, user="operator", password="secret", virtual_host="bare")).close()
    with pytest.raises(AMQPConnectionError):
        BlockingConnection(parameters(broker, user="guest", password="guest"))


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
            "definitions: there are none, but services; give a file of 'amqp10broker definitions",
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
