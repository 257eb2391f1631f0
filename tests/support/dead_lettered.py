"""One dead-lettered message, and the broker's records in it."""

from __future__ import annotations

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import X_OPT_DEATHS, decode_head, has_own_deaths
from amqp10broker.message.dead_lettering import Cause, DeadLettered, Dying
from amqp10broker.message.death_history import X_DEATH, Death, from_annotation, from_header, with_times
from amqp10broker.protocols.amqp091.properties import read_headers


def dead_lettered(head: bytes, cause: Cause) -> DeadLettered:
    return Dying(cause).of(head)


def deaths_of(head: bytes) -> tuple[Death, ...]:
    """Return the broker's records, newest first; records that a client published do not count."""
    if head[0] == amqp091.MARK:
        times = amqp091.death_times(head)
        if not times:
            return ()
        headers = read_headers(amqp091.split_head(head)[1])
        return with_times(from_header(headers.get(X_DEATH)), times)
    annotations = decode_head(head)[1]
    return from_annotation(annotations[X_OPT_DEATHS]) if has_own_deaths(annotations) else ()
