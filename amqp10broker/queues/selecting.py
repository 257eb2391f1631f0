"""Subscriptions with a selector: a queue that accepts only some of the messages published to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amqp10broker.message.filters.filters import Filters, MessageFilter, encode_wanted
from amqp10broker.message.filters.sql_eval import compile_selector
from amqp10broker.message.message import Message

Select = Callable[[Sequence[Message]], Sequence[int]]
"""Returns the positions of the wanted messages, from 0, in order."""


def selection(selector: str) -> Select:
    """Compile a JMS selector. Raises `ValueError`, with the position, if it is not valid."""
    wanted = MessageFilter.of_sql(compile_selector(selector))
    return lambda messages: wanted.matching(messages, 0)


def encoded(filters: object | None) -> bytes | None:
    """Return a consumer's filters as the log of a quorum queue contains them; None: it wants all messages."""
    if filters is None or isinstance(filters, bytes):
        return filters
    assert isinstance(filters, Filters)
    return None if filters.messages is None else encode_wanted(filters)


def fault_of(selector: str) -> str | None:
    try:
        selection(selector)
    except ValueError as error:
        return str(error)
    return None
