"""Operations of every kind: descriptions, reports, what status and waiting say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import pytest

from amqp10broker.auth.passwords import Passwords
from amqp10broker.errors import InUse, NotFound, PermissionDenied, RefusedError, Unavailable
from amqp10broker.metadata.plan import UserLimits, VhostLimits
from amqp10broker.metadata.queue import LastError
from amqp10broker.operations.node import Caller
from amqp10broker.operations.operation import Operation
from amqp10broker.operations.registry import OPERATIONS
from amqp10broker.operations.snapshot import (
    ChannelView,
    ConnectionView,
    ConsumerView,
    LinkView,
    OriginView,
    QueueView,
    SessionView,
    SummaryView,
    WaitingView,
    WaitView,
    document,
    view_of,
)
from amqp10broker.queues.queue_status import LengthLimits, QueueStats
from tests.support.cluster_node import FakeNode
from tests.support.managing import Broker


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_people_are_told_what_an_operation_does(operation: Operation) -> None:
    assert operation.help.endswith(".")
    assert operation.permission
    assert all(argument.help for argument in operation.arguments)


@pytest.mark.parametrize(
    ("operation", "limits"), [("set-vhost-limits", VhostLimits), ("set-user-limits", UserLimits)]
)
def test_each_limit_has_a_description(operation: str, limits: Any) -> None:
    keys = next(each.check.keys for each in OPERATIONS[operation].arguments if each.name == "limits")
    assert list(keys) == [field.name.replace("_", "-") for field in fields(limits)]


def test_a_queue_in_use_is_deleted_only_without_condition(broker: Broker) -> None:
    """if_unused counts consumers, if_empty counts messages; a refusal leaves the queue as it was."""
    broker.do("declare-queue", name="q")
    broker.consume("q")
    with pytest.raises(InUse, match="queue 'q' in vhost '/' in use"):
        broker.do("delete-queue", name="q", if_unused=True)
    broker.do("declare-queue", name="p")
    broker.fill("p", 2)
    with pytest.raises(InUse, match="queue 'p' in vhost '/' not empty"):
        broker.do("delete-queue", name="p", if_empty=True)
    assert broker.vhost.find("q") is not None
    assert broker.do("delete-queue", name="p", if_unused=True) == {"message_count": 2}
    assert broker.vhost.find("p") is None


def test_an_exchange_in_use_is_deleted_only_without_condition(broker: Broker) -> None:
    broker.do("declare-exchange", name="x")
    broker.do("declare-queue", name="q")
    broker.do("bind", source="x", destination_queue="q")
    with pytest.raises(InUse):
        broker.do("delete-exchange", name="x", if_unused=True)
    broker.do("unbind", source="x", destination_queue="q")
    broker.do("unbind", source="x", destination_queue="q")
    assert broker.do("delete-exchange", name="x", if_unused=True) is None


def test_a_queue_that_goes_between_question_and_answer_counts_as_deleted(broker: Broker) -> None:
    """Of two conditional deletions both succeed, one returns the count, and a newer queue stays."""
    broker.do("declare-queue", name="q")
    broker.fill("q", 3)
    delete = OPERATIONS["delete-queue"]
    first, second = (broker.caller().perform(delete, {"name": "q", "if_unused": True}) for _ in "12")
    question = next(second)
    assert broker.finish(first) == {"message_count": 3}
    broker.do("declare-queue", name="q")
    assert broker.finish(second, broker.answer(question)) == {"message_count": 0}
    assert broker.vhost.find("q") is not None


def test_some_queues_are_listed_by_name_and_without_counts(broker: Broker) -> None:
    """Names that do not exist are left out; a count that is not asked for is null."""
    for name in ("a", "b", "c"):
        broker.do("declare-queue", name=name)
    assert [row["name"] for row in broker.do("list-queues", names=["c", "none", "a"])] == ["a", "c"]
    (row,) = broker.do("list-queues", names=["b"], counts=False)
    assert (row["message_count"], row["consumer_count"], row["state"]) == (None, None, "running")


class Reports:
    def __init__(self) -> None:
        self.got: list[tuple[str, str, str | None]] = []

    def __call__(self, operation: str, subject: str, refusal: str | None) -> None:
        self.got.append((operation, subject, refusal))


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def owner(broker: Broker, reports: Reports) -> Caller:
    passwords = Passwords(broker.catalog.users, lambda count: bytes(count))
    return broker.caller(None, passwords=passwords, report=reports)


@pytest.mark.parametrize(
    ("operation", "given", "subject"),
    [
        ("declare-queue", {"name": "orders", "arguments": {"x-max-length": 1}}, "queue name='orders'"),
        ("declare-exchange", {"name": "shop"}, "exchange name='shop'"),
        ("set-tags", {"user": "guest", "tags": ["administrator"]}, "user user='guest'"),
        (
            "set-permissions",
            {"user": "guest", "configure": "^a", "write": "", "read": ".*"},
            "permission user='guest', configure='^a', write='', read='.*'",
        ),
        ("import-definitions", {"document": {"users": []}}, "definitions"),
    ],
)
def test_an_operation_names_its_object(
    broker: Broker, owner: Caller, reports: Reports, operation: str, given: dict[str, Any], subject: str
) -> None:
    broker.do(operation, caller=owner, **given)
    assert reports.got == [(operation, subject, None)]


@pytest.mark.parametrize("operation", ["add-user", "change-password"])
def test_passwords_are_in_no_report(broker: Broker, owner: Caller, reports: Reports, operation: str) -> None:
    user = "ann" if operation == "add-user" else "guest"
    broker.do(operation, caller=owner, user=user, password="s3cret")
    assert reports.got == [(operation, f"user user='{user}'", None)]
    with pytest.raises(RefusedError):
        broker.do(operation, caller=owner, user="x" * 300, password="s3cret", other=1)
    assert len(reports.got) == 2
    assert "s3cret" not in repr(reports.got)


def test_an_operation_that_asks_a_queue_is_reported_when_it_has_answered(
    broker: Broker, owner: Caller, reports: Reports
) -> None:
    broker.do("declare-queue", name="q")
    broker.fill("q", 1)
    with pytest.raises(RefusedError) as caught:
        broker.do("delete-queue", caller=owner, name="q", if_empty=True)
    assert reports.got == [("delete-queue", "queue name='q'", caught.value.description)]
    broker.do("purge-queue", caller=owner, name="q")
    assert reports.got[1:] == [("purge-queue", "queue name='q'", None)]


def test_a_missing_permission_is_not_reported_twice(broker: Broker, reports: Reports) -> None:
    """It ends the client's session, and that end is reported."""
    caller = broker.caller(broker.user("ann"), report=reports)
    with pytest.raises(PermissionDenied):
        broker.do("declare-queue", caller=caller, name="q")
    assert reports.got == []


