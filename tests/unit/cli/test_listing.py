"""The ``list-`` commands: columns, what is asked of the broker, and rows from the status document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amqp10broker.cli import admin, listing, main, rows
from amqp10broker.errors import ConfigError
from amqp10broker.queues.queue_status import CONSUMING, QueueConsumption, QueueCounters, tally
from amqp10broker.sessions.counters import ClientCounters

COUNTERS = ClientCounters().document()
ERROR = {"time": "2026-11-22T08:38:47Z", "event": "link detached by the broker", "text": "why"}
BY_NOUN = {each.noun: each for each in listing.LISTINGS}
LINK: dict[str, Any] = {
    "name": "in",
    "handle": 0,
    "role": "receiver",
    "address": "/queues/q",
    "queue": "q",
    "credit": 5,
    "delivery_count": 7,
    "unsettled": 2,
    "available": 0,
    "drain": False,
    "queue_credit": 5,
    "queue_delivery_count": 7,
    "pending": 0,
    "properties": None,
    "waits": "queue-empty",
    "waits_why": "queue 'q' has no ready message",
    "counters": ClientCounters().document(CONSUMING),
    "last_error": ERROR,
    "waits_for_s": 1.5,
}
SESSION: dict[str, Any] = {
    "channel": 3,
    "incoming_window": 400,
    "remote_incoming_window": 2048,
    "next_incoming_id": 0,
    "next_outgoing_id": 0,
    "unsettled_in": 0,
    "unsettled_out": 2,
    "pending_out": 0,
    "counters": COUNTERS,
    "last_error": None,
    "links": [LINK, {**LINK, "role": "sender", "name": "out"}],
    "transactions": [
        {
            "id": "0000000100000002",
            "link": "control",
            "age_s": 75.5,
            "messages": 3,
            "bytes": 2048,
            "deliveries": 2,
            "failed": None,
        }
    ],
}
NO_WAIT = {"waits": None, "waits_why": None, "waits_for_s": None}
CHANNEL: dict[str, Any] = {
    "number": 1,
    "state": "running",
    "confirm": True,
    "transactional": False,
    "unconfirmed": 0,
    "unacknowledged": 1,
    "prefetch": 10,
    "global_prefetch": 0,
    "reader_credit": 400,
    "consumers": [
        {"tag": "ctag", "queue": "r", "no_ack": False, "prefetch": 10, "unacknowledged": 1, "unsent": 0}
        | NO_WAIT
    ],
    "counters": COUNTERS,
    "last_error": {"time": "2026-11-22T08:38:47Z", "event": "consumer cancelled"},
    **NO_WAIT,
}
CONNECTION: dict[str, Any] = {
    "node": "n",
    "id": 1,
    "protocol": "AMQP 1.0",
    "peer": "127.0.0.1:1",
    "user": "guest",
    "vhost": "/",
    "container_id": "c",
    "state": "opened",
    "channel_max": 255,
    "frame_max": 131072,
    "idle_timeout_ms": None,
    "bytes_in": 10,
    "bytes_out": 20,
    "writer_waiting_bytes": 0,
    "counters": COUNTERS,
    "last_error": ERROR,
    "sessions": [SESSION],
}
CONNECTIONS: list[dict[str, Any]] = [
    CONNECTION,
    {
        **CONNECTION,
        "id": 2,
        "protocol": "AMQP 0-9-1",
        "vhost": "v",
        "container_id": None,
        "client": {"connection_name": "billing", "product": "pika"},
        "sessions": [],
        "channels": [CHANNEL],
    },
]
QUEUE = {
    "name": "q",
    "vhost": "/",
    "durable": True,
    "auto_delete": False,
    "exclusive": False,
    "type": "quorum",
    "arguments": {"x-queue-type": "quorum"},
    "message_count": 3,
    "messages_unsettled": 4,
    "messages_delayed": 0,
    "messages_dlx": 2,
    "delivery_limit": 20,
    "single_active_consumer_tag": "ctag1",
    "consumer_count": 1,
    "publishers": 0,
    "leader": "n",
    "replicas": ["n"],
    "members": ["n"],
    "online": ["n"],
    "state": "running",
    "policy": "p",
    "operator_policy": None,
    "effective_policy_definition": {"max-length": 5},
    "ineffective_policy_keys": ["max-age"],
    "full": True,
    "limits": {"messages": 5, "bytes": None, "overflow": "reject-publish"},
    "counters": {
        **tally(QueueCounters(), QueueConsumption()),
        "rejected": 12,
        "delivery_limit": 9,
        "dead_lettered": 5,
    },
    "dead_lettered": {"expired": 3, "maxlen": 2},
    "weight": {"ready": 30, "unsettled": 12, "ready_in_memory": None, "ready_bytes_in_memory": None},
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Requests to the broker, which answers with one of everything."""
    requests: list[Any] = []

    def ask(place: admin.Place, request: Any) -> Any:
        requests.append(request)
        return {"connections": CONNECTIONS, "list-queues": [QUEUE]}.get(request["op"], [])

    monkeypatch.setattr(admin, "ask", ask)
    return requests


