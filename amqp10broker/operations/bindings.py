"""Operations on bindings, and the path segment that identifies a binding.

The segment is ``src=<exchange>;dstq=<queue>;key=<key>;args=<hash>``, or ``dste=<exchange>``. Values are
percent-encoded; the hash stands for the arguments and is empty without any. A missing permission raises
`PermissionDenied`, a name with a line end `BadRequest`, a queue of another connection `ResourceLocked`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest
from amqp10broker.metadata.exchange_requests import Bind, Unbind
from amqp10broker.operations.caller import Caller, Steps
from amqp10broker.operations.operation import (
    EMPTY,
    Command,
    XArguments,
    check_name,
    check_not_default,
    operation,
)
from amqp10broker.operations.uri import UriError, percent_decoded
from amqp10broker.routing.declaration import check_not_direct_reply_to
from amqp10broker.routing.exchange import Binding, Destination
from amqp10broker.routing.topology import DEFAULT_EXCHANGE

PATH: Final = "/bindings/"
Source = Annotated[str, "the exchange where messages come from"]
BoundQueue = Annotated[str | None, "name of the bound queue"]
BoundExchange = Annotated[str | None, "name of the bound exchange, instead of a queue"]
BindingKey = Annotated[str, "routing key or pattern"]
_MAY_BIND: Final = "write on the destination, read on the source, and its topic permission"
_SEGMENT: Final = re.compile(r"src=([^;]*);dst([qe])=([^;]*);key=([^;]*);args=([^;]*)")


@operation(
    "bind", "binding", permission=_MAY_BIND, command=Command("binding add", "shop orders --key 'order.*.new'")
)
def bind(
    caller: Caller,
    source: Source,
    destination_queue: BoundQueue = None,
    destination_exchange: BoundExchange = None,
    binding_key: BindingKey = "",
    arguments: XArguments = EMPTY,
) -> Steps[dict[str, Any]]:
    """Bind a queue or an exchange to an exchange.

    Raises:
        AccessRefused: source or destination is the default exchange, or a queue of direct replies.
        BadRequest: a name contains a line end, or there is not exactly one destination.
        NotFound: source or destination does not exist.
        InvalidArgument: the exchange cannot use this key or these arguments.
    """
    destination = _one_destination(destination_queue, destination_exchange)
    binding = Binding(source, destination, binding_key, arguments)
    _check_change(caller, source, destination, binding_key)
    yield from caller.change(Bind(caller.vhost.named(), binding))
    return describe(binding)


@operation(
    "unbind",
    "binding",
    permission=_MAY_BIND,
    command=Command("binding delete", "shop orders --key 'order.*.new'"),
)
def unbind(
    caller: Caller,
    source: Source,
    destination_queue: BoundQueue = None,
    destination_exchange: BoundExchange = None,
    binding_key: BindingKey = "",
    arguments: XArguments = EMPTY,
) -> Steps[None]:
    """Undo a bind.

    Raises:
        AccessRefused, BadRequest, ResourceLocked, PermissionDenied: as `bind`.
    """
    destination = _one_destination(destination_queue, destination_exchange)
    _check_change(caller, source, destination, binding_key)
    binding = Binding(source, destination, binding_key, arguments)
    yield from caller.change(Unbind(caller.vhost.named(), binding))


@operation("unbind-by-segment", "binding", permission=_MAY_BIND)
def unbind_by_segment(
    caller: Caller, segment: Annotated[str, "the last part of its location"]
) -> Steps[None]:
    """Remove the binding of a path segment; a missing one is not an error.

    Raises `BadRequest` if the segment is not valid, and `AccessRefused` if source or destination is the
    default exchange, or a queue of direct replies.
    """
    named = parse_segment(segment)
    _check_change(caller, named.source, named.destination, named.binding_key)
    topology = caller.vhost.topology
    binding = topology.find_binding(named.source, named.destination, named.binding_key, named.arguments_hash)
    if binding is not None:
        yield from caller.change(Unbind(caller.vhost.named(), binding))


@operation(
    "get-bindings", "binding", permission="write on the destination, read on the source", changes=False
)
def get_bindings(
    caller: Caller,
    source: Source,
    destination_queue: BoundQueue = None,
    destination_exchange: BoundExchange = None,
    binding_key: BindingKey = "",
) -> list[dict[str, Any]]:
    """List bindings between an exchange and a queue or exchange with one key; they differ in arguments.

    Raises `BadRequest` if there is not exactly one destination.
    """
    destination = _one_destination(destination_queue, destination_exchange)
    caller.may("write", destination.kind, destination.name)
    caller.may("read", "exchange", source)
    found = caller.vhost.topology.bindings(source=source, destination=destination)
    return [describe(binding) for binding in found if binding.routing_key == binding_key]


@operation(
    "list-bindings",
    "binding",
    permission="any permission on the source or the destination of each",
    changes=False,
    command=Command("binding list", ""),
)
def list_bindings(caller: Caller) -> list[dict[str, Any]]:
    """List bindings of a virtual host.

    Those of the default exchange, of which every queue has one, come first.
    """
    names = sorted(queue.name for queue in caller.vhost)
    defaults = [Binding(DEFAULT_EXCHANGE, Destination("queue", name), name) for name in names]
    return [
        describe(binding)
        for binding in (*defaults, *caller.vhost.topology.bindings())
        if caller.sees("exchange", binding.source)
        or caller.sees(binding.destination.kind, binding.destination.name)
    ]


def describe(binding: Binding) -> dict[str, Any]:
    """Describe a binding for all front ends."""
    return {
        "source": binding.source,
        f"destination_{binding.destination.kind}": binding.destination.name,
        "binding_key": binding.routing_key,
        "arguments": dict(binding.arguments),
        "location": location(binding),
    }


def location(binding: Binding) -> str:
    """Return the path under which a binding is deleted."""
    destination = binding.destination
    return (
        f"{PATH}src={quote(binding.source, safe='')};"
        f"dst{'q' if destination.kind == 'queue' else 'e'}={quote(destination.name, safe='')};"
        f"key={quote(binding.routing_key, safe='')};args={binding.arguments_hash}"
    )


@dataclass(frozen=True, slots=True)
class NamedBinding:
    """The content of a binding's path segment."""

    source: str
    destination: Destination
    binding_key: str
    arguments_hash: str


