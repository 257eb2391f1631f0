"""Views as documents: what JSON carries of them."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

from amqp10broker.metadata.queue import LastError
from amqp10broker.operations.snapshot import (
    ChannelView,
    ConnectionView,
    ConsumerView,
    LinkView,
    OriginView,
    QueueView,
    SessionView,
    WaitView,
    document,
    view_of,
)
from amqp10broker.queues.queue_status import LengthLimits, QueueStats

ERROR = LastError("2026-11-22T08:38:47Z", "link refused", {"text": "no queue 'q'", "link": "l"})


def test_what_a_queue_does_not_have_is_null_and_its_figures_are_its_own() -> None:
    """Every queue has the same fields, so that who reads them need not ask for the kind."""
    figures = QueueStats(messages_ready=3, full=True, limits=LengthLimits(3, None, "drop-head"))
    shown = document(QueueView("q", "/", "classic", True, figures, {}, {"published": 3}, ERROR))
    assert shown == {
        "name": "q",
        "vhost": "/",
        "type": "classic",
        "durable": True,
        "messages_ready": 3,
        "messages_unsettled": 0,
        "consumers": 0,
        "publishers": 0,
        "messages_delayed": None,
        "messages_dlx": None,
        "single_active_consumer_tag": None,
        "dead_lettered": {},
        "first_offset": None,
        "next_offset": None,
        "segments": None,
        "size_bytes": None,
        "full": True,
        "limits": {"messages": 3, "bytes": None, "overflow": "drop-head"},
        "counters": {"published": 3},
        "last_error": {
            "time": "2026-11-22T08:38:47Z",
            "event": "link refused",
            "text": "no queue 'q'",
            "link": "l",
        },
    }
    assert json.loads(json.dumps(shown)) == shown


def test_what_is_in_a_connection_is_a_list() -> None:
    """Of both protocols: the one that it does not speak has an empty one."""
    session = SessionView(5, 1, 1, 0, 0, 0, 0, 0, None, {}, ())
    facts = ("AMQP 1.0", "peer", "ann", "/", None, {}, "opened", 1, 512, None, 0, 0, 0, None)
    shown = document(ConnectionView(1, *facts, {}, (session,)))
    assert [each["channel"] for each in shown["sessions"]] == [5]
    assert shown["channels"] == []
    assert shown["sessions"][0]["links"] == []


def test_a_connection_is_read_again_as_another_node_tells_it() -> None:
    """Whole: with what stands inline, what went wrong, and what JSON cannot carry as a text."""
    wait = WaitView("queue-empty", "no message", 1.5)
    link = LinkView(
        *("l", 0, "receiver", "/queues/q", "q", 10, 3, 1, None, True, 5, 4, 0, {"a": [1]}, ERROR, {"got": 2}),
        wait,
        max_message_size=9,
    )
    session = SessionView(5, 1, 1, 0, 0, 0, 0, 0, None, {}, (link,))
    consumer = ConsumerView("t", "q", False, 5, 1, 0, WaitView(), arguments={"x": 1})
    channel = ChannelView(
        1, "running", True, False, 0, 1, 5, 0, 200, (consumer,), ERROR, {"published": 1}, wait
    )
    facts = ("AMQP 1.0", "peer", "ann", "/", None, {"product": "p"}, "opened", 1, 512, None, 0, 0, 0, ERROR)
    origin = OriginView("here", 7, "PLAIN", True, {"id": UUID(int=1)})
    whole = ConnectionView(1, *facts, {"published": 1}, (session,), (channel,), origin, "b")
    told = json.loads(json.dumps(document(whole), default=str))
    as_text = replace(origin, properties={"id": str(UUID(int=1))})
    assert view_of(ConnectionView, told) == replace(whole, origin=as_text)


def test_a_node_of_another_version_may_tell_more_and_less() -> None:
    facts = ("AMQP 1.0", "peer", "ann", "/", None, {}, "opened", 1, 512, None, 0, 0, 0, None)
    told = document(ConnectionView(1, *facts, {}))
    del told["node"], told["sessions"]
    assert view_of(ConnectionView, {**told, "of_tomorrow": 1}) == ConnectionView(1, *facts, {})