@pytest.mark.parametrize(
    "each", [each for each in listing.LISTINGS if each.from_connections], ids=lambda each: each.noun
)
def test_rows_of_connections_have_every_column(each: listing.Listing) -> None:
    """A column that no row has would be an empty one for ever."""
    assert each.from_connections is not None
    found = list(each.from_connections(CONNECTIONS))
    assert found
    for row in found:
        assert set(each.columns) <= set(row)


def test_the_limit_of_deliveries_is_not_the_count_of_messages_beyond_it() -> None:
    """I2: RabbitMQ's column has the name that a counter of queues has elsewhere."""
    row = rows.queue_row(QUEUE)
    assert (row["delivery_limit"], row["over_delivery_limit"]) == (20, 9)


def test_queues_whose_leader_does_not_answer_are_listed_without_counts(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """I3: with what the catalog knows."""
    found = rows.queue_row({**QUEUE, "message_count": None, "messages_unsettled": None, "counters": {}})
    assert found["messages"] is None
    main.main(["queue", "list", "--offline", "--formatter", "json", "name", "state"])
    assert asked == [{"op": "list-queues", "arguments": {"offline": True}}]
    assert json.loads(capsys.readouterr().out) == [{"name": "q", "state": "running"}]


@pytest.mark.rabbitmq("unit_queue_consumers_SUITE", "list_consumers")
def test_consumers_are_receivers_and_channels_consumers() -> None:
    """Both protocols in one table; links on which the client sends are none."""
    found = [
        (row["connection"], row["channel"], row["tag"], row["queue"], row["prefetch"], row["unacknowledged"])
        for row in rows.consumer_rows(CONNECTIONS)
    ]
    assert found == [(1, 3, "in", "q", 5, 2), (2, 1, "ctag", "r", 10, 1)]


@pytest.mark.rabbitmq("bindings_SUITE", "info_all")
def test_bindings_tell_queues_from_exchanges() -> None:
    """The kind of destination is a column."""
    common = {"source": "x", "binding_key": "k", "arguments": {}, "location": "/l"}
    assert rows.binding_row({**common, "destination_queue": "d"})["destination_kind"] == "queue"
    row = rows.binding_row({**common, "destination_exchange": "e"})
    assert (row["destination_name"], row["destination_kind"]) == ("e", "exchange")
    assert set(row) == set(BY_NOUN["bindings"].columns)


@pytest.mark.rabbitmq("bindings_SUITE", "list_with_multiple_vhosts")
def test_the_virtual_host_is_asked_for_or_chosen_from_all(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """What is declared is of one virtual host; connections are of all, or of one."""
    main.main(["queue", "list", "--vhost", "v"])
    main.main(["permission", "list", "--vhost", "v"])
    assert asked == [
        {"op": "list-queues", "vhost": "v", "arguments": {}},
        {"op": "list-permissions", "vhost": "v", "arguments": {"vhost": "v"}},
    ]
    capsys.readouterr()
    main.main(["connection", "list", "id", "--vhost", "v", "--format", "json"])
    assert json.loads(capsys.readouterr().out) == [{"id": 2}]


def test_an_unknown_column_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and the broker is not asked."""
    with pytest.raises(ConfigError, match="column 'nme' is unknown to user list; known are user, tags, lim"):
        listing.chosen_columns(BY_NOUN["users"], ["user", "nme"])
    assert main.main(["queue", "list", "messges"]) == 2
    assert "did you mean messages?" in capsys.readouterr().err
