"""Queue objects of the HTTP API, made of rows of the operation ``list-queues``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.api import message_stats

DECLARED: Final = ("name", "vhost", "type", "durable", "auto_delete", "exclusive", "arguments")
"""Columns that are known without querying other nodes or queues."""
STATIC: Final = frozenset(
    {
        *DECLARED,
        *("node", "state", "policy", "operator_policy", "effective_policy_definition"),
        *("internal", "internal_owner", "leader", "members", "online"),
    }
)
TOTALS: Final = frozenset({*DECLARED, "node", "state"})
"""Columns beside the counts, for queues without statistics but with totals."""
COUNTS: Final = ("messages", "messages_ready", "messages_unacknowledged")
MESSAGE_MEMORY_BYTES: Final = 100
"""Approximate memory of a message beside its content."""

Row = Mapping[str, Any]


def static(row: Row) -> dict[str, Any]:
    """Return the columns that do not change with every message."""
    shown = {key: row[key] for key in DECLARED}
    shown |= {
        "node": row["leader"],
        "state": row["state"],
        "policy": row["policy"],
        "operator_policy": row["operator_policy"],
        "effective_policy_definition": row["effective_policy_definition"],
        "internal": False,
        "internal_owner": False,
    }
    if row["type"] != "classic":
        shown |= {"leader": row["leader"], "members": row["members"], "online": row["online"]}
    return shown


def counts(row: Row) -> dict[str, int]:
    """Return the message counts; nothing if the leader has not answered."""
    ready, unacknowledged = row["message_count"], row["messages_unsettled"]
    if ready is None:
        return {}
    # A stream stores delivered messages, too: they are among the ready ones.
    every = ready if row["type"] == "stream" else ready + unacknowledged + (row["messages_dlx"] or 0)
    return dict(zip(COUNTS, (every, ready, unacknowledged), strict=True))


def figures(row: Row) -> dict[str, Any]:
    """Return all counters and gauges; nothing if the leader has not answered."""
    if row["message_count"] is None:
        return {}
    shown: dict[str, Any] = {**counts(row), "consumers": row["consumer_count"], **_bytes(row)}
    if row["type"] == "quorum":
        shown |= {
            key: row[key]
            for key in ("delivery_limit", "messages_dlx", "messages_delayed", "publishers")
            if row[key] is not None
        }
    elif row["type"] == "classic":
        shown["messages_delayed"] = row["messages_delayed"]
    elif row["segments"] is not None:
        shown["segments"] = row["segments"]
    stats = message_stats.of_queue(row["counters"])
    return {**shown, "message_stats": stats} if stats else shown


def _bytes(row: Row) -> dict[str, int]:
    weight = row.get("weight")  # a node of another version may not send it
    if weight is None:
        return {}
    known = counts(row)
    ready, unacknowledged = weight["ready"], weight["unsettled"]
    every = None if ready is None or unacknowledged is None else ready + unacknowledged
    shown = {
        "message_bytes": every,
        "message_bytes_ready": ready,
        "message_bytes_unacknowledged": unacknowledged,
    }
    if row["type"] == "quorum":
        shown |= {"messages_persistent": known["messages"], "message_bytes_persistent": every}
    elif not row["durable"]:
        shown |= {"messages_persistent": 0, "message_bytes_persistent": 0}
    here, here_bytes = weight["ready_in_memory"], weight["ready_bytes_in_memory"]
    if here is not None:
        messages = here + known["messages_unacknowledged"]
        size = None if unacknowledged is None else here_bytes + unacknowledged
        shown |= {
            "messages_ready_ram": here,
            "messages_unacknowledged_ram": known["messages_unacknowledged"],
            "messages_ram": messages,
            "message_bytes_ram": size,
            "memory": None if size is None else size + messages * MESSAGE_MEMORY_BYTES,
        }
    return {key: value for key, value in shown.items() if value is not None}


def details(row: Row) -> dict[str, Any]:
    """Return the columns that lists leave out."""
    return {"single_active_consumer_tag": row["single_active_consumer_tag"]}
