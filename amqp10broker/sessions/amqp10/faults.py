"""Log entries for errors sent to clients of AMQP 1.0, and for operations of the management node."""

from __future__ import annotations

from amqp10broker.metadata.queue import LastError
from amqp10broker.protocols.amqp10.errors import AmqpError
from amqp10broker.protocols.amqp10.link import ReceiverLink, SenderLink
from amqp10broker.routing.address import BadAddress, QueueAddress, parse
from amqp10broker.sessions.context import ClientLog


def log_fault(
    log: ClientLog,
    channel: int,
    link: SenderLink | ReceiverLink | None,
    error: AmqpError,
    *,
    refused: bool,
) -> LastError:
    """Log an error with which a link was detached or a session ended (then `link` is None)."""
    condition = str(error.condition)
    if link is None:
        return log.warning(
            "session ended by the broker", session=channel, condition=condition, text=error.description
        )
    return log.warning(
        "attach refused" if refused else "link detached by the broker",
        session=channel,
        link=link.name,
        role="receiver" if type(link) is SenderLink else "sender",
        address=link.address if isinstance(link.address, str) else None,
        queue=queue_of(link.address),
        condition=condition,
        text=error.description,
    )


def log_operation(log: ClientLog, operation: str, subject: str, refusal: str | None) -> None:
    """Log an operation that a client requested of the management node (see `operations.caller.Report`)."""
    details = {"operation": operation, "object": subject, "by": "/management"}
    if refusal is None:
        log.info("operation", **details)
    else:
        log.warning("operation refused", **details, text=refusal)


def queue_of(address: object) -> str | None:
    if not isinstance(address, str):
        return None
    try:
        parsed = parse(address)
    except BadAddress:
        return None
    return parsed.queue if isinstance(parsed, QueueAddress) else None
