"""Counters in RabbitMQ's words."""

from __future__ import annotations

from amqp10broker.api.samples import client_stats, queue_stats
from amqp10broker.queues.queue_status import Consumption, QueueConsumption, QueueCounters, tally


class Consumer:
    """One that got messages in every way."""

    def __init__(self) -> None:
        self.counters = Consumption()
        for number, name in enumerate(self.counters.names, 1):
            setattr(self.counters, name, number)

    def counted(self) -> Consumption:
        return self.counters


def test_what_was_published_and_what_was_delivered_are_groups() -> None:
    counters, consumption = QueueCounters(), QueueConsumption()
    counters.published = 3
    assert queue_stats(tally(counters, consumption)) == {"publish": 3}
    counters.published = 0
    consumption.join(Consumer().counted)
    assert queue_stats(tally(counters, consumption)) == {
        "deliver": 1,
        "deliver_no_ack": 2,
        "get": 3,
        "get_no_ack": 4,
        "redeliver": 5,
        "get_empty": 6,
        "ack": 7,
        "deliver_get": 1 + 2 + 3 + 4,
    }


def test_what_clients_published_was_confirmed_returned_or_dropped() -> None:
    assert client_stats({}) == {}
    assert client_stats({"published": 5, "confirmed": 2, "unroutable": 3, "returned": 1}) == {
        "publish": 5,
        "confirm": 2,
        "return_unroutable": 1,
        "drop_unroutable": 2,
    }
    assert client_stats({"got": 1})["deliver_get"] == 1
    assert client_stats({"got_nothing": 2})["get_empty"] == 2
