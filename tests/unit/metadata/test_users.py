"""Users, and limits of users and virtual hosts."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import InvalidArgument, NotAllowed, NotFound
from amqp10broker.metadata.catalog import CHANNELS, USERS, VHOSTS, Catalog, Usage
from amqp10broker.metadata.plan import UserLimits, VhostLimits
from amqp10broker.metadata.users import (
    PasswordAlgorithm,
    PasswordRecord,
    Permission,
    TopicPermission,
    User,
    Users,
)
from tests.support import declaring

SECRET = PasswordRecord(PasswordAlgorithm.PLAIN, "geheim")


@pytest.fixture
def users() -> Users:
    users = Users()
    declaring.add_user(users, "a", SECRET, tags=["administrator"])
    return users


def test_an_unknown_user_cannot_be_changed(users: Users) -> None:
    for change in (
        lambda: declaring.set_password(users, "b", None),
        lambda: declaring.set_tags(users, "b", []),
        lambda: declaring.set_user_limits(users, "b", UserLimits()),
        lambda: declaring.delete_user(users, "b"),
        lambda: declaring.set_permission(users, "b", "/", Permission()),
        lambda: declaring.clear_permission(users, "b", "/"),
        lambda: declaring.set_topic_permission(users, "b", "/", "x", TopicPermission()),
    ):
        with pytest.raises(NotFound, match="no user 'b'; add it first"):
            change()


def test_every_change_raises_the_version(users: Users) -> None:
    seen = {users.version}
    for change in (
        lambda: declaring.set_tags(users, "a", ["monitoring"]),
        lambda: declaring.set_password(users, "a", None),
        lambda: declaring.set_user_limits(users, "a", UserLimits(max_channels=1)),
        lambda: declaring.set_permission(users, "a", "/", Permission()),
        lambda: declaring.set_topic_permission(users, "a", "/", "x", TopicPermission("", "")),
        lambda: declaring.clear_topic_permission(users, "a", "/", "x"),
        lambda: declaring.clear_permission(users, "a", "/"),
        lambda: declaring.delete_user(users, "a"),
    ):
        change()
        assert users.version not in seen
        seen.add(users.version)


def test_permissions_go_with_the_user(users: Users) -> None:
    declaring.set_permission(users, "a", "/", Permission())
    declaring.set_topic_permission(users, "a", "/", "x", TopicPermission())
    declaring.delete_user(users, "a")
    assert list(users.permissions()) == []
    assert list(users.topic_permissions()) == []


@pytest.mark.rabbitmq("topic_permission_SUITE", "topic_permission_database_access")
def test_topic_permissions_are_cleared_one_by_one_or_all(users: Users) -> None:
    """Without an exchange, all of the virtual host are cleared."""
    for exchange in ("x", "y", "z"):
        declaring.set_topic_permission(users, "a", "/", exchange, TopicPermission())
    declaring.clear_topic_permission(users, "a", "/", "x")
    assert [row[2] for row in users.topic_permissions()] == ["y", "z"]
    declaring.clear_topic_permission(users, "a", "/")
    assert list(users.topic_permissions()) == []


def test_no_repr_shows_a_password(users: Users) -> None:
    assert "geheim" not in repr(users.lookup("a"))


def test_limits_are_read_by_rabbitmqs_names() -> None:
    """A negative number is no limit, zero is one."""
    limits = VhostLimits.read({"max-connections": 0, "max-queues": -1}, "vhost 'v'")
    assert limits == VhostLimits(max_connections=0, max_queues=None)
    assert limits.as_dict() == {"max-connections": 0}
    assert UserLimits.read({"max-channels": 5}, "user 'u'").as_dict() == {"max-channels": 5}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max-queue": 1}, "vhost 'v': there is no limit 'max-queue'; did you mean max-queues?"),
        (
            {"max-queues": "1"},
            "vhost 'v': limit 'max-queues' is '1'; must be an integer (negative: no limit)",
        ),
        (
            {"max-queues": True},
            "vhost 'v': limit 'max-queues' is True; must be an integer (negative: no limit)",
        ),
    ],
)
def test_bad_limits_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        VhostLimits.read(values, "vhost 'v'")
    assert caught.value.description == text


@pytest.mark.rabbitmq("per_vhost_connection_limit_SUITE", "most_basic_single_node_connection_count")
def test_a_virtual_hosts_connection_limit(catalog: Catalog) -> None:
    """It counts over all users; a closed connection makes room."""
    vhost = declaring.add_vhost(catalog, "v", limits=VhostLimits(max_connections=1))
    usage = Usage()
    usage.open_connection(vhost, User("a"))
    with pytest.raises(NotAllowed) as caught:
        usage.open_connection(vhost, User("b"))
    assert caught.value.description == (
        "access to vhost 'v' refused for user 'b': vhost connection limit (1) is reached"
    )
    assert usage.counts[VHOSTS]["v"] == 1
    assert usage.counts[USERS]["b"] == 0
    usage.close_connection("v", "a")
    usage.open_connection(vhost, User("b"))
    usage.open_connection(catalog.vhosts["/"], User("a"))


@pytest.mark.rabbitmq(
    "amqp_auth_SUITE",
    "user_connection_limit",
    differs="open and close with the condition instead of a closed socket",
)
@pytest.mark.rabbitmq(
    "per_user_connection_channel_limit_SUITE",
    "most_basic_single_node_connection_and_channel_count",
    "single_node_multiple_users_limit",
)
def test_a_users_connection_limit(catalog: Catalog) -> None:
    """It counts over all virtual hosts; a refused connection is not counted anywhere."""
    user = User("a", limits=UserLimits(max_connections=1))
    usage = Usage()
    usage.open_connection(catalog.vhosts["/"], user)
    vhost = declaring.add_vhost(catalog, "v")
    with pytest.raises(NotAllowed) as caught:
        usage.open_connection(vhost, user)
    assert caught.value.description == (
        "connection refused for user 'a': user connection limit (1) is reached"
    )
    assert usage.counts[VHOSTS]["v"] == 0


@pytest.mark.rabbitmq(
    "per_user_connection_channel_limit_SUITE",
    "most_basic_single_node_connection_and_channel_count",
    "single_node_multiple_users_limit",
)
def test_a_users_channel_limit() -> None:
    user = User("a", limits=UserLimits(max_channels=2))
    usage = Usage()
    usage.open_channel(user)
    usage.open_channel(user)
    with pytest.raises(NotAllowed) as caught:
        usage.open_channel(user)
    assert caught.value.description == (
        "number of channels opened for user 'a' has reached the maximum allowed user limit of (2)"
    )
    usage.close_channel("a")
    usage.open_channel(user)
    assert usage.counts[CHANNELS]["a"] == 2


@pytest.mark.rabbitmq(
    "per_vhost_connection_limit_SUITE",
    "single_node_multiple_vhosts_zero_limit",
    "single_node_single_vhost_zero_limit",
)
@pytest.mark.rabbitmq(
    "per_user_connection_channel_limit_SUITE",
    "single_node_multiple_users_zero_limit",
    "single_node_single_user_zero_limit",
)
def test_a_limit_of_zero_lets_nobody_in(catalog: Catalog) -> None:
    """An administrator closes a virtual host this way."""
    vhost = declaring.add_vhost(catalog, "v", limits=VhostLimits(max_connections=0))
    with pytest.raises(NotAllowed, match=r"vhost connection limit \(0\) is reached"):
        Usage().open_connection(vhost, User("a"))


def test_what_is_open_at_other_nodes_counts(catalog: Catalog) -> None:
    """W3: it counts until the node updates it or is lost."""
    vhost = declaring.add_vhost(catalog, "v", limits=VhostLimits(max_connections=2))
    user = User("a", limits=UserLimits(max_connections=9, max_channels=2))
    there, here = Usage(), Usage()
    there.open_connection(vhost, user)
    there.open_channel(user)
    told = there.limited([vhost], [user])
    assert told == {"vhosts": {"v": 1}, "users": {"a": 1}, "channels": {"a": 1}}
    here.update_from(2, told)
    here.open_connection(vhost, user)
    here.open_channel(user)
    with pytest.raises(NotAllowed, match="vhost connection limit"):
        here.open_connection(vhost, user)
    with pytest.raises(NotAllowed, match="number of channels"):
        here.open_channel(user)
    here.update_from(3, {"users": {"a": 8}})
    here.update_from(2, {})
    with pytest.raises(NotAllowed, match="user connection limit"):
        here.open_connection(vhost, user)
    here.update_from(3, {})
    here.open_connection(vhost, user)
    here.open_channel(user)


def test_only_what_has_a_limit_is_told_to_other_nodes(catalog: Catalog) -> None:
    """There may be many thousands of users."""
    vhost, user = declaring.add_vhost(catalog, "v"), User("a")
    usage = Usage()
    usage.open_connection(vhost, user)
    usage.open_channel(user)
    assert not any(usage.limited([vhost], [user]).values())