def parse_segment(segment: str) -> NamedBinding:
    """Decode a binding's path segment, still percent-encoded. Raises `BadRequest` if it is not valid."""
    found = _SEGMENT.fullmatch(segment)
    try:
        if found is None:
            raise UriError("it is not src=...;dstq=...;key=...;args=... (dste for an exchange)")
        kind: Literal["queue", "exchange"] = "queue" if found[2] == "q" else "exchange"
        return NamedBinding(
            percent_decoded(found[1]),
            Destination(kind, percent_decoded(found[3])),
            percent_decoded(found[4]),
            found[5],
        )
    except UriError as error:
        raise BadRequest("binding", f"bad binding path segment '{segment}': {error}") from error


def _one_destination(queue: str | None, exchange: str | None) -> Destination:
    if (queue is None) == (exchange is None):
        raise BadRequest(
            "binding",
            "binding properties 'destination_queue' and 'destination_exchange': give one of them, not "
            + ("both" if queue is not None else "none"),
        )
    return Destination("queue", queue) if queue is not None else Destination("exchange", str(exchange))


def _check_change(caller: Caller, source: str, destination: Destination, binding_key: str) -> None:
    for kind, name in (("exchange", source), (destination.kind, destination.name)):
        if kind == "exchange":
            check_not_default(name)
        else:
            check_not_direct_reply_to(name)
        check_name(kind, name)
    caller.may("write", destination.kind, destination.name)
    caller.may("read", "exchange", source)
    exchange = caller.vhost.topology.find_exchange(source)
    if exchange is not None and exchange.type == "topic":
        caller.may_read_topic(source, binding_key)
    if destination.kind == "queue":
        queue = caller.vhost.find(destination.name)
        if queue is not None:
            caller.for_use(queue)
