"""A folder of a node whose other nodes are lost is made that of a cluster of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.cli.cluster_launch import force_standalone
from amqp10broker.cluster import transactions
from amqp10broker.cluster.bootstrap import Address, ClusterIdentity, MemberAt
from amqp10broker.errors import FolderInUse, StorageError
from amqp10broker.metadata.catalog import Catalog, all_entries
from amqp10broker.metadata.queue_requests import DeclareQueue
from amqp10broker.metadata.vhost_requests import SetParameter
from amqp10broker.raft.ids import member_id
from amqp10broker.raft.messages import Hard, Kind, run_of
from amqp10broker.runtime.journal.data import (
    FURNISHED,
    INCARNATION,
    LOST,
    MEMBERSHIP,
    UNHEARD_OF,
    Data,
    NotInACluster,
)
from amqp10broker.storage.disk import Disk
from tests.support.metadata_group import conceal, filled, first_entries
from tests.unit.cluster.test_system import ready

MEMBERS = tuple(MemberAt(each, chr(96 + each), Address("host", each)) for each in (1, 2, 3))


@contextmanager
def opened(path: Path) -> Iterator[Data]:
    data = Data(Disk(), str(path))
    try:
        yield data
    finally:
        data.close()


def queue(name: str, number: int, **where: Any) -> tuple[Any, Any]:
    catalog = filled(first_entries(3))
    catalog.propose(DeclareQueue("/", name, True, arguments={"x-queue-type": "quorum"}))
    ((key, value),) = [each for each in _entries(catalog) if each[0][:1] == ("queue",)]
    return key, {**value, "number": number, **where}


def _entries(catalog: Catalog) -> list[tuple[Any, Any]]:
    return [(key, json.loads(json.dumps(value))) for key, value in all_entries(catalog, conceal)]


def of_cluster(path: Path) -> None:
    """Write the folder of node 2 of three: a queue with a member here, one of others, one elsewhere."""
    entries = [
        *first_entries(3),
        queue("here", 1, members=[member_id(1), member_id(2, 5), member_id(3)]),
        queue("theirs", 2, members=[member_id(1), member_id(3)]),
        (("queue_numbers",), {"highest": 2}),
    ]
    with opened(path) as data:
        data.belong(ClusterIdentity("old", 2, "b", MEMBERS))
        data.furnished({})
        transactions.found(data.catalog_log, member_id(2), entries)
        # In the log, and not known to be decided.
        machine = transactions.SystemMachine()
        machine.found(entries, 1)
        request = SetParameter(("parameter", "/", "c", "p"), 1)
        catalog = filled(entries)
        plan = request.plan(catalog)
        transaction = transactions.transaction_of(
            transactions.Origin(1, 1, 1), plan, catalog, machine.revision, conceal
        )
        store = transactions.SystemStore(data.catalog_log)
        store.write(
            ready(
                hard=Hard(4, member_id(1), 1), entries=(run_of(2, 4, Kind.COMMAND, (transaction.encode(),)),)
            ),
            lambda: None,
        )


def test_all_that_the_folder_has_is_a_group_of_one_in_another_cluster(tmp_path: Path) -> None:
    """Z1, Z2: entries that only the log has are included."""
    path = tmp_path / "b"
    of_cluster(path)
    told: list[str] = []

    def confirmed(text: str) -> bool:
        told.append(text)
        return True

    done = force_standalone(str(path), confirmed)
    assert "cluster of one node, with 1 queues" in done
    assert "lost nodes: a, c" in told[0]
    assert "queue 'theirs' in vhost '/'" in told[0]
    with opened(path) as data:
        membership = data.membership
        assert membership.cluster not in ("", "old")
        assert (membership.number, membership.name, membership.members) == (2, "b", MEMBERS[1:2])
        assert data.lost == 3 + UNHEARD_OF
        store = transactions.SystemStore(data.catalog_log)
        assert store.stored.point.config.members == (member_id(2),)
        assert (store.stored.last, store.stored.hard.term) == (store.stored.point.index, 0)
        entries = dict(store.machine.entries())
        assert entries["cluster",]["id"] == membership.cluster
        assert entries["node_numbers",] == {"highest": 3 + UNHEARD_OF}
        assert [key for key in entries if key[0] == "node"] == [("node", "b")]
        assert [key for key in entries if key[0] == "queue"] == [("queue", "/", "here")]
        assert entries["queue", "/", "here"]["members"] == [member_id(2, 5)]
        assert entries["parameter", "/", "c", "p"] is not None
        assert store.machine.last_of(1) is None, "a lost node has no say"
    # Once more, as after a doubt whether it was done.
    assert force_standalone(str(path), confirmed) is not None
    assert "lost nodes: none" in told[1]


def test_nothing_is_changed_unless_it_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "b"
    of_cluster(path)
    with opened(path) as data:
        before = dict(data.catalog_log.entries())
    assert force_standalone(str(path), lambda told: False) is None
    with opened(path) as data:
        after = dict(data.catalog_log.entries())
    assert {**before, INCARNATION: 0} == {**after, INCARNATION: 0}
    assert LOST not in after


def test_a_folder_that_cannot_be_made_standalone_is_refused(tmp_path: Path) -> None:
    """It is in use, missing, of no cluster, or of a node without any entries yet."""

    def confirmed(told: str) -> bool:
        pytest.fail("it is not asked")

    with pytest.raises(StorageError, match="the folder does not exist"):
        force_standalone(str(tmp_path / "none"), confirmed)
    assert not (tmp_path / "none").exists()
    with opened(tmp_path / "alone") as data:
        data.furnished({})
        assert data.catalog_log.get(FURNISHED) is not None
        with pytest.raises(FolderInUse):
            force_standalone(str(tmp_path / "alone"), confirmed)
    with pytest.raises(NotInACluster, match="in no cluster"):
        force_standalone(str(tmp_path / "alone"), confirmed)
    with opened(tmp_path / "late") as data:
        data.belong(ClusterIdentity("old", 3, "c", MEMBERS))
        transactions.joined(data.catalog_log, lambda key: key in (MEMBERSHIP, INCARNATION))
    with pytest.raises(NotInACluster, match="take the folder of another node"):
        force_standalone(str(tmp_path / "late"), confirmed)
