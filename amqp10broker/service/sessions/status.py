"""What a session's links are doing, and why each one waits, in words from a closed set."""

from __future__ import annotations

from typing import Any

from amqp10broker.amqp10.performatives import SenderSettleMode
from amqp10broker.catalog.last_error import shown
from amqp10broker.service.counters import CONSUMING, PUBLISHING
from amqp10broker.service.sessions.consumer import Consumer
from amqp10broker.service.sessions.publisher import Publisher
from amqp10broker.service.sessions.session import BrokerSession
from amqp10broker.service.waits import NO_WAIT, Wait, Waiting


def session_status(broker_session: BrokerSession, *, writer_blocked: bool) -> dict[str, Any]:
    """One session as `amqp10broker status` shows it.

    Args:
        broker_session: the session; it is only read.
        writer_blocked: its transfers wait for the connection's writer.
    """
    session = broker_session.session
    consumers = list(broker_session.consumers)
    links = [_consumer_status(broker_session, consumer, writer_blocked) for consumer in consumers]
    links += [_publisher_status(broker_session, publisher) for publisher in broker_session.publishers]
    return {
        "channel": session.channel,
        "incoming_window": session.incoming.advertised,
        "remote_incoming_window": session.outgoing.remote_incoming_window,
        "next_incoming_id": session.incoming.next_incoming_id,
        "next_outgoing_id": session.outgoing.next_outgoing_id,
        "unsettled_in": len(session.unsettled_in),
        "unsettled_out": len(session.unsettled_out),
        "pending_out": sum(consumer.unsent for consumer in consumers),
        "last_error": shown(broker_session.last_error),
        "counters": broker_session.counted().document(),
        "links": sorted(links, key=lambda link: int(link["handle"])),
    }


def _consumer_status(
    broker_session: BrokerSession, consumer: Consumer, writer_blocked: bool
) -> dict[str, Any]:
    link = consumer.link
    waiting = why_consumer_waits(broker_session, consumer, writer_blocked=writer_blocked)
    unsettled = sum(1 for owner, _ in broker_session.session.unsettled_out.values() if owner is link)
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


def _publisher_status(broker_session: BrokerSession, publisher: Publisher) -> dict[str, Any]:
    link = publisher.link
    waiting = why_publisher_waits(broker_session, publisher)
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


def why_consumer_waits(broker_session: BrokerSession, consumer: Consumer, *, writer_blocked: bool) -> Waiting:
    """Why no delivery moves on a consumer's link, and what shows it."""
    wait = consumer_wait(broker_session, consumer, writer_blocked=writer_blocked, ready=consumer.ready)
    return Waiting(wait, "" if wait is None else _consumer_evidence(consumer, wait))


def consumer_wait(
    broker_session: BrokerSession, consumer: Consumer, *, writer_blocked: bool, ready: int
) -> Wait | None:
    """The nearest cause first: what is already handed over can only wait for window or writer.

    Args:
        broker_session: the consumer's; it is only read.
        consumer: likewise.
        writer_blocked: transfers of the session wait for the connection's writer.
        ready: messages that the queue could deliver now (`Consumer.ready`).
    """
    link = consumer.link
    credit = link.credit
    unsent = consumer.unsent or link.partial is not None
    if unsent and broker_session.session.outgoing.remote_incoming_window == 0:
        return Wait.PEER_WINDOW_CLOSED
    if unsent and writer_blocked:
        return Wait.WRITER_BLOCKED
    if credit.drain and (credit.link_credit or consumer.in_flight):
        return Wait.DRAINING
    if credit.link_credit == 0:
        return Wait.NO_CREDIT_USED_UP if credit.delivery_count else Wait.NO_CREDIT_NEVER_GRANTED
    if consumer.in_flight:
        return Wait.QUEUE_CREDIT_IN_FLIGHT
    if not unsent and ready == 0:
        return Wait.QUEUE_EMPTY
    if not unsent and consumer.queue.effective.settings.single_active_consumer:
        # The active one would have got what is ready.
        return Wait.NOT_ACTIVE
    return None


def _consumer_evidence(consumer: Consumer, wait: Wait) -> str:
    queue = f"queue '{consumer.queue.name}'"
    match wait:
        case Wait.PEER_WINDOW_CLOSED:
            return (
                f"{consumer.unsent} deliveries wait; the client's incoming-window is 0 and no flow has "
                "opened it"
            )
        case Wait.WRITER_BLOCKED:
            return f"{consumer.unsent} deliveries wait; the client does not read its socket fast enough"
        case Wait.DRAINING:
            return f"the client asked to drain {consumer.link.credit.link_credit} credits"
        case Wait.NO_CREDIT_USED_UP | Wait.NO_CREDIT_NEVER_GRANTED:
            return _no_credit_evidence(consumer)
        case Wait.QUEUE_CREDIT_IN_FLIGHT:
            return f"{consumer.queue_credit} credits were asked of {queue}: no answer yet"
        case Wait.QUEUE_EMPTY:
            return f"{queue} has no ready message"
        case Wait.NOT_ACTIVE:
            return f"{queue} has a single active consumer: this one waits for it to go"
        case _:
            raise AssertionError(f"{wait} is none of a consumer of AMQP 1.0")


def _no_credit_evidence(consumer: Consumer) -> str:
    link = consumer.link
    count = link.credit.delivery_count
    if count == 0:
        return "the client has granted no credit yet: it must send a flow with link-credit"
    text = f"the client's credit was used up at delivery-count {count} and it has sent no flow since"
    if link.snd_settle_mode != SenderSettleMode.SETTLED:
        text += " (settling gives no credit)"
    return text


def why_publisher_waits(broker_session: BrokerSession, publisher: Publisher) -> Waiting:
    """Why a publisher's client is held back, and what shows it."""
    wait = publisher_wait(broker_session, publisher)
    if wait is None:
        return NO_WAIT
    if wait is Wait.BLOCKED_BY_ALARM:
        return Waiting(
            wait, "an alarm is on (status says which, and what ends it): consume, or raise its limit"
        )
    credit = publisher.link.credit
    where = f"queue '{publisher.queue.name}'" if publisher.queue else "its queues"
    return Waiting(
        wait,
        f"{credit.outstanding} deliveries are not confirmed by {where}, max_link_credit is {credit.limit}",
    )


def publisher_wait(broker_session: BrokerSession, publisher: Publisher) -> Wait | None:
    """Only our own limits hold a publisher back; with credit and window open it is its own turn."""
    if broker_session.session.incoming.closed:
        return Wait.BLOCKED_BY_ALARM
    credit = publisher.link.credit
    if credit.link_credit == 0 and credit.withheld:
        return Wait.CREDIT_WITHHELD
    return None


def _plain(properties: Any) -> Any:
    """Link state properties as JSON can carry them."""
    if properties is None:
        return None
    pairs = properties.items() if hasattr(properties, "items") else properties
    return {
        str(key): value if isinstance(value, (bool, int, float, str)) else repr(value) for key, value in pairs
    }
