"""The real process is killed and started again on the same data folder."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker, ProbableAuthenticationError
from proton import Delivery, Message, ProtonException, symbol

from tests.support.broker_process import REPOSITORY, BrokerProcess
from tests.support.pika_client import parameters
from tests.support.proton_client import ProtonClient

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


class Restarts:
    """Brokers one after the other on one data folder, and clients, which a kill finds connected."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._brokers: list[BrokerProcess] = []
        self._clients: list[BlockingConnection | ProtonClient] = []

    def __call__(self) -> BrokerProcess:
        """Start a broker; the one before is killed without warning."""
        if self._brokers:
            self._brokers[-1].kill()
            self._brokers[-1].check_log()
            self._close_clients()
        folder = self._folder / f"broker{len(self._brokers)}"
        folder.mkdir()
        data_dir = str(self._folder / "data")
        broker = BrokerProcess(folder, "--data-dir", data_dir, "--auth-failure-delay-ms", "10")
        self._brokers.append(broker)
        return broker

    def pika(self, **options: Any) -> BlockingConnection:
        """Connect to the present broker."""
        connection = BlockingConnection(parameters(self._brokers[-1], **options))
        self._clients.append(connection)
        return connection

    def proton(self) -> ProtonClient:
        """Connect to the present broker."""
        client = ProtonClient(self._brokers[-1].port)
        self._clients.append(client)
        return client

    def end(self) -> None:
        """Stop in order."""
        self._close_clients()
        if self._brokers:
            self._brokers[-1].stop()

    def _close_clients(self) -> None:
        for client in self._clients:
            # A client whose broker was killed says so when it is closed.
            with suppress(AMQPError, ProtonException):
                client.close()
        self._clients.clear()


@pytest.fixture
def restart(tmp_path: Path) -> Iterator[Restarts]:
    """Restart on the folder of this test."""
    restarts = Restarts(tmp_path)
    yield restarts
    restarts.end()


