"""Operations on policies, on parameters of plugins, which are stored without effect, and on all definitions
at once, as RabbitMQ's JSON document.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest, ConfigError, InvalidArgument, hint
from amqp10broker.metadata import definitions
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.definitions import ImportDefinitions, ImportReport
from amqp10broker.metadata.patterns import RE_STEPS_MAX, PatternSearch
from amqp10broker.metadata.plan import Plan
from amqp10broker.metadata.policies import APPLY_TO, Policy, unknown_of
from amqp10broker.metadata.queue_arguments import EXCHANGE, POLICY_KEYS
from amqp10broker.metadata.vhost_requests import ClearParameter, ClearPolicy, SetParameter, SetPolicy
from amqp10broker.operations.node import Caller, Steps
from amqp10broker.operations.operation import Check, Command, Found, Name, operation

Contents = Annotated[dict[str, Any], 'settings as JSON: {"max-length": 1000}']
Priority = Annotated[int, "of several that match, the highest counts"]
ApplyTo = Annotated[str, "which of those whose name matches", Check(choices=APPLY_TO)]


@operation(
    "set-policy",
    "policy",
    command=Command(
        "policy set",
        "short '^orders' '{\"max-length\": 100000}' --apply-to queues",
        description="Set a policy: settings for all queues or exchanges whose name matches a pattern, at "
        "once. Settings are queue arguments without x-, and alternate-exchange.",
    ),
)
def set_policy(
    caller: Caller,
    name: Name,
    pattern: Found,
    definition: Contents,
    priority: Priority = 0,
    apply_to: ApplyTo = "all",
) -> Steps[dict[str, Any]]:
    """Set a policy: settings for all queues or exchanges whose name matches.

    Returns ``{"queues": int, "exchanges": int, "ineffective": [settings], "warnings": [sentences]}``: to how
    many it applies now, its settings without effect on some of them, and those that act otherwise than they
    read. Raises `BadRequest` if the name is empty, and `InvalidArgument` if the pattern, a setting or
    `apply_to` is not allowed.
    """
    return _set(caller, Policy(_checked(name), pattern, definition, priority, apply_to))


@operation("clear-policy", "policy", command=Command("policy clear", "short", "policy '{name}' cleared"))
def clear_policy(caller: Caller, name: Name) -> Steps[None]:
    """Forget a policy.

    Raises `NotFound`.
    """
    yield from caller.change(ClearPolicy(caller.vhost.named(), name))


@operation(
    "set-operator-policy",
    "policy",
    command=Command(
        "policy set-operator",
        "bound '.*' '{\"max-length\": 1000000}'",
        description="Set an operator policy: bounds of what policies and queue arguments set, at once.",
    ),
)
def set_operator_policy(
    caller: Caller,
    name: Name,
    pattern: Found,
    definition: Contents,
    priority: Priority = 0,
    apply_to: ApplyTo = "all",
) -> Steps[dict[str, Any]]:
    """Set an operator policy: bounds of what policies and arguments set."""
    return _set(caller, Policy(_checked(name), pattern, definition, priority, apply_to, operator=True))


@operation(
    "clear-operator-policy",
    "policy",
    command=Command("policy clear-operator", "bound", "operator policy '{name}' cleared"),
)
def clear_operator_policy(caller: Caller, name: Name) -> Steps[None]:
    """Forget an operator policy."""
    yield from caller.change(ClearPolicy(caller.vhost.named(), name, operator=True))


@operation("list-policies", "policy", changes=False, command=Command("policy list", ""))
def list_policies(caller: Caller) -> list[dict[str, Any]]:
    """List policies of a virtual host."""
    return _listed(caller, operator=False)


@operation("list-operator-policies", "policy", changes=False, command=Command("policy list-operator", ""))
def list_operator_policies(caller: Caller) -> list[dict[str, Any]]:
    """List operator policies of a virtual host."""
    return _listed(caller, operator=True)


def _checked(name: str) -> str:
    if not name:
        raise BadRequest("policy", "the policy has no name: give one")
    return name


def _set(caller: Caller, policy: Policy) -> Steps[dict[str, Any]]:
    # A definitions file may contain settings of plugins; here an unknown setting is a mistake.
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
    yield from caller.change(SetPolicy(caller.vhost.named(), policy))
    return _effect_of(caller, policy)


def _effect_of(caller: Caller, policy: Policy) -> dict[str, Any]:
    policies = caller.vhost.policies
    # Return the effective settings of the queues to which the policy applies.
    which = "operator_policy" if policy.operator else "policy"
    bound = [each.effective for each in caller.vhost if getattr(each.effective, which) == policy.name]
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


@operation("clear-parameter", "parameter")
def clear_parameter(
    caller: Caller, component: Annotated[str, "the plugin's name of its kind"], name: Name
) -> Steps[None]:
    """Delete a parameter of a RabbitMQ plugin that came with definitions.

    Raises `NotFound`.
    """
    yield from caller.change(ClearParameter(("parameter", caller.vhost.name, component, name)))


@operation("set-global-parameter", "parameter")
def set_global_parameter(caller: Caller, name: Name, value: Annotated[Any, "any JSON value"]) -> Steps[None]:
    """Store any value under a name.

    Raises `BadRequest` if the name is empty.
    """
    if not name:
        raise BadRequest("global parameter", "the parameter has no name: give one")
    yield from caller.change(SetParameter(("global_parameter", name), value))


@operation("clear-global-parameter", "parameter")
def clear_global_parameter(caller: Caller, name: Name) -> Steps[None]:
    """Delete the value under a name.

    Raises `NotFound`.
    """
    yield from caller.change(ClearParameter(("global_parameter", name)))


ENTRIES_AT_ONCE: Final = 200
"""The entries of one step, which takes a millisecond or two."""


@operation(
    "export-definitions", "definitions", changes=False, command=Command("definitions export", "broker.json")
)
async def export_definitions(caller: Caller) -> dict[str, Any]:
    """Export all definitions as one document for `import_definitions`.

    It is consistent, although it is made in steps. Passwords are exported as hashes, or left out where no
    hashes can be made.
    """
    passwords = caller.passwords
    conceal = passwords.exportable if passwords is not None else lambda record: None
    document: dict[str, Any] = {}
    for name, section in definitions.sections(caller.catalog, conceal).items():
        if not isinstance(section, definitions.ExportSection):
            document[name] = section
            continue
        made = document[name] = []
        for begin in range(0, len(section.things), ENTRIES_AT_ONCE):
            made += section.made(begin, begin + ENTRIES_AT_ONCE)
            await caller.node.cluster.pause(0)
    return document


@operation("import-definitions", "definitions", command=Command("definitions import", "broker.json"))
def import_definitions(
    caller: Caller, document: Annotated[Any, "as exported, parsed"]
) -> Steps[dict[str, Any]]:
    """Import a document, except for those exchanges, queues, bindings and policies that are refused.

    Returns ``{"loaded": {section: entries}, "skipped": [reasons], "unknown": [names]}``. Raises `BadRequest`
    if the document is refused; the text contains the place.
    """
    passwords = caller.passwords
    try:
        request = definitions.importing(
            document,
            make_password=passwords.make if passwords is not None else None,
            vhost=caller.vhost.name,
            user=caller.access.user if caller.access is not None else None,
        )
    except ConfigError as error:
        raise BadRequest("definitions", str(error)) from error
    report = yield from caller.change(_Refusable(request))
    caller.node.definitions_imported(report.skipped)
    return {"loaded": report.loaded, "skipped": report.skipped, "unknown": report.unknown}


@dataclass(frozen=True, slots=True)
class _Refusable:
    """A document with errors that are those of the request."""

    document: ImportDefinitions

    def plan(self, catalog: Catalog) -> Plan[ImportReport]:
        try:
            return self.document.plan(catalog)
        except ConfigError as error:
            raise BadRequest("definitions", str(error)) from error
