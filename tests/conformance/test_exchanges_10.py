"""Publishing to exchanges with AMQP 1.0: addresses, headers, fan-out, x-cc, user-id, unroutable messages."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.protocols.amqp10.performatives import decode_composite
from amqp10broker.protocols.amqp10.types import Array, Symbol, UInt
from tests.support.declaring import delete_exchange, set_tags
from tests.support.scenario import ACCEPTED, RELEASED, Scenario, content, detached, disposition

NOT_FOUND = "amqp:not-found"

INVALID = "amqp:invalid-field"

UNAUTHORIZED = "amqp:unauthorized-access"


@pytest.fixture
def scene() -> Scenario:
    scene = Scenario("q1", "q2", "q3")
    for kind in ("direct", "fanout", "topic", "headers"):
        scene.exchange(kind, kind)
    return scene


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_address_SUITE", "target_exchange_routing_key")
def test_a_target_names_exchange_and_routing_key(scene: Scenario) -> None:
    """The reply echoes ``/exchanges/:exchange/:routing-key``, and messages are routed so."""
    scene.bind("direct", "q1", "k")
    attach, flow = scene.sender("/exchanges/direct/k")
    assert attach == (
        "B> ATTACH name=link-0 h=0 role=receiver target=/exchanges/direct/k max-message-size=16777216"
    )
    assert flow == "B> FLOW nii=0 iw=400 noi=0 h=0 dc=0 cr=170"
    assert scene.publish() == [disposition(0, ACCEPTED)]
    assert scene.bodies("q1") == ["m0"]


@pytest.mark.rabbitmq("amqp_address_SUITE", "target_exchange", "target_exchange_routing_key_empty")
@pytest.mark.parametrize("target", ["/exchanges/direct", "/exchanges/direct/"])
def test_a_target_without_a_key_has_the_empty_one(scene: Scenario, target: str) -> None:
    scene.bind("direct", "q1", "")
    scene.sender(target)
    assert scene.publish() == [disposition(0, ACCEPTED)]
    assert scene.counts("q1") == [1]


@pytest.mark.rabbitmq("amqp_address_SUITE", "target_exchange_routing_key_with_slash")
@pytest.mark.parametrize(
    ("exchange", "key", "target"),
    [
        ("a/b", "c/d", "/exchanges/a%2Fb/c%2Fd"),
        ("Größe 🐇", "ключ #", "/exchanges/Gr%C3%B6%C3%9Fe%20%F0%9F%90%87/%D0%BA%D0%BB%D1%8E%D1%87%20%23"),
        ("100%", "?", "/exchanges/100%25/%3F"),
        ("plus+", "+", "/exchanges/plus+/+"),
    ],
)
def test_names_in_targets_are_percent_encoded(scene: Scenario, exchange: str, key: str, target: str) -> None:
    """Each segment is decoded by itself; a plus sign stays a plus sign."""
    scene.exchange(exchange)
    scene.bind(exchange, "q1", key)
    scene.sender(target)
    assert scene.publish() == [disposition(0, ACCEPTED)]
    assert scene.counts("q1") == [1]


@pytest.mark.rabbitmq(
    "amqp_address_SUITE", "source_bad_address", "source_bad_v2_address", "target_bad_address"
)
@pytest.mark.rabbitmq("amqp_address_SUITE", "target_bad_v2_address", differs="a bare name is a queue")
@pytest.mark.rabbitmq(
    "amqp_dotnet_SUITE", "attach_receiver_from_invalid_address", "attach_sender_to_invalid_address"
)
@pytest.mark.parametrize(
    "target",
    [
        "/exchanges",
        "/exchanges/",
        "/exchanges//k",
        "/exchanges/amq.default/q1",
        "/exchanges/direct/k/more",
        "/exchanges/%",
        "/exchanges/%zz/k",
        "/exchanges/direct/%ff",
        "/exchanges/direct/k?q=1",
        "/exchanges/direct/k#f",
        "/exchange/direct/k",
        "/topic/k",
        "/amq/queue/q1",
        "/",
    ],
)
def test_bad_targets_are_refused(scene: Scenario, target: str) -> None:
    """A refused attach has no target, then the detach says why; the session goes on."""
    attach, detach = scene.sender(target)
    assert attach == "B> ATTACH name=link-0 h=0 role=receiver target=null"
    assert detach.startswith(f'B> DETACH h=0 closed=true error={INVALID} "Attach refused: ')
    assert scene.sender("/exchanges/direct/k", 1)[0].endswith("max-message-size=16777216")


def test_an_exchange_is_no_source(scene: Scenario) -> None:
    _, detach = scene.receiver("/exchanges/direct/k")
    assert detach.startswith(
        f"B> DETACH h=9 closed=true error={INVALID} \"Attach refused: '/exchanges/direct/k'"
    )


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "attach_sender_to_missing_exchange")
@pytest.mark.rabbitmq("amqp_address_SUITE", "target_exchange_absent")
def test_a_missing_exchange_is_not_found(scene: Scenario) -> None:
    _, detach = scene.sender("/exchanges/gone/k")
    assert detach == detached(0, NOT_FOUND, "no exchange 'gone' in vhost '/'")


def test_an_internal_exchange_is_no_target(scene: Scenario) -> None:
    scene.exchange("inside", "fanout", internal=True)
    _, detach = scene.sender("/exchanges/inside")
    text = "forbidden to publish to internal exchange 'inside' in vhost '/'"
    assert detach == detached(0, UNAUTHORIZED, text)


def test_an_exchange_that_became_internal_is_no_target_any_more(scene: Scenario) -> None:
    """An exchange declared anew as internal gives the same error on an open link."""
    scene.sender("/exchanges/direct/k")
    delete_exchange(scene.world.catalog, scene.world.vhost, "direct")
    scene.exchange("direct", "fanout", internal=True)
    text = "forbidden to publish to internal exchange 'direct' in vhost '/'"
    assert scene.publish() == [detached(0, UNAUTHORIZED, text)]


# --- the anonymous terminus ----------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_address_SUITE",
    "target_per_message_exchange",
    "target_per_message_exchange_routing_key",
    "target_per_message_queue",
)
def test_each_message_may_go_elsewhere(scene: Scenario) -> None:
    """``to`` has the three forms that a target has."""
    scene.bind("direct", "q1", "k")
    scene.bind("fanout", "q2")
    scene.sender(None)
    for place in ("/exchanges/direct/k", "/exchanges/fanout", "/queues/q3", "/exchanges/fanout/any"):
        assert scene.publish(to=place)[-1].endswith("settled=true state=accepted")
    assert [scene.bodies(queue) for queue in ("q1", "q2", "q3")] == [["m0"], ["m1", "m3"], ["m2"]]


@pytest.mark.rabbitmq(
    "amqp_address_SUITE",
    "target_per_message_bad_to_address",
    "target_per_message_exchange_absent_unsettled",
    "target_per_message_unset_to_address",
)
@pytest.mark.parametrize(
    ("to", "condition", "text"),
    [
        (None, "amqp:precondition-failed", "anonymous terminus requires 'to' address to be set"),
        (
            "/exchanges/%zz",
            "amqp:precondition-failed",
            (
                "bad 'to' address string: address '/exchanges/%zz' has a bad percent sequence: write a "
                "literal '%' as %25"
            ),
        ),
        ("/exchanges/gone/k", NOT_FOUND, "no exchange 'gone' in vhost '/'"),
    ],
)
def test_a_message_that_names_no_place(scene: Scenario, to: str | None, condition: str, text: str) -> None:
    """An unsettled one is rejected and the link goes on; a settled one detaches the link."""
    scene.sender(None)
    assert scene.publish(content(to=to)) == [disposition(0, f'state=rejected({condition} "{text}")')]
    assert scene.publish(content(to="/queues/q1")) == [disposition(1, ACCEPTED)]
    assert scene.publish(content(to=to), settled="true") == [detached(0, condition, text)]


@pytest.mark.rabbitmq("amqp_address_SUITE", "target_per_message_exchange_absent_settled")
def test_the_detach_for_a_settled_message_names_it(scene: Scenario) -> None:
    scene.sender(None)
    client = scene.world.clients["C"]
    client.bodies = []
    scene.publish(content(to="/exchanges/gone"), settled="true", tag="0xabcd")
    detach: Any = decode_composite(client.bodies[-1])[0]
    assert detach.error.info == {"delivery-tag": b"\xab\xcd"}


@pytest.mark.rabbitmq("amqp_address_SUITE", "target_per_message_queue")
@pytest.mark.rabbitmq("amqp_client_SUITE", "publishing_to_non_existing_queue_should_settle_with_released")
def test_a_missing_queue_is_no_error(scene: Scenario) -> None:
    """The default exchange has no such binding, so the message is released, or dropped if settled."""
    scene.sender(None)
    assert scene.publish(content(to="/queues/gone")) == [disposition(0, RELEASED)]
    assert scene.publish(content(to="/queues/gone"), settled="true") == []
    assert scene.publish(content(to="/queues/q1")) == [disposition(2, ACCEPTED)]


def test_neighbours_stay_in_order_whatever_ways_they_take(scene: Scenario) -> None:
    """Messages of one link and one read reach a queue in order, even if an exchange examines each."""
    scene.bind("headers", "q1", arguments={"x-match": "all", "a": "b"})
    scene.bind("direct", "q1", "k")
    scene.sender(None, 1)
    # Transfers whose layout was seen before are handed on together.
    scene.publish(content("zero", to="/queues/q1"), 1)
    scene.publish(content("half", to="/queues/q1"), 1)
    payloads = [
        content("one", to="/queues/q1"),
        content("two", to="/exchanges/headers", application={"a": "b"}),
        content("three", to="/exchanges/direct/k"),
        content("four", to="/queues/q1", cc=["elsewhere"]),
        content("five", to="/queues/q1"),
    ]
    scene.do("C> " + " ; ".join(f"TRANSFER h=1 payload={payload.hex()}" for payload in payloads))
    assert scene.bodies("q1") == ["zero", "half", "one", "two", "three", "four", "five"]


# --- outcomes ------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "last_queue_confirms", "sender_settle_mode_unsettled_fanout")
def test_a_fan_out_is_accepted_once_when_all_have_confirmed(scene: Scenario) -> None:
    for queue in ("q1", "q2", "q3"):
        scene.bind("fanout", queue)
        scene.do(f"withhold {queue}")
    scene.sender("/exchanges/fanout")
    assert scene.do("C> TRANSFER h=0 did=0..2") == []
    assert scene.do("confirm q3 3", "confirm q1 2") == []
    assert scene.do("confirm q2 1") == [disposition(0, ACCEPTED)]
    assert scene.do("confirm q2 2", "confirm q1 1") == [disposition(1, ACCEPTED), disposition(2, ACCEPTED)]
    assert [scene.bodies(queue) for queue in ("q1", "q2", "q3")] == [["m0", "m1", "m2"]] * 3


def test_a_queue_that_does_not_confirm_holds_back_the_credit(scene: Scenario) -> None:
    """Settled or not, a delivery is finished when its last queue has it."""
    scene.bind("fanout", "q1")
    scene.bind("fanout", "q2")
    scene.do("withhold q2")
    scene.sender("/exchanges/fanout", snd_settle_mode="settled")
    (half,) = scene.do("C> TRANSFER h=0 did=0..169 settled=true")
    assert half.endswith("h=0 dc=85 cr=170"), "what was granted by then; the rest waits for the queue"
    (granted,) = scene.do("confirm q2 1")
    assert granted.endswith("h=0 dc=170 cr=170")


@pytest.mark.rabbitmq("amqp_client_SUITE", "target_queue_deleted", "target_queues_deleted_accepted")
def test_some_queues_of_a_fan_out_deleted_is_accepted(scene: Scenario) -> None:
    for queue in ("q1", "q2", "q3"):
        scene.bind("fanout", queue)
        scene.do(f"withhold {queue}")
    scene.sender("/exchanges/fanout")
    scene.publish()
    scene.do("delete q1", "delete q2")
    assert scene.do("confirm q1 1", "confirm q2 1") == []
    assert scene.do("confirm q3 1") == [disposition(0, ACCEPTED)]


def test_all_queues_of_a_fan_out_deleted_is_released(scene: Scenario) -> None:
    """No queue has it; the link goes on, because its target is the exchange."""
    for queue in ("q1", "q2"):
        scene.bind("fanout", queue)
        scene.do(f"withhold {queue}")
    scene.sender("/exchanges/fanout")
    scene.publish()
    scene.do("delete q1", "delete q2")
    assert scene.do("confirm q1 1") == []
    assert scene.do("confirm q2 1") == [disposition(0, RELEASED)]
    assert scene.publish() == [disposition(1, RELEASED)]


@pytest.mark.rabbitmq("amqp_dotnet_SUITE", "no_routes_is_released")
@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_unroutable_is_released(scene: Scenario, kind: str) -> None:
    scene.sender(f"/exchanges/{kind}/k")
    assert scene.publish() == [disposition(0, RELEASED)]
    assert scene.publish(settled="true") == []
    (flow,) = scene.do("C> FLOW h=0 dc=2 cr=168 echo=true")
    assert " dc=2 " in flow


def test_a_new_binding_is_followed_at_once(scene: Scenario) -> None:
    """The route cached for a key is dropped when the topology changes."""
    scene.sender("/exchanges/direct/k")
    assert scene.publish() == [disposition(0, RELEASED)]
    scene.bind("direct", "q1", "k")
    assert scene.publish() == [disposition(1, ACCEPTED)]
    scene.unbind("direct", "q1", "k")
    assert scene.publish() == [disposition(2, RELEASED)]
    scene.bind("direct", "q2", "k")
    scene.do("delete q2")
    assert scene.publish() == [disposition(3, RELEASED)]
    assert scene.bodies("q1") == ["m1"]


def test_the_alternate_exchange_takes_what_has_no_route(scene: Scenario) -> None:
    scene.exchange("first", arguments={"alternate-exchange": "second"})
    scene.exchange("second", "direct")
    scene.bind("first", "q1", "k")
    scene.bind("second", "q2", "other")
    for number, (key, state) in enumerate((("k", ACCEPTED), ("other", ACCEPTED), ("third", RELEASED))):
        scene.sender(f"/exchanges/first/{key}", number)
        assert scene.publish(handle=number) == [disposition(number, state)]
    assert scene.counts("q1", "q2") == [1, 1]


def test_exchanges_bound_to_exchanges(scene: Scenario) -> None:
    """This includes internal exchanges; a queue reached by several routes gets one copy."""
    scene.exchange("inside", "fanout", internal=True)
    scene.bind("topic", exchange="inside", key="a.#")
    scene.bind("inside", "q1")
    scene.bind("topic", "q1", "a.*")
    scene.bind("topic", "q2", "a.b")
    scene.sender("/exchanges/topic/a.b")
    assert scene.publish() == [disposition(0, ACCEPTED)]
    assert scene.counts("q1", "q2") == [1, 1]


GIVE_STRINGS = "; give a list of strings"


# --- headers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message", "routed"),
    [
        ({"a": "1"}, content(application={"a": "1"}), True),
        ({"a": "1"}, content(application={"a": "2"}), False),
        ({"a": 1}, content(application={"a": UInt(1)}), True),
        ({"a": 1}, content(application={"a": "1"}), False),
        ({"a": True}, content(application={"a": True}), True),
        ({"a": None}, content(application={"a": b"any"}), True),
        ({"a": "1", "b": "2"}, content(application={"a": "1"}), False),
        ({"x-match": "any", "a": "1", "b": "2"}, content(application={"a": "1"}), True),
        ({"x-match": "all-with-x", "x-a": "1"}, content(annotations={"x-a": "1"}), True),
        ({"x-match": "all-with-x", "x-a": "1"}, content(annotations={"x-a": Symbol("2")}), False),
        ({"x-match": "any-with-x", "x-a": "1", "b": "1"}, content(annotations={"x-a": "1"}), True),
        ({"x-match": "all", "x-a": "1"}, content(), True),
        ({"a": "1"}, content(), False),
    ],
)
def test_a_headers_exchange_compares(
    scene: Scenario, arguments: dict[str, object], message: bytes, routed: bool
) -> None:
    """It compares application-properties, and x- annotations where the binding names them."""
    scene.bind("headers", "q1", arguments=arguments)
    scene.sender("/exchanges/headers")
    assert scene.publish(message) == [disposition(0, ACCEPTED if routed else RELEASED)]


def test_each_message_of_a_batch_is_compared(scene: Scenario) -> None:
    """A match of one message is not reused for the next."""
    scene.bind("headers", "q1", arguments={"a": "1"})
    scene.bind("headers", "q2", arguments={"a": "2"})
    scene.sender("/exchanges/headers")
    payloads = [content(f"m{number}", application={"a": str(number % 3)}) for number in range(6)]
    scene.do("C> " + " ; ".join(f"TRANSFER h=0 payload={payload.hex()}" for payload in payloads))
    assert [scene.bodies("q1"), scene.bodies("q2")] == [["m1", "m4"], ["m2", "m5"]]


# --- x-cc ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "x_cc_annotation_exchange")
def test_x_cc_adds_routing_keys(scene: Scenario) -> None:
    """x-cc is a list or an array of strings (amqp_client_SUITE x_cc_annotation_exchange)."""
    scene.bind("direct", "q1", "k1")
    scene.bind("direct", "q2", "k2")
    scene.bind("direct", "q3", "k3")
    scene.sender("/exchanges/direct/k1")
    assert scene.publish(content("a", cc=["k2", "k2", "nobody's"])) == [disposition(0, ACCEPTED)]
    assert scene.publish(content("b", cc=Array(0xA1, ["k3"]))) == [disposition(1, ACCEPTED)]
    assert scene.publish(content("c", cc=[])) == [disposition(2, ACCEPTED)]
    assert scene.publish(content("d")) == [disposition(3, ACCEPTED)]
    assert scene.bodies("q1") == ["a", "b", "c", "d"]
    assert scene.bodies("q2") == ["a"]
    assert scene.bodies("q3") == ["b"]


@pytest.mark.rabbitmq("amqp_client_SUITE", "x_cc_annotation_exchange_routing_key_empty")
def test_x_cc_routes_where_the_first_key_does_not(scene: Scenario) -> None:
    """The target has no key at all."""
    scene.bind("direct", "q1", "k1")
    scene.sender("/exchanges/direct")
    assert scene.publish(content(cc=["k1"])) == [disposition(0, ACCEPTED)]
    assert scene.counts("q1") == [1]


@pytest.mark.rabbitmq("amqp_client_SUITE", "x_cc_annotation_queue")
def test_x_cc_with_a_queue_as_target(scene: Scenario) -> None:
    """The default exchange takes the keys as names of queues."""
    scene.sender("/queues/q1")
    assert scene.publish(content("a", cc=["q2", "gone", "q1"])) == [disposition(0, ACCEPTED)]
    assert scene.publish(content("b")) == [disposition(1, ACCEPTED)]
    assert scene.counts("q1", "q2", "q3") == [2, 1, 0]


@pytest.mark.rabbitmq("amqp_client_SUITE", "x_cc_annotation_null")
def test_x_cc_with_the_anonymous_terminus(scene: Scenario) -> None:
    """Each message's x-cc applies to its own exchange."""
    scene.bind("direct", "q3", "k3")
    scene.sender(None)
    assert scene.publish(content(to="/queues/q1", cc=["q2"])) == [disposition(0, ACCEPTED)]
    assert scene.publish(content(to="/exchanges/direct/gone", cc=["k3"])) == [disposition(1, ACCEPTED)]
    assert scene.publish(content(to="/exchanges/direct/gone", cc=["gone"])) == [disposition(2, RELEASED)]
    assert scene.counts("q1", "q2", "q3") == [1, 1, 1]


