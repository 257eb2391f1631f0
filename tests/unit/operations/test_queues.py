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
from tests.support.managing import NODE, Box, Broker


@pytest.fixture
def broker() -> Broker:
    return Broker()


def declared(broker: Broker, name: str = "q", **body: Any) -> Any:
    status, shown = broker.request("PUT", f"/queues/{name}", body)
    assert status == "201"
    return shown


@pytest.mark.rabbitmq("management_SUITE", "queue_defaults")
def test_a_new_queue_is_answered_201_with_its_defaults(broker: Broker) -> None:
    """Durable, not exclusive, not auto-delete, classic; numbers have their types."""
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
    """Another one has another id; no other kind of queue has any."""
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


@pytest.mark.rabbitmq("management_SUITE", "get_queue_not_found")
def test_get_of_a_missing_queue_is_404(broker: Broker) -> None:
    assert broker.request("GET", "/queues/%F0%9F%91%8E") == ("404", "queue '👎' in vhost '/' not found")


def test_get_of_a_queue_that_goes_meanwhile_is_404(broker: Broker) -> None:
    """The queue was found, and is deleted before the question reaches it."""
    declared(broker)
    box = broker.host.boxes["q"]
    broker.request("DELETE", "/queues/q")
    assert box.queue.deleted
    declared(broker)
    broker.host.boxes["q"].queue = box.queue
    assert broker.request("GET", "/queues/q")[0] == "404"


@pytest.mark.rabbitmq("management_SUITE", "declare_queue_inequivalent_fields")
@pytest.mark.parametrize(
    ("first", "then", "text"),
    [
        (
            {"durable": True},
            {"durable": False},
            "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'",
        ),
        (
            {"auto_delete": False},
            {"auto_delete": True},
            (
                "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': "
                "received 'true' but current is 'false'"
            ),
        ),
    ],
)
def test_declaring_differently_is_409(broker: Broker, first: Any, then: Any, text: str) -> None:
    declared(broker, **first)
    assert broker.request("PUT", "/queues/q", then) == ("409", text)


@pytest.mark.rabbitmq("management_SUITE", "declare_queue_inequivalent_exclusive")
def test_declaring_exclusive_what_is_not_is_400(broker: Broker) -> None:
    """As a lock, not as a difference."""
    declared(broker)
    status, text = broker.request("PUT", "/queues/q", {"exclusive": True})
    assert status == "400"
    assert text.startswith("cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be")


@pytest.mark.rabbitmq("management_SUITE", "declare_queue_invalid_arg")
@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": -1},
        {"x-max-length": "many"},
        {"x-queue-type": "heap"},
        {"x-stream-filter-size-bytes": 16},
    ],
)
def test_a_bad_argument_is_409(broker: Broker, arguments: Any) -> None:
    """The texts are those of AMQP 0-9-1."""
    status, text = broker.request("PUT", "/queues/q", {"arguments": arguments})
    assert status == "409"
    assert text.startswith(f"invalid arg '{next(iter(arguments))}' for queue 'q' in vhost '/'")


@pytest.mark.rabbitmq("management_SUITE", "declare_queue_invalid_field")
def test_what_a_kind_of_queue_cannot_be_is_400(broker: Broker) -> None:
    """A quorum queue is neither exclusive nor auto-delete nor transient."""
    body = {"exclusive": True, "arguments": {"x-queue-type": "quorum"}}
    status, text = broker.request("PUT", "/queues/q", body)
    assert (status, text) == ("400", "invalid property 'exclusive-owner' for queue 'q' in vhost '/'")


@pytest.mark.rabbitmq("management_SUITE", "bad_queue_property")
@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"unknown": 1}, "bad queue property {'unknown',1}"),
        ({"durable": "yes"}, "bad queue property {'durable','yes'}: it must be true or false"),
        ({"arguments": True}, "bad queue property {'arguments',true}: it must be a map"),
        ({"name": "other"}, "bad queue property {'name','other'}: it is in the path"),
        ({5: True}, "bad queue property: bad key 5"),
        (None, "bad queue properties: the request has no body"),
        ([True], "bad queue property: [True] is no map"),
        ({"arguments": {"x": UUID(int=1)}}, "bad argument value"),
    ],
)
def test_a_bad_property_is_400(broker: Broker, body: Any, part: str) -> None:
    status, text = broker.request("PUT", "/queues/q", body)
    assert status == "400"
    assert part in text
    assert broker.vhost.find("q") is None


@pytest.mark.rabbitmq("management_SUITE", "declare_queue_empty_name")
def test_an_empty_name_is_400(broker: Broker) -> None:
    assert broker.request("PUT", "/queues/", {}) == ("400", "declare queue with empty name not allowed")


@pytest.mark.rabbitmq("management_SUITE", "declare_queue_line_feed")
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_line_end_in_a_name_is_400(broker: Broker, method: str) -> None:
    text = "Bad name 'a\nb': line feed and carriage return characters not allowed"
    assert broker.request(method, "/queues/a%0Ab", {}) == ("400", text)


