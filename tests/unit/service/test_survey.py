"""What is chosen of the status document, what waits first, and how it is counted."""

from __future__ import annotations

import re
from typing import Any

import pytest

from amqp10broker.service.survey import EVERYTHING, IDLE, Selection, Survey
from amqp10broker.service.waits import Wait


def link(name: str, queue: str, waits: str | None = None, for_s: float | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "role": "receiver",
        "queue": queue,
        "waits": waits,
        "waits_why": f"why {name}",
        "waits_for_s": for_s,
    }


def amqp10(number: int, *links: dict[str, Any], user: str = "ann") -> dict[str, Any]:
    sessions = [{"channel": 0, "links": list(links)}, {"channel": 1, "links": []}]
    return {"id": number, "user": user, "vhost": "/", "peer": f"p{number}", "sessions": sessions}


def amqp091(number: int, channel: dict[str, Any], *consumers: dict[str, Any]) -> dict[str, Any]:
    parts = [{"number": 1, "waits": None, **channel, "consumers": list(consumers)}]
    return {"id": number, "user": "bob", "vhost": "/", "peer": "p", "sessions": [], "channels": parts}


CONNECTIONS = (
    amqp10(1, link("a", "orders", "queue-empty", 500.0)),
    amqp10(2, link("b", "orders", "no-credit-used-up", 3.0), link("c", "bills", "peer-window-closed", 9.0)),
    amqp10(3, link("d", "bills"), user="eve"),
    amqp091(
        4,
        {"waits": "credit-flow", "waits_for_s": 1.0},
        {"tag": "t", "queue": "orders", "waits": "prefetch-full", "waits_for_s": 70.0},
        {"tag": "u", "queue": "bills", "waits": None},
    ),
    amqp10(5, link("e", "orders", "no-credit-drained", None)),
)
QUEUES = [
    {"name": "orders", "vhost": "/", "messages_ready": 5, "messages_unsettled": 0, "full": False},
    {"name": "bills", "vhost": "/", "messages_ready": 1, "messages_unsettled": 1, "full": True},
    {"name": "idle", "vhost": "/", "messages_ready": 0, "messages_unsettled": 0},
]


def survey(**chosen: Any) -> dict[str, Any]:
    selection = Selection.read(chosen)
    found = Survey(selection, len(CONNECTIONS))
    for connection in CONNECTIONS:
        if selection.wants(connection["id"], connection["user"]):
            found.add(connection)
    return found.document(QUEUES)


def waiting(found: dict[str, Any]) -> list[str]:
    return [each["name"] or "channel" for each in found["waiting"]]


def test_what_waits_longest_stands_first_and_who_is_idle_is_counted_apart() -> None:
    """An empty queue is nobody's fault: it is no wait in the sum, and not in the list."""
    found = survey()
    assert waiting(found) == ["t", "c", "b", "channel", "e"]
    assert found["summary"] == {
        "chosen": False,
        "connections": 5,
        "connections_in_all": 5,
        "links": 5,
        "consumers": 2,
        "channels": 1,
        "waiting": 5,
        "links_waiting": 3,
        "consumers_waiting": 1,
        "channels_waiting": 1,
        "reasons": {
            "queue-empty": 1,
            "no-credit-used-up": 1,
            "peer-window-closed": 1,
            "credit-flow": 1,
            "prefetch-full": 1,
            "no-credit-drained": 1,
        },
        "queues": 3,
        "queues_full": 1,
        "idle_reasons": ["queue-empty"],
    }
    assert found["connections"] == list(CONNECTIONS)
    assert found["waiting"][0] == {
        "kind": "consumer",
        "connection": 4,
        "user": "bob",
        "vhost": "/",
        "peer": "p",
        "channel": 1,
        "name": "t",
        "role": None,
        "queue": "orders",
        "waits": "prefetch-full",
        "waits_why": None,
        "waits_for_s": 70.0,
    }


@pytest.mark.parametrize(
    ("chosen", "connections", "waits", "queues"),
    [
        ({"connection": 2}, [2], ["c", "b"], ["orders", "bills"]),
        ({"user": "eve"}, [3], [], ["bills"]),
        ({"queue": "orders"}, [1, 2, 4, 5], ["t", "b", "channel", "e"], ["orders"]),
        ({"queue": "b*"}, [2, 3, 4], ["c", "channel"], ["bills"]),
        ({"link": "c"}, [2], ["c"], ["bills"]),
        ({"link": "[tu]"}, [4], ["t"], ["orders", "bills"]),
        ({"reason": "peer-window-closed"}, [2], ["c"], ["bills"]),
        ({"reason": "no-credit"}, [2, 5], ["b", "e"], ["orders"]),
        ({"reason": "queue-empty"}, [1], ["a"], ["orders"]),
        ({"reason": "*-full"}, [4], ["t"], ["orders"]),
        ({"longer_s": 5}, [1, 2, 4], ["t", "c"], ["orders", "bills"]),
        ({"queue": "orders", "longer_s": 2, "user": "ann"}, [1, 2], ["b"], ["orders"]),
        ({"connection": 99}, [], [], []),
    ],
    ids=str,
)
def test_it_is_chosen_by(
    chosen: dict[str, Any], connections: list[int], waits: list[str], queues: list[str]
) -> None:
    """All that is given must fit; other parts of a connection, and other queues, are left out."""
    found = survey(**chosen)
    assert [each["id"] for each in found["connections"]] == connections
    assert waiting(found) == waits
    assert [each["name"] for each in found["queues"]] == queues
    assert found["summary"]["connections"] == len(connections)
    assert found["summary"]["connections_in_all"] == 5


def test_of_a_connection_only_what_was_chosen_is_left_and_the_document_is_unchanged() -> None:
    """Sessions and channels without anything of it are left out too."""
    found = survey(queue="bills")
    sessions = {each["id"]: each["sessions"] for each in found["connections"]}
    assert [[link["name"] for link in session["links"]] for session in sessions[2]] == [["c"]]
    assert [each["tag"] for each in found["connections"][-1]["channels"][0]["consumers"]] == ["u"]
    assert len(CONNECTIONS[1]["sessions"][0]["links"]) == 2


def test_a_bound_leaves_the_worst_connections_the_longest_waits_and_the_fullest_queues() -> None:
    """And says how many there are in all."""
    found = survey(limit=2)
    assert [each["id"] for each in found["connections"]] == [4, 2]
    assert waiting(found) == ["t", "c"]
    assert [each["name"] for each in found["queues"]] == ["bills", "orders"]
    assert (found["summary"]["waiting"], found["summary"]["queues"]) == (5, 3)


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ({"usr": "x"}, "'usr' cannot be chosen by; did you mean user?"),
        ({"user": 1}, "'user' must be a text"),
        ({"longer_s": "1"}, "'longer_s' must be a number of 0 or more"),
        ({"limit": -1}, "'limit' must be a number of 0 or more"),
        ({"connection": True}, "'connection' must be a number of 0 or more"),
        ({"reason": "no-credti"}, "there is no reason 'no-credti'; did you mean no-credit?"),
        ({"reason": "prefetchfull"}, "there is no reason 'prefetchfull'; did you mean prefetch-full?"),
    ],
)
def test_what_nobody_can_be_chosen_by_is_refused(chosen: dict[str, Any], text: str) -> None:
    """An empty answer to a slip of the pen would say that nothing waits."""
    with pytest.raises(ValueError, match=re.escape(text)):
        Selection.read(chosen)


def test_who_is_idle_is_among_the_reasons() -> None:
    """The rest are things that somebody can mend."""
    assert set(Wait) > IDLE
    assert Selection.read({}) == EVERYTHING
