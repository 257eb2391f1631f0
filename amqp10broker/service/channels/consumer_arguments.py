"""The arguments of basic.consume: which there are, and what they may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.catalog.queue import DeclaredQueue, QueueType
from amqp10broker.errors import PreconditionFailed
from amqp10broker.routing.arguments import type_name

_PRIORITY: Final = "x-priority"
_CANCEL_ON_FAILOVER: Final = "x-cancel-on-ha-failover"
_TIMEOUT: Final = "x-consumer-timeout"


def check_consumer_arguments(queue: DeclaredQueue, arguments: Mapping[str, Any]) -> None:
    """Check the arguments of basic.consume.

    Raises:
        PreconditionFailed: an argument is unknown for the type of the queue, or of a wrong type.
    """
    known = {_PRIORITY, _CANCEL_ON_FAILOVER}
    if queue.type == QueueType.QUORUM:
        known.add(_TIMEOUT)
    for name, value in arguments.items():
        if name in known:
            fault = _fault_of(name, value)
        else:
            fault = f" of queue type {QueueType(queue.type).module}" if name.startswith("x-") else None
        if fault is not None:
            resource = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            raise PreconditionFailed(resource, f"invalid arg '{name}' for {resource}{fault}")


def _fault_of(name: str, value: Any) -> str | None:
    wanted = bool if name == _CANCEL_ON_FAILOVER else int
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        return f": {{unacceptable_type,{type_name(value)}}}"
    if name == _TIMEOUT and value < 0:
        return f": {{value_negative,{value}}}"
    return None
