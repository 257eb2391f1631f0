"""RabbitMQ's object ``message_stats``, made of message counters.

Instead of zeros it is absent where nothing ever happened. Its members come in groups, which are complete
or absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Stats = dict[str, int]

_DELIVERING: Final = {
    "ack": "acknowledged",
    "deliver": "delivered",
    "deliver_no_ack": "delivered_settled",
    "get": "got",
    "get_no_ack": "got_settled",
    "get_empty": "got_nothing",
    "redeliver": "redelivered",
}


def of_queue(counters: Mapping[str, int]) -> Stats:
    """Make the statistics of a queue's counters (`queues.counters.tally`)."""
    stats: Stats = {"publish": counters["published"]} if counters["published"] else {}
    return stats | _delivering(counters)


def of_clients(counters: Mapping[str, int]) -> Stats:
    """Make the statistics of clients' counters (`sessions.counters.ClientCounters`); missing ones are 0."""
    if not counters.get("published"):
        return _delivering(counters)
    unroutable, returned = (counters.get(name, 0) for name in ("unroutable", "returned"))
    return {
        "publish": counters["published"],
        "confirm": counters.get("confirmed", 0),
        "return_unroutable": returned,
        "drop_unroutable": unroutable - returned,
        **_delivering(counters),
    }


def _delivering(counters: Mapping[str, int]) -> Stats:
    delivering = {name: counters.get(counter, 0) for name, counter in _DELIVERING.items()}
    got = sum(delivering[name] for name in ("deliver", "deliver_no_ack", "get", "get_no_ack"))
    return {**delivering, "deliver_get": got} if got or delivering["get_empty"] else {}


def of_exchange(counters: Mapping[str, int]) -> Stats:
    """Make the statistics of an exchange's counters (`routing.exchange.Exchange.counted`)."""
    published = counters["published"]
    if not published:
        return {}
    return {"publish_in": published, "publish_out": published - counters["unroutable"]}
