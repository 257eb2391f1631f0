"""A message in the broker: a head made by the broker, and the publisher's bytes untouched.

A `Message` is a plain tuple of two bytes objects; the first byte of the head determines the protocol:

==============  =======================================================  ===============================
protocol        head                                                     second part
==============  =======================================================  ===============================
AMQP 1.0        0x00: encoded header and message-annotations as they     bare message and footer, byte
                will be delivered                                        for byte as published
AMQP 0-9-1      0x91, flags (bit 0: redelivered, 1: dead-lettered, 2:    the body
                hidden keys), delivery-count in 4 bytes, exchange and
                routing key as short strings, the properties of the
                content header as published; if there are, the keys of
                BCC; if dead-lettered, the times of its records
==============  =======================================================  ===============================

A head of AMQP 1.0 depends on few things (the publisher's header and annotations, exchange, routing key),
so that thousands of messages share one object.

Two bytes objects in a tuple are the cheapest queued representation: 56 bytes beside the content, and the
garbage collector untracks tuples of atoms at the first pass (with a million objects waiting, that is the
difference between no pause and 150 ms). Everything else about a message is read from the head later.

Records of dead-lettering are in the annotation x-opt-deaths, or in the header x-death. A client may
publish these too. The broker's own are marked by the flag in a head of AMQP 0-9-1, and by x-opt-deaths
being the first of the annotations in one of AMQP 1.0.

A message stays in its publisher's encoding; `convert` makes the other one for a consumer that needs it.
"""

from __future__ import annotations

from typing import TypeAlias

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import HeadAndContent, MessageReader, acquired_head, header_of, make_head

__all__ = [
    "Message",
    "MessageReader",
    "acquired",
    "durable",
    "header_of",
    "is_amqp091",
    "make_head",
    "redelivered",
]

Message: TypeAlias = HeadAndContent


def is_amqp091(message: Message) -> bool:
    return message[0][0] == amqp091.MARK


def durable(message: Message) -> bool:
    """Return whether the publisher wants the message to survive a restart."""
    head = message[0]
    if head[0] == amqp091.MARK:
        return amqp091.persistent(head)
    return bool(header_of(head).durable)


def redelivered(message: Message) -> bool:
    """Return whether the message may have been delivered before, as reported to the client."""
    head = message[0]
    if head[0] == amqp091.MARK:
        return amqp091.redelivered(head)
    return header_of(head).first_acquirer is False


def acquired(message: Message, *, failed: bool) -> Message:
    head, content = message
    if head[0] == amqp091.MARK:
        return amqp091.acquired_head(head, failed), content
    return acquired_head(head, failed), content
