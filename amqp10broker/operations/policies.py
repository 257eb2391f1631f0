"""Operations on policies and operator policies of a virtual host: set, clear, list.

They are for administrators (users with that tag, and the machine's owner at the local socket), and raise
`PermissionDenied` for others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amqp10broker.errors import BadRequest, InvalidArgument, hint
from amqp10broker.metadata.patterns import RE_STEPS_MAX, PatternSearch
from amqp10broker.metadata.policies import Policy, unknown_of
from amqp10broker.metadata.queue import Effective
from amqp10broker.metadata.queue_settings import EXCHANGE, POLICY_KEYS
from amqp10broker.metadata.vhost_requests import ClearPolicy, SetPolicy
from amqp10broker.operations.caller import Caller, ProposedChange


def set_policy(
    caller: Caller, name: str, pattern: str, definition: dict[str, Any], priority: int, apply_to: str
) -> ProposedChange:
    """Add a policy, or replace the one of the same name, with immediate effect.

    Returns:
        ``{"queues": int, "exchanges": int, "ineffective": [settings], "warnings": [sentences]}``: the number
            of objects to which it applies now, its settings without effect on some of them, and settings that
            act otherwise than they read.

    Raises:
        BadRequest: the name is empty.
        InvalidArgument: the pattern, a setting or `apply_to` is not allowed.
    """
    caller.may_administer("set-policy")
    return _set(caller, Policy(_checked(name), pattern, definition, priority, apply_to))


def set_operator_policy(
    caller: Caller, name: str, pattern: str, definition: dict[str, Any], priority: int, apply_to: str
) -> ProposedChange:
    """As `set_policy`, for a policy that limits the settings of policies and arguments."""
    caller.may_administer("set-operator-policy")
    return _set(caller, Policy(_checked(name), pattern, definition, priority, apply_to, operator=True))


def clear_policy(caller: Caller, name: str) -> ProposedChange:
    """Delete a policy with immediate effect. Raises `NotFound`."""
    caller.may_administer("clear-policy")
    return ProposedChange(ClearPolicy(caller.vhost.named(), name))


def clear_operator_policy(caller: Caller, name: str) -> ProposedChange:
    """As `clear_policy`, for an operator policy."""
    caller.may_administer("clear-operator-policy")
    return ProposedChange(ClearPolicy(caller.vhost.named(), name, operator=True))


def list_policies(caller: Caller) -> list[dict[str, Any]]:
    """List all policies of the virtual host by name."""
    caller.may_administer("list-policies")
    return _listed(caller, operator=False)


def list_operator_policies(caller: Caller) -> list[dict[str, Any]]:
    """As `list_policies`, for operator policies."""
    caller.may_administer("list-operator-policies")
    return _listed(caller, operator=True)


def _checked(name: str) -> str:
    if not name:
        raise BadRequest("policy", "the policy has no name: give one")
    return name


def _set(caller: Caller, policy: Policy) -> ProposedChange:
    # A definitions file may contain settings of plugins; here an unknown one is a mistake.
    unknown = unknown_of(policy.definition)
    if unknown:
        raise InvalidArgument(
            f"policy '{policy.name}'",
            f"policy '{policy.name}': '{unknown[0]}' is not recognised as a setting of policies; "
            f"{hint(unknown[0], sorted(POLICY_KEYS))}",
        )
    finding = PatternSearch(policy.pattern, f"policy '{policy.name}'", RE_STEPS_MAX)
    # Every node searches all names at once when the policy takes effect.
    for thing in (*caller.vhost, *caller.vhost.topology):
        finding(thing.name)
    return ProposedChange(SetPolicy(caller.vhost.named(), policy), lambda answer: _effect_of(caller, policy))


def _effect_of(caller: Caller, policy: Policy) -> dict[str, Any]:
    policies = caller.vhost.policies
    bound = list(_bound(caller, policy))
    exchanges = [exchange.name for exchange in caller.vhost.topology if exchange.name]
    return {
        "queues": len(bound),
        # Settings of operator policies have no effect on exchanges.
        "exchanges": 0
        if policy.operator
        else sum(policies.effective(name, EXCHANGE) == policy for name in exchanges),
        "ineffective": sorted(
            {key for each in bound for key in each.ineffective if key in policy.definition}
        ),
        "warnings": [warning for each in bound for warning in each.warnings],
    }


def _bound(caller: Caller, policy: Policy) -> Iterator[Effective]:
    # The effective settings of the queues to which the policy applies.
    for queue in caller.vhost:
        name = queue.effective.operator_policy if policy.operator else queue.effective.policy
        if name == policy.name:
            yield queue.effective


def _listed(caller: Caller, *, operator: bool) -> list[dict[str, Any]]:
    return [
        {
            "vhost": caller.vhost.name,
            "name": policy.name,
            "pattern": policy.pattern,
            "apply_to": policy.apply_to,
            "definition": dict(policy.definition),
            "priority": policy.priority,
        }
        for policy in sorted(caller.vhost.policies, key=lambda each: each.name)
        if policy.operator is operator
    ]
