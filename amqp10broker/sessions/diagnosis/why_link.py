"""The reason why a link waits, with the evidence, for receiving and sending clients; and the state of a
session's links for the management API.
"""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import Any, Final

from amqp10broker.operations.snapshot import LinkView, SessionView, TransactionView
from amqp10broker.protocols.amqp10.credit import Grant, Spent
from amqp10broker.protocols.amqp10.link import LinkState
from amqp10broker.protocols.amqp10.performatives import SenderSettleMode
from amqp10broker.queues.queue_status import CONSUMING
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.publisher import LinkPublisher
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.counters import PUBLISHING, ClientCounters
from amqp10broker.sessions.diagnosis.idle import because, idle_wait, storage_text, why_idle
from amqp10broker.sessions.diagnosis.wait_reasons import (
    NO_WAIT,
    STUCK_MS,
    Wait,
    WaitContext,
    Waiting,
    count,
    seconds,
)

_SPENT: Final = {
    Spent.NEVER_GRANTED: Wait.NO_CREDIT_NEVER_GRANTED,
    Spent.USED_UP: Wait.NO_CREDIT_USED_UP,
    Spent.SET_TO_ZERO: Wait.NO_CREDIT_SET_TO_ZERO,
    Spent.REVOKED: Wait.NO_CREDIT_REVOKED,
    Spent.DRAINED: Wait.NO_CREDIT_DRAINED,
    Spent.STALE_FLOW: Wait.NO_CREDIT_STALE_FLOW,
}


# Waits that a flow or a disposition of the client ends. It may have been sent and not be read yet.
_ENDED_BY_THE_CLIENT: Final = frozenset(
    {*_SPENT.values(), Wait.PEER_WINDOW_CLOSED, Wait.UNSETTLED_HERE, Wait.TIMED_OUT}
)


def consumer_wait(broker_session: BrokerSession, consumer: LinkConsumer, around: WaitContext) -> Wait | None:
    """Return only the code of the wait."""
    wait = _near_wait(broker_session, consumer, around)
    if wait is None and not consumer.credit.waiting and consumer.link.partial is None:
        wait = idle_wait(consumer.queue, consumer.ref)
    if wait in _ENDED_BY_THE_CLIENT:
        if around.blocked_ms is not None:
            return Wait.BLOCKED_BY_ALARM
        if around.held_by is not None:
            return Wait.READER_HELD
    return wait


def why_consumer_waits(broker_session: BrokerSession, consumer: LinkConsumer, around: WaitContext) -> Waiting:
    """Return why a consumer waits. The nearest cause counts."""
    wait = consumer_wait(broker_session, consumer, around)
    now_ms, times, waiting = around.now_ms, consumer.times, consumer.credit.waiting
    queue = f"queue '{consumer.queue.name}'"
    unsent = f"{count(waiting, 'delivery')} {'waits' if waiting == 1 else 'wait'}"
    if consumer.link.partial is not None:
        unsent = f"a delivery was sent in part{', and ' + unsent if waiting else ''}"
    match wait:
        case None:
            return NO_WAIT
        case Wait.PEER_WINDOW_CLOSED:
            since_ms = max(broker_session.window_ms, times.unsent_ms)
            why = (
                f"{unsent}; the client's incoming-window has been 0 for "
                f"{seconds(now_ms - broker_session.window_ms)}, and no flow has opened it"
            )
        case Wait.WRITER_BLOCKED:
            since_ms = around.writer_ms if around.writer_ms is not None else times.unsent_ms
            what = unsent if waiting else "what is delivered waits"
            why = (
                f"{what}; the client does not read its socket fast enough: {around.writer_bytes} bytes "
                "wait for it"
            )
        case Wait.READER_HELD:
            since_ms = around.held_ms
            why = (
                f"the connection is not read, because {around.held_by} of it does not listen: what the "
                "client grants or settles waits there"
            )
        case Wait.BLOCKED_BY_ALARM:
            since_ms = broker_session.alarm_ms
            why = (
                "the connection published too much during an alarm, and is not read until that is over: what "
                "the client grants or settles waits there"
            )
        case Wait.DRAINING:
            since_ms = times.flow_ms or times.credit_ms
            why = (
                f"the client asked to drain {count(consumer.link.credit.link_credit, 'credit')}, and "
                f"{queue} has not answered{storage_text(consumer.queue.handle.progress(), now_ms)}"
            )
        case Wait.QUEUE_CREDIT_IN_FLIGHT:
            since_ms = times.request_ms
            if consumer.link.attached:
                asked = f"{count(consumer.credit.left, 'message')} were asked of {queue}"
            else:
                asked = f"the attach waits until {queue} says whether this is its active consumer"
            why = f"{asked}: no answer yet{storage_text(consumer.queue.handle.progress(), now_ms)}"
        case Wait.UNSETTLED_INCOMPLETE:
            since_ms = times.credit_ms
            why = (
                "the client's attach said incomplete-unsettled: it must detach, and attach again with the "
                "rest of its unsettled map, before anything new is sent; "
                f"{count(consumer.ready, 'message')} ready in {queue}"
            )
        case _ if wait in _SPENT.values():
            since_ms = times.credit_ms
            why = _no_credit(consumer, around)
        case _:
            return why_idle(consumer.queue, consumer.ref, now_ms, times.idle_ms, broker_session.context.vhost)
    return Waiting(wait, why, now_ms - since_ms)


