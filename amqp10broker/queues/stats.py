"""The figures of a queue, for `status` and for the answers of operations."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.queues.settings import QueueSettings

T = TypeVar("T")

LOOKED_THROUGH_MAX: Final = 50_000
"""Messages, unsettled or returned, up to which sizes are summed on request: a few ms."""


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """The limits of a queue's length. `messages`: ready messages at most, None: any number. `bytes`: bytes of
    them at most, None: any number.
    """

    messages: int | None
    bytes: int | None
    overflow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """The figures of one queue. Those that a kind of queue does not have are None.

    Attributes:
        messages_delayed: waiting for their time: of a quorum queue returned ones, of a classic one those that
            publishers delayed.
        messages_dlx: of a quorum queue: dead letters that are not yet at their target.
        single_active_consumer_tag: None: there is no such consumer.
        limits: limits of length, None: there are none.
    """

    messages_ready: int = 0
    messages_unsettled: int = 0
    consumers: int = 0
    publishers: int = 0
    messages_delayed: int | None = None
    messages_dlx: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None
    segments: int | None = None
    size_bytes: int | None = None
    single_active_consumer_tag: str | None = None
    full: bool = False
    limits: LengthLimits | None = None


class QueueWeight(NamedTuple):
    """Bytes of the contents of a queue's messages, as far as they are known without looking at each of many.

    None: counting would take too long, or this kind of queue does not support it.
    """

    ready: int | None
    """Of waiting messages; of those that a start has found and no consumer has read yet, bytes in the
    journal.
    """
    unsettled: int | None
    """Bytes of messages that are handed out."""
    ready_in_memory: int | None = None
    """Number of waiting messages that are in memory."""
    ready_bytes_in_memory: int | None = None
    """Bytes of the waiting messages in memory. Unsettled ones are in memory too."""


def few(parts: Iterable[Collection[T]]) -> Iterable[T] | None:
    """Return the items of all parts; None: there are more than may be looked at."""
    parts = list(parts)
    return None if sum(map(len, parts)) > LOOKED_THROUGH_MAX else chain.from_iterable(parts)


def length_limits(settings: QueueSettings) -> LengthLimits | None:
    """Return the limits of length of these settings; None: there are none."""
    most, most_bytes = settings.max_length, settings.max_length_bytes
    if most is None and most_bytes is None:
        return None
    return LengthLimits(most, most_bytes, str(settings.overflow.value))


def is_full(limits: LengthLimits | None, messages: int, size_bytes: int) -> bool:
    """Return whether no further message has room."""
    if limits is None:
        return False
    return (limits.messages is not None and messages >= limits.messages) or (
        limits.bytes is not None and size_bytes >= limits.bytes
    )
