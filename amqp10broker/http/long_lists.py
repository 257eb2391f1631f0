"""Lists that may have ten thousands of items: others go on while one is made.

What is known of every item at no cost finds, and if it can sorts, those that are asked for; only these are
made, in portions, and of them only the columns that are asked for. They are written in portions, too: an
encoder lets nobody else run before it is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from amqp10broker.http.calls import Call
from amqp10broker.http.lists import Listing
from amqp10broker.http.messages import Answer, json_text

T = TypeVar("T")

PORTION: Final = 100
"""Items that are made, or written, in one go: some milliseconds."""

Item: TypeAlias = Mapping[str, Any]
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
    """
    listing = Listing.read(call.request.query, paged=paged)
    keys = set(known[0]) if known else set[str]()
    found = listing.found(known)
    chosen: Sequence[Item]
    if listing.sort is None or listing.sort.partition(".")[0] in keys:
        chosen = listing.on_page(listing.sorted(found))
        items = await _made(call, chosen, make, _wanted(listing, keys))
    else:
        everything = await _made(call, found, make, _wanted(listing, keys))
        items = listing.on_page(listing.sorted(everything))
    text = await written(call, items, listing.pick)
    facts = listing.facts(len(known), len(found), len(items))
    return Answer.of_json_text(text if facts is None else f'{json_text(facts)[:-1]},"items":{text}}}')


async def written(
    call: Call, things: Sequence[T], describe: Callable[[T], Item], size: int | None = None
) -> str:
    """A JSON array, written in portions.

    Args:
        call: asks for it.
        things: its items.
        describe: makes an item as it is written.
        size: items of a portion; None: `PORTION`.
    """
    texts = []
    for portion in _portions(things, size):
        texts.append(json_text([describe(each) for each in portion])[1:-1])
        await call.door.pause()
    return f"[{','.join(texts)}]"


def _wanted(listing: Listing, known: Collection[str]) -> Collection[str] | None:
    """The keys that must be made, beside those that are known; None: all."""
    if listing.columns is None:
        return None
    wanted = {column.partition(".")[0] for column in listing.columns}
    if listing.sort is not None:
        wanted.add(listing.sort.partition(".")[0])
    return wanted.difference(known)


async def _made(
    call: Call, items: Sequence[Item], make: Make | None, wanted: Collection[str] | None
) -> Sequence[Item]:
    if make is None or (wanted is not None and not wanted):
        return items
    made: list[Item] = []
    for portion in _portions(items):
        made += await make(portion, wanted)
        await call.door.pause()
    return made


def _portions(items: Sequence[T], size: int | None = None) -> list[Sequence[T]]:
    size = PORTION if size is None else size
    return [items[begin : begin + size] for begin in range(0, len(items), size)]
