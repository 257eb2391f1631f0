"""Views as documents: what JSON carries of them."""

from __future__ import annotations

import json

from amqp10broker.catalog.last_error import LastError
from amqp10broker.management.snapshot import (
    ConnectionView,
    JournalView,
    QueueView,
    SessionView,
    WaitingView,
    WaitView,
    document,
)
from amqp10broker.queues.figures import LengthLimits, QueueFigures

ERROR = LastError("2026-11-22T08:38:47Z", "link refused", {"text": "no queue 'q'", "link": "l"})


def test_what_a_queue_does_not_have_is_null_and_its_figures_are_its_own() -> None:
    """Every queue has the same fields, so that who reads them need not ask for the kind."""
    figures = QueueFigures(messages_ready=3, full=True, limits=LengthLimits(3, None, "drop-head"))
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


def test_a_wait_stands_among_the_fields_of_what_waits() -> None:
    wait = WaitView("queue-empty", "no message", 1.5)
    shown = document(
        WaitingView("link", 1, "ann", "/", "peer", 0, "l", "receiver", "q", wait, "publish", True)
    )
    assert list(shown)[-5:] == ["waits", "waits_why", "waits_for_s", "to_do", "idle"]
    assert (shown["waits"], shown["waits_why"], shown["waits_for_s"]) == ("queue-empty", "no message", 1.5)


def test_what_is_in_a_connection_is_a_list() -> None:
    """Of both protocols: the one that it does not speak has an empty one."""
    session = SessionView(5, 1, 1, 0, 0, 0, 0, 0, None, {}, ())
    facts = ("AMQP 1.0", "peer", "ann", "/", None, {}, "opened", 1, 512, None, 0, 0, 0, None)
    shown = document(ConnectionView(1, *facts, {}, (session,)))
    assert [each["channel"] for each in shown["sessions"]] == [5]
    assert shown["channels"] == []
    assert shown["sessions"][0]["links"] == []


def test_a_journal_that_is_being_read_says_no_more() -> None:
    shown = document(JournalView(recovered=False))
    assert {name for name, value in shown.items() if value is not None} == {"recovered"}