def _near_wait(broker_session: BrokerSession, consumer: LinkConsumer, around: WaitContext) -> Wait | None:
    link = consumer.link
    credit = link.credit
    if consumer.credit.waiting or link.partial is not None:
        if broker_session.session.outgoing.remote_incoming_window == 0:
            return Wait.PEER_WINDOW_CLOSED
        if around.writer_blocked:
            return Wait.WRITER_BLOCKED
    if around.stuck:
        return Wait.WRITER_BLOCKED
    if link.state is LinkState.ATTACH_RECEIVED:
        return Wait.QUEUE_CREDIT_IN_FLIGHT  # later flows are held until the request is answered
    if credit.drain and (credit.link_credit or consumer.credit.in_flight):
        return Wait.DRAINING
    if credit.link_credit == 0:
        return _SPENT[credit.spent]
    if consumer.credit.in_flight:
        unled = consumer.queue.handle.progress().unled_ms is not None
        return Wait.NO_LEADER if unled else Wait.QUEUE_CREDIT_IN_FLIGHT
    return Wait.UNSETTLED_INCOMPLETE if consumer.resuming else None


# --- no credit ------------------------------------------------------------------------------------


def _no_credit(consumer: LinkConsumer, around: WaitContext) -> str:
    credit, times = consumer.link.credit, consumer.times
    last, granted = credit.last, credit.granted
    match credit.spent:
        case Spent.NEVER_GRANTED:
            text = "the client has granted no credit yet: it must send a flow with link-credit"
            if last is not None:
                text += f"; its last flow, {around.ago(times.flow_ms or 0)}, set {_flow(last)}"
            return text
        case Spent.USED_UP:
            assert granted is not None
            text = (
                f"the client's credit was used up at delivery-count {credit.delivery_count}, "
                f"{around.ago(times.credit_ms)}, and "
            )
            if credit.useless:
                text += f"no flow since has granted more (flows since: {credit.useless}); "
            else:
                text += "it has sent no flow since; "
            text += f"the grant, {around.ago(times.granted_ms or 0)}: {_flow(granted)}"
            if consumer.link.snd_settle_mode != SenderSettleMode.SETTLED:
                text += " (settling gives no credit)"
            return text
        case Spent.SET_TO_ZERO:
            assert last is not None
            return (
                f"{around.ago(times.credit_ms)} the client set the credit to 0, {_before(credit.granted)}; "
                f"its last flow: {_flow(last)}"
            )
        case Spent.REVOKED:
            assert last is not None
            return (
                f"the client took its credit back {around.ago(times.credit_ms)}: its last flow says "
                f"{_flow(last)}, we are at {credit.delivery_count}: nothing left"
            )
        case Spent.DRAINED:
            return (
                f"the client's drain was answered {around.ago(times.credit_ms)}: it gave up "
                f"{count(credit.forfeited, 'credit')}, and it has granted none since"
            )
        case Spent.STALE_FLOW:
            assert last is not None
            return (
                f"last flow {around.ago(times.flow_ms or 0)}: {_flow(last)}, we are at "
                f"{credit.delivery_count}: nothing left; flows since the last that granted any: "
                f"{credit.useless}"
            )


def _flow(grant: Grant) -> str:
    drain = ", drain" if grant.drain else ""
    return f"count {grant.delivery_count} + credit {grant.link_credit}{drain}"


def _before(granted: Grant | None) -> str:
    return "with credit left" if granted is None else f"with credit left of its grant ({_flow(granted)})"


