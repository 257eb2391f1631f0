"""What an attach asks for, and what it gets: termini resolved, modes agreed, refusals worded.

Nothing here touches a link: the functions look at the peer's attach and either return a plan or
raise the `AmqpLinkError` with which the link is refused (part 2, section 2.6.3; part 3, section 3.5).
Where a queue must be declared first, they yield the request and are sent what became of it, at once or later.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from amqp10broker.amqp10.errors import AmqpError, AmqpLinkError, AmqpSessionError, Condition
from amqp10broker.amqp10.performatives import (
    Attach,
    Coordinator,
    DeleteOnClose,
    ReceiverSettleMode,
    Released,
    SenderSettleMode,
    Source,
    Target,
    TerminusDurability,
    TerminusExpiryPolicy,
)
from amqp10broker.amqp10.types import Described, Symbol
from amqp10broker.catalog.proposing import Decided
from amqp10broker.catalog.queue import DeclaredQueue, QueueType
from amqp10broker.catalog.queue_requests import DeclareQueue
from amqp10broker.catalog.vhost import VOLATILE
from amqp10broker.errors import (
    AccessRefused,
    LimitExceeded,
    NotFound,
    NotSupported,
    PermissionDenied,
    PreconditionFailed,
    RefusedError,
    ResourceLocked,
)
from amqp10broker.queues.commands import Verdict
from amqp10broker.routing.address import BadAddress, ExchangeAddress, QueueAddress, parse, queue_address
from amqp10broker.routing.declaration import stripped
from amqp10broker.service.context import SessionContext
from amqp10broker.service.sessions.outcomes import default_verdict

if TYPE_CHECKING:
    from amqp10broker.message.filters.filters import Filters, FilterSet

T = TypeVar("T")

Steps = Generator[DeclareQueue, Decided, T]
"""Asks for queues to be declared, is sent what became of each, and returns a plan."""

OUTCOMES: Final = (
    Symbol("amqp:accepted:list"),
    Symbol("amqp:rejected:list"),
    Symbol("amqp:released:list"),
    Symbol("amqp:modified:list"),
)
QUEUE: Final = Symbol("queue")
TOPIC: Final = Symbol("topic")
TEMPORARY_QUEUE: Final = Symbol("temporary-queue")
VOLATILE_QUEUE: Final = Symbol("rabbitmq:volatile-queue")
MOVE: Final = Symbol("move")
COPY: Final = Symbol("copy")
SELECTOR: Final = "apache.org:selector-filter:string"
SELECTOR_CODE: Final = 0x0000_468C_0000_0004
"""The descriptor of a selector, and its number."""
STREAM_CAPABILITIES: Final = (Symbol("AMQP_FILTEX_PROP_V1_0"), Symbol("AMQP_FILTEX_SQL_V1_0"))
"""What a link from a stream offers: the extensions for filters of AMQP 1.0."""
ENQUEUED_TIME: Final = Symbol("amqp10broker:enqueued-time")
"""A receiver that desires it of a stream is offered it, and gets each message with the annotation
``x-opt-enqueued-time``: when it was written. Our own extension."""
PRIORITY: Final = "rabbitmq:priority"
TIMEOUT: Final = "rabbitmq:consumer-timeout"
"""Link properties of consumers."""

# The first that fits counts.
_CONDITIONS: Final[tuple[tuple[type[RefusedError], str], ...]] = (
    (NotFound, Condition.NOT_FOUND),
    (AccessRefused, Condition.UNAUTHORIZED_ACCESS),
    (PreconditionFailed, Condition.PRECONDITION_FAILED),
    (ResourceLocked, Condition.RESOURCE_LOCKED),
    (LimitExceeded, Condition.RESOURCE_LIMIT_EXCEEDED),
    (NotSupported, Condition.NOT_IMPLEMENTED),
)

KEPT: Final[dict[str, Any]] = {
    "durable": TerminusDurability.NONE,
    "expiry_policy": TerminusExpiryPolicy.LINK_DETACH,
    "timeout": 0,
}
"""What is kept of a terminus beyond its link, for our attach: nothing, whatever the client asks for."""

_GENERATED_NAME_PARTS_BYTES_MAX: Final = 150


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A consumer's link as it will be.

    Attributes:
        queue: where its deliveries come from.
        source: for our attach.
        default_verdict: for what is unsettled when the link goes.
        dynamic: the queue was made for this link.
        priority: among the consumers of the queue.
        timeout_ms: how long it may hold a delivery; None: as long as the queue allows.
        filters: where to begin in a stream, and what of it is wanted; None for any other queue.
        capabilities: that our end offers.
        enqueued_time: deliveries say when they were enqueued.
    """

    queue: DeclaredQueue
    source: Source
    default_verdict: Verdict
    dynamic: bool
    priority: int
    timeout_ms: int | None
    filters: Filters | None = None
    capabilities: tuple[Symbol, ...] | None = None
    enqueued_time: bool = False


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """A publisher's link as it will be.

    Attributes:
        queue: the fixed target if it is a queue.
        exchange: the fixed target if it is an exchange, with the routing key; None for an anonymous
            terminus, too.
        target: for our attach.
        dynamic: the queue was made for this link.
    """

    queue: DeclaredQueue | None
    exchange: ExchangeAddress | None
    target: Target
    dynamic: bool


