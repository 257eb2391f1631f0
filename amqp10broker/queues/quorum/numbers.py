"""A compact map between numbers for a million mostly consecutive keys; a dict takes 100 bytes of each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Final

_BITS: Final = 6
_PAGE: Final = 1 << _BITS
_MASK: Final = _PAGE - 1

NUMBERS_MIN: Final = 4096
"""Number of entries from which on it replaces a dict, which is faster."""


class Numbers:
    """A dict of numbers from 0 on, in pages of 64 keys: 12 bytes an entry in a full page."""

    __slots__ = ("_pages",)

    def __init__(self, items: Iterable[tuple[int, int]]) -> None:
        self._pages: dict[int, array[int]] = {}
        """By page: the values plus 1, 0 for none; then their count."""
        for key, value in items:
            self[key] = value

    def __setitem__(self, key: int, value: int) -> None:
        page = self._pages.get(key >> _BITS)
        if page is None:
            page = self._pages[key >> _BITS] = array("Q", bytes(8 * (_PAGE + 1)))
        if not page[key & _MASK]:
            page[_PAGE] += 1
        page[key & _MASK] = value + 1

    def __contains__(self, key: int) -> bool:
        page = self._pages.get(key >> _BITS)
        return page is not None and page[key & _MASK] > 0

    def __getitem__(self, key: int) -> int:
        return self._pages[key >> _BITS][key & _MASK] - 1

    def pop(self, key: int, default: None = None) -> int | None:
        page = self._pages.get(key >> _BITS)
        found = 0 if page is None else page[key & _MASK]
        if page is None or not found:
            return default
        page[key & _MASK] = 0
        page[_PAGE] -= 1
        if not page[_PAGE]:
            del self._pages[key >> _BITS]
        return found - 1

    def items(self) -> Iterator[tuple[int, int]]:
        """Iterate over keys and values in no order."""
        for number, page in self._pages.items():
            for at in range(_PAGE):
                if page[at]:
                    yield number << _BITS | at, page[at] - 1
