"""Operations on exchanges: declare, delete, list.

A missing permission raises `PermissionDenied`, a name with a line end `BadRequest`.
"""

from __future__ import annotations

from typing import Any

from amqp10broker.errors import ReservedName
from amqp10broker.metadata.exchange_requests import DeclareExchange, DeleteExchange
from amqp10broker.metadata.queue_settings import EXCHANGE
from amqp10broker.operations.caller import Caller, ProposedChange
from amqp10broker.operations.names import RESERVED_PREFIX, check_name, check_not_default, check_not_reserved
from amqp10broker.routing.exchange import Exchange, ExchangeSpec

ALTERNATE_EXCHANGE = "alternate-exchange"


def declare_exchange(
    caller: Caller,
    name: str,
    type: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: dict[str, Any],
) -> ProposedChange:
    """Declare an exchange, unless it exists with the same properties.

    Raises:
        AccessRefused: it is the default exchange, or the name is reserved.
        InvalidArgument: the type does not exist, or an argument is not valid.
        Inequivalent: it exists with other properties.
    """
    check_not_default(name)
    check_name("exchange", name)
    caller.may_configure("exchange", name)
    if caller.vhost.topology.find_exchange(name) is None:
        check_not_reserved("exchange", name)
        alternate = arguments.get(ALTERNATE_EXCHANGE)
        # An argument of another type is refused with the declaration, which has a better text.
        if isinstance(alternate, str):
            caller.may_read("exchange", name)
            caller.may_write("exchange", alternate)
    exchange = ExchangeSpec(name, type, durable, auto_delete, internal, arguments)
    return ProposedChange(
        DeclareExchange(caller.vhost.named(), exchange), lambda created: {"created": created}
    )


def delete_exchange(caller: Caller, name: str, if_unused: bool = False) -> ProposedChange:
    """Delete an exchange and its bindings; a missing one is not an error. Raises `AccessRefused` if it is the
    default exchange, or one of the broker's own, and `InUse` if it has bindings, and `if_unused` is set.
    """
    check_name("exchange", name)
    check_not_default(name)
    if name.startswith(RESERVED_PREFIX):
        raise ReservedName(
            f"exchange '{name}'",
            f"deletion of system exchange '{name}' in vhost '{caller.vhost.name}' not allowed",
        )
    caller.may_configure("exchange", name)
    return ProposedChange(DeleteExchange(caller.vhost.named(), name, if_unused))


def get_exchange(caller: Caller, name: str) -> dict[str, Any]:
    """Describe an exchange as in `list_exchanges`. Raises `AccessRefused` if it is the default exchange, and
    `NotFound` if it does not exist.
    """
    check_not_default(name)
    caller.may_see("exchange", name)
    return _describe(caller, caller.vhost.topology.lookup_exchange(name))


def list_exchanges(caller: Caller) -> list[dict[str, Any]]:
    """List the exchanges of the virtual host on which the user has any permission, by name."""
    exchanges = sorted(caller.vhost.topology, key=lambda each: each.name)
    return [_describe(caller, exchange) for exchange in exchanges if caller.sees("exchange", exchange.name)]


def _describe(caller: Caller, exchange: Exchange) -> dict[str, Any]:
    policy = caller.vhost.policies.effective(exchange.name, EXCHANGE) if exchange.name else None
    return {
        "name": exchange.name,
        "vhost": caller.vhost.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": dict(exchange.arguments),
        "policy": None if policy is None else policy.name,
        **exchange.counted(),
    }
