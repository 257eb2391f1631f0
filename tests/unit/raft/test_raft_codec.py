"""Messages that no member sends are refused; `tests/property/test_layouts.py` has the rest."""

from __future__ import annotations

import pytest

from amqp10broker.layout import BadBytes
from amqp10broker.raft.entries import Configuration, Kind, Run, run_of
from amqp10broker.raft.messages import CONFIG, MESSAGE, Append


@pytest.mark.parametrize(
    ("runs", "what"),
    [
        ((run_of(5, 3, Kind.COMMAND, (b"x",)),), "an entry of term 3 behind one of 4"),
        ((run_of(5, 9, Kind.COMMAND, (b"x",)),), "from a leader of 6"),
        ((run_of(5, 6, Kind.CONFIG, (b"x",)),), "malformed Configuration"),
        ((run_of(7, 6, Kind.COMMAND, (b"x",)),), "entry 7 behind entry 4"),
        ((Run(5, 6, Kind.COMMAND, (), 0),), "a run without entries"),
    ],
)
def test_entries_that_no_leader_has_are_refused(runs: tuple[Run, ...], what: str) -> None:
    """Terms never fall in a log, and a configuration can be read: a member need not look again."""
    with pytest.raises(BadBytes, match=what):
        MESSAGE.decode(MESSAGE.encode(Append(1, 2, 6, 4, 4, 0, runs)))


def test_a_configuration_in_another_order_is_refused() -> None:
    with pytest.raises(BadBytes, match="ascending"):
        CONFIG.decode(CONFIG.encode(Configuration((2, 1))))
    with pytest.raises(BadBytes, match="stand twice"):
        CONFIG.decode(CONFIG.encode(Configuration((1,), (1,))))
