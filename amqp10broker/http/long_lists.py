"""Lists that may have ten thousands of items: others go on while one is made.

What is known of every item at no cost finds, and if it can sorts, those that are asked for; only these are
made, in portions, and of them only the columns that are asked for. They are written in portions, too: an
encoder lets nobody else run before it is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

from amqp10broker.http.calls import Call
from amqp10broker.http.lists import Item, Listing
from amqp10broker.http.messages import Answer, json_bytes

T = TypeVar("T")

PORTION: Final = 50
"""Items that are made, or written, in one go: some milliseconds."""

Make: TypeAlias = Callable[[Sequence[Item], Collection[str] | None], Awaitable[Sequence[Item]]]
"""Makes whole items of known ones, in their order: with these keys at least, None for all. An item that
is not there any more is left out."""


async def described(call: Call, things: Sequence[T], describe: Callable[[T], Item]) -> list[Item]:
    """Each thing as it is shown, made in portions.

    Args:
        call: asks for it.
        things: which may end meanwhile.
        describe: makes an item.
    """
    made: list[Item] = []
    for portion in _portions(things):
        made += map(describe, portion)
        await call.door.pause()
    return made


async def listed(
    call: Call, known: Sequence[Item], make: Make | None = None, *, paged: bool = True
) -> Answer:
    """The answer with a list.

    Args:
        call: asks for it.
        known: each item as far as it costs nothing, in the order of virtual host and name. All have the same
            keys, ``name`` among them.
        make: makes the rest; None: there is none.
        paged: whether this list comes in pages.

    Raises:
        Refused: 400, no such page can be.
        InvalidArgument: the name is a regular expression that would take too long.
    """
    listing = Listing.read(call.request.query, paged=paged)
    keys = set(known[0]) if known else set[str]()
    found = await listing.found(known, call.door.pause)
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
        await call.door.pause()
    facts = listing.facts(len(known), len(found), shown)
    if facts is None:
        return Answer.of_json_bytes(_joined(parts))
    return Answer.of_json_bytes(_joined(parts, json_bytes(facts)[:-1] + b',"items":[', b"]}"))


async def written(
    call: Call, things: Sequence[T], describe: Callable[[T], Item], size: int | None = None
) -> bytes:
    """A JSON array, written in portions.

    Args:
        call: asks for it.
        things: its items.
        describe: makes an item as it is written.
        size: items of a portion; None: `PORTION`.
    """
    parts = []
    for portion in _portions(things, size):
        parts.append(_part(map(describe, portion)))
        await call.door.pause()
    return _joined(parts)


async def _with(
    key: str, keys: Collection[str], call: Call, items: Sequence[Item], make: Make
) -> Sequence[Item]:
    """Known items with one key more. All else of what is made for it is dropped: it would be much."""
    made: list[Item] = []
    for portion in _portions(items):
        made += [
            {name: value for name, value in item.items() if name in keys or name == key}
            for item in await make(portion, {key})
        ]
        await call.door.pause()
    return made


def _part(items: Iterable[Item]) -> bytes:
    return json_bytes(list(items))[1:-1]


def _joined(parts: Iterable[bytes], before: bytes = b"[", behind: bytes = b"]") -> bytes:
    """One array, in one go: it may be ten megabytes."""
    pieces = [before]
    for part in filter(None, parts):
        pieces += (part, b",")
    if len(pieces) > 1:
        pieces.pop()
    return b"".join((*pieces, behind))


def _portions(items: Sequence[T], size: int | None = None) -> list[Sequence[T]]:
    size = PORTION if size is None else size
    return [items[begin : begin + size] for begin in range(0, len(items), size)]
