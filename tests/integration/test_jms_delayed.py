"""Delivery delay as unchanged programs for Qpid JMS use it (docs/jms.md)."""

from __future__ import annotations

import os

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.jms import Jms

pytestmark = pytest.mark.integration

EXPECTED = {
    "a queue": "[later true, latest true, now true]",
    "a topic": "later true, later true",
    "a context": "later",
    "it is not there yet": "-false",
    "a transaction": "later true",
}
"""What each case of `tests/jms/Delayed.java` comes to."""


def test_a_program_for_jms_delays_messages(shared_broker: BrokerProcess, jms: Jms) -> None:
    assert jms.run("Delayed", shared_broker.port, f"delayed{os.getpid()}.") == EXPECTED
