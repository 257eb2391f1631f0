"""The settings of a queue: limits, times, dead-lettering."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from amqp10broker.dataclass import dataclass

DELIVERY_LIMIT: Final = 20
"""The number of failed deliveries of a message of a quorum queue."""

CONSUMER_TIMEOUT_MS: Final = 1_800_000

CONSUMER_DISCONNECTED_TIMEOUT_MS: Final = 60_000
"""How long consumers of a quorum queue hold their deliveries while their node is unreachable."""


class Overflow(StrEnum):
    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


class DeadLetterStrategy(StrEnum):
    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"


class RetryType(StrEnum):
    """Which returned messages of a quorum queue wait before they are delivered again."""

    DISABLED = "disabled"
    ALL = "all"
    FAILED = "failed"
    RETURNED = "returned"


class ConfirmWhen(StrEnum):
    """The condition for the confirm of a persistent message in a durable classic queue."""

    SYNCED = "synced"
    WRITTEN = "written"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of one queue. None means no limit, never, or none.

    Attributes:
        max_priority: levels of a classic queue besides 0, as declared; no policy changes it.
        default_priority: that of a message without one, in such a queue.
        retry_min_ms: the wait of returned messages, multiplied by the number of failed deliveries.
        confirm_when: for a classic queue; None: as the broker is configured.
        priority_levels: for a quorum queue: 2, of which the high one gets two turns of three; with another
            number the order is strict. This and the following are rules of versions (`emulation.QUORUM`).
        limit_counts_failed: `delivery_limit` counts failed attempts; false: all returns.
        unlimited_returns_last: without `delivery_limit`, a returned message goes to the tail.
        shows_no_failures: a redelivery without a failed attempt has ``x-delivery-count`` 0; false: none.
        drops_next: a full queue drops the message that is next; false: one of the lowest priority.
    """

    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: Overflow = Overflow.DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    dead_letter_strategy: DeadLetterStrategy = DeadLetterStrategy.AT_MOST_ONCE
    max_priority: int | None = None
    default_priority: int = 0
    single_active_consumer: bool = False
    delivery_limit: int | None = DELIVERY_LIMIT
    consumer_timeout_ms: int | None = CONSUMER_TIMEOUT_MS
    consumer_disconnected_timeout_ms: int = CONSUMER_DISCONNECTED_TIMEOUT_MS
    retry_type: RetryType = RetryType.DISABLED
    retry_min_ms: int | None = None
    retry_max_ms: int | None = None
    max_age_ms: int | None = None
    segment_bytes: int = 500_000_000
    filter_bytes: int = 16
    confirm_when: ConfirmWhen | None = None
    priority_levels: int = 2
    limit_counts_failed: bool = False
    unlimited_returns_last: bool = True
    shows_no_failures: bool = True
    drops_next: bool = False


DEFAULTS: Final = QueueSettings()
