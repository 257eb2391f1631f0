"""Messages and temporary queues as unchanged programs for Qpid JMS use them (docs/jms.md)."""

from __future__ import annotations

import os

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.jms import Jms

pytestmark = pytest.mark.integration

EXPECTED = {
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
"""What each case of `tests/jms/Messages.java` comes to."""


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
    assert found == EXPECTED
