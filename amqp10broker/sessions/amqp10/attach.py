"""Resolution of an attach: termini, topics and subscriptions, agreed modes, and refusals.

The functions read the peer's attach and either return a plan or raise the error with which the link is
refused (part 2, section 2.6.3; part 3, section 3.5): `AmqpLinkError`, or a `RefusedError` for
`to_amqp_error`. They do not touch a link. Where a queue must be declared first, they yield the request and
are sent its decision, at once or later.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, Final, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.emulation import ADDRESS_V1
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
from amqp10broker.message.filters.filter_set import SELECTOR, Filters, FilterSet, from_amqp10, is_selector
from amqp10broker.message.filters.sql_eval import selector_fault
from amqp10broker.metadata.catalog import CatalogRequest
from amqp10broker.metadata.plan import Decided
from amqp10broker.metadata.queue import CLASSIC, KINDS, VOLATILE_KIND, DeclaredQueue, QueueKind
from amqp10broker.metadata.queue_arguments import JMS_PRIORITY, QueueType
from amqp10broker.metadata.queue_requests import (
    OF_TEMPORARY_TOPICS,
    DeclareQueue,
    DeleteQueue,
    Subscription,
    named_queue,
    temporary_topic,
)
from amqp10broker.metadata.vhost import VOLATILE
from amqp10broker.protocols.amqp10.errors import AmqpError, AmqpLinkError, AmqpSessionError, Condition
from amqp10broker.protocols.amqp10.performatives import (
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
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong
from amqp10broker.routing.address import (
    TOPIC_EXCHANGE,
    TOPICS,
    Address,
    BadAddress,
    ExchangeAddress,
    QueueAddress,
    TopicAddress,
    parse,
    queue_address,
    topic_address,
)
from amqp10broker.routing.exchange import stripped
from amqp10broker.sessions.context import SessionContext

T = TypeVar("T")

Steps = Generator[CatalogRequest[Any], Decided, T]
"""Yields declarations of queues, is sent the decision on each, and returns a plan."""

OUTCOMES: Final = (
    Symbol("amqp:accepted:list"),
    Symbol("amqp:rejected:list"),
    Symbol("amqp:released:list"),
    Symbol("amqp:modified:list"),
)
QUEUE: Final = Symbol("queue")
TOPIC: Final = Symbol("topic")
TEMPORARY_QUEUE: Final = Symbol("temporary-queue")
TEMPORARY_TOPIC: Final = Symbol("temporary-topic")
VOLATILE_QUEUE: Final = Symbol("rabbitmq:volatile-queue")
MOVE: Final = Symbol("move")
COPY: Final = Symbol("copy")
STREAM_CAPABILITIES: Final = (Symbol("AMQP_FILTEX_PROP_V1_0"), Symbol("AMQP_FILTEX_SQL_V1_0"))
ENQUEUED_TIME: Final = Symbol("amqp10broker:enqueued-time")
"""The capability of an extension: with it a receiver of a stream gets each message with
``x-opt-enqueued-time``.
"""
PRIORITY: Final = "rabbitmq:priority"
TIMEOUT: Final = "rabbitmq:consumer-timeout"

# The first entry that matches counts.
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
"""Fields of a terminus in the broker's attach when nothing of it survives the link."""

_GENERATED_NAME_PARTS_BYTES_MAX: Final = 150


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """The parameters of a link on which a client consumes. `exclusive`: no other consumer is allowed; the
    attach is answered when the queue has accepted it.
    """

    queue: DeclaredQueue
    source: Source
    dynamic: bool
    priority: int
    timeout_ms: int | None
    filters: Filters | None = None
    capabilities: tuple[Symbol, ...] | None = None
    enqueued_time: bool = False
    browse: bool = False
    subscription: Subscription | None = None
    exclusive: bool = False

    @property
    def selects(self) -> bool:
        return self.filters is not None and self.filters.messages is not None


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """The parameters of a link on which a client publishes. With neither `queue` nor `exchange` it is an
    anonymous terminus. `topic`: unroutable messages are accepted.
    """

    queue: DeclaredQueue | None
    exchange: ExchangeAddress | None
    target: Target
    dynamic: bool
    topic: bool = False
    temporary: DeclaredQueue | None = None


