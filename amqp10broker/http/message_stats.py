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
    "redeliver": "redelivered",
}


def of_queue(counters: Mapping[str, int]) -> Stats:
    """Of a queue.

    Args:
        counters: see `queues.counters.tally`.
    """
    stats: Stats = {}
    if counters["published"]:
        stats["publish"] = counters["published"]
    delivering = {name: counters[counter] for name, counter in _DELIVERING.items()}
    got = sum(delivering[name] for name in ("deliver", "deliver_no_ack", "get", "get_no_ack"))
    if got:
        stats |= delivering | {"deliver_get": got}
    return stats


def of_exchange(counters: Mapping[str, int]) -> Stats:
    """Of an exchange: messages that came in, and those of them that went on, once each.

    Args:
        counters: see `routing.exchange.Exchange.counted`.
    """
    published = counters["published"]
    if not published:
        return {}
    return {"publish_in": published, "publish_out": published - counters["unroutable"]}