def plan_source(attach: Attach, context: SessionContext) -> Steps[SourcePlan]:
    """Resolve what a client that attached as receiver consumes from.

    Raises:
        AmqpLinkError: with the words for the client.
        AmqpSessionError: the user may not; the session ends.
    """
    source = attach.source
    if source is None:
        # As it was (2.6.3): an attach that resumes a link. Qpid JMS ends subscriptions so, and looks for
        # this condition.
        raise AmqpLinkError(
            Condition.NOT_FOUND,
            f"Attach refused: source_required: no link '{attach.name}' is kept here that a null source "
            "could resume",
        )
    assert isinstance(source, Source)
    outcomes = _outcomes(source)
    verdict = default_verdict(source.default_outcome)
    # Looked at before a dynamic queue is made, which a refusal would leave behind.
    priority = _whole_number(attach, PRIORITY) or 0
    dynamic = source.dynamic
    if dynamic:
        _check_abilities(source, "a temporary queue")
    if dynamic and VOLATILE_QUEUE in (source.capabilities or ()):
        queue = _volatile_queue(attach, source, context)
    elif dynamic:
        queue = yield from _temporary_queue(attach, source.address, source.capabilities, context, "source")
    else:
        address = _address(source.address)
        if isinstance(address, ExchangeAddress):
            raise AmqpLinkError(
                Condition.INVALID_FIELD,
                f"Attach refused: {source.address!r} is no source: bind a queue to the exchange and consume "
                "from /queues/:queue",
            )
        _allowed(lambda: context.access.read("queue", address.queue))
        _check_no_topic(address, source.capabilities)
        if _kind(address, context) is not QueueType.STREAM:
            _check_abilities(source, f"queue '{address.queue}'")
        if to_declare(address, context):
            yield from _declared(address, context)
            # It may have taken its time.
            _allowed(lambda: context.access.read("queue", address.queue))
        queue = _allowed(lambda: context.vhost.lookup(address.queue))
        if queue.type == VOLATILE:
            raise AmqpLinkError(
                Condition.UNAUTHORIZED_ACCESS, f"only creator channel may consume from queue '{queue.name}'"
            )
        _allowed(lambda: context.vhost.for_connection(queue, context.connection))
    stream = queue.type == QueueType.STREAM
    filter_set = _filter_set(source, context) if stream else None
    reply = Source(
        address=queue_address(queue.name) if dynamic else source.address,
        dynamic=dynamic,
        dynamic_node_properties=_node_properties() if dynamic else None,
        distribution_mode=COPY if stream else MOVE,
        # The reply says which filters are in place: those of a stream that are valid, and no others.
        filter=filter_set.in_place or None if filter_set is not None else None,
        default_outcome=source.default_outcome if source.default_outcome is not None else Released(),
        outcomes=outcomes,
        capabilities=_dynamic_capabilities(queue) if dynamic else _capabilities(source, queue),
        **KEPT,
    )
    plan = SourcePlan(queue, reply, verdict, dynamic, priority, _timeout(attach, queue))
    if filter_set is None:
        return plan
    timed = ENQUEUED_TIME in (attach.desired_capabilities or ())
    return replace(
        plan,
        filters=filter_set.filters,
        capabilities=(*STREAM_CAPABILITIES, ENQUEUED_TIME) if timed else STREAM_CAPABILITIES,
        enqueued_time=timed,
    )


