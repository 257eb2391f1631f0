"""Virtual hosts come and go."""

from __future__ import annotations

import pytest

from amqp10broker.errors import InvalidArgument, NotFound
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.users import Permission, TopicPermission
from amqp10broker.queues.commands import DELETE
from tests.support.declaring import (
    add_user,
    add_vhost,
    declare,
    delete_vhost,
    set_permission,
    set_topic_permission,
)


def test_a_default_type_must_be_one_that_is_served(catalog: Catalog) -> None:
    """Found out when it is set, not at the first declare; nothing is added."""
    with pytest.raises(InvalidArgument):
        add_vhost(catalog, "v", default_queue_type="x")
    assert "v" not in catalog.vhosts


@pytest.mark.rabbitmq("vhost_SUITE", "vhost_deletion")
def test_a_deleted_virtual_host_takes_its_permissions_and_parameters_along(catalog: Catalog) -> None:
    vhost = add_vhost(catalog, "v")
    queue, _ = declare(catalog, vhost, "q")
    add_user(catalog, "a", None)
    set_permission(catalog, "a", "v", Permission())
    set_permission(catalog, "a", "/", Permission())
    set_topic_permission(catalog, "a", "v", "x", TopicPermission())
    catalog.parameters["v", "shovel", "s"] = {}
    gone = delete_vhost(catalog, "v")
    assert gone is vhost
    assert queue.handle.letters == [DELETE]  # type: ignore[attr-defined]
    assert list(gone) == list(gone.topology.bindings()) == []
    assert gone.deleted
    assert [row[1] for row in catalog.users.permissions()] == ["/"]
    assert list(catalog.users.topic_permissions()) == []
    assert catalog.parameters == {}


def test_permissions_need_user_and_virtual_host(catalog: Catalog) -> None:
    add_user(catalog, "a", None)
    with pytest.raises(NotFound, match="vhost v not found"):
        set_permission(catalog, "a", "v", Permission())
    with pytest.raises(NotFound, match="no user 'b'"):
        set_permission(catalog, "b", "/", Permission())
    with pytest.raises(NotFound, match="vhost v not found"):
        set_topic_permission(catalog, "a", "v", "x", TopicPermission())
