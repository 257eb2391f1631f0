"""Unchanged programs for Qpid JMS: topics, messages, selectors, delays and transactions (docs/jms.md).

Each table says what each case of a program in `tests/jms/` comes to.
"""

from __future__ import annotations

import os

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.jms import Jms

DELAYED = {
    "a queue": "[later true, latest true, now true]",
    "a topic": "later true, later true",
    "a context": "later",
    "it is not there yet": "-false",
    "a transaction": "later true",
}


def test_a_program_for_jms_delays_messages(shared_broker: BrokerProcess, jms: Jms) -> None:
    assert jms.run("Delayed", shared_broker.port, f"delayed{os.getpid()}.") == DELAYED


MESSAGES = {
    "text": "a text",
    "bytes": "7seven",
    "map": "1099511627776strue",
    "stream": "1.5s",
    "object": "[a, 2]",
    "none": "without a bodyfalse",
    "headers": "type correlation 7 true true true true true",
    "priorities": "954430",
    "expired": "-",
    "request and reply by a temporary queue": "that.true",
    "a temporary queue is its connection's": "InvalidDestinationException InvalidDestinationException",
}


@pytest.mark.rabbitmq(
    "amqp_jms_SUITE",
    "jms_connection",
    "jms_temporary_queue",
    "message_types_jms_to_jms",
    "temporary_queue_delete",
    "temporary_queue_rpc",
)
def test_a_program_for_jms_has_messages_of_each_type(shared_broker: BrokerProcess, jms: Jms) -> None:
    options = "?jms.deserializationPolicy.allowList=*"
    found = jms.run("Messages", shared_broker.port, f"messages{os.getpid()}.", options=options)
    assert found == MESSAGES


SELECTING = {
    "a browser takes nothing": "0123456789 0123456789 0123456789",
    "a browser with a selector": "357",
    "consumers with selectors": "68 13579 024",
    "what is missing is unknown": "89",
    "recovered, and selected again": "7 true",
    "a selector that is none": "InvalidSelectorException",
}


@pytest.mark.rabbitmq(
    "amqp_jms_SUITE", "message_selector_application_properties", "message_selector_header_fields"
)
def test_a_program_for_jms_selects_and_browses(shared_broker: BrokerProcess, jms: Jms) -> None:
    assert jms.run("Selecting", shared_broker.port, f"selecting{os.getpid()}.") == SELECTING


TOPICS = {
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


@pytest.fixture(scope="module")
def results(shared_broker: BrokerProcess, jms: Jms) -> dict[str, str]:
    return jms.run("Topics", shared_broker.port, f"jms{os.getpid()}.")


@pytest.mark.parametrize("case", TOPICS)
def test_a_program_for_jms_has_topics(results: dict[str, str], case: str) -> None:
    assert results[case] == TOPICS[case]


def test_nothing_is_left_of_its_subscriptions(broker: BrokerProcess, results: dict[str, str]) -> None:
    assert results.keys() == TOPICS.keys()
    broker.wait_until(
        lambda: not [queue for queue in broker.status()["queues"] if "subscription" in queue["name"]],
        "the end of its subscriptions",
    )


TRANSACTED = {
    "sent and committed": "- 012",
    "sent and rolled back, then committed": "345",
    "received and rolled back": "0 0true2 12 -",
    "moved from one queue to another, or not": "01 23",
    "a connection that ends rolls back": "-",
    "a thousand in one": "1000 -",
}


def test_a_program_for_jms_has_transactions(shared_broker: BrokerProcess, jms: Jms) -> None:
    assert jms.run("Transacted", shared_broker.port, f"transacted{os.getpid()}.") == TRANSACTED