def _filter_set(source: Source, context: SessionContext) -> FilterSet:
    # Not before there is a stream: a broker without one starts sooner without its filters.
    from amqp10broker.message.filters.filters import from_amqp10

    found = from_amqp10(source.filter)
    for refusal in found.refused:
        # The client sees in the reply that it is not, and only whoever reads the log can see why.
        context.log.warning(
            "filter is not in place", address=source.address, filter=refusal.name, reason=refusal.reason
        )
    return found


def plan_target(attach: Attach, context: SessionContext) -> Steps[TargetPlan]:
    """Resolve where a client that attached as sender publishes to.

    Raises:
        AmqpLinkError: with the words for the client.
        AmqpSessionError: the user may not; the session ends.
    """
    target = attach.target
    if isinstance(target, Coordinator):
        raise AmqpLinkError(Condition.NOT_IMPLEMENTED, "Transactions not supported")
    if target is None:
        target = Target()
    assert isinstance(target, Target)
    if target.dynamic:
        queue = yield from _temporary_queue(attach, target.address, target.capabilities, context, "target")
        reply = Target(
            address=queue_address(queue.name),
            dynamic=True,
            dynamic_node_properties=_node_properties(),
            capabilities=(TEMPORARY_QUEUE,),
            **KEPT,
        )
        return TargetPlan(queue, None, reply, dynamic=True)
    if target.address is None:
        return TargetPlan(None, None, Target(**KEPT), dynamic=False)
    address = _address(target.address)
    if isinstance(address, ExchangeAddress):
        _check_exchange(address.exchange, context)
        reply = Target(address=target.address, capabilities=_capabilities(target, None), **KEPT)
        return TargetPlan(None, address, reply, dynamic=False)
    _check_no_topic(address, target.capabilities)
    queue = yield from target_queue(address, context)
    reply = Target(address=target.address, capabilities=_capabilities(target, queue), **KEPT)
    return TargetPlan(queue, None, reply, dynamic=False)


def target_queue(address: QueueAddress, context: SessionContext) -> Steps[DeclaredQueue]:
    """The queue that a client publishes to by this address; made if it is `to_declare`.

    Raises:
        AmqpLinkError: with the words for the client.
        AmqpSessionError: the user may not; the session ends.
    """
    _allowed(lambda: context.access.write("exchange", ""))
    if to_declare(address, context):
        yield from _declared(address, context)
        _allowed(lambda: context.access.write("exchange", ""))  # as above
    return _allowed(lambda: context.vhost.lookup(address.queue))


def _check_exchange(name: str, context: SessionContext) -> None:
    _allowed(lambda: context.access.write("exchange", name))
    exchange = _allowed(lambda: context.vhost.topology.lookup_exchange(name))
    if exchange.internal:
        raise AmqpLinkError(Condition.UNAUTHORIZED_ACCESS, internal_exchange_text(name, context.vhost.name))


def internal_exchange_text(exchange: str, vhost: str) -> str:
    """What a client hears that publishes to an internal exchange."""
    return f"forbidden to publish to internal exchange '{exchange}' in vhost '{vhost}'"


def rcv_settle_mode(attach: Attach) -> int:
    """The receiver settle mode agreed on: what the client asked for; both ends know both modes."""
    return int(attach.rcv_settle_mode or ReceiverSettleMode.FIRST)


