"""What waits, as a reader sees it on a narrow and on a wide terminal."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.cli import status

LONG = "tenant-7/warehouse-north/orders/incoming/region-eu-central-1/priority-high/queue-00042"


def summary(**changes: Any) -> dict[str, Any]:
    counts = {f"{kind}s_waiting": 0 for kind in status.KINDS}
    return {
        "chosen": False,
        "connections": 152,
        "connections_in_all": 152,
        "waiting": 3,
        **counts,
        "links_waiting": 3,
        "queues": 0,
        "queues_full": 0,
        "reasons": {"queue-empty": 140, "no-credit-used-up": 2, "peer-window-closed": 1},
        "idle_reasons": ["queue-empty"],
        **changes,
    }


def wait(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "link",
        "connection": 7,
        "user": "ann",
        "vhost": "/",
        "peer": "127.0.0.1:1",
        "channel": 0,
        "name": "in",
        "role": "receiver",
        "queue": "orders",
        "waits": "no-credit-used-up",
        "waits_why": "the client's credit was used up at delivery-count 10 and it has sent no flow since",
        "waits_for_s": 12.4,
        **changes,
    }


def test_in_a_cluster_it_says_of_which_node_a_connection_is_and_of_which_it_knows_nothing() -> None:
    """A connection number is valid on one node only."""
    rows = [wait(to_do="do it", node=node) for node in ("a", "b")]
    shown = status.page({"summary": summary(), "waiting": rows, "nodes": 3, "unreached": ["c"]}, 200)
    assert "unknown for clients of c, which cannot be reached" in shown
    for node in ("a", "b"):
        assert any(f"connection 7 session 0 of node {node}, user ann" in line for line in shown)


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {},
            [
                "152 connections, 3 links wait: 2 no-credit-used-up, 1 peer-window-closed",
                "idle: 140 queue-empty",
            ],
        ),
        (
            {
                "connections": 1,
                "links_waiting": 0,
                "channels_waiting": 1,
                "waiting": 1,
                "reasons": {"credit-flow": 1},
            },
            ["1 of 152 connections, 1 channel waits: 1 credit-flow"],
        ),
        (
            {"links_waiting": 0, "waiting": 0, "reasons": {}, "queues_full": 2},
            ["152 connections, nothing waits", "2 queues FULL"],
        ),
        (
            {"links_waiting": 2, "consumers_waiting": 1, "reasons": {"prefetch-full": 3}},
            ["152 connections, 2 links, 1 consumer wait: 3 prefetch-full"],
        ),
    ],
    ids=["links", "one channel of those chosen", "nothing", "several kinds"],
)
def test_the_sum_is_a_sentence(changes: dict[str, Any], lines: list[str]) -> None:
    """The sentence separates clients with no work from waits that have a remedy."""
    assert status.summary(summary(**changes), 100) == lines


def test_an_entry_says_why_in_a_word_since_when_where_and_what_shows_it() -> None:
    """The queue is first: readers look for its name."""
    assert status.entries([wait()], 80) == [
        [
            "no-credit-used-up  12 s  queue orders",
            "    receiver in, connection 7 session 0, user ann: the client's credit was used",
            "    up at delivery-count 10 and it has sent no flow since",
        ]
    ]
    channel = wait(kind="channel", name=None, role=None, queue=None, waits="credit-flow", waits_why="so")
    assert status.entries([channel], 80) == [
        ["credit-flow  12 s", "    connection 7 channel 0, user ann: so"]
    ]
    unknown = wait(kind="consumer", name="t", role=None, user=None, waits_for_s=None, waits_why=None)
    assert status.entries([unknown], 80) == [
        ["no-credit-used-up  queue orders", "    consumer t, connection 7 channel 0"]
    ]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_longer_than_the_terminal_and_no_word_is_broken(width: int) -> None:
    """This includes names of 86 characters, whose middle is left out because they begin alike."""
    assert len(LONG) == 86
    entries = status.entries([wait(name=LONG, queue=LONG)], width)
    lines = [line for entry in entries for line in entry]
    assert max(map(len, lines)) <= width
    short = status.entries([wait(name="in")], width)[0]
    assert short[-len(lines_of(wait(), width)) :] == lines_of(wait(), width)
    assert "00042" in " ".join(lines[:2])
    whole = " ".join(line.strip() for line in lines[1:])
    assert wait()["waits_why"] in whole


def lines_of(each: dict[str, Any], width: int) -> list[str]:
    text = f"receiver in, connection 7 session 0, user ann: {each['waits_why']}"
    lines = ["   "]
    for word in text.split():
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append("   ")
        lines[-1] += f" {word}"
    return lines


def test_a_full_queue_says_so_and_what_it_has_cost() -> None:
    """The text is below its row; counters of zero are left out."""
    queue = {
        "name": "q",
        "type": "classic",
        "durable": True,
        "messages_ready": 5,
        "messages_unsettled": 0,
        "consumers": 0,
        "publishers": 1,
        "full": True,
        "limits": {"messages": 5, "bytes": 2048, "overflow": "reject-publish"},
        "counters": {"published": 5, "rejected": 12, "dropped": 0, "expired": 2, "delivery_limit": 1},
        "last_error": {"time": "2026-11-22T08:38:47Z", "event": "publish refused", "text": "full"},
    }
    lines = status.render({"queues": [queue]}, width=100)
    at = next(at for at, line in enumerate(lines) if line.startswith("q "))
    assert lines[at + 1 : at + 3] == [
        "  FULL: 5 of 5 messages, limit 2.0 KiB, reject-publish  rejected 12  expired 2  delivery-limit 1",
        "  last error 2026-11-22T08:38:47Z: publish refused: full",
    ]
