"""Operations on policies: set, clear, list, and what they say of queues and exchanges."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import BadRequest, InvalidArgument, NotFound
from amqp10broker.metadata import patterns
from amqp10broker.queues.commands import Configure
from tests.support.managing import Broker


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    broker.do("declare-queue", name="qc")
    broker.do("declare-queue", name="qq", arguments={"x-queue-type": "quorum"})
    return broker


def policy(definition: dict[str, Any], **given: Any) -> dict[str, Any]:
    return {"name": "p", "pattern": "^q", "definition": definition} | given


def configured(broker: Broker, queue: str) -> list[Configure]:
    return [letter for letter in broker.host.boxes[queue].letters if isinstance(letter, Configure)]


def test_a_policy_is_set_listed_and_cleared(broker: Broker) -> None:
    assert broker.do("set-policy", **policy({"max-length": 5}, priority=3, apply_to="classic_queues")) == {
        "queues": 1,
        "exchanges": 0,
        "ineffective": [],
        "warnings": [],
    }
    assert [each.settings.max_length for each in configured(broker, "qc")] == [5]
    assert configured(broker, "qq") == []
    assert broker.do("list-policies") == [
        {
            "vhost": "/",
            "name": "p",
            "pattern": "^q",
            "apply_to": "classic_queues",
            "definition": {"max-length": 5},
            "priority": 3,
        }
    ]
    assert broker.do("list-operator-policies") == []
    broker.do("clear-policy", name="p")
    assert [each.settings.max_length for each in configured(broker, "qc")] == [5, None]
    assert broker.do("list-policies") == []


def test_an_operator_policy_is_another_thing(broker: Broker) -> None:
    """It may have the same name, and is set, listed and cleared by itself."""
    broker.do("set-policy", **policy({"max-length": 5}))
    found = broker.do("set-operator-policy", **policy({"max-length": 3}))
    assert (found["queues"], found["exchanges"]) == (2, 0)
    (listed,) = broker.do("list-operator-policies")
    assert listed["definition"] == {"max-length": 3}
    broker.do("clear-operator-policy", name="p")
    assert broker.do("list-operator-policies") == []
    assert len(broker.do("list-policies")) == 1


def test_what_does_not_act_is_said(broker: Broker) -> None:
    """Settings that mean nothing to some of the queues, and one that acts otherwise."""
    found = broker.do("set-policy", **policy({"max-age": "1D", "overflow": "reject-publish-dlx"}))
    assert found["ineffective"] == ["max-age"]
    (warning,) = found["warnings"]
    assert warning.startswith("queue 'qq': quorum queues have no overflow reject-publish-dlx")


@pytest.mark.parametrize("operation", ["set-policy", "set-operator-policy"])
def test_a_policy_whose_pattern_takes_too_long_in_all_names_is_refused(
    broker: Broker, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be searched for in all of them at once, by every node."""
    monkeypatch.setattr(patterns, "FINDING_STEPS_MAX", 5_000)
    for at in range(20):
        broker.do("declare-queue", name=f"{at}" + "a" * 200 + "!")
    slow = policy({"max-length": 1}, pattern="([a-z]+\\.?)+$")
    with pytest.raises(InvalidArgument, match=r"^policy 'p': .* in so many names, .*; begin it with \^"):
        broker.do(operation, **slow)
    assert broker.do("list-policies") == broker.do("list-operator-policies") == []
    assert broker.do(operation, **(slow | {"pattern": "^[0-9]+a"}))["queues"] == 20


@pytest.mark.parametrize(
    ("operation", "given", "error", "text"),
    [
        ("set-policy", policy({"max-priority": 5}), InvalidArgument, "'max-priority' is not recognised"),
        ("set-policy", policy({"max-length": -1}), InvalidArgument, "'max-length' is -1; must not be neg"),
        ("set-policy", policy({}), InvalidArgument, "the definition is empty"),
        ("set-policy", policy({"max-length": 1}, pattern="("), InvalidArgument, "not a regular expression"),
        ("set-policy", policy({"max-length": 1}, apply_to="q"), BadRequest, "it must be one of all, queues"),
        ("set-policy", policy({"max-length": 1}, priority=True), BadRequest, "it must be an integer"),
        ("set-policy", policy({"max-length": 1}, name=""), BadRequest, "the policy has no name"),
        (
            "set-operator-policy",
            policy({"max-age": "1D"}),
            InvalidArgument,
            "not recognised as a setting of operator",
        ),
        ("clear-policy", {"name": "p"}, NotFound, "no policy 'p'"),
        ("clear-operator-policy", {"name": "p"}, NotFound, "no operator policy 'p'"),
    ],
)
def test_what_cannot_be_a_policy_changes_nothing(
    broker: Broker, operation: str, given: dict[str, Any], error: type[Exception], text: str
) -> None:
    """The text says what would be right."""
    with pytest.raises(error, match=text):
        broker.do(operation, **given)
    assert broker.do("list-policies") == broker.do("list-operator-policies") == []
    assert configured(broker, "qc") == []
