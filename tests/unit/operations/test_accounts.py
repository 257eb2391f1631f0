"""Users, permissions and virtual hosts: what the operations change, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.auth.passwords import Passwords
from amqp10broker.errors import (
    BadRequest,
    InvalidArgument,
    LimitExceeded,
    NotFound,
)
from amqp10broker.metadata.users import Permission
from amqp10broker.operations.node import Caller
from tests.support.declaring import add_vhost, declare
from tests.support.managing import Broker


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def owner(broker: Broker) -> Caller:
    return broker.caller(None, passwords=Passwords(broker.catalog.users, lambda count: bytes(count)))


def test_a_user_is_added_with_a_password_that_is_not_kept(broker: Broker, owner: Caller) -> None:
    added = broker.do("add-user", caller=owner, user="ann", password="secret", tags=["monitoring"])
    assert added == {"user": "ann", "tags": ["monitoring"]}
    record = broker.catalog.users.lookup("ann").password
    assert record is not None
    assert "secret" not in record.value
    assert broker.do("list-permissions", caller=owner) == [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ]


def test_permissions_are_set_and_cleared(broker: Broker) -> None:
    """In the caller's virtual host unless another one is named."""
    add_vhost(broker.catalog, "v")
    broker.do("add-user", user="ann")
    broker.do("set-permissions", user="ann", configure="", write="a", read="b")
    broker.do("set-permissions", user="ann", vhost="v", configure="c", write="", read="")
    assert broker.catalog.users.permission("ann", "/") == Permission("", "a", "b")
    assert broker.do("list-permissions", vhost="v") == [
        {"user": "ann", "vhost": "v", "configure": "c", "write": "", "read": ""}
    ]
    broker.do("clear-permissions", user="ann", vhost="v")
    assert broker.do("list-permissions", vhost="v") == []
    assert broker.catalog.users.permission("ann", "/") is not None


@pytest.mark.parametrize(
    ("operation", "given"),
    [
        ("set-permissions", {"configure": "", "write": "", "read": ""}),
        ("clear-permissions", {}),
        ("set-topic-permissions", {"exchange": "x", "write": "", "read": ""}),
        ("clear-topic-permissions", {}),
    ],
)
def test_permissions_need_a_user_and_a_virtual_host(broker: Broker, operation: str, given: Any) -> None:
    with pytest.raises(NotFound, match="no user 'no'"):
        broker.do(operation, user="no", **given)
    with pytest.raises(NotFound, match="vhost no not found"):
        broker.do(operation, user="guest", vhost="no", **given)


def test_a_permission_must_be_a_regular_expression(broker: Broker) -> None:
    """Found when it is set, not when it is used."""
    with pytest.raises(InvalidArgument, match="not a regular expression"):
        broker.do("set-permissions", user="guest", configure="(", write="", read="")


def test_a_virtual_host_is_deleted_with_its_queues(broker: Broker) -> None:
    vhost = add_vhost(broker.catalog, "v")
    declare(broker.catalog, vhost, "q")
    assert broker.do("delete-vhost", name="v") == {"name": "v", "queues": 1}
    assert broker.node.asked == [("close_connections", ("vhost 'v' is deleted",), {"vhost": "v"})]
    broker.host.boxes["q"].work()
    assert broker.host.boxes["q"].queue.deleted
    assert [each["name"] for each in broker.do("list-vhosts")] == ["/"]
    with pytest.raises(NotFound):
        broker.do("delete-vhost", name="v")


@pytest.mark.rabbitmq("vhost_SUITE", "parse_tags")
@pytest.mark.parametrize("tags", ["administrator", [1], {"a": 1}])
def test_tags_are_a_list_of_texts(broker: Broker, tags: Any) -> None:
    with pytest.raises(BadRequest, match="it must be a list of strings"):
        broker.do("set-tags", user="guest", tags=tags)


def test_limits_are_changed_one_by_one(broker: Broker) -> None:
    """What is not given stays, a negative number lifts one."""
    assert broker.do("set-vhost-limits", limits={"max-queues": 1, "max-connections": 5}) == {
        "max-queues": 1,
        "max-connections": 5,
    }
    assert broker.do("set-vhost-limits", limits={"max-connections": -1}) == {"max-queues": 1}
    broker.do("declare-queue", name="a")
    with pytest.raises(LimitExceeded):
        broker.do("declare-queue", name="b")
    assert broker.do("set-user-limits", user="guest", limits={"max-channels": 3}) == {"max-channels": 3}
    assert broker.do("list-users")[0]["limits"] == {"max-channels": 3}
