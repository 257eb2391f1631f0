"""Operations on users, permissions and virtual hosts.

A missing user or virtual host raises `NotFound`, an invalid entry of a document `BadRequest`, and an invalid
pattern, name, password or limit `InvalidArgument`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

from amqp10broker.errors import BadRequest, ConfigError, NotSupported, PreconditionFailed
from amqp10broker.metadata.entry_codec import DefinitionEntry, password_of, read_user, read_vhost
from amqp10broker.metadata.patterns import check_bounded
from amqp10broker.metadata.plan import VhostFacts
from amqp10broker.metadata.queue_arguments import QueueType
from amqp10broker.metadata.users import PasswordRecord, Permission, TopicPermission, User
from amqp10broker.metadata.vhost_requests import (
    ChangeUser,
    ChangeVhostLimits,
    ClearTopicPermission,
    DeleteUser,
    DeleteVhost,
    PutUser,
    PutVhost,
    SetPermission,
    SetTopicPermission,
)
from amqp10broker.operations.node import Caller, Steps
from amqp10broker.operations.operation import EMPTY, Check, Command, Name, Vhost, counted, operation

PROTECTED: Final = "protected_from_deletion"
"""Key in the metadata of a virtual host."""
UserName = Annotated[str, "name of the user"]
Password = Annotated[str | None, "none: no login with a password", Check(secret=True)]
QUEUE_TYPES: Final = tuple(QueueType)
_LIMITS: Final = "by name; a negative number lifts one"
_REGULAR: Final = "regular expression; '.*' allows everything, '' nothing"


def _where(given: Mapping[str, Any]) -> str:
    return "" if given["vhost"] is None else f" in vhost '{given['vhost']}'"


def _topics(given: Mapping[str, Any]) -> str:
    on = "all exchanges" if given["exchange"] is None else f"'{given['exchange']}'"
    return f"topic permissions of user '{given['user']}' on {on}{_where(given)}"


def _limits_said(whose: str, limits: Mapping[str, int]) -> str:
    return f"limits of {whose}: {', '.join(f'{name} {value}' for name, value in limits.items()) or 'none'}"


@operation(
    "add-user",
    "user",
    command=Command(
        "user add",
        "echo a-password | amqp10broker user add ann --tag management --password-file -",
        "user '{user}' added; it may do nothing yet, see 'amqp10broker permission set --help'",
        description="Add a user, without permissions. The password is not on the command line, where others "
        "on this machine could see it.",
    ),
)
def add_user(
    caller: Caller,
    user: UserName,
    password: Password = None,
    tags: Annotated[Sequence[str], "administrator, monitoring, impersonator or another, repeatable"] = (),
) -> Steps[dict[str, Any]]:
    """Add a user, without permissions.

    Raises `PreconditionFailed` if the name exists.
    """
    wanted = User(user, _optional(caller, password), tuple(tags))
    added = yield from caller.change(PutUser(wanted, new=True))
    return {"user": added.name, "tags": list(added.tags)}


@operation("put-user", "user")
def put_user(
    caller: Caller,
    user: UserName,
    entry: Annotated[
        dict[str, Any],
        "as in a definitions document: password or password_hash, hashing_algorithm, tags, limits",
    ] = EMPTY,
) -> Steps[dict[str, Any]]:
    """Add a user, or replace all of it except its permissions."""
    given = DefinitionEntry(f"user '{user}'", {**entry, "name": user})
    created = user not in caller.catalog.users
    try:
        wanted = read_user(given, password_of(given, partial(_record, caller)))
    except ConfigError as error:
        raise BadRequest(f"user '{user}'", str(error)) from error
    yield from caller.change(PutUser(wanted))
    return {"created": created}


@operation(
    "change-password",
    "user",
    command=Command(
        "user set-password",
        "ann --password-file password",
        said=lambda given, done: (
            f"user '{given['user']}' has {'none' if given['password'] is None else 'another password'}"
        ),
    ),
)
def change_password(caller: Caller, user: UserName, password: Password = None) -> Steps[None]:
    """Give a user another password."""
    caller.catalog.users.lookup(user)
    yield from caller.change(ChangeUser(user, {"password": _optional(caller, password)}))


@operation("delete-user", "user", command=Command("user delete", "ann", "user '{user}' deleted"))
def delete_user(caller: Caller, user: UserName) -> Steps[None]:
    """Delete a user and its permissions, and close its connections."""
    yield from caller.change(DeleteUser(user))
    caller.node.close_connections(f"user '{user}' is deleted", user=user)


@operation(
    "set-tags",
    "user",
    command=Command(
        "user set-tags",
        "ann administrator",
        said=lambda given, done: f"tags of user '{given['user']}': {', '.join(given['tags']) or 'none'}",
    ),
)
def set_tags(
    caller: Caller, user: UserName, tags: Annotated[Sequence[str], "all that the user has from now on"]
) -> Steps[None]:
    """Give a user other tags."""
    yield from caller.change(ChangeUser(user, {"tags": tuple(tags)}))


@operation(
    "set-user-limits",
    "user",
    command=Command(
        "user set-limits",
        "ann --max-connections 100",
        said=lambda given, limits: _limits_said(f"user '{given['user']}'", limits),
    ),
)
def set_user_limits(
    caller: Caller,
    user: UserName,
    limits: Annotated[
        dict[str, Any],
        _LIMITS,
        Check(
            keys={
                "max-connections": "connections that the user may have open",
                "max-channels": "channels of AMQP 0-9-1 and sessions of AMQP 1.0 that the user may have open",
            }
        ),
    ],
) -> Steps[dict[str, Any]]:
    """Limit connections and channels of a user.

    Open connections stay open.
    """
    changed = yield from caller.change(ChangeUser(user, {"limits": limits}))
    return changed.limits.as_dict()


@operation("list-users", "user", changes=False, command=Command("user list", "--format json"))
def list_users(caller: Caller) -> list[dict[str, Any]]:
    """List users."""
    users = sorted(caller.catalog.users, key=lambda user: user.name)
    return [{"user": user.name, "tags": list(user.tags), "limits": user.limits.as_dict()} for user in users]


@operation(
    "set-permissions",
    "permission",
    command=Command(
        "permission set",
        "ann '^ann-' '.*' '.*'",
        said=lambda given, done: f"permissions of user '{given['user']}'{_where(given)} set",
    ),
)
def set_permissions(
    caller: Caller,
    *,
    user: UserName,
    vhost: Vhost = None,
    configure: Annotated[str, f"names to declare and delete: {_REGULAR}"],
    write: Annotated[str, "names to publish to and bind"],
    read: Annotated[str, "names to consume from and bind to"],
) -> Steps[None]:
    """Say what a user may do in a virtual host."""
    check_bounded((configure, write, read), f"permissions of user '{user}'")
    permission = Permission(configure, write, read)
    yield from caller.change(SetPermission(user, _vhost(caller, vhost), permission))


@operation(
    "clear-permissions",
    "permission",
    command=Command(
        "permission clear",
        "ann --vhost shop",
        said=lambda given, done: f"permissions of user '{given['user']}'{_where(given)} cleared",
    ),
)
def clear_permissions(caller: Caller, user: UserName, vhost: Vhost = None) -> Steps[None]:
    """Let a user enter a virtual host no more."""
    yield from caller.change(SetPermission(user, _vhost(caller, vhost), None))


@operation(
    "list-permissions", "permission", changes=False, command=Command("permission list", "--vhost shop")
)
def list_permissions(caller: Caller, vhost: Vhost = None) -> list[dict[str, Any]]:
    """List the permissions of users in a virtual host."""
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


@operation(
    "set-topic-permissions",
    "permission",
    command=Command(
        "permission set-topic",
        "ann amq.topic '^ann[.]' '.*'",
        said=lambda given, done: f"{_topics(given)} set",
    ),
)
def set_topic_permissions(
    caller: Caller,
    *,
    user: UserName,
    vhost: Vhost = None,
    exchange: Annotated[str, "a topic exchange; it need not be there yet"],
    write: Annotated[str, f"routing keys to publish with: {_REGULAR}"],
    read: Annotated[str, "routing keys to bind with"],
) -> Steps[None]:
    """Restrict a user's routing keys at a topic exchange."""
    check_bounded((write, read), f"topic permissions of user '{user}'")
    permission = TopicPermission(write, read)
    yield from caller.change(SetTopicPermission(user, _vhost(caller, vhost), exchange, permission))


