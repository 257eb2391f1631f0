"""Addresses of AMQP 1.0 termini, version 2 of RabbitMQ's format, and bare queue names.

=================================  =================================================
``/queues/:queue``                 the queue, as source or target
``/exchanges/:exchange/:key``      target: exchange and routing key
``/exchanges/:exchange``           target: exchange and the empty routing key
``/topics/name``                   the topic of that name: target, or source of a subscriber
null                               target: each message names one of the above in `to`
``name`` (no leading slash)        the queue of that name, declared if it does not exist; the topic, if the
                                   terminus has that capability
=================================  =================================================

Segments of the first three are percent-encoded (RFC 3986). The name of a topic is not: JMS clients prepend
``/topics/`` to the names that their programs use. With a leading slash it is an address, so that a program
may give one of the first three as its topic's name.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from amqp10broker.dataclass import dataclass

NAME_BYTES_MAX: Final = 255
TOPICS: Final = "/topics/"
TOPIC_EXCHANGE: Final = "amq.topic"
"""The exchange of topics, with the topic's name as routing key."""
_BAD_PERCENT: Final = re.compile("%(?![0-9A-Fa-f]{2})")


class BadAddress(ValueError):
    """The string is not an address."""


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """The address of a queue. `declare`: a bare name, which declares the queue if it does not exist."""

    queue: str
    declare: bool = False


@dataclass(frozen=True, slots=True)
class ExchangeAddress:
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class TopicAddress:
    topic: str


Address = QueueAddress | ExchangeAddress | TopicAddress


def parse(address: str, *, bare: bool = True) -> Address:
    """Parse an address. `bare`: it may be a bare name. Raises `BadAddress`."""
    while address.startswith(TOPICS):
        address = address.removeprefix(TOPICS)
        if not address.startswith("/"):
            return topic_address(address)
    if not address.startswith("/"):
        if not address:
            raise BadAddress("the address is empty: name a queue, as in /queues/my-queue")
        if "\n" in address or "\r" in address:
            # A declaration drops line ends: permissions would be checked for another queue's name.
            raise BadAddress(f"address {address!r} has a line end in it, which no bare name may")
        _check_length(address, address)
        if not bare:
            raise BadAddress(
                f"address '{address}' is a bare name, which is not permitted: write "
                f"{queue_address(address)}, or start the broker with permit_amqp_address_v1 = true"
            )
        return QueueAddress(address, declare=True)
    if "?" in address or "#" in address:
        raise BadAddress(
            f"address '{address}' has a query or fragment part: in names write %3F for '?', %23 for '#'"
        )
    kind, *segments = address[1:].split("/")
    names = [_decode(segment, address) for segment in segments]
    match kind, names:
        case "queues", [queue] if queue:
            return QueueAddress(queue)
        case "queues", [] | [""]:
            raise BadAddress(f"address '{address}' names no queue: write /queues/:queue")
        case "queues", _:
            raise BadAddress(
                f"address '{address}' has too many segments: percent-encode '/' in a queue name as %2F"
            )
        case "exchanges", ["" | "amq.default", *_]:
            raise BadAddress(
                f"address '{address}' names the default exchange: publish to /queues/:queue instead"
            )
        case "exchanges", [exchange]:
            return ExchangeAddress(exchange, "")
        case "exchanges", [exchange, routing_key]:
            return ExchangeAddress(exchange, routing_key)
        case "exchanges", _:
            raise BadAddress(f"address '{address}' must be /exchanges/:exchange/:routing-key")
        case _:
            raise BadAddress(
                f"address '{address}' must begin with /queues/, /exchanges/ or /topics/, or be a bare "
                "queue name"
            )


def topic_address(name: str) -> TopicAddress:
    if not name:
        raise BadAddress("the address names no topic: write /topics/ and its name")
    _check_length(name, name)
    return TopicAddress(name)


def _decode(segment: str, address: str) -> str:
    if _BAD_PERCENT.search(segment):
        raise BadAddress(f"address '{address}' has a bad percent sequence: write a literal '%' as %25")
    try:
        name = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise BadAddress(f"address '{address}' is not UTF-8 after percent-decoding") from None
    _check_length(name, address)
    return name


def _check_length(name: str, address: str) -> None:
    if len(name.encode()) > NAME_BYTES_MAX:
        raise BadAddress(f"a name in address '{address[:64]}...' is longer than {NAME_BYTES_MAX} bytes")


def queue_address(queue: str) -> str:
    return "/queues/" + quote(queue, safe="")
