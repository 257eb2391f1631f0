"""Policies: settings of all queues or exchanges with a name that matches a pattern.

One policy and one operator policy apply to a queue. They are merged, then the result with the arguments of
the declaration, as the row of each setting in `queue_arguments.SETTINGS` states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import InvalidArgument, NotFound, hint
from amqp10broker.metadata import patterns
from amqp10broker.metadata.queue_arguments import (
    EXCHANGE,
    JMS_PRIORITY,
    POLICY_KEYS,
    QUEUE_TYPE,
    SETTINGS,
    QueueType,
    Setting,
)
from amqp10broker.queues.settings import DEFAULTS, Overflow, QueueSettings
from amqp10broker.routing.exchange import ALTERNATE_EXCHANGE

_KINDS: Final = {
    "all": ("classic", "quorum", "stream", "exchange"),
    "queues": ("classic", "quorum", "stream"),
    "classic_queues": ("classic",),
    "quorum_queues": ("quorum",),
    "streams": ("stream",),
    "exchanges": ("exchange",),
}
APPLY_TO: Final = tuple(_KINDS)

Changed = Callable[[str, str], bool]
"""(name, kind) -> whether a change of policies may concern this queue or exchange."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy. Raises `InvalidArgument` if the pattern, a setting or `apply_to` is not allowed."""

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
        fault = _fault_of(self.definition, operator=self.operator)
        if fault is not None:
            raise InvalidArgument(what, f"{what}: {fault}")

    def matches(self, name: str, kind: str) -> bool:
        return kind in _KINDS[self.apply_to] and patterns.matches(self.pattern, name)


def unknown_of(definition: Iterable[str]) -> list[str]:
    """Return the names in a definition that are not settings of this broker."""
    return [key for key in definition if key not in POLICY_KEYS]


def _fault_of(definition: Mapping[str, Any], *, operator: bool) -> str | None:
    for key, value in definition.items():
        setting = POLICY_KEYS.get(key)
        if operator and (setting is None or not setting.operator):
            known = hint(key, sorted(each for each, setting in POLICY_KEYS.items() if setting.operator))
            return f"'{key}' is not recognised as a setting of operator policies; {known}"
        check = None if setting is None else setting.value.policy_fault
        wrong = None if check is None else check(value)
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


class Policies:
    def __init__(self, on_change: Callable[[Changed], None] = lambda changed: None) -> None:
        self._policies: dict[tuple[bool, str], Policy] = {}
        self._on_change = on_change

    def __iter__(self) -> Iterator[Policy]:
        return iter(list(self._policies.values()))

    def __len__(self) -> int:
        return len(self._policies)

    def put_policy(self, policy: Policy) -> None:
        key = (policy.operator, policy.name)
        before = self._policies.get(key)
        self._policies[key] = policy
        self._on_change(
            lambda name, kind: (
                policy.matches(name, kind) or (before is not None and before.matches(name, kind))
            )
        )

    def drop_policy(self, name: str, *, operator: bool = False) -> None:
        self._on_change(self._policies.pop((operator, name)).matches)

    def lookup(self, name: str, *, operator: bool = False) -> Policy:
        policy = self.find(name, operator=operator)
        if policy is None:
            raise NotFound(f"policy '{name}'", f"no {'operator ' if operator else ''}policy '{name}'")
        return policy

    def find(self, name: str, *, operator: bool = False) -> Policy | None:
        return self._policies.get((operator, name))

    def effective(self, name: str, kind: str, *, operator: bool = False) -> Policy | None:
        """Return the policy of the highest priority that matches; of several, the first by name, so that a
        restart changes nothing.
        """
        candidates = (each for each in self if each.operator is operator and each.matches(name, kind))
        return min(candidates, key=lambda each: (-each.priority, each.name), default=None)


