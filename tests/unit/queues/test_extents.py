"""Where messages lie: joined, split, gone, and what their files are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.queues.journal import Extents


class Accounts:
    """Bytes that are needed, by file."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}

    def add_live(self, file: int, length: int) -> None:
        self.live[file] = self.live.get(file, 0) + length

    def add_dead(self, file: int, length: int) -> None:
        self.live[file] -= length
        assert self.live[file] >= 0


@pytest.fixture
def accounts() -> Accounts:
    return Accounts()


@pytest.fixture
def extents(accounts: Accounts) -> Extents:
    return Extents(accounts)


def spans(extents: Extents) -> list[tuple[int, int, int, int]]:
    return [(each.first, each.count, each.offset, each.length) for each in extents]


def test_a_marker_or_a_few_records_of_others_between_do_not_matter(
    extents: Extents, accounts: Accounts
) -> None:
    """Else each message of a publisher that waits for every confirm would be an extent."""
    for number in range(1000):
        extents.add(number, 1, 1, 100 + 166 * number, 129, 100)
    assert len(spans(extents)) == 1
    assert accounts.live == {1: 129 * 1000}
    extents.remove(0, 1000)
    assert accounts.live == {1: 0}


@given(st.data())
def test_as_a_set_of_positions(data: st.DataObject) -> None:
    """Whatever is added, copied and removed: what lives is what a set says, and so is what files need."""
    accounts = Accounts()
    extents = Extents(accounts)
    live: dict[int, int] = {}
    at = 0
    for file in range(1, data.draw(st.integers(1, 4)) + 1):
        offset = 32
        for _ in range(data.draw(st.integers(0, 6))):
            count = data.draw(st.integers(1, 9))
            kind = data.draw(st.sampled_from(["add", "skip", "remove", "copy"]))
            start = data.draw(st.integers(0, at))
            stop = min(at, start + count)
            if kind == "add":
                extents.add(at, count, file, offset, 100 * count, 0)
                live.update(dict.fromkeys(range(at, at + count), file))
                at += count
                offset += 100 * count
            elif kind == "skip":
                at += count
            elif kind == "remove":
                gone = extents.remove(start, stop)
                assert gone == sum(position in live for position in range(start, stop))
                for position in range(start, stop):
                    live.pop(position, None)
            elif stop > start and all(position in live for position in range(start, stop)):
                extents.add(start, stop - start, file, offset, 100 * (stop - start), 0)
                live.update(dict.fromkeys(range(start, stop), file))
                offset += 100 * (stop - start)
    found = {position: each.file for each in extents for run in each.live_runs() for position in run}
    assert found == live
    for file, needed in accounts.live.items():
        assert (needed > 0) == (file in live.values())
        assert (file in extents.files) == (file in live.values())
    for position, file in live.items():
        assert [each.file for each in extents.overlapping(position, position + 1)] == [file]
