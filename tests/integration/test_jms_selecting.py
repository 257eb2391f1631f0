"""Selectors and browsers as unchanged programs for Qpid JMS use them (docs/filters.md)."""

from __future__ import annotations

import os

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.jms import Jms

pytestmark = pytest.mark.integration

EXPECTED = {
    "a browser takes nothing": "0123456789 0123456789 0123456789",
    "a browser with a selector": "357",
    "consumers with selectors": "68 13579 024",
    "what is missing is unknown": "89",
    "recovered, and selected again": "7 true",
    "a selector that is none": "InvalidSelectorException",
}
"""What each case of `tests/jms/Selecting.java` comes to."""


@pytest.mark.rabbitmq(
    "amqp_jms_SUITE", "message_selector_application_properties", "message_selector_header_fields"
)
def test_a_program_for_jms_selects_and_browses(shared_broker: BrokerProcess, jms: Jms) -> None:
    assert jms.run("Selecting", shared_broker.port, f"selecting{os.getpid()}.") == EXPECTED
