"""`versus --bytecodes` counts what a broker carries out, and nothing before the window."""

from __future__ import annotations

from benchmarks.broker_process import BrokerSettings, OwnBroker
from benchmarks.measure import preload

MESSAGES = 200


def test_bytecodes_are_counted_from_the_first_look_on() -> None:
    with OwnBroker(BrokerSettings(count_bytecodes=True)) as broker:
        preload(broker, ["bench"], MESSAGES)
        assert broker.bytecodes() == 0
        preload(broker, ["bench"], MESSAGES)
        counted = broker.bytecodes()
        assert counted is not None
        assert counted > 20 * MESSAGES


def test_a_broker_that_does_not_count_has_no_count() -> None:
    with OwnBroker() as broker:
        assert broker.bytecodes() is None
