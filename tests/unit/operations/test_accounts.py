"""Operations on users, virtual hosts, permissions, limits, policies and definitions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from amqp10broker.auth.passwords import Passwords
from amqp10broker.errors import BadRequest, InvalidArgument, LimitExceeded, NotFound, PermissionDenied
from amqp10broker.metadata import patterns
from amqp10broker.metadata.users import Permission
from amqp10broker.operations.node import Caller
from amqp10broker.queues.commands import Configure
from tests.support.declaring import add_vhost, declare
from tests.support.managing import Broker


@pytest.fixture
def broker() -> Broker:
    return Broker()


def owner(broker: Broker) -> Caller:
    return broker.caller(None, passwords=Passwords(broker.catalog.users, lambda count: bytes(count)))


def test_a_user_is_added_with_a_password_that_is_not_kept(broker: Broker) -> None:
    added = broker.do("add-user", caller=owner(broker), user="ann", password="secret", tags=["monitoring"])
    assert added == {"user": "ann", "tags": ["monitoring"]}
    record = broker.catalog.users.lookup("ann").password
    assert "secret" not in record.value
    assert broker.do("list-permissions", caller=owner(broker)) == [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ]


def test_permissions_are_set_and_cleared(broker: Broker) -> None:
    """They are in the caller's virtual host unless another one is named."""
    add_vhost(broker.catalog, "v")
    broker.do("add-user", user="ann")
    broker.do("set-permissions", user="ann", configure="", write="a", read="b")
    broker.do("set-permissions", user="ann", vhost="v", configure="c", write="", read="")
    assert broker.catalog.users.granted.get(("ann", "/")) == Permission("", "a", "b")
    assert broker.do("list-permissions", vhost="v") == [
        {"user": "ann", "vhost": "v", "configure": "c", "write": "", "read": ""}
    ]
    broker.do("clear-permissions", user="ann", vhost="v")
    assert broker.do("list-permissions", vhost="v") == []
    assert broker.catalog.users.granted.get(("ann", "/")) is not None


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
    """The error comes when it is set, not when it is used."""
    with pytest.raises(InvalidArgument, match="not a regular expression"):
        broker.do("set-permissions", user="guest", configure="(", write="", read="")


def test_a_virtual_host_is_deleted_with_its_queues(broker: Broker) -> None:
    vhost = add_vhost(broker.catalog, "v")
    declare(broker.catalog, vhost, "q")
    assert broker.do("delete-vhost", name="v") == {"name": "v", "queues": 1}
    assert broker.node.asked == [("close_connections", ("vhost 'v' is deleted",), {"vhost": "v"})]
    broker.host.queues["q"].work()
    assert broker.host.queues["q"].queue.deleted
    assert [each["name"] for each in broker.do("list-vhosts")] == ["/"]
    with pytest.raises(NotFound):
        broker.do("delete-vhost", name="v")


@pytest.mark.rabbitmq("vhost_SUITE", "parse_tags")
@pytest.mark.parametrize("tags", ["administrator", [1], {"a": 1}])
def test_tags_are_a_list_of_texts(broker: Broker, tags: Any) -> None:
    with pytest.raises(BadRequest, match="it must be a list of strings"):
        broker.do("set-tags", user="guest", tags=tags)


@pytest.mark.rabbitmq(
    "per_user_connection_channel_limit_SUITE",
    "single_node_multiple_users_clear_limits",
    "single_node_single_user_clear_limits",
)
def test_limits_are_changed_one_by_one(broker: Broker) -> None:
    """A limit that is not given stays, zero is a limit, and a negative number removes a limit."""
    limits = {"max-queues": 1, "max-connections": 0}
    assert broker.do("set-vhost-limits", limits=limits) == limits
    broker.do("declare-queue", name="a")
    with pytest.raises(LimitExceeded):
        broker.do("declare-queue", name="b")
    left = {"max-connections": 0}
    assert broker.do("set-vhost-limits", vhost="/", limits={"max-queues": -1}) == left
    assert broker.do("list-vhosts")[0]["limits"] == left
    assert broker.do("set-user-limits", user="guest", limits={"max-channels": 5}) == {"max-channels": 5}
    broker.do("set-user-limits", user="guest", limits={"max-connections": 1, "max-channels": -1})
    assert broker.do("list-users")[0]["limits"] == {"max-connections": 1}


