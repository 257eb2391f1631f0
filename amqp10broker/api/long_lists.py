"""Lists with possibly ten thousands of items, made without blocking other tasks.

The cheap columns are enough to find, and if possible to sort, the requested items; only these are
completed, in portions, with the requested columns. They are encoded in portions, too: the encoder lets no
other task run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

from amqp10broker.api.calls import EndpointCall
from amqp10broker.api.lists import Item, ListQuery
from amqp10broker.api.messages import HttpResponse, json_bytes

T = TypeVar("T")

PORTION: Final = 50
"""Items that are made, or encoded, in one go: some milliseconds."""

Make: TypeAlias = Callable[[Sequence[Item], Collection[str] | None], Awaitable[Sequence[Item]]]
"""Completes items, in their order: with at least these keys, None for all. An item that has been deleted is
left out.
"""


async def described(call: EndpointCall, things: Sequence[T], describe: Callable[[T], Item]) -> list[Item]:
    """Make an item of each thing, in portions; things may end meanwhile."""
    made: list[Item] = []
    for portion in _portions(things):
        made += map(describe, portion)
        await call.broker_api.pause()
    return made


async def listed(
    call: EndpointCall, known: Sequence[Item], make: Make | None = None, *, paged: bool = True
) -> HttpResponse:
    """Answer with a list.

    Args:
        known: the cheap columns of each item, in the order of virtual host and name. All have the same
            keys, ``name`` among them.
        make: completes items; None: they are complete.

    Raises:
        InvalidArgument: the regular expression would take too long.
    """
    listing = ListQuery.read(call.request.query, paged=paged)
    keys = set(known[0]) if known else set[str]()
    found = await listing.found(known, call.broker_api.pause)
    by = None if listing.sort is None else listing.sort.partition(".")[0]
    if make is not None and by is not None and by not in keys:
        found = await _with(by, keys, call, found, make)
    chosen = listing.on_page(listing.sorted(found))
    columns = None if listing.columns is None else {name.partition(".")[0] for name in listing.columns}
    wanted = None if columns is None else columns - keys
    shown, parts = 0, []
    for portion in _portions(chosen):
        items = portion if make is None or wanted == set() else await make(portion, wanted)
        shown += len(items)
        parts.append(_part(map(listing.pick, items)))
        await call.broker_api.pause()
    facts = listing.facts(len(known), len(found), shown)
    if facts is None:
        return HttpResponse.of_json_bytes(_joined(parts))
    return HttpResponse.of_json_bytes(_joined(parts, json_bytes(facts)[:-1] + b',"items":[', b"]}"))


async def written(
    call: EndpointCall, things: Sequence[T], describe: Callable[[T], Item], size: int | None = None
) -> bytes:
    """Encode a JSON array in portions. `size`: items of a portion; None: `PORTION`."""
    parts = []
    for portion in _portions(things, size):
        parts.append(_part(map(describe, portion)))
        await call.broker_api.pause()
    return _joined(parts)


async def _with(
    key: str, keys: Collection[str], call: EndpointCall, items: Sequence[Item], make: Make
) -> Sequence[Item]:
    # All other columns that are computed for the key are dropped: together they would be large.
    made: list[Item] = []
    for portion in _portions(items):
        made += [
            {name: value for name, value in item.items() if name in keys or name == key}
            for item in await make(portion, {key})
        ]
        await call.broker_api.pause()
    return made


def _part(items: Iterable[Item]) -> bytes:
    return json_bytes(list(items))[1:-1]


def _joined(parts: Iterable[bytes], before: bytes = b"[", behind: bytes = b"]") -> bytes:
    pieces = [before]
    for part in filter(None, parts):
        pieces += (part, b",")
    if len(pieces) > 1:
        pieces.pop()
    return b"".join((*pieces, behind))


def _portions(items: Sequence[T], size: int | None = None) -> list[Sequence[T]]:
    size = PORTION if size is None else size
    return [items[begin : begin + size] for begin in range(0, len(items), size)]
