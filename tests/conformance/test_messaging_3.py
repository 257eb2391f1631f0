"""Part 3: message format (3.2), delivery states (3.4), sources and targets (3.5), at the broker."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.protocols.amqp10.codec import decode
from amqp10broker.protocols.amqp10.performatives import (
    Attach,
    DeleteOnClose,
    Header,
    Properties,
    Transfer,
    decode_composite,
)
from amqp10broker.protocols.amqp10.types import Symbol, UInt, ULong
from tests.support.declaring import declare
from tests.support.engine import frame, section
from tests.support.script import ScriptRunner

HEADER = Header(durable=True).encode()
DELIVERY_ANNOTATIONS = section(0x71, {Symbol("x-d"): 1})
MESSAGE_ANNOTATIONS = section(0x72, {Symbol("x-a"): 1})
PROPERTIES = Properties(subject="s").encode()
APPLICATION_PROPERTIES = section(0x74, {"a": 1})
DATA = section(0x75, b"body")
SEQUENCE = section(0x76, [1, 2])
VALUE = section(0x77, "value")
FOOTER = section(0x78, {Symbol("x-f"): 1})


class Pipe:
    """A publisher and a consumer of one queue; raw messages in, raw messages out."""

    def __init__(self) -> None:
        self.script = ScriptRunner()
        for command in (
            "queue q",
            "C> BEGIN",
            "C> ATTACH h=0 target=/queues/q",
            "C> ATTACH h=1 source=/queues/q",
        ):
            self.script.do(command)
        self._written: list[bytes] = []
        client = self.script.world.clients["C"]
        client.bodies = self._written
        self._client = client
        self._id = 0

    def publish(self, payload: bytes) -> list[str]:
        transfer = Transfer(handle=0, delivery_id=self._id, delivery_tag=b"t")
        self._id += 1
        self._client.feed(frame(transfer, payload))
        self._client.flush()
        self.script.world.settle()
        return self.script.world.take_trace()

    def fetch(self) -> bytes:
        self._written.clear()
        self.script.do(f"C> FLOW h=1 dc={self._fetched} cr=1")
        (body,) = self._written
        performative, end = decode_composite(body)
        assert isinstance(performative, Transfer)
        return body[end:]

    @property
    def _fetched(self) -> int:
        return len(self.script.world.clients["C"].mine[0].received)


# --- 3.2: order and count of sections ------------------------------------------------------------


@pytest.mark.rabbitmq("binary_parser_SUITE", "validate_footer", "validate_valid_messages")
@pytest.mark.parametrize(
    "sections",
    [
        [DATA],
        [DATA, DATA, DATA],
        [SEQUENCE],
        [SEQUENCE, SEQUENCE],
        [VALUE],
        [HEADER, DATA],
        [HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA, FOOTER],
        [MESSAGE_ANNOTATIONS, VALUE, FOOTER],
        [PROPERTIES, SEQUENCE],
        [section(0x77, None)],
        [section(0x75, b"")],
        [],
        [HEADER],
        [PROPERTIES, APPLICATION_PROPERTIES],
        [FOOTER],
    ],
    ids=lambda sections: str(len(sections)),
)
def test_a_well_formed_message_is_accepted(sections: list[bytes]) -> None:
    """3.2: at most one header, delivery-annotations, message-annotations, properties and application-
    properties; a body of "one or more data sections, one or more amqp-sequence sections, or a single
    amqp-value section"; at most one footer. Against the specification a body may be missing: JMS's plain
    Message, go-amqp and the clients of Azure send none.
    """
    (line,) = Pipe().publish(b"".join(sections))
    assert line.startswith("B> DISPOSITION role=receiver first=0 settled=true state=accepted")


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


@pytest.mark.rabbitmq("amqp_client_SUITE", "sections_out_of_order")
@pytest.mark.rabbitmq(
    "binary_parser_SUITE",
    "validate_body_sections",
    "validate_duplicate_sections",
    "validate_section_after_body",
    "validate_section_out_of_order",
    "validate_section_value_type",
    "validate_unknown_section",
)
@pytest.mark.parametrize(
    "sections",
    [
        [DATA, HEADER],
        [PROPERTIES, HEADER, DATA],
        [MESSAGE_ANNOTATIONS, DELIVERY_ANNOTATIONS, DATA],
        [APPLICATION_PROPERTIES, PROPERTIES, DATA],
        [FOOTER, DATA],
        [HEADER, HEADER, DATA],
        [PROPERTIES, PROPERTIES, DATA],
        [DATA, FOOTER, FOOTER],
        [VALUE, VALUE],
        [DATA, VALUE],
        [DATA, SEQUENCE],
        [SEQUENCE, DATA],
        [section(0x79, b"x")],
        [section(0x24, [])],
        [section(0x75, "text")],
        [section(0x76, b"x")],
        [section(0x74, [1])],
        [section(0x70, {})],
        [DATA[:-1]],
        [DATA, b"\x00"],
        [DATA, b"\xff"],
        [b"body"],
    ],
    ids=[
        "header-behind-data",
        "header-behind-properties",
        "annotations-out-of-order",
        "properties-out-of-order",
        "footer-in-front",
        "two-headers",
        "two-properties",
        "two-footers",
        "two-values",
        "data-and-value",
        "data-and-sequence",
        "sequence-and-data",
        "unknown-section",
        "an-outcome",
        "data-of-a-string",
        "sequence-of-binary",
        "application-properties-of-a-list",
        "header-of-a-map",
        "cut-off",
        "cut-descriptor",
        "garbage-behind",
        "no-section",
    ],
)
def test_a_malformed_message_detaches_with_decode_error(sections: list[bytes], pipe: Pipe) -> None:
    (line,) = pipe.publish(b"".join(sections))
    assert line.startswith('B> DETACH h=0 closed=true error=amqp:decode-error "failed to parse message')
    assert pipe.script.do("count q") == ["= ready=0 unsettled=0"]


BARE = [
    DATA,
    DATA + DATA,
    PROPERTIES + APPLICATION_PROPERTIES + VALUE + FOOTER,
    # Encodings that no encoder of ours would choose: long forms where short ones do.
    b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xb0\x00\x00\x00\x01x",
    b"\x00\xa3\x10amqp:data:binary\xa0\x01x",
    b"\x00\x53\x77\x70\x00\x00\x00\x01",
    section(0x77, {"deep": [{"er": [UInt(1), Symbol("s"), None, True]}]}),
    PROPERTIES + APPLICATION_PROPERTIES,
    FOOTER,
]


@pytest.mark.rabbitmq("amqp_client_SUITE", "decimal_types")
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "data_types")
@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "roundtrip", "footer")
@pytest.mark.rabbitmq("amqp_client_SUITE", "immutable_bare_message")
@pytest.mark.parametrize("bare", BARE, ids=range(len(BARE)))
@pytest.mark.parametrize(
    "before", [b"", HEADER, HEADER + DELIVERY_ANNOTATIONS + MESSAGE_ANNOTATIONS], ids=range(3)
)
def test_the_bare_message_is_not_changed(bare: bytes, before: bytes, pipe: Pipe) -> None:
    """ "The bare message is immutable within the AMQP network": it arrives byte for byte."""
    pipe.publish(before + bare)
    assert pipe.fetch().endswith(bare)


@pytest.mark.parametrize("code", ["510a", "61fffe", "54f6", "7180000000", "55f6", "817fffffffffffffff"])
@pytest.mark.parametrize("field", [0, 5], ids=["message-id", "correlation-id"])
def test_an_id_may_be_a_signed_integer(field: int, code: str) -> None:
    """3.2.4 has ulong, uuid, binary and string; programs in Go write an int, and RabbitMQ takes it."""
    items = b"\x40" * field + bytes.fromhex(code)
    properties = b"\x00\x53\x73\xc0" + bytes((1 + len(items), field + 1)) + items
    pipe = Pipe()
    assert "state=accepted" in pipe.publish(properties + DATA)[0]
    assert pipe.fetch().endswith(properties + DATA)


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "message_without_body", differs="taken")
@pytest.mark.parametrize("before", [b"", HEADER, MESSAGE_ANNOTATIONS], ids=range(3))
def test_a_message_of_nothing_is_given_back_as_nothing(before: bytes, pipe: Pipe) -> None:
    pipe.publish(before)
    payload = pipe.fetch()
    _, end = decode_composite(payload)
    annotations, end = decode(payload, end)
    assert annotations.descriptor == 0x72
    assert end == len(payload)


def test_delivery_annotations_end_at_the_broker(pipe: Pipe) -> None:
    """3.2.2: they "are used for delivery-specific non-standard properties", from one peer to the next."""
    pipe.publish(DELIVERY_ANNOTATIONS + DATA)
    assert b"x-d" not in pipe.fetch()


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "message_annotations")
def test_message_annotations_go_on(pipe: Pipe) -> None:
    """3.2.3: annotations "about the message" travel with it."""
    pipe.publish(MESSAGE_ANNOTATIONS + DATA)
    payload = pipe.fetch()
    _, pos = decode_composite(payload)
    annotations, _ = decode(payload, pos)
    assert annotations.value == {"x-a": 1, "x-exchange": "", "x-routing-key": "q"}


@pytest.mark.rabbitmq("amqp_client_SUITE", "reserved_annotation")
@pytest.mark.parametrize("annotations", [{Symbol("a"): 1}, {ULong(1): 1}, {Symbol("x-a"): 1, Symbol("b"): 2}])
def test_annotations_with_reserved_keys_are_refused(annotations: dict[Any, Any]) -> None:
    """3.2.10: keys are "symbols beginning with 'x-'" or reserved."""
    (line,) = Pipe().publish(section(0x72, annotations) + DATA)
    assert line.startswith('B> DETACH h=0 closed=true error=amqp:invalid-field "reserved_annotation_key')


@pytest.mark.rabbitmq("amqp_client_SUITE", "durable_field_quorum_queue", "durable_field_stream")
@pytest.mark.rabbitmq("amqp_client_SUITE", "durable_field_classic_queue")
@pytest.mark.rabbitmq(
    "rabbit_fifo_SUITE",
    "enqueued_msg_with_delivery_count_test",
    note="a count that the publisher wrote is not the queue's",
)
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, Header(durable=False, first_acquirer=True, delivery_count=0)),
        (Header(durable=True), Header(durable=True, first_acquirer=True, delivery_count=0)),
        (
            Header(durable=True, priority=7, ttl=60000, first_acquirer=False, delivery_count=9),
            Header(durable=True, priority=7, ttl=60000, first_acquirer=True, delivery_count=0),
        ),
    ],
    ids=["absent", "durable", "all"],
)
def test_the_header_is_the_brokers_to_write(given: Header | None, expected: Header) -> None:
    """3.2.1: durable, priority and ttl are kept; first-acquirer and delivery-count are the queue's."""
    pipe = Pipe()
    pipe.publish((given.encode() if given else b"") + DATA)
    header, _ = decode_composite(pipe.fetch())
    assert header == expected


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "redelivery")
def test_first_acquirer_is_true_until_somebody_had_the_message(pipe: Pipe) -> None:
    """ "If this value is true, then this message has not been acquired by any other link"."""
    pipe.publish(DATA)
    first, _ = decode_composite(pipe.fetch())
    pipe.script.do("C> DISPOSITION role=receiver first=0 settled=true state=released")
    second, _ = decode_composite(pipe.fetch())
    assert isinstance(first, Header)
    assert isinstance(second, Header)
    assert (first.first_acquirer, second.first_acquirer) == (True, False)


