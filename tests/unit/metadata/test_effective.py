"""Arguments, policy and operator policy made into the settings of one queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from amqp10broker.metadata.policies import Policies, Policy, alternate_exchange, effective
from amqp10broker.metadata.queue import Effective
from amqp10broker.metadata.queue_settings import max_age_ms
from amqp10broker.queues.settings import (
    DEFAULTS,
    ConfirmWhen,
    DeadLetterStrategy,
    Overflow,
    QueueSettings,
    RetryType,
)

DAY_MS = 86_400_000


def effect(
    kind: str,
    policy: Mapping[str, Any] | None = None,
    operator: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Effective:
    """What counts for a queue `q` with these definitions; arguments by name without ``x-``."""
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
    """What `x-max-priority` says goes before; to other kinds of queue the argument means nothing."""
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
    """Without both it is as the broker is configured; other kinds have no choice."""
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
@pytest.mark.parametrize(
    ("kind", "definition"),
    [
        ("classic", {"expires": 1, "message-ttl": 2, "max-length": 3, "max-length-bytes": 4}),
        ("quorum", {"expires": 1, "message-ttl": 2, "max-length": 3, "max-length-bytes": 4}),
    ],
)
def test_every_number_of_a_policy_acts_alone(kind: str, definition: dict[str, Any]) -> None:
    assert settings(kind, definition) == QueueSettings(
        expires_ms=1, message_ttl_ms=2, max_length=3, max_length_bytes=4
    )


# --- policy and operator policy -------------------------------------------------------------------


@pytest.mark.rabbitmq("unit_operator_policy_SUITE", "merge_operator_policy_definitions")
@pytest.mark.parametrize(
    "key", ["expires", "message-ttl", "max-length", "max-length-bytes", "max-in-memory-length"]
)
def test_of_policy_and_operator_policy_the_smaller_limit_counts(key: str) -> None:
    for policy, operator in ((1, 2), (2, 1)):
        assert effect("quorum", {key: policy}, {key: operator}).definition == {key: 1}


@pytest.mark.rabbitmq("unit_operator_policy_SUITE", "merge_operator_policy_definitions")
def test_the_smaller_longest_and_the_greater_shortest_delay_count() -> None:
    """delayed-retry-max is a limit, delayed-retry-min a promise."""
    key = "delayed-retry-max"
    assert effect("quorum", {key: 5}, {key: 3}).definition[key] == 3
    key = "delayed-retry-min"
    assert effect("quorum", {key: 5}, {key: 3}).definition[key] == 5


@pytest.mark.rabbitmq("unit_operator_policy_SUITE", "merge_operator_policy_definitions")
def test_the_greater_group_size_counts() -> None:
    """An operator may ask for more members, and not for fewer."""
    key = "target-group-size"
    assert effect("quorum", {key: 5}, {key: 3}).definition[key] == 5
    assert effect("quorum", {key: 3}, {key: 5}).definition[key] == 5


@pytest.mark.rabbitmq("unit_operator_policy_SUITE", "merge_operator_policy_definitions")
@pytest.mark.parametrize(
    ("one", "other", "counts"), [(5, 7, 5), (7, 5, 5), (-1, 7, 7), (7, -1, 7), (-1, -5, -1), (0, 7, 0)]
)
def test_a_negative_delivery_limit_gives_way(one: int, other: int, counts: int) -> None:
    """It is no limit: where one of two is negative, the greater counts; else the smaller."""
    key = "delivery-limit"
    assert effect("quorum", {key: one}, {key: other}).definition[key] == counts
    limit = settings("quorum", {key: one}, delivery_limit=other).delivery_limit
    assert limit == (None if counts < 0 else counts)


@pytest.mark.rabbitmq("policy_SUITE", "overflow_policies")
@pytest.mark.rabbitmq("policy_SUITE", "classic_queue_version_policies")
@pytest.mark.rabbitmq("unit_operator_policy_SUITE", "merge_operator_policy_definitions")
@pytest.mark.parametrize(
    ("key", "policy", "operator"),
    [
        ("overflow", "drop-head", "reject-publish"),
        ("queue-version", 1, 2),
    ],
)
def test_of_words_the_operators_counts(key: str, policy: Any, operator: Any) -> None:
    """There is no smaller one of two words."""
    assert effect("classic", {key: policy}, {key: operator}).definition[key] == operator


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
    """And the policy on a quorum queue."""
    policy = {"overflow": "reject-publish"}
    assert settings("classic", policy, overflow="drop-head").overflow is Overflow.DROP_HEAD
    assert settings("quorum", policy, overflow="drop-head").overflow is Overflow.REJECT_PUBLISH


def test_the_policy_wins_for_the_retry_type() -> None:
    """Of quorum queues, which alone have it."""
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
    """Retention is the operator's business, greater or smaller."""
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
    """They are as declared: no settings of policies."""
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
    """With a warning for the log; a classic queue does it."""
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
    """If it is for exchanges and says so."""
    policies = Policies()
    assert alternate_exchange(policies, "x") is None
    policies.put_policy(Policy("p", "^x", {"alternate-exchange": "ae"}, apply_to="exchanges"))
    assert alternate_exchange(policies, "x") == "ae"
    assert alternate_exchange(policies, "y") is None
    policies.put_policy(Policy("q", "^x", {"max-length": 1}, priority=1))
    assert alternate_exchange(policies, "x") is None
