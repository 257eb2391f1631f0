"""Three nodes, with losses of power, cuts and late messages: their catalogs agree, nothing is done twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amqp10broker.cluster import transactions
from amqp10broker.cluster.system import System
from amqp10broker.cluster.transactions import CatalogTransaction, SystemMachine, TransactionDecision
from tests.property.test_transactions import some_request
from tests.support.journal_harness import LONG
from tests.support.metadata_group import caught
from tests.support.system_cluster import Cluster

SEEDS = 300 if LONG else 25


def live(seed: int, **kinds: Any) -> Cluster:
    """Take some hundred steps with faults, then half a minute without."""
    world = Cluster(seed, **kinds)
    random_source = world.random_source
    for _ in range(700):
        kind = random_source.random()
        node = random_source.choice(world.nodes)
        if kind < 0.15:
            if node.up and node.caught_up:
                node.ask(some_request(random_source))
        elif kind < 0.16:
            if node.up:
                world.kill(node)
            else:
                world.restart(node)
        elif kind < 0.17:
            if world.cut:
                world.heal()
            else:
                world.cut_off(node, others=[random_source.choice(world.nodes)])
        elif kind < 0.18:
            world.pass_time(random_source.choice([100, 1000]))
        else:
            world.step()
    for node in world.nodes:
        if not node.up:
            world.restart(node)
    world.heal()
    world.pass_time(40_000)
    for node in world.nodes:
        assert node.caught_up, f"{node.name} does not get on"
        assert not len(node.system._pending), "something is never decided"
        assert len(node.heard) == node.requests, "somebody has heard nothing"
    world.check_same()
    return world


@pytest.fixture(autouse=True)
def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "COMPACT_AFTER", 5)


def test_nodes_agree_whatever_happens() -> None:
    for seed in range(SEEDS):
        try:
            live(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


# --- planted faults -----------------------------------------------------------------------------------


class Blind(SystemMachine):
    """42: a transaction is applied though a key that it has read has a newer revision."""

    def apply(self, index: int, transaction: CatalogTransaction) -> TransactionDecision:
        return super().apply(index, replace(transaction, reads=()))


def stubborn(monkeypatch: pytest.MonkeyPatch) -> None:
    """43: after a conflict the same plan is proposed with the keys' present revisions."""

    def again(self: System) -> None:
        lost, self._lost = self._lost, []
        for pending in lost:
            self._propose_plan(pending.request, pending.ref, pending.due_ms, pending.plan)

    monkeypatch.setattr(System, "_plan_again", again)


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests sent to a lost leader are not sent to the next."""
    monkeypatch.setattr(System, "_unsent", lambda self: None)
    monkeypatch.setattr("amqp10broker.cluster.system.AGAIN_AFTER_MS", 10**9)


def test_a_fault_of_the_machine_is_found() -> None:
    assert caught(live, SEEDS, machine=Blind)


@pytest.mark.parametrize("plant", [stubborn, forgetful])
def test_a_fault_of_the_proposer_is_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert caught(live, SEEDS)
