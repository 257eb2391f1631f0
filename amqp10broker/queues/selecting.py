"""Subscriptions with a selector: a queue that accepts only some of the messages published to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amqp10broker.message.filters.filters import MessageFilter
from amqp10broker.message.filters.selector import compile_selector
from amqp10broker.message.message import Message

Select = Callable[[Sequence[Message]], Sequence[int]]
"""Returns the positions of the wanted messages, from 0, in order."""


def selection(selector: str) -> Select:
    """Compile a JMS selector. Raises `ValueError` if the selector is not valid; the message contains the
    position.
    """
    # Imported late: a broker starts sooner without filters.

    wanted = MessageFilter.of_sql(compile_selector(selector))
    return lambda messages: wanted.matching(messages, 0)


def fault_of(selector: str) -> str | None:
    try:
        selection(selector)
    except ValueError as error:
        return str(error)
    return None
