"""Credit of a queue source against queues of every order of sizes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.spark.queue.link import MESSAGE_COST_BYTES, CreditPacing

ROOM = 20_000
SIZES = st.one_of(
    st.lists(st.integers(0, 10_000), max_size=200),
    st.lists(st.sampled_from([1, 1, 1, 1, 9_000, 50_000]), max_size=200),
    st.lists(st.integers(1, 30), max_size=100).map(lambda small: small + [9_000] * 100),
    st.lists(st.integers(1, 30), max_size=100).map(lambda small: [9_000] * 100 + small),
)


def segments(
    sizes: list[int], credit_max: int, wanted: int, read: int
) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """What a link makes of a queue: messages of each segment, and (granted, given back) of each grant.

    Everything that was granted comes, as a broker may have written all of it before it hears of the stop;
    `read` messages at a time.
    """
    grants = CreditPacing(credit_max, ROOM)
    found: list[list[int]] = []
    asked: list[tuple[int, int]] = []
    at = 0
    while at < len(sizes):
        grants.begin()
        segment: list[int] = []
        while len(segment) < wanted and not grants.full and at < len(sizes):
            count = grants.next(wanted - len(segment))
            assert 1 <= count <= min(credit_max, wanted - len(segment))
            coming = sizes[at : at + count]
            kept = 0
            for start in range(0, len(coming), read):
                piece = coming[start : start + read]
                more = grants.keep(piece)
                assert more == 0 or kept == start, "messages are kept from the first on, without a gap"
                kept += more
            grants.end_grant()
            asked.append((count, len(coming) - kept))
            assert kept == len(coming) or grants.full
            segment += coming[:kept]
            at += kept
        found.append(segment)
    return found, asked


@given(SIZES, st.integers(1, 1000), st.integers(1, 300), st.integers(1, 50))
def test_no_segment_is_larger_than_the_room_and_one_message(
    sizes: list[int], credit_max: int, wanted: int, read: int
) -> None:
    """In every order of sizes; and every message is in one segment, in order."""
    found, _ = segments(sizes, credit_max, wanted, read)
    assert [size for segment in found for size in segment] == sizes
    for segment in found:
        weights = [size + MESSAGE_COST_BYTES for size in segment]
        assert sum(weights[:-1]) < ROOM
        assert 1 <= len(segment) <= wanted
    for one, _ in pairwise(found):
        weight = sum(size + MESSAGE_COST_BYTES for size in one)
        assert weight >= ROOM or len(one) == wanted, "no segment ends early"


@given(SIZES, st.integers(1, 1000), st.integers(1, 300), st.integers(1, 50))
def test_messages_that_do_not_grow_are_never_given_back(
    sizes: list[int], credit_max: int, wanted: int, read: int
) -> None:
    """But within the first grant, when no size is known yet."""
    _, asked = segments(sorted(sizes, reverse=True), credit_max, wanted, read)
    assert all(back == 0 for _, back in asked[1:])


@given(st.integers(0, 100), st.integers(1, 1000))
def test_credit_reaches_its_limit_in_a_few_grants(size: int, credit_max: int) -> None:
    """What small messages cost does not depend on the rule."""
    grants = CreditPacing(credit_max)
    for _ in range(3):
        grants.keep([size] * grants.next(10_000))
        grants.end_grant()
    assert grants.next(10_000) == credit_max