def test_an_absolute_expiry_time_passes_and_expires_nothing(pipe: Pipe) -> None:
    """3.2.4: the absolute expiry time is part of the bare message, which queues do not read."""
    bare = Properties(absolute_expiry_time=1).encode() + DATA
    (answer,) = pipe.publish(bare)
    assert answer.endswith("state=accepted")
    assert pipe.fetch().endswith(bare)


@pytest.mark.parametrize(("user", "taken"), [(b"guest", True), (b"somebody", False), (b"", False)])
def test_user_id_must_be_the_users(user: bytes, taken: bool) -> None:
    """3.2.4: user-id identifies "the user responsible for producing the message"; another name is refused."""
    (line,) = Pipe().publish(Properties(user_id=user).encode() + DATA)
    assert line.startswith(
        "B> DISPOSITION" if taken else "B> DETACH h=0 closed=true error=amqp:unauthorized-access"
    )


@pytest.fixture
def script() -> ScriptRunner:
    return ScriptRunner()


@pytest.mark.parametrize(
    ("to", "answer"),
    [
        ("/queues/q", "state=accepted"),
        ("/queues/none", "state=released"),
        ("q", "state=accepted"),
        ("/queues/", "state=rejected(amqp:precondition-failed \"bad 'to' address string"),
        ("/exchanges/none/k", "state=rejected(amqp:not-found"),
        ("new", "state=accepted"),
        ("amq.new", "state=rejected(amqp:unauthorized-access \"queue name 'amq.new' contains"),
    ],
)
def test_an_anonymous_terminus_routes_by_to(to: str, answer: str, script: ScriptRunner) -> None:
    """3.2.4: "to ... identifies the node that is the intended destination of the message"."""
    for command in ("queue q", "C> BEGIN", "C> ATTACH h=0 target=anonymous"):
        script.do(command)
    (line,) = script.do(f"C> TRANSFER h=0 to={to}")
    assert answer in line