@pytest.mark.rabbitmq("management_SUITE", "declare_queue_amq_prefix")
def test_a_reserved_name_is_403(broker: Broker) -> None:
    text = "queue 'amq.q' in vhost '/' starts with reserved prefix 'amq.'"
    assert broker.request("PUT", "/queues/amq.q", {}) == ("403", text)


@pytest.mark.rabbitmq("amqp_auth_SUITE", "declare_queue_vhost_queue_limit")
def test_the_limit_of_the_virtual_host_is_403(broker: Broker) -> None:
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


@pytest.mark.rabbitmq("management_SUITE", "purge_non_existing_queue_should_return_not_found")
def test_purging_a_missing_queue_is_404(broker: Broker) -> None:
    assert broker.request("DELETE", "/queues/q/messages") == ("404", "no queue 'q' in vhost '/'")


@pytest.mark.rabbitmq("management_SUITE", "exclusive_queue")
def test_another_connections_exclusive_queue_is_locked(broker: Broker) -> None:
    """400 for declare, delete, purge and bind; GET is allowed."""
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
    """403, as over AMQP 0-9-1: it is not bound or deleted, not even by whoever has it."""
    with_replies(broker)
    status, text = broker.request(method, to, body)
    assert (status, text) == ("403", f"operation not permitted on the direct reply-to queue '{REPLIES}'")
    assert broker.vhost.find(REPLIES) is not None


@pytest.mark.parametrize("body", [{"exclusive": True, "auto_delete": True}, {}])
def test_a_queue_of_direct_replies_cannot_be_declared(broker: Broker, body: object) -> None:
    """Its name is reserved, and it is nobody's to find equivalent."""
    with_replies(broker)
    status, text = broker.request("PUT", f"/queues/{REPLIES}", body)
    assert (status, text) == (
        "403",
        f"queue '{REPLIES}' in vhost '/' starts with reserved prefix 'amq.'",
    )


def with_replies(broker: Broker) -> None:
    spec = QueueSpec("/", REPLIES, "volatile", False, True, {})
    broker.vhost.add_volatile(REPLIES, broker.connection, Box(spec))


def declared_exchange(broker: Broker, name: str = "x", **body: Any) -> None:
    assert broker.request("PUT", f"/exchanges/{name}", body) == ("204", None)


@pytest.mark.rabbitmq("management_SUITE", "exchange_defaults")
def test_a_new_exchange_has_the_defaults(broker: Broker) -> None:
    declared_exchange(broker)
    exchange = broker.vhost.topology.lookup_exchange("x")
    assert (exchange.type, exchange.durable, exchange.auto_delete, exchange.internal) == (
        "direct",
        True,
        False,
        False,
    )


def test_properties_are_those_asked_for_exchange(broker: Broker) -> None:
    declared_exchange(
        broker,
        type="fanout",
        durable=False,
        auto_delete=True,
        internal=True,
        arguments={"alternate-exchange": "amq.fanout"},
    )
    exchange = broker.vhost.topology.lookup_exchange("x")
    assert (exchange.type, exchange.durable, exchange.auto_delete, exchange.internal, exchange.alternate) == (
        "fanout",
        False,
        True,
        True,
        "amq.fanout",
    )


@pytest.mark.rabbitmq("management_SUITE", "declare_exchange_inequivalent_fields")
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"type": "fanout"}, "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'fanout' but"),
        (
            {"durable": False},
            "inequivalent arg 'durable' for exchange 'x' in vhost '/': received 'false' but",
        ),
        ({"auto_delete": True}, "inequivalent arg 'auto_delete' for exchange 'x' in vhost '/'"),
        ({"internal": True}, "inequivalent arg 'internal' for exchange 'x' in vhost '/'"),
    ],
)
def test_declaring_differently_is_409_exchange(broker: Broker, body: Any, text: str) -> None:
    declared_exchange(broker)
    status, got = broker.request("PUT", "/exchanges/x", body)
    assert status == "409"
    assert got.startswith(text)


@pytest.mark.rabbitmq("management_SUITE", "bad_exchange_type")
def test_an_unknown_type_is_400(broker: Broker) -> None:
    assert broker.request("PUT", "/exchanges/x", {"type": "👎"}) == ("400", "unknown exchange type '👎'")


@pytest.mark.rabbitmq("management_SUITE", "bad_exchange_property")
@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"unknown": 1}, "bad exchange property {'unknown',1}"),
        ({"type": 5}, "bad exchange property {'type',5}: it must be a string"),
        (None, "bad exchange properties: the request has no body"),
    ],
)
def test_a_bad_property_is_400_exchange(broker: Broker, body: Any, part: str) -> None:
    status, text = broker.request("PUT", "/exchanges/x", body)
    assert status == "400"
    assert part in text


