"""The real process is killed and started again on the same data folder."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker

from tests.support.broker_process import StartBroker
from tests.support.command_line import CommandLine
from tests.support.pika_client import Connect

pytestmark = pytest.mark.usefixtures("deadline")


def test_what_is_durable_survives_a_kill(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    """Declared by AMQP 0-9-1 and by the command line; what is transient is gone."""
    first = start_broker("--data-dir", str(tmp_path / "data"))
    run = CommandLine(first)
    run("vhost", "add", "shop", "--description", "a shop")
    run("user", "add", "ann", "--tag", "monitoring", stdin=b"pencil")
    run("permission", "set", "ann", "^a", ".*", ".*", "--vhost", "shop")
    run("permission", "set", "guest", ".*", ".*", ".*", "--vhost", "shop")
    policy = {"vhost": "shop", "name": "short", "pattern": "^d", "definition": {"max-length": 3}}
    run("definitions", "import", "-", stdin=json.dumps({"policies": [policy]}).encode())
    connection = connect(first, virtual_host="shop")
    channel = connection.channel()
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

    first.kill()
    with suppress(AMQPError):
        connection.close()
    broker = start_broker("--data-dir", str(tmp_path / "data"))
    entry = broker.wait_for_log("catalog recovered")
    assert (entry["vhosts"], entry["users"], entry["queues"]) == (2, 2, 2)
    assert (entry["exchanges"], entry["bindings"], entry["policies"]) == (1, 2, 1)
    exported = json.loads(CommandLine(broker)("definitions", "export", "-"))
    assert [each["name"] for each in exported["policies"]] == ["short"]
    assert ["monitoring"] in [user["tags"] for user in exported["users"]]
    assert {queue["name"] for queue in broker.status()["queues"]} == {"durable", "quorum"}
    channel = connect(broker, user="ann", password="pencil", virtual_host="shop").channel()
    with pytest.raises(ChannelClosedByBroker, match="configure access to queue 'no' in vhost 'shop' refused"):
        channel.queue_declare("no", durable=True)
    channel = connect(broker, virtual_host="shop").channel()
    channel.queue_declare("durable", durable=True, arguments={"x-max-length": 5})
    channel.exchange_declare("durable", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "a.b", b"through both bindings", mandatory=True)
    assert channel.basic_get("durable", auto_ack=True)[2] == b"through both bindings"
    with pytest.raises(ChannelClosedByBroker, match="no queue 'deleted'"):
        channel.queue_declare("deleted", passive=True)