def test_an_anonymous_terminus_declares_what_an_attach_would(script: ScriptRunner) -> None:
    """A bare name in `to` is treated as in a target: Qpid JMS sends to undeclared queues."""
    for command in ("C> BEGIN", "C> ATTACH h=0 target=anonymous"):
        script.do(command)
    assert "state=accepted" in script.do("C> TRANSFER h=0 to=new")[0]
    assert "state=accepted" in script.do("C> TRANSFER h=0 to=/queues/new")[0]
    declared = script.world.vhost.find("new")
    assert (declared.durable, declared.type) == (True, "classic")
    assert script.do("count new") == ["= ready=2 unsettled=0"]


def test_an_anonymous_terminus_declares_nothing_where_an_attach_does_not(script: ScriptRunner) -> None:
    """With declare_on_attach = false the message has no queue."""
    script.do("config declare_on_attach false")
    for command in ("connect C", "C> BEGIN", "C> ATTACH h=0 target=anonymous"):
        script.do(command)
    assert "state=released" in script.do("C> TRANSFER h=0 to=new")[0]
    assert script.world.vhost.find("new") is None


def test_a_settled_message_that_an_anonymous_terminus_cannot_route_detaches(script: ScriptRunner) -> None:
    """A settled message has no outcome, so the detach reports it with the delivery-tag."""
    script.do("C> BEGIN")
    script.do("C> ATTACH h=0 target=anonymous")
    (line,) = script.do("C> TRANSFER h=0 settled=true")
    assert line.startswith("B> DETACH h=0 closed=true error=amqp:precondition-failed")


