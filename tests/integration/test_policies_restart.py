"""Policies outlive the process, and act on the queues that come back with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingConnection

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.pika_client import get_all, parameters, put

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]


def test_policies_act_after_a_restart(tmp_path: Path) -> None:
    """Policy, operator policy and alternate exchange: as before the kill."""

    def start(name: str) -> tuple[BrokerProcess, CommandLine, BlockingConnection]:
        (tmp_path / name).mkdir()
        broker = BrokerProcess(tmp_path / name, "--data-dir", str(tmp_path / "data"))
        return broker, CommandLine(broker), BlockingConnection(parameters(broker))

    broker, run, connection = start("first")
    run("policy", "set", "p", "^q", '{"max-length": 5, "overflow": "drop-head"}', "--priority", "3")
    run("policy", "set-operator", "o", "^q", '{"max-length": 2}', "--apply-to", "queues")
    run("policy", "set", "a", "^x", '{"alternate-exchange": "ae"}', "--apply-to", "exchanges")
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.exchange_declare("x", "direct", durable=True)
    channel.exchange_declare("ae", "fanout", durable=True)
    channel.queue_bind("q", "ae")
    connection.close()
    broker.kill()

    broker, run, connection = start("second")
    try:
        (row,) = run.json("queue", "list", "name", "policy", "operator_policy", "effective_policy_definition")
        assert row == {
            "name": "q",
            "policy": "p",
            "operator_policy": "o",
            "effective_policy_definition": {"max-length": 2, "overflow": "drop-head"},
        }
        assert [each["name"] for each in run.json("policy", "list")] == ["a", "p"]
        channel = connection.channel()
        put(channel, "q", "1", "2")
        channel.basic_publish("x", "nowhere", b"3")
        assert get_all(channel, "q") == ["2", "3"]
        run("policy", "clear-operator", "o")
        put(channel, "q", *"123456")
        assert get_all(channel, "q") == list("23456")
    finally:
        connection.close()
        broker.stop()
