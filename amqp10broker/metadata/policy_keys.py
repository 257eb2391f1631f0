"""The settings of policies: names, allowed values, and kinds of queue.

Names are those of the queue arguments without ``x-``. An unknown setting has no effect: a definitions file
may hold it (a plugin's) and gets it back, and `set-policy` refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from amqp10broker.errors import hint
from amqp10broker.metadata.queue import QueueType
from amqp10broker.metadata.queue_arguments import EXPIRY_MS_MAX, KNOWN, LEADER_LOCATORS, MAX_AGE

Check = Callable[[Any], str | None]
"""value -> what is wrong with it, None if it is good."""

ALTERNATE_EXCHANGE: Final = "alternate-exchange"
EXCHANGE: Final = "exchange"
"""What policies call the kind of an exchange, beside the kinds of queue."""


# --- checks ---------------------------------------------------------------------------------------


def _string(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be a string"


def _integer(value: Any) -> str | None:
    return None if isinstance(value, int) and not isinstance(value, bool) else "must be an integer"


def _at_least(least: int, most: int | None = None) -> Check:
    def check(value: Any) -> str | None:
        fault = _integer(value)
        if fault is not None:
            return fault
        if value < least:
            return "must not be negative" if least == 0 else f"must be at least {least}"
        return f"must be at most {most}" if most is not None and value > most else None

    return check


def _one_of(*words: Any) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not type(words[0]):
            return _string(value) if isinstance(words[0], str) else _integer(value)
        return None if value in words else f"must be one of {', '.join(map(str, words))}"

    return check


def _max_age(value: Any) -> str | None:
    if not isinstance(value, str):
        return "must be a string"
    good = MAX_AGE.fullmatch(value) is not None
    return None if good else "must be a number above 0 and a unit of Y, M, D, h, m, s: 7D"


CHECKS: Final[Mapping[str, Check]] = {
    ALTERNATE_EXCHANGE: _string,
    "expires": _at_least(1, EXPIRY_MS_MAX),
    "message-ttl": _at_least(0, EXPIRY_MS_MAX),
    "max-length": _at_least(0),
    "max-length-bytes": _at_least(0),
    "max-in-memory-length": _at_least(0),
    "max-in-memory-bytes": _at_least(0),
    "overflow": _one_of("drop-head", "reject-publish", "reject-publish-dlx"),
    "dead-letter-exchange": _string,
    "dead-letter-routing-key": _string,
    "dead-letter-strategy": _one_of("at-most-once", "at-least-once"),
    # A negative limit is none.
    "delivery-limit": _integer,
    "consumer-timeout": _at_least(0),
    "consumer-disconnected-timeout": _at_least(0),
    "delayed-retry-type": _one_of("disabled", "all", "failed", "returned"),
    "delayed-retry-min": _at_least(1),
    "delayed-retry-max": _at_least(1),
    "target-group-size": _at_least(1),
    "max-age": _max_age,
    "stream-max-segment-size-bytes": _at_least(0, 3_000_000_000),
    "stream-filter-size-bytes": _at_least(16, 255),
    "initial-cluster-size": _at_least(1),
    "queue-leader-locator": _one_of(*LEADER_LOCATORS),
    "queue-master-locator": _one_of("min-masters", "client-local", "random"),
    "confirm-when": _one_of("synced", "written"),
    "queue-mode": _one_of("default", "lazy"),
    # Version 1 is in files of older brokers. There is one way to store messages here.
    "queue-version": _one_of(1, 2),
}

OPERATOR_KEYS: Final = frozenset(
    {"expires", "message-ttl", "max-length", "max-length-bytes", "max-in-memory-length"}
    | {"max-in-memory-bytes", "delivery-limit", "overflow", "queue-version", "target-group-size"}
    | {"delayed-retry-type", "delayed-retry-min", "delayed-retry-max"}
)


def fault_of(definition: Mapping[str, Any], *, operator: bool) -> str | None:
    """Return the fault of a definition, for people; None if it is valid."""
    for key, value in definition.items():
        if operator and key not in OPERATOR_KEYS:
            known = hint(key, sorted(OPERATOR_KEYS))
            return f"'{key}' is not recognised as a setting of operator policies; {known}"
        check = CHECKS.get(key)
        wrong = check(value) if check is not None else None
        if wrong is not None:
            return f"'{key}' is {value!r}; {wrong}"
    return _retry_fault(definition)


def _retry_fault(definition: Mapping[str, Any]) -> str | None:
    least, most = definition.get("delayed-retry-min"), definition.get("delayed-retry-max")
    if definition.get("delayed-retry-type", "disabled") != "disabled" and least is None:
        return "'delayed-retry-type' is given without 'delayed-retry-min'; give both"
    if least is not None and most is not None and most < least:
        return f"'delayed-retry-max' is {most}; must be at least 'delayed-retry-min', which is {least}"
    return None


def unknown_of(definition: Iterable[str]) -> list[str]:
    """The names in a definition that are no settings of this broker."""
    return [key for key in definition if key not in CHECKS]


# --- who knows what -------------------------------------------------------------------------------

_ARGUMENT_OF: Final = {"target-group-size": "x-quorum-target-group-size"}


def _settings_of(kind: QueueType) -> frozenset[str]:
    def acts(key: str) -> bool:
        kinds, _ = KNOWN.get(_ARGUMENT_OF.get(key, f"x-{key}"), (frozenset[QueueType](), None))
        return kind in kinds

    return frozenset(key for key in CHECKS if acts(key))


SETTINGS: Final[Mapping[str, frozenset[str]]] = {
    EXCHANGE: frozenset({ALTERNATE_EXCHANGE}),
    **{kind.value: _settings_of(kind) for kind in QueueType},
}
"""Kind of queue, or `EXCHANGE` -> the settings that mean something to it."""
