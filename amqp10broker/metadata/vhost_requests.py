"""Virtual hosts, their limits and policies, and parameters: requests and their plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from amqp10broker.dataclass import dataclass
from amqp10broker.emulation import MASTER_LOCATOR
from amqp10broker.errors import FeatureDenied, InvalidArgument, NotFound, PreconditionFailed
from amqp10broker.metadata.catalog import Catalog, entries_in
from amqp10broker.metadata.limits import VhostLimits
from amqp10broker.metadata.plan import Plan, Put, VhostFacts
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import queue_type_of
from amqp10broker.metadata.user_requests import permissions_of


@dataclass(frozen=True, slots=True)
class AddVhost:
    """Create a virtual host. No user has permissions in it."""

    facts: VhostFacts

    def plan(self, catalog: Catalog) -> Plan[None]:
        name = self.facts.name
        if name in catalog.vhosts:
            raise PreconditionFailed(f"vhost '{name}'", f"vhost '{name}' exists")
        return PutVhost(self.facts).plan(catalog)


@dataclass(frozen=True, slots=True)
class PutVhost:
    """There shall be this virtual host; what is in it already stays."""

    facts: VhostFacts

    def plan(self, catalog: Catalog) -> Plan[None]:
        facts = self.facts
        name = facts.name
        if not 1 <= len(name.encode(errors="surrogatepass")) <= 255:
            raise InvalidArgument(f"vhost '{name}'", f"vhost name {name[:40]!r} must have 1 to 255 bytes")
        if facts.default_queue_type is not None:
            queue_type_of(facts.default_queue_type, f"vhost '{name}'")
        there = catalog.find_vhost(name)
        if there is not None and there.facts == facts:
            return Plan(None)
        return Plan(None, [Put(("vhost", name), facts)])


@dataclass(frozen=True, slots=True)
class ChangeVhostLimits:
    """Some limits of a virtual host shall be others; what is there already stays. `limits`: by name, as
    `VhostLimits.read` takes them; those that are not named stay.
    """

    vhost: str
    limits: Mapping[str, Any] = field(hash=False)

    def plan(self, catalog: Catalog) -> Plan[VhostLimits]:
        facts = catalog.lookup_vhost(self.vhost).facts
        limits = VhostLimits.read({**facts.limits.as_dict(), **self.limits}, f"vhost '{self.vhost}'")
        return Plan(limits, PutVhost(replace(facts, limits=limits)).plan(catalog).puts)


@dataclass(frozen=True, slots=True)
class DeleteVhost:
    """Delete a virtual host with its content; the answer is the number of deleted queues.

    The caller closes the connections to it.
    """

    name: str

    def plan(self, catalog: Catalog) -> Plan[int]:
        vhost = catalog.lookup_vhost(self.name)
        within = [put.key for put in reversed(entries_in(vhost))]
        parameters = [("parameter", *key) for key in catalog.parameters if key[0] == self.name]
        permissions = permissions_of(catalog.users, vhost=self.name)
        return Plan(vhost.declared, forgets=[*within, *permissions, *parameters, ("vhost", self.name)])


# --- policies -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """There shall be this policy, instead of the one of the same name; it acts at once."""

    vhost: str
    policy: Policy

    def plan(self, catalog: Catalog) -> Plan[None]:
        policy = self.policy
        if "queue-master-locator" in policy.definition and MASTER_LOCATOR in catalog.rules.denied:
            raise FeatureDenied(f"policy '{policy.name}'", MASTER_LOCATOR)
        there = catalog.lookup_vhost(self.vhost).policies.find(policy.name, operator=policy.operator)
        if there == policy:
            return Plan(None)
        kind = "operator_policy" if policy.operator else "policy"
        return Plan(None, [Put((kind, self.vhost, policy.name), policy)])


@dataclass(frozen=True, slots=True)
class ClearPolicy:
    """A policy shall be gone, and what it set counts no more, at once."""

    vhost: str
    name: str
    operator: bool = False

    def plan(self, catalog: Catalog) -> Plan[Policy]:
        policies = catalog.lookup_vhost(self.vhost).policies
        policy = policies.lookup(self.name, operator=self.operator)
        return Plan(
            policy, forgets=[("operator_policy" if self.operator else "policy", self.vhost, self.name)]
        )


# --- what is kept as it is ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetParameter:
    """A runtime parameter of a plugin shall be kept."""

    vhost: str
    component: str
    name: str
    value: Any = field(hash=False)

    def plan(self, catalog: Catalog) -> Plan[None]:
        return Plan(None, [Put(("parameter", self.vhost, self.component, self.name), self.value)])


@dataclass(frozen=True, slots=True)
class ClearParameter:
    """A runtime parameter of a plugin shall be forgotten."""

    vhost: str
    component: str
    name: str

    def plan(self, catalog: Catalog) -> Plan[None]:
        key = self.vhost, self.component, self.name
        if key not in catalog.parameters:
            what = f"parameter '{self.name}' of component '{self.component}'"
            raise NotFound(what, f"there is no {what} in vhost '{self.vhost}'")
        return Plan(None, forgets=[("parameter", *key)])


@dataclass(frozen=True, slots=True)
class SetGlobalParameter:
    """A parameter of the whole broker shall be kept."""

    name: str
    value: Any = field(hash=False)

    def plan(self, catalog: Catalog) -> Plan[None]:
        return Plan(None, [Put(("global_parameter", self.name), self.value)])


@dataclass(frozen=True, slots=True)
class ClearGlobalParameter:
    """A parameter of the whole broker shall be forgotten."""

    name: str

    def plan(self, catalog: Catalog) -> Plan[None]:
        if self.name not in catalog.global_parameters:
            raise NotFound(f"global parameter '{self.name}'", f"there is no global parameter '{self.name}'")
        return Plan(None, forgets=[("global_parameter", self.name)])


@dataclass(frozen=True, slots=True)
class KeepUnknown:
    """Store an unknown part of a definitions file."""

    name: str
    value: Any = field(hash=False)

    def plan(self, catalog: Catalog) -> Plan[None]:
        return Plan(None, [Put(("unknown", self.name), self.value)])
