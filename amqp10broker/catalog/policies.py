"""Policies: settings for all queues or exchanges whose name matches a pattern.

They are checked and kept, so that nothing is lost between an import and an export; no queue acts on
them yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from amqp10broker.catalog import patterns
from amqp10broker.errors import InvalidArgument, NotFound

APPLY_TO: Final = ("all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges")

_STRINGS: Final = frozenset(
    {"alternate-exchange", "overflow", "dead-letter-exchange", "dead-letter-routing-key"}
    | {"dead-letter-strategy", "max-age", "queue-leader-locator", "queue-master-locator", "queue-mode"}
    | {"delayed-retry-type"}
)
_INTEGERS: Final = frozenset(
    {"expires", "message-ttl", "max-length", "max-length-bytes", "max-in-memory-length", "delivery-limit"}
    | {"max-in-memory-bytes", "stream-max-segment-size-bytes", "stream-filter-size-bytes"}
    | {"initial-cluster-size", "target-group-size", "consumer-timeout", "consumer-disconnected-timeout"}
    | {"delayed-retry-min", "delayed-retry-max", "queue-version"}
)
_MAY_BE_NEGATIVE: Final = frozenset({"delivery-limit"})
OPERATOR_KEYS: Final = frozenset(
    {"expires", "message-ttl", "max-length", "max-length-bytes", "max-in-memory-length"}
    | {"max-in-memory-bytes", "delivery-limit", "overflow", "queue-version", "target-group-size"}
    | {"delayed-retry-type", "delayed-retry-min", "delayed-retry-max"}
)


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy.

    Attributes:
        name: unique in the virtual host.
        pattern: regular expression on names.
        definition: settings by their names without ``x-``. Not to be changed.
        priority: of several that match, the highest one counts.
        apply_to: one of `APPLY_TO`.
        operator: it bounds what users set, and knows fewer settings.

    Raises:
        InvalidArgument: the pattern, a setting or `apply_to` is not allowed.
    """

    name: str
    pattern: str
    definition: Mapping[str, Any] = field(hash=False)
    priority: int = 0
    apply_to: str = "all"
    operator: bool = False

    def __post_init__(self) -> None:
        what = f"{'operator policy' if self.operator else 'policy'} '{self.name}'"
        patterns.check_pattern(self.pattern, what)
        if self.apply_to not in APPLY_TO:
            raise InvalidArgument(
                what, f"{what}: apply-to is '{self.apply_to}'; must be one of {', '.join(APPLY_TO)}"
            )
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise InvalidArgument(what, f"{what}: priority is {self.priority!r}; must be an integer")
        if not self.definition:
            raise InvalidArgument(what, f"{what}: the definition is empty; give at least one setting")
        for key, value in self.definition.items():
            fault = _fault(key, value, operator=self.operator)
            if fault is not None:
                raise InvalidArgument(what, f"{what}: {fault}")

    def matches(self, name: str, kind: str) -> bool:
        """Whether it is for this queue or exchange.

        Args:
            name: of the queue or exchange.
            kind: ``classic``, ``quorum``, ``stream`` or ``exchange``.
        """
        kinds = {
            "all": ("classic", "quorum", "stream", "exchange"),
            "queues": ("classic", "quorum", "stream"),
            "classic_queues": ("classic",),
            "quorum_queues": ("quorum",),
            "streams": ("stream",),
            "exchanges": ("exchange",),
        }
        return kind in kinds[self.apply_to] and patterns.matches(self.pattern, name)


def _fault(key: str, value: Any, *, operator: bool) -> str | None:
    if operator and key not in OPERATOR_KEYS:
        return f"'{key}' is no setting of operator policies; known are {', '.join(sorted(OPERATOR_KEYS))}"
    if key in _STRINGS:
        return None if isinstance(value, str) else f"'{key}' is {value!r}; must be a string"
    if key in _INTEGERS:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"'{key}' is {value!r}; must be an integer"
        return f"'{key}' is {value}; must not be negative" if _negative(key, value) else None
    # Settings of plugins (federation-upstream-set...) mean nothing here and are kept.
    return None


def _negative(key: str, value: int) -> bool:
    return value < 0 and key not in _MAY_BE_NEGATIVE


class Policies:
    """The policies and operator policies of one virtual host."""

    def __init__(self) -> None:
        self._policies: dict[tuple[bool, str], Policy] = {}

    def __iter__(self) -> Iterator[Policy]:
        return iter(list(self._policies.values()))

    def __len__(self) -> int:
        return len(self._policies)

    def put(self, policy: Policy) -> None:
        """Add a policy, or replace the one of the same name."""
        self._policies[policy.operator, policy.name] = policy

    def delete(self, name: str, *, operator: bool = False) -> Policy:
        """Forget a policy.

        Raises:
            NotFound: there is none of this name.
        """
        policy = self._policies.pop((operator, name), None)
        if policy is None:
            raise NotFound(f"policy '{name}'", f"no {'operator ' if operator else ''}policy '{name}'")
        return policy

    def find(self, name: str, *, operator: bool = False) -> Policy | None:
        """The policy of this name, or None."""
        return self._policies.get((operator, name))

    def effective(self, name: str, kind: str, *, operator: bool = False) -> Policy | None:
        """The one policy that counts for a queue or exchange: of those that match, the highest."""
        candidates = (each for each in self if each.operator is operator and each.matches(name, kind))
        return max(candidates, key=lambda each: each.priority, default=None)
