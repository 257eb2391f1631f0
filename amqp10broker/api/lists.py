"""Filtering by name, sorting, paging and column selection of lists."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Self, TypeAlias

from amqp10broker.api.messages import RequestRefused, bad_request
from amqp10broker.dataclass import dataclass
from amqp10broker.metadata.patterns import PatternSearch, is_expression

PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
_DIGITS_MAX: Final = 9
_ABSENT: Final = object()

Item: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The list options of a query.

    Attributes:
        columns: keys to include, with dots into objects; None: all.
        sort: the key to sort by, with dots; None: the order stays.
        page: from 1; None: everything, as a plain array.
        name: part of the names; None: any. It applies to pages only.
    """

    columns: tuple[str, ...] | None = None
    sort: str | None = None
    descending: bool = False
    page: int | None = None
    page_size: int = PAGE_SIZE
    name: str | None = None
    regex: bool = False

    @classmethod
    def read(cls, query: Mapping[str, str], *, paged: bool) -> Self:
        """Parse the list options of a query. `paged`: whether this list has pages at all; if not, page
        options are ignored.
        """
        columns = query.get("columns")
        page = _number(query, "page") if paged and "page" in query else None
        size = _number(query, "page_size") if page is not None and "page_size" in query else PAGE_SIZE
        if page == 0 or not 1 <= size <= PAGE_SIZE_MAX:
            raise RequestRefused(
                HTTPStatus.BAD_REQUEST,
                "invalid_pagination_parameters",
                f"page must be at least 1 and page_size from 1 to {PAGE_SIZE_MAX}; "
                f"they are {page} and {size}",
            )
        return cls(
            None if not columns else tuple(filter(None, columns.split(","))),
            query.get("sort") or None,
            query.get("sort_reverse") == "true",
            page,
            size,
            query.get("name") or None,
            query.get("use_regex") == "true",
        )

    async def found(self, items: Sequence[Item], pause: Callable[[], Awaitable[None]]) -> Sequence[Item]:
        """Return the items with matching names; all, if there are no pages. Raises `InvalidArgument` if the
        regular expression would take too long.
        """
        name = self.name
        if self.page is None or name is None:
            return items
        if not self.regex:
            return [item for item in items if name in _name(item)]
        # As in RabbitMQ, an invalid expression matches nothing.
        return await PatternSearch(name, "name").among(items, _name, pause) if is_expression(name) else []

    def shown(self, items: Sequence[Item]) -> list[Item]:
        """Return the items of a list without pages."""
        return [self.pick(item) for item in self.sorted(items)]

    def on_page(self, found: Sequence[Item]) -> Sequence[Item]:
        """Return the items of the page; all, if there are no pages."""
        if self.page is None:
            return found
        if self.page > max(-(-len(found) // self.page_size), 1):
            raise RequestRefused(
                HTTPStatus.BAD_REQUEST,
                "page_out_of_range",
                f"Page out of range, page: {self.page} page size: {self.page_size}, len: {len(found)}",
            )
        begin = (self.page - 1) * self.page_size
        return found[begin : begin + self.page_size]

    def facts(self, total: int, found: int, shown: int) -> dict[str, int] | None:
        """Return a page's counts beside its items; None if there are no pages."""
        if self.page is None:
            return None
        return {
            "filtered_count": found,
            "item_count": shown,
            "page": self.page,
            "page_count": -(-found // self.page_size),
            "page_size": self.page_size,
            "total_count": total,
        }

    def pick(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the requested columns of one object; missing ones are left out."""
        if self.columns is None:
            return item
        picked: dict[str, Any] = {}
        for column in self.columns:
            value = _at(item, column)
            if value is _ABSENT:
                continue
            *outer, last = column.split(".")
            place = picked
            for key in outer:
                inner = place.get(key)
                # A column that was requested as a whole contains this one already.
                place = inner if isinstance(inner, dict) else place.setdefault(key, {})
            place[last] = dict(value) if isinstance(value, Mapping) else value
        return picked

    def sorted(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the items in the requested order."""
        if self.sort is None:
            return items[::-1] if self.descending else items
        first, *inner = self.sort.split(".")
        # Each lookup counts with ten thousands of items, because no other task runs meanwhile.
        if not inner:
            ranks = [_rank(item.get(first, _ABSENT)) for item in items]
        else:
            by = self.sort
            ranks = [_rank(_at(item, by)) for item in items]
        order = sorted(range(len(items)), key=ranks.__getitem__, reverse=self.descending)
        return [items[place] for place in order]


def _name(item: Item) -> str:
    return str(item.get("name", ""))


def _at(item: Mapping[str, Any], path: str) -> Any:
    value: Any = item
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return _ABSENT
        value = value[key]
    return value


def _rank(value: Any) -> tuple[int, Any]:
    if value is _ABSENT:
        return (0, 0)
    if type(value) is int:  # the commonest type of a column
        return (0, value)
    if value is None:
        return (1, -1)
    if isinstance(value, bool):
        return (1, int(value))
    if isinstance(value, int | float):
        return (0, value)
    if isinstance(value, str):
        return (3, value)
    return (2, json.dumps(value, sort_keys=True, default=str))


def _number(query: Mapping[str, str], name: str) -> int:
    text = query[name]
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise bad_request(f"{name} must be a whole number, not '{text[:40]}'")
    return int(text)