def plan_source(attach: Attach, context: SessionContext) -> Steps[SourcePlan]:
    """Resolve the source of a receiver."""
    source = attach.source
    if source is None:
        # The error is that of an attach that resumes a link (2.6.3). Qpid JMS ends subscriptions with such an
        # attach, and expects this condition.
        raise AmqpLinkError(
            Condition.NOT_FOUND,
            f"Attach refused: source_required: no link '{attach.name}' is kept here that a null source "
            "could resume",
        )
    assert isinstance(source, Source)
    outcomes = outcomes_of(source)
    # This is checked before a queue is made, because a refusal would leave the queue behind.
    priority = whole_number(attach, PRIORITY) or 0
    dynamic = source.dynamic
    filter_set: FilterSet | None = None
    if dynamic:
        kind = VOLATILE_KIND if VOLATILE_QUEUE in (source.capabilities or ()) else CLASSIC
        filter_set = _filters(source, kind, "a temporary queue", context)
    if dynamic and VOLATILE_QUEUE in (source.capabilities or ()):
        queue = _volatile_queue(attach, source, context)
    elif dynamic:
        queue = yield from _temporary_queue(attach, source.address, source.capabilities, context, "source")
    else:
        address = resolve(source.address, source.capabilities, context)
        if not isinstance(address, QueueAddress):
            raise AmqpLinkError(
                Condition.INVALID_FIELD,
                f"Attach refused: {source.address!r} is no source: bind a queue to the exchange and consume "
                "from /queues/:queue",
            )
        context.access.read("queue", address.queue)
        filter_set = _filters(source, _kind(address, context), f"queue '{address.queue}'", context)
        if to_declare(address, context):
            yield from _declared(address, context)
            # The permission is checked again because the declaration may have taken time.
            context.access.read("queue", address.queue)
        queue = context.vhost.lookup(address.queue)
        if queue.type == VOLATILE:
            raise AmqpLinkError(
                Condition.UNAUTHORIZED_ACCESS, f"only creator channel may consume from queue '{queue.name}'"
            )
        context.vhost.for_connection(queue, context.connection)
    stream = queue.type == QueueType.STREAM
    browse = source.distribution_mode == COPY and not stream
    made = (VOLATILE_QUEUE if queue.type == VOLATILE else TEMPORARY_QUEUE,)
    reply = Source(
        address=queue_address(queue.name) if dynamic else source.address,
        dynamic=dynamic,
        dynamic_node_properties=_node_properties() if dynamic else None,
        distribution_mode=COPY if stream or browse else MOVE,
        # The reply lists the filters in place: those that are valid and that the queue has.
        filter=filter_set.in_place or None if filter_set is not None else None,
        default_outcome=source.default_outcome if source.default_outcome is not None else Released(),
        outcomes=outcomes,
        capabilities=made if dynamic else _capabilities(source, queue),
        **KEPT,
    )
    timed = stream and ENQUEUED_TIME in (attach.desired_capabilities or ())
    offered = (*STREAM_CAPABILITIES, ENQUEUED_TIME) if timed else STREAM_CAPABILITIES
    plan = SourcePlan(
        *(queue, reply, dynamic, priority, _timeout(attach, queue)),
        filters=None if filter_set is None else filter_set.filters,
        capabilities=offered if stream else None,
        enqueued_time=timed,
        browse=browse,
    )
    if plan.selects and not browse and queue.effective.settings.single_active_consumer:
        # A single active consumer with a filter would withhold all other messages from the other consumers.
        raise AmqpLinkError(
            Condition.NOT_ALLOWED,
            f"Attach refused: queue '{queue.name}' has a single active consumer, which takes all its "
            "messages: consume without a selector, or browse with it (distribution-mode copy)",
        )
    return plan


def _filter_set(source: Source, kind: QueueKind, context: SessionContext) -> FilterSet:
    found = from_amqp10(source.filter, of_stream=kind.replays)
    for refusal in found.refused:
        if refusal.selects:
            raise AmqpLinkError(
                Condition.INVALID_FIELD, f"Attach refused: selector '{refusal.name}': {refusal.reason}"
            )
        # The reply shows the client that the filter is not in place, but only the log can give the reason.
        context.log.warning(
            "filter is not in place", address=source.address, filter=refusal.name, reason=refusal.reason
        )
    return found