def test_x_cc_counts_as_a_fan_out(scene: Scenario) -> None:
    scene.do("withhold q2")
    scene.sender("/queues/q1")
    assert scene.publish(content(cc=["q2"])) == []
    assert scene.do("confirm q2 1") == [disposition(0, ACCEPTED)]


@pytest.mark.rabbitmq("amqp_client_SUITE", "bad_x_cc_annotation_exchange")
@pytest.mark.parametrize(
    ("cc", "shown"),
    [
        ("k", "'k'"),
        (UInt(1), "UInt(1)"),
        (True, "True"),
        ([UInt(1)], "[UInt(1)]"),
        (["k", b"k"], "['k', b'k']"),
        ({"k": "k"}, "{'k': 'k'}"),
        ([Symbol("k")], "[Symbol('k')]"),
        ([None], "[None]"),
    ],
)
@pytest.mark.parametrize("target", ["/exchanges/direct/k", "/queues/q1", None])
def test_a_bad_x_cc_ends_the_link(scene: Scenario, target: str | None, cc: object, shown: str) -> None:
    """An unsettled message is released before the detach."""
    text = f"bad value for 'x-cc' message-annotation: {shown}{GIVE_STRINGS}"
    message = content(cc=cc, to=None if target else "/queues/q1")
    scene.sender(target)
    assert scene.publish(message) == [disposition(0, RELEASED), detached(0, INVALID, text)]
    scene.sender(target, 1)
    assert scene.publish(message, 1, settled="true") == [detached(1, INVALID, text)]
    assert scene.counts("q1") == [0]


