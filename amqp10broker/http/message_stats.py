"""What became of messages, in RabbitMQ's words: the object ``message_stats``.

It is not there, instead of zeros, where nothing ever happened. What happened comes in groups: with one of a
group all of it is there.
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
    """Of a queue.

    Args:
        counters: see `queues.counters.tally`.
    """
    stats: Stats = {"publish": counters["published"]} if counters["published"] else {}
    return stats | _delivering(counters)


def of_clients(counters: Mapping[str, int]) -> Stats:
    """Of what clients did and got.

    Args:
        counters: see `service.counters.ClientCounters`; one that is not there is 0.
    """
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
    """Of an exchange: messages that came in, and those of them that went on, once each.

    Args:
        counters: see `routing.exchange.Exchange.counted`.
    """
    published = counters["published"]
    if not published:
        return {}
    return {"publish_in": published, "publish_out": published - counters["unroutable"]}
