"""Differences between two answers of one path, for live updates.

A difference is JSON. It is one of:

- ``{"to": value}``: another value, whole;
- ``{"members": {name: difference}, "gone": [name]}``: an object with otherwise unchanged members;
- ``{"order": [place or [row]], "rows": {place: difference}}``: an array. ``order`` contains for each place
  of the new array its row's place in the old one, or a new row, within an array; without it the places are
  unchanged. ``rows`` are those that have changed, by their new places.

Rows are identified by the members in `_NAMES`, and by their places without these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from amqp10broker.api.messages import json_text

Difference: TypeAlias = dict[str, Any]

_NAMES: Final = (
    ("kind", "connection", "channel", "role", "name"),
    ("source", "vhost", "destination", "destination_type", "properties_key"),
    ("consumer_tag", "queue", "channel_details", "link_details"),
    ("consumer_tag", "queue", "channel_details"),
    ("component", "vhost", "name"),
    ("user", "vhost", "exchange"),
    ("user", "vhost"),
    ("vhost", "name"),
    ("name",),
    ("channel_number",),
    ("handle",),
    ("timestamp",),
    ("Node Name",),
    ("watch",),
)
"""Members that together name a row. The first tuple counts that all rows have, each with other values."""
_DEPTH_MAX: Final = 12
"""Deeper values, in arguments of clients, are compared as a whole."""


def difference(before: Any, after: Any) -> Difference | None:
    """Return the difference between two parsed JSON values; None: they are equal."""
    return _difference(before, after, 0)


def applied(value: Any, change: Difference) -> Any:
    """Apply a difference to a value, which is not changed: the page does the same."""
    if "to" in change:
        return change["to"]
    if "rows" in change:
        rows = (
            list(value)
            if "order" not in change
            else [each[0] if isinstance(each, list) else value[each] for each in change["order"]]
        )
        for place, inner in change["rows"].items():
            rows[int(place)] = applied(rows[int(place)], inner)
        return rows
    made = {name: each for name, each in value.items() if name not in change["gone"]}
    for name, inner in change["members"].items():
        made[name] = applied(value.get(name), inner)
    return made


def _difference(before: Any, after: Any, depth: int) -> Difference | None:
    if before is after:
        return None
    # A truth value is equal to a number in Python, but not in JSON.
    if type(before) is not type(after):
        return {"to": after}
    if isinstance(after, dict | list):
        if depth >= _DEPTH_MAX:
            return None if json_text(before) == json_text(after) else {"to": after}
        return _members(before, after, depth) if isinstance(after, dict) else _rows(before, after, depth)
    return None if before == after else {"to": after}


def _members(before: dict[str, Any], after: dict[str, Any], depth: int) -> Difference | None:
    changed: dict[str, Difference] = {}
    for name, value in after.items():
        change = _difference(before[name], value, depth + 1) if name in before else {"to": value}
        if change is not None:
            changed[name] = change
    gone = [name for name in before if name not in after]
    return {"members": changed, "gone": gone} if changed or gone else None


def _rows(before: list[Any], after: list[Any], depth: int) -> Difference | None:
    names = _names_of(before, after)
    if names is None:
        places: list[int | None] = [place if place < len(before) else None for place in range(len(after))]
    else:
        where = {_key(row, names): place for place, row in enumerate(before)}
        places = [where.get(_key(row, names)) for row in after]
    changed = {
        str(new): change
        for new, old in enumerate(places)
        if old is not None and (change := _difference(before[old], after[new], depth + 1)) is not None
    }
    if len(before) == len(after) and all(old == new for new, old in enumerate(places)):
        return {"rows": changed} if changed else None
    order = [[after[new]] if old is None else old for new, old in enumerate(places)]
    return {"order": order, "rows": changed}


def _names_of(before: Sequence[Any], after: Sequence[Any]) -> tuple[str, ...] | None:
    some = next(iter(after), None) or next(iter(before), None)
    if not isinstance(some, dict):
        return None
    for names in _NAMES:
        if all(name in some for name in names) and _all_named(before, names) and _all_named(after, names):
            return names
    return None


def _all_named(rows: Sequence[Any], names: tuple[str, ...]) -> bool:
    found = set()
    for row in rows:
        if not isinstance(row, dict) or not all(name in row for name in names):
            return False
        found.add(_key(row, names))
    return len(found) == len(rows)


def _key(row: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    values = (row[name] for name in names)
    return tuple(json_text(value) if isinstance(value, dict | list | bool) else value for value in values)
