"""S0 with members of another core in the group: ours and the crate `raft`, the core of TiKV, get on.

They vote for each other, replicate to each other and catch up from each other, under the faults of
`test_raft_simulation`; the invariants are the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.raft_mixed import MixedSimulation, Process
from tests.support.raft_modules import raft_modules

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("cargo") is None, reason="no cargo here to build the other core"),
]

PROPORTIONS: Final = [(ours, size - ours) for size in (2, 3, 4, 5) for ours in range(1, size)]
SEEDS_IN_A_BLOCK: Final = 100


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.close()


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize(("ours", "others"), PROPORTIONS)
def test_both_cores_get_on(ours: int, others: int, block: int, process: Process) -> None:
    """No committed entry is lost, members agree, and both cores lead."""
    room = raft_modules()
    terms = {True: 0, False: 0}
    commits = 0
    for seed in range(block * SEEDS_IN_A_BLOCK, (block + 1) * SEEDS_IN_A_BLOCK):
        run = MixedSimulation(seed, room, process, ours=ours, others=others)
        run.run()
        for which, count in run.leads().items():
            terms[which] += count
        commits += len(run.group.truth)
    assert min(terms.values()) > SEEDS_IN_A_BLOCK // 4
    assert commits > 10 * SEEDS_IN_A_BLOCK


def test_the_same_seed_is_the_same_life(process: Process) -> None:
    room = raft_modules()
    for seed in range(10):
        traces = []
        for _ in range(2):
            run = MixedSimulation(seed, room, process, ours=2, others=1, trace=True)
            run.run()
            traces.append(run.trace)
        assert traces[0] == traces[1]
        assert traces[0]
