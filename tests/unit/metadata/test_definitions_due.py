"""What a founder declares when its cluster is whole: queues and bindings, once."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.cluster.membership import ByCount
from amqp10broker.errors import ConfigError
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.definitions import DeclareDue, due_of, importing, without_due
from amqp10broker.metadata.node_requests import JoinNode, SetClusterName
from amqp10broker.metadata.plan import CLUSTER, Put
from amqp10broker.metadata.queue import ClusterFacts
from amqp10broker.metadata.queue_requests import DeleteQueue
from amqp10broker.raft.ids import node_of
from tests.support.declaring import declare
from tests.support.kept_entries import Watched, kept_catalog, restarted

DOCUMENT: dict[str, Any] = {
    "exchanges": [{"name": "x", "vhost": "/", "type": "direct"}],
    "queues": [{"name": "q", "vhost": "/", "type": "quorum"}],
    "bindings": [
        {"source": "x", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "k"}
    ],
}


def founded() -> tuple[Catalog, dict[Any, Any]]:
    """The catalog of a founder that is alone so far, with what it keeps."""
    catalog, kept = kept_catalog(Watched)
    facts = Put(CLUSTER, ClusterFacts("id", "name", queues_due=True))
    catalog.apply([facts])
    catalog.changes.keep([facts])
    catalog.propose(JoinNode("a", "host", 1))
    catalog.placement = ByCount(1, 1, lambda count: 0, runs=lambda node: True)
    catalog.propose(without_due(importing(DOCUMENT)))
    return catalog, kept


def test_a_queue_gets_the_members_that_it_would_not_have_had_at_the_beginning() -> None:
    catalog, _ = founded()
    for name in ("b", "c"):
        catalog.propose(JoinNode(name, "host", 1))
    report = catalog.propose(DeclareDue(due_of(DOCUMENT, [])))
    assert report.loaded["queues"] == report.loaded["bindings"] == 1
    queue = catalog.vhosts["/"].lookup("q")
    assert sorted(map(node_of, queue.members)) == [1, 2, 3]
    assert len(list(catalog.vhosts["/"].topology.bindings())) == 1


def test_it_is_declared_once() -> None:
    """What was deleted since does not come back, and the node knows so after a restart."""
    catalog, kept = founded()
    catalog.propose(SetClusterName("shop"))
    assert restarted(kept, Watched).cluster == ClusterFacts("id", "shop", queues_due=True)
    catalog.propose(DeclareDue(due_of(DOCUMENT, [])))
    catalog.propose(DeleteQueue("/", "q"))
    again = restarted(kept, Watched)
    assert again.cluster == ClusterFacts("id", "shop")
    for each in (catalog, again):
        assert each.propose(DeclareDue(due_of(DOCUMENT, []))).loaded == {}
        assert list(each) == []


def test_what_clashes_with_what_a_client_has_declared_is_left_out() -> None:
    catalog, _ = founded()
    declare(catalog, "/", "other")
    further = [{"name": "other", "vhost": "/", "type": "quorum"}]
    report = catalog.propose(DeclareDue(due_of(DOCUMENT, further)))
    assert [each.partition(":")[2].partition(":")[0] for each in report.skipped] == [" queues[1] (other)"]
    assert catalog.cluster is not None
    assert not catalog.cluster.queues_due
    assert sorted(queue.name for queue in catalog) == ["other", "q"]
    with pytest.raises(ConfigError, match="queues is {}; must be a list"):
        due_of({"queues": {}}, further).plan(catalog)