@pytest.mark.rabbitmq("management_SUITE", "declare_default_exchange", "delete_default_exchange")
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_the_default_exchange_is_403(broker: Broker, method: str) -> None:
    text = "operation not permitted on the default exchange"
    assert broker.request(method, "/exchanges/", {}) == ("403", text)


@pytest.mark.rabbitmq("management_SUITE", "declare_exchange_amq_prefix", "delete_exchange_amq_prefix")
@pytest.mark.parametrize(("method", "name"), [("PUT", "amq.x"), ("DELETE", "amq.x"), ("DELETE", "amq.topic")])
def test_a_reserved_name_is_403_exchange(broker: Broker, method: str, name: str) -> None:
    text = f"exchange '{name}' in vhost '/' starts with reserved prefix 'amq.'"
    assert broker.request(method, f"/exchanges/{name}", {}) == ("403", text)


@pytest.mark.rabbitmq("management_SUITE", "declare_exchange_line_feed", "delete_exchange_carriage_return")
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize("end", ["%0A", "%0D"])
def test_a_line_end_in_a_name_is_400_exchange(broker: Broker, method: str, end: str) -> None:
    status, text = broker.request(method, f"/exchanges/a{end}b", {})
    assert status == "400"
    assert text.endswith("line feed and carriage return characters not allowed")


DEFAULT_EXCHANGE = "operation not permitted on the default exchange"


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


def test_binding_is_204_and_can_be_read(broker_binding: Broker) -> None:
    """The map says where to delete it."""
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
    """Each is listed with its own location, and deleted by it."""
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


@pytest.mark.rabbitmq("management_SUITE", "bind_missing_queue")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (body("no"), "no exchange 'no' in vhost '/'"),
        (body(queue="no"), "no queue 'no' in vhost '/'"),
        ({"source": "x", "destination_exchange": "no"}, "no exchange 'no' in vhost '/'"),
    ],
)
def test_a_missing_end_is_400(broker_binding: Broker, given: Any, text: str) -> None:
    assert broker_binding.request("POST", "/bindings", given) == ("400", text)


@pytest.mark.rabbitmq("management_SUITE", "bind_destination_default_exchange", "bind_source_default_exchange")
@pytest.mark.parametrize(
    "given", [body(""), {"source": "x", "destination_exchange": ""}], ids=["source", "destination"]
)
def test_the_default_exchange_is_403_binding(broker_binding: Broker, given: Any) -> None:
    assert broker_binding.request("POST", "/bindings", given) == ("403", DEFAULT_EXCHANGE)


@pytest.mark.rabbitmq("management_SUITE", "bind_destination_line_feed", "bind_source_line_feed")
@pytest.mark.parametrize("given", [body("a\nb"), body(queue="a\rb")])
def test_a_line_end_in_a_name_is_400_binding(broker_binding: Broker, given: Any) -> None:
    status, text = broker_binding.request("POST", "/bindings", given)
    assert status == "400"
    assert text.endswith("line feed and carriage return characters not allowed")


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"destination_queue": "q"}, "binding property 'source' is missing"),
        ({"source": "x"}, "give one of them, not none"),
        (body(destination_exchange="t"), "give one of them, not both"),
        (body(key=5), "bad binding property {'binding_key',5}"),
        (body(unknown=5), "bad binding property {'unknown',5}"),
        (None, "bad binding properties: the request has no body"),
    ],
)
def test_a_bad_property_is_400_binding(broker_binding: Broker, given: Any, part: str) -> None:
    status, text = broker_binding.request("POST", "/bindings", given)
    assert status == "400"
    assert part in text


@pytest.mark.rabbitmq("unit_amqp_management_SUITE", "get_bindings_missing_destination_rejected")
@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("src=x&key=k", "missing 'dste' or 'dstq' in query: {'src': 'x', 'key': 'k'}"),
        ("dstq=q&key=k", "missing 'src' in query: {'dstq': 'q', 'key': 'k'}"),
        ("src=x&dstq=q&kay=k", "unknown 'kay' in query: known are src, dstq, dste, key"),
    ],
)
def test_a_bad_query_is_400(broker_binding: Broker, query: str, text: str) -> None:
    assert broker_binding.request("GET", f"/bindings?{query}") == ("400", text)


@pytest.mark.rabbitmq("management_SUITE", "unbind_bad_binding_path_segment")
@pytest.mark.parametrize(
    "segment",
    [
        "x",
        "src=x;dstq=q;key=k",
        "src=x;dst=q;key=k;args=",
        "dstq=q;src=x;key=k;args=",
        "src=%FF;dstq=q;key=;args=",
    ],
)
def test_a_bad_segment_is_400(broker_binding: Broker, segment: str) -> None:
    status, text = broker_binding.request("DELETE", PATH + segment)
    assert status == "400"
    assert text.startswith(f"bad binding path segment '{segment}'")


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
