"""The arguments of basic.consume for streams: x-stream-offset, x-stream-filter and
x-stream-match-unfiltered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from amqp10broker.errors import PreconditionFailed
from amqp10broker.message.filters.bloom import BloomFilter
from amqp10broker.message.filters.errors import FilterError
from amqp10broker.message.filters.filters import Filters
from amqp10broker.message.filters.offset_spec import OffsetSpec, from_amqp091
from amqp10broker.message.filters.terms import type_name

X_STREAM_OFFSET: Final = "x-stream-offset"
X_STREAM_FILTER: Final = "x-stream-filter"
X_STREAM_MATCH_UNFILTERED: Final = "x-stream-match-unfiltered"


def from_amqp091_arguments(arguments: Mapping[str, Any], *, stream: str, vhost: str) -> Filters:
    """Read the filters of an AMQP 0-9-1 consumer. x-stream-match-unfiltered alone means nothing. Raises
    `PreconditionFailed` if an argument has a value that it cannot have.
    """
    resource = f"queue '{stream}' in vhost '{vhost}'"
    offset: OffsetSpec | None = None
    if X_STREAM_OFFSET in arguments:
        try:
            offset = from_amqp091(arguments[X_STREAM_OFFSET])
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
