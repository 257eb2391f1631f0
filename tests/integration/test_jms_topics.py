"""Topics and subscriptions as unchanged programs for Qpid JMS use them (docs/jms.md)."""

from __future__ import annotations

import os

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.jms import Jms

pytestmark = pytest.mark.integration

EXPECTED = {
    "each subscriber gets a copy": "11--",
    "a queue and a topic of one name": "topic queue --",
    "destinations of a message come back": "true true",
    "a durable subscription": "kept new -",
    "a durable subscription over connections": "kept",
    "another topic under the name": "new -",
    "another selector under the name": "-",
    "unsubscribe what is not there": "InvalidDestinationException",
    "a client id is taken": "InvalidClientIDException",
    "a virtual host that is not there": "AMQP 1.0 connection failed: virtual host 'none' does not exist "
    "[condition = amqp:unauthorized-access]",
    "a client id is free again": "both",
    "a shared subscription": "true 20",
    "a shared durable subscription of a client id": "kept",
    "a shared durable subscription of all": "kept",
    "a temporary topic": "reply",
    "a temporary topic that was deleted": "InvalidDestinationException",
    "a selector": "n=2 -",
    "no local, volatile": "theirs -",
    "no local, durable": "theirs -",
    "words of a topic's name may be wild": "a- ab-",
    "addresses as programs for RabbitMQ have them": "x q",
    "the program of docs/jms.md": "order 1",
}
"""What each case of `tests/jms/Topics.java` comes to."""


@pytest.fixture(scope="module")
def results(shared_broker: BrokerProcess, jms: Jms) -> dict[str, str]:
    """One run of the program for all its cases."""
    return jms.run("Topics", shared_broker.port, f"jms{os.getpid()}.")


@pytest.mark.parametrize("case", EXPECTED)
def test_a_program_for_jms_has_topics(results: dict[str, str], case: str) -> None:
    assert results[case] == EXPECTED[case]


def test_nothing_is_left_of_its_subscriptions(broker: BrokerProcess, results: dict[str, str]) -> None:
    assert results.keys() == EXPECTED.keys()
    broker.wait_until(
        lambda: not [queue for queue in broker.status()["queues"] if "subscription" in queue["name"]],
        "the end of its subscriptions",
    )
