"""Properties of the kinds of queue, so that no other code compares names of kinds.

Settings by kind are in `queue_settings`; consumer arguments and termini by kind
are checked where they are read. A new kind is a new record here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqp10broker.dataclass import dataclass

QUORUM_PREFETCH_MAX: Final = 2_000
"""Deliveries of a quorum queue that a consumer of AMQP 0-9-1 without prefetch may hold (RabbitMQ's limit)."""

ASKED_TIMES_BY_LOG: Final = 8
"""For a queue that hands out nothing before it is in its log, on the disk: 8 x 256 messages a sync."""

UNSENT_REPLIES_MAX: Final = 1_000_000
"""Replies of direct reply-to that may wait for one consumer: its queue keeps nothing, so what is beyond is
lost (docs/adr/0033)."""


@dataclass(frozen=True, slots=True)
class QueueKind:
    """Facts of one kind. The defaults are those of a classic queue.

    Attributes:
        volatile: it belongs to one consumer of one connection, keeps nothing and is not declared: what that
            consumer has no credit for is lost.
        replays: consumers read it from positions of their own and take nothing away, so that what is ready
            differs from one to the other; it is not purged and not read by basic.get.
        selects: a consumer may select messages of it; what `replays` has filters of its own.
        keeps_encoding: what it delivers is encoded for AMQP 1.0, whatever published it.
        counts_lost_as_failed: what a client held when its connection was lost counts as a failed attempt.
        own_files: what it keeps is in files of its own, and not in the node's journal.
        replicated: it has members, on as many nodes of a cluster, which agree on all that it does.
        unsent_max: deliveries that a session or channel may have of it beyond what was written, whatever its
            own limit is, and without a bound of bytes; None: the limits of the session or channel count.
        asked_times: factor on the limit of a session or channel for the credit of one consumer, because each
            answer waits for a sync.
        held_max: deliveries that a consumer of AMQP 0-9-1 may hold without a prefetch; None: no limit.
    """

    name: str
    noun: str = "queue"
    volatile: bool = False
    replays: bool = False
    selects: bool = True
    browsed: bool = True
    keeps_encoding: bool = False
    answers_settlements: bool = False
    keeps_annotations: bool = False
    counts_lost_as_failed: bool = False
    tells_active: bool = False
    exclusive_consumers: bool = True
    global_prefetch: bool = True
    conditional_delete: bool = True
    own_files: bool = False
    replicated: bool = False
    unsent_max: int | None = None
    asked_times: int = 1
    held_max: int | None = None


CLASSIC: Final = QueueKind("classic")
QUORUM: Final = QueueKind(
    "quorum",
    answers_settlements=True,
    keeps_annotations=True,
    counts_lost_as_failed=True,
    tells_active=True,
    exclusive_consumers=False,
    global_prefetch=False,
    conditional_delete=False,
    replicated=True,
    asked_times=ASKED_TIMES_BY_LOG,
    held_max=QUORUM_PREFETCH_MAX,
)
STREAM: Final = QueueKind(
    "stream",
    noun="stream",
    replays=True,
    selects=False,
    browsed=False,
    own_files=True,
    keeps_encoding=True,
    exclusive_consumers=False,
    global_prefetch=False,
    conditional_delete=False,
)
VOLATILE_KIND: Final = QueueKind(
    "volatile", volatile=True, selects=False, browsed=False, unsent_max=UNSENT_REPLIES_MAX
)

KINDS: Final[Mapping[str, QueueKind]] = {kind.name: kind for kind in (CLASSIC, QUORUM, STREAM, VOLATILE_KIND)}