def publisher_wait(
    broker_session: BrokerSession, publisher: LinkPublisher, around: WaitContext
) -> Wait | None:
    credit = publisher.link.credit
    withheld = credit.link_credit == 0 and credit.withheld
    progress = [queue.handle.progress() for queue in publisher.queues] if withheld else []
    if any(each.full_ms is not None for each in progress):
        # A full disk raises both alarms. The disk's is the more specific one.
        return Wait.CREDIT_WITHHELD_BY_FULL_DISK
    if broker_session.session.incoming.closed or around.blocked_ms is not None:
        return Wait.BLOCKED_BY_ALARM
    if around.held_by is not None:
        return Wait.READER_HELD
    if around.stuck:
        return Wait.WRITER_BLOCKED
    if withheld:
        if credit.jumped:
            return Wait.COUNT_JUMPED
        if any(each.unled_ms is not None for each in progress):
            return Wait.NO_LEADER
        if any(each.sync_ms is not None for each in progress):
            return Wait.CREDIT_WITHHELD_BY_SYNC
        return Wait.CREDIT_WITHHELD
    if publisher.link.partial is not None and around.now_ms - publisher.times.part_ms >= STUCK_MS:
        return Wait.DELIVERY_UNFINISHED
    return None


def why_publisher_waits(
    broker_session: BrokerSession, publisher: LinkPublisher, around: WaitContext
) -> Waiting:
    wait = publisher_wait(broker_session, publisher, around)
    now_ms, times = around.now_ms, publisher.times
    credit = publisher.link.credit
    match wait:
        case None:
            return Waiting(None, _turn(broker_session, publisher, around))
        case Wait.BLOCKED_BY_ALARM:
            since_ms = max(broker_session.alarm_ms, times.attached_ms)
            which = f"the alarm of {' and '.join(around.alarms)}" if around.alarms else "an alarm"
            effect = "holds this session's incoming-window at 0"
            if around.blocked_ms is not None:
                effect = "the connection, which published too much during it, is not read until it is over"
            why = f"{which} is on, and {effect} (status says what ends it): consume, or raise its limit"
        case Wait.READER_HELD:
            since_ms = around.held_ms
            why = f"the connection is not read, because {around.held_by} of it does not listen"
        case Wait.WRITER_BLOCKED:
            since_ms = around.writer_ms or now_ms
            why = (
                f"the client does not read its socket: {around.writer_bytes} bytes wait for it, grants and "
                "outcomes among them"
            )
        case Wait.COUNT_JUMPED:
            since_ms = times.credit_ms
            why = (
                f"the client gave up {count(credit.jumped, 'credit')} by a flow that names delivery-count "
                f"{credit.delivery_count}, more than it has sent; {_withheld(publisher, now_ms)}"
            )
        case Wait.DELIVERY_UNFINISHED:
            since_ms = times.part_ms
            partial = publisher.link.partial
            assert partial is not None
            why = (
                f"{partial.size_bytes} bytes of delivery {partial.delivery_id} have come and not its end; "
                f"the last part came {around.ago(since_ms)}"
            )
        case _:
            since_ms = times.credit_ms
            why = _withheld(publisher, now_ms)
    return Waiting(wait, why, now_ms - since_ms)


def _withheld(publisher: LinkPublisher, now_ms: int) -> str:
    credit = publisher.link.credit
    queues = publisher.queues
    behind = [(each, each.handle.queue_status(), each.handle.progress()) for each in queues]
    behind = [
        (queue, status, progress)
        for queue, status, progress in behind
        if status.unconfirmed or progress.busy or progress.recovering or progress.unled_ms is not None
    ]
    named = [queue for queue, _, _ in behind] or queues
    where = ", ".join(f"queue '{queue.name}'" for queue in named[:3]) or "their queues"
    if len(named) > 3:
        where += f" and {len(named) - 3} more"
    why = f"{credit.outstanding} deliveries are not confirmed by {where}, max_link_credit is {credit.limit}"
    if publisher.auto is not None:
        why += f" (auto: {publisher.auto.auto.why})"
    for queue, queue_status, progress in behind[:3]:
        if queue_status.unconfirmed and queue_status.unconfirmed_ms is not None:
            why += (
                f"; queue '{queue.name}' has {queue_status.unconfirmed} unconfirmed, the oldest for "
                f"{seconds(now_ms - queue_status.unconfirmed_ms)}{because(progress, now_ms)}"
            )
        else:
            why += f"; queue '{queue.name}' has not come to them{because(progress, now_ms)}"
    return why


