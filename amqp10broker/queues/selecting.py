"""What a queue takes in that is for some of the messages that come: a subscription with a selector."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amqp10broker.message.message import Message

Select = Callable[[Sequence[Message]], Sequence[int]]
"""The positions of those messages that are wanted, in order, counted from 0."""


def selection(selector: str) -> Select:
    """What a selector of JMS wants.

    Raises:
        ValueError: it is none; the error says where.
    """
    # Not before there is one: a broker starts sooner without filters.
    from amqp10broker.message.filters.filters import MessageFilter
    from amqp10broker.message.filters.selector import compile_selector

    wanted = MessageFilter.of_sql(compile_selector(selector))
    return lambda messages: wanted.matching(messages, 0)


def fault_of(selector: str) -> str | None:
    """Why a text is no selector; None: it is one."""
    try:
        selection(selector)
    except ValueError as error:
        return str(error)
    return None