def _whole_number(attach: Attach, name: str) -> int | None:
    """A link property that is an integer of up to 64 bits, signed; None if the client does not give it."""
    value = (attach.properties or {}).get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise AmqpLinkError(
            Condition.INVALID_FIELD,
            f"Attach refused: link property {name} is {value!r}; it must be an integer",
        )
    if not -(2**63) <= value < 2**63:
        raise AmqpLinkError(
            Condition.INVALID_FIELD,
            f"Attach refused: link property {name} is {int(value)}; it must be below 2**63",
        )
    return int(value)


def _timeout(attach: Attach, queue: DeclaredQueue) -> int | None:
    """How long the consumer may hold a delivery, if it says so and its queue looks at the time at all."""
    timeout_ms = _whole_number(attach, TIMEOUT)
    if timeout_ms is None or queue.type != QueueType.QUORUM:
        return None
    if timeout_ms < 0:
        raise AmqpLinkError(
            Condition.INVALID_FIELD,
            f"Attach refused: link property {TIMEOUT} is {timeout_ms}; it must not be negative",
        )
    return timeout_ms


def to_amqp_error(error: RefusedError) -> AmqpError:
    """A protocol-neutral refusal in AMQP 1.0's words: a missing permission ends the session, all else
    the link."""
    condition = next(
        (condition for kind, condition in _CONDITIONS if isinstance(error, kind)), Condition.INTERNAL_ERROR
    )
    kind = AmqpSessionError if isinstance(error, PermissionDenied) else AmqpLinkError
    return kind(condition, error.description)


def _allowed(check: Callable[[], T]) -> T:
    try:
        return check()
    except RefusedError as error:
        raise to_amqp_error(error) from error


def _outcomes(source: Source) -> tuple[Symbol, ...]:
    if source.outcomes is None:
        return OUTCOMES
    unknown = [outcome for outcome in source.outcomes if outcome not in OUTCOMES]
    if unknown:
        raise AmqpLinkError(
            Condition.NOT_IMPLEMENTED,
            f"Attach refused: outcomes {', '.join(unknown)} not supported, only {', '.join(OUTCOMES)}",
        )
    return source.outcomes


def _address(address: Any) -> QueueAddress | ExchangeAddress:
    if not isinstance(address, str):
        raise AmqpLinkError(
            Condition.INVALID_FIELD, f"Attach refused: bad address {address!r}: it must be a string"
        )
    try:
        return parse(address)
    except BadAddress as error:
        raise AmqpLinkError(Condition.INVALID_FIELD, f"Attach refused: {error}") from error


def _declared(address: QueueAddress, context: SessionContext) -> Steps[None]:
    vhost = context.vhost
    name = address.queue
    _allowed(lambda: context.access.configure("queue", name))
    decided = yield DeclareQueue(_allowed(vhost.named), name)
    # If it is refused because another client has made it meanwhile, otherwise perhaps, then it is there.
    if decided.refusal is not None and vhost.find(name) is None:
        raise to_amqp_error(decided.refusal) from decided.refusal


def to_declare(address: QueueAddress, context: SessionContext) -> bool:
    """Whether an attach to this address makes the queue, because it is not there yet."""
    declare = address.declare and context.config.declare_on_attach
    return declare and context.vhost.find(address.queue) is None


def _kind(address: QueueAddress, context: SessionContext) -> str:
    """The kind of the queue that an address names, or that an attach would make."""
    if to_declare(address, context):
        return context.vhost.type_of_new
    return _allowed(lambda: context.vhost.lookup(address.queue)).type


def _check_abilities(source: Source, queue: str) -> None:
    """Refuse what no queue can do, before one is made for it.

    The answer would say so, too (distribution-mode move, no filter), but there are clients that do not look
    at it: Qpid JMS would empty a queue that it browses, and consume messages that it did not select.
    """
    if source.distribution_mode == COPY:
        raise AmqpLinkError(
            Condition.NOT_IMPLEMENTED,
            f"Attach refused: {queue} cannot be browsed (distribution-mode copy): consume with move, or read "
            "from a stream",
        )
    for name, value in (source.filter or {}).items():
        if isinstance(value, Described) and value.descriptor in (SELECTOR, SELECTOR_CODE):
            raise AmqpLinkError(
                Condition.NOT_IMPLEMENTED,
                f"Attach refused: filter '{name}' is a selector, which {queue} does not have: consume "
                "without, or select from a stream by amqp:sql-filter",
            )


