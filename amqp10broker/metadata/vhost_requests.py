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
from amqp10broker.metadata.plan import Key, Plan, Put, VhostFacts
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import queue_type_of
from amqp10broker.metadata.user_requests import permissions_of


@dataclass(frozen=True, slots=True)
class PutVhost:
    """There shall be this virtual host; what is in it already stays. `new`: there must be none of this name.
    No user has permissions in a new one.
    """

    facts: VhostFacts
    new: bool = False

    def plan(self, catalog: Catalog) -> Plan[None]:
        facts = self.facts
        name = facts.name
        if self.new and name in catalog.vhosts:
            raise PreconditionFailed(f"vhost '{name}'", f"vhost '{name}' exists")
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
    """A value that means nothing to the broker shall be kept. `key`: of its entry: a ``parameter`` of a
    plugin, a ``global_parameter``, or an ``unknown`` part of a definitions file.
    """

    key: Key
    value: Any = field(hash=False)

    def plan(self, catalog: Catalog) -> Plan[None]:
        return Plan(None, [Put(self.key, self.value)])


@dataclass(frozen=True, slots=True)
class ClearParameter:
    """A parameter of a plugin, or a global one, shall be forgotten."""

    key: Key

    def plan(self, catalog: Catalog) -> Plan[None]:
        kind, *places, name = self.key
        if kind == "parameter":
            vhost, component = places
            there = (vhost, component, name) in catalog.parameters
            what, where = f"parameter '{name}' of component '{component}'", f" in vhost '{vhost}'"
        else:
            there = name in catalog.global_parameters
            what, where = f"global parameter '{name}'", ""
        if not there:
            raise NotFound(what, f"there is no {what}{where}")
        return Plan(None, forgets=[self.key])
