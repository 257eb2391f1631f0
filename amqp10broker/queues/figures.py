"""How a queue stands at one moment: what `status` shows of it, and what operations answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from amqp10broker.dataclass import dataclass
from amqp10broker.queues.settings import QueueSettings

T = TypeVar("T")

LOOKED_THROUGH_MAX: Final = 50_000
"""Messages that consumers hold, or have returned, whose sizes are added up when somebody asks: a few ms."""


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """Limits of length that a queue has.

    Attributes:
        messages: ready messages at most, None: any number.
        bytes: bytes of them at most, None: any number.
        overflow: what happens beyond: ``drop-head``, ``reject-publish``, ...
    """

    messages: int | None
    bytes: int | None
    overflow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """See the module. What a kind of queue does not have is None.

    Attributes:
        messages_ready: that wait for a consumer; of a stream, those that it keeps.
        messages_unsettled: handed out and not settled.
        consumers: links and AMQP 0-9-1 consumers that may get messages.
        publishers: links whose fixed target the queue is.
        messages_delayed: that wait for their time: of a quorum queue those that came back, of a classic one
            those that publishers delayed.
        messages_dlx: of a quorum queue: dead letters that are not yet at their target.
        first_offset: of a stream: of the oldest message that is kept.
        next_offset: of a stream: of the next message that is published.
        segments: of a stream: its files.
        size_bytes: of a stream: their bytes.
        single_active_consumer_tag: of the consumer that gets messages, if only one may; None: there is none.
        full: whether a limit of length is reached.
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

    None is what is not known: it would take too long, or this kind of queue does not keep it.
    """

    ready: int | None
    """Of those that wait; of what a start has found and nobody has read yet, bytes in the journal."""
    unsettled: int | None
    """Of those that are handed out."""
    ready_in_memory: int | None = None
    """Of those that wait, how many are in memory: messages, not bytes."""
    ready_bytes_in_memory: int | None = None
    """And their bytes. What is handed out is in memory too."""


def few(parts: Iterable[Collection[T]]) -> Iterable[T] | None:
    """What is in these together; None: more than is looked through at once."""
    parts = list(parts)
    return None if sum(map(len, parts)) > LOOKED_THROUGH_MAX else chain.from_iterable(parts)


def length_limits(settings: QueueSettings) -> LengthLimits | None:
    """The limits of length that settings give; None if they give none."""
    most, most_bytes = settings.max_length, settings.max_length_bytes
    if most is None and most_bytes is None:
        return None
    return LengthLimits(most, most_bytes, str(settings.overflow.value))


def is_full(limits: LengthLimits | None, messages: int, size_bytes: int) -> bool:
    """Whether no further message has room.

    Args:
        limits: of the queue.
        messages: that count against the limit.
        size_bytes: their bytes; of no meaning without a limit of bytes.
    """
    if limits is None:
        return False
    return (limits.messages is not None and messages >= limits.messages) or (
        limits.bytes is not None and size_bytes >= limits.bytes
    )
