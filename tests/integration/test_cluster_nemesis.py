"""Three and five real nodes are hurt at random under load (`tests.support.cluster_nemesis`).

It takes minutes, and runs with AMQP10BROKER_LONG only; `test_cluster_failover` is short.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.cluster_nemesis import finish, is_allowed, run
from tests.support.cluster_network import CutCluster
from tests.support.cluster_process import healed

pytestmark = pytest.mark.long

SECONDS: Final = 180.0


@pytest.mark.parametrize("nodes", [3, 5])
def test_nemesis(tmp_path: Path, nodes: int, record_property: Callable[[str, object], None]) -> None:
    """E1 to E11, P1 to P4, C1 to C6, S2 to S5, D1, D3, M3: confirmed messages are kept; others go on."""
    seed = random.randrange(1 << 30)
    record_property("seed", seed)
    with CutCluster(tmp_path, nodes, small_disks=True) as cluster, healed(cluster, is_allowed):
        finish(cluster, run(cluster, "nemesis", seed, SECONDS))
