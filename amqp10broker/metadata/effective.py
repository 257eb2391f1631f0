"""The effective settings of a queue: arguments, policy and operator policy merged into one `QueueSettings`.

The matching policy and operator policy of the highest priority count. These two are merged first, then the
result with the arguments of the declaration; the tables below define the precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from amqp10broker.metadata.policies import Policies, Policy
from amqp10broker.metadata.policy_keys import ALTERNATE_EXCHANGE, EXCHANGE, SETTINGS
from amqp10broker.metadata.queue import NO_POLICY, Effective, QueueType
from amqp10broker.metadata.queue_arguments import JMS_PRIORITY, MAX_AGE, QUEUE_TYPE
from amqp10broker.queues.settings import (
    CONSUMER_DISCONNECTED_TIMEOUT_MS,
    CONSUMER_TIMEOUT_MS,
    DEFAULTS,
    DELIVERY_LIMIT,
    ConfirmWhen,
    DeadLetterStrategy,
    Overflow,
    QueueSettings,
    RetryType,
)

Merge = Callable[[Any, Any], Any]


def _strictest_limit(one: int, other: int) -> int:
    return max(one, other) if min(one, other) < 0 else min(one, other)


def _second(first: Any, second: Any) -> Any:
    return second


_OF_OPERATOR: Final[Mapping[str, Merge]] = {
    **dict.fromkeys(("expires", "message-ttl", "max-length", "max-length-bytes"), min),
    **dict.fromkeys(("max-in-memory-length", "max-in-memory-bytes", "delayed-retry-max"), min),
    **dict.fromkeys(("target-group-size", "delayed-retry-min"), max),
    "delivery-limit": _strictest_limit,
}
"""Setting -> (policy's value, operator's) -> what counts. Of settings not named the operator's does."""

_OF_ARGUMENT: Final[Mapping[str, Merge]] = {
    **dict.fromkeys(("expires", "message-ttl", "max-length", "max-length-bytes"), min),
    **dict.fromkeys(("max-in-memory-length", "max-in-memory-bytes", "delayed-retry-max"), min),
    **dict.fromkeys(("consumer-timeout", "consumer-disconnected-timeout"), min),
    **dict.fromkeys(("target-group-size", "delayed-retry-min"), max),
    "delivery-limit": _strictest_limit,
}
"""Setting -> (policies' value, argument's) -> what counts. Of settings not named the argument's does."""

_POLICY_WINS: Final[Mapping[str, frozenset[str]]] = {
    QueueType.CLASSIC.value: frozenset(),
    QueueType.QUORUM.value: frozenset({"overflow", "delayed-retry-type"}),
    QueueType.STREAM.value: SETTINGS[QueueType.STREAM.value],
}

_ARGUMENT_NAMES: Final = {"target-group-size": "x-quorum-target-group-size"}

JMS_PRIORITY_MAX: Final = 9
JMS_PRIORITY_DEFAULT: Final = 4
"""Of a message whose header has no priority: Qpid JMS leaves the default out."""

_UNITS_MS: Final = {
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "D": 86_400_000,
    "M": 30 * 86_400_000,
    "Y": 365 * 86_400_000,
}


def max_age_ms(text: str) -> int:
    """How long a stream keeps what is in it, in ms. `text`: a number and a unit: ``7D``; a month has 30 days,
    a year 365. Raises `ValueError` if it is not of this form.
    """
    if MAX_AGE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no age: give a number above 0 and a unit of Y, M, D, h, m, s")
    return int(text[:-1]) * _UNITS_MS[text[-1]]


def effective(policies: Policies, name: str, kind: str, arguments: Mapping[str, Any]) -> Effective:
    """Merge the settings of a queue."""
    policy = policies.effective(name, kind)
    operator = policies.effective(name, kind, operator=True)
    if policy is None and operator is None and arguments.keys() <= {QUEUE_TYPE}:
        return NO_POLICY
    given = _both(policy, operator)
    known = SETTINGS[kind]
    acting = {key: value for key, value in given.items() if key in known}
    ineffective = tuple(sorted(key for key in given if key not in known))
    settings, warnings = _settings(name, kind, acting, arguments)
    return Effective(
        policy=None if policy is None else policy.name,
        operator_policy=None if operator is None else operator.name,
        definition=acting,
        ineffective=ineffective,
        settings=settings,
        warnings=warnings,
    )


