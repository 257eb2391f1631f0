"""Policies: what they may say, and what of policies and arguments acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from amqp10broker.errors import ConfigError, InvalidArgument, NotFound
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.policies import Effective, Policies, Policy, alternate_exchange, effective
from amqp10broker.metadata.queue_arguments import POLICY_KEYS, max_age_ms
from amqp10broker.metadata.vhost import VirtualHost
from amqp10broker.queues.commands import Configure, Touch
from amqp10broker.queues.settings import (
    DEFAULTS,
    ConfirmWhen,
    DeadLetterStrategy,
    Overflow,
    QueueSettings,
    RetryType,
)
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.declaring import bind, declare, declare_exchange, delete_policy, load, put_policy


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
    for value in good:
        assert Policy("p", ".*", {key: value}).definition == {key: value}
    for value in bad:
        with pytest.raises(InvalidArgument) as caught:
            Policy("p", ".*", {key: value})
        assert caught.value.description.startswith(f"policy 'p': '{key}' is {value!r}; {text}")


@pytest.mark.rabbitmq("unit_policy_validators_SUITE", "delayed_retry_min_required_with_type")
def test_a_retry_type_needs_the_shortest_delay() -> None:
    """Without it there would be no delay; `disabled` needs none."""
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
    policy = Policy("p", "^a", {"max-length": 1}, apply_to=apply_to)
    assert {
        kind for kind in ("classic", "quorum", "stream", "exchange") if policy.matches("ab", kind)
    } == kinds
    assert not policy.matches("ba", "classic")


def test_the_highest_priority_counts() -> None:
    """Only one policy and one operator policy apply to a queue."""
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
    """Their age does not count: after a restart it is the same."""
    policies = Policies()
    for name in ("b", "a", "c"):
        policies.put_policy(Policy(name, ".*", {"max-length": 1}))
    found = policies.effective("q", "classic")
    assert found.name == "a"


def told(vhost: VirtualHost, name: str) -> list[Any]:
    handle: Any = vhost.lookup(name).handle
    letters, handle.commands = handle.commands, []
    return list(letters)


@pytest.mark.rabbitmq("quorum_queue_SUITE", "pre_existing_invalid_policy")
def test_a_queue_starts_with_what_its_policy_says(catalog: Catalog, vhost: VirtualHost, host: Any) -> None:
    put_policy(catalog, vhost, Policy("p", "^q", {"max-length": 5}))
    queue, _ = declare(catalog, vhost, "q", arguments={"x-message-ttl": 9})
    assert host.started[-1].settings == QueueSettings(max_length=5, message_ttl_ms=9)
    assert queue.effective.policy == "p"
    assert told(vhost, "q") == []


@pytest.mark.rabbitmq("confirms_rejects_SUITE", "policy_resets_to_default")
@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_policy")
@pytest.mark.rabbitmq("quorum_queue_SUITE", "dead_letter_policy")
def test_a_running_queue_is_told_what_changes(catalog: Catalog, vhost: VirtualHost) -> None:
    """It gets one change each when a policy comes, is replaced, or is removed."""
    queue, _ = declare(catalog, vhost, "q")
    put_policy(catalog, vhost, Policy("p", "^q", {"max-length": 5}))
    assert told(vhost, "q") == [Configure(QueueSettings(max_length=5))]
    put_policy(catalog, vhost, Policy("p", "^q", {"expires": 6}))
    assert told(vhost, "q") == [Configure(QueueSettings(expires_ms=6))]
    delete_policy(catalog, vhost, "p")
    assert told(vhost, "q") == [Configure(DEFAULTS)]
    assert queue.effective.policy is None


def test_a_queue_that_is_declared_again_is_in_use(catalog: Catalog, vhost: VirtualHost) -> None:
    """A classic queue's time without use begins again; a quorum queue's continues."""
    declare(catalog, vhost, "c")
    declare(catalog, vhost, "q", arguments={"x-queue-type": "quorum"})
    assert told(vhost, "c") == []
    declare(catalog, vhost, "c")
    declare(catalog, vhost, "q", arguments={"x-queue-type": "quorum"})
    assert told(vhost, "c") == [Touch()]
    assert told(vhost, "q") == []


# --- exchanges ------------------------------------------------------------------------------------


def routed(vhost: VirtualHost, exchange: str) -> list[str]:
    queues, _ = vhost.route(vhost.topology.lookup_exchange(exchange), ("nowhere",), dict)
    return [queue.name for queue in queues]


def with_alternate(catalog: Catalog, vhost: VirtualHost) -> None:
    declare(catalog, vhost, "q")
    declare_exchange(catalog, vhost, "ae", "fanout")
    bind(catalog, vhost, Binding("ae", Destination("queue", "q")))


def test_an_alternate_exchange_by_policy_acts_at_once(catalog: Catalog, vhost: VirtualHost) -> None:
    """It acts on existing and new exchanges, and no longer when the policy is removed."""
    with_alternate(catalog, vhost)
    declare_exchange(catalog, vhost, "x1", "direct")
    version = vhost.version
    put_policy(catalog, vhost, Policy("p", "^x", {"alternate-exchange": "ae"}, apply_to="exchanges"))
    assert vhost.version > version, "remembered routes must be found anew"
    declare_exchange(catalog, vhost, "x2", "direct")
    assert routed(vhost, "x1") == routed(vhost, "x2") == ["q"]
    version = vhost.version
    delete_policy(catalog, vhost, "p")
    assert vhost.version > version
    assert routed(vhost, "x1") == routed(vhost, "x2") == []


# --- definitions ----------------------------------------------------------------------------------


def document(max_length: object) -> dict[str, Any]:
    definition = {"max-length": max_length}
    return {"policies": [{"vhost": "/", "name": "p", "pattern": "^q", "definition": definition}]}


def test_an_imported_policy_acts_on_running_queues(catalog: Catalog, vhost: VirtualHost) -> None:
    """It acts once, not in the rehearsal as well."""
    queue, _ = declare(catalog, vhost, "q")
    load(document(5), catalog)
    assert told(vhost, "q") == [Configure(QueueSettings(max_length=5))]
    assert queue.effective.policy == "p"
    load(document(5), catalog)
    assert told(vhost, "q") == []


def test_a_refused_file_changes_no_running_queue(catalog: Catalog, vhost: VirtualHost) -> None:
    """Its policy is good, and the rehearsal has applied it."""
    queue, _ = declare(catalog, vhost, "q")
    refused = document(5) | {"queues": [{"name": "r", "vhost": "/", "durable": "yes"}]}
    with pytest.raises(ConfigError, match="durable"):
        load(refused, catalog)
    assert told(vhost, "q") == []
    assert queue.effective.policy is None


DAY_MS = 86_400_000


def effect(
    kind: str,
    policy: Mapping[str, Any] | None = None,
    operator: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Effective:
    """Return the effective settings of a queue `q` with these definitions; arguments have no ``x-``."""
    policies = Policies()
    if policy is not None:
        policies.put_policy(Policy("p", ".*", policy))
    if operator is not None:
        policies.put_policy(Policy("o", ".*", operator, operator=True))
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return effective(policies, "q", kind, given | {"x-queue-type": kind})


def settings(kind: str, *definitions: Mapping[str, Any] | None, **arguments: Any) -> QueueSettings:
    return effect(kind, *definitions, **arguments).settings


def test_a_queue_of_jms_has_ten_priorities_and_4_is_that_of_a_message_without_one() -> None:
    """`x-max-priority` takes precedence; other kinds of queue ignore the argument."""
    of_jms = settings("classic", jms_priority=True)
    assert (of_jms.max_priority, of_jms.default_priority) == (9, 4)
    both = settings("classic", jms_priority=True, max_priority=2)
    assert (both.max_priority, both.default_priority) == (2, 2)
    for nothing in (settings("classic", jms_priority="yes"), settings("quorum", jms_priority=True)):
        assert nothing == DEFAULTS


def test_every_argument_of_a_classic_queue_acts() -> None:
    assert settings(
        "classic",
        expires=1,
        message_ttl=2,
        max_length=3,
        max_length_bytes=4,
        overflow="reject-publish-dlx",
        dead_letter_exchange="x",
        dead_letter_routing_key="k",
        max_priority=5,
        single_active_consumer=True,
        confirm_when="written",
    ) == QueueSettings(
        expires_ms=1,
        message_ttl_ms=2,
        max_length=3,
        max_length_bytes=4,
        overflow=Overflow.REJECT_PUBLISH_DLX,
        dead_letter_exchange="x",
        dead_letter_routing_key="k",
        max_priority=5,
        single_active_consumer=True,
        confirm_when=ConfirmWhen.WRITTEN,
    )


def test_the_argument_says_when_a_queue_confirms_before_the_policy_does() -> None:
    """Without both, the broker's configuration applies; other kinds have no choice."""
    written = {"confirm-when": "written"}
    assert settings("classic").confirm_when is None
    assert settings("classic", written).confirm_when is ConfirmWhen.WRITTEN
    assert settings("classic", written, confirm_when="synced").confirm_when is ConfirmWhen.SYNCED
    assert effect("quorum", written).ineffective == ("confirm-when",)
    assert settings("quorum", written).confirm_when is None


