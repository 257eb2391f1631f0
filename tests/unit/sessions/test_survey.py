"""What is chosen of a broker's views, what waits first, and how it is counted."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

from amqp10broker.operations.snapshot import (
    ChannelView,
    ConnectionView,
    ConsumerView,
    LinkView,
    QueueView,
    SessionView,
    SummaryView,
    WaitingView,
    WaitView,
    document,
)
from amqp10broker.queues.queue_status import QueueStats
from amqp10broker.sessions.diagnosis.survey import Selection, Survey

NO_WAIT = WaitView()


def wait(code: str, for_s: float | None, why: str | None = None) -> WaitView:
    return WaitView(code, why, for_s)


def link(name: str, queue: str, waits: WaitView = NO_WAIT) -> LinkView:
    return LinkView(
        *(name, 0, "receiver", f"/queues/{queue}", queue, 0, 0, 0, 0, False, 0, 0, 0, None, None, {}, waits)
    )


def session(channel: int, *links: LinkView) -> SessionView:
    return SessionView(channel, 1, 1, 0, 0, 0, 0, 0, None, {}, links)


def consumer(tag: str, queue: str, waits: WaitView = NO_WAIT) -> ConsumerView:
    return ConsumerView(tag, queue, False, 1, 1, 0, waits)


def connection(number: int, user: str) -> ConnectionView:
    facts = ("protocol", f"p{number}", user, "/", None, {}, "running", 1, 1, None, 0, 0, 0, None)
    return ConnectionView(number, *facts, {})


def amqp10(number: int, *links: LinkView, user: str = "ann") -> ConnectionView:
    return replace(connection(number, user), sessions=(session(0, *links), session(1)))


def amqp091(number: int, waits: WaitView, *consumers: ConsumerView) -> ConnectionView:
    channel = ChannelView(1, "open", False, False, 0, 0, 0, 0, 0, consumers, None, {}, waits)
    return replace(connection(number, "bob"), channels=(channel,))


def queue(name: str, ready: int, unsettled: int, *, full: bool = False) -> QueueView:
    figures = QueueStats(messages_ready=ready, messages_unsettled=unsettled, full=full)
    return QueueView(name, "/", "classic", True, figures, {}, {}, None)


CONNECTIONS = (
    amqp10(1, link("a", "orders", wait("queue-empty", 500.0))),
    amqp10(
        2,
        link("b", "orders", wait("no-credit-used-up", 3.0)),
        link("c", "bills", wait("peer-window-closed", 9.0)),
    ),
    amqp10(3, link("d", "bills"), user="eve"),
    amqp091(
        4,
        wait("credit-flow", 1.0),
        consumer("t", "orders", wait("prefetch-full", 70.0, "three of three")),
        consumer("u", "bills"),
    ),
    amqp10(5, link("e", "orders", wait("no-credit-drained", None))),
)
QUEUES = (queue("orders", 5, 0), queue("bills", 1, 1, full=True), queue("idle", 0, 0))


@dataclass(frozen=True)
class Found:
    connections: tuple[ConnectionView, ...]
    waiting: tuple[WaitingView, ...]
    queues: list[QueueView]
    summary: SummaryView


def survey(**chosen: Any) -> Found:
    selection = Selection.read(chosen)
    found = Survey(selection, len(CONNECTIONS))
    for each in CONNECTIONS:
        if selection.wants(each.id, each.user):
            found.add(each)
    queues = found.queues(QUEUES)
    return Found(found.connections(), found.waiting(), queues[: selection.limit], found.summary(queues))


def waiting(found: Found) -> list[str]:
    return [each.name or "channel" for each in found.waiting]


def test_what_waits_longest_stands_first_and_who_is_idle_is_counted_apart() -> None:
    """An empty queue is nobody's fault: it is no wait in the sum, and not in the list."""
    found = survey()
    assert waiting(found) == ["t", "c", "b", "channel", "e"]
    assert document(found.summary) == {
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
    assert found.connections == CONNECTIONS
    assert document(found.waiting[0]) == {
        "kind": "consumer",
        "connection": 4,
        "user": "bob",
        "vhost": "/",
        "peer": "p4",
        "local": "",
        "channel": 1,
        "name": "t",
        "role": None,
        "queue": "orders",
        "waits": "prefetch-full",
        "waits_why": "three of three",
        "waits_for_s": 70.0,
        "to_do": "acknowledge, or a larger prefetch.",
        "idle": False,
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
    assert [each.id for each in found.connections] == connections
    assert waiting(found) == waits
    assert [each.name for each in found.queues] == queues
    assert found.summary.connections == len(connections)
    assert found.summary.connections_in_all == 5


def test_a_bound_leaves_the_worst_connections_the_longest_waits_and_the_fullest_queues() -> None:
    """And says how many there are in all."""
    found = survey(limit=2)
    assert [each.id for each in found.connections] == [4, 2]
    assert waiting(found) == ["t", "c"]
    assert [each.name for each in found.queues] == ["bills", "orders"]
    assert (found.summary.waiting, found.summary.queues) == (5, 3)


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
