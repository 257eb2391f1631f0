"""Nodes of a cluster as entries: joining, starting, being lost and forgotten, and what goes with them."""

from __future__ import annotations

import pytest

from amqp10broker.errors import InvalidArgument, NotFound
from amqp10broker.metadata import vhost_requests
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.entry_codec import decoded, encoded
from amqp10broker.metadata.plan import CLUSTER, Put
from amqp10broker.metadata.policies import Policy
from amqp10broker.metadata.queue import ClusterFacts, NodeFacts, Owner, Placed, QueueSpec
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.catalog_log import CheckedCatalog, FakeHost, logged_catalog, restarted
from tests.support.declaring import bind, declare, put_policy


class Here:
    """Places every queue at one place."""

    def __init__(self, placed: Placed) -> None:
        self.placed = placed

    def __call__(self, *wanted: object) -> Placed:
        return self.placed


@pytest.fixture
def catalog() -> Catalog:
    catalog = CheckedCatalog(FakeHost().start_queue)
    catalog.apply([Put(CLUSTER, ClusterFacts("id", "name"))])
    for name in ("a", "b"):
        catalog.propose(vhost_requests.JoinNode(name, "host", 1, "1.0"))
    return catalog


def put(
    catalog: Catalog,
    name: str,
    placed: Placed,
    kind: str = "classic",
    *,
    durable: bool = True,
    owner: Owner | None = None,
) -> None:
    catalog.placement = Here(placed)
    kind = "quorum" if placed.members else kind
    declare(catalog, "/", name, durable=durable, exclusive_owner=owner, arguments={"x-queue-type": kind})
    bind(catalog, "/", Binding("amq.direct", Destination("queue", name), "k"))


def names(catalog: Catalog) -> list[str]:
    vhost = catalog.vhosts["/"]
    assert {each.destination.name for each in vhost.topology.bindings()} == set(vhost.queues)
    return sorted(vhost.queues)


def test_a_number_is_never_given_again(catalog: Catalog) -> None:
    assert [node.number for node in catalog.nodes.values()] == [1, 2]
    catalog.propose(vhost_requests.ForgetNode("b"))
    assert catalog.propose(vhost_requests.JoinNode("b", "host", 2)).number == 3


def test_a_node_that_starts_says_where_it_is_and_what_it_had_is_gone(catalog: Catalog) -> None:
    put(catalog, "old", Placed(2, incarnation=1), durable=False)
    put(catalog, "mine", Placed(2, incarnation=1), owner=Owner(2, 1, 1))
    put(catalog, "new", Placed(2, incarnation=2), durable=False)
    put(catalog, "other", Placed(1, incarnation=1), durable=False)
    put(catalog, "durable", Placed(2))
    catalog.propose(vhost_requests.NodeStarted("b", 2, "elsewhere", 5, "2.0"))
    assert names(catalog) == ["durable", "new", "other"]
    assert catalog.nodes["b"] == NodeFacts("b", 2, "elsewhere", 5, 2, False, "2.0")
    with pytest.raises(NotFound, match="nodes are: a, b"):
        catalog.propose(vhost_requests.NodeStarted("c", 1, "h", 1))


def test_what_ends_with_a_node_that_is_lost_is_gone_and_its_name_free(catalog: Catalog) -> None:
    put(catalog, "transient", Placed(2, incarnation=4), durable=False)
    put(catalog, "exclusive", Placed(2, incarnation=4), owner=Owner(2, 4, 1))
    put(catalog, "later", Placed(2, incarnation=5), durable=False)
    put(catalog, "durable", Placed(2))
    catalog.propose(vhost_requests.NodeLost(2, 4))
    assert names(catalog) == ["durable", "later"]
    put(catalog, "transient", Placed(1, incarnation=1), durable=False)


def test_durable_classic_queues_of_a_forgotten_node_are_gone(catalog: Catalog) -> None:
    put(catalog, "durable", Placed(2))
    put(catalog, "stream", Placed(2), "stream")
    put(catalog, "elsewhere", Placed(1))
    put(catalog, "quorum", Placed(members=(2 << 32, 1 << 32)))
    assert catalog.propose(vhost_requests.ForgetNode("b")).number == 2
    assert names(catalog) == ["elsewhere", "quorum"]
    assert catalog.node_of(2) is None
    with pytest.raises(NotFound):
        catalog.propose(vhost_requests.ForgetNode("b"))