def test_every_argument_of_a_quorum_queue_acts() -> None:
    assert settings(
        "quorum",
        dead_letter_exchange="x",
        dead_letter_strategy="at-least-once",
        overflow="reject-publish",
        delivery_limit=7,
        consumer_timeout=8,
        consumer_disconnected_timeout=11,
        delayed_retry_type="failed",
        delayed_retry_min=9,
        delayed_retry_max=10,
    ) == QueueSettings(
        dead_letter_exchange="x",
        dead_letter_strategy=DeadLetterStrategy.AT_LEAST_ONCE,
        overflow=Overflow.REJECT_PUBLISH,
        delivery_limit=7,
        consumer_timeout_ms=8,
        consumer_disconnected_timeout_ms=11,
        retry_type=RetryType.FAILED,
        retry_min_ms=9,
        retry_max_ms=10,
    )


def test_every_argument_of_a_stream_acts() -> None:
    assert settings(
        "stream",
        max_length_bytes=1,
        max_age="7D",
        stream_max_segment_size_bytes=2,
        stream_filter_size_bytes=17,
    ) == QueueSettings(max_length_bytes=1, max_age_ms=7 * DAY_MS, segment_bytes=2, filter_bytes=17)


@pytest.mark.rabbitmq("policy_SUITE", "is_supported_operator_policy_expires")
@pytest.mark.rabbitmq("policy_SUITE", "operator_policy_ttl", "policy_ttl")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_every_number_of_a_policy_acts_alone(kind: str) -> None:
    definition = {"expires": 1, "message-ttl": 2, "max-length": 3, "max-length-bytes": 4}
    assert settings(kind, definition) == QueueSettings(
        expires_ms=1, message_ttl_ms=2, max_length=3, max_length_bytes=4
    )


