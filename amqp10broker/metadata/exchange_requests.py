"""Requests that declare and delete exchanges and bindings, and their plans.

The rules are in `routing.topology.Topology`.
"""

from __future__ import annotations

from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.plan import Plan, Put, binding_key, keys_of
from amqp10broker.routing.exchange import Binding, ExchangeSpec
from amqp10broker.routing.topology import Removal


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """Declare an exchange, or check that the existing one is equivalent. The answer: whether it was
    created.
    """

    vhost: str
    exchange: ExchangeSpec

    def plan(self, catalog: Catalog) -> Plan[bool]:
        planned = catalog.lookup_vhost(self.vhost).topology.plan_exchange(self.exchange)
        if planned is None:
            return Plan(False)
        return Plan(True, [Put(("exchange", self.vhost, planned.name), planned, planned.durable)])


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    """An exchange shall be gone, with its bindings and what auto-deletes itself. The answer: it was there."""

    vhost: str
    name: str
    if_unused: bool = False

    def plan(self, catalog: Catalog) -> Plan[bool]:
        topology = catalog.lookup_vhost(self.vhost).topology
        return _gone(self.vhost, topology.plan_delete_exchange(self.name, if_unused=self.if_unused))


@dataclass(frozen=True, slots=True)
class Bind:
    """A queue or an exchange shall be bound to an exchange. The answer: the binding is new."""

    vhost: str
    binding: Binding

    def plan(self, catalog: Catalog) -> Plan[bool]:
        vhost = catalog.lookup_vhost(self.vhost)
        if not vhost.topology.plan_bind(self.binding):
            return Plan(False)
        return Plan(
            True, [Put(binding_key(self.vhost, self.binding), self.binding, vhost.is_kept(self.binding))]
        )


@dataclass(frozen=True, slots=True)
class Unbind:
    """A binding shall be gone, and what auto-deletes itself thereupon. The answer: it was there."""

    vhost: str
    binding: Binding

    def plan(self, catalog: Catalog) -> Plan[bool]:
        return _gone(self.vhost, catalog.lookup_vhost(self.vhost).topology.plan_unbind(self.binding))


def _gone(vhost: str, removal: Removal | None) -> Plan[bool]:
    return Plan(False) if removal is None else Plan(True, forgets=keys_of(vhost, removal))
