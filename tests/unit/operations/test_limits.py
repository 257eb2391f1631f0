"""Limits of virtual hosts and users: merged, lifted, refused."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import InvalidArgument, NotFound
from tests.support.managing import Broker


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_limits_of_a_virtual_host_are_merged_and_lifted(broker: Broker) -> None:
    """Those not given stay; a negative number is none."""
    assert broker.do("set-vhost-limits", limits={"max-queues": 5}) == {"max-queues": 5}
    assert broker.do("set-vhost-limits", vhost="/", limits={"max-connections": 0}) == {
        "max-connections": 0,
        "max-queues": 5,
    }
    assert broker.do("set-vhost-limits", limits={"max-queues": -1}) == {"max-connections": 0}
    assert broker.do("list-vhosts")[0]["limits"] == {"max-connections": 0}


@pytest.mark.rabbitmq(
    "per_user_connection_channel_limit_SUITE",
    "single_node_multiple_users_clear_limits",
    "single_node_single_user_clear_limits",
)
def test_limits_of_a_user_are_merged_and_lifted(broker: Broker) -> None:
    assert broker.do("set-user-limits", user="guest", limits={"max-channels": 5}) == {"max-channels": 5}
    broker.do("set-user-limits", user="guest", limits={"max-connections": 1, "max-channels": -1})
    assert broker.do("list-users")[0]["limits"] == {"max-connections": 1}


@pytest.mark.parametrize(
    ("operation", "given", "error", "text"),
    [
        ("set-vhost-limits", {"vhost": "no", "limits": {}}, NotFound, "vhost no not found"),
        ("set-user-limits", {"user": "no", "limits": {}}, NotFound, "no user 'no'"),
        ("set-vhost-limits", {"limits": {"max-channels": 1}}, InvalidArgument, "there is no limit 'max-ch"),
        ("set-user-limits", {"user": "guest", "limits": {"max-queues": 1}}, InvalidArgument, "no limit"),
        ("set-vhost-limits", {"limits": {"max-queues": "5"}}, InvalidArgument, "must be an integer"),
    ],
)
def test_what_cannot_be_a_limit_changes_nothing(
    broker: Broker, operation: str, given: dict[str, Any], error: type[Exception], text: str
) -> None:
    """The text names the limits that there are."""
    with pytest.raises(error, match=text):
        broker.do(operation, **given)
    assert broker.do("list-vhosts")[0]["limits"] == {}
    assert broker.do("list-users")[0]["limits"] == {}
