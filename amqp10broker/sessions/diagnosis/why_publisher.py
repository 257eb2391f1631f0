"""Why a publishing client is held back on its link, or that it could send, with the evidence."""

from __future__ import annotations

from amqp10broker.queues.queue_status import QueueProgress
from amqp10broker.sessions.amqp10.publisher import LinkPublisher
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.diagnosis.idle import storage_text
from amqp10broker.sessions.diagnosis.waits import STUCK_MS, Wait, WaitContext, Waiting, count, seconds


def publisher_wait(
    broker_session: BrokerSession, publisher: LinkPublisher, around: WaitContext
) -> Wait | None:
    """Return the code of a publisher's wait; None if credit and window are open and the client could send."""
    credit = publisher.link.credit
    withheld = credit.link_credit == 0 and credit.withheld
    progress = [queue.handle.progress() for queue in publisher.queues] if withheld else []
    if any(each.full_ms is not None for each in progress):
        # The alarm that a full disk raises is on, too; it is less specific.
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
    behind = [each for each in behind if each[1].unconfirmed or _holds_up(each[2])]
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
                f"{seconds(now_ms - queue_status.unconfirmed_ms)}{_because(progress, now_ms)}"
            )
        else:
            why += f"; queue '{queue.name}' has not come to them{_because(progress, now_ms)}"
    return why


def _holds_up(progress: QueueProgress) -> bool:
    return progress.busy or progress.recovering or progress.unled_ms is not None


def _because(progress: QueueProgress, now_ms: int) -> str:
    text = storage_text(progress, now_ms)
    return f", because{text[1:]}" if text else ""


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
