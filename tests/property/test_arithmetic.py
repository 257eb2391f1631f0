"""Serial numbers, credit, windows and settlements: batches count as if everything came one by one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from amqp10broker.protocols.amqp10.credit import IncomingWindow, OutgoingWindow, ReceiverCredit, SenderCredit
from amqp10broker.protocols.amqp10.performatives import Accepted, Disposition, Modified, Rejected, Released
from amqp10broker.protocols.amqp10.settling import ACCEPTED, RELEASED, Settlements
from amqp10broker.protocols.serial import MASK, add, diff, less, limit_left, ranges
from tests.support.rawframes import FrameCutter

M = 2**32
serials = st.one_of(
    st.integers(0, MASK), st.sampled_from((0, 1, 2**31 - 1, 2**31, 2**31 + 1, MASK - 1, MASK))
)
near = st.integers(-1000, 1000)
uints = st.one_of(st.integers(0, MASK), st.sampled_from((0, 1, 2**31 - 1, 2**31, MASK)))


@pytest.mark.rabbitmq("serial_number_SUITE", "test_add")
@given(serials, uints)
def test_add_is_modulo_2_to_the_32(serial: int, distance: int) -> None:
    assert add(serial, distance) == (serial + distance) % M


@pytest.mark.rabbitmq("serial_number_SUITE", "test_diff")
@given(serials, serials)
def test_diff_undoes_add_and_its_sign_is_the_order(a: int, b: int) -> None:
    """add(b, diff(a, b)) is a; the sign says which comes first, and exactly half way counts as behind."""
    distance = diff(a, b)
    assert -(2**31) <= distance < 2**31
    assert add(b, distance) == a
    assert less(a, b) == (distance < 0)
    if distance not in (0, -(2**31)):
        assert less(a, b) != less(b, a)


@given(serials, uints, near)
def test_limit_left_is_the_formula_without_wrap(base: int, allowance: int, moved: int) -> None:
    """base + allowance - position, computed with integers that do not wrap, not below 0 and a uint."""
    assert limit_left(base, allowance, (base + moved) % M) == min(max(0, allowance - moved), M - 1)


@pytest.mark.rabbitmq("serial_number_SUITE", "test_foldl", "test_ranges", "test_usort")
@given(serials, st.lists(st.integers(0, 300), unique=True, max_size=60))
def test_ranges_cover_exactly_the_given_serials_and_do_not_touch(origin: int, offsets: list[int]) -> None:
    given_ids = [(origin + offset) % M for offset in offsets]
    spans = ranges(given_ids)
    covered = [(first + step) % M for first, last in spans for step in range((last - first) % M + 1)]
    assert sorted(covered) == sorted(given_ids)
    for (_, last), (first, _) in pairwise(spans):
        assert diff(first, last) > 1


@given(serials, uints, near)
def test_sender_credit_is_set_not_added(position: int, link_credit: int, behind: int) -> None:
    """credit_snd = delivery-count_rcv + link-credit_rcv - delivery-count_snd, however often it is told.

    Numbers in which a signed client's credit below 0 can hide are left out; they have tests of their own.
    """
    assume(link_credit < 2**31 or M - link_credit == 1 or M - link_credit > 2**24)
    credit = SenderCredit(position)
    for _ in range(2):
        credit.set((position - behind) % M, link_credit, drain=False)
        assert credit.link_credit == min(max(0, link_credit - behind), M - 1)


@given(
    start=serials,
    limit=st.integers(0, 400),
    first_credit=st.integers(0, 500),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("receive"), st.integers(0, 400)),
            st.tuples(st.just("finish"), st.integers(0, 400)),
            st.tuples(st.just("limit"), st.integers(0, 400)),
        ),
        max_size=12,
    ),
)
def test_receiver_credit_counts_a_batch_as_if_its_deliveries_came_one_by_one(
    start: int, limit: int, first_credit: int, steps: list[tuple[str, int]]
) -> None:
    """What is granted must not depend on how the peer's frames were cut into reads."""
    batched, single = ReceiverCredit(start, limit), ReceiverCredit(start, limit)
    for credit in (batched, single):
        credit.grant(first_credit)
    for what, count in steps:
        if what == "limit":
            for credit in (batched, single):
                credit.limit = count
                credit.top_up()
        elif what == "finish":
            done = min(count, batched.outstanding)
            for credit in (batched, single):
                credit.finish(done)
        else:
            covered = batched.receive(count)
            assert covered == sum(single.receive(1) for _ in range(count))
        for name in ("delivery_count", "link_credit", "outstanding", "granted", "limit"):
            assert getattr(batched, name) == getattr(single, name), name
        assert batched.link_credit >= 0


@given(start=serials, limit=st.integers(1, 400), batches=st.lists(st.integers(0, 200), max_size=20))
def test_receiver_credit_follows_the_rule_of_topping_up_at_half(
    start: int, limit: int, batches: list[int]
) -> None:
    """The rule written down naively: after each delivery, if at most half is left and few are outstanding."""
    credit = ReceiverCredit(start, limit)
    credit.top_up()
    left, outstanding, count = limit, 0, start
    for batch in batches:
        covered = credit.receive(batch)
        taken = 0
        for _ in range(batch):
            if left <= 0:
                break
            taken += 1
            left, outstanding, count = left - 1, outstanding + 1, (count + 1) % M
            if left <= limit // 2 and outstanding < limit:
                left = limit
        assert covered == taken
        assert (credit.link_credit, credit.outstanding, credit.delivery_count) == (left, outstanding, count)