def plan_target(attach: Attach, context: SessionContext) -> Steps[TargetPlan]:
    target = attach.target
    if isinstance(target, Coordinator):
        raise AmqpLinkError(Condition.NOT_IMPLEMENTED, "Transactions not supported")
    if target is None:
        target = Target()
    assert isinstance(target, Target)
    if target.dynamic and TEMPORARY_TOPIC in (target.capabilities or ()):
        return (yield from _temporary_topic(target, context))
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
    address = resolve(target.address, target.capabilities, context)
    if isinstance(address, TopicAddress):
        _check_exchange(TOPIC_EXCHANGE, context)
        temporary = temporary_topic(context.vhost, address.topic)
        capabilities = of_topic(target.capabilities, temporary)
        reply = Target(address=target.address, capabilities=capabilities, **KEPT)
        return TargetPlan(None, as_exchange(address), reply, dynamic=False, topic=True, temporary=temporary)
    if isinstance(address, ExchangeAddress):
        _check_exchange(address.exchange, context)
        reply = Target(address=target.address, capabilities=_capabilities(target, None), **KEPT)
        return TargetPlan(None, address, reply, dynamic=False)
    queue = yield from target_queue(address, context)
    reply = Target(address=target.address, capabilities=_capabilities(target, queue), **KEPT)
    return TargetPlan(queue, None, reply, dynamic=False)


def target_queue(address: QueueAddress, context: SessionContext) -> Steps[DeclaredQueue]:
    """Return the queue of a publisher's address, declared if necessary. Raises `RefusedError`."""
    context.access.write("exchange", "")
    if to_declare(address, context):
        yield from _declared(address, context)
        context.access.write("exchange", "")  # as above
    return context.vhost.lookup(address.queue)


def _check_exchange(name: str, context: SessionContext) -> None:
    context.access.write("exchange", name)
    exchange = context.vhost.topology.lookup_exchange(name)
    if exchange.internal:
        raise AmqpLinkError(Condition.UNAUTHORIZED_ACCESS, internal_exchange_text(name, context.vhost.name))


def internal_exchange_text(exchange: str, vhost: str) -> str:
    return f"forbidden to publish to internal exchange '{exchange}' in vhost '{vhost}'"


def rcv_settle_mode(attach: Attach) -> int:
    return int(attach.rcv_settle_mode or ReceiverSettleMode.FIRST)


def whole_number(attach: Attach, name: str) -> int | None:
    """Return a link property that is a signed 64-bit integer; None if unset."""
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
    # The result is also None for a queue without timeouts.
    timeout_ms = whole_number(attach, TIMEOUT)
    if timeout_ms is None or queue.type != QueueType.QUORUM:
        return None
    if timeout_ms < 0:
        raise AmqpLinkError(
            Condition.INVALID_FIELD,
            f"Attach refused: link property {TIMEOUT} is {timeout_ms}; it must not be negative",
        )
    return timeout_ms


def to_amqp_error(error: RefusedError) -> AmqpError:
    """Convert a refusal: a missing permission ends the session, any other the link."""
    condition = next(
        (condition for kind, condition in _CONDITIONS if isinstance(error, kind)), Condition.INTERNAL_ERROR
    )
    kind = AmqpSessionError if isinstance(error, PermissionDenied) else AmqpLinkError
    return kind(condition, error.description)


def outcomes_of(source: Source) -> tuple[Symbol, ...]:
    if source.outcomes is None:
        return OUTCOMES
    unknown = [outcome for outcome in source.outcomes if outcome not in OUTCOMES]
    if unknown:
        raise AmqpLinkError(
            Condition.NOT_IMPLEMENTED,
            f"Attach refused: outcomes {', '.join(unknown)} not supported, only {', '.join(OUTCOMES)}",
        )
    return source.outcomes


def resolve(address: Any, capabilities: tuple[Symbol, ...] | None, context: SessionContext) -> Address:
    """Parse an address; a bare name is a topic only with that capability."""
    if not isinstance(address, str):
        raise AmqpLinkError(
            Condition.INVALID_FIELD, f"Attach refused: bad address {address!r}: it must be a string"
        )
    wanted = frozenset(capabilities or ())
    try:
        found = parse(address, bare=ADDRESS_V1 not in context.config.rules.denied)
        bare = isinstance(found, QueueAddress) and found.declare
        return topic_address(address) if bare and TOPIC in wanted and QUEUE not in wanted else found
    except BadAddress as error:
        raise AmqpLinkError(Condition.INVALID_FIELD, f"Attach refused: {error}") from error


def as_exchange(address: TopicAddress) -> ExchangeAddress:
    return ExchangeAddress(TOPIC_EXCHANGE, address.topic)