def _turn(broker_session: BrokerSession, publisher: LinkPublisher, around: WaitContext) -> str:
    credit, times = publisher.link.credit, publisher.times
    why = f"its turn: {count(credit.link_credit, 'credit')}, window open"
    why += f" ({count(broker_session.session.incoming.advertised, 'frame')})"
    if credit.outstanding:
        why += f"; {credit.outstanding} unconfirmed"
    if publisher.link.partial is not None:
        why += f"; {publisher.link.partial.size_bytes} bytes of a delivery have come"
    if times.received_ms is None:
        why += "; it has sent nothing yet"
    else:
        why += f"; it sent last {around.ago(times.received_ms)}"
    if times.outcome is not None and times.outcome_ms is not None:
        why += f", last outcome: {type(times.outcome).__name__.lower()} {around.ago(times.outcome_ms)}"
    return why


_LINK: Final = itemgetter(0)


def session_view(broker_session: BrokerSession, around: WaitContext) -> SessionView:
    session = broker_session.session
    consumers = list(broker_session.consumers)
    unsettled = Counter(map(_LINK, session.outbound.unsettled.values()))
    links = [
        _consumer_view(broker_session, consumer, around, unsettled[consumer.link]) for consumer in consumers
    ]
    links += [_publisher_view(broker_session, publisher, around) for publisher in broker_session.publishers]
    return SessionView(
        channel=session.channel,
        incoming_window=session.incoming.advertised,
        remote_incoming_window=session.outgoing.remote_incoming_window,
        next_incoming_id=session.incoming.next_incoming_id,
        next_outgoing_id=session.outgoing.next_outgoing_id,
        unsettled_in=len(session.inbound.unsettled),
        unsettled_out=len(session.outbound.unsettled),
        pending_out=sum(consumer.credit.waiting for consumer in consumers),
        last_error=broker_session.last_error,
        counters=broker_session.counted().document(),
        links=tuple(sorted(links, key=lambda link: link.handle or 0)),
        remote_outgoing_window=session.outgoing.remote_outgoing_window,
        handle_max=session.links.handle_max,
        incoming_window_limit=session.incoming.size,
        transactions=tuple(
            TransactionView(
                id=transaction.id.hex(),
                link=transaction.control.name,
                age_s=max(0, around.now_ms - transaction.began_ms) / 1000,
                messages=transaction.messages,
                bytes=transaction.bytes,
                deliveries=len(transaction.deliveries()),
                failed=transaction.failed,
            )
            for transaction in broker_session.context.transactions.open.values()
        ),
    )


def _consumer_view(
    broker_session: BrokerSession, consumer: LinkConsumer, around: WaitContext, unsettled: int
) -> LinkView:
    return _link_view(
        consumer,
        around,
        role="receiver",
        queue=consumer.queue.name,
        unsettled=unsettled,
        available=consumer.ready,
        drain=consumer.link.credit.drain,
        queue_credit=consumer.credit.left,
        queue_delivery_count=consumer.credit.delivery_count,
        pending=consumer.credit.waiting,
        counters=ClientCounters.sum_of([consumer.credit.counted()]).document(CONSUMING),
        wait=why_consumer_waits(broker_session, consumer, around).view(),
        max_message_size=consumer.link.peer_max_message_size,
        credit_limit=consumer.queue_credit,
    )


def _publisher_view(broker_session: BrokerSession, publisher: LinkPublisher, around: WaitContext) -> LinkView:
    link = publisher.link
    return _link_view(
        publisher,
        around,
        role="sender",
        queue=publisher.queue.name if publisher.queue else None,
        unsettled=link.credit.outstanding,
        available=link.peer_available,
        drain=False,
        queue_credit=None,
        queue_delivery_count=None,
        pending=None,
        counters=publisher.counters.document(PUBLISHING),
        wait=why_publisher_waits(broker_session, publisher, around).view(),
        max_message_size=link.max_message_size,
        credit_limit=link.credit.limit,
    )


def _link_view(end: LinkConsumer | LinkPublisher, around: WaitContext, **own: Any) -> LinkView:
    link, auto = end.link, end.auto_limit
    return LinkView(
        name=link.name,
        handle=link.remote_handle,
        address=end.address,
        credit=link.credit.link_credit,
        delivery_count=link.credit.delivery_count,
        properties=_plain(link.peer_properties),
        last_error=end.last_error,
        snd_settle_mode=link.snd_settle_mode,
        credit_limit_why=None if auto is None else auto.why,
        credit_limit_for_s=None if auto is None else max(0, around.now_ms - auto.since_ms) / 1000,
        **own,
    )


def _plain(properties: Any) -> Any:
    # Link state properties may contain values that JSON cannot represent.
    if properties is None:
        return None
    pairs = properties.items() if hasattr(properties, "items") else properties
    return {
        str(key): value if isinstance(value, (bool, int, float, str)) else repr(value) for key, value in pairs
    }
