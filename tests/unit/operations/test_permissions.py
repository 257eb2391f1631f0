"""Who may manage what: a missing permission is raised, for it ends the session; nothing is changed."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.errors import PermissionDenied
from amqp10broker.operations.registry import OPERATIONS
from tests.support.declaring import add_vhost
from tests.support.managing import Broker, arguments_of

NAMES = {
    "a": "queue 'a' in vhost '/'",
    "x": "exchange 'x' in vhost '/'",
}


@pytest.fixture
def broker() -> Broker:
    broker = Broker()
    broker.do("declare-queue", name="a")
    for name in ("x", "y"):
        broker.do("declare-exchange", name=name, type="topic")
    return broker


def refused(broker: Broker, user: str, method: str, to: str, body: object = None) -> str:
    before = (list(broker.vhost.queues), broker.vhost.topology.version)
    with pytest.raises(PermissionDenied) as raised:
        broker.request(method, to, body, user=user)
    assert (list(broker.vhost.queues), broker.vhost.topology.version) == before
    return raised.value.description


@pytest.mark.rabbitmq(
    "amqp_auth_SUITE", "declare_exchange", "declare_queue", "delete_exchange", "delete_queue"
)
@pytest.mark.parametrize(
    ("method", "to", "what"),
    [
        ("PUT", "/exchanges/x2", "configure access to exchange 'x2'"),
        ("DELETE", "/exchanges/x", "configure access to exchange 'x'"),
        ("PUT", "/queues/a2", "configure access to queue 'a2'"),
        ("PUT", "/queues/a", "configure access to queue 'a'"),
        ("DELETE", "/queues/a", "configure access to queue 'a'"),
    ],
)
def test_declaring_and_deleting_need_configure(broker: Broker, method: str, to: str, what: str) -> None:
    """declare_exchange, delete_exchange, declare_queue, delete_queue."""
    user = broker.user("u", write=".*", read=".*")
    assert refused(broker, user, method, to, {}) == f"{what} in vhost '/' refused for user 'u'"
    broker.request(method, to, {"type": "topic"} if "exchanges" in to else {}, user=broker.user("v", ".*"))


@pytest.mark.rabbitmq("amqp_auth_SUITE", "purge_queue")
def test_purging_needs_read(broker: Broker) -> None:
    """purge_queue."""
    user = broker.user("u", configure=".*", write=".*")
    text = refused(broker, user, "DELETE", "/queues/a/messages")
    assert text == "read access to queue 'a' in vhost '/' refused for user 'u'"


@pytest.mark.rabbitmq("amqp_auth_SUITE", "get_queue")
def test_looking_needs_any_permission(broker: Broker) -> None:
    """get_queue: one of the three is enough, none is refused, there or not."""
    for number, permission in enumerate(("configure", "write", "read")):
        user = broker.user(f"u{number}", **{permission: "a"})
        assert broker.request("GET", "/queues/a", user=user)[0] == "200"
    user = broker.user("nobody", "b", "b", "b")
    for name in ("a", "missing"):
        text = refused(broker, user, "GET", f"/queues/{name}")
        assert text.startswith(f"configure access to queue '{name}'")


def declare(broker: Broker, user: str, exchange: Any = "y") -> tuple[str, Any]:
    return broker.request("PUT", "/queues/b", {"arguments": {"x-dead-letter-exchange": exchange}}, user=user)


@pytest.mark.rabbitmq("amqp_auth_SUITE", "declare_queue_dlx_exchange", "declare_queue_dlx_queue")
@pytest.mark.rabbitmq(
    "unit_amqp_management_SUITE",
    "prop_read_then_write",
    "source_read_denied_skips_target_write",
    "target_write_denied",
)
def test_a_dead_letter_exchange_needs_read_and_write(broker: Broker) -> None:
    """both_permissions_granted, source_read_denied_skips_target_write, target_write_denied."""
    body = {"arguments": {"x-dead-letter-exchange": "y"}}
    unprivileged = broker.user("u1", configure="b")
    assert refused(broker, unprivileged, "PUT", "/queues/b", body).startswith("read access to queue 'b'")
    reader = broker.user("u2", configure="b", read="b")
    assert refused(broker, reader, "PUT", "/queues/b", body).startswith("write access to exchange 'y'")
    assert declare(broker, broker.user("u3", "b", "y", "b"))[0] == "201"


@pytest.mark.rabbitmq("unit_amqp_management_SUITE", "absent_argument_skips_checks")
def test_without_a_dead_letter_exchange_configure_is_enough(broker: Broker) -> None:
    """absent_argument_skips_checks; a dead-letter routing key alone is no reason either."""
    assert broker.request("PUT", "/queues/b", {}, user=broker.user("u", configure="b"))[0] == "201"


@pytest.mark.rabbitmq("unit_amqp_management_SUITE", "invalid_argument_type_rejected")
def test_a_dead_letter_exchange_of_another_type_is_a_bad_argument(broker: Broker) -> None:
    """invalid_argument_type_rejected: before anything is asked about permissions."""
    status, text = declare(broker, broker.user("u", configure="b"), 5)
    assert status == "409"
    assert "x-dead-letter-exchange" in text


def test_an_alternate_exchange_given_as_binary_leads_past_no_permission(broker: Broker) -> None:
    """It is no text, and refused."""
    user = broker.user("u", configure="^new$")
    body = {"arguments": {"alternate-exchange": b"amq.fanout"}}
    status, text = broker.request("PUT", "/exchanges/new", body, user=user)
    assert status == "400"
    assert text.startswith("invalid type 'binary' for arg 'alternate-exchange'")


@pytest.mark.rabbitmq(
    "amqp_auth_SUITE",
    "declare_exchange_alternate_exchange_allowed",
    "declare_exchange_alternate_exchange_read",
    "declare_exchange_alternate_exchange_write",
)
@pytest.mark.rabbitmq("unit_amqp_management_SUITE", "wrapper_uses_matching_argument_key")
def test_an_alternate_exchange_needs_read_and_write(broker: Broker) -> None:
    """declare_exchange_alternate_exchange_allowed, _read, _write; wrapper_uses_matching_argument_key."""
    body = {"arguments": {"alternate-exchange": "y"}}
    unprivileged = broker.user("u1", configure="b")
    assert refused(broker, unprivileged, "PUT", "/exchanges/b", body).startswith(
        "read access to exchange 'b'"
    )
    reader = broker.user("u2", configure="b", read="b")
    assert refused(broker, reader, "PUT", "/exchanges/b", body).startswith("write access to exchange 'y'")
    assert broker.request("PUT", "/exchanges/b", body, user=broker.user("u3", "b", "y", "b"))[0] == "204"
    other = {"arguments": {"x-dead-letter-exchange": "y"}}
    assert broker.request("PUT", "/exchanges/c", other, user=broker.user("u4", "c"))[0] == "204"


def test_what_is_there_is_not_asked_about_its_other_exchange_again(broker: Broker) -> None:
    """Only making it needs more than configure."""
    declare(broker, "guest")
    assert declare(broker, broker.user("u", configure="b"))[0] == "200"


BIND = {"source": "x", "destination_queue": "a", "binding_key": "k"}
BIND_EXCHANGE = {"source": "x", "destination_exchange": "y", "binding_key": "k"}


@pytest.mark.rabbitmq(
    "amqp_auth_SUITE",
    "bind_queue_destination",
    "bind_queue_source",
    "unbind_queue_source",
    "unbind_queue_target",
)
@pytest.mark.parametrize(
    ("write", "read", "text"),
    [
        ("", "x", "write access to queue 'a' in vhost '/' refused for user 'u'"),
        ("a", "", "read access to exchange 'x' in vhost '/' refused for user 'u'"),
        ("", "", "write access to queue 'a' in vhost '/' refused for user 'u'"),
    ],
)
def test_binding_needs_write_there_and_read_here(broker: Broker, write: str, read: str, text: str) -> None:
    """bind_queue_source, bind_queue_destination, unbind_queue_source, unbind_queue_target."""
    user = broker.user("u", write=write, read=read)
    assert refused(broker, user, "POST", "/bindings", BIND) == text
    assert refused(broker, user, "DELETE", "/bindings/src=x;dstq=a;key=k;args=") == text


@pytest.mark.rabbitmq("amqp_auth_SUITE", "bind_exchange_destination", "bind_exchange_source")
def test_binding_an_exchange_needs_write_there_and_read_here(broker: Broker) -> None:
    """bind_exchange_source, bind_exchange_destination."""
    reader = broker.user("r", read="x")
    text = refused(broker, reader, "POST", "/bindings", BIND_EXCHANGE)
    assert text == "write access to exchange 'y' in vhost '/' refused for user 'r'"
    writer = broker.user("w", write="y")
    text = refused(broker, writer, "POST", "/bindings", BIND_EXCHANGE)
    assert text == "read access to exchange 'x' in vhost '/' refused for user 'w'"


@pytest.mark.rabbitmq("unit_amqp_management_SUITE", "both_permissions_granted")
def test_with_both_binding_is_done(broker: Broker) -> None:
    """And undone."""
    user = broker.user("u", write="a", read="x")
    assert broker.request("POST", "/bindings", BIND, user=user) == ("204", None)
    assert broker.request("DELETE", "/bindings/src=x;dstq=a;key=k;args=", user=user) == ("204", None)


@pytest.mark.rabbitmq("amqp_auth_SUITE", "bind_to_topic_exchange", "unbind_from_topic_exchange")
def test_a_topic_exchange_asks_for_the_key(broker: Broker) -> None:
    """bind_to_topic_exchange, unbind_from_topic_exchange."""
    user = broker.topic_user("u", "x", write="", read="^only")
    text = "read access to topic 'k' in exchange 'x' in vhost '/' refused for user 'u'"
    assert refused(broker, user, "POST", "/bindings", BIND) == text
    assert refused(broker, user, "DELETE", "/bindings/src=x;dstq=a;key=k;args=") == text
    assert broker.request("POST", "/bindings", {**BIND, "binding_key": "only.a"}, user=user)[0] == "204"


@pytest.mark.rabbitmq(
    "amqp_auth_SUITE", "list_bindings_allowed", "list_bindings_destination_write", "list_bindings_source_read"
)
@pytest.mark.rabbitmq(
    "unit_amqp_management_SUITE",
    "get_bindings_both_permissions_granted",
    "get_bindings_destination_write_checked_first",
    "get_bindings_destination_write_denied",
    "get_bindings_source_read_denied",
)
@pytest.mark.parametrize(
    ("write", "read", "text"),
    [
        ("", "x", "write access to queue 'a' in vhost '/' refused for user 'u'"),
        ("a", "", "read access to exchange 'x' in vhost '/' refused for user 'u'"),
        ("", "", "write access to queue 'a' in vhost '/' refused for user 'u'"),
    ],
)
def test_reading_bindings_needs_both(broker: Broker, write: str, read: str, text: str) -> None:
    """list_bindings_source_read, list_bindings_destination_write; the destination is checked first."""
    user = broker.user("u", write=write, read=read)
    assert refused(broker, user, "GET", "/bindings?src=x&dstq=a&key=k") == text


@pytest.mark.rabbitmq("amqp_auth_SUITE", "list_bindings_exchange_destination")
@pytest.mark.rabbitmq("unit_amqp_management_SUITE", "get_bindings_exchange_destination")
def test_reading_bindings_of_an_exchange_needs_both(broker: Broker) -> None:
    """list_bindings_exchange_destination, list_bindings_allowed."""
    text = refused(broker, broker.user("u", read="x"), "GET", "/bindings?src=x&dste=y&key=k")
    assert text == "write access to exchange 'y' in vhost '/' refused for user 'u'"
    user = broker.user("v", write="y", read="x")
    assert broker.request("GET", "/bindings?src=x&dste=y&key=k", user=user) == ("200", [])


def test_the_owner_of_the_machine_may_do_all(broker: Broker) -> None:
    """At the local socket nobody is asked, not even about another connection's exclusive queue."""
    broker.do("declare-queue", name="mine", exclusive=True)
    owner = broker.caller(None, object())
    assert broker.do("purge-queue", caller=owner, name="mine") == {"message_count": 0}
    assert broker.do("delete-queue", caller=owner, name="mine") == {"message_count": 0}
    assert broker.do("list-users", caller=owner)[0]["user"] == "guest"