def test_what_came_before_a_bad_x_cc_is_published(scene: Scenario) -> None:
    scene.sender("/queues/q1")
    good, bad = content("good").hex(), content("bad", cc="k").hex()
    lines = scene.do(
        f"C> TRANSFER h=0 payload={good} ; TRANSFER h=0 payload={bad} ; TRANSFER h=0 payload={good}"
    )
    assert disposition(1, RELEASED) in lines
    assert lines[-1].startswith("B> DETACH h=0 ") or lines[-2].startswith("B> DETACH h=0 ")
    assert scene.bodies("q1") == ["good"]


# --- the exchange goes ---------------------------------------------------------------------------


@pytest.mark.rabbitmq(
    "amqp_client_SUITE", "server_closes_link_exchange_settled", "server_closes_link_exchange_unsettled"
)
def test_an_exchange_deleted_after_attach(scene: Scenario) -> None:
    text = "no exchange 'direct' in vhost '/'"
    scene.bind("direct", "q1", "k")
    scene.sender("/exchanges/direct/k")
    scene.sender("/exchanges/direct/k", 1)
    assert scene.publish() == [disposition(0, ACCEPTED)]
    delete_exchange(scene.world.catalog, scene.world.vhost, "direct")
    assert scene.do() == []
    assert scene.publish() == [disposition(1, RELEASED), detached(0, NOT_FOUND, text)]
    assert scene.publish(handle=1, settled="true") == [detached(1, NOT_FOUND, text)]


