"""How much credit a queue source grants, and what it keeps."""

from __future__ import annotations

from amqp10broker.spark.queue.link import FIRST_CREDIT, MESSAGE_COST_BYTES, CreditPacing

ROOM = 100 * (MESSAGE_COST_BYTES + 1000)


def came(grants: CreditPacing, *sizes: int) -> int:
    kept = grants.keep(sizes)
    grants.end_grant()
    return kept


def test_grants_of_small_messages_grow_to_the_option() -> None:
    """A few at first, to learn their size; what was learned counts for the next segment, too."""
    grants = CreditPacing(1000)
    asked = []
    for _ in range(5):
        count = grants.next(10_000)
        asked.append(count)
        assert came(grants, *[100] * count) == count
    assert asked == [10, 80, 640, 1000, 1000]
    grants.begin()
    assert grants.next(10_000) == 1000
    assert grants.next(7) == 7
    assert CreditPacing(3).next(10_000) == 3


def test_a_segment_ends_with_the_message_that_reaches_the_limit() -> None:
    grants = CreditPacing(1000, ROOM)
    assert came(grants, *[1000] * 99) == 99
    assert not grants.full
    assert came(grants, 1000, 1000) == 1
    assert grants.full
    assert grants.held_bytes == ROOM


def test_large_messages_are_asked_for_one_by_one() -> None:
    grants = CreditPacing(1000, ROOM)
    came(grants, *[1] * FIRST_CREDIT)
    came(grants, ROOM // 2)
    grants.begin()
    assert grants.next(100) == 1
    came(grants, 1000)
    assert grants.next(100) == 8


def test_many_tiny_messages_weigh_more_than_their_bytes() -> None:
    """Objects and columns are memory, too."""
    grants = CreditPacing(1000, ROOM)
    assert grants.keep([1] * 1000) < 500
