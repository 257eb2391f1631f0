"""Messages that can be told apart by a selector, and selectors."""

from __future__ import annotations

from amqp10broker.message.amqp10 import make_head
from amqp10broker.message.filters.filters import Filters, from_amqp10
from amqp10broker.message.message import Message
from amqp10broker.protocols.amqp10.codec import encode
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Described, Symbol, ULong

SELECTOR = Symbol("apache.org:selector-filter:string")
SQL = Symbol("amqp:sql-filter")


def coloured(
    number: int, colour: str, *, priority: int | None = None, ttl: int | None = None, durable: bool = False
) -> Message:
    """A message with the application property ``colour``, whose content ends in its number behind a #."""
    header = Header(durable=durable, priority=priority, ttl=ttl)
    properties = Described(ULong(0x74), {"colour": colour})
    body = Described(ULong(0x75), b"#%d" % number)
    return make_head(header, None, "", "q"), encode(properties) + encode(body)


def selector(text: str, descriptor: Symbol = SELECTOR) -> Filters:
    name = Symbol("sql-filter") if descriptor == SQL else Symbol("jms-selector")
    found = from_amqp10({name: Described(descriptor, text)})
    assert not found.refused, found.refused
    return found.filters