def test_a_batch_to_a_deleted_exchange_is_released_as_a_whole(scene: Scenario) -> None:
    scene.sender("/exchanges/direct/k", 1)
    scene.do("C> TRANSFER h=1 did=0..1")
    delete_exchange(scene.world.catalog, scene.world.vhost, "direct")
    lines = scene.do("C> TRANSFER h=1 did=2..5")
    assert lines == [
        "B> DISPOSITION role=receiver first=2 last=5 settled=true state=released",
        detached(1, NOT_FOUND, "no exchange 'direct' in vhost '/'"),
    ]


def test_an_exchange_declared_anew_is_the_target_again(scene: Scenario) -> None:
    """The link refers to it by name, and no message was published in between."""
    scene.sender("/exchanges/direct/k")
    delete_exchange(scene.world.catalog, scene.world.vhost, "direct")
    scene.exchange("direct", "fanout")
    scene.bind("direct", "q1")
    assert scene.publish() == [disposition(0, ACCEPTED)]


# --- user-id -------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "user_id")
@pytest.mark.parametrize("target", ["/exchanges/fanout", "/queues/q1", None])
def test_the_user_id_is_the_users(scene: Scenario, target: str | None) -> None:
    scene.bind("fanout", "q1")
    to = None if target else "/queues/q1"
    scene.sender(target)
    assert scene.publish(content(to=to, user=b"guest")) == [disposition(0, ACCEPTED)]
    text = "user_id property set to 'somebody' but authenticated user was 'guest'"
    assert scene.publish(content(to=to, user=b"somebody")) == [detached(0, UNAUTHORIZED, text)]
    assert scene.counts("q1") == [1]


def test_an_impersonator_may_use_any_user_id(scene: Scenario) -> None:
    set_tags(scene.world.catalog, "guest", {"impersonator"})
    scene.sender("/queues/q1")
    assert scene.publish(content(user=b"somebody")) == [disposition(0, ACCEPTED)]