def test_members_of_a_queue_change_while_it_runs(catalog: Catalog) -> None:
    told: list[tuple[int, ...]] = []
    catalog.on_members = lambda queue: told.append(queue.members)
    put(catalog, "q", Placed(members=(1 << 32,)))
    queue = catalog.vhosts["/"].queues["q"]
    assert catalog.propose(vhost_requests.SetMembers("/", "q", queue.number, (1 << 32, 2 << 32)))
    assert catalog.propose(vhost_requests.SetMembers("/", "q", queue.number, (1 << 32, 2 << 32)))
    assert not catalog.propose(vhost_requests.SetMembers("/", "q", queue.number + 1, ()))
    assert not catalog.propose(vhost_requests.SetMembers("nowhere", "q", queue.number, ()))
    assert catalog.vhosts["/"].queues["q"] is queue
    assert told == [queue.members] == [(1 << 32, 2 << 32)]


def test_maintenance_and_the_name_of_the_cluster(catalog: Catalog) -> None:
    for draining in (True, True, False):
        catalog.propose(vhost_requests.SetDraining("b", draining))
        assert catalog.nodes["b"].draining is draining
    for name in ("shop", "shop"):
        catalog.propose(vhost_requests.SetClusterName(name))
    assert catalog.cluster == ClusterFacts("id", "shop")
    with pytest.raises(InvalidArgument):
        catalog.propose(vhost_requests.SetClusterName(""))
    alone = Catalog(FakeHost().start_queue)
    alone.propose(vhost_requests.SetClusterName("shop"))
    assert alone.cluster_name("alone") == "shop"


def test_all_of_it_is_kept() -> None:
    catalog, kept = logged_catalog(CheckedCatalog)
    catalog.apply([Put(CLUSTER, ClusterFacts("id", "name"))])
    catalog.changes.keep([Put(CLUSTER, ClusterFacts("id", "name"))])
    for name in ("a", "b"):
        catalog.propose(vhost_requests.JoinNode(name, "host", 1, "1.0"))
    catalog.propose(vhost_requests.ForgetNode("b"))
    put(catalog, "q", Placed(members=(1 << 32,)))
    again = restarted(kept, CheckedCatalog)
    assert (again.nodes, again.highest_node, again.cluster) == (catalog.nodes, 2, catalog.cluster)
    assert again.vhosts["/"].queues["q"].spec == catalog.vhosts["/"].queues["q"].spec


def test_a_queue_of_a_connection_elsewhere_is_the_same_after_its_bytes() -> None:
    spec = QueueSpec(
        *("/", "q", "classic", False, True, {"x-queue-type": "classic"}),
        number=3,
        owner=Owner(2, 4, 9),
        home=2,
        incarnation=4,
    )
    key = ("queue", "/", "q")
    assert decoded(key, encoded(key, spec)) == spec


def test_a_node_that_starts_anew_is_in_service(catalog: Catalog) -> None:
    catalog.propose(vhost_requests.SetDraining("b", True))
    catalog.propose(vhost_requests.NodeStarted("b", 2, "there", 2))
    assert not catalog.nodes["b"].draining


def test_it_is_told_when_queues_may_want_other_members(catalog: Catalog) -> None:
    """G7: a declared queue or a new policy is reported, a queue whose members change is not."""
    told: list[None] = []
    catalog.on_sizes = lambda: told.append(None)
    put(catalog, "q", Placed(members=(1 << 32, 2 << 32)))
    assert len(told) == 1
    number = catalog.vhosts["/"].lookup("q").number
    catalog.propose(vhost_requests.SetMembers("/", "q", number, (1 << 32,)))
    assert len(told) == 1
    put_policy(catalog, "/", Policy("p", ".*", {"target-group-size": 3}, 0, "queues"))
    assert len(told) == 2