# --- 3.4: delivery states ------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "reliable_send_receive_with_outcomes_classic_queue")
@pytest.mark.parametrize(
    ("state", "ready"),
    [
        ("accepted", 0),
        ("rejected", 0),
        ("released", 1),
        ("modified", 1),
        ("modified(failed)", 1),
        ("modified(undeliverable)", 0),
        ("modified(failed,undeliverable)", 0),
    ],
)
@pytest.mark.parametrize("settled", ["true", "false"])
def test_every_outcome_has_its_effect(state: str, ready: int, settled: str, script: ScriptRunner) -> None:
    """3.4.2 to 3.4.5: accepted and rejected end at the queue, released and modified put the message back;
    undeliverable-here is not offered again on this node."""
    for command in (
        "queue q",
        "publish q 1",
        "C> BEGIN",
        "C> ATTACH h=1 source=/queues/q",
        "C> FLOW h=1 dc=0 cr=1",
    ):
        script.do(command)
    lines = script.do(f"C> DISPOSITION role=receiver first=0 settled={settled} state={state}")
    assert len(lines) == (0 if settled == "true" else 1)
    assert script.do("count q") == [f"= ready={ready} unsettled=0"]


# --- 3.5: sources and targets --------------------------------------------------------------------


def _attached(command: str) -> Attach:
    script = ScriptRunner()
    script.do("queue q")
    script.do("C> BEGIN")
    seen: list[bytes] = []
    client = script.world.clients["C"]
    client.bodies = seen
    script.do(command)
    attach, _ = decode_composite(seen[0])
    assert isinstance(attach, Attach)
    return attach


def test_the_source_says_what_is_really_in_place() -> None:
    """3.5.3: address, distribution-mode, default-outcome and outcomes of our attach are the real ones."""
    source: Any = _attached("C> ATTACH h=1 source=/queues/q").source
    assert source.address == "/queues/q"
    assert source.distribution_mode == "move"
    assert type(source.default_outcome).__name__ == "Released"
    assert set(source.outcomes) == {
        "amqp:accepted:list",
        "amqp:rejected:list",
        "amqp:released:list",
        "amqp:modified:list",
    }
    assert source.filter is None


@pytest.mark.parametrize(
    ("asked", "mode", "filters"),
    [
        ("distribution-mode=copy", "copy", None),
        ("filter=apache.org:selector-filter:string", "move", ["a-filter"]),
        ("filter=apache.org:selector-filter:string distribution-mode=copy", "copy", ["a-filter"]),
        ("filter=apache.org:no-local-filter:list", "move", None),
    ],
)
def test_the_source_says_which_mode_and_filters_are_in_place(
    asked: str, mode: str, filters: list[str] | None
) -> None:
    """3.5.3: distribution-mode and filter of our attach are what is done; no-local is for topics."""
    source: Any = _attached(f"C> ATTACH h=1 source=/queues/q {asked}").source
    assert source.distribution_mode == mode
    assert (source.filter and list(source.filter)) == filters


