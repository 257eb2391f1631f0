"""LIKE: ``_`` stands for one character, ``%`` for any number of them; an escape character makes them literal.

A pattern is cut at its ``%`` into segments of fixed length. The first and the last have their places at
the ends of the text; each of the others is searched from the end of the one before it, because the nearest
place is as good as any. So nothing is ever tried twice, and no pattern makes the search explode.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from amqp10broker.message.filters.errors import FilterError
from amqp10broker.message.filters.sql_lexer import CONTROL

Matcher = Callable[[str], bool]

_STEPS_MAX: Final = 100_000
"""A search by regular expression takes at most text times segment steps, of about 3 ns. Beyond this number,
which only malice reaches, another search takes one step per character, of about 200 ns.
"""


class _Segment:
    """A pattern's piece between two ``%``."""

    __slots__ = ("_characters", "_pattern", "length", "text")

    def __init__(self, characters: list[str | None]) -> None:
        self.length = len(characters)
        self.text = None if None in characters else "".join(map(str, characters))
        """The segment itself, if it contains no ``_``."""
        self._characters = characters
        self._pattern = re.compile(
            "".join("." if character is None else re.escape(character) for character in characters), re.DOTALL
        )

    def is_at(self, text: str, start: int) -> bool:
        if self.text is not None:
            return text.startswith(self.text, start)
        return self._pattern.match(text, start) is not None

    def find(self, text: str, start: int, end: int) -> int:
        if self.text is not None:
            return text.find(self.text, start, end)
        if (end - start) * self.length > _STEPS_MAX:
            return self._find_in_long(text, start, end)
        found = self._pattern.search(text, start, end)
        return -1 if found is None else found.start()

    def _find_in_long(self, text: str, start: int, end: int) -> int:
        # Bit i of `state` means that the first i + 1 characters stand right before the current place.
        anything = sum(1 << index for index, character in enumerate(self._characters) if character is None)
        accepted: dict[str, int] = {}
        for index, character in enumerate(self._characters):
            if character is not None:
                accepted[character] = accepted.get(character, anything) | 1 << index
        whole = 1 << (self.length - 1)
        state = 0
        for place in range(start, end):
            state = (state << 1 | 1) & accepted.get(text[place], anything)
            if state & whole:
                return place + 1 - self.length
        return -1


def compile_like(pattern: str, escape: str | None) -> Matcher:
    """`escape`: makes the next character literal; None: no character does."""
    segments = [_Segment(characters) for characters in _split(pattern, escape)]
    if len(segments) == 1:
        return _exactly(segments[0])
    simple = _with_one_percent(segments)
    if simple is not None:
        return simple
    first, *others, last = segments
    middle = [segment for segment in others if segment.length]
    length = sum(segment.length for segment in segments)

    def matches(text: str) -> bool:
        end = len(text) - last.length
        if len(text) < length or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        start = first.length
        for segment in middle:
            place = segment.find(text, start, end)
            if place < 0:
                return False
            start = place + segment.length
        return True

    return matches


def longest_part(pattern: str, escape: str | None) -> str:
    parts = [""]
    for characters in _split(pattern, escape):
        parts.append("")
        for character in characters:
            if character is None:
                parts.append("")
            else:
                parts[-1] += character
    return max(parts, key=len)


def _split(pattern: str, escape: str | None) -> list[list[str | None]]:
    if CONTROL.search(pattern):
        raise FilterError("a control character in the pattern of LIKE")
    segments: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise FilterError("the pattern of LIKE ends with the escape character")
            segments[-1].append(escaped)
        elif character == "%":
            segments.append([])
        else:
            segments[-1].append(None if character == "_" else character)
    return segments


def _exactly(segment: _Segment) -> Matcher:
    wanted = segment.text
    if wanted is not None:
        return lambda text: text == wanted
    return lambda text: len(text) == segment.length and segment.is_at(text, 0)


def _with_one_percent(segments: list[_Segment]) -> Matcher | None:
    texts = [segment.text for segment in segments]
    match texts:
        case [str() as start, ""]:
            return lambda text: text.startswith(start)
        case ["", str() as end]:
            return lambda text: text.endswith(end)
        case ["", str() as part, ""]:
            return lambda text: part in text
        case [str() as start, str() as end]:
            length = len(start) + len(end)
            return lambda text: len(text) >= length and text.startswith(start) and text.endswith(end)
        case _:
            return None
