"""Link credit that finds its own size, whatever network, queue and client do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.credit_loop import BASE, Conditions, CreditLoop

CONDITIONS = st.builds(
    Conditions,
    delay_ms=st.sampled_from([0, 1, 10, 25, 200]),
    pace=st.sampled_from([0, 1, 30, 100, 3_000]),
    confirm_ms=st.sampled_from([0, 1, 20, 300]),
    confirms_per_ms=st.sampled_from([0.05, 1.0, 10.0, 1e9]),
    size=st.sampled_from([0, 1, 100, 5_000, 1_000_000]),
    tight=st.booleans(),
)
PHASES = st.lists(st.tuples(CONDITIONS, st.integers(1, 1_500)), min_size=1, max_size=5)


@given(PHASES, st.sampled_from([1, 170, 1_000, 16_384]), st.sampled_from([1, 100_000, 1 << 23]))
def test_bounds_are_kept_nothing_granted_is_taken_back_and_nothing_is_stuck(
    phases: list[tuple[Conditions, int]], most: int, most_bytes: int
) -> None:
    """Each grant ends no earlier than the last (`CreditLoop` checks it), and no client is stuck."""
    loop = CreditLoop(phases[0][0], most=most, most_bytes=most_bytes)
    assert loop.auto is not None
    auto = loop.auto.auto
    highest = BASE
    for conditions, ms in phases:
        loop.conditions = conditions
        for _ in range(ms):
            loop.step()
            highest = max(highest, auto.limit)
            assert BASE <= auto.limit <= max(BASE, most)
            assert auto.limit <= auto.top
            assert loop.credit.limit == auto.limit
            # As of a fixed limit: what is granted when fewer than that are unconfirmed.
            assert loop.credit.outstanding + loop.credit.link_credit <= 2 * highest + highest // 2
    # Whatever it was, it goes on when it can: what is at the queue is confirmed, and more comes.
    loop.conditions = Conditions(delay_ms=1)
    loop.run(1_000)
    assert loop.run(200) >= 0.5 * BASE / 3


@given(PHASES)
def test_when_memory_is_tight_it_always_comes_back_to_the_default(
    phases: list[tuple[Conditions, int]],
) -> None:
    """From wherever it was, within some epochs of what still comes."""
    loop = CreditLoop(phases[0][0])
    for conditions, ms in phases:
        loop.conditions = conditions
        loop.run(ms)
    loop.conditions = Conditions(delay_ms=10, tight=True)
    loop.run(5_000)
    assert set(loop.limits[-1_000:]) == {BASE}
