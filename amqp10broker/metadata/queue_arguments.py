"""The settings of queues, one row each: the argument of a declaration and the key of policies for it.

To add a setting, add its row, and its field to `QueueSettings`. Refusals begin with RabbitMQ's text, because
clients match that, and continue with the allowed values. Unknown arguments are stored without a meaning, as
in RabbitMQ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import Inequivalent, InvalidArgument, closest
from amqp10broker.queues.settings import ConfirmWhen, DeadLetterStrategy, Overflow, RetryType
from amqp10broker.routing.exchange import ALTERNATE_EXCHANGE, canonical, plain_text, type_name

EXCHANGE: Final = "exchange"
"""The kind of exchanges in policies, besides the kinds of queues."""
QUEUE_TYPE: Final = "x-queue-type"
SUBSCRIPTION: Final = "x-subscription"
"""The topic, the client and the selector of a subscription (`queue_requests.Subscription`)."""
JMS_PRIORITY: Final = "x-jms-priority"
"""True: a classic queue has the priorities of JMS, 0 to 9, and 4 is that of a message without one. The broker
sets it on queues of any kind that it makes for JMS clients. It is not compared: clients may declare such a
queue as a plain one.
"""
SUBSCRIPTION_FIELDS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("topic", "container", "name"), str),
    **dict.fromkeys(("durable", "shared"), bool),
    "selector": str,
    "no_local": bool,
}
EXPIRY_MS_MAX: Final = 315_360_000_000
"""Ten years: the longest time-to-live of a queue or a message."""
PRIORITY_MAX: Final = 255


class QueueType(StrEnum):
    """The values of ``x-queue-type``."""

    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"

    @property
    def module(self) -> str:
        """The kind's name in labels of RabbitMQ's metrics."""
        return f"rabbit_{self.value}_queue"


class UnknownQueueType(InvalidArgument):
    """This broker does not have the kind of queue; another broker, or a plugin of it, may."""


def queue_type_of(name: str, resource: str) -> QueueType:
    try:
        return QueueType(name)
    except ValueError:
        raise UnknownQueueType(
            resource,
            f"invalid arg 'x-queue-type' for {resource}: must be one of {', '.join(QueueType)}, not '{name}'",
        ) from None


Fault = Callable[[Any, Mapping[str, Any]], str | None]
"""(argument, all arguments of the declaration) -> the reason for a refusal, None for a good value."""
Merge = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Value:
    """The allowed values of a setting. `noun`: ``text``, ``number``, ``flag`` or ``table``, for forms.
    `policy_fault`: as `fault`, for policies.
    """

    noun: str
    fault: Fault
    policy_fault: Callable[[Any], str | None] | None = None


def _same(value: Any) -> Any:
    return value


def _second(first: Any, second: Any) -> Any:
    return second


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        argument: its name in declarations, or None.
        key: its name in policies, or None.
        kinds: the kinds of queue that have it, or `EXCHANGE`.
        attribute: the field of `QueueSettings`; None: it acts elsewhere, or has no effect.
        read: makes the value of that attribute.
        merge: merges policy and operator policy, then the result and the argument.
        operator: operator policies have it.
        policy_wins: the kinds of queue for which policies override the argument.
        compared: a redeclaration must have the same value.
        relaxed: likewise when a quorum queue is declared as a classic one and that is permitted.
        offered: the page's forms suggest it.
    """

    argument: str | None
    key: str | None
    kinds: frozenset[str]
    value: Value
    attribute: str | None = None
    read: Callable[[Any], Any] = _same
    merge: Merge = _second
    operator: bool = False
    policy_wins: frozenset[str] = frozenset({QueueType.STREAM})
    compared: bool = True
    relaxed: bool = False
    offered: bool = True


# --- values ---------------------------------------------------------------------------------------

_INTEGER_NAMES: Final = frozenset(
    {"byte", "unsignedbyte", "short", "unsignedshort", "signedint", "unsignedint", "long"}
)


def _integer(low: int | None = None, high: int | None = None) -> Value:
    wanted = f"{low} or more" if high is None else f"{low} to {high}"

    def fault(value: Any, _: Mapping[str, Any]) -> str | None:
        name = type_name(value)
        if name not in _INTEGER_NAMES:
            return f"must be an integer, not {name}"
        low_or_high = (low is not None and value < low) or (high is not None and value > high)
        return f"must be {wanted}, not {value}" if low_or_high else None

    def policy_fault(value: Any) -> str | None:
        if not isinstance(value, int) or isinstance(value, bool):
            return "must be an integer"
        if low is not None and value < low:
            return "must not be negative" if low == 0 else f"must be at least {low}"
        return f"must be at most {high}" if high is not None and value > high else None

    return Value("number", fault, policy_fault)