@pytest.fixture
def broker_access() -> Broker:
    broker_access = Broker()
    broker_access.do("declare-queue", name="a")
    for name in ("x", "y"):
        broker_access.do("declare-exchange", name=name, type="topic")
    return broker_access


def refused(broker_access: Broker, user: str, method: str, to: str, body: object = None) -> str:
    before = (list(broker_access.vhost.queues), broker_access.vhost.topology.version)
    with pytest.raises(PermissionDenied) as raised:
        broker_access.request(method, to, body, user=user)
    assert (list(broker_access.vhost.queues), broker_access.vhost.topology.version) == before
    return raised.value.description


def declare_access(broker_access: Broker, user: str, exchange: Any = "y") -> tuple[str, Any]:
    return broker_access.request(
        "PUT", "/queues/b", {"arguments": {"x-dead-letter-exchange": exchange}}, user=user
    )


@pytest.mark.rabbitmq("unit_amqp_management_SUITE", "invalid_argument_type_rejected")
def test_a_dead_letter_exchange_of_another_type_is_a_bad_argument(broker_access: Broker) -> None:
    status, text = declare_access(broker_access, broker_access.user("u", configure="b"), 5)
    assert status == "409"
    assert "x-dead-letter-exchange" in text


@pytest.mark.rabbitmq("amqp_auth_SUITE", "list_bindings_exchange_destination")
@pytest.mark.rabbitmq("unit_amqp_management_SUITE", "get_bindings_exchange_destination")
def test_reading_bindings_of_an_exchange_needs_both(broker_access: Broker) -> None:
    text = refused(broker_access, broker_access.user("u", read="x"), "GET", "/bindings?src=x&dste=y&key=k")
    assert text == "write access to exchange 'y' in vhost '/' refused for user 'u'"
    user = broker_access.user("v", write="y", read="x")
    assert broker_access.request("GET", "/bindings?src=x&dste=y&key=k", user=user) == ("200", [])


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
    with pytest.raises(error, match=text):
        broker.do(operation, **given)
    assert broker.do("list-vhosts")[0]["limits"] == {}
    assert broker.do("list-users")[0]["limits"] == {}


@pytest.fixture
def broker_policy() -> Broker:
    broker_policy = Broker()
    broker_policy.do("declare-queue", name="qc")
    broker_policy.do("declare-queue", name="qq", arguments={"x-queue-type": "quorum"})
    return broker_policy


def policy(definition: dict[str, Any], **given: Any) -> dict[str, Any]:
    return {"name": "p", "pattern": "^q", "definition": definition} | given


def configured(broker_policy: Broker, queue: str) -> list[Configure]:
    return [letter for letter in broker_policy.host.queues[queue].commands if isinstance(letter, Configure)]


def test_a_policy_is_set_listed_and_cleared(broker_policy: Broker) -> None:
    assert broker_policy.do(
        "set-policy", **policy({"max-length": 5}, priority=3, apply_to="classic_queues")
    ) == {"queues": 1, "exchanges": 0, "ineffective": [], "warnings": []}
    assert [each.settings.max_length for each in configured(broker_policy, "qc")] == [5]
    assert configured(broker_policy, "qq") == []
    assert broker_policy.do("list-policies") == [
        {
            "vhost": "/",
            "name": "p",
            "pattern": "^q",
            "apply_to": "classic_queues",
            "definition": {"max-length": 5},
            "priority": 3,
        }
    ]
    assert broker_policy.do("list-operator-policies") == []
    broker_policy.do("clear-policy", name="p")
    assert [each.settings.max_length for each in configured(broker_policy, "qc")] == [5, None]
    assert broker_policy.do("list-policies") == []


def test_an_operator_policy_is_another_thing(broker_policy: Broker) -> None:
    """It may have the same name, and is set, listed and cleared separately."""
    broker_policy.do("set-policy", **policy({"max-length": 5}))
    found = broker_policy.do("set-operator-policy", **policy({"max-length": 3}))
    assert (found["queues"], found["exchanges"]) == (2, 0)
    (listed,) = broker_policy.do("list-operator-policies")
    assert listed["definition"] == {"max-length": 3}
    broker_policy.do("clear-operator-policy", name="p")
    assert broker_policy.do("list-operator-policies") == []
    assert len(broker_policy.do("list-policies")) == 1


