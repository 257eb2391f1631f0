"""The proofs of links are proved: each fault that is planted into them is caught by one of their worlds."""

from __future__ import annotations

import pytest

from tests.property.test_queue_links import AWAY, PLAIN, SHORT, SINGLE, check_at_rest, check_contents, run
from tests.support.journals import LONG
from tests.support.link_mutants import MUTANTS, Mutant

SEEDS = range(400 if LONG else 60)


@pytest.mark.parametrize("planted", MUTANTS, ids=lambda planted: planted.name)
def test_it_is_caught(planted: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.plant(monkeypatch)
    assert any(map(fails, (planted.seed, *SEEDS))), f"{planted.name} is not caught"


def fails(seed: int) -> bool:
    """Whether any world of a seed breaks a rule, or breaks down."""
    try:
        for settings in (PLAIN, SINGLE, AWAY, SHORT):
            check_at_rest(run(seed, settings), settings)
        check_contents(seed)
    except Exception:
        return True
    return False
