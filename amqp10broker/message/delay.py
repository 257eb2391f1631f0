"""The earliest delivery time of a message, as its publisher wrote it.

It is a message annotation of AMQP 1.0, or a header in AMQP 0-9-1: `x-opt-delivery-time`, in milliseconds
since 1970, which JMS clients write, or `x-opt-delivery-delay`, in milliseconds from the arrival at the
queue, as in Artemis. If both are present the first one counts.

A dead letter has no delay any more: it applied to the first queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import decode_head, has_own_deaths
from amqp10broker.protocols.amqp091.deliver import DEAD_LETTERED
from amqp10broker.protocols.amqp091.properties import decode_properties
from amqp10broker.protocols.amqp091.types import Timestamp as Timestamp091
from amqp10broker.protocols.amqp10.types import Symbol

X_OPT_DELIVERY_TIME: Final = Symbol("x-opt-delivery-time")
X_OPT_DELIVERY_DELAY: Final = Symbol("x-opt-delivery-delay")

TIME_MAX_MS: Final = 2**63 - 1
"""The last time that a timestamp, and the file of a snapshot, can represent."""

_IN_BOTH: Final = b"x-opt-delivery-"


class Delay(NamedTuple):
    ms: int
    """Since 1970, or from its arrival on."""
    from_arrival: bool

    def due_ms(self, now_ms: int) -> int:
        """Of a message that arrives now, in ms since 1970; a past time is due at once."""
        return max(0, min(self.ms + now_ms if self.from_arrival else self.ms, TIME_MAX_MS))


def may_be_delayed(encoded: bytes) -> bool:
    """Whether a head, or properties, may contain one of the names: most need not be decoded."""
    return _IN_BOTH in encoded


def milliseconds_in(value: Any) -> int | None:
    """Read a time or a duration that a client wrote; None if it is not a number. The type does not count:
    some write a long, others a timestamp, and one of AMQP 0-9-1 is in seconds.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return min(int(value) * (1000 if isinstance(value, Timestamp091) else 1), TIME_MAX_MS)


def delay_of(head: bytes) -> Delay | None:
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
