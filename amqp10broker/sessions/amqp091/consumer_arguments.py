"""The arguments of basic.consume: their names, types and meanings."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import field
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import NotSupported, PreconditionFailed
from amqp10broker.message.filters.bloom import BloomFilter
from amqp10broker.message.filters.errors import FilterError
from amqp10broker.message.filters.filters import Filters
from amqp10broker.message.filters.offset_spec import OffsetSpec, from_amqp091
from amqp10broker.metadata.queue import DeclaredQueue, QueueType
from amqp10broker.routing.arguments import type_name

_PRIORITY: Final = "x-priority"
_CANCEL_ON_FAILOVER: Final = "x-cancel-on-ha-failover"
_TIMEOUT: Final = "x-consumer-timeout"
X_STREAM_OFFSET: Final = "x-stream-offset"
X_STREAM_FILTER: Final = "x-stream-filter"
X_STREAM_MATCH_UNFILTERED: Final = "x-stream-match-unfiltered"
_STREAM: Final = frozenset({X_STREAM_OFFSET, X_STREAM_FILTER, X_STREAM_MATCH_UNFILTERED})


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options that a consumer requests of its queue. `timeout_ms`: how long it may hold a delivery; None:
    as long as the queue allows. `filters`: where to begin in a stream, and which messages to select; None for
    any other queue.
    """

    priority: int = 0
    timeout_ms: int | None = None
    filters: Filters | None = None
    given: Mapping[str, Any] = field(default_factory=dict, hash=False)


DEFAULT_OPTIONS: Final = ConsumerOptions()


def check_stream_consumer(queue: DeclaredQueue, *, no_ack: bool, prefetch: int) -> None:
    """Check a consumer of a stream: only acknowledgements hold it back, so it must have a prefetch and use
    them. Raises `NotSupported` if it does not acknowledge, and `PreconditionFailed` if it has no prefetch.
    """
    resource = f"queue '{queue.name}'"
    stream = f"stream '{queue.name}' in vhost '{queue.vhost}'"
    if no_ack:
        raise NotSupported(resource, f"automatic acknowledgement not supported by {stream}")
    if not prefetch:
        raise PreconditionFailed(resource, f"consumer prefetch count is not set for {stream}")


def read_consumer_arguments(queue: DeclaredQueue, arguments: Mapping[str, Any]) -> ConsumerOptions:
    """Check the arguments of basic.consume. Raises `PreconditionFailed` for unknown names or wrong types."""
    known = {_PRIORITY}
    if queue.type != QueueType.STREAM:
        known.add(_CANCEL_ON_FAILOVER)
    if queue.type == QueueType.QUORUM:
        known.add(_TIMEOUT)
    for name, value in arguments.items():
        if queue.type == QueueType.STREAM and name in _STREAM:
            continue
        if name in known:
            fault = _fault_of(name, value)
        else:
            fault = _unknown(queue, known) if name.startswith("x-") else None
        if fault is not None:
            resource = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            raise PreconditionFailed(resource, f"invalid arg '{name}' for {resource}: {fault}")
    filters = None
    if queue.type == QueueType.STREAM:
        filters = from_amqp091_arguments(arguments, stream=queue.name, vhost=queue.vhost)
    elif not arguments:
        return DEFAULT_OPTIONS
    timeout_ms = arguments.get(_TIMEOUT)
    return ConsumerOptions(
        priority=int(arguments.get(_PRIORITY, 0)),
        timeout_ms=None if timeout_ms is None else int(timeout_ms),
        filters=filters,
        given=arguments,
    )


def _fault_of(name: str, value: Any) -> str | None:
    wanted = bool if name == _CANCEL_ON_FAILOVER else int
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        return f"must be {'true or false' if wanted is bool else 'an integer'}, not {type_name(value)}"
    if name == _TIMEOUT and value < 0:
        return f"must be 0 or more, not {value}"
    return None


def _unknown(queue: DeclaredQueue, known: Set[str]) -> str:
    names = sorted(known | _STREAM if queue.type == QueueType.STREAM else known)
    return f"consumers of a queue of type {queue.type} may give {', '.join(names)} only"


def from_amqp091_arguments(arguments: Mapping[str, Any], *, stream: str, vhost: str) -> Filters:
    """Read the filters of an AMQP 0-9-1 consumer. x-stream-match-unfiltered alone means nothing. Raises
    `PreconditionFailed` if an argument has a value that it cannot have.
    """
    resource = f"queue '{stream}' in vhost '{vhost}'"
    offset: OffsetSpec | None = None
    if X_STREAM_OFFSET in arguments:
        try:
            offset = from_amqp091(arguments[X_STREAM_OFFSET], type_name)
        except FilterError as error:
            text = f"failed consuming from stream '{stream}' in vhost '{vhost}': {error.reason}"
            raise PreconditionFailed(resource, text) from error
    match_unfiltered = arguments.get(X_STREAM_MATCH_UNFILTERED, False)
    if type(match_unfiltered) is not bool:
        raise _refused(resource, X_STREAM_MATCH_UNFILTERED, "true or false", match_unfiltered)
    if X_STREAM_FILTER not in arguments:
        return Filters(offset)
    given = arguments[X_STREAM_FILTER]
    values = given if isinstance(given, list) else [given]
    for value in values:
        if type(value) is not str:
            raise _refused(resource, X_STREAM_FILTER, "a string or an array of strings", value)
    if not values:
        raise PreconditionFailed(
            resource, f"invalid arg '{X_STREAM_FILTER}' for {resource}: the array is empty; give a value"
        )
    return Filters(offset, BloomFilter(tuple(dict.fromkeys(values)), match_unfiltered))


def _refused(resource: str, name: str, wanted: str, value: Any) -> PreconditionFailed:
    return PreconditionFailed(
        resource, f"invalid arg '{name}' for {resource}: must be {wanted}, not {type_name(value)}"
    )