def _declared(address: QueueAddress, context: SessionContext) -> Steps[None]:
    vhost = context.vhost
    name = address.queue
    context.access.configure("queue", name)
    arguments = {JMS_PRIORITY: True} if context.of_jms else {}
    decided = yield DeclareQueue(vhost.named(), name, arguments=arguments)
    # The declaration may be refused because another client has meanwhile made the queue, perhaps with other
    # arguments. Then it is there.
    if decided.refusal is not None and vhost.find(name) is None:
        raise decided.refusal


def to_declare(address: QueueAddress, context: SessionContext) -> bool:
    declare = address.declare and context.config.declare_on_attach
    return declare and context.vhost.find(address.queue) is None


def _filters(source: Source, kind: QueueKind, queue: str, context: SessionContext) -> FilterSet | None:
    # A filter or mode that the kind of queue does not support is refused. The answer would show it, too, but
    # some clients do not check it: Qpid JMS would empty a queue that it browses.
    filter_set = _filter_set(source, kind, context) if kind.replays or source.filter else None
    selects = filter_set is not None and filter_set.filters.messages is not None
    browses = source.distribution_mode == COPY
    if kind.replays:
        return filter_set
    if browses and not kind.browsed:
        what = "browsed (distribution-mode copy)"
    elif selects and not browses and not kind.selects:
        what = "selected from: browse it (distribution-mode copy), or consume without a filter"
    else:
        return filter_set
    raise AmqpLinkError(Condition.NOT_IMPLEMENTED, f"Attach refused: {queue} cannot be {what}")


def _kind(address: QueueAddress, context: SessionContext) -> QueueKind:
    # This also holds for a queue that the attach would declare.
    if to_declare(address, context):
        return KINDS[context.vhost.default_type()]
    return context.vhost.lookup(address.queue).kind


def _capabilities(terminus: Source | Target, queue: DeclaredQueue | None) -> tuple[Symbol, ...] | None:
    true = {TOPIC} if queue is None else {QUEUE, TEMPORARY_QUEUE} if queue.exclusive else {QUEUE}
    return tuple(each for each in terminus.capabilities or () if each in true) or None


def of_topic(
    asked: tuple[Symbol, ...] | None, temporary: DeclaredQueue | None, *more: Symbol
) -> tuple[Symbol, ...] | None:
    true = {TOPIC, *more} if temporary is None else {TOPIC, TEMPORARY_TOPIC, *more}
    return tuple(each for each in asked or () if each in true) or None


def _temporary_topic(target: Target, context: SessionContext) -> Steps[TargetPlan]:
    if target.address is not None:
        raise AmqpLinkError(
            Condition.NOT_IMPLEMENTED,
            "Dynamic target not supported: set no address for a temporary topic",
        )
    name = OF_TEMPORARY_TOPICS + context.new_id()
    context.access.configure("queue", name)
    _check_exchange(TOPIC_EXCHANGE, context)
    request = DeclareQueue(
        context.vhost.named(), name, durable=False, owner=context.connection, internal=True
    )
    decided = yield request
    decided.result()
    address = topic_address(name)
    reply = Target(
        address=TOPICS + name,
        dynamic=True,
        dynamic_node_properties=_node_properties(),
        capabilities=(TEMPORARY_TOPIC,),
        **KEPT,
    )
    queue = context.vhost.lookup(name)
    return TargetPlan(None, as_exchange(address), reply, dynamic=True, topic=True, temporary=queue)


def _temporary_queue(
    attach: Attach, address: Any, capabilities: Any, context: SessionContext, end: str
) -> Steps[DeclaredQueue]:
    # A client that requests other capabilities wants another kind of node. A client that requests none, as
    # proton's request/response examples do, can only mean a temporary queue.
    if address is not None or (capabilities and TEMPORARY_QUEUE not in capabilities):
        raise AmqpLinkError(
            Condition.NOT_IMPLEMENTED,
            f"Dynamic {end} not supported: set no address and no capability but temporary-queue",
        )
    name = stripped(f"amq.dyn-{context.container_id}-{attach.name}-{context.new_id()}")
    if len(f"{context.container_id}{attach.name}".encode()) >= _GENERATED_NAME_PARTS_BYTES_MAX:
        name = f"amq.dyn.gen-{context.new_id()}"
    context.access.configure("queue", name)
    # This is checked before there is a queue, which a refusal would leave behind.
    if end == "source":
        context.access.read("queue", name)
    else:
        context.access.write("exchange", "")
    owner = context.connection
    decided = yield DeclareQueue(context.vhost.named(), name, owner=owner, internal=True)
    decided.result()
    return context.vhost.lookup(name)