def alternate_exchange(policies: Policies, exchange: str) -> str | None:
    """The alternate exchange that an exchange gets of its policy; an argument of its own counts before."""
    policy = policies.effective(exchange, EXCHANGE)
    value = None if policy is None else policy.definition.get(ALTERNATE_EXCHANGE)
    return None if value is None else str(value)


def _both(policy: Policy | None, operator: Policy | None) -> dict[str, Any]:
    merged = dict(policy.definition) if policy is not None else {}
    for key, value in (operator.definition if operator is not None else {}).items():
        merge = _OF_OPERATOR.get(key, _second)
        merged[key] = merge(merged[key], value) if key in merged else value
    return merged


def _settings(
    name: str, kind: str, acting: Mapping[str, Any], arguments: Mapping[str, Any]
) -> tuple[QueueSettings, tuple[str, ...]]:
    def value(key: str, default: Any = None) -> Any:
        argument = arguments.get(_ARGUMENT_NAMES.get(key, f"x-{key}"))
        by_policy = acting.get(key)
        if by_policy is None or argument is None:
            chosen = argument if by_policy is None else by_policy
            return default if chosen is None else chosen
        if key in _POLICY_WINS[kind]:
            return by_policy
        return _OF_ARGUMENT.get(key, _second)(by_policy, argument)

    overflow = Overflow(value("overflow", Overflow.DROP_HEAD))
    warnings: tuple[str, ...] = ()
    if kind == QueueType.QUORUM and overflow is Overflow.REJECT_PUBLISH_DLX:
        # As RabbitMQ: such a queue has nowhere to reject to, and says so instead of failing.
        overflow = Overflow.DROP_HEAD
        text = (
            f"queue '{name}': quorum queues have no overflow reject-publish-dlx and drop from the head "
            "instead; set overflow to drop-head or reject-publish"
        )
        warnings = (text,)
    of_jms = kind == QueueType.CLASSIC and arguments.get(JMS_PRIORITY) is True
    max_priority = arguments.get("x-max-priority", JMS_PRIORITY_MAX if of_jms else None)
    limit = value("delivery-limit", DELIVERY_LIMIT)
    age = value("max-age")
    confirm_when = value("confirm-when")
    settings = QueueSettings(
        message_ttl_ms=value("message-ttl"),
        expires_ms=value("expires"),
        max_length=value("max-length"),
        max_length_bytes=value("max-length-bytes"),
        overflow=overflow,
        dead_letter_exchange=value("dead-letter-exchange"),
        dead_letter_routing_key=value("dead-letter-routing-key"),
        dead_letter_strategy=DeadLetterStrategy(
            value("dead-letter-strategy", DeadLetterStrategy.AT_MOST_ONCE)
        ),
        max_priority=max_priority,
        default_priority=min(JMS_PRIORITY_DEFAULT, max_priority or 0) if of_jms else 0,
        single_active_consumer=bool(arguments.get("x-single-active-consumer", False)),
        delivery_limit=None if limit < 0 else limit,
        consumer_timeout_ms=value("consumer-timeout", CONSUMER_TIMEOUT_MS),
        consumer_disconnected_timeout_ms=value(
            "consumer-disconnected-timeout", CONSUMER_DISCONNECTED_TIMEOUT_MS
        ),
        retry_type=RetryType(value("delayed-retry-type", RetryType.DISABLED)),
        retry_min_ms=value("delayed-retry-min"),
        retry_max_ms=value("delayed-retry-max"),
        max_age_ms=None if age is None else max_age_ms(age),
        segment_bytes=value("stream-max-segment-size-bytes", DEFAULTS.segment_bytes),
        filter_bytes=value("stream-filter-size-bytes", DEFAULTS.filter_bytes),
        confirm_when=None if confirm_when is None else ConfirmWhen(confirm_when),
    )
    return settings, warnings
