"""Operations on users, permissions and virtual hosts.

They are for administrators (users with that tag, and the machine's owner at the local socket), and raise
`PermissionDenied` for others. A missing user or virtual host raises `NotFound`, an entry of a document that
is not valid `BadRequest`, and a pattern that is not valid `InvalidArgument`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

from amqp10broker.errors import BadRequest, ConfigError, NotSupported, PreconditionFailed
from amqp10broker.metadata.definition_entries import DefinitionEntry, password_of
from amqp10broker.metadata.entry_codec import read_user, read_vhost
from amqp10broker.metadata.patterns import check_bounded
from amqp10broker.metadata.plan import VhostFacts
from amqp10broker.metadata.user_requests import (
    AddUser,
    ClearPermission,
    ClearTopicPermission,
    DeleteUser,
    PutUser,
    SetPassword,
    SetPermission,
    SetTags,
    SetTopicPermission,
)
from amqp10broker.metadata.users import PasswordRecord, Permission, TopicPermission, User
from amqp10broker.metadata.vhost_requests import AddVhost, DeleteVhost, PutVhost
from amqp10broker.operations.caller import Caller, ProposedChange

PROTECTED: Final = "protected_from_deletion"
"""Key in the metadata of a virtual host."""


def add_user(caller: Caller, user: str, password: str | None, tags: list[str]) -> ProposedChange:
    """Add a user without permissions. Raises `PreconditionFailed` if the name exists, and `InvalidArgument`
    if name or password is not allowed.
    """
    caller.may_administer("add-user")
    wanted = User(user, _optional(caller, password), tuple(tags))
    return ProposedChange(AddUser(wanted), lambda added: {"user": added.name, "tags": list(added.tags)})


def put_user(caller: Caller, user: str, entry: dict[str, Any]) -> ProposedChange:
    """Add a user, or replace all of it except its permissions. Raises `InvalidArgument` if name, password or
    a limit is not allowed.
    """
    caller.may_administer("put-user")
    given = DefinitionEntry(f"user '{user}'", {**entry, "name": user})
    created = user not in caller.catalog.users
    try:
        wanted = read_user(given, password_of(given, partial(_record, caller)))
    except ConfigError as error:
        raise BadRequest(f"user '{user}'", str(error)) from error
    return ProposedChange(PutUser(wanted), lambda put: {"created": created})


def change_password(caller: Caller, user: str, password: str | None) -> ProposedChange:
    """Replace the password of a user, or remove it, so that no login with a password is possible. Raises
    `InvalidArgument` if the password is not allowed.
    """
    caller.may_administer("change-password")
    caller.catalog.users.lookup(user)
    return ProposedChange(SetPassword(user, _optional(caller, password)))


def delete_user(caller: Caller, user: str) -> ProposedChange:
    """Delete a user and its permissions, and close its connections."""
    node = caller.administered("delete-user")
    return ProposedChange(
        DeleteUser(user), lambda gone: node.close_connections(f"user '{user}' is deleted", user=user)
    )


def set_tags(caller: Caller, user: str, tags: list[str]) -> ProposedChange:
    """Replace the tags of a user."""
    caller.may_administer("set-tags")
    return ProposedChange(SetTags(user, tuple(tags)))


def list_users(caller: Caller) -> list[dict[str, Any]]:
    """List all users with their tags, by name."""
    caller.may_administer("list-users")
    users = sorted(caller.catalog.users, key=lambda user: user.name)
    return [{"user": user.name, "tags": list(user.tags), "limits": user.limits.as_dict()} for user in users]


def set_permissions(
    caller: Caller, user: str, vhost: str | None, configure: str, write: str, read: str
) -> ProposedChange:
    """Set the permissions of a user in a virtual host."""
    caller.may_administer("set-permissions")
    check_bounded((configure, write, read), f"permissions of user '{user}'")
    permission = Permission(configure, write, read)
    return ProposedChange(SetPermission(user, _vhost(caller, vhost), permission))


def clear_permissions(caller: Caller, user: str, vhost: str | None) -> ProposedChange:
    """Remove a user's permissions in a virtual host, with the right to enter it."""
    caller.may_administer("clear-permissions")
    return ProposedChange(ClearPermission(user, _vhost(caller, vhost)))


def list_permissions(caller: Caller, vhost: str | None) -> list[dict[str, Any]]:
    """List the permissions in a virtual host, by user."""
    caller.may_administer("list-permissions")
    name = caller.catalog.lookup_vhost(_vhost(caller, vhost)).name
    return sorted(
        (
            {
                "user": user,
                "vhost": where,
                "configure": each.configure,
                "write": each.write,
                "read": each.read,
            }
            for user, where, each in caller.catalog.users.permissions()
            if where == name
        ),
        key=lambda row: row["user"],
    )


