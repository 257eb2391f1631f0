"""The ring of flow events never loses silently: written and dropped are all that was offered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.observe.flow_events import PACK, EventKind, EventRing

_STEPS = st.lists(st.one_of(st.integers(1, 20), st.sampled_from(["take", "lose", "settle"])), max_size=60)


@given(st.integers(2, 12), _STEPS)
def test_written_and_dropped_are_all_that_was_offered(capacity: int, steps: list[int | str]) -> None:
    """Adding in bursts, taking, losing what was taken: the sums hold, and the order too."""
    ring = EventRing(capacity)
    offered = 0
    written: list[tuple[int, ...]] = []
    for step in [*steps, "take", "settle", "take"]:
        if isinstance(step, int):
            for _ in range(step):
                ring.add(offered, EventKind.QUEUE, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0)
                offered += 1
        elif step == "settle":
            ring.settle(offered)
        else:
            events = list(PACK.iter_unpack(ring.take_all()))
            assert len(events) <= capacity
            if step == "take":
                written += events
            else:
                ring.lose(b"".join(PACK.pack(*event) for event in events))
    kept = [event[0] for event in written if event[1] == EventKind.QUEUE]
    told = sum(event[9] for event in written if event[1] == EventKind.DROPPED)
    assert ring.offered == offered
    assert len(kept) + told == offered
    assert ring.dropped == told
    assert kept == sorted(set(kept))