ERROR = LastError("2026-11-22T08:38:47Z", "link refused", {"text": "no queue 'q'", "link": "l"})


def test_what_a_queue_does_not_have_is_null_and_its_figures_are_its_own() -> None:
    """Every queue has the same fields, so a reader of them need not check the kind."""
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
    """This holds for both protocols: the list of the protocol that is not spoken is empty."""
    session = SessionView(5, 1, 1, 0, 0, 0, 0, 0, None, {}, ())
    facts = ("AMQP 1.0", "peer", "ann", "/", None, {}, "opened", 1, 512, None, 0, 0, 0, None)
    shown = document(ConnectionView(1, *facts, {}, (session,)))
    assert [each["channel"] for each in shown["sessions"]] == [5]
    assert shown["channels"] == []
    assert shown["sessions"][0]["links"] == []


def test_a_connection_is_read_again_as_another_node_tells_it() -> None:
    """It is read back whole: inline values, errors, and values that JSON can only carry as text."""
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


NOTHING = SummaryView(False, 0, 0, 0, 0, 0, 0, 0, 0, 0, {}, 0, 0, ())


def line(name: str, seconds: float, *, idle: bool = False) -> WaitingView:
    wait = WaitView("queue-empty" if idle else "no-credit-used-up", "why", seconds)
    return WaitingView("link", 4, "u", "/", "p:1", "l:2", 0, name, "receiver", "q", wait, "do", idle)