def _check_no_topic(address: QueueAddress, capabilities: tuple[Symbol, ...] | None) -> None:
    """Refuse to take a queue for a topic: its subscribers would share what each should get."""
    if address.declare and TOPIC in (capabilities or ()) and QUEUE not in (capabilities or ()):
        raise AmqpLinkError(
            Condition.NOT_IMPLEMENTED,
            f"Attach refused: '{address.queue}' names a queue, and topics by bare name are not supported: "
            "publish to /exchanges/amq.topic/:key and consume from a queue that is bound to it",
        )


def _capabilities(terminus: Source | Target, queue: DeclaredQueue | None) -> tuple[Symbol, ...] | None:
    """What is true of the node among what the client asks for; None if nothing is."""
    true = {TOPIC} if queue is None else {QUEUE, TEMPORARY_QUEUE} if queue.exclusive else {QUEUE}
    return tuple(each for each in terminus.capabilities or () if each in true) or None


def _temporary_queue(
    attach: Attach, address: Any, capabilities: Any, context: SessionContext, end: str
) -> Steps[DeclaredQueue]:
    # Asking for other capabilities than temporary-queue is asking for another kind of node. Asking
    # for none, as proton's own request/response examples do, is served: it can only mean this kind.
    if address is not None or (capabilities and TEMPORARY_QUEUE not in capabilities):
        raise AmqpLinkError(
            Condition.NOT_IMPLEMENTED,
            f"Dynamic {end} not supported: set no address and no capability but temporary-queue",
        )
    name = stripped(f"amq.dyn-{context.container_id}-{attach.name}-{context.new_id()}")
    if len(f"{context.container_id}{attach.name}".encode()) >= _GENERATED_NAME_PARTS_BYTES_MAX:
        name = f"amq.dyn.gen-{context.new_id()}"
    _allowed(lambda: context.access.configure("queue", name))
    # Before there is a queue that a refusal would leave behind.
    if end == "source":
        _allowed(lambda: context.access.read("queue", name))
    else:
        _allowed(lambda: context.access.write("exchange", ""))
    owner = context.connection
    decided = yield DeclareQueue(_allowed(context.vhost.named), name, owner=owner, internal=True)
    _allowed(decided.result)
    return _allowed(lambda: context.vhost.lookup(name))


def _volatile_queue(attach: Attach, source: Source, context: SessionContext) -> DeclaredQueue:
    """Direct reply-to: a queue without memory, for replies to this link."""
    if (
        source.address is not None
        or attach.snd_settle_mode != SenderSettleMode.SETTLED
        or source.durable != TerminusDurability.NONE
        or source.expiry_policy != TerminusExpiryPolicy.LINK_DETACH
        or source.timeout
    ):
        raise AmqpLinkError(
            Condition.NOT_IMPLEMENTED,
            "Dynamic source not supported: a rabbitmq:volatile-queue needs no address, snd-settle-mode "
            "settled, durable none, expiry-policy link-detach and timeout 0",
        )

    def may(name: str) -> None:
        _allowed(lambda: context.access.configure("queue", name))
        _allowed(lambda: context.access.read("queue", name))

    return context.volatile(context.vhost, context.connection, may)


def _dynamic_capabilities(queue: DeclaredQueue) -> tuple[Symbol, ...]:
    return (VOLATILE_QUEUE,) if queue.type == VOLATILE else (TEMPORARY_QUEUE,)


def _node_properties() -> dict[Any, Any]:
    return {Symbol("lifetime-policy"): DeleteOnClose(), Symbol("supported-dist-modes"): MOVE}
