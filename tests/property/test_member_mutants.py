"""The proofs of members, metadata and forming are proved: each fault that is planted into them is caught.

What is planted is one function's code, for one test.
"""

from __future__ import annotations

import pytest

from tests.support.link_mutants import MUTANTS as LINK_MUTANTS
from tests.support.member_mutants import MEMBER_MUTANTS, MemberMutant
from tests.support.quorum_mutants import QUORUM_MUTANTS
from tests.support.raft_mutants import MUTANTS as RAFT_MUTANTS


@pytest.mark.parametrize("planted", MEMBER_MUTANTS, ids=lambda planted: f"{planted.number}_{planted.what}")
def test_it_is_caught(planted: MemberMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in planted.patches:
        each.plant(monkeypatch)
    try:
        planted.run(monkeypatch)
    except (Exception, pytest.fail.Exception):
        return
    pytest.fail(f"{planted.caught_by} does not catch that {planted.what}")


def test_each_number_of_the_table_is_planted() -> None:
    """By one of the four tables."""
    names = [each.name for each in (*RAFT_MUTANTS, *QUORUM_MUTANTS, *LINK_MUTANTS)]
    names += [each.number for each in MEMBER_MUTANTS]
    assert {int(name[:2]) for name in names if name[:2].isdigit()} == {*range(1, 55)}
