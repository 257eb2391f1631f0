"""Operations on exchanges and bindings, and the URI and the segment of a binding in a management request.

The segment is ``src=<exchange>;dstq=<queue>;key=<key>;args=<hash>``, or ``dste=<exchange>``. Values are
percent-encoded; the hash stands for the arguments and is empty without any. A missing permission raises
`PermissionDenied`, a name with a line end `BadRequest`, a queue of another connection `ResourceLocked`, a
change of the default exchange or of a queue of direct replies `AccessRefused`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, unquote_to_bytes

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest, ReservedName
from amqp10broker.metadata.queue_arguments import EXCHANGE
from amqp10broker.metadata.queue_requests import Bind, DeclareExchange, DeleteExchange, Unbind
from amqp10broker.operations.node import Caller, Steps
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
from amqp10broker.routing.exchange import (
    Binding,
    Destination,
    Exchange,
    ExchangeSpec,
    check_not_direct_reply_to,
)
from amqp10broker.routing.exchange_types import EXCHANGE_TYPES
from amqp10broker.routing.topology import DEFAULT_EXCHANGE

_ALLOWED: Final = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*")


class UriError(ValueError):
    """Not a valid URI of a management request; the message contains the place."""


@dataclass(frozen=True, slots=True)
class Uri:
    """The URI of a request. `segments`: of the path, percent-encoded, because they may have a structure."""

    segments: tuple[str, ...]
    query: Mapping[str, str]


def parse_uri(text: str) -> Uri:
    """Parse path and query of a URI. Raises `UriError`."""
    end = _ALLOWED.match(text)
    assert end is not None  # it matches the empty text, too
    if end.end() != len(text):
        raise UriError(f"{text[end.end()]!r} at character {end.end()} must be percent-encoded")
    path, question_mark, query = text.partition("?")
    if not path.startswith("/"):
        raise UriError("it does not begin with '/'")
    values: dict[str, str] = {}
    for pair in query.split("&") if question_mark else ():
        # RabbitMQ reads queries as forms, and clients write a space as a plus sign.
        name, equals, value = pair.replace("+", "%20").partition("=")
        if not equals or not name:
            raise UriError(f"'{pair}' in the query is not name=value")
        if percent_decoded(name) in values:
            raise UriError(f"'{percent_decoded(name)}' stands in the query twice")
        values[percent_decoded(name)] = percent_decoded(value)
    return Uri(tuple(path[1:].split("/")), values)


def percent_decoded(segment: str) -> str:
    """Reverse percent-encoding; in a path, ``+`` is a plus sign. Raises `UriError`."""
    if re.search("%(?![0-9A-Fa-f]{2})", segment):
        raise UriError(f"bad percent sequence in '{segment}'; a literal '%' is %25")
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise UriError(f"'{segment}' is not UTF-8 after percent-decoding") from None


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

    Raises `AccessRefused` if the name is reserved, `InvalidArgument` if the type does not exist, or an
    argument is not valid, and `Inequivalent` if it exists with other properties.
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

    Raises `AccessRefused` if it is one of the broker's own, and `InUse` by `if_unused`.
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

    Raises `NotFound`.
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

    Raises `BadRequest` if there is not exactly one destination, `NotFound` if an end does not exist, and
    `InvalidArgument` if the exchange cannot use this key or these arguments.
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

    Raises as `bind`.
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

    Raises `BadRequest` if the segment is not valid.
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
    source: str
    destination: Destination
    binding_key: str
    arguments_hash: str


def parse_segment(segment: str) -> NamedBinding:
    """Decode a binding's path segment. Raises `BadRequest`."""
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