def _text_fault(value: Any, _: Mapping[str, Any]) -> str | None:
    return None if isinstance(value, str) else f"must be a string, not {type_name(value)}"


def _text_policy_fault(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be a string"


def _text(good: Callable[[str], object], wanted: str, by_policy: str) -> Value:
    def fault(value: Any, arguments: Mapping[str, Any]) -> str | None:
        return _text_fault(value, arguments) or (None if good(value) else f"{wanted}, not '{value}'")

    def policy_fault(value: Any) -> str | None:
        return _text_policy_fault(value) or (None if good(value) else by_policy)

    return Value("text", fault, policy_fault)


def _one_of(*words: str) -> Value:
    wanted = f"must be one of {', '.join(words)}"
    return _text(words.__contains__, wanted, wanted)


def _routing_key(value: Any, arguments: Mapping[str, Any]) -> str | None:
    missing = "x-dead-letter-exchange must be given with it"
    return _text_fault(value, arguments) or (None if "x-dead-letter-exchange" in arguments else missing)


def _flag(value: Any, _: Mapping[str, Any]) -> str | None:
    return None if isinstance(value, bool) else f"must be true or false, not {type_name(value)}"


def _version(value: Any, arguments: Mapping[str, Any]) -> str | None:
    return _ANY_INTEGER.fault(value, arguments) or (None if value == 2 else f"must be 2, not {value}")


def _policy_version(value: Any) -> str | None:
    # Files of older brokers have version 1. This broker has only one way to store messages.
    if type(value) is not int:
        return "must be an integer"
    return None if value in (1, 2) else "must be one of 1, 2"


_MAX_AGE: Final = re.compile(r"0*[1-9][0-9]{0,17}[YMDhms]", re.ASCII)
_AGE_UNITS_MS: Final = {
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "D": 86_400_000,
    "M": 30 * 86_400_000,
    "Y": 365 * 86_400_000,
}


_AGE: Final = "must be a number above 0 and a unit of Y, M, D, h, m, s"


def max_age_ms(text: str) -> int:
    """Return an age such as ``7D`` in ms; a month has 30 days, a year 365. Raises `ValueError`."""
    if _MAX_AGE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no age: give a number above 0 and a unit of Y, M, D, h, m, s")
    return int(text[:-1]) * _AGE_UNITS_MS[text[-1]]


def _retry_max(value: Any, arguments: Mapping[str, Any]) -> str | None:
    low = arguments.get("x-delayed-retry-min")
    fault = _FROM_1.fault(value, arguments)
    if fault is None and isinstance(low, int) and value < low:
        return f"must be x-delayed-retry-min, which is {low}, or more, not {value}"
    return fault


def _subscription(value: Any, _: Mapping[str, Any]) -> str | None:
    if not isinstance(value, Mapping):
        return f"must be a table, not {type_name(value)}"
    right = all(isinstance(each, SUBSCRIPTION_FIELDS.get(name, ())) for name, each in value.items())
    if not right or "topic" not in value:
        others = ", ".join(name for name in SUBSCRIPTION_FIELDS if name != "topic")
        return f"must have topic and may have {others}, each of its type"
    from amqp10broker.message.filters.sql_eval import selector_fault  # imports all of `message`

    selector = value.get("selector")
    fault = None if selector is None else selector_fault(selector)
    return None if fault is None else f"invalid selector: {fault}"


# --- merging --------------------------------------------------------------------------------------


def _strictest_limit(one: int, other: int) -> int:
    # A negative limit is none, so the other one applies.
    return max(one, other) if min(one, other) < 0 else min(one, other)


def _limit(value: int) -> int | None:
    return None if value < 0 else value


# --- the table ------------------------------------------------------------------------------------

_ANY_INTEGER: Final = _integer()
_FROM_0: Final = _integer(0)
_FROM_1: Final = _integer(1)
_TEXT: Final = Value("text", _text_fault, _text_policy_fault)
_FLAG: Final = Value("flag", _flag)
# The last three are old names of balanced, which RabbitMQ still accepts, and which its client for Go sends.
_LOCATOR: Final = _one_of("client-local", "balanced", "random", "least-leaders", "min-masters")

_CQ: Final = frozenset({QueueType.CLASSIC})
_QQ: Final = frozenset({QueueType.QUORUM})
_SQ: Final = frozenset({QueueType.STREAM})

SETTINGS: Final = (
    # x-queue-type itself is checked before the kind is known, see `VirtualHost.declare`.
    Setting(QUEUE_TYPE, None, _CQ | _QQ | _SQ, _TEXT, offered=False),
    Setting(
        "x-expires", "expires", _CQ | _QQ, _integer(1, EXPIRY_MS_MAX), "expires_ms",
        merge=min, operator=True, relaxed=True,
    ),
    Setting(
        "x-message-ttl", "message-ttl", _CQ | _QQ, _integer(0, EXPIRY_MS_MAX), "message_ttl_ms",
        merge=min, operator=True, relaxed=True,
    ),
    Setting(
        "x-dead-letter-exchange", "dead-letter-exchange", _CQ | _QQ, _TEXT, "dead_letter_exchange",
        relaxed=True,
    ),
    Setting(
        "x-dead-letter-routing-key", "dead-letter-routing-key", _CQ | _QQ,
        Value("text", _routing_key, _text_policy_fault), "dead_letter_routing_key", relaxed=True,
    ),
    Setting(
        "x-dead-letter-strategy", "dead-letter-strategy", _QQ, _one_of(*DeadLetterStrategy),
        "dead_letter_strategy", DeadLetterStrategy,
    ),
    Setting(
        "x-max-length", "max-length", _CQ | _QQ, _FROM_0, "max_length",
        merge=min, operator=True, relaxed=True,
    ),
    Setting(
        "x-max-length-bytes", "max-length-bytes", _CQ | _QQ | _SQ, _FROM_0, "max_length_bytes",
        merge=min, operator=True, relaxed=True,
    ),
    Setting(
        "x-overflow", "overflow", _CQ | _QQ, _one_of(*Overflow), "overflow", Overflow,
        operator=True, policy_wins=_QQ,
    ),
    Setting("x-max-priority", None, _CQ, _integer(0, PRIORITY_MAX), "max_priority"),
    Setting(
        "x-single-active-consumer", None, _CQ | _QQ, _FLAG, "single_active_consumer", bool, relaxed=True
    ),
    Setting("x-queue-leader-locator", "queue-leader-locator", _CQ | _QQ | _SQ, _LOCATOR),
    Setting(
        "x-queue-master-locator", "queue-master-locator", _CQ,
        _one_of("min-masters", "client-local", "random"), offered=False,
    ),
    Setting("x-confirm-when", "confirm-when", _CQ, _one_of(*ConfirmWhen), "confirm_when", ConfirmWhen),
    Setting("x-queue-mode", "queue-mode", _CQ, _one_of("default", "lazy"), offered=False),
    Setting(
        "x-queue-version", "queue-version", _CQ, Value("number", _version, _policy_version),
        operator=True, offered=False,
    ),
    Setting(
        "x-delivery-limit", "delivery-limit", _QQ, _ANY_INTEGER, "delivery_limit", _limit,
        merge=_strictest_limit, operator=True,
    ),
    Setting("x-quorum-initial-group-size", None, _QQ, _FROM_1),
    Setting(
        "x-quorum-target-group-size", "target-group-size", _QQ, _FROM_1, merge=max, operator=True
    ),
    Setting(
        "x-max-in-memory-length", "max-in-memory-length", _QQ, _FROM_0,
        merge=min, operator=True, offered=False,
    ),
    Setting(
        "x-max-in-memory-bytes", "max-in-memory-bytes", _QQ, _FROM_0,
        merge=min, operator=True, offered=False,
    ),
    Setting("x-consumer-timeout", "consumer-timeout", _QQ, _FROM_0, "consumer_timeout_ms", merge=min),
    Setting(
        "x-consumer-disconnected-timeout", "consumer-disconnected-timeout", _QQ, _FROM_0,
        "consumer_disconnected_timeout_ms", merge=min,
    ),
    Setting(
        "x-delayed-retry-type", "delayed-retry-type", _QQ, _one_of(*RetryType), "retry_type", RetryType,
        operator=True, policy_wins=_QQ,
    ),
    Setting(
        "x-delayed-retry-min", "delayed-retry-min", _QQ, _FROM_1, "retry_min_ms", merge=max, operator=True
    ),
    Setting(
        "x-delayed-retry-max", "delayed-retry-max", _QQ,
        Value("number", _retry_max, _FROM_1.policy_fault), "retry_max_ms", merge=min, operator=True,
    ),
    Setting(
        "x-max-age", "max-age", _SQ, _text(_MAX_AGE.fullmatch, f"{_AGE}, such as '7D'", f"{_AGE}: 7D"),
        "max_age_ms", max_age_ms,
    ),
    Setting(
        "x-stream-max-segment-size-bytes", "stream-max-segment-size-bytes", _SQ,
        _integer(0, 3_000_000_000), "segment_bytes",
    ),
    Setting(
        "x-stream-filter-size-bytes", "stream-filter-size-bytes", _SQ, _integer(16, 255), "filter_bytes"
    ),
    Setting(SUBSCRIPTION, None, _CQ, Value("table", _subscription), offered=False),
    Setting(JMS_PRIORITY, None, _CQ | _QQ | _SQ, _FLAG, compared=False, offered=False),
    Setting("x-initial-cluster-size", "initial-cluster-size", _SQ, _FROM_1, offered=False),
    Setting(None, ALTERNATE_EXCHANGE, frozenset({EXCHANGE}), _TEXT),
)  # fmt: skip

ARGUMENTS: Final[Mapping[str, Setting]] = {
    each.argument: each for each in SETTINGS if each.argument is not None
}
POLICY_KEYS: Final[Mapping[str, Setting]] = {each.key: each for each in SETTINGS if each.key is not None}


def selector_in(arguments: Mapping[str, Any]) -> str | None:
    """Return the selector of the subscription in checked arguments of a queue."""
    subscription = arguments.get(SUBSCRIPTION)
    return None if subscription is None else subscription.get("selector")


def plain(value: Any) -> Any:
    """Return the value without its wire type, as it is stored, shown and compared."""
    match value:
        case bool() | None | str() | bytes():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return value


def check(arguments: Mapping[str, Any], kind: QueueType, resource: str) -> None:
    """Refuse bad values, and arguments of other kinds of queue. Raises `InvalidArgument`."""
    for name, value in arguments.items():
        setting = ARGUMENTS.get(name)
        if setting is None or kind not in setting.kinds:
            continue
        fault = setting.value.fault(value, arguments)
        if fault is not None:
            raise InvalidArgument(resource, f"invalid arg '{name}' for {resource}: {fault}")
    for name in arguments:
        setting = ARGUMENTS.get(name)
        if setting is not None and kind not in setting.kinds:
            takers = " or ".join(sorted(setting.kinds))
            raise InvalidArgument(
                resource,
                f"invalid arg '{name}' for {resource}: not for a queue of type {kind}, only of type {takers}",
            )


def misspelt(arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first unknown argument that resembles a known one, and the known one, for a warning."""
    for name in arguments:
        meant = None if name in ARGUMENTS else closest(name, ARGUMENTS)
        if meant is not None:
            return name, meant
    return None


def assert_equivalent(
    received: Mapping[str, Any],
    current: Mapping[str, Any],
    kind: QueueType,
    resource: str,
    *,
    relaxed: bool = False,
) -> None:
    """Refuse a redeclaration with other x-arguments of the existing queue's `kind`; with `relaxed`, only
    settings that are so. Integers of different widths are the same. Raises `Inequivalent` with RabbitMQ's
    text.
    """
    for name, setting in ARGUMENTS.items():
        if kind not in setting.kinds or not setting.compared or (relaxed and not setting.relaxed):
            continue
        new, old = received.get(name), current.get(name)
        if name in received and name in current:
            if canonical(new) == canonical(old):
                continue
            difference = f"received '{plain_text(new)}' but current is '{plain_text(old)}'"
        elif name in current:
            shown = f"'{plain_text(old)}' of type '{type_name(old)}'"
            difference = f"received none but current is the value {shown}"
        elif name in received:
            shown = f"'{plain_text(new)}' of type '{type_name(new)}'"
            difference = f"received the value {shown} but current is none"
        else:
            continue
        raise inequivalent(name, resource, difference)


def inequivalent(name: str, resource: str, difference: str) -> Inequivalent:
    return Inequivalent(resource, f"inequivalent arg '{name}' for {resource}: {difference}")