def run(broker: BrokerProcess, *arguments: str) -> str:
    """Run a command and expect success."""
    done = broker.run_command(*arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def secret(folder: Path, password: str) -> str:
    """A file with a password."""
    path = folder / password
    path.write_text(password, encoding="utf-8")
    return str(path)


def test_what_is_durable_survives_a_kill(restart: Restarts, tmp_path: Path) -> None:
    """Declared by AMQP 0-9-1 and by the command line; what is transient is gone."""
    broker = restart()
    run(broker, "vhost", "add", "shop", "--description", "a shop")
    run(broker, "user", "add", "ann", "--password-file", secret(tmp_path, "pencil"), "--tag", "monitoring")
    run(broker, "permission", "set", "ann", "^a", ".*", ".*", "--vhost", "shop")
    run(broker, "permission", "set", "guest", ".*", ".*", ".*", "--vhost", "shop")
    policy = {"vhost": "shop", "name": "short", "pattern": "^d", "definition": {"max-length": 3}}
    definitions = tmp_path / "policies.json"
    definitions.write_text(json.dumps({"policies": [policy]}), encoding="utf-8")
    run(broker, "definitions", "import", str(definitions))
    channel = restart.pika(virtual_host="shop").channel()
    channel.queue_declare("durable", durable=True, arguments={"x-max-length": 5})
    channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_declare("transient")
    channel.queue_declare("exclusive", exclusive=True, durable=True)
    channel.exchange_declare("durable", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
    channel.exchange_declare("transient", "topic")
    channel.queue_bind("durable", "durable", "a.#", {"n": 1})
    channel.queue_bind("durable", "transient", "a.#")
    channel.queue_bind("transient", "durable", "a.#")
    channel.exchange_bind("durable", "amq.topic", "a.b")
    channel.queue_declare("deleted", durable=True)
    channel.queue_delete("deleted")

    broker = restart()
    entry = broker.wait_for_log("catalog recovered")
    assert (entry["vhosts"], entry["users"], entry["queues"]) == (2, 2, 2)
    assert (entry["exchanges"], entry["bindings"], entry["policies"]) == (1, 2, 1)
    exported = json.loads(run(broker, "definitions", "export", "-"))
    assert [each["name"] for each in exported["policies"]] == ["short"]
    assert ["monitoring"] in [user["tags"] for user in exported["users"]]
    assert {queue["name"] for queue in broker.status()["queues"]} == {"durable", "quorum"}
    connection = restart.pika(user="ann", password="pencil", virtual_host="shop")
    channel = connection.channel()
    with pytest.raises(ChannelClosedByBroker, match="configure access to queue 'no' in vhost 'shop' refused"):
        channel.queue_declare("no", durable=True)
    channel = restart.pika(virtual_host="shop").channel()
    channel.queue_declare("durable", durable=True, arguments={"x-max-length": 5})
    channel.exchange_declare("durable", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "a.b", b"through both bindings", mandatory=True)
    assert channel.basic_get("durable", auto_ack=True)[2] == b"through both bindings"
    with pytest.raises(ChannelClosedByBroker, match="no queue 'deleted'"):
        channel.queue_declare("deleted", passive=True)


def test_amqp_1_0_declares_durably_too(restart: Restarts) -> None:
    """A queue that an attach declared."""
    restart()
    client = restart.proton()
    sender = client.sender("declared")
    assert [outcome.state for outcome in sender.send("1")] == [Delivery.ACCEPTED]
    broker = restart()
    assert broker.queue("declared") is not None


def test_users_stay_as_an_administrator_left_them(restart: Restarts, tmp_path: Path) -> None:
    """Changed passwords and deleted users, over several kills."""
    broker = restart()
    run(broker, "user", "add", "ann", "--password-file", secret(tmp_path, "pencil"))
    run(broker, "permission", "set", "ann", ".*", ".*", ".*")
    run(broker, "user", "set-password", "ann", "--password-file", secret(tmp_path, "crayon"))
    run(broker, "user", "delete", "guest")
    for _ in range(2):
        restart()
        restart.pika(user="ann", password="crayon").close()
        for user, password in (("ann", "pencil"), ("guest", "guest")):
            with pytest.raises(ProbableAuthenticationError):
                restart.pika(user=user, password=password)


def serve(data_dir: Path) -> subprocess.CompletedProcess[str]:
    """A broker that does not come up."""
    command = [sys.executable, "-m", "amqp10broker", "serve", "--port", "0", "--admin-socket", ""]
    return subprocess.run(
        [*command, "--data-dir", str(data_dir)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_status_and_errors_name_the_folder(restart: Restarts, tmp_path: Path) -> None:
    """One sentence on standard error that says what to do, and exit code 1."""
    broker = restart()
    data = tmp_path / "data"
    assert broker.status()["broker"]["data_dir"] == str(data)
    result = serve(data)
    assert result.returncode == 1
    assert result.stderr == (
        f"amqp10broker: {data}: is in use by process {broker.pid}; stop that broker, or give another folder\n"
    )
    result = serve(tmp_path / "not" / "there")
    assert result.returncode == 1
    assert result.stderr.startswith(f"amqp10broker: {tmp_path}/not/there: ")
    assert result.stderr.count("\n") == 1
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "format").write_text("amqp10broker data folder, format 99\n")
    assert "has format 99, and this broker reads format 1; nothing was changed" in serve(copy).stderr


def test_delayed_messages_are_kept_and_come_at_their_time(restart: Restarts) -> None:
    """Over kills; what was due meanwhile comes at once, and nothing comes before its time."""
    restart()
    due_ms = int(time.time() * 1000) + 1_500
    channel = restart.pika().channel()
    channel.queue_declare("delayed", durable=True)
    channel.queue_declare("delayed.quorum", durable=True, arguments={"x-queue-type": "quorum"})
    channel.confirm_delivery()
    channel.basic_publish("", "delayed.quorum", b"", BasicProperties(headers={"x-opt-delivery-time": due_ms}))
    for body, headers in (
        (b"in an hour", {"x-opt-delivery-delay": 3_600_000}),
        (b"soon", {"x-opt-delivery-time": due_ms}),
        (b"at once", {}),
    ):
        channel.basic_publish("", "delayed", body, BasicProperties(delivery_mode=2, headers=headers))
    later = Message(body="later", durable=True, annotations={symbol("x-opt-delivery-time"): due_ms + 1})
    outcomes = restart.proton().sender("delayed").send(later)
    assert [outcome.state for outcome in outcomes] == [Delivery.ACCEPTED]
    for _ in range(2):
        restart()
    receiver = restart.proton().receiver("delayed", credit=10)
    came = set()
    for _ in range(3):
        item = receiver.take(1)[0]
        body = item.message.body
        if body == "later":
            assert time.time() * 1000 > due_ms
        elif bytes(body) == b"soon":
            assert time.time() * 1000 >= due_ms
        came.add(body if isinstance(body, str) else bytes(body))
        receiver.settle(item)
    assert came == {b"at once", b"soon", "later"}
    assert bytes(restart.proton().receiver("delayed.quorum", credit=1).take(1)[0].message.body) == b""
    assert time.time() * 1000 >= due_ms
    broker = restart()
    assert broker.queue("delayed")["messages_delayed"] == 1
    assert restart.pika().channel().queue_purge("delayed").method.message_count >= 1
    assert broker.queue("delayed")["messages_delayed"] == 0
