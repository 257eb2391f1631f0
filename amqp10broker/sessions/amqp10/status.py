"""The state of a session's links for the management API, and why each one waits."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import Any, Final

from amqp10broker.operations.snapshot import LinkView, SessionView, TransactionView
from amqp10broker.queues.counters import CONSUMING
from amqp10broker.sessions.amqp10.consumer import LinkConsumer
from amqp10broker.sessions.amqp10.publisher import LinkPublisher
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.auto_limit import AutoLimit
from amqp10broker.sessions.counters import PUBLISHING, ClientCounters
from amqp10broker.sessions.diagnosis.waits import WaitContext
from amqp10broker.sessions.diagnosis.why_link import why_consumer_waits, why_publisher_waits

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
            for transaction in broker_session.context.transactions
        ),
    )


def _consumer_view(
    broker_session: BrokerSession, consumer: LinkConsumer, around: WaitContext, unsettled: int
) -> LinkView:
    return _link_view(
        consumer,
        None if consumer.auto is None else consumer.auto.auto,
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
        None if publisher.auto is None else publisher.auto.auto,
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


def _link_view(
    end: LinkConsumer | LinkPublisher, auto: AutoLimit | None, around: WaitContext, **own: Any
) -> LinkView:
    link = end.link
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