def test_a_single_active_consumer_may_not_select(script: ScriptRunner) -> None:
    """It would withhold unselected messages from the others; a browser may select."""
    world = script.world
    declare(world.catalog, world.vhost, "q", durable=True, arguments={"x-single-active-consumer": True})
    script.do("C> BEGIN")
    selects = "source=/queues/q filter=apache.org:selector-filter:string"
    _, detach = script.do(f"C> ATTACH h=1 {selects}")
    assert detach.startswith("B> DETACH h=1 closed=true error=amqp:not-allowed ")
    assert "single active consumer" in detach
    assert len(script.do(f"C> ATTACH h=2 distribution-mode=copy {selects}")) == 1


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "outcomes")
def test_a_subset_of_outcomes_is_agreed_to() -> None:
    """3.5.3: the source lists the outcomes that can be chosen on this link."""
    source: Any = _attached(
        "C> ATTACH h=1 source=/queues/q outcomes=amqp:accepted:list,amqp:released:list"
    ).source
    assert source.outcomes == ("amqp:accepted:list", "amqp:released:list")


def test_the_target_says_its_address_and_what_it_takes() -> None:
    attach = _attached("C> ATTACH h=1 target=/queues/q")
    target: Any = attach.target
    assert target.address == "/queues/q"
    assert attach.max_message_size == 16 * 1024 * 1024


@pytest.mark.parametrize("address", ["/queues/q", "bare", "/exchanges/amq.topic/key", "anonymous"])
@pytest.mark.parametrize("end", ["source", "target"])
def test_a_terminus_says_that_nothing_of_it_is_kept(end: str, address: str) -> None:
    """3.5.3: "the actual expiry policy", durability and time-out are those of the sending container; a
    client that requests no time has none.
    """
    if end == "source" and not address.startswith(("/queues", "bare")):
        return
    attach = _attached(f"C> ATTACH h=1 {end}={address} durable=2 expiry-policy=session-end timeout=0")
    terminus: Any = getattr(attach, end)
    assert (terminus.durable, terminus.expiry_policy, terminus.timeout) == (0, "link-detach", 0)


@pytest.mark.parametrize("address", ["/queues/q", "bare", "/exchanges/amq.topic/key", "anonymous"])
@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ("expiry-policy=link-detach timeout=60", ("link-detach", 60)),
        ("expiry-policy=session-end timeout=60", ("session-end", 60)),
        ("expiry-policy=connection-close timeout=60", ("connection-close", 60)),
        ("expiry-policy=connection-close timeout=0", ("connection-close", 0)),
        ("expiry-policy=link-detach timeout=7200", ("link-detach", 3_600)),
        ("expiry-policy=never timeout=60", ("connection-close", 3_600)),
    ],
)
@pytest.mark.parametrize("end", ["source", "target"])
def test_a_terminus_says_how_long_it_is_kept(
    end: str, address: str, asked: str, granted: tuple[str, int]
) -> None:
    """3.5.3, 3.5.4: a requested time is granted; nothing survives a restart."""
    if end == "source" and not address.startswith(("/queues", "bare")):
        return
    terminus: Any = getattr(_attached(f"C> ATTACH h=1 {end}={address} durable=2 {asked}"), end)
    assert (terminus.durable, terminus.expiry_policy, terminus.timeout) == (0, *granted)


@pytest.mark.parametrize(
    ("terminus", "asked", "answered"),
    [
        ("source=/queues/q", "queue", ("queue",)),
        ("source=/queues/q", "topic", None),
        ("source=/queues/q", "topic,queue,shared", ("queue",)),
        ("source=/queues/q", "temporary-queue", None),
        ("source=bare", "queue,topic", ("queue",)),
        ("target=/queues/q", "topic", None),
        ("target=/queues/q", "queue", ("queue",)),
        ("target=/exchanges/amq.fanout", "topic", ("topic",)),
        ("target=/exchanges/amq.fanout", "queue", None),
        ("target=anonymous", "queue", None),
    ],
)
def test_a_terminus_says_which_capabilities_are_true_of_it(
    terminus: str, asked: str, answered: tuple[str, ...] | None
) -> None:
    """3.5.3, 3.5.4: capabilities are "the extension capabilities the sender supports/desires": ours are those
    that the node has."""
    attach = _attached(f"C> ATTACH h=1 {terminus} capabilities={asked}")
    own: Any = getattr(attach, terminus.partition("=")[0])
    assert own.capabilities == answered