ADMINISTRATIVE = [
    name for name, operation in OPERATIONS.items() if operation.permission == "the tag administrator"
]


@pytest.mark.parametrize("name", ADMINISTRATIVE)
def test_accounts_need_the_tag_administrator(broker: Broker, name: str) -> None:
    """Permissions in a virtual host do not make an administrator."""
    user = broker.user("u", ".*", ".*", ".*")
    with pytest.raises(PermissionDenied) as raised:
        broker.do(name, caller=broker.caller(user), **arguments_of(name))
    assert raised.value.description == f"{name} refused for user 'u': it needs the tag 'administrator'"


def test_lists_show_what_the_user_has_to_do_with(broker: Broker) -> None:
    """Queues, exchanges and bindings of others are not told."""
    broker.do("declare-queue", name="b")
    broker.do("bind", source="x", destination_queue="a")
    broker.do("bind", source="y", destination_queue="b")
    mine = broker.caller(broker.user("u", read="^[ax]$"))
    assert [queue["name"] for queue in broker.do("list-queues", caller=mine)] == ["a"]
    assert [exchange["name"] for exchange in broker.do("list-exchanges", caller=mine)] == ["x"]
    assert [binding["source"] for binding in broker.do("list-bindings", caller=mine)] == ["", "x"]
    add_vhost(broker.catalog, "other")
    assert [vhost["name"] for vhost in broker.do("list-vhosts", caller=mine)] == ["/"]
    assert [vhost["name"] for vhost in broker.do("list-vhosts")] == ["/", "other"]