# --- policy and operator policy -------------------------------------------------------------------


LIMITS = ("expires", "message-ttl", "max-length", "max-length-bytes", "max-in-memory-length")


@pytest.mark.rabbitmq("policy_SUITE", "overflow_policies", "classic_queue_version_policies")
@pytest.mark.rabbitmq("unit_operator_policy_SUITE", "merge_operator_policy_definitions")
@pytest.mark.parametrize(
    ("kind", "key", "policy", "operator", "counts"),
    [
        *(("quorum", key, *both, 1) for key in LIMITS for both in ((1, 2), (2, 1))),
        ("quorum", "delayed-retry-max", 5, 3, 3),
        # The shortest delay is a promise and not a limit.
        ("quorum", "delayed-retry-min", 5, 3, 5),
        # An operator may ask for more members, and not for fewer.
        ("quorum", "target-group-size", 5, 3, 5),
        ("quorum", "target-group-size", 3, 5, 5),
        # Neither of two words is the smaller one.
        ("classic", "overflow", "drop-head", "reject-publish", "reject-publish"),
        ("classic", "queue-version", 1, 2, 2),
    ],
)
def test_the_smaller_limit_the_greater_promise_and_the_operators_word_count(
    kind: str, key: str, policy: Any, operator: Any, counts: Any
) -> None:
    assert effect(kind, {key: policy}, {key: operator}).definition == {key: counts}


