"""What the founder of a cluster puts into its folder, and what it declares when the others are there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from amqp10broker.cluster.bootstrap import Address, ClusterIdentity, MemberAt
from amqp10broker.config import Config
from amqp10broker.config.settings import QueueDeclaration
from amqp10broker.errors import Unavailable
from amqp10broker.metadata.catalog import Catalog, CatalogRequest
from amqp10broker.metadata.plan import Put
from amqp10broker.metadata.vhost_requests import JoinNode
from amqp10broker.queues.machine_version import carried_out
from amqp10broker.runtime.cluster.forming import declare_when_whole, prepare_folder
from amqp10broker.runtime.journal.data import Data
from amqp10broker.storage.disk import Disk
from tests.runtime.conftest import LogRecorder

NODES = "a=127.0.0.1:1,b=127.0.0.1:2,c=127.0.0.1:3"
ME = ClusterIdentity("id", 1, "a", (MemberAt(1, "a", Address("127.0.0.1", 1)),))


def configured(tmp_path: Path, **settings: Any) -> Config:
    """Write a definitions file with a user and a queue."""
    path = tmp_path / "definitions.json"
    document = {
        "users": [{"name": "orders", "password": "secret", "tags": []}],
        "vhosts": [{"name": "/"}],
        "queues": [{"name": "defined", "vhost": "/", "type": "quorum"}],
    }
    path.write_text(json.dumps(document))
    return Config(definitions=str(path), queues=(QueueDeclaration("configured"),), **settings)


def founder(tmp_path: Path, config: Config) -> Catalog:
    data = Data(Disk(), str(tmp_path / "data"))
    try:
        prepare_folder(data, config, ME)
        catalog = Catalog()
        data.load_state(catalog)
    finally:
        data.close()
    return catalog


def names(catalog: Catalog) -> set[str]:
    return {queue.name for queue in catalog}


def test_its_queues_wait_for_the_other_nodes_of_the_list(tmp_path: Path) -> None:
    """F7: its users do not wait, and no guest is added to those of a file."""
    catalog = founder(tmp_path, configured(tmp_path, cluster_nodes=NODES))
    assert catalog.cluster.queues_due
    assert names(catalog) == set()
    assert [user.name for user in catalog.users] == ["orders"]


@pytest.mark.parametrize(
    "settings", [{}, {"cluster_nodes": "a=127.0.0.1:1"}, {"cluster_nodes": NODES, "cluster_target_size": 1}]
)
def test_a_founder_that_waits_for_no_other_declares_all_at_once(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    catalog = founder(tmp_path, configured(tmp_path, **settings))
    assert not catalog.cluster.queues_due
    assert names(catalog) == {"defined", "configured"}


def test_without_a_configuration_nothing_is_due(tmp_path: Path) -> None:
    catalog = founder(tmp_path, Config(cluster_nodes=NODES))
    assert not catalog.cluster.queues_due


def test_a_queue_that_cannot_be_is_told_at_the_start_already(tmp_path: Path, log: LogRecorder) -> None:
    """It is not reported hours later, when the last node joins."""
    config = configured(tmp_path, cluster_nodes=NODES)
    wrong = {"queues": [{"name": "q", "vhost": "/", "arguments": {"x-max-length": -1}}]}
    Path(config.definitions or "").write_text(json.dumps(wrong))
    founder(tmp_path, config)
    ((event, fields),) = log.of("warning")
    assert event == "left out of the definitions"
    assert fields["reason"].startswith("definitions: queues[0] (q): invalid arg 'x-max-length'")


async def test_they_are_declared_when_as_many_run_and_tried_again_if_that_is_refused(tmp_path: Path) -> None:
    """F7: a node that was admitted and has not started does not count, nor does one that is down."""
    config = configured(tmp_path, cluster_nodes=NODES)
    catalog = founder(tmp_path, config)
    there = {1}
    catalog.node_directory = cast("Any", SimpleNamespace(runs=there.__contains__))
    refusals = [Unavailable("cluster", "no majority")]
    asked: list[int] = []

    async def propose(request: CatalogRequest[Any]) -> Any:
        asked.append(len(there))
        if refusals:
            raise refusals.pop()
        return catalog.propose(request)

    async def waits() -> None:
        await trio.sleep(1)
        assert (asked, names(catalog)) == ([], set())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(declare_when_whole, config, catalog, propose)
        for number, name in enumerate("bc", 2):
            await waits()
            joined = catalog.propose(JoinNode(name, "host", 1, machines=carried_out()))
            there.add(number)
            await waits()
            catalog.apply([Put(("node", name), replace(joined, incarnation=1))])
            if name == "b":
                there.discard(number)
        await waits()
        there.add(2)
    assert asked == [3, 3]
    assert names(catalog) == {"defined", "configured"}
    await declare_when_whole(config, catalog, propose)
    assert asked == [3, 3]