@dataclass(frozen=True, slots=True)
class Effective:
    """The merged policies of a queue.

    Attributes:
        definition: the two merged, without arguments and without settings that the kind of queue does not
            have.
        ineffective: the names of those settings.
        warnings: for the log, on settings with another effect than their name suggests.
    """

    policy: str | None = None
    operator_policy: str | None = None
    definition: Mapping[str, Any] = field(default_factory=dict, hash=False)
    ineffective: tuple[str, ...] = ()
    settings: QueueSettings = DEFAULTS
    warnings: tuple[str, ...] = ()


NO_POLICY: Final = Effective()


JMS_PRIORITY_MAX: Final = 9
JMS_PRIORITY_DEFAULT: Final = 4
"""The priority of a message without one in its header: Qpid JMS omits the default."""


def effective(
    policies: Policies,
    name: str,
    kind: str,
    arguments: Mapping[str, Any],
    rules: Mapping[str, Any] = MappingProxyType({}),
) -> Effective:
    policy = policies.effective(name, kind)
    operator = policies.effective(name, kind, operator=True)
    if policy is None and operator is None and arguments.keys() <= {QUEUE_TYPE} and not rules:
        return NO_POLICY
    given = _both(policy, operator)
    known = keys_of(kind)
    acting = {key: value for key, value in given.items() if key in known}
    ineffective = tuple(sorted(key for key in given if key not in known))
    settings, warnings = _settings(name, kind, acting, arguments, rules)
    return Effective(
        policy=None if policy is None else policy.name,
        operator_policy=None if operator is None else operator.name,
        definition=acting,
        ineffective=ineffective,
        settings=settings,
        warnings=warnings,
    )


def alternate_exchange(policies: Policies, exchange: str) -> str | None:
    """Return the alternate exchange of an exchange's policy; its own argument takes precedence."""
    policy = policies.effective(exchange, EXCHANGE)
    value = None if policy is None else policy.definition.get(ALTERNATE_EXCHANGE)
    return None if value is None else str(value)


def keys_of(kind: str) -> frozenset[str]:
    return frozenset(key for key, setting in POLICY_KEYS.items() if kind in setting.kinds)


def _both(policy: Policy | None, operator: Policy | None) -> dict[str, Any]:
    merged = dict(policy.definition) if policy is not None else {}
    for key, value in (operator.definition if operator is not None else {}).items():
        merged[key] = POLICY_KEYS[key].merge(merged[key], value) if key in merged else value
    return merged


def _value(setting: Setting, kind: str, acting: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    argument = None if setting.argument is None else arguments.get(setting.argument)
    by_policy = None if setting.key is None else acting.get(setting.key)
    if by_policy is None or argument is None:
        return argument if by_policy is None else by_policy
    return by_policy if kind in setting.policy_wins else setting.merge(by_policy, argument)


def _settings(
    name: str, kind: str, acting: Mapping[str, Any], arguments: Mapping[str, Any], rules: Mapping[str, Any]
) -> tuple[QueueSettings, tuple[str, ...]]:
    found = dict(rules)
    for setting in SETTINGS:
        if setting.attribute is not None and kind in setting.kinds:
            value = _value(setting, kind, acting, arguments)
            if value is not None:
                found[setting.attribute] = setting.read(value)
    warnings: tuple[str, ...] = ()
    if kind == QueueType.QUORUM and found.get("overflow") is Overflow.REJECT_PUBLISH_DLX:
        # As in RabbitMQ, it is not refused: a quorum queue drops from the head, with a warning.
        found["overflow"] = Overflow.DROP_HEAD
        text = (
            f"queue '{name}': quorum queues have no overflow reject-publish-dlx and drop from the head "
            "instead; set overflow to drop-head or reject-publish"
        )
        warnings = (text,)
    if kind == QueueType.CLASSIC and arguments.get(JMS_PRIORITY) is True:
        levels = found.setdefault("max_priority", JMS_PRIORITY_MAX)
        found["default_priority"] = min(JMS_PRIORITY_DEFAULT, levels)
    return QueueSettings(**found), warnings
