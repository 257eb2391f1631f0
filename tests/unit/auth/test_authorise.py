"""Permissions applied to names, with RabbitMQ's texts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amqp10broker.auth import authorise
from amqp10broker.auth.authorise import Access, CatalogGrants, check_vhost_access
from amqp10broker.errors import NotAllowed, PermissionDenied
from amqp10broker.metadata.users import Permission, TopicPermission, Users
from tests.support.declaring import (
    add_user,
    clear_permission,
    delete_user,
    set_permission,
    set_tags,
    set_topic_permission,
)


@pytest.fixture
def access(users: Users) -> Access:
    set_permission(users, "guest", "/", Permission("^c-", "^(w-|amq\\.default$)", "^r-"))
    return Access(CatalogGrants(users, "guest"), "/")


def refused(ask: Callable[[], None]) -> str:
    with pytest.raises(PermissionDenied) as caught:
        ask()
    return caught.value.description


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_each_permission_is_for_its_operation(access: Access, kind: authorise.Kind) -> None:
    """configure, write and read are three patterns."""
    access.configure(kind, "c-1")
    access.write(kind, "w-1")
    access.read(kind, "r-1")
    for operation, name in (("configure", "w-1"), ("write", "r-1"), ("read", "c-1")):
        assert refused(lambda: getattr(access, operation)(kind, name)) == (  # noqa: B023
            f"{operation} access to {kind} '{name}' in vhost '/' refused for user 'guest'"
        )


@pytest.mark.parametrize("pattern", ["", "^$"])
def test_an_empty_pattern_allows_nothing(users: Users, pattern: str) -> None:
    """Searched for as it is, the empty pattern would be found in every name."""
    set_permission(users, "guest", "/", Permission(pattern, pattern, pattern))
    access = Access(CatalogGrants(users, "guest"), "/")
    for kind, name in (("queue", "q"), ("exchange", "")):
        assert not access.allows("read", kind, name)  # type: ignore[arg-type]


def test_decisions_are_remembered_until_permissions_change(access: Access, users: Users) -> None:
    """A refusal and an allowance both, and both are forgotten."""
    access.read("queue", "r-1")
    assert refused(lambda: access.read("queue", "q"))
    before = access.changes.version
    set_permission(users, "guest", "/", Permission(read="^q$"))
    assert access.changes.version != before
    access.read("queue", "q")
    assert refused(lambda: access.read("queue", "r-1"))


def test_entering_a_virtual_host_needs_a_permission_there(users: Users, access: Access) -> None:
    """530 with RabbitMQ's text; a permission that allows nothing is enough."""
    access.enter()
    set_permission(users, "rabbit", "/", Permission("", "", ""))
    check_vhost_access(CatalogGrants(users, "rabbit"), "/")
    for user, vhost in (("guest", "v"), ("nobody", "/"), ("unknown", "/")):
        with pytest.raises(NotAllowed) as caught:
            check_vhost_access(CatalogGrants(users, user), vhost)
        assert caught.value.description == f"access to vhost '{vhost}' refused for user '{user}'"
    clear_permission(users, "guest", "/")
    with pytest.raises(NotAllowed):
        access.enter()


def test_without_topic_permission_every_key_is_allowed(access: Access, users: Users) -> None:
    """One at another exchange, or of another user, changes nothing."""
    set_topic_permission(users, "guest", "/", "other", TopicPermission("", ""))
    set_topic_permission(users, "rabbit", "/", "amq.topic", TopicPermission("", ""))
    access.write_topic("amq.topic", "any.key")
    access.read_topic("amq.topic", "any.key")


@pytest.mark.rabbitmq("topic_permission_SUITE", "topic_permission_checks")
def test_topic_permissions_are_patterns_on_keys(access: Access, users: Users) -> None:
    set_topic_permission(users, "guest", "/", "amq.topic", TopicPermission("^w\\.", "^r\\."))
    access.write_topic("amq.topic", "w.1")
    access.read_topic("amq.topic", "r.1")
    assert refused(lambda: access.write_topic("amq.topic", "r.1")) == (
        "write access to topic 'r.1' in exchange 'amq.topic' in vhost '/' refused for user 'guest'"
    )
    assert refused(lambda: access.read_topic("amq.topic", "w.1")) == (
        "read access to topic 'w.1' in exchange 'amq.topic' in vhost '/' refused for user 'guest'"
    )


@pytest.mark.rabbitmq("topic_permission_SUITE", "topic_permission_checks")
def test_topic_patterns_may_name_user_and_virtual_host(access: Access, users: Users) -> None:
    """Each user gets a part of the topic tree with one pattern for all."""
    set_topic_permission(users, "guest", "/", "amq.topic", TopicPermission("^{vhost}\\.{username}\\."))
    access.write_topic("amq.topic", "/.guest.x")
    assert refused(lambda: access.write_topic("amq.topic", "/.rabbit.x"))


def test_a_users_name_is_no_pattern(users: Users) -> None:
    """Otherwise a user called .* would have all of the tree."""
    add_user(users, ".*", None)
    set_topic_permission(users, ".*", "/", "amq.topic", TopicPermission("^{username}\\."))
    access = Access(CatalogGrants(users, ".*"), "/")
    access.write_topic("amq.topic", ".*.x")
    assert refused(lambda: access.write_topic("amq.topic", "rabbit.x"))


def test_only_the_tag_makes_an_impersonator(access: Access, users: Users) -> None:
    """And only as long as the user has it."""
    assert not access.impersonator
    set_tags(users, "guest", ["impersonator"])
    assert access.impersonator
    delete_user(users, "guest")
    assert not access.impersonator
