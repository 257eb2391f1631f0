"""The real process is killed and started again on the same data folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker
from proton import ProtonException

from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import parameters
from tests.support.proton_client import ProtonClient

pytestmark = pytest.mark.usefixtures("deadline")


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
        connection = BlockingConnection(parameters(self._brokers[-1], **options))
        self._clients.append(connection)
        return connection

    def proton(self) -> ProtonClient:
        client = ProtonClient(self._brokers[-1].port)
        self._clients.append(client)
        return client

    def end(self) -> None:
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
    restarts = Restarts(tmp_path)
    yield restarts
    restarts.end()


def run(broker: BrokerProcess, *arguments: str) -> str:
    done = broker.run_command(*arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def secret(folder: Path, password: str) -> str:
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