def test_what_does_not_act_is_said(broker_policy: Broker) -> None:
    found = broker_policy.do("set-policy", **policy({"max-age": "1D", "overflow": "reject-publish-dlx"}))
    assert found["ineffective"] == ["max-age"]
    (warning,) = found["warnings"]
    assert warning.startswith("queue 'qq': quorum queues have no overflow reject-publish-dlx")


@pytest.mark.parametrize("operation", ["set-policy", "set-operator-policy"])
def test_a_policy_whose_pattern_takes_too_long_in_all_names_is_refused(
    broker_policy: Broker, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node would search for it in all names at once."""
    monkeypatch.setattr(patterns, "FINDING_STEPS_MAX", 5_000)
    for at in range(20):
        broker_policy.do("declare-queue", name=f"{at}" + "a" * 200 + "!")
    slow = policy({"max-length": 1}, pattern="([a-z]+\\.?)+$")
    with pytest.raises(InvalidArgument, match=r"^policy 'p': .* in so many names, .*; begin it with \^"):
        broker_policy.do(operation, **slow)
    assert broker_policy.do("list-policies") == broker_policy.do("list-operator-policies") == []
    assert broker_policy.do(operation, **(slow | {"pattern": "^[0-9]+a"}))["queues"] == 20


@pytest.mark.parametrize(
    ("operation", "given", "error", "text"),
    [
        ("set-policy", policy({"max-priority": 5}), InvalidArgument, "'max-priority' is not recognised"),
        ("set-policy", policy({"max-length": -1}), InvalidArgument, "'max-length' is -1; must not be neg"),
        ("set-policy", policy({}), InvalidArgument, "the definition is empty"),
        ("set-policy", policy({"max-length": 1}, pattern="("), InvalidArgument, "not a regular expression"),
        ("set-policy", policy({"max-length": 1}, apply_to="q"), BadRequest, "it must be one of all, queues"),
        ("set-policy", policy({"max-length": 1}, priority=True), BadRequest, "it must be an integer"),
        ("set-policy", policy({"max-length": 1}, name=""), BadRequest, "the policy has no name"),
        (
            "set-operator-policy",
            policy({"max-age": "1D"}),
            InvalidArgument,
            "not recognised as a setting of operator",
        ),
        ("clear-policy", {"name": "p"}, NotFound, "no policy 'p'"),
        ("clear-operator-policy", {"name": "p"}, NotFound, "no operator policy 'p'"),
    ],
)
def test_what_cannot_be_a_policy_changes_nothing(
    broker_policy: Broker, operation: str, given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        broker_policy.do(operation, **given)
    assert broker_policy.do("list-policies") == broker_policy.do("list-operator-policies") == []
    assert configured(broker_policy, "qc") == []


def test_what_is_exported_can_be_imported() -> None:
    """It is JSON; another broker imports it twice."""
    broker, other = Broker(), Broker()
    broker.do("add-user", caller=owner(broker), user="ann", password="secret", tags=["monitoring"])
    broker.do("declare-exchange", name="x", type="topic")
    broker.do("declare-queue", name="q", arguments={"x-queue-type": "quorum"})
    broker.do("bind", source="x", destination_queue="q", binding_key="a.#", arguments={"n": 1})
    document = json.loads(json.dumps(broker.do("export-definitions", caller=owner(broker))))
    assert "secret" not in json.dumps(document)
    for _ in range(2):
        report = other.do("import-definitions", caller=owner(other), document=document)
        assert (report["skipped"], report["unknown"]) == ([], [])
    assert other.do("list-queues") == broker.do("list-queues")
    assert other.do("list-bindings") == broker.do("list-bindings")
    assert [user["user"] for user in other.do("list-users")] == ["ann", "guest"]


def test_the_importing_user_may_use_the_virtual_hosts_that_a_document_adds() -> None:
    """As in RabbitMQ 4.3.6, the document's permissions apply, and existing ones stay."""
    broker = Broker()
    broker.do("add-vhost", name="there")
    document = {
        "vhosts": [{"name": "there"}, {"name": "new"}, {"name": "named"}],
        "permissions": [{"user": "guest", "vhost": "named", "configure": "", "write": "", "read": "x"}],
    }
    for _ in range(2):
        broker.do("import-definitions", document=document)
    broker.do("import-definitions", caller=owner(broker), document={"vhosts": [{"name": "of-nobody"}]})
    may = {vhost: permission for user, vhost, permission in broker.catalog.users.permissions()}
    assert may == {"/": Permission(), "new": Permission(), "named": Permission("", "", "x")}
