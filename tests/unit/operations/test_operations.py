"""The table of operations itself, conditional deletion, and the lists."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from amqp10broker.errors import InUse
from amqp10broker.metadata.plan import UserLimits, VhostLimits
from amqp10broker.operations.operation import Operation
from amqp10broker.operations.registry import OPERATIONS, perform
from tests.support.managing import Broker


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_people_are_told_what_an_operation_does(operation: Operation) -> None:
    """In a sentence; of each argument, too."""
    assert operation.help.endswith(".")
    assert operation.permission
    assert all(argument.help for argument in operation.arguments)


@pytest.mark.parametrize(
    ("operation", "limits"), [("set-vhost-limits", VhostLimits), ("set-user-limits", UserLimits)]
)
def test_each_limit_has_a_description(operation: str, limits: Any) -> None:
    """Limits without one would have no option."""
    keys = next(each.check.keys for each in OPERATIONS[operation].arguments if each.name == "limits")
    assert list(keys) == [field.name.replace("_", "-") for field in fields(limits)]


def test_a_queue_in_use_is_deleted_only_without_condition(broker: Broker) -> None:
    """if_unused counts consumers, if_empty counts messages; refused, it is as it was."""
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
    """Two delete the same queue on a condition: both succeed, one tells the messages, a newer one stays."""
    broker.do("declare-queue", name="q")
    broker.fill("q", 3)
    first, second = (perform(broker.caller(), "delete-queue", {"name": "q", "if_unused": True}) for _ in "12")
    question = next(second)
    assert broker.finish(first) == {"message_count": 3}
    broker.do("declare-queue", name="q")
    assert broker.finish(second, broker.answer(question)) == {"message_count": 0}
    assert broker.vhost.find("q") is not None


def test_some_queues_are_listed_by_name_and_without_counts(broker: Broker) -> None:
    """Names that are not there are left out; what nobody is asked for is null."""
    for name in ("a", "b", "c"):
        broker.do("declare-queue", name=name)
    assert [row["name"] for row in broker.do("list-queues", names=["c", "none", "a"])] == ["a", "c"]
    (row,) = broker.do("list-queues", names=["b"], counts=False)
    assert (row["message_count"], row["consumer_count"], row["state"]) == (None, None, "running")
