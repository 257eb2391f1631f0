"""Conditions of a Spark query that the broker or the choice of offsets can evaluate.

Spark passes simple conditions that must all hold. They are used here only to omit rows that Spark would drop:
every condition but one on `offset` is returned for Spark to check again, because a column holds text where a
message may hold another type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from amqp10broker.dataclass import dataclass

_SQL_CHARS_MAX: Final = 4096
# Brokers refuse filters above this, of which the option `filter` may have taken most.
_SQL_TOKENS_MAX: Final = 200
_ULONG: Final = re.compile("0|[1-9][0-9]*")
# A number with more digits may not be an integer literal to a broker.
_ULONG_DIGITS_MAX: Final = 18
_HEX: Final = re.compile("0x(?:[0-9a-f]{2})*")
# Matches at least as often as there are tokens.
_WORDS: Final = re.compile(r"[^\W\d]\w*|\d+|[^\w\s]")
_UUID: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(slots=True)
class Pushed:
    """The conditions that the source evaluates. `high`: the first offset not wanted, None for no limit."""

    low: int = 0
    high: int | None = None
    conditions: tuple[str, ...] = ()

    def sql(self, given: str | None) -> str | None:
        """Return the option `filter` joined with as many conditions as there is room for."""
        bare = None if given is None else f"({given})"
        sql = bare
        for condition in self.conditions:
            longer = condition if sql is None else f"{sql} AND {condition}"
            if len(longer) <= _SQL_CHARS_MAX and len(_WORDS.findall(longer)) <= _SQL_TOKENS_MAX:
                sql = longer
        return given if sql == bare else sql


def push(filters: Iterable[Filter], pushed: Pushed) -> Iterator[Filter]:
    """Add to `pushed` the conditions that the source can evaluate, and yield those that Spark has to check,
    too.
    """
    for each in filters:
        if not _push_offset(each, pushed):
            _push_text(each, pushed)
            yield each


def _push_offset(each: Any, pushed: Pushed) -> bool:
    if getattr(each, "attribute", None) != ("offset",):
        return False
    value = getattr(each, "value", None)
    if type(value) is not int:
        return False
    match each:
        case GreaterThan():
            low, high = value + 1, None
        case GreaterThanOrEqual():
            low, high = value, None
        case LessThan():
            low, high = 0, value
        case LessThanOrEqual():
            low, high = 0, value + 1
        case EqualTo():
            low, high = value, value + 1
        case _:
            return False
    pushed.low = max(pushed.low, low)
    if high is not None:
        pushed.high = max(0, high if pushed.high is None else min(pushed.high, high))
    return True


def _push_text(each: Any, pushed: Pushed) -> None:
    if not isinstance(each, EqualTo) or not isinstance(each.value, str):
        return
    match each.attribute:
        case ("subject",):
            condition = f"p.subject = {_quoted(each.value)}"
        case ("messageId",):
            found = _message_id(each.value)
            if found is None:
                return
            condition = found
        case _:
            return
    if each.value.isprintable():
        pushed.conditions += (condition,)


def _message_id(text: str) -> str | None:
    # A condition for all message-ids that the column shows as this text, or None if there is none.
    as_string = f"p.message_id = {_quoted(text)}"
    if _UUID.fullmatch(text) or text == "0x" or (_ULONG.fullmatch(text) and len(text) > _ULONG_DIGITS_MAX):
        return None
    if _ULONG.fullmatch(text):
        return f"({as_string} OR p.message_id = {text})"
    if _HEX.fullmatch(text):
        # A binary literal has digits 0-9A-F, for this broker and for RabbitMQ; the column has 0-9a-f.
        return f"({as_string} OR p.message_id = 0x{text[2:].upper()})"
    return as_string


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
