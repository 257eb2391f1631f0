"""Receivers that attach to a topic, or that return to their subscription.

A subscriber consumes from a queue that is bound to the topic and is made by its attach: for the link alone,
durable, or shared by several links (`metadata.subscriptions`). It needs the permissions of the three steps:
to configure that queue, to bind it (write to it, read `amq.topic` and the topic), and to read it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, TypeGuard

from amqp10broker.errors import RefusedError
from amqp10broker.metadata.queue import DeclaredQueue
from amqp10broker.metadata.queue_requests import DeleteQueue
from amqp10broker.metadata.subscriptions import Subscription, named_queue, temporary_topic
from amqp10broker.protocols.amqp10.errors import AmqpLinkError, Condition
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    Released,
    Source,
    TerminusDurability,
    TerminusExpiryPolicy,
)
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong
from amqp10broker.queues.selecting import fault_of
from amqp10broker.routing.address import TOPIC_EXCHANGE, TOPICS, TopicAddress
from amqp10broker.sessions.amqp10.attach import (
    COPY,
    KEPT,
    PRIORITY,
    TOPIC,
    SourcePlan,
    Steps,
    of_topic,
    outcomes_of,
    plan_source,
    resolve,
    to_amqp_error,
    whole_number,
)
from amqp10broker.sessions.amqp10.outcomes import default_delivery_outcome
from amqp10broker.sessions.context import SessionContext

SHARED: Final = Symbol("shared")
GLOBAL: Final = Symbol("global")
_SELECTOR: Final = Symbol("apache.org:selector-filter:string")
_SELECTOR_CODE: Final = ULong(0x0000_468C_0000_0004)
_NO_LOCAL: Final = Symbol("apache.org:no-local-filter:list")
_NO_LOCAL_CODE: Final = ULong(0x0000_468C_0000_0003)
_SEPARATOR: Final = "|"
"""Separates the name of a shared subscription from the rest of a link's name: ``NAME|2``, ``NAME|global``."""
# The source of a durable subscription: everything survives except which deliveries are unsettled.
_STAYS: Final[dict[str, Any]] = {
    "durable": TerminusDurability.CONFIGURATION,
    "expiry_policy": TerminusExpiryPolicy.NEVER,
    "timeout": 0,
}


def plan_receiver(attach: Attach, context: SessionContext) -> Steps[SourcePlan]:
    """Resolve the source of a receiver, topics and subscriptions included. Raises as `attach.plan_source`."""
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
    outcomes, delivery_outcome = outcomes_of(source), default_delivery_outcome(source.default_outcome)
    priority = whole_number(attach, PRIORITY) or 0
    selector, no_local = _selector_and_no_local(source)
    wanted = _wanted(attach, source, topic, context)
    wanted = replace(wanted, selector=selector)
    if no_local and not wanted.shared:
        wanted = replace(wanted, container=context.container_id, no_local=True)
    name = wanted.queue_name(context.new_id())
    try:
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
    except RefusedError as error:
        raise to_amqp_error(error) from error
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
        delivery_outcome,
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
    # Raises if the subscription of this name cannot be deleted, or if the queue is not a subscription.
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
    # Mostly in order to end the subscription, for which no other link may consume from it.
    yield from ()
    try:
        _check_rights(context, queue.name, subscription.topic)
        context.vhost.for_connection(queue, context.connection)
    except RefusedError as error:
        raise to_amqp_error(error) from error
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
        *(queue, reply, default_delivery_outcome(None)),
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
    # The flag is no-local. Raises if the selector is invalid.
    selector, no_local = None, False
    for name, value in (source.filter or {}).items():
        if _is_no_local(value):
            no_local = True
        elif _is_selector(value) and selector is None:
            fault = fault_of(value.value) if type(value.value) is str else "the value must be a string"
            if fault is not None:
                raise AmqpLinkError(Condition.INVALID_FIELD, f"Attach refused: selector '{name}': {fault}")
            selector = value.value
    return selector, no_local


def _in_place(source: Source, subscription: Subscription) -> dict[Any, Any] | None:
    # One selector, and no-local only if the subscription is not shared.
    found = {}
    for name, value in (source.filter or {}).items():
        selects = _is_selector(value) and value.value == subscription.selector
        if selects or (_is_no_local(value) and subscription.no_local):
            found[name] = value
    return found or None


def _described(subscription: Subscription) -> dict[Any, Any] | None:
    found: dict[Any, Any] = {}
    if subscription.selector is not None:
        found[Symbol("jms-selector")] = Described(_SELECTOR, subscription.selector)
    if subscription.no_local:
        found[Symbol("no-local")] = Described(_NO_LOCAL, [])
    return found or None


def _is_selector(value: object) -> TypeGuard[Described]:
    return isinstance(value, Described) and value.descriptor in (_SELECTOR, _SELECTOR_CODE)


def _is_no_local(value: object) -> bool:
    return isinstance(value, Described) and value.descriptor in (_NO_LOCAL, _NO_LOCAL_CODE)
