"""How much credit a queue source grants, and what it keeps."""

from __future__ import annotations

from amqp10broker.spark.queue.link import FIRST_CREDIT, MESSAGE_COST_BYTES, CreditPacing

ROOM = 100 * (MESSAGE_COST_BYTES + 1000)


def came(grants: CreditPacing, *sizes: int) -> int:
    kept = grants.keep(sizes)
    grants.end_grant()
    return kept


def test_large_messages_are_asked_for_one_by_one() -> None:
    grants = CreditPacing(1000, ROOM)
    came(grants, *[1] * FIRST_CREDIT)
    came(grants, ROOM // 2)
    grants.begin()
    assert grants.next(100) == 1
    came(grants, 1000)
    assert grants.next(100) == 8


def test_many_tiny_messages_weigh_more_than_their_bytes() -> None:
    grants = CreditPacing(1000, ROOM)
    assert grants.keep([1] * 1000) < 500