def set_topic_permissions(
    caller: Caller, user: str, vhost: str | None, exchange: str, write: str, read: str
) -> ProposedChange:
    """Restrict a user's routing keys at a topic exchange."""
    caller.may_administer("set-topic-permissions")
    check_bounded((write, read), f"topic permissions of user '{user}'")
    permission = TopicPermission(write, read)
    return ProposedChange(SetTopicPermission(user, _vhost(caller, vhost), exchange, permission))


def clear_topic_permissions(
    caller: Caller, user: str, vhost: str | None, exchange: str | None
) -> ProposedChange:
    """Remove the restriction at one exchange, or at all of the virtual host."""
    caller.may_administer("clear-topic-permissions")
    return ProposedChange(ClearTopicPermission(user, _vhost(caller, vhost), exchange))


def list_topic_permissions(caller: Caller, vhost: str | None) -> list[dict[str, Any]]:
    """List the topic permissions in a virtual host, by user and exchange."""
    caller.may_administer("list-topic-permissions")
    name = caller.catalog.lookup_vhost(_vhost(caller, vhost)).name
    return sorted(
        (
            {"user": user, "vhost": where, "exchange": exchange, "write": each.write, "read": each.read}
            for user, where, exchange, each in caller.catalog.users.topic_permissions()
            if where == name
        ),
        key=lambda row: (row["user"], row["exchange"]),
    )


def add_vhost(
    caller: Caller, name: str, description: str, tags: list[str], default_queue_type: str | None
) -> ProposedChange:
    """Add a virtual host, which no user may enter yet. Raises `PreconditionFailed` if the name exists, and
    `InvalidArgument` if the name is not allowed, or the type is not a kind of queue.
    """
    caller.may_administer("add-vhost")
    facts = VhostFacts(name, description, tuple(tags), default_queue_type=default_queue_type)
    return ProposedChange(AddVhost(facts), lambda answer: {"name": name})


def put_vhost(caller: Caller, name: str, entry: dict[str, Any]) -> ProposedChange:
    """Add a virtual host, or change its description; its content and limits stay. Raises `InvalidArgument` if
    the name is not allowed, or the type is not a kind of queue.
    """
    caller.may_administer("put-vhost")
    there = caller.catalog.find_vhost(name)
    try:
        facts = read_vhost(DefinitionEntry(f"vhost '{name}'", {**entry, "name": name}))
    except ConfigError as error:
        raise BadRequest(f"vhost '{name}'", str(error)) from error
    if there is not None:
        facts = replace(facts, limits=there.limits)
    return ProposedChange(PutVhost(facts), lambda put: {"created": there is None})


def delete_vhost(caller: Caller, name: str) -> ProposedChange:
    """Delete a virtual host with its content, and close the connections to it. Raises `NotFound` if it does
    not exist, and `PreconditionFailed` if it is protected from deletion.
    """
    node = caller.administered("delete-vhost")
    there = caller.catalog.find_vhost(name)
    if there is not None and there.facts.metadata.get(PROTECTED):
        raise PreconditionFailed(
            f"vhost '{name}'",
            f"vhost '{name}' is protected from deletion; take the protection away first",
        )

    def then(queues: int) -> dict[str, Any]:
        node.close_connections(f"vhost '{name}' is deleted", vhost=name)
        return {"name": name, "queues": queues}

    return ProposedChange(DeleteVhost(name), then)


def list_vhosts(caller: Caller) -> list[dict[str, Any]]:
    """List all virtual hosts by name; for users without that tag, those they may enter."""
    access = caller.access
    vhosts = sorted(caller.catalog.vhosts.values(), key=lambda vhost: vhost.name)
    return [
        {
            "name": vhost.name,
            "description": vhost.description,
            "tags": list(vhost.tags),
            "default_queue_type": vhost.default_queue_type,
            "queues": sum(1 for _ in vhost),
            "limits": vhost.limits.as_dict(),
        }
        for vhost in vhosts
        if access is None
        or caller.is_administrator
        or caller.catalog.users.permission(access.user, vhost.name) is not None
    ]


def _vhost(caller: Caller, name: str | None) -> str:
    return caller.vhost.name if name is None else name


def _optional(caller: Caller, password: str | None) -> PasswordRecord | None:
    return None if password is None else _record(caller, password)


def _record(caller: Caller, password: str) -> PasswordRecord:
    if caller.passwords is None:
        raise NotSupported("password", "passwords cannot be set here: use the command line's local socket")
    return caller.passwords.make(password)
