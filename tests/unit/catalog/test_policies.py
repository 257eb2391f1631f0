"""Policies are checked and kept."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.catalog.policies import Policies, Policy
from amqp10broker.errors import InvalidArgument, NotFound


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"pattern": "("}, "policy 'p': '(' is not a regular expression"),
        ({"apply_to": "queue"}, "policy 'p': apply-to is 'queue'; must be one of all, queues"),
        ({"priority": "1"}, "policy 'p': priority is '1'; must be an integer"),
        ({"definition": {}}, "policy 'p': the definition is empty; give at least one setting"),
        ({"definition": {"max-length": "1"}}, "policy 'p': 'max-length' is '1'; must be an integer"),
        ({"definition": {"max-length": -1}}, "policy 'p': 'max-length' is -1; must not be negative"),
        ({"definition": {"overflow": 1}}, "policy 'p': 'overflow' is 1; must be a string"),
        (
            {"definition": {"dead-letter-exchange": "x"}, "operator": True},
            "operator policy 'p': 'dead-letter-exchange' is no setting of operator policies; known are",
        ),
    ],
)
def test_a_bad_policy_is_refused(properties: dict[str, Any], text: str) -> None:
    """The text names the policy, the setting and what is allowed."""
    good: dict[str, Any] = {"name": "p", "pattern": ".*", "definition": {"max-length": 1}}
    with pytest.raises(InvalidArgument) as caught:
        Policy(**good | properties)
    assert caught.value.description.startswith(text)


def test_settings_of_plugins_are_kept() -> None:
    """They mean nothing here, but an export must not lose them."""
    policy = Policy("p", ".*", {"federation-upstream-set": "all", "delivery-limit": -1})
    assert policy.definition["federation-upstream-set"] == "all"


@pytest.mark.parametrize(
    ("apply_to", "kinds"),
    [
        ("all", {"classic", "quorum", "stream", "exchange"}),
        ("queues", {"classic", "quorum", "stream"}),
        ("classic_queues", {"classic"}),
        ("quorum_queues", {"quorum"}),
        ("streams", {"stream"}),
        ("exchanges", {"exchange"}),
    ],
)
def test_a_policy_is_for_the_kinds_it_names(apply_to: str, kinds: set[str]) -> None:
    """And for names in which its pattern is found."""
    policy = Policy("p", "^a", {"max-length": 1}, apply_to=apply_to)
    assert {
        kind for kind in ("classic", "quorum", "stream", "exchange") if policy.matches("ab", kind)
    } == kinds
    assert not policy.matches("ba", "classic")


def test_the_highest_priority_counts() -> None:
    """Only one policy and one operator policy count for a queue."""
    policies = Policies()
    low, high = (Policy(name, ".*", {"max-length": 1}, priority) for name, priority in (("a", 1), ("b", 2)))
    operator = Policy("a", ".*", {"max-length": 5}, operator=True)
    for policy in (low, high, operator, Policy("c", "^x", {"max-length": 1}, 9)):
        policies.put(policy)
    assert len(policies) == 4
    assert policies.effective("q", "classic") is high
    assert policies.effective("q", "classic", operator=True) is operator
    assert policies.find("a") is low
    assert policies.delete("b") is high
    assert policies.effective("q", "classic") is low
    with pytest.raises(NotFound, match="no operator policy 'b'"):
        policies.delete("b", operator=True)
