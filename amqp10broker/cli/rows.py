"""What the broker answers, as rows for a listing: one value for each column that the listing offers.

Pure: documents in, rows out. Names of columns are RabbitMQ's where it has the thing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

Row = dict[str, Any]
Document = Mapping[str, Any]


def queue_row(queue: Document) -> Row:
    """A queue of `list-queues`."""
    ready = queue["message_count"]
    unsettled = queue["messages_unsettled"]
    return {
        "name": queue["name"],
        "vhost": queue["vhost"],
        "type": queue["type"],
        "durable": queue["durable"],
        "auto_delete": queue["auto_delete"],
        "exclusive": queue["exclusive"],
        "arguments": queue["arguments"],
        # A stream keeps what it has delivered: that is among the ready messages.
        "messages": ready if queue["type"] == "stream" else ready + unsettled,
        "messages_ready": ready,
        "messages_unacknowledged": unsettled,
        "consumers": queue["consumer_count"],
        "publishers": queue["publishers"],
        "leader": queue["leader"],
        "policy": queue["policy"],
        "operator_policy": queue["operator_policy"],
        "effective_policy_definition": queue["effective_policy_definition"],
        "ineffective_policy_keys": queue["ineffective_policy_keys"],
        "declaration_id": queue.get("declaration_id"),
        "first_offset": queue.get("first_offset"),
        "next_offset": queue.get("next_offset"),
        "full": queue["full"],
        **queue["counters"],
    }


def binding_row(binding: Document) -> Row:
    """A binding of `list-bindings`."""
    kind = "queue" if "destination_queue" in binding else "exchange"
    return {
        "source_name": binding["source"],
        "destination_name": binding[f"destination_{kind}"],
        "destination_kind": kind,
        "routing_key": binding["binding_key"],
        "arguments": binding["arguments"],
        "location": binding["location"],
    }


# --- from the status document ---------------------------------------------------------------------


def connection_rows(status: Document) -> Iterator[Row]:
    """All connections."""
    for connection in status["connections"]:
        client = connection.get("client") or {}
        yield {
            "id": connection["id"],
            "protocol": connection["protocol"],
            "peer": connection["peer"],
            "user": connection["user"],
            "vhost": connection["vhost"],
            "state": connection["state"],
            "client": connection["container_id"]
            or " ".join(
                str(client[key]) for key in ("connection_name", "product", "version") if key in client
            )
            or None,
            "sessions": len(connection["sessions"]),
            "channels": len(connection.get("channels", ())),
            "channel_max": connection["channel_max"],
            "frame_max": connection["frame_max"],
            "idle_timeout_ms": connection["idle_timeout_ms"],
            "bytes_in": connection["bytes_in"],
            "bytes_out": connection["bytes_out"],
            "writer_waiting_bytes": connection["writer_waiting_bytes"],
            **connection["counters"],
            "last_error": _error_text(connection),
        }


def session_rows(status: Document) -> Iterator[Row]:
    """All sessions of AMQP 1.0."""
    for connection in status["connections"]:
        for session in connection["sessions"]:
            yield {
                **_owner(connection),
                **{key: value for key, value in session.items() if key != "links"},
                "links": len(session["links"]),
                **session["counters"],
                "last_error": _error_text(session),
            }


_WAITS: Final = ("waits", "waits_why", "waits_for_s")


def link_rows(status: Document) -> Iterator[Row]:
    """All links of AMQP 1.0."""
    for connection in status["connections"]:
        for session in connection["sessions"]:
            for link in session["links"]:
                yield {
                    **_owner(connection),
                    "channel": session["channel"],
                    **link,
                    **link["counters"],
                    "last_error": _error_text(link),
                }


def channel_rows(status: Document) -> Iterator[Row]:
    """All channels of AMQP 0-9-1."""
    for connection in status["connections"]:
        for channel in connection.get("channels", ()):
            yield {
                **_owner(connection),
                **channel,
                "channel": channel["number"],
                "consumers": len(channel["consumers"]),
                **channel["counters"],
                "last_error": _error_text(channel),
            }


def consumer_rows(status: Document) -> Iterator[Row]:
    """Whoever takes messages from queues: receivers of AMQP 1.0, consumers of AMQP 0-9-1.

    What a client has asked for in advance is its link credit there and its prefetch here.
    """
    for link in link_rows(status):
        if link["role"] == "receiver":
            yield {
                **{key: link[key] for key in ("connection", "user", "vhost", "channel", "queue")},
                "protocol": "AMQP 1.0",
                "tag": link["name"],
                "prefetch": link["credit"],
                "unacknowledged": link["unsettled"],
                **{key: link[key] for key in _WAITS},
            }
    for connection in status["connections"]:
        for channel in connection.get("channels", ()):
            for consumer in channel["consumers"]:
                yield {
                    **_owner(connection),
                    "channel": channel["number"],
                    "queue": consumer["queue"],
                    "protocol": "AMQP 0-9-1",
                    "tag": consumer["tag"],
                    "prefetch": consumer["prefetch"],
                    "unacknowledged": consumer["unacknowledged"],
                    **{key: consumer[key] for key in _WAITS},
                }


def _error_text(thing: Document) -> str | None:
    """What went wrong last with a thing of the status document, in a line."""
    error = thing["last_error"]
    if error is None:
        return None
    return f"{error['time']} {error['event']}" + (f": {error['text']}" if error.get("text") else "")


def _owner(connection: Document) -> Row:
    return {"connection": connection["id"], "user": connection["user"], "vhost": connection["vhost"]}
