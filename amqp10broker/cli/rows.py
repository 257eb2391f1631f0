"""Converts the broker's answers to rows of a listing, with at least a value for each column.

Names of columns are RabbitMQ's where it has an equivalent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Document = Mapping[str, Any]
Connections = Sequence[Document]


def queue_row(queue: Document) -> Row:
    ready, unsettled, dead = queue["message_count"], queue["messages_unsettled"], queue["messages_dlx"] or 0
    counters = dict(queue["counters"])
    if "delivery_limit" in counters:  # the column of this name is RabbitMQ's: the limit
        counters["over_delivery_limit"] = counters.pop("delivery_limit")
    return {
        **queue,
        # A stream stores delivered messages, too: they are among the ready ones.
        "messages": ready if queue["type"] == "stream" or ready is None else ready + unsettled + dead,
        **counters,
    }


def binding_row(binding: Document) -> Row:
    kind = "queue" if "destination_queue" in binding else "exchange"
    return {
        "source_name": binding["source"],
        "destination_name": binding[f"destination_{kind}"],
        "destination_kind": kind,
        "routing_key": binding["binding_key"],
        "arguments": binding["arguments"],
        "location": binding["location"],
    }


# --- from connections ---------------------------------------------------------------------


def connection_rows(connections: Connections) -> Iterator[Row]:
    for connection in connections:
        client = connection.get("client") or {}
        names = (str(client[key]) for key in ("connection_name", "product", "version") if key in client)
        yield {
            **connection,
            "client": connection["container_id"] or " ".join(names) or None,
            "sessions": len(connection["sessions"]),
            "channels": len(connection.get("channels", ())),
            **_counted(connection),
        }


def session_rows(connections: Connections) -> Iterator[Row]:
    for owner, session in _parts(connections, "sessions"):
        yield {
            **owner,
            **session,
            "links": len(session["links"]),
            "transactions": len(session.get("transactions", ())),
            **_counted(session),
        }


def link_rows(connections: Connections) -> Iterator[Row]:
    for owner, session in _parts(connections, "sessions"):
        for link in session["links"]:
            yield {**owner, "channel": session["channel"], **link, **_counted(link)}


def transaction_rows(connections: Connections) -> Iterator[Row]:
    for owner, session in _parts(connections, "sessions"):
        for transaction in session.get("transactions", ()):
            yield {**owner, "channel": session["channel"], **transaction}


def channel_rows(connections: Connections) -> Iterator[Row]:
    for owner, channel in _parts(connections, "channels"):
        yield {
            **owner,
            **channel,
            "channel": channel["number"],
            "consumers": len(channel["consumers"]),
            **_counted(channel),
        }


def consumer_rows(connections: Connections) -> Iterator[Row]:
    """Yield the receivers of AMQP 1.0 and the consumers of AMQP 0-9-1.

    Their prefetch is the link credit in the former, and the prefetch in the latter.
    """
    for link in link_rows(connections):
        if link["role"] == "receiver":
            yield {
                **link,
                "protocol": "AMQP 1.0",
                "tag": link["name"],
                "prefetch": link["credit"],
                "unacknowledged": link["unsettled"],
            }
    for owner, channel in _parts(connections, "channels"):
        for consumer in channel["consumers"]:
            yield {**owner, "channel": channel["number"], **consumer, "protocol": "AMQP 0-9-1"}


def _counted(thing: Document) -> Row:
    error = thing["last_error"]
    text = None
    if error is not None:
        text = f"{error['time']} {error['event']}" + (f": {error['text']}" if error.get("text") else "")
    return {**thing["counters"], "last_error": text}


def _parts(connections: Connections, kind: str) -> Iterator[tuple[Row, Document]]:
    for connection in connections:
        owner = {name: connection[name] for name in ("node", "user", "vhost")} | {
            "connection": connection["id"]
        }
        for part in connection.get(kind, ()):
            yield owner, part
