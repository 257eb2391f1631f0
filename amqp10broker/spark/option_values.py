"""Parsers of single option values, from the text that Spark passes.

Each function takes the option's name, for the error, and the text. No error contains a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, Final

from amqp10broker.client.url import shortened, text_fault
from amqp10broker.dataclass import dataclass
from amqp10broker.spark.errors import OptionError, SparkSourceError

_START: Final = "start"
_LOST: Final = "lost"
_PIECES: Final = "pieces"
_INITIAL: Final = "initial"
_ID: Final = "id"


@dataclass(frozen=True, slots=True)
class Cut:
    """How the batch that ends at an offset was planned. `lost`: number of offsets before `start` that should
    have been read, and no longer existed at planning.
    """

    start: int
    pieces: int
    lost: int = 0


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in a stream between two batches.

    Attributes:
        cut: of the batch that ends here. None where a query begins, and for offsets written by hand.
        initial: a query without checkpoint begins here. Spark requests it again when it repeats the first
            batch, and it may differ by then.
    """

    next: int
    cut: Cut | None = None
    initial: bool = False
    declaration_id: str | None = None

    def is_of_another(self, declaration_id: str | None) -> bool:
        return None not in (declaration_id, self.declaration_id) and declaration_id != self.declaration_id

    def written(self, stream: str) -> dict[str, Any]:
        found: dict[str, Any] = {stream: self.next}
        if self.declaration_id is not None:
            found[f"{stream}.{_ID}"] = self.declaration_id
        if self.cut is not None:
            found[f"{stream}.{_START}"] = self.cut.start
            found[f"{stream}.{_PIECES}"] = self.cut.pieces
            if self.cut.lost:
                found[f"{stream}.{_LOST}"] = self.cut.lost
        if self.initial:
            found[f"{stream}.{_INITIAL}"] = True
        return found


def is_of(stream: str, written: Mapping[str, Any]) -> bool:
    """Return whether a JSON object has exactly the keys of an offset of this stream."""
    more = {f"{stream}.{key}" for key in (_START, _LOST, _PIECES, _INITIAL, _ID)}
    return stream in written and written.keys() <= {stream, *more}


def read_offset(stream: str, written: Mapping[str, Any]) -> StreamOffset:
    """Parse an offset that Spark stored for this stream. Raises `SparkSourceError` if it belongs to another
    stream, or its values are invalid.
    """
    if not is_of(stream, written):
        raise SparkSourceError(
            f"the checkpoint belongs to {', '.join(map(repr, written))}, and the option stream is "
            f"'{stream}': use another checkpointLocation"
        )

    def number(key: str) -> int:
        value = written.get(key, 0)
        if type(value) is not int or value < 0:
            raise SparkSourceError(
                f"the checkpoint says {value!r} for '{key}', which must be a number from 0: restore the "
                "checkpoint, or begin anew with another checkpointLocation"
            )
        return value

    cut = None
    if f"{stream}.{_START}" in written:
        cut = Cut(*(number(f"{stream}.{key}") for key in (_START, _PIECES, _LOST)))
    declared = written.get(f"{stream}.{_ID}")
    return StreamOffset(
        number(stream),
        cut,
        initial=bool(written.get(f"{stream}.{_INITIAL}")),
        declaration_id=None if declared is None else str(declared),
    )


_LONG_MAX: Final = 2**63 - 1
_TIME_MAX_S: Final = 365 * 86_400.0
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class StartKind(Enum):
    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    TIMESTAMP = auto()


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where a source begins. `value` is an offset, or milliseconds since 1970; 0 for the other kinds."""

    kind: StartKind
    value: int = 0


EARLIEST: Final = StartPosition(StartKind.EARLIEST)
LATEST: Final = StartPosition(StartKind.LATEST)


def text_value(name: str, text: str) -> str:
    """Accept any text but the empty one."""
    if not text:
        raise OptionError(name, "is empty", "give a value, or leave the option out")
    return secret_value(name, text)


def secret_value(name: str, text: str) -> str:
    """Accept any text, including the empty one, and never include it in an error."""
    if fault := text_fault(text):
        raise OptionError(name, fault.problem, fault.allowed)
    return text


def flag(name: str, text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise OptionError(name, f"is '{shortened(text)}'", "must be true or false")


def integer(least: int, most: int = _LONG_MAX) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        allowed = f"must be an integer from {least}" + ("" if most == _LONG_MAX else f" to {most}")
        try:
            value = int(text.strip())
        except ValueError:
            raise OptionError(name, f"is '{shortened(text)}'", allowed) from None
        if not least <= value <= most:
            raise OptionError(name, f"is {shortened(str(value))}", allowed)
        return value

    return parse


def choice(allowed: Sequence[str]) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        for word in allowed:
            if word.lower() == text.strip().lower():
                return word
        raise OptionError(name, f"is '{shortened(text)}'", f"must be {' or '.join(allowed)}")

    return parse


def seconds(name: str, text: str) -> float:
    """Parse a time such as ``30s``, ``500ms``, ``2m``; a bare number is seconds. Above 0, up to a year."""
    found = _DURATION.fullmatch(text.strip().lower())
    value = float(found[1]) * _UNIT_S[found[2] or "s"] if found else 0.0
    if not 0 < value <= _TIME_MAX_S:
        raise OptionError(
            name,
            f"is '{shortened(text)}'",
            "must be a time above 0 such as 30s, 500ms or 2m, and no more than a year",
        )
    return value


def starting_offsets(name: str, text: str, stream: str) -> StartPosition:
    """Parse ``earliest``, ``latest``, a number, or ``{"STREAM": number}``."""
    match text.strip().lower():
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
        case _:
            return StartPosition(StartKind.OFFSET, _offset(name, text, stream, "earliest, latest"))


def ending_offsets(name: str, text: str, stream: str) -> int | None:
    """Parse ``latest`` (None), a number, or ``{"STREAM": number}``: the first offset that is not read."""
    if text.strip().lower() == "latest":
        return None
    return _offset(name, text, stream, "latest")


def _offset(name: str, text: str, stream: str, words: str) -> int:
    allowed = f'must be {words}, an offset from 0 such as 1000, or {{"{stream}": 1000}}'
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError(name, f"is '{shortened(text)}'", allowed) from None
    if isinstance(value, dict):
        if not is_of(stream, value):  # progress and checkpoint contain more than the number
            raise OptionError(
                name, f"is {shortened(text)}, which does not name the stream '{stream}' alone", allowed
            )
        value = value[stream]
    if type(value) is not int or not 0 <= value <= _LONG_MAX:
        raise OptionError(name, f"is '{shortened(text)}'", allowed)
    return value


def timestamp_ms(name: str, text: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601 with a zone: ``2026-01-31T12:00:00Z``."""
    allowed = "must be milliseconds since 1970, or a time with its zone such as 2026-01-31T12:00:00Z"
    written = text.strip()
    if written.isdecimal():
        return integer(0)(name, written)
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise OptionError(name, f"is '{shortened(text)}'", allowed) from None
    if moment.tzinfo is None:
        raise OptionError(name, f"is '{shortened(text)}', without a zone", allowed)
    value = round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    if value < 0:
        raise OptionError(name, f"is '{shortened(text)}', before 1970", allowed)
    return value
