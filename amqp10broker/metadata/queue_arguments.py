"""x-arguments of queues: names by kind of queue, types, values and equivalence.

Refusals begin as RabbitMQ's do, because clients match the text, and continue with the allowed values.
Arguments that are not defined for any kind are stored without effect, as in RabbitMQ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from amqp10broker.errors import Inequivalent, InvalidArgument, closest
from amqp10broker.metadata.queue import QueueType
from amqp10broker.queues.selecting import fault_of
from amqp10broker.routing.arguments import canonical, plain_text, type_name

QUEUE_TYPE: Final = "x-queue-type"
SUBSCRIPTION: Final = "x-subscription"
"""Of the queue of a subscription to a topic: what it is, see `subscriptions`."""
JMS_PRIORITY: Final = "x-jms-priority"
"""True: a classic queue has the priorities of JMS, 0 to 9, and 4 is that of a message that gives none. The
broker says it of queues that it makes for programs of JMS, whose kind it may not know: to others it means
nothing. It is not compared: clients may declare such a queue as a plain one."""
SUBSCRIPTION_FIELDS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("topic", "container", "name"), str),
    **dict.fromkeys(("durable", "shared"), bool),
    "selector": str,
    "no_local": bool,
}
"""What may stand in it, as text or yes."""
EXPIRY_MS_MAX: Final = 315_360_000_000
"""Ten years: the longest time-to-live of a queue or a message."""
PRIORITY_MAX: Final = 255

Check = Callable[[Any, Mapping[str, Any]], str | None]
"""(value, all arguments) -> the reason why it is refused, None if it is good."""

_CQ: Final = frozenset({QueueType.CLASSIC})
_QQ: Final = frozenset({QueueType.QUORUM})
_SQ: Final = frozenset({QueueType.STREAM})

_INTEGER_NAMES: Final = frozenset(
    {"byte", "unsignedbyte", "short", "unsignedshort", "signedint", "unsignedint", "long"}
)


def selector_in(arguments: Mapping[str, Any]) -> str | None:
    """Of the checked arguments of a queue: the selector of the subscription that it is for."""
    subscription = arguments.get(SUBSCRIPTION)
    return None if subscription is None else subscription.get("selector")


def plain(value: Any) -> Any:
    """The value without its wire type: what is kept, shown and compared."""
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


# --- checks ---------------------------------------------------------------------------------------


def _integer(value: Any, _: Mapping[str, Any]) -> str | None:
    name = type_name(value)
    return None if name in _INTEGER_NAMES else f"must be an integer, not {name}"


def _from(low: int, high: int | None = None) -> Check:
    wanted = f"{low} or more" if high is None else f"{low} to {high}"

    def check(value: Any, arguments: Mapping[str, Any]) -> str | None:
        fault = _integer(value, arguments)
        if fault is None and (value < low or (high is not None and value > high)):
            return f"must be {wanted}, not {value}"
        return fault

    return check


def _boolean(value: Any, _: Mapping[str, Any]) -> str | None:
    return None if isinstance(value, bool) else f"must be true or false, not {type_name(value)}"


def _string(value: Any, _: Mapping[str, Any]) -> str | None:
    return None if isinstance(value, str) else f"must be a string, not {type_name(value)}"


def _one_of(*choices: str) -> Check:
    def check(value: Any, arguments: Mapping[str, Any]) -> str | None:
        fault = f"must be one of {', '.join(choices)}, not '{value}'"
        return _string(value, arguments) or (None if value in choices else fault)

    return check


def _routing_key(value: Any, arguments: Mapping[str, Any]) -> str | None:
    missing = "x-dead-letter-exchange must be given with it"
    return _string(value, arguments) or (None if "x-dead-letter-exchange" in arguments else missing)


def _version(value: Any, arguments: Mapping[str, Any]) -> str | None:
    return _integer(value, arguments) or (None if value == 2 else f"must be 2, not {value}")


LEADER_LOCATORS: Final = ("client-local", "balanced", "random", "least-leaders", "min-masters")
"""The last three are old names of balanced, which RabbitMQ still takes, and its client for Go sends."""

MAX_AGE: Final = re.compile(r"0*[1-9][0-9]{0,17}[YMDhms]", re.ASCII)


def _max_age(value: Any, arguments: Mapping[str, Any]) -> str | None:
    fault = f"must be a number above 0 and a unit of Y, M, D, h, m, s, such as '7D', not '{value}'"
    return _string(value, arguments) or (None if MAX_AGE.fullmatch(value) else fault)


def _retry_max(value: Any, arguments: Mapping[str, Any]) -> str | None:
    low = arguments.get("x-delayed-retry-min")
    fault = _from(1)(value, arguments)
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
    selector = value.get("selector")
    fault = None if selector is None else fault_of(selector)
    return None if fault is None else f"invalid selector: {fault}"


KNOWN: Final[Mapping[str, tuple[frozenset[QueueType], Check]]] = {
    # x-queue-type itself is checked before the kind is known, see `VirtualHost.declare`.
    QUEUE_TYPE: (_CQ | _QQ | _SQ, _string),
    "x-expires": (_CQ | _QQ, _from(1, EXPIRY_MS_MAX)),
    "x-message-ttl": (_CQ | _QQ, _from(0, EXPIRY_MS_MAX)),
    "x-dead-letter-exchange": (_CQ | _QQ, _string),
    "x-dead-letter-routing-key": (_CQ | _QQ, _routing_key),
    "x-dead-letter-strategy": (_QQ, _one_of("at-most-once", "at-least-once")),
    "x-max-length": (_CQ | _QQ, _from(0)),
    "x-max-length-bytes": (_CQ | _QQ | _SQ, _from(0)),
    "x-overflow": (_CQ | _QQ, _one_of("drop-head", "reject-publish", "reject-publish-dlx")),
    "x-max-priority": (_CQ, _from(0, PRIORITY_MAX)),
    "x-single-active-consumer": (_CQ | _QQ, _boolean),
    "x-queue-leader-locator": (_CQ | _QQ | _SQ, _one_of(*LEADER_LOCATORS)),
    "x-queue-master-locator": (_CQ, _one_of("min-masters", "client-local", "random")),
    "x-confirm-when": (_CQ, _one_of("synced", "written")),
    "x-queue-mode": (_CQ, _one_of("default", "lazy")),
    "x-queue-version": (_CQ, _version),
    "x-delivery-limit": (_QQ, _integer),
    "x-quorum-initial-group-size": (_QQ, _from(1)),
    "x-quorum-target-group-size": (_QQ, _from(1)),
    "x-max-in-memory-length": (_QQ, _from(0)),
    "x-max-in-memory-bytes": (_QQ, _from(0)),
    "x-consumer-timeout": (_QQ, _from(0)),
    "x-consumer-disconnected-timeout": (_QQ, _from(0)),
    "x-delayed-retry-type": (_QQ, _one_of("disabled", "all", "failed", "returned")),
    "x-delayed-retry-min": (_QQ, _from(1)),
    "x-delayed-retry-max": (_QQ, _retry_max),
    "x-max-age": (_SQ, _max_age),
    "x-stream-max-segment-size-bytes": (_SQ, _from(0, 3_000_000_000)),
    "x-stream-filter-size-bytes": (_SQ, _from(16, 255)),
    SUBSCRIPTION: (_CQ, _subscription),
    JMS_PRIORITY: (_CQ | _QQ | _SQ, _boolean),
    "x-initial-cluster-size": (_SQ, _from(1)),
}
"""Argument -> (the kinds that know it, what it may be)."""


def check(arguments: Mapping[str, Any], kind: QueueType, resource: str) -> None:
    """Refuse what a kind of queue does not know, or not so.

    Raises:
        InvalidArgument: with what is allowed.
    """
    for name, value in arguments.items():
        kinds, fault_of = KNOWN.get(name, (None, None))
        if kinds is None or fault_of is None or kind not in kinds:
            continue
        fault = fault_of(value, arguments)
        if fault is not None:
            raise InvalidArgument(resource, f"invalid arg '{name}' for {resource}: {fault}")
    for name in arguments:
        if name in KNOWN and kind not in KNOWN[name][0]:
            takers = " or ".join(sorted(KNOWN[name][0]))
            raise InvalidArgument(
                resource,
                f"invalid arg '{name}' for {resource}: not for a queue of type {kind}, only of type {takers}",
            )


def misspelt(arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first unknown argument that resembles a known one, and that one: ``x-max-lenght``.

    Clients may declare queues with any argument; the log warns of a probable misspelling.
    """
    for name in arguments:
        meant = None if name in KNOWN else closest(name, KNOWN)
        if meant is not None:
            return name, meant
    return None


