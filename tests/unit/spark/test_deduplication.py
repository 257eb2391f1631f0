"""What a queue source remembers of message-ids."""

from __future__ import annotations

from amqp10broker.spark.queue.link import SeenIds, digest, unpack


def test_ids_seen_before_or_earlier_among_themselves_are_not_fresh() -> None:
    seen = SeenIds()
    assert seen.fresh(["a", "b"]) is None
    seen.add(1, [digest("a"), digest("b")])
    assert seen.fresh(["b", "c", "c", "a", "d"]) == [1, 4]


def test_the_window_forgets_whole_segments_and_never_the_newest() -> None:
    seen = SeenIds(window=3)
    assert seen.add(1, [digest("a"), digest("b")]) == []
    assert seen.add(2, [digest("c")]) == []
    assert seen.add(3, [digest("d")]) == [1]
    assert seen.fresh(["a", "b", "c", "d"]) == [0, 1]
    assert seen.add(4, [digest(f"{number}") for number in range(9)]) == [2, 3]
    assert len(seen) == 9
    assert seen.fresh(["c", "d", "0"]) == [0, 1]


def test_an_id_that_came_again_is_remembered_by_its_later_segment() -> None:
    seen = SeenIds(window=2)
    seen.add(1, [digest("a")])
    seen.add(2, [digest("a")])
    assert seen.add(3, [digest("b")]) == [1]
    assert seen.fresh(["a"]) == []


def test_ids_of_a_segment_can_be_stored_and_taken_in_again() -> None:
    seen = SeenIds()
    seen.add(7, [digest("a"), digest("b")])
    data = seen.of(7)
    again = SeenIds()
    again.add(7, unpack(data))
    assert again.fresh(["a", "b", "c"]) == [2]
    assert seen.of(8) == b""