@operation(
    "clear-topic-permissions",
    "permission",
    command=Command(
        "permission clear-topic",
        "ann amq.topic",
        said=lambda given, done: f"{_topics(given)} cleared",
        positional=("exchange",),
    ),
)
def clear_topic_permissions(
    caller: Caller,
    user: UserName,
    vhost: Vhost = None,
    exchange: Annotated[str | None, "without it those on all exchanges"] = None,
) -> Steps[None]:
    """Lift the restriction of a user's routing keys."""
    yield from caller.change(ClearTopicPermission(user, _vhost(caller, vhost), exchange))


@operation(
    "list-topic-permissions", "permission", changes=False, command=Command("permission list-topic", "")
)
def list_topic_permissions(caller: Caller, vhost: Vhost = None) -> list[dict[str, Any]]:
    """List the users with restricted routing keys in a virtual host."""
    name = caller.catalog.lookup_vhost(_vhost(caller, vhost)).name
    return sorted(
        (
            {"user": user, "vhost": where, "exchange": exchange, "write": each.write, "read": each.read}
            for user, where, exchange, each in caller.catalog.users.topic_permissions()
            if where == name
        ),
        key=lambda row: (row["user"], row["exchange"]),
    )


@operation(
    "add-vhost",
    "vhost",
    command=Command(
        "vhost add",
        "shop --default-queue-type quorum",
        "vhost '{name}' added; no user has permissions in it yet, see 'amqp10broker permission set --help'",
    ),
)
def add_vhost(
    caller: Caller,
    name: Name,
    description: Annotated[str, "for people"] = "",
    tags: Annotated[Sequence[str], "for people, repeatable"] = (),
    default_queue_type: Annotated[
        str | None, "of queues that are declared without a type", Check(choices=QUEUE_TYPES)
    ] = None,
) -> Steps[dict[str, Any]]:
    """Add a virtual host, in which no user has permissions yet.

    Raises `PreconditionFailed` if the name exists.
    """
    facts = VhostFacts(name, description, tuple(tags), default_queue_type=default_queue_type)
    yield from caller.change(PutVhost(facts, new=True))
    return {"name": name}