@given(
    size=st.integers(1, 500),
    start=serials,
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("count"), st.integers(0, 1500)),
            st.tuples(st.just("resize"), st.integers(1, 500)),
            st.tuples(st.just("close"), st.just(0)),
            st.tuples(st.just("reopen"), st.just(0)),
        ),
        max_size=12,
    ),
)
def test_incoming_window_counts_a_batch_as_if_its_frames_came_one_by_one(
    size: int, start: int, steps: list[tuple[str, int]]
) -> None:
    """Re-opening at half must not depend on how the peer's frames were cut into reads."""
    batched, single = IncomingWindow(size), IncomingWindow(size)
    for window in (batched, single):
        window.next_incoming_id = start
    for what, number in steps:
        if what == "count":
            allowed = batched.allowance()
            assert allowed == single.allowance()
            frames = number if allowed < 0 else min(number, allowed)
            batched.count(frames)
            for _ in range(frames):
                single.count(1)
        else:
            for window in (batched, single):
                getattr(window, what)(*([number] if what == "resize" else []))
        for name in ("next_incoming_id", "left", "flow_due", "size", "closed", "advertised"):
            assert getattr(batched, name) == getattr(single, name), name
        if not batched.closed:
            assert batched.left > 0, "an open window never closes by itself"


@given(size=st.integers(1, 300), more=st.integers(1, 50))
def test_closed_window_tolerates_its_size_and_no_frame_more(size: int, more: int) -> None:
    """The margin is what may have been on its way when the window was closed."""
    window = IncomingWindow(size)
    window.close()
    assert window.allowance() == size
    window.count(size)
    assert window.allowance() == 0
    window.reopen()
    assert window.left == size


@given(size=st.integers(1, 300), smaller=st.integers(1, 300), used=st.integers(0, 100))
def test_window_made_smaller_and_closed_tolerates_what_had_been_granted(
    size: int, smaller: int, used: int
) -> None:
    """A lower setting takes nothing back: frames sent under the larger window may still be on their way."""
    window = IncomingWindow(size)
    window.count(min(used, size - 1))
    granted = window.left
    window.resize(smaller)
    window.close()
    assert window.allowance() >= granted


@given(position=serials, window=uints, behind=st.integers(0, 1000))
def test_outgoing_window_is_the_specifications_formula(position: int, window: int, behind: int) -> None:
    """next-incoming-id + incoming-window - next-outgoing-id, also for windows of 2**31 and more."""
    from amqp10broker.protocols.amqp10.performatives import Flow

    outgoing = OutgoingWindow(position)
    flow = Flow(
        next_incoming_id=(position - behind) % M,
        incoming_window=window,
        next_outgoing_id=0,
        outgoing_window=0,
    )
    outgoing.update(flow)
    assert outgoing.remote_incoming_window == max(0, window - behind)


STATES = (ACCEPTED, RELEASED, Accepted(), Released(), Rejected(), Modified(delivery_failed=True), None)


@given(
    origin=serials,
    parts=st.lists(
        st.tuples(st.lists(st.integers(0, 200), max_size=40), st.sampled_from(STATES), st.booleans()),
        max_size=8,
    ),
    role=st.booleans(),
    channel=st.integers(0, 65_535),
)
def test_settlements_are_written_once_each_as_ranges(
    origin: int, parts: list[tuple[list[int], object, bool]], role: bool, channel: int
) -> None:
    """Every id with its state and flag in exactly one frame, whatever order and batches they came in."""
    settlements = Settlements(channel, role)
    expected: dict[int, tuple[object, bool]] = {}
    for offsets, state, settled in parts:
        ids = [
            number
            for number in dict.fromkeys((origin + offset) % M for offset in offsets)
            if number not in expected
        ]
        if not ids:
            continue
        settlements.add(ids, state, settled=settled)  # type: ignore[arg-type]
        expected.update((number, (state, settled)) for number in ids)
    seen: dict[int, tuple[object, bool]] = {}
    ranks = []
    for got in FrameCutter().feed(b"".join(settlements.take())):
        body = got.body
        assert isinstance(body, Disposition)
        assert (got.channel, body.role) == (channel, role)
        last = body.first if body.last is None else body.last
        for step in range((last - body.first) % M + 1):
            number = (body.first + step) % M
            assert number not in seen
            seen[number] = (body.state, body.settled)
        ranks.append({Rejected: 0, Released: 1}.get(type(body.state), 2))
    assert seen == expected
    assert ranks == sorted(ranks)
    assert settlements.take() == []


@pytest.mark.parametrize("taken_back", [2, 15, 99])
def test_credit_below_zero_of_a_signed_client_is_no_credit(taken_back: int) -> None:
    """proton writes -n as 2**32 - n, with n at most what it has received."""
    credit = SenderCredit()
    credit.set(0, 100, drain=False)
    credit.spend(100)
    credit.set(100, M - taken_back, drain=False)
    assert credit.link_credit == 0


def test_credit_below_zero_with_the_limit_of_the_flow_before_changes_nothing() -> None:
    """A limit that is not new is no grant, also for -1."""
    credit = SenderCredit()
    credit.set(0, 5, drain=False)
    credit.spend(5)
    credit.set(6, M - 1, drain=False)
    assert credit.link_credit == 0


def test_largest_credit_is_a_grant_at_any_time() -> None:
    """2**32 - 1 is what it says, and a client that has granted it is taken at its word from then on."""
    credit = SenderCredit()
    credit.set(0, 10, drain=False)
    credit.spend(10)
    credit.set(10, M - 1, drain=False)
    assert credit.link_credit == M - 1
    credit.set(10, M - 5, drain=False)
    assert credit.link_credit == M - 5
