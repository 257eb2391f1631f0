"""What a session's links are doing, as `amqp10broker status` shows it, and why each one waits."""

from __future__ import annotations

from typing import Any

from amqp10broker.catalog.last_error import shown
from amqp10broker.service.counters import CONSUMING, PUBLISHING
from amqp10broker.service.sessions.consumer import Consumer
from amqp10broker.service.sessions.publisher import Publisher
from amqp10broker.service.sessions.session import BrokerSession
from amqp10broker.service.sessions.surroundings import Surroundings
from amqp10broker.service.sessions.why_consumer import why_consumer_waits
from amqp10broker.service.sessions.why_publisher import why_publisher_waits


def session_status(broker_session: BrokerSession, around: Surroundings) -> dict[str, Any]:
    """One session as `amqp10broker status` shows it.

    Args:
        broker_session: the session; it is only read.
        around: what its connection does for it.
    """
    session = broker_session.session
    consumers = list(broker_session.consumers)
    links = [_consumer_status(broker_session, consumer, around) for consumer in consumers]
    links += [_publisher_status(broker_session, publisher, around) for publisher in broker_session.publishers]
    return {
        "channel": session.channel,
        "incoming_window": session.incoming.advertised,
        "remote_incoming_window": session.outgoing.remote_incoming_window,
        "next_incoming_id": session.incoming.next_incoming_id,
        "next_outgoing_id": session.outgoing.next_outgoing_id,
        "unsettled_in": len(session.inbound.unsettled),
        "unsettled_out": len(session.outbound.unsettled),
        "pending_out": sum(consumer.unsent for consumer in consumers),
        "last_error": shown(broker_session.last_error),
        "counters": broker_session.counted().document(),
        "links": sorted(links, key=lambda link: int(link["handle"])),
    }


def _consumer_status(
    broker_session: BrokerSession, consumer: Consumer, around: Surroundings
) -> dict[str, Any]:
    link = consumer.link
    waiting = why_consumer_waits(broker_session, consumer, around)
    unsettled = sum(1 for owner, _ in broker_session.session.outbound.unsettled.values() if owner is link)
    return {
        "name": link.name,
        "handle": link.remote_handle,
        "role": "receiver",
        "address": consumer.address,
        "queue": consumer.queue.name,
        "credit": link.credit.link_credit,
        "delivery_count": link.credit.delivery_count,
        "unsettled": unsettled,
        "available": consumer.ready,
        "drain": link.credit.drain,
        "queue_credit": consumer.queue_credit,
        "queue_delivery_count": consumer.queue_delivery_count,
        "pending": consumer.unsent,
        "properties": _plain(link.peer_properties),
        "last_error": shown(consumer.last_error),
        "counters": consumer.counted().document(CONSUMING),
        **waiting.document(),
    }


def _publisher_status(
    broker_session: BrokerSession, publisher: Publisher, around: Surroundings
) -> dict[str, Any]:
    link = publisher.link
    waiting = why_publisher_waits(broker_session, publisher, around)
    return {
        "name": link.name,
        "handle": link.remote_handle,
        "role": "sender",
        "address": publisher.address,
        "queue": publisher.queue.name if publisher.queue else None,
        "credit": link.credit.link_credit,
        "delivery_count": link.credit.delivery_count,
        "unsettled": link.credit.outstanding,
        "available": link.peer_available,
        "drain": False,
        "queue_credit": None,
        "queue_delivery_count": None,
        "pending": None,
        "properties": _plain(link.peer_properties),
        "last_error": shown(publisher.last_error),
        "counters": publisher.counted().document(PUBLISHING),
        **waiting.document(),
    }


def _plain(properties: Any) -> Any:
    """Link state properties as JSON can carry them."""
    if properties is None:
        return None
    pairs = properties.items() if hasattr(properties, "items") else properties
    return {
        str(key): value if isinstance(value, (bool, int, float, str)) else repr(value) for key, value in pairs
    }
