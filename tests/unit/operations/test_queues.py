"""Operations on queues, exchanges and bindings."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.metadata.plan import VhostLimits
from amqp10broker.metadata.queue import QueueSpec
from amqp10broker.operations.bindings import PATH, location, parse_segment
from amqp10broker.protocols.amqp10.types import Array, UInt, ULong
from amqp10broker.routing.exchange import Binding, Destination
from tests.support.declaring import change_vhost
from tests.support.managing import NODE, Broker
from tests.support.queue_handles import WaitingQueue


@pytest.fixture
def broker() -> Broker:
    return Broker()


def declared(broker: Broker, name: str = "q", **body: Any) -> Any:
    status, shown = broker.request("PUT", f"/queues/{name}", body)
    assert status == "201"
    return shown


@pytest.mark.rabbitmq("management_SUITE", "queue_defaults")
def test_a_new_queue_is_answered_201_with_its_defaults(broker: Broker) -> None:
    shown = declared(broker)
    assert shown == {
        "name": "q",
        "vhost": "/",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "type": "classic",
        "arguments": {"x-queue-type": "classic"},
        "message_count": 0,
        "consumer_count": 0,
        "leader": NODE,
        "replicas": Array(0xA1, (NODE,)),
    }
    assert type(shown["message_count"]) is ULong
    assert type(shown["consumer_count"]) is UInt
    assert all(type(key) is str for key in shown)


def test_a_stream_says_which_it_is(broker: Broker) -> None:
    stream = {"arguments": {"x-queue-type": "stream"}}
    ids = [declared(broker, "s", **stream)["declaration_id"]]
    assert broker.request("PUT", "/queues/s", stream)[1]["declaration_id"] == ids[0]
    assert broker.request("GET", "/queues/s")[1]["declaration_id"] == ids[0]
    broker.request("DELETE", "/queues/s")
    ids += [declared(broker, name, **stream)["declaration_id"] for name in "st"]
    assert len(set(ids)) == 3
    assert {(type(each), len(each)) for each in ids} == {(str, 16)}
    assert "declaration_id" not in declared(broker, "q")


@pytest.mark.rabbitmq("management_SUITE", "queue_properties")
def test_properties_are_those_asked_for(broker: Broker) -> None:
    shown = declared(
        broker,
        durable=False,
        exclusive=True,
        auto_delete=True,
        arguments={
            "x-max-length": ULong(7),
            "x-dead-letter-exchange": "amq.fanout",
            "x-queue-type": "classic",
        },
    )
    assert (shown["durable"], shown["exclusive"], shown["auto_delete"]) == (False, True, True)
    assert shown["arguments"] == {
        "x-max-length": 7,
        "x-dead-letter-exchange": "amq.fanout",
        "x-queue-type": "classic",
    }


@pytest.mark.rabbitmq("management_SUITE", "declare_queue_default_queue_type")
def test_the_default_type_is_the_virtual_hosts(broker: Broker) -> None:
    """Without x-queue-type it comes from the virtual host."""
    change_vhost(broker.catalog, broker.vhost, default_queue_type="quorum")
    assert declared(broker)["type"] == "quorum"


def test_get_of_a_queue_that_goes_meanwhile_is_404(broker: Broker) -> None:
    declared(broker)
    box = broker.host.queues["q"]
    broker.request("DELETE", "/queues/q")
    assert box.queue.deleted
    declared(broker)
    broker.host.queues["q"].queue = box.queue
    assert broker.request("GET", "/queues/q")[0] == "404"


@pytest.mark.rabbitmq("amqp_auth_SUITE", "declare_queue_vhost_queue_limit")
@pytest.mark.rabbitmq(
    "per_vhost_queue_limit_SUITE",
    "single_node_single_vhost_zero_limit",
    "single_node_single_vhost_zero_limit_with_durable_named_queue",
)
def test_the_limit_of_the_virtual_host_is_403(broker: Broker) -> None:
    """Zero is a limit; a negative number is not."""
    change_vhost(broker.catalog, "/", limits=VhostLimits(max_queues=0))
    status, text = broker.request("PUT", "/queues/q", {})
    assert (status, text) == ("403", "cannot declare queue 'q': queue limit in vhost '/' (0) is reached")


def test_deleting_tells_how_many_messages_went(broker: Broker) -> None:
    """message_count is a ulong; the name is free at once."""
    declared(broker)
    broker.fill("q", 4)
    status, body = broker.request("DELETE", "/queues/q")
    assert (status, body) == ("200", {"message_count": 4})
    assert type(body["message_count"]) is ULong
    assert broker.vhost.find("q") is None


@pytest.mark.rabbitmq("management_SUITE", "exclusive_queue")
def test_another_connections_exclusive_queue_is_locked(broker: Broker) -> None:
    """Declare, delete, purge and bind are answered with 400; GET is allowed."""
    declared(broker, exclusive=True)
    other = object()
    binding = {"source": "amq.direct", "destination_queue": "q"}
    for method, to, body in (
        ("PUT", "/queues/q", {"exclusive": True}),
        ("DELETE", "/queues/q", None),
        ("DELETE", "/queues/q/messages", None),
        ("POST", "/bindings", binding),
    ):
        status, text = broker.request(method, to, body, connection=other)
        assert status == "400"
        assert text.startswith("cannot obtain exclusive access to locked queue 'q' in vhost '/'.")
    assert broker.request("GET", "/queues/q", connection=other)[0] == "200"
    assert broker.request("PUT", "/queues/q", {"exclusive": True})[0] == "200"


REPLIES = "amq.rabbitmq.reply-to.abc"


@pytest.mark.parametrize(
    ("method", "to", "body"),
    [
        ("DELETE", f"/queues/{REPLIES}", None),
        ("POST", "/bindings", {"source": "amq.direct", "destination_queue": REPLIES}),
        ("DELETE", f"/bindings/src=amq.direct;dstq={REPLIES};key=;args=", None),
    ],
)
def test_a_queue_of_direct_replies_is_its_clients_alone(
    broker: Broker, method: str, to: str, body: object
) -> None:
    """It is 403, as over AMQP 0-9-1: even its own client cannot bind or delete it."""
    with_replies(broker)
    status, text = broker.request(method, to, body)
    assert (status, text) == ("403", f"operation not permitted on the direct reply-to queue '{REPLIES}'")
    assert broker.vhost.find(REPLIES) is not None


@pytest.mark.parametrize("body", [{"exclusive": True, "auto_delete": True}, {}])
def test_a_queue_of_direct_replies_cannot_be_declared(broker: Broker, body: object) -> None:
    """Its name is reserved, and no declaration is equivalent to it."""
    with_replies(broker)
    status, text = broker.request("PUT", f"/queues/{REPLIES}", body)
    assert (status, text) == ("403", f"queue '{REPLIES}' in vhost '/' starts with reserved prefix 'amq.'")


def with_replies(broker: Broker) -> None:
    spec = QueueSpec("/", REPLIES, "volatile", False, True, {})
    broker.vhost.add_volatile(REPLIES, broker.connection, WaitingQueue(spec))


@pytest.mark.rabbitmq("management_SUITE", "exchange_defaults")
@pytest.mark.parametrize(
    ("given", "kind", "durable", "auto_delete", "internal", "alternate"),
    [
        ({}, "direct", True, False, False, None),
        ({"durable": False, "auto_delete": True}, "direct", False, True, False, None),
        (
            {"type": "fanout", "internal": True, "arguments": {"alternate-exchange": "amq.fanout"}},
            *("fanout", True, False, True, "amq.fanout"),
        ),
    ],
    ids=["defaults", "transient", "internal"],
)
def test_a_new_exchange_has_the_properties_of_the_request(
    broker: Broker,
    given: dict[str, Any],
    kind: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    alternate: str | None,
) -> None:
    assert broker.request("PUT", "/exchanges/x", given) == ("204", None)
    found = broker.vhost.topology.lookup_exchange("x")
    assert (found.type, found.durable, found.auto_delete) == (kind, durable, auto_delete)
    assert (found.internal, found.alternate) == (internal, alternate)


@pytest.fixture
def broker_binding() -> Broker:
    broker_binding = Broker()
    for name in ("q", "a queue/;="):
        broker_binding.do("declare-queue", name=name)
    for name, kind in (("x", "direct"), ("h", "headers"), ("t", "topic")):
        broker_binding.do("declare-exchange", name=name, type=kind)
    return broker_binding


def body(source: str = "x", queue: str = "q", key: str = "", **rest: Any) -> dict[str, Any]:
    return {"source": source, "destination_queue": queue, "binding_key": key, "arguments": {}, **rest}


Q = "queue 'q' in vhost '/'"
X = "exchange 'x' in vhost '/'"
NO_LINE_END = "line feed and carriage return characters not allowed"
NO_DEFAULT = "operation not permitted on the default exchange"
QUORUM = {"x-queue-type": "quorum"}


@pytest.mark.rabbitmq("amqp_auth_SUITE", "declare_queue_vhost_queue_limit")
@pytest.mark.rabbitmq("unit_amqp_management_SUITE", "get_bindings_missing_destination_rejected")
@pytest.mark.rabbitmq(
    "management_SUITE",
    "bad_exchange_property",
    "bad_exchange_type",
    "bad_queue_property",
    "bind_destination_default_exchange",
    "bind_destination_line_feed",
    "bind_missing_queue",
    "bind_source_default_exchange",
    "bind_source_line_feed",
    "declare_default_exchange",
    "declare_exchange_amq_prefix",
    "declare_exchange_inequivalent_fields",
    "declare_exchange_line_feed",
    "declare_queue_amq_prefix",
    "declare_queue_empty_name",
    "declare_queue_inequivalent_exclusive",
    "declare_queue_inequivalent_fields",
    "declare_queue_invalid_arg",
    "declare_queue_invalid_field",
    "declare_queue_line_feed",
    "delete_default_exchange",
    "delete_exchange_amq_prefix",
    "delete_exchange_carriage_return",
    "get_queue_not_found",
    "purge_non_existing_queue_should_return_not_found",
    "unbind_bad_binding_path_segment",
)
@pytest.mark.parametrize(
    ("request_", "body", "status", "text"),
    [
        ("GET /queues/%F0%9F%91%8E", None, 404, "queue '👎' in vhost '/' not found"),
        ("PUT /queues/q", {"durable": False}, 409, f"inequivalent arg 'durable' for {Q}: received 'false'"),
        ("PUT /queues/q", {"auto_delete": True}, 409, f"inequivalent arg 'auto_delete' for {Q}: received"),
        ("PUT /queues/q", {"exclusive": True}, 400, f"cannot obtain exclusive access to locked {Q}"),
        ("PUT /queues/n", {"arguments": {"x-max-length": -1}}, 409, "invalid arg 'x-max-length' for queue"),
        ("PUT /queues/n", {"arguments": {"x-max-length": "x"}}, 409, "invalid arg 'x-max-length' for queue"),
        ("PUT /queues/n", {"arguments": {"x-queue-type": "heap"}}, 409, "invalid arg 'x-queue-type' for"),
        ("PUT /queues/n", {"arguments": {"x-max-age": "1D"}}, 409, "invalid arg 'x-max-age' for queue 'n'"),
        ("PUT /queues/n", {"exclusive": True, "arguments": QUORUM}, 400, "invalid property 'exclusive-own"),
        ("PUT /queues/n", {"unknown": 1}, 400, "bad queue property {'unknown',1}"),
        ("PUT /queues/n", {"durable": "yes"}, 400, "bad queue property {'durable','yes'}: it must be tru"),
        ("PUT /queues/n", {"arguments": True}, 400, "bad queue property {'arguments',true}: it must be a m"),
        ("PUT /queues/n", {"name": "other"}, 400, "bad queue property {'name','other'}: it is in the path"),
        ("PUT /queues/n", {5: True}, 400, "bad queue property: bad key 5"),
        ("PUT /queues/n", None, 400, "bad queue properties: the request has no body"),
        ("PUT /queues/n", [True], 400, "bad queue property: [True] is no map"),
        ("PUT /queues/n", {"arguments": {"x": UUID(int=1)}}, 400, "bad argument value"),
        ("PUT /queues/", {}, 400, "declare queue with empty name not allowed"),
        ("PUT /queues/a%0Ab", {}, 400, f"Bad name 'a\nb': {NO_LINE_END}"),
        ("DELETE /queues/a%0Ab", {}, 400, f"Bad name 'a\nb': {NO_LINE_END}"),
        ("PUT /queues/amq.q", {}, 403, "queue 'amq.q' in vhost '/' starts with reserved prefix 'amq.'"),
        ("DELETE /queues/n/messages", None, 404, "no queue 'n' in vhost '/'"),
        ("PUT /exchanges/x", {"type": "fanout"}, 409, f"inequivalent arg 'type' for {X}: received 'fanout'"),
        ("PUT /exchanges/x", {"durable": False}, 409, f"inequivalent arg 'durable' for {X}: received 'fal"),
        ("PUT /exchanges/x", {"auto_delete": True}, 409, f"inequivalent arg 'auto_delete' for {X}"),
        ("PUT /exchanges/x", {"internal": True}, 409, f"inequivalent arg 'internal' for {X}"),
        ("PUT /exchanges/n", {"type": "👎"}, 400, "unknown exchange type '👎'"),
        ("PUT /exchanges/n", {"unknown": 1}, 400, "bad exchange property {'unknown',1}"),
        ("PUT /exchanges/n", {"type": 5}, 400, "bad exchange property {'type',5}: it must be a string"),
        ("PUT /exchanges/n", None, 400, "bad exchange properties: the request has no body"),
        ("PUT /exchanges/", {}, 403, NO_DEFAULT),
        ("DELETE /exchanges/", {}, 403, NO_DEFAULT),
        ("PUT /exchanges/amq.x", {}, 403, "exchange 'amq.x' in vhost '/' starts with reserved prefix 'amq.'"),
        ("DELETE /exchanges/amq.x", {}, 403, "exchange 'amq.x' in vhost '/' starts with reserved prefix"),
        ("DELETE /exchanges/amq.topic", {}, 403, "exchange 'amq.topic' in vhost '/' starts with reserved"),
        ("PUT /exchanges/a%0Ab", {}, 400, f"Bad name 'a\nb': {NO_LINE_END}"),
        ("DELETE /exchanges/a%0Db", {}, 400, f"Bad name 'a\rb': {NO_LINE_END}"),
        ("POST /bindings", body("no"), 400, "no exchange 'no' in vhost '/'"),
        ("POST /bindings", body(queue="no"), 400, "no queue 'no' in vhost '/'"),
        ("POST /bindings", {"source": "x", "destination_exchange": "no"}, 400, "no exchange 'no' in vh"),
        ("POST /bindings", body(""), 403, NO_DEFAULT),
        ("POST /bindings", {"source": "x", "destination_exchange": ""}, 403, NO_DEFAULT),
        ("POST /bindings", body("a\nb"), 400, f"Bad name 'a\nb': {NO_LINE_END}"),
        ("POST /bindings", body(queue="a\rb"), 400, f"Bad name 'a\rb': {NO_LINE_END}"),
        ("POST /bindings", {"destination_queue": "q"}, 400, "binding property 'source' is missing"),
        ("POST /bindings", {"source": "x"}, 400, "give one of them, not none"),
        ("POST /bindings", body(destination_exchange="t"), 400, "give one of them, not both"),
        ("POST /bindings", body(key=5), 400, "bad binding property {'binding_key',5}"),
        ("POST /bindings", body(unknown=5), 400, "bad binding property {'unknown',5}"),
        ("POST /bindings", None, 400, "bad binding properties: the request has no body"),
        ("GET /bindings?src=x&key=k", None, 400, "missing 'dste' or 'dstq' in query: {'src': 'x', 'key'"),
        ("GET /bindings?dstq=q&key=k", None, 400, "missing 'src' in query: {'dstq': 'q', 'key': 'k'}"),
        ("GET /bindings?src=x&dstq=q&kay=k", None, 400, "unknown 'kay' in query: known are src, dstq"),
        ("DELETE /bindings/x", None, 400, "bad binding path segment 'x'"),
        ("DELETE /bindings/src=x;dstq=q;key=k", None, 400, "bad binding path segment 'src=x;dstq=q;key=k'"),
        ("DELETE /bindings/src=x;dst=q;key=k;args=", None, 400, "bad binding path segment 'src=x;dst=q;"),
        ("DELETE /bindings/dstq=q;src=x;key=k;args=", None, 400, "bad binding path segment 'dstq=q;src=x"),
        ("DELETE /bindings/src=%FF;dstq=q;key=;args=", None, 400, "bad binding path segment 'src=%FF;ds"),
    ],
)
def test_a_request_that_is_refused_changes_nothing(
    broker_binding: Broker, request_: str, body: Any, status: int, text: str
) -> None:
    """Error texts are those of AMQP 0-9-1; an exclusive queue is checked as by a lock."""
    vhost = broker_binding.vhost
    before = list(vhost), vhost.topology.version
    method, to = request_.split(" ")
    got, said = broker_binding.request(method, to, body)
    assert got == str(status)
    assert text in said
    assert (list(vhost), vhost.topology.version) == before


def test_binding_is_204_and_can_be_read(broker_binding: Broker) -> None:
    """The response has the path to delete it."""
    assert broker_binding.request("POST", "/bindings", body(key="k")) == ("204", None)
    assert broker_binding.request("GET", "/bindings?src=x&dstq=q&key=k") == (
        "200",
        [
            {
                "source": "x",
                "destination_queue": "q",
                "binding_key": "k",
                "arguments": {},
                "location": "/bindings/src=x;dstq=q;key=k;args=",
            }
        ],
    )


@pytest.mark.rabbitmq("bindings_SUITE", "list_with_multiple_arguments")
@pytest.mark.rabbitmq("management_SUITE", "queue_binding_args")
def test_bindings_differ_by_their_arguments(broker_binding: Broker) -> None:
    for number in (1, 2):
        arguments = {"x-match": "all", "number": number, "text": "ü", "flag": True, "list": [1, "a"]}
        assert broker_binding.request("POST", "/bindings", body("h", arguments=arguments)) == ("204", None)
    _, found = broker_binding.request("GET", "/bindings?src=h&dstq=q&key=")
    assert [each["arguments"]["number"] for each in found] == [1, 2]
    assert found[0]["arguments"] == {
        "x-match": "all",
        "number": 1,
        "text": "ü",
        "flag": True,
        "list": [1, "a"],
    }
    assert found[0]["location"] != found[1]["location"]
    assert broker_binding.request("DELETE", found[0]["location"]) == ("204", None)
    _, left = broker_binding.request("GET", "/bindings?src=h&dstq=q&key=")
    assert [each["arguments"]["number"] for each in left] == [2]


@pytest.mark.rabbitmq("management_SUITE", "queue_binding_args")
@given(
    st.text(), st.sampled_from(["queue", "exchange"]), st.text(), st.text(),
    st.dictionaries(st.text(), st.integers() | st.text() | st.booleans(), max_size=3)
)  # fmt: skip
def test_a_location_names_its_binding(
    source: str, kind: Any, name: str, key: str, arguments: dict[str, Any]
) -> None:
    binding = Binding(source, Destination(kind, name), key, arguments)
    path = location(binding)
    assert path.isascii()
    named = parse_segment(path.removeprefix(PATH))
    assert (named.source, named.destination, named.binding_key, named.arguments_hash) == (
        source,
        binding.destination,
        key,
        binding.arguments_hash,
    )
