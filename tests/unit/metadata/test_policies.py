"""Policies are checked, kept, and chosen by priority."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import InvalidArgument, NotFound
from amqp10broker.metadata.policies import Policies, Policy
from amqp10broker.metadata.queue_settings import POLICY_KEYS


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
            "operator policy 'p': 'dead-letter-exchange' is not recognised as a setting of operator",
        ),
    ],
)
def test_a_bad_policy_is_refused(properties: dict[str, Any], text: str) -> None:
    """The text names the policy, the setting and what is allowed."""
    good: dict[str, Any] = {"name": "p", "pattern": ".*", "definition": {"max-length": 1}}
    with pytest.raises(InvalidArgument) as caught:
        Policy(**good | properties)
    assert caught.value.description.startswith(text)


GOOD_AND_BAD: list[tuple[str, list[Any], list[Any], str]] = [
    ("alternate-exchange", ["ae", ""], [5], "must be a string"),
    ("dead-letter-exchange", ["my-dlx", ""], [5], "must be a string"),
    ("dead-letter-routing-key", ["key"], [5], "must be a string"),
    ("dead-letter-strategy", ["at-most-once", "at-least-once"], ["unknown"], "must be one of at-most-once, "),
    ("dead-letter-strategy", [], [5], "must be a string"),
    ("message-ttl", [0, 1, 315_360_000_000], [-1], "must not be negative"),
    ("message-ttl", [], [315_360_000_001], "must be at most 315360000000"),
    ("expires", [1, 315_360_000_000], [0, -1], "must be at least 1"),
    ("expires", [], [315_360_000_001], "must be at most 315360000000"),
    ("expires", [], ["1", 1.5, True, None], "must be an integer"),
    ("max-length", [0, 1], [-1], "must not be negative"),
    ("max-length-bytes", [0, 1], [-1], "must not be negative"),
    ("max-in-memory-length", [0, 1], [-1], "must not be negative"),
    ("max-in-memory-bytes", [0, 1], [-1], "must not be negative"),
    (
        "overflow",
        ["drop-head", "reject-publish", "reject-publish-dlx"],
        ["drop-tail"],
        "must be one of drop-",
    ),
    ("delivery-limit", [0, 50, -1, -5], ["-1", 1.5], "must be an integer"),
    ("consumer-timeout", [0, 1], [-1], "must not be negative"),
    ("consumer-disconnected-timeout", [0, 1], [-1], "must not be negative"),
    ("delayed-retry-type", ["disabled"], ["some"], "must be one of disabled, all, failed, returned"),
    ("delayed-retry-min", [1], [0, -1], "must be at least 1"),
    ("delayed-retry-max", [1], [0, -1], "must be at least 1"),
    ("target-group-size", [1, 5], [0], "must be at least 1"),
    ("max-age", ["7D", "1Y", "12s"], ["7d", "D", "0D", "7 D", ""], "must be a number above 0 and a unit of "),
    ("max-age", [], [7], "must be a string"),
    ("stream-max-segment-size-bytes", [0, 3_000_000_000], [3_000_000_001], "must be at most 3000000000"),
    ("stream-filter-size-bytes", [16, 255], [15], "must be at least 16"),
    ("stream-filter-size-bytes", [], [256], "must be at most 255"),
    ("initial-cluster-size", [1], [0], "must be at least 1"),
    (
        "queue-leader-locator",
        ["client-local", "balanced", "random", "least-leaders", "min-masters"],
        ["most-leaders"],
        "must be one of client-local, balanced, random, least-leaders, min-masters",
    ),
    ("queue-master-locator", ["min-masters", "random"], ["balanced"], "must be one of min-masters, "),
    ("confirm-when", ["synced", "written"], ["sent"], "must be one of synced, written"),
    ("confirm-when", [], [True], "must be a string"),
    ("queue-mode", ["default", "lazy"], ["eager"], "must be one of default, lazy"),
    ("queue-version", [1, 2], [3], "must be one of 1, 2"),
    ("queue-version", [], ["2", True], "must be an integer"),
]


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "max_segment_size_bytes_policy_validation")
@pytest.mark.rabbitmq(
    "unit_policy_validators_SUITE",
    "alternate_exchange",
    "classic_queue_lazy_mode",
    "dead_letter_exchange",
    "dead_letter_routing_key",
    "dead_letter_strategy",
    "delayed_retry_max",
    "delayed_retry_min",
    "delayed_retry_type",
    "delivery_limit",
    "expires",
    "length_limit_overflow_mode",
    "max_in_memory_length",
    "max_length",
    "max_length_bytes",
    "message_ttl",
)
@pytest.mark.parametrize(("key", "good", "bad", "text"), GOOD_AND_BAD)
def test_each_setting_is_checked(key: str, good: list[Any], bad: list[Any], text: str) -> None:
    """What it may be is taken, everything else refused with what it may be."""
    for value in good:
        assert Policy("p", ".*", {key: value}).definition == {key: value}
    for value in bad:
        with pytest.raises(InvalidArgument) as caught:
            Policy("p", ".*", {key: value})
        assert caught.value.description.startswith(f"policy 'p': '{key}' is {value!r}; {text}")


@pytest.mark.rabbitmq("unit_policy_validators_SUITE", "delayed_retry_min_required_with_type")
def test_a_retry_type_needs_the_shortest_delay() -> None:
    """Without it there would be nothing to wait; `disabled` needs none."""
    Policy("p", ".*", {"delayed-retry-type": "all", "delayed-retry-min": 1})
    with pytest.raises(InvalidArgument, match="'delayed-retry-type' is given without 'delayed-retry-min'"):
        Policy("p", ".*", {"delayed-retry-type": "all"})


@pytest.mark.rabbitmq("unit_policy_validators_SUITE", "delayed_retry_max_not_less_than_min")
def test_the_longest_delay_is_not_below_the_shortest() -> None:
    Policy("p", ".*", {"delayed-retry-min": 5, "delayed-retry-max": 5})
    with pytest.raises(InvalidArgument, match="'delayed-retry-max' is 4; must be at least"):
        Policy("p", ".*", {"delayed-retry-min": 5, "delayed-retry-max": 4})


@pytest.mark.rabbitmq(
    "policy_SUITE",
    "is_supported_operator_policy_delivery_limit",
    "is_supported_operator_policy_max_in_memory_bytes",
    "is_supported_operator_policy_max_in_memory_length",
    "is_supported_operator_policy_max_length",
    "is_supported_operator_policy_message_ttl",
    "is_supported_operator_policy_overflow",
    "is_supported_operator_policy_target_group_size",
)
@pytest.mark.parametrize("key", sorted(key for key, each in POLICY_KEYS.items() if each.operator))
def test_an_operator_policy_may_set_it(key: str) -> None:
    """These, and no others (see the refusals)."""
    value = {"overflow": "drop-head", "delayed-retry-type": "disabled"}.get(key, 1)
    assert Policy("p", ".*", {key: value}, operator=True).operator


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_ignore_policy")
@pytest.mark.rabbitmq("policy_SUITE", "queue_type_specific_policies")
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
        policies.put_policy(policy)
    assert len(policies) == 4
    assert policies.effective("q", "classic") is high
    assert policies.effective("q", "classic", operator=True) is operator
    assert policies.find("a") is low
    assert policies.effective("xq", "classic").name == "c"  # type: ignore[union-attr]
    policies.drop_policy("b")
    assert policies.effective("q", "classic") is low
    with pytest.raises(NotFound, match="no operator policy 'b'"):
        policies.lookup("b", operator=True)


def test_of_equal_priorities_the_first_by_name_counts() -> None:
    """Whichever came first: after a restart it is the same."""
    policies = Policies()
    for name in ("b", "a", "c"):
        policies.put_policy(Policy(name, ".*", {"max-length": 1}))
    found = policies.effective("q", "classic")
    assert found is not None
    assert found.name == "a"