RELAXED: Final = frozenset(
    {
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-message-ttl",
        "x-single-active-consumer",
    }
)
"""What is compared when a quorum queue may be declared again as a classic one: what both kinds know."""


def assert_equivalent(
    received: Mapping[str, Any],
    current: Mapping[str, Any],
    kind: QueueType,
    resource: str,
    *,
    relaxed: bool = False,
) -> None:
    """Refuse a redeclaration with other x-arguments than the queue's.

    Only arguments of the existing queue's kind are compared, except for `JMS_PRIORITY`. Integers of different
    widths are equal.

    Raises:
        Inequivalent: with RabbitMQ's text.
    """
    for name, (kinds, _) in KNOWN.items():
        if kind not in kinds or name == JMS_PRIORITY or (relaxed and name not in RELAXED):
            continue
        if name in received and name in current:
            new, old = received[name], current[name]
            if canonical(new) != canonical(old):
                raise inequivalent(
                    name, resource, f"received '{plain_text(new)}' but current is '{plain_text(old)}'"
                )
        elif name in current:
            old = current[name]
            raise inequivalent(
                name,
                resource,
                f"received none but current is the value '{plain_text(old)}' of type '{type_name(old)}'",
            )
        elif name in received:
            new = received[name]
            raise inequivalent(
                name,
                resource,
                f"received the value '{plain_text(new)}' of type '{type_name(new)}' but current is none",
            )


def inequivalent(name: str, resource: str, difference: str) -> Inequivalent:
    """The refusal of a redeclaration that differs in one property or argument."""
    return Inequivalent(resource, f"inequivalent arg '{name}' for {resource}: {difference}")
