"""Users, permissions, and the version by which remembered decisions are dropped."""

from __future__ import annotations

import pytest

from amqp10broker.errors import NotFound
from amqp10broker.metadata.plan import UserLimits
from amqp10broker.metadata.users import (
    PasswordAlgorithm,
    PasswordRecord,
    Permission,
    TopicPermission,
    Users,
)
from tests.support.declaring import (
    add_user,
    clear_permission,
    clear_topic_permission,
    delete_user,
    set_password,
    set_permission,
    set_tags,
    set_topic_permission,
    set_user_limits,
)

SECRET = PasswordRecord(PasswordAlgorithm.PLAIN, "geheim")


@pytest.fixture
def users() -> Users:
    users = Users()
    add_user(users, "a", SECRET, tags=["administrator"])
    return users


def test_an_unknown_user_cannot_be_changed(users: Users) -> None:
    for change in (
        lambda: set_password(users, "b", None),
        lambda: set_tags(users, "b", []),
        lambda: set_user_limits(users, "b", UserLimits()),
        lambda: delete_user(users, "b"),
        lambda: set_permission(users, "b", "/", Permission()),
        lambda: clear_permission(users, "b", "/"),
        lambda: set_topic_permission(users, "b", "/", "x", TopicPermission()),
    ):
        with pytest.raises(NotFound, match="no user 'b'; add it first"):
            change()


def test_every_change_raises_the_version(users: Users) -> None:
    seen = {users.version}
    for change in (
        lambda: set_tags(users, "a", ["monitoring"]),
        lambda: set_password(users, "a", None),
        lambda: set_user_limits(users, "a", UserLimits(max_channels=1)),
        lambda: set_permission(users, "a", "/", Permission()),
        lambda: set_topic_permission(users, "a", "/", "x", TopicPermission("", "")),
        lambda: clear_topic_permission(users, "a", "/", "x"),
        lambda: clear_permission(users, "a", "/"),
        lambda: delete_user(users, "a"),
    ):
        change()
        assert users.version not in seen
        seen.add(users.version)


def test_permissions_go_with_the_user(users: Users) -> None:
    """A user of the same name who is added later starts with nothing."""
    set_permission(users, "a", "/", Permission())
    set_topic_permission(users, "a", "/", "x", TopicPermission())
    delete_user(users, "a")
    assert list(users.permissions()) == []
    assert list(users.topic_permissions()) == []


@pytest.mark.rabbitmq("topic_permission_SUITE", "topic_permission_database_access")
def test_topic_permissions_are_cleared_one_by_one_or_all(users: Users) -> None:
    """Without an exchange, all of the virtual host."""
    for exchange in ("x", "y", "z"):
        set_topic_permission(users, "a", "/", exchange, TopicPermission())
    clear_topic_permission(users, "a", "/", "x")
    assert [row[2] for row in users.topic_permissions()] == ["y", "z"]
    clear_topic_permission(users, "a", "/")
    assert list(users.topic_permissions()) == []


def test_no_repr_shows_a_password(users: Users) -> None:
    assert "geheim" not in repr(users.lookup("a"))
