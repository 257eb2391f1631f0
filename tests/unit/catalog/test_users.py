"""Users, permissions, and the version by which remembered decisions are dropped."""

from __future__ import annotations

import pytest

from amqp10broker.catalog.limits import UserLimits
from amqp10broker.catalog.users import (
    PasswordAlgorithm,
    PasswordRecord,
    Permission,
    TopicPermission,
    User,
    Users,
)
from amqp10broker.errors import InvalidArgument, NotFound, PreconditionFailed

SECRET = PasswordRecord(PasswordAlgorithm.PLAIN, "geheim")


@pytest.fixture
def users() -> Users:
    users = Users()
    users.add("a", SECRET, tags=["administrator"])
    return users


def test_a_user_is_added_once(users: Users) -> None:
    """A second one of the name is refused and the first stays."""
    with pytest.raises(PreconditionFailed, match="user 'a' exists; change or delete it"):
        users.add("a", None)
    assert users.lookup("a") == User("a", SECRET, frozenset({"administrator"}))
    assert "a" in users
    assert [user.name for user in users] == ["a"]


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_names_that_sasl_cannot_carry_are_refused(users: Users, name: str) -> None:
    """PLAIN separates by NUL."""
    with pytest.raises(InvalidArgument):
        users.add(name, None)
    assert len(users) == 1


def test_an_unknown_user_cannot_be_changed(users: Users) -> None:
    """The error says what to do."""
    for change in (
        lambda: users.set_password("b", None),
        lambda: users.set_tags("b", []),
        lambda: users.set_limits("b", UserLimits()),
        lambda: users.delete("b"),
        lambda: users.set_permission("b", "/", Permission()),
        lambda: users.clear_permission("b", "/"),
        lambda: users.set_topic_permission("b", "/", "x", TopicPermission()),
    ):
        with pytest.raises(NotFound, match="no user 'b'; add it first"):
            change()


def test_every_change_raises_the_version(users: Users) -> None:
    """And what changes nothing does not."""
    seen = {users.version}
    for change in (
        lambda: users.set_tags("a", ["monitoring"]),
        lambda: users.set_password("a", None),
        lambda: users.set_limits("a", UserLimits(max_channels=1)),
        lambda: users.set_permission("a", "/", Permission()),
        lambda: users.set_topic_permission("a", "/", "x", TopicPermission("", "")),
        lambda: users.clear_topic_permission("a", "/", "x"),
        lambda: users.clear_permission("a", "/"),
        lambda: users.delete("a"),
    ):
        change()
        assert users.version not in seen
        seen.add(users.version)


def test_what_changes_nothing_keeps_the_version(users: Users) -> None:
    """Loading the same definitions again makes nobody decide anew."""
    users.set_permission("a", "/", Permission())
    before = users.version
    users.set_permission("a", "/", Permission())
    users.set_tags("a", ["administrator"])
    users.clear_permission("a", "elsewhere")
    users.clear_topic_permission("a", "/")
    assert users.version == before


def test_permissions_go_with_the_user(users: Users) -> None:
    """A user of the same name who is added later starts with nothing."""
    users.set_permission("a", "/", Permission())
    users.set_topic_permission("a", "/", "x", TopicPermission())
    users.delete("a")
    assert list(users.permissions()) == []
    assert list(users.topic_permissions()) == []


def test_permissions_go_with_the_virtual_host(users: Users) -> None:
    """Those in others stay."""
    users.set_permission("a", "v", Permission())
    users.set_permission("a", "w", Permission())
    users.set_topic_permission("a", "v", "x", TopicPermission())
    users.forget_vhost("v")
    assert [(user, vhost) for user, vhost, _ in users.permissions()] == [("a", "w")]
    assert list(users.topic_permissions()) == []


def test_topic_permissions_are_cleared_one_by_one_or_all(users: Users) -> None:
    """Without an exchange, all of the virtual host."""
    for exchange in ("x", "y", "z"):
        users.set_topic_permission("a", "/", exchange, TopicPermission())
    users.clear_topic_permission("a", "/", "x")
    assert [row[2] for row in users.topic_permissions()] == ["y", "z"]
    users.clear_topic_permission("a", "/")
    assert list(users.topic_permissions()) == []


def test_a_pattern_that_is_none_is_refused() -> None:
    """When it is set, not when it is used; the text says which and why."""
    with pytest.raises(InvalidArgument, match=r"write permission: '\(' is not a regular expression"):
        Permission(write="(")
    with pytest.raises(InvalidArgument, match="topic read permission"):
        TopicPermission(read="[")


def test_no_repr_shows_a_password(users: Users) -> None:
    """Records end up in logs."""
    assert "geheim" not in repr(users.lookup("a"))