@operation("put-vhost", "vhost")
def put_vhost(
    caller: Caller,
    name: Name,
    entry: Annotated[
        dict[str, Any], "as in a definitions document: description, tags, default_queue_type, metadata"
    ] = EMPTY,
) -> Steps[dict[str, Any]]:
    """Add a virtual host, or change its description; its content and limits stay."""
    there = caller.catalog.vhosts.get(name)
    try:
        facts = read_vhost(DefinitionEntry(f"vhost '{name}'", {**entry, "name": name}))
    except ConfigError as error:
        raise BadRequest(f"vhost '{name}'", str(error)) from error
    if there is not None:
        facts = replace(facts, limits=there.facts.limits)
    yield from caller.change(PutVhost(facts))
    return {"created": there is None}


@operation(
    "delete-vhost",
    "vhost",
    command=Command(
        "vhost delete",
        "shop",
        said=lambda given, gone: f"vhost '{given['name']}' deleted with {counted(gone['queues'], 'queue')}",
    ),
)
def delete_vhost(caller: Caller, name: Name) -> Steps[dict[str, Any]]:
    """Delete a virtual host with all that is in it, and close its connections.

    Raises `PreconditionFailed` if it is protected.
    """
    there = caller.catalog.vhosts.get(name)
    if there is not None and there.facts.metadata.get(PROTECTED):
        raise PreconditionFailed(
            f"vhost '{name}'",
            f"vhost '{name}' is protected from deletion; take the protection away first",
        )
    queues = yield from caller.change(DeleteVhost(name))
    caller.node.close_connections(f"vhost '{name}' is deleted", vhost=name)
    return {"name": name, "queues": queues}


@operation(
    "set-vhost-limits",
    "vhost",
    command=Command(
        "vhost set-limits",
        "--vhost shop --max-queues 1000",
        said=lambda given, limits: _limits_said(
            "the default vhost" if given["vhost"] is None else f"vhost '{given['vhost']}'", limits
        ),
    ),
)
def set_vhost_limits(
    caller: Caller,
    *,
    vhost: Vhost = None,
    limits: Annotated[
        dict[str, Any],
        _LIMITS,
        Check(
            keys={
                "max-connections": "connections that may be open to it",
                "max-queues": "queues that it may have",
            }
        ),
    ],
) -> Steps[dict[str, Any]]:
    """Limit connections and queues of a virtual host.

    Existing objects stay, even if there are more than the limit.
    """
    changed = yield from caller.change(ChangeVhostLimits(_vhost(caller, vhost), limits))
    return changed.as_dict()


@operation(
    "list-vhosts",
    "vhost",
    permission="a permission in each, or the tag administrator",
    changes=False,
    command=Command("vhost list", "name tags"),
)
def list_vhosts(caller: Caller) -> list[dict[str, Any]]:
    """List virtual hosts."""
    access = caller.access
    vhosts = sorted(caller.catalog.vhosts.values(), key=lambda vhost: vhost.name)
    return [
        {
            "name": vhost.name,
            "description": vhost.facts.description,
            "tags": list(vhost.facts.tags),
            "default_queue_type": vhost.facts.default_queue_type,
            "queues": sum(1 for _ in vhost),
            "limits": vhost.facts.limits.as_dict(),
        }
        for vhost in vhosts
        if access is None
        or caller.is_administrator
        or caller.catalog.users.granted.get((access.user, vhost.name)) is not None
    ]


def _vhost(caller: Caller, name: str | None) -> str:
    return caller.vhost.name if name is None else name


def _optional(caller: Caller, password: str | None) -> PasswordRecord | None:
    return None if password is None else _record(caller, password)


def _record(caller: Caller, password: str) -> PasswordRecord:
    if caller.passwords is None:
        raise NotSupported("password", "passwords cannot be set here: use the command line's local socket")
    return caller.passwords.make(password)