def test_a_temporary_queue_says_so_to_every_link(script: ScriptRunner) -> None:
    """A consumer of a temporary destination of JMS attaches to it by its address."""
    for command in ("C> BEGIN", "C> ATTACH h=1 name=reply source=dynamic"):
        script.do(command)
    (name,) = script.world.queues
    seen: list[bytes] = []
    script.world.clients["C"].bodies = seen
    script.do(f"C> ATTACH h=2 source=/queues/{name} capabilities=temporary-queue")
    source: Any = decode_composite(seen[0])[0].source
    assert source.capabilities == ("temporary-queue",)


@pytest.mark.rabbitmq("amqp_client_SUITE", "dynamic_source_rpc")
@pytest.mark.parametrize("terminus", ["source", "target"])
def test_a_dynamic_node_is_made_and_named(terminus: str) -> None:
    """ "When set to true by the receiving link endpoint, this field constitutes a request for the sending
    peer to dynamically create a node"; "the address ... MUST be set to the address of the created node"."""
    attach = _attached(f"C> ATTACH h=1 name=reply {terminus}=dynamic capabilities=temporary-queue")
    made: Any = getattr(attach, terminus)
    assert made.dynamic
    assert made.address.startswith("/queues/amq.dyn-client-C-reply-")
    assert made.expiry_policy == "link-detach"
    assert made.timeout == 0
    assert made.capabilities == ("temporary-queue",)
    assert made.dynamic_node_properties["lifetime-policy"].descriptor == DeleteOnClose.DESCRIPTOR
    assert made.dynamic_node_properties["supported-dist-modes"] == "move"


def test_a_dynamic_node_goes_with_its_link(script: ScriptRunner) -> None:
    """delete-on-close: the queue is gone after the detach, and other links to it are detached."""
    for command in ("C> BEGIN", "C> ATTACH h=1 name=reply source=dynamic"):
        script.do(command)
    (name,) = script.world.queues
    script.do(f"C> ATTACH h=0 target=/queues/{name}")
    lines = script.do("C> DETACH h=1 closed=true")
    assert lines[0] == "B> DETACH h=1 closed=true"
    assert lines[1].startswith("B> DETACH h=0 closed=true error=amqp:resource-deleted")
    assert script.world.vhost.find(name) is None


def test_a_dynamic_source_belongs_to_its_connection(script: ScriptRunner) -> None:
    """Another connection may publish to it, but not consume from it."""
    for command in ("C> BEGIN", "C> ATTACH h=1 source=dynamic", "D> BEGIN"):
        script.do(command)
    (name,) = script.world.queues
    assert "error=amqp:resource-locked" in script.do(f"D> ATTACH h=1 source=/queues/{name}")[1]
    assert script.do(f"D> ATTACH h=0 target=/queues/{name}")[1].startswith("B>D FLOW")


@pytest.mark.parametrize("terminus", ["source", "target"])
def test_a_bare_name_declares_the_queue(terminus: str, script: ScriptRunner) -> None:
    """As in RabbitMQ 4.0, the queue is durable and kept after the detach, so that its programs run."""
    script.do("C> BEGIN")
    script.do(f"C> ATTACH h=1 {terminus}=orders")
    script.do("C> DETACH h=1 closed=true")
    declared = script.world.vhost.find("orders")
    assert declared.durable


@pytest.mark.rabbitmq("unicode_SUITE", "classic_queue_v2", "quorum_queue", "stream")
@pytest.mark.rabbitmq("amqp_address_SUITE", "queue", "queue_with_slash")
@pytest.mark.parametrize(
    ("address", "name"),
    [("/queues/a%2Fb", "a/b"), ("/queues/a%20b", "a b"), ("/queues/%C3%A4", "ä"), ("/queues/%25", "%")],
)
def test_names_in_addresses_are_percent_encoded(address: str, name: str, script: ScriptRunner) -> None:
    """RFC 3986: each segment is percent-encoded UTF-8."""
    script.world.declare(name)
    script.do("C> BEGIN")
    assert script.do(f"C> ATTACH h=1 source={address}")[0].startswith("B> ATTACH")
