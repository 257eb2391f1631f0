"""Transacted sessions as unchanged programs for Qpid JMS use them (docs/transactions.md)."""

from __future__ import annotations

import os

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.jms import Jms

pytestmark = pytest.mark.integration

EXPECTED = {
    "sent and committed": "- 012",
    "sent and rolled back, then committed": "345",
    "received and rolled back": "0 0true2 12 -",
    "moved from one queue to another, or not": "01 23",
    "a connection that ends rolls back": "-",
    "a thousand in one": "1000 -",
}
"""What each case of `tests/jms/Transacted.java` comes to."""


def test_a_program_for_jms_has_transactions(shared_broker: BrokerProcess, jms: Jms) -> None:
    assert jms.run("Transacted", shared_broker.port, f"transacted{os.getpid()}.") == EXPECTED