class Looked:
    """The running node, with what its own clients wait for."""

    def __init__(self, cluster: FakeNode) -> None:
        self.cluster = cluster
        self.asked: list[tuple[dict[str, Any], bool]] = []
        self.summary, self.lines = NOTHING, [line("x", 5.0)]

    def clock_notes(self) -> list[str]:
        return ["the clock is wrong"]

    async def waiting(
        self, choose: Mapping[str, Any], *, queues: bool
    ) -> tuple[SummaryView, Sequence[WaitingView]]:
        self.asked.append((dict(choose), queues))
        return self.summary, self.lines


class World(Broker):
    """Three nodes, of which the first is asked."""

    def __init__(self, number: int = 1) -> None:
        super().__init__()
        self.cluster = FakeNode(self.catalog, 3, number)
        self.node = Looked(self.cluster)

    def run(self, operation: str, /, **given: Any) -> Any:
        return self.do(operation, caller=replace(self.caller(None), node_name="a"), **given)


def told(summary: SummaryView, *lines: WaitingView) -> dict[str, Any]:
    rows = [document(each) | {"node": "b"} for each in lines]
    notes = ["b: the clock is wrong, too"]
    return {"summary": document(summary), "waiting": rows, "unreached": [], "nodes": 1, "notes": notes}


def test_what_waits_at_all_nodes_is_one_list_the_longest_first() -> None:
    """Idle entries come last; counts are sums; nodes that do not answer are named."""
    world = World()
    own = {"connections": 2, "waiting": 1, "reasons": {"no-credit-used-up": 1, "queue-empty": 1}}
    world.node.summary = replace(NOTHING, **own, idle_reasons=("queue-empty",), queues=7, queues_full=1)
    world.node.lines = [line("x", 5.0), line("idle", 99.0, idle=True)]
    theirs = replace(NOTHING, connections=3, waiting=2, reasons={"no-credit-used-up": 2})
    world.cluster.there[2, "waiting"] = told(theirs, line("y", 9.0), line("z", 1.0))
    found = world.run("waiting")
    assert [(each["node"], each["name"]) for each in found["waiting"]] == [
        ("b", "y"),
        ("a", "x"),
        ("b", "z"),
        ("a", "idle"),
    ]
    summary = found["summary"]
    assert (summary["connections"], summary["waiting"], summary["queues_full"]) == (5, 3, 1)
    assert summary["reasons"] == {"no-credit-used-up": 3, "queue-empty": 1}
    assert summary["idle_reasons"] == ["queue-empty"]
    assert (found["unreached"], found["nodes"], found["queues_without_leader"]) == (["c"], 3, {})
    assert found["notes"] == ["a: the clock is wrong", "b: the clock is wrong, too"]
    assert len(world.run("waiting", limit=2)["waiting"]) == 2
    verb, _, operation, given, _ = world.cluster.done[-1]
    assert (verb, operation) == ("run_at_each", "waiting")
    assert (given["node"], given["limit"], given["queues"]) == ("", 2, False)


def test_a_connection_is_meant_by_its_number_at_the_node_that_is_asked() -> None:
    world = World()
    for given in ({"connection": 4}, {"node": ""}, {"node": "a"}, {"node": "a@host", "connection": 4}):
        assert [each["name"] for each in world.run("waiting", **given)["waiting"]] == ["x"]
    assert world.cluster.done == []
    world.cluster.there[2, "waiting"] = told(NOTHING, line("y", 9.0))
    assert [each["name"] for each in world.run("waiting", node="b", connection=4)["waiting"]] == ["y"]
    assert world.cluster.done[-1][:3] == ("run_at", 2, "waiting")
    with pytest.raises(Unavailable, match="does not answer"):
        world.run("waiting", node="c")
    with pytest.raises(NotFound, match="no node 'd'"):
        world.run("waiting", node="d")


@pytest.mark.parametrize(
    ("operation", "given"),
    [
        ("watch-link", {"connection": 4, "link": "l", "channel": 1, "role": "sender"}),
        ("unwatch-link", {"watch": 3, "user": "ann"}),
        ("timeline", {"watch": 3, "since": 7, "limit": 10, "frames": False, "user": "ann"}),
    ],
)
def test_a_link_is_watched_at_the_node_that_has_it(operation: str, given: dict[str, Any]) -> None:
    world = World()
    world.cluster.there[2, operation] = {"node": "b"}
    assert world.run(operation, node="b", **given) == {"node": "b"}
    assert world.cluster.done == [("run_at", 2, operation, given, None)]
