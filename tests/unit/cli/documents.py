"""What a broker says of itself, with one of everything, for the pages that show it."""

from __future__ import annotations

from typing import Any

from amqp10broker.metadata.queue import LastError
from amqp10broker.operations.snapshot import (
    ChannelView,
    ConnectionView,
    ConsumerView,
    LinkView,
    SessionView,
    TransactionView,
    WaitView,
    document,
)
from amqp10broker.queues.queue_status import CONSUMING
from amqp10broker.sessions.counters import ClientCounters

COUNTERS = ClientCounters().document()
ERROR = LastError("2026-11-22T08:38:47Z", "link detached by the broker", {"text": "why"})
TRANSACTION = TransactionView(
    "0000000100000002", "control", age_s=75.5, messages=3, bytes=2048, deliveries=2, failed=None
)


def _link(name: str, role: str, wait: WaitView) -> LinkView:
    return LinkView(
        *(name, 0, role, "/queues/q", "q", 5, 7, 2, 0, False, 5, 7, 0, {"x-trace": "on"}, ERROR),
        ClientCounters().document(CONSUMING),
        wait,
    )


def connections() -> list[dict[str, Any]]:
    """Connection 1 uses AMQP 1.0 and has two links; 2 uses AMQP 0-9-1 and has a consumer."""
    empty = WaitView("queue-empty", "queue 'q' has no ready message", 1.5)
    links = (_link("in", "receiver", empty), _link("out", "sender", WaitView("blocked-by-alarm", "memory")))
    session = SessionView(
        *(3, 400, 2048, 0, 4_294_967_295, 0, 2, 0, None), COUNTERS, links, transactions=(TRANSACTION,)
    )
    consumer = ConsumerView("ctag", "r", False, 10, 1, 0, WaitView())
    channel = ChannelView(
        *(1, "running", True, False, 0, 1, 10, 0, 400, (consumer,), ERROR),
        COUNTERS,
        WaitView("credit-flow", "the reader of the whole connection waits for this channel"),
    )
    facts = ("opened", 255, 131_072, None, 1_500_000, 900, 0, ERROR, COUNTERS)
    client = {"connection_name": "billing", "product": "pika"}
    return [
        document(ConnectionView(1, "AMQP 1.0", "127.0.0.1:1", "guest", "/", "c", {}, *facts, (session,))),
        document(
            ConnectionView(2, "AMQP 0-9-1", "[::1]:1", "guest", "v", None, client, *facts, (), (channel,))
        ),
    ]


def status() -> dict[str, Any]:
    broker = {
        "container_id": "amqp10broker@box",
        "version": "0.1.0",
        "pid": 4711,
        "uptime_s": 3725.5,
        "listeners": ["127.0.0.1:5672"],
        "flow": {"max_link_credit": 170, "max_incoming_window": 400, "max_queue_credit": 256},
        "alarms": ["memory"],
        "rss_bytes": 43_000_000,
    }
    queue = {"name": "orders", "type": "classic", "durable": True, "messages_ready": 12, "consumers": 1}
    return {"broker": broker, "connections": connections(), "queues": [queue]}