def _volatile_queue(attach: Attach, source: Source, context: SessionContext) -> DeclaredQueue:
    # This is direct reply-to: a queue that stores nothing, for replies to this link.
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
        context.access.configure("queue", name)
        context.access.read("queue", name)

    return context.volatile(context.vhost, context.connection, may)


def _node_properties() -> dict[Any, Any]:
    return {Symbol("lifetime-policy"): DeleteOnClose(), Symbol("supported-dist-modes"): MOVE}


SHARED: Final = Symbol("shared")
GLOBAL: Final = Symbol("global")
_NO_LOCAL: Final = Symbol("apache.org:no-local-filter:list")
_NO_LOCAL_CODE: Final = ULong(0x0000_468C_0000_0003)
_SEPARATOR: Final = "|"
"""Separates the name of a shared subscription from the rest of a link's name: ``NAME|2``, ``NAME|global``."""
# Fields of the source of a durable subscription. Everything survives the link except its unsettled state.
_STAYS: Final[dict[str, Any]] = {
    "durable": TerminusDurability.CONFIGURATION,
    "expiry_policy": TerminusExpiryPolicy.NEVER,
    "timeout": 0,
}


def plan_receiver(attach: Attach, context: SessionContext) -> Steps[SourcePlan]:
    """Resolve the source of a receiver, topics and subscriptions included.

    A subscriber consumes from a queue that is bound to the topic. Its attach declares the queue: for the link
    alone, durable, or shared (`metadata.queue_requests`). The user needs the permissions to configure that
    queue, to bind it (write to it, read `amq.topic` and the topic), and to read it.
    """
    source = attach.source
    if source is None:
        subscribed = _find(attach, context)
        if subscribed is not None:
            return (yield from _come_back(attach, *subscribed, context))
    elif not source.dynamic:
        address = resolve(source.address, source.capabilities, context)
        if isinstance(address, TopicAddress):
            return (yield from _subscribe(attach, source, address.topic, context))
    return (yield from plan_source(attach, context))


def _subscribe(attach: Attach, source: Source, topic: str, context: SessionContext) -> Steps[SourcePlan]:
    outcomes = outcomes_of(source)
    priority = whole_number(attach, PRIORITY) or 0
    selector, no_local = _selector_and_no_local(source)
    wanted = replace(_wanted(attach, source, topic, context), selector=selector)
    if no_local and not wanted.shared:
        wanted = replace(wanted, container=context.container_id, no_local=True)
    name = wanted.queue_name(context.new_id())
    vhost = context.vhost.named()
    _check_rights(context, name, topic)
    temporary = temporary_topic(context.vhost, topic)
    if temporary is not None:
        context.vhost.for_connection(temporary, context.connection)
    there = context.vhost.find(name)
    if there is not None and (there.ended or _is_another(wanted, there, context, attach)):
        (yield DeleteQueue(vhost, name)).result()
    (yield wanted.request(vhost, name, context.connection)).result()
    _check_rights(context, name, topic)  # the declaration may have taken its time
    queue = context.vhost.lookup(name)
    context.vhost.for_connection(queue, context.connection)
    reply = Source(
        address=source.address,
        distribution_mode=COPY,
        filter=_in_place(source, wanted),
        default_outcome=source.default_outcome if source.default_outcome is not None else Released(),
        outcomes=outcomes,
        capabilities=of_topic(source.capabilities, temporary, *_sharing(wanted)),
        **(_STAYS if wanted.durable else KEPT),
    )
    return SourcePlan(
        queue,
        reply,
        dynamic=wanted.name is None,
        priority=priority,
        timeout_ms=None,
        subscription=wanted,
        exclusive=wanted.durable and not wanted.shared,
    )


def _wanted(attach: Attach, source: Source, topic: str, context: SessionContext) -> Subscription:
    capabilities = source.capabilities or ()
    shared = SHARED in capabilities
    durable = (
        source.durable not in (None, TerminusDurability.NONE)
        and source.expiry_policy == TerminusExpiryPolicy.NEVER
    )
    if not shared and not durable:
        return Subscription(topic)
    return Subscription(
        topic,
        container=None if shared and GLOBAL in capabilities else context.container_id,
        name=attach.name.partition(_SEPARATOR)[0] if shared else attach.name,
        durable=durable,
        shared=shared,
    )


