"""Where a quorum queue's messages lie in memory, and the lines they wait in."""

from __future__ import annotations

import random

import pytest

from amqp10broker.message.message import Message, make_head
from amqp10broker.queues.journal import Page, Spool
from amqp10broker.queues.quorum.bodies import OPEN_PAGES_MAX, PEEKS_MAX, PagedBodies
from amqp10broker.queues.quorum.ordered_entries import BLOCK_MAX, NEVER, OrderedEntries

HEAD = make_head(None, None, "", "q")


def messages(indexes: range | list[int]) -> list[Message]:
    return [(HEAD, b"%d" % index) for index in indexes]


def test_a_dropped_message_is_not_there() -> None:
    bodies = PagedBodies()
    bodies.put(0, messages(range(10)))
    bodies.drop([3, 4])
    assert len(bodies) == 8
    with pytest.raises(AssertionError, match="not there"):
        bodies.fetch([3])


def test_pages_that_nobody_is_near_are_packed_and_empty_ones_gone() -> None:
    bodies = PagedBodies()
    bodies.put(0, messages(range(20 * 4096)))
    opened = [number for number, page in bodies._pages.items() if page.messages is not None]
    assert len(opened) == OPEN_PAGES_MAX
    bodies.drop(range(4096))
    bodies.drop(range(4096, 8192))
    assert 0 not in bodies._pages
    assert len(bodies) == 18 * 4096


def test_a_packed_page_that_is_mostly_dropped_is_packed_anew() -> None:
    bodies = PagedBodies()
    bodies.put(0, messages(range(10 * 4096)))
    size = len(bodies._pages[0].packed)
    bodies.drop(list(range(0, 4096, 2)))
    bodies.drop(list(range(1, 4000, 2)))
    assert len(bodies._pages[0].packed) < size / 10
    assert bodies.fetch([4001, 4095]) == messages([4001, 4095])


def test_few_messages_of_a_packed_page_are_read_without_opening_it() -> None:
    """Delayed messages are due in any order; who reads one after the other has the page opened."""
    read: list[int] = []

    class CountedPacks(Spool):
        def read_at(self, page: Page, at: int, length: int) -> bytes:
            read.append(length)
            return super().read_at(page, at, length)

    bodies = PagedBodies(CountedPacks())
    given = [(make_head(None, None, "", f"k{number % 7}"), b"%d" % number * 9) for number in range(10 * 4096)]
    bodies.put(0, given)
    bodies.drop([5, 6])
    for wanted in ([17], [4095, 9, 4097, 4], [7, 8], [4000]):
        assert bodies.fetch(wanted) == [given[each] for each in wanted]
    assert [bodies._pages[number].messages for number in (0, 1)] == [None, None]
    assert sum(read) < 5 * 4096 * 6 + 1000, "lengths, and a few contents"
    assert bodies.fetch([4001]) == [given[4001]]
    assert bodies._pages[0].messages is not None, "it goes on where it was"
    for each in range(PEEKS_MAX + 1):
        assert bodies._pages[2].messages is None
        assert bodies.fetch([8192 + 3 * each]) == [given[8192 + 3 * each]]
    assert bodies._pages[2].messages is not None, "another would be cheaper so"


@pytest.mark.parametrize("seed", range(3))
def test_a_random_walk_agrees_with_a_dictionary(seed: int) -> None:
    dice = random.Random(seed)
    bodies = PagedBodies()
    model: dict[int, Message] = {}
    first = 0
    for _ in range(300):
        match dice.choice("ppfdd"):
            case "p":
                first += dice.choice([0, 0, 5, 5000])
                count = dice.choice([1, 7, 5000])
                new = messages(range(first, first + count))
                bodies.put(first, new)
                model.update(enumerate(new, first))
                first += count
            case "f" if model:
                chosen = dice.sample(sorted(model), min(len(model), 20))
                assert bodies.fetch(chosen) == [model[index] for index in chosen]
            case "d" if model:
                keys = sorted(model)
                start = dice.randrange(len(keys))
                chosen = dice.choice([keys[start : start + 6000], keys[start::3]])
                bodies.drop(chosen)
                for index in chosen:
                    del model[index]
        assert len(bodies) == len(model)
    keys = sorted(model)
    assert not keys or bodies.fetch(keys) == [model[index] for index in keys]


# --- lines ----------------------------------------------------------------------------------------


def test_a_line_gives_up_to_a_block_at_a_time() -> None:
    line = OrderedEntries()
    line.append(range(BLOCK_MAX), [1] * BLOCK_MAX, None)
    line.append(range(BLOCK_MAX, BLOCK_MAX + 5), [2] * 5, None)
    keys, sizes, expiries = line.take(BLOCK_MAX + 5, 0)
    assert (keys, sizes, expiries) == (list(range(BLOCK_MAX)), [1] * BLOCK_MAX, None)
    assert line.take(9, 0)[0] == list(range(BLOCK_MAX, BLOCK_MAX + 5))
    assert (line.length, line.take(1, 0)) == (0, ([], [], None))


def test_a_line_stops_before_what_has_expired() -> None:
    line = OrderedEntries()
    line.append([1, 2, 3, 4], [1] * 4, [NEVER, 50, 10, NEVER])
    assert line.take(9, 10) == ([1, 2], [1, 1], [NEVER, 50])
    assert line.take(9, 10) == ([], [], [])
    assert line.take_expired(10) == ([3], [1])
    assert line.take(9, 10)[0] == [4]
    assert line.expiring == 0


def test_entries_put_back_are_merged_by_key() -> None:
    line = OrderedEntries()
    line.append(range(10), [1] * 10, None)
    line.take(6, 0)
    line.put_back([(4, 1, NEVER), (5, 1, 99)])
    line.put_back([(1, 1, NEVER), (0, 1, NEVER)])
    line.put_back([(3, 1, NEVER)])
    assert line.length == 9
    taken = [key for _ in range(9) for key in line.take(1, 0)[0]]
    assert taken == [0, 1, 3, 4, 5, 6, 7, 8, 9]