@pytest.mark.rabbitmq("unit_operator_policy_SUITE", "merge_operator_policy_definitions")
@pytest.mark.parametrize(
    ("one", "other", "counts"), [(5, 7, 5), (7, 5, 5), (-1, 7, 7), (7, -1, 7), (-1, -5, -1), (0, 7, 0)]
)
def test_a_negative_delivery_limit_gives_way(one: int, other: int, counts: int) -> None:
    """It means no limit: if one of two is negative, the greater applies; else the smaller."""
    key = "delivery-limit"
    assert effect("quorum", {key: one}, {key: other}).definition[key] == counts
    limit = settings("quorum", {key: one}, delivery_limit=other).delivery_limit
    assert limit == (None if counts < 0 else counts)


def test_each_of_two_policies_adds_what_the_other_does_not_say() -> None:
    found = effect("classic", {"max-length": 1}, {"expires": 2})
    assert (found.policy, found.operator_policy) == ("p", "o")
    assert found.definition == {"max-length": 1, "expires": 2}


def test_an_operator_policy_bounds_an_argument_too() -> None:
    """It is merged with the policy first, and the result with the arguments."""
    assert settings("classic", None, {"max-length": 5}, max_length=9).max_length == 5
    assert settings("classic", {"max-length": 7}, {"max-length": 5}, max_length=3).max_length == 3


# --- policy and argument --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "attribute"),
    [
        ("expires", "expires_ms"),
        ("message-ttl", "message_ttl_ms"),
        ("max-length", "max_length"),
        ("max-length-bytes", "max_length_bytes"),
        ("consumer-timeout", "consumer_timeout_ms"),
        ("consumer-disconnected-timeout", "consumer_disconnected_timeout_ms"),
    ],
)
def test_of_policy_and_argument_the_smaller_limit_counts(key: str, attribute: str) -> None:
    for policy, argument in ((1, 2), (2, 1)):
        found = settings("quorum", {key: policy}, **{key.replace("-", "_"): argument})
        assert getattr(found, attribute) == 1


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_override_policy")
def test_the_argument_wins_for_dead_letters() -> None:
    policy = {
        "dead-letter-exchange": "p",
        "dead-letter-routing-key": "p",
        "dead-letter-strategy": "at-least-once",
    }
    found = settings(
        "quorum",
        policy,
        dead_letter_exchange="a",
        dead_letter_routing_key="a",
        dead_letter_strategy="at-most-once",
    )
    assert (found.dead_letter_exchange, found.dead_letter_routing_key) == ("a", "a")
    assert found.dead_letter_strategy is DeadLetterStrategy.AT_MOST_ONCE


def test_the_argument_wins_for_overflow_of_a_classic_queue() -> None:
    """On a quorum queue the policy wins."""
    policy = {"overflow": "reject-publish"}
    assert settings("classic", policy, overflow="drop-head").overflow is Overflow.DROP_HEAD
    assert settings("quorum", policy, overflow="drop-head").overflow is Overflow.REJECT_PUBLISH


