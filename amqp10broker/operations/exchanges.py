"""Operations on exchanges: declare, delete, list.

A missing permission raises `PermissionDenied`, a name with a line end `BadRequest`.
"""

from __future__ import annotations

from typing import Annotated, Any

from amqp10broker.errors import ReservedName
from amqp10broker.metadata.exchange_requests import DeclareExchange, DeleteExchange
from amqp10broker.metadata.queue_settings import EXCHANGE
from amqp10broker.operations.caller import Caller, Steps
from amqp10broker.operations.operation import (
    EMPTY,
    RESERVED_PREFIX,
    Check,
    Command,
    Durable,
    IfUnused,
    Name,
    XArguments,
    check_name,
    check_not_default,
    check_not_reserved,
    operation,
)
from amqp10broker.routing.exchange import Exchange, ExchangeSpec
from amqp10broker.routing.registry import EXCHANGE_TYPES

ALTERNATE_EXCHANGE = "alternate-exchange"


@operation(
    "declare-exchange",
    "exchange",
    permission="configure on the exchange; with an alternate exchange also read on it and write on that one",
    command=Command("exchange declare", "shop --type topic"),
)
def declare_exchange(
    caller: Caller,
    name: Name,
    type: Annotated[str, "an installed one", Check(known=EXCHANGE_TYPES)] = "direct",
    durable: Durable = True,
    auto_delete: Annotated[bool, "it goes with its last binding"] = False,
    internal: Annotated[bool, "clients cannot publish to it"] = False,
    arguments: XArguments = EMPTY,
) -> Steps[dict[str, Any]]:
    """Make an exchange, unless it is there and as asked for.

    Raises:
        AccessRefused: it is the default exchange, or the name is reserved.
        InvalidArgument: the type does not exist, or an argument is not valid.
        Inequivalent: it exists with other properties.
    """
    check_not_default(name)
    check_name("exchange", name)
    caller.may("configure", "exchange", name)
    if caller.vhost.topology.find_exchange(name) is None:
        check_not_reserved("exchange", name)
        alternate = arguments.get(ALTERNATE_EXCHANGE)
        # An argument of another type is refused with the declaration, which has a better text.
        if isinstance(alternate, str):
            caller.may("read", "exchange", name)
            caller.may("write", "exchange", alternate)
    exchange = ExchangeSpec(name, type, durable, auto_delete, internal, arguments)
    created = yield from caller.change(DeclareExchange(caller.vhost.named(), exchange))
    return {"created": created}


@operation(
    "delete-exchange",
    "exchange",
    permission="configure on the exchange",
    command=Command("exchange delete", "shop --if-unused"),
)
def delete_exchange(caller: Caller, name: Name, if_unused: IfUnused = False) -> Steps[None]:
    """Delete an exchange with its bindings.

    Raises `AccessRefused` if it is the default exchange, or one of the broker's own, and `InUse` if it has
    bindings, and `if_unused` is set.
    """
    check_name("exchange", name)
    check_not_default(name)
    if name.startswith(RESERVED_PREFIX):
        raise ReservedName(
            f"exchange '{name}'",
            f"deletion of system exchange '{name}' in vhost '{caller.vhost.name}' not allowed",
        )
    caller.may("configure", "exchange", name)
    yield from caller.change(DeleteExchange(caller.vhost.named(), name, if_unused))


@operation("get-exchange", "exchange", permission="any permission on the exchange", changes=False)
def get_exchange(caller: Caller, name: Name) -> dict[str, Any]:
    """Describe an exchange as in `list_exchanges`.

    Raises `AccessRefused` if it is the default exchange, and `NotFound` if it does not exist.
    """
    check_not_default(name)
    caller.may("any", "exchange", name)
    return _describe(caller, caller.vhost.topology.lookup_exchange(name))


@operation(
    "list-exchanges",
    "exchange",
    permission="any permission on each",
    changes=False,
    command=Command("exchange list", "name type --format csv"),
)
def list_exchanges(caller: Caller) -> list[dict[str, Any]]:
    """List exchanges of a virtual host."""
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
