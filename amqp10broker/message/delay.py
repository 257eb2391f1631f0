"""When a message may be delivered at the earliest, as its publisher wrote it.

Two message annotations of AMQP 1.0 say so, or headers of these names in AMQP 0-9-1: `x-opt-delivery-time`, in
milliseconds since 1970, which clients for JMS write, and `x-opt-delivery-delay`, in milliseconds from the
arrival at the queue, as Artemis has it. If both are there the first one counts.

A dead letter has no delay any more: the queue that gave it up was the one that should hold it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from amqp10broker.amqp091.deliver import DEAD_LETTERED
from amqp10broker.amqp091.properties import decode_properties
from amqp10broker.amqp091.types import Timestamp as Timestamp091
from amqp10broker.amqp10.types import Symbol
from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import decode_head, has_own_deaths

X_OPT_DELIVERY_TIME: Final = Symbol("x-opt-delivery-time")
X_OPT_DELIVERY_DELAY: Final = Symbol("x-opt-delivery-delay")

TIME_MAX_MS: Final = 2**63 - 1
"""The last time that a timestamp, and the file of a snapshot, can hold."""

_IN_BOTH: Final = b"x-opt-delivery-"


class Delay(NamedTuple):
    """Of one message."""

    ms: int
    """Since 1970, or from its arrival on."""
    from_arrival: bool

    def due_ms(self, now_ms: int) -> int:
        """When a message that arrives now may be delivered, in ms since 1970; what is past is at once."""
        return max(0, min(self.ms + now_ms if self.from_arrival else self.ms, TIME_MAX_MS))


def may_be_delayed(encoded: bytes) -> bool:
    """Whether a head, or properties, may hold one of the names: most do not, and need not be decoded."""
    return _IN_BOTH in encoded


def milliseconds_in(value: Any) -> int | None:
    """A time or a duration that a client wrote; None if it is no number.

    Brokers look at the value and not at its type: some clients write a long, others a timestamp, and one of
    AMQP 0-9-1 has seconds.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return min(int(value) * (1000 if isinstance(value, Timestamp091) else 1), TIME_MAX_MS)


def delay_of(head: bytes) -> Delay | None:
    """How long the message of this head is held back; None: it is not."""
    if head[0] != amqp091.MARK:
        annotations = decode_head(head)[1]
        return None if has_own_deaths(annotations) else _delay_in(annotations)
    if head[1] & DEAD_LETTERED:
        return None
    return _delay_in(decode_properties(amqp091.split_head(head)[1]).headers or {})


def _delay_in(annotations: Mapping[Any, Any]) -> Delay | None:
    when = milliseconds_in(annotations.get(X_OPT_DELIVERY_TIME))
    if when is not None:
        return Delay(when, from_arrival=False)
    delay = milliseconds_in(annotations.get(X_OPT_DELIVERY_DELAY))
    return None if delay is None or delay <= 0 else Delay(delay, from_arrival=True)