def test_the_policy_wins_for_the_retry_type() -> None:
    """Only quorum queues have it."""
    policy = {"delayed-retry-type": "returned", "delayed-retry-min": 1}
    found = settings("quorum", policy, delayed_retry_type="all", delayed_retry_min=1)
    assert found.retry_type is RetryType.RETURNED


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "update_retention_policy")
@pytest.mark.rabbitmq(
    "rabbit_stream_queue_SUITE",
    "initial_cluster_size_one_policy",
    "leader_locator_policy",
    "max_age_policy",
    "max_segment_size_bytes_policy",
)
def test_the_policy_wins_for_all_of_a_stream() -> None:
    """Retention is up to the operator, greater or smaller."""
    policy = {
        "max-length-bytes": 9,
        "max-age": "8D",
        "stream-max-segment-size-bytes": 7,
        "stream-filter-size-bytes": 60,
    }
    assert settings(
        "stream",
        policy,
        max_length_bytes=1,
        max_age="1s",
        stream_max_segment_size_bytes=1,
        stream_filter_size_bytes=16,
    ) == QueueSettings(max_length_bytes=9, max_age_ms=8 * DAY_MS, segment_bytes=7, filter_bytes=60)


def test_no_policy_changes_priorities_or_the_single_active_consumer() -> None:
    """They stay as declared: policies have no such settings."""
    policy = {"max-priority": 9, "single-active-consumer": True, "max-length": 1}
    found = effect("classic", policy)
    assert found.settings == replace(DEFAULTS, max_length=1)
    assert found.ineffective == ("max-priority", "single-active-consumer")


# --- what does not act ----------------------------------------------------------------------------


@pytest.mark.rabbitmq("rabbit_stream_queue_SUITE", "invalid_policy")
@pytest.mark.rabbitmq("quorum_queue_SUITE", "invalid_policy", "pre_existing_invalid_policy")
@pytest.mark.parametrize(
    ("kind", "definition"),
    [
        ("classic", {"delivery-limit": 1, "max-age": "1D", "dead-letter-strategy": "at-least-once"}),
        ("quorum", {"max-age": "1D", "queue-mode": "lazy", "stream-filter-size-bytes": 20}),
        ("stream", {"message-ttl": 1, "max-length": 1, "dead-letter-exchange": "x", "overflow": "drop-head"}),
        ("classic", {"alternate-exchange": "x"}),
        ("classic", {"federation-upstream-set": "all"}),
    ],
)
def test_what_a_kind_of_queue_does_not_know_is_ignored_and_named(
    kind: str, definition: dict[str, Any]
) -> None:
    found = effect(kind, {**definition, "max-length-bytes": 5})
    assert found.ineffective == tuple(sorted(definition))
    assert found.definition == {"max-length-bytes": 5}
    assert found.settings == replace(DEFAULTS, max_length_bytes=5)


@pytest.mark.parametrize("by_policy", [True, False])
def test_reject_publish_dlx_of_a_quorum_queue_drops_from_the_head(by_policy: bool) -> None:
    """A warning is logged; a classic queue supports it."""
    word = "reject-publish-dlx"
    found = effect("quorum", {"overflow": word}) if by_policy else effect("quorum", overflow=word)
    assert found.settings.overflow is Overflow.DROP_HEAD
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith("queue 'q': quorum queues have no overflow reject-publish-dlx")
    classic = effect("classic", {"overflow": word})
    assert classic.settings.overflow is Overflow.REJECT_PUBLISH_DLX
    assert classic.warnings == ()


# --- ages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1s", 1_000),
        ("2m", 120_000),
        ("3h", 10_800_000),
        ("7D", 7 * DAY_MS),
        ("1M", 30 * DAY_MS),
        ("1Y", 365 * DAY_MS),
    ],
)
def test_an_age_is_a_number_and_a_unit(text: str, ms: int) -> None:
    assert max_age_ms(text) == ms


# --- exchanges ------------------------------------------------------------------------------------


def test_a_policy_gives_exchanges_an_alternate() -> None:
    policies = Policies()
    assert alternate_exchange(policies, "x") is None
    policies.put_policy(Policy("p", "^x", {"alternate-exchange": "ae"}, apply_to="exchanges"))
    assert alternate_exchange(policies, "x") == "ae"
    assert alternate_exchange(policies, "y") is None
    policies.put_policy(Policy("q", "^x", {"max-length": 1}, priority=1))
    assert alternate_exchange(policies, "x") is None