def _is_another(wanted: Subscription, queue: DeclaredQueue, context: SessionContext, attach: Attach) -> bool:
    # Raise an error if the queue cannot be replaced, or is not that of a subscription.
    there = Subscription.of(queue)
    if there == wanted:
        return False
    if there is None:
        raise AmqpLinkError(
            Condition.PRECONDITION_FAILED,
            f"Attach refused: queue '{queue.name}' is no subscription's: delete it, or choose another name",
        )
    if there.shared is not wanted.shared:
        raise AmqpLinkError(
            Condition.PRECONDITION_FAILED,
            f"Attach refused: subscription '{wanted.name}' is there and is {'' if there.shared else 'not '}"
            "shared: unsubscribe it, or choose another name",
        )
    moved = not wanted.shared and context.names.has(attach.name)
    if queue.handle.figures().consumers and not moved:
        raise AmqpLinkError(
            Condition.RESOURCE_LOCKED,
            f"Attach refused: subscription '{wanted.name}' is for another topic or selector, and has "
            "consumers: close them before it is changed",
        )
    return True


def _find(attach: Attach, context: SessionContext) -> tuple[DeclaredQueue, Subscription] | None:
    # An attach without a source means the durable subscription of its name.
    name, separator, rest = attach.name.partition(_SEPARATOR)
    everybodys = rest.startswith(GLOBAL) or GLOBAL in (attach.desired_capabilities or ())
    container = None if everybodys else context.container_id
    for each in (attach.name, name) if separator else (name,):
        queue = context.vhost.find(named_queue(container, each, durable=True))
        subscription = None if queue is None else Subscription.of(queue)
        if queue is not None and subscription is not None:
            return queue, subscription
    return None


def _come_back(
    attach: Attach, queue: DeclaredQueue, subscription: Subscription, context: SessionContext
) -> Steps[SourcePlan]:
    # A client mostly attaches so in order to end the subscription. No other link may consume from it then.
    yield from ()
    _check_rights(context, queue.name, subscription.topic)
    context.vhost.for_connection(queue, context.connection)
    reply = Source(
        address=TOPICS + subscription.topic,
        distribution_mode=COPY,
        default_outcome=Released(),
        outcomes=outcomes_of(Source()),
        filter=_described(subscription),
        capabilities=(TOPIC, *_sharing(subscription)),
        **_STAYS,
    )
    return SourcePlan(
        queue,
        reply,
        dynamic=False,
        priority=whole_number(attach, PRIORITY) or 0,
        timeout_ms=None,
        subscription=subscription,
        exclusive=True,
    )


def _check_rights(context: SessionContext, queue: str, topic: str) -> None:
    access = context.access
    access.configure("queue", queue)
    access.write("queue", queue)
    access.read("exchange", TOPIC_EXCHANGE)
    access.read_topic(TOPIC_EXCHANGE, topic)
    access.read("queue", queue)


def _sharing(subscription: Subscription) -> tuple[Symbol, ...]:
    if not subscription.shared:
        return ()
    return (SHARED, GLOBAL) if subscription.container is None else (SHARED,)


# --- filters --------------------------------------------------------------------------------------


def _selector_and_no_local(source: Source) -> tuple[str | None, bool]:
    # The second value is whether no-local is set. Raises if the selector is invalid.
    selector, no_local = None, False
    for name, value in (source.filter or {}).items():
        if _is_no_local(value):
            no_local = True
        elif is_selector(value) and selector is None:
            fault = selector_fault(value.value) if type(value.value) is str else "the value must be a string"
            if fault is not None:
                raise AmqpLinkError(Condition.INVALID_FIELD, f"Attach refused: selector '{name}': {fault}")
            selector = value.value
    return selector, no_local


def _in_place(source: Source, subscription: Subscription) -> dict[Any, Any] | None:
    # At most one selector is in place, and no-local only if the subscription is not shared.
    found = {}
    for name, value in (source.filter or {}).items():
        selects = is_selector(value) and value.value == subscription.selector
        if selects or (_is_no_local(value) and subscription.no_local):
            found[name] = value
    return found or None


def _described(subscription: Subscription) -> dict[Any, Any] | None:
    found: dict[Any, Any] = {}
    if subscription.selector is not None:
        found[Symbol("jms-selector")] = Described(Symbol(SELECTOR), subscription.selector)
    if subscription.no_local:
        found[Symbol("no-local")] = Described(_NO_LOCAL, [])
    return found or None


def _is_no_local(value: object) -> bool:
    return isinstance(value, Described) and value.descriptor in (_NO_LOCAL, _NO_LOCAL_CODE)
