"""What a reader of the live stream does with a difference."""

from __future__ import annotations

from typing import Any

from amqp10broker.api.live import Difference


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
