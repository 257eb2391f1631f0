"""The table of operations itself, conditional deletion, and the lists."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from amqp10broker.config.records import FLOW_SETTINGS
from amqp10broker.errors import InUse
from amqp10broker.metadata.limits import UserLimits, VhostLimits
from amqp10broker.metadata.policies import APPLY_TO
from amqp10broker.metadata.queue import QueueType
from amqp10broker.operations.alarms import Resource
from amqp10broker.operations.arguments import Argument
from amqp10broker.operations.operations import RUN, perform
from amqp10broker.operations.table import OPERATIONS, Operation
from amqp10broker.routing.registry import Registry
from tests.support.managing import Broker


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
def test_the_table_agrees_with_the_functions(operation: Operation) -> None:
    """Names, order and number of arguments; and people are told what it does."""
    parameters = list(inspect.signature(RUN[operation.name]).parameters)
    assert parameters == ["caller", *(argument.name for argument in operation.arguments)]
    assert operation.help.endswith(".")
    assert operation.permission
    assert all(argument.help for argument in operation.arguments)
    assert RUN[operation.name].__doc__


def _argument(operation: str, name: str) -> Argument:
    return next(each for each in OPERATIONS[operation].arguments if each.name == name)


def test_what_the_table_says_of_values_is_what_the_rooms_say() -> None:
    """It imports nothing, so that the command line starts fast; so it is held against them here."""
    assert _argument("set", "name").choices == tuple(FLOW_SETTINGS)
    assert set(_argument("alarm", "name").choices) == set(Resource)
    assert _argument("set-policy", "apply_to").choices == APPLY_TO
    assert _argument("add-vhost", "default_queue_type").choices == tuple(QueueType)
    assert set(_argument("declare-exchange", "type").known) == set(Registry(lambda: ()).names())
    for operation, limits in (("set-vhost-limits", VhostLimits), ("set-user-limits", UserLimits)):
        names = [field.name.replace("_", "-") for field in fields(limits)]
        assert list(_argument(operation, "limits").keys) == names


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
    """if_unused counts bindings from it."""
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
    assert first.then(broker.answer(first.handle, first.command)) == {"message_count": 3}
    broker.do("declare-queue", name="q")
    assert second.then(broker.answer(second.handle, second.command)) == {"message_count": 0}
    assert broker.vhost.find("q") is not None


def test_some_queues_are_listed_by_name_and_without_counts(broker: Broker) -> None:
    """Names that are not there are left out; what nobody is asked for is null."""
    for name in ("a", "b", "c"):
        broker.do("declare-queue", name=name)
    assert [row["name"] for row in broker.do("list-queues", names=["c", "none", "a"])] == ["a", "c"]
    (row,) = broker.do("list-queues", names=["b"], counts=False)
    assert (row["message_count"], row["consumer_count"], row["state"]) == (None, None, "running")
