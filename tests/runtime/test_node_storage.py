"""A whole broker whose disk loses power, fails a call, or is found with a bit flipped (`tests.support.node`).

Set AMQP10BROKER_LONG for some thousand lives.
"""

from __future__ import annotations

import copy
import errno
import random
from typing import Final

import pytest

from amqp10broker.errors import BrokerError
from tests.runtime.conftest import LogRecorder
from tests.support.journal_harness import LONG
from tests.support.node import FOLDER, Node, faults_of

STEPS: Final = 40
SEEDS: Final = range(40 if LONG else 2)
LIVES: Final = 60 if LONG else 25


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(monkeypatch)
    node.live(random.Random(0), STEPS)
    return node


@pytest.mark.parametrize("seed", SEEDS)
def test_promises_hold_over_many_losses_of_power(node: Node, seed: int) -> None:
    """Power may fail at a start, work, cleaning or stop; a declared queue survives, too."""
    rng = random.Random(seed)
    ended_early = 0
    for _ in range(LIVES):
        calls = len(node.disk.calls)
        node.disk.lose_power_at = calls + rng.choice((rng.randrange(1, 60), rng.randrange(1, 400)))
        node.live(rng, STEPS)
        assert node.refused is None, node.refused
        ended_early += len(node.disk.calls) > node.disk.lose_power_at
        killed = rng.random() < 0.2
        disk = node.disk
        node.disk = disk.after_kill() if killed else disk.after_power_loss(rng.randrange(1 << 30))
        # No state that a crash or a loss of power leaves is called damage.
        assert not faults_of(node.disk.after_kill())
    assert ended_early > LIVES // 3
    node.live(rng, 0)
    assert node.refused is None
    # No two starts that somebody was served from have one number, whatever the power left.
    assert node.incarnations == sorted(set(node.incarnations))


def test_the_power_goes_during_the_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(0, 60, 1 if LONG else 12):
        node = Node(monkeypatch, seed=at)
        node.disk.lose_power_at = at
        node.live(random.Random(at), 10)
        node.disk = node.disk.after_power_loss(at)
        # Before the format is written, the folder is not a data folder.
        assert all("not a data folder" in str(fault) for fault in faults_of(node.disk.after_kill())) or at < 3
        node.live(random.Random(at), 10)
        assert node.refused is None
        assert node.incarnations
        assert node.incarnations == sorted(set(node.incarnations))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_any_call_of_the_disk_may_fail(node: Node, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends in a storage error with a sentence, or work goes on; no promise is broken."""
    base, queues = node.disk, node.queues
    made = node.made
    refused = went_on = 0
    for at in range(0, 330, 1 if LONG else 11):
        node.disk = base.after_kill()
        node.queues = copy.deepcopy(queues)
        node.made = made
        node.disk.fail = {at: code}
        rng = random.Random(at)
        node.live(rng, STEPS)
        if node.refused is None:
            went_on += 1
        else:
            refused += 1
            assert_says_what_to_do(node.refused)
        # The next start is on what a kill leaves, or on what a loss of power does.
        node.disk = node.disk.after_kill() if rng.random() < 0.5 else node.disk.after_power_loss(at)
        node.live(rng, 0)
        assert node.refused is None, node.refused
    assert refused
    assert went_on


def assert_says_what_to_do(error: BrokerError) -> None:
    """Require a sentence with a location and a remedy."""
    text = str(error)
    assert "; " in text, text
    assert len(text.split()) > 6, text


def test_a_flipped_bit_is_told_or_harmless(node: Node) -> None:
    """After any bit flip a start is refused with file and offset, or all data is there."""
    rng = random.Random(5)
    node.live(rng, STEPS)
    base, queues, made = node.disk, node.queues, node.made
    files = [path for path in base.paths(FOLDER) if len(base.contents(path)) and not path.endswith("/lock")]
    assert len(files) > 5
    told = 0
    for turn in range(3000 if LONG else 60):
        path = files[turn % len(files)]
        node.disk = base.after_kill()
        node.queues = copy.deepcopy(queues)
        node.made = made
        for history in node.queues.values():
            # An orderly stop: all that is there was promised.
            assert not history.promised & history.settled
        bit = rng.randrange(8 * len(base.contents(path)))
        node.disk.flip(path, bit)
        node.live(rng, 0)
        if node.refused is not None:
            told += 1
            # A flipped number of the format is told as what it says, of the folder.
            where = FOLDER if path.endswith("/format") else path
            assert where in str(node.refused), node.refused
            assert_says_what_to_do(node.refused)
    assert told


def test_a_sync_that_fails_at_the_start_is_told_in_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure to close the folder as well is no fault of the broker, and logs no traceback."""
    whole = Node(monkeypatch)
    whole.live(random.Random(0), 0)
    syncs = [at for at, (method, _) in enumerate(whole.disk.calls) if method == "sync"]
    log = LogRecorder()
    monkeypatch.setattr("amqp10broker.runtime.journal.data._log", log)
    for at in syncs:
        node = Node(monkeypatch)
        # The disk is gone for good.
        node.disk.fail = dict.fromkeys(range(at, at + 1000), errno.EIO)
        node.live(random.Random(0), 0)
    assert log.of("error")
    assert not [fields for _, _, fields in log.entries if "exc_info" in fields]
