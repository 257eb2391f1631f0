"""Dead messages as a queue hands them out to be forwarded at least once, and the records in them."""

from __future__ import annotations

from typing import NamedTuple

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import X_OPT_DEATHS, decode_head, has_own_deaths
from amqp10broker.message.dead_letter_heads import Cause, DeadLettered, DeadLetterHeads
from amqp10broker.message.death_history import X_DEATH, Death, from_annotation, from_header, with_times
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp091.properties import read_headers
from amqp10broker.queues.commands import DeadLetterReason

HEAD = amqp091.make_head("ex", "k", b"\x00\x00")


class Held(NamedTuple):
    """One of them (see `sessions.at_least_once_dead_letters.DeadLetter`)."""

    key: int
    message: Message
    reason: DeadLetterReason


def held(*keys: int) -> list[Held]:
    return [Held(key, (HEAD, b"%d" % key), DeadLetterReason.EXPIRED) for key in keys]


def dead_lettered(head: bytes, cause: Cause) -> DeadLettered:
    return DeadLetterHeads(cause).of(head)


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
