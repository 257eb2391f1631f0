"""The settings of a queue: its arguments, its policy and its operator policy merged into `QueueSettings`.

Of the policies that match a queue the one of the highest priority counts, and so does one operator policy.
These two are merged first, then the result with the arguments of the declaration; the row of each setting
in `queue_settings.SETTINGS` states how.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from amqp10broker.metadata.policies import Policies, Policy
from amqp10broker.metadata.queue import NO_POLICY, Effective, QueueType
from amqp10broker.metadata.queue_settings import (
    EXCHANGE,
    JMS_PRIORITY,
    POLICY_KEYS,
    QUEUE_TYPE,
    SETTINGS,
    Setting,
)
from amqp10broker.queues.settings import Overflow, QueueSettings
from amqp10broker.routing.declaration import ALTERNATE_EXCHANGE

JMS_PRIORITY_MAX: Final = 9
JMS_PRIORITY_DEFAULT: Final = 4
"""The priority of a message whose header has none: Qpid JMS leaves the default out."""


def effective(
    policies: Policies,
    name: str,
    kind: str,
    arguments: Mapping[str, Any],
    rules: Mapping[str, Any] = MappingProxyType({}),
) -> Effective:
    """Merge the settings of a queue. `rules`: see `QueueSpec.rules`."""
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
    """The alternate exchange that an exchange gets of its policy; an argument of its own counts before."""
    policy = policies.effective(exchange, EXCHANGE)
    value = None if policy is None else policy.definition.get(ALTERNATE_EXCHANGE)
    return None if value is None else str(value)


def keys_of(kind: str) -> frozenset[str]:
    """Return the settings of policies that a kind of queue, or `EXCHANGE`, has."""
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
        # As RabbitMQ: such a queue has nowhere to reject to, and says so instead of failing.
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
