"""Pages out of memory, and the space they give back."""

from __future__ import annotations

import pytest

from amqp10broker.message.message import make_head
from amqp10broker.queues import journal as spool_module
from amqp10broker.queues.journal import Spool
from amqp10broker.queues.quorum.bodies import OPEN_PAGES_MAX, PagedBodies
from tests.support.fake_log import MemoryScratch

HEAD = make_head(None, None, "", "q")


class Files:
    """Makes scratch files, and remembers them."""

    def __init__(self) -> None:
        self.made: list[MemoryScratch] = []

    def __call__(self) -> MemoryScratch:
        self.made.append(MemoryScratch())
        return self.made[-1]


class FullScratch(MemoryScratch):
    def write(self, pieces: object) -> int:
        raise OSError(28, "No space left on device")


def test_a_file_goes_with_its_last_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "FILE_BYTES_MAX", 10)
    files = Files()
    spool = Spool(files)
    places = [spool.keep([b"12345", b"6789"]) for _ in range(5)]
    assert spool.bytes_used == 45
    assert [spool.read(place) for place in places] == [b"123456789"] * 5
    spool.drop(places[0])
    spool.drop(places[1])
    assert [each.closed for each in files.made] == [True, False, False]
    for place in places[2:]:
        spool.drop(place)
    assert [each.closed for each in files.made] == [True, True, False], "the one that is filled stays"
    assert spool.bytes_used == 0


def test_a_long_backlog_of_a_quorum_queue_is_out_of_memory_and_comes_back() -> None:
    spool = Spool(Files())
    bodies = PagedBodies(spool)
    count = 4096 * (OPEN_PAGES_MAX + 4)
    bodies.put(0, [(HEAD, b"%d" % number) for number in range(count)])
    assert spool.bytes_used > 4 * 4096 * 4
    assert bodies.fetch([5, 4096, 9000]) == [(HEAD, b"5"), (HEAD, b"4096"), (HEAD, b"9000")]
    assert bodies.fetch(range(100, 200)) == [(HEAD, b"%d" % number) for number in range(100, 200)]
    bodies.drop(range(0, count, 2))
    assert [body for _, body in bodies.fetch([4097, 12289])] == [b"4097", b"12289"]
    bodies.drop(range(1, count, 2))
    assert (len(bodies), spool.bytes_used) == (0, 0)


def test_without_room_they_stay_in_memory() -> None:
    bodies = PagedBodies(Spool(FullScratch))
    bodies.put(0, [(HEAD, b"%d" % number) for number in range(4096 * (OPEN_PAGES_MAX + 2))])
    assert bodies.fetch([7]) == [(HEAD, b"7")]
