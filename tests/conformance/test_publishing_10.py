"""Exchanges that look at the message, x-cc, exchanges that go, and user-id, for publishers of AMQP 1.0."""

from __future__ import annotations

import pytest

from amqp10broker.protocols.amqp10.types import Array, Symbol, UInt
from tests.support.declaring import delete_exchange, set_tags
from tests.support.scene import ACCEPTED, RELEASED, Scene, content, detached, disposition

NOT_FOUND = "amqp:not-found"
INVALID = "amqp:invalid-field"
UNAUTHORIZED = "amqp:unauthorized-access"
GIVE_STRINGS = "; give a list of strings"


@pytest.fixture
def scene() -> Scene:
    """Three queues, and an exchange of each kind that nothing is bound to."""
    scene = Scene("q1", "q2", "q3")
    for kind in ("direct", "fanout", "topic", "headers"):
        scene.exchange(kind, kind)
    return scene


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
    scene: Scene, arguments: dict[str, object], message: bytes, routed: bool
) -> None:
    """Application-properties, and annotations with x- where the binding asks for those."""
    scene.bind("headers", "q1", arguments=arguments)
    scene.sender("/exchanges/headers")
    assert scene.publish(message) == [disposition(0, ACCEPTED if routed else RELEASED)]


def test_each_message_of_a_batch_is_compared(scene: Scene) -> None:
    """What was found for one message says nothing of the next."""
    scene.bind("headers", "q1", arguments={"a": "1"})
    scene.bind("headers", "q2", arguments={"a": "2"})
    scene.sender("/exchanges/headers")
    payloads = [content(f"m{number}", application={"a": str(number % 3)}) for number in range(6)]
    scene.do("C> " + " ; ".join(f"TRANSFER h=0 payload={payload.hex()}" for payload in payloads))
    assert [scene.bodies("q1"), scene.bodies("q2")] == [["m1", "m4"], ["m2", "m5"]]


# --- x-cc ----------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "x_cc_annotation_exchange")
def test_x_cc_adds_routing_keys(scene: Scene) -> None:
    """amqp_client_SUITE x_cc_annotation_exchange; a list or an array of strings."""
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
def test_x_cc_routes_where_the_first_key_does_not(scene: Scene) -> None:
    """The target has no key at all."""
    scene.bind("direct", "q1", "k1")
    scene.sender("/exchanges/direct")
    assert scene.publish(content(cc=["k1"])) == [disposition(0, ACCEPTED)]
    assert scene.counts("q1") == [1]


@pytest.mark.rabbitmq("amqp_client_SUITE", "x_cc_annotation_queue")
def test_x_cc_with_a_queue_as_target(scene: Scene) -> None:
    """The default exchange takes the keys as names of queues."""
    scene.sender("/queues/q1")
    assert scene.publish(content("a", cc=["q2", "gone", "q1"])) == [disposition(0, ACCEPTED)]
    assert scene.publish(content("b")) == [disposition(1, ACCEPTED)]
    assert scene.counts("q1", "q2", "q3") == [2, 1, 0]


@pytest.mark.rabbitmq("amqp_client_SUITE", "x_cc_annotation_null")
def test_x_cc_with_the_anonymous_terminus(scene: Scene) -> None:
    """For each message by its own exchange."""
    scene.bind("direct", "q3", "k3")
    scene.sender(None)
    assert scene.publish(content(to="/queues/q1", cc=["q2"])) == [disposition(0, ACCEPTED)]
    assert scene.publish(content(to="/exchanges/direct/gone", cc=["k3"])) == [disposition(1, ACCEPTED)]
    assert scene.publish(content(to="/exchanges/direct/gone", cc=["gone"])) == [disposition(2, RELEASED)]
    assert scene.counts("q1", "q2", "q3") == [1, 1, 1]


def test_x_cc_counts_as_a_fan_out(scene: Scene) -> None:
    """Accepted when all the queues have it."""
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
def test_a_bad_x_cc_ends_the_link(scene: Scene, target: str | None, cc: object, shown: str) -> None:
    """Released if it was unsettled, then the detach."""
    text = f"bad value for 'x-cc' message-annotation: {shown}{GIVE_STRINGS}"
    message = content(cc=cc, to=None if target else "/queues/q1")
    scene.sender(target)
    assert scene.publish(message) == [disposition(0, RELEASED), detached(0, INVALID, text)]
    scene.sender(target, 1)
    assert scene.publish(message, 1, settled="true") == [detached(1, INVALID, text)]
    assert scene.counts("q1") == [0]


def test_what_came_before_a_bad_x_cc_is_published(scene: Scene) -> None:
    """In one read with it, and unharmed."""
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
def test_an_exchange_deleted_after_attach(scene: Scene) -> None:
    text = "no exchange 'direct' in vhost '/'"
    scene.bind("direct", "q1", "k")
    scene.sender("/exchanges/direct/k")
    scene.sender("/exchanges/direct/k", 1)
    assert scene.publish() == [disposition(0, ACCEPTED)]
    delete_exchange(scene.world.catalog, scene.world.vhost, "direct")
    assert scene.do() == []
    assert scene.publish() == [disposition(1, RELEASED), detached(0, NOT_FOUND, text)]
    assert scene.publish(handle=1, settled="true") == [detached(1, NOT_FOUND, text)]


def test_a_batch_to_a_deleted_exchange_is_released_as_a_whole(scene: Scene) -> None:
    """None of those that were handed on together is left without an answer."""
    scene.sender("/exchanges/direct/k", 1)
    scene.do("C> TRANSFER h=1 did=0..1")
    delete_exchange(scene.world.catalog, scene.world.vhost, "direct")
    lines = scene.do("C> TRANSFER h=1 did=2..5")
    assert lines == [
        "B> DISPOSITION role=receiver first=2 last=5 settled=true state=released",
        detached(1, NOT_FOUND, "no exchange 'direct' in vhost '/'"),
    ]


def test_an_exchange_declared_anew_is_the_target_again(scene: Scene) -> None:
    """The link knows it by name; nobody published while it was gone."""
    scene.sender("/exchanges/direct/k")
    delete_exchange(scene.world.catalog, scene.world.vhost, "direct")
    scene.exchange("direct", "fanout")
    scene.bind("direct", "q1")
    assert scene.publish() == [disposition(0, ACCEPTED)]


# --- user-id -------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("amqp_client_SUITE", "user_id")
@pytest.mark.parametrize("target", ["/exchanges/fanout", "/queues/q1", None])
def test_the_user_id_is_the_users(scene: Scene, target: str | None) -> None:
    """One's own name, or the link ends."""
    scene.bind("fanout", "q1")
    to = None if target else "/queues/q1"
    scene.sender(target)
    assert scene.publish(content(to=to, user=b"guest")) == [disposition(0, ACCEPTED)]
    text = "user_id property set to 'somebody' but authenticated user was 'guest'"
    assert scene.publish(content(to=to, user=b"somebody")) == [detached(0, UNAUTHORIZED, text)]
    assert scene.counts("q1") == [1]


def test_an_impersonator_may_use_any_user_id(scene: Scene) -> None:
    set_tags(scene.world.catalog, "guest", {"impersonator"})
    scene.sender("/queues/q1")
    assert scene.publish(content(user=b"somebody")) == [disposition(0, ACCEPTED)]
