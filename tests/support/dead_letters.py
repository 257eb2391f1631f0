"""Dead messages as a queue hands them out to be forwarded at least once."""

from __future__ import annotations

from typing import NamedTuple

from amqp10broker.message import amqp091
from amqp10broker.message.message import Message
from amqp10broker.queues.commands import DeadLetterReason

HEAD = amqp091.make_head("ex", "k", b"\x00\x00")


class Held(NamedTuple):
    """One of them (see `sessions.at_least_once_dead_letters.DeadLetter`)."""

    key: int
    message: Message
    reason: DeadLetterReason


def held(*keys: int) -> list[Held]:
    return [Held(key, (HEAD, b"%d" % key), DeadLetterReason.EXPIRED) for key in keys]
