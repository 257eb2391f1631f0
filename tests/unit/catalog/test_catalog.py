"""Virtual hosts come and go."""

from __future__ import annotations

import pytest

from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.users import Permission, TopicPermission
from amqp10broker.errors import InvalidArgument, NotFound, PreconditionFailed
from amqp10broker.routing.exchange import Binding, Destination


def test_there_is_always_a_default_virtual_host(catalog: Catalog) -> None:
    """With the exchanges that each one has."""
    assert list(catalog.vhosts) == ["/"]
    assert catalog.lookup_vhost("/").topology.lookup_exchange("amq.topic").type == "topic"


def test_virtual_hosts_share_nothing(catalog: Catalog) -> None:
    """The same names in two are two queues, and routing stays inside."""
    one, two = catalog.vhosts["/"], catalog.add_vhost("v")
    first, _ = one.declare("q")
    second, _ = two.declare("q", durable=False)
    assert first is not second
    one.topology.bind(Binding("amq.fanout", Destination("queue", "q"), ""))
    assert two.route(two.topology.lookup_exchange("amq.fanout"), [""])[0] == []
    assert list(catalog) == [first, second]


def test_an_unknown_virtual_host_is_not_found(catalog: Catalog) -> None:
    """With the text that 0-9-1 closes the connection with."""
    assert catalog.find_vhost("v") is None
    with pytest.raises(NotFound, match="^vhost v not found$"):
        catalog.lookup_vhost("v")
    with pytest.raises(NotFound):
        catalog.delete_vhost("v")


def test_a_virtual_host_is_added_once(catalog: Catalog) -> None:
    """The one that is there keeps its queues."""
    with pytest.raises(PreconditionFailed, match="vhost '/' exists"):
        catalog.add_vhost("/")


@pytest.mark.parametrize("name", ["", "v" * 256])
def test_a_virtual_hosts_name_has_1_to_255_bytes(catalog: Catalog, name: str) -> None:
    """It goes into a short string."""
    with pytest.raises(InvalidArgument, match="1 to 255 bytes"):
        catalog.add_vhost(name)


def test_a_default_type_must_be_one_that_is_served(catalog: Catalog) -> None:
    """Found out when it is set, not at the first declare; nothing is added."""
    with pytest.raises(InvalidArgument):
        catalog.add_vhost("v", default_queue_type="x")
    assert "v" not in catalog.vhosts


def test_a_deleted_virtual_host_takes_its_permissions_and_parameters_along(catalog: Catalog) -> None:
    """The caller gets its queues to delete them."""
    vhost = catalog.add_vhost("v")
    queue, _ = vhost.declare("q")
    catalog.users.add("a", None)
    catalog.set_permission("a", "v", Permission())
    catalog.set_permission("a", "/", Permission())
    catalog.set_topic_permission("a", "v", "x", TopicPermission())
    catalog.parameters["v", "shovel", "s"] = {}
    gone = catalog.delete_vhost("v")
    assert gone is vhost
    assert list(gone) == [queue]
    assert gone.deleted
    assert [row[1] for row in catalog.users.permissions()] == ["/"]
    assert list(catalog.users.topic_permissions()) == []
    assert catalog.parameters == {}


def test_permissions_need_user_and_virtual_host(catalog: Catalog) -> None:
    """Neither may be missing."""
    catalog.users.add("a", None)
    with pytest.raises(NotFound, match="vhost v not found"):
        catalog.set_permission("a", "v", Permission())
    with pytest.raises(NotFound, match="no user 'b'"):
        catalog.set_permission("b", "/", Permission())
    with pytest.raises(NotFound, match="vhost v not found"):
        catalog.set_topic_permission("a", "v", "x", TopicPermission())
