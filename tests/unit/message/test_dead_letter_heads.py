"""What the broker writes into messages: deaths, counts of deliveries, delays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amqp10broker.message import amqp091
from amqp10broker.message.amqp10 import MessageReader, decode_head, encode_head, header_of, make_head
from amqp10broker.message.convert import routing_headers, to_amqp091, to_amqp10
from amqp10broker.message.dead_letter_heads import Cause, DeadLetterHeads, delivery_time_ms, redelivered
from amqp10broker.message.death_history import Death, is_cycle, recorded, times_of, with_times
from amqp10broker.message.message import Message
from amqp10broker.message.traits import TIME_MAX_MS, Delay, Traits, acquired, traits_of
from amqp10broker.protocols.amqp091 import codec as t091
from amqp10broker.protocols.amqp091.codec import Int64
from amqp10broker.protocols.amqp091.codec import Timestamp as Timestamp091
from amqp10broker.protocols.amqp091.content import split
from amqp10broker.protocols.amqp091.properties import BasicProperties, decode_properties, encode_properties
from amqp10broker.protocols.amqp10 import types as t10
from amqp10broker.protocols.amqp10.codec import array_of, encode
from amqp10broker.protocols.amqp10.performatives import Header
from amqp10broker.protocols.amqp10.types import Array, Described, Long, Symbol, Timestamp, UInt, ULong
from tests.support.dead_letters import dead_lettered, deaths_of

BODY = b"\x00\x53\x75\xa0\x01a"
"""Of AMQP 1.0; of AMQP 0-9-1 any bytes are a body."""
NOW = 1_700_000_000_123
LATER = NOW + 5_000
EXPIRED = Cause("q", "expired", NOW, "dlx", None)
REJECTED = Cause("q2", "rejected", LATER, "dlx2", None)
WITH_KEY = Cause("q", "maxlen", NOW, "dlx", "key")


def head091(exchange: str = "ex", key: str = "k", **properties: Any) -> bytes:
    return amqp091.make_head(exchange, key, encode_properties(BasicProperties(**properties)))


def head10(
    annotations: dict[str, Any] | None = None, *, exchange: str = "ex", key: str = "k", **header: Any
) -> bytes:
    payload = Header(**header).encode() if header else b""
    if annotations:
        payload += encode(Described(ULong(0x72), {Symbol(name): annotations[name] for name in annotations}))
    payload += BODY
    return MessageReader(exchange, key, "guest").read(payload)[0]


def headers_of(head: bytes) -> dict[str, Any]:
    return decode_properties(amqp091.split_head(head)[1]).headers or {}


def annotations_of(head: bytes) -> dict[Any, Any]:
    return decode_head(head)[1]


def names_of(head: bytes) -> tuple[str, str]:
    annotations = annotations_of(to_amqp10((head, BODY))[0])
    return annotations["x-exchange"], annotations["x-routing-key"]


BOTH = pytest.mark.parametrize("head", [head091(), head10()], ids=["0-9-1", "1.0"])


# --- both protocols ---------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(("cause", "key"), [(WITH_KEY, "key"), (EXPIRED, "k")], ids=["with a key", "without"])
def test_a_dead_letter_has_the_exchange_and_the_key_that_its_queue_gives_it(
    head: bytes, cause: Cause, key: str
) -> None:
    """It is routed by that key; without a dead-letter routing key it keeps its own."""
    dead = dead_lettered(head, cause)
    assert names_of(dead.head) == ("dlx", key)
    assert dead.routing_keys == (key,)


TIMED = pytest.mark.parametrize(
    "head",
    [
        head091(expiration="60", priority=7, delivery_mode=2),
        head10(ttl=60, priority=7, durable=True),
    ],
    ids=["0-9-1", "1.0"],
)


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_headers_reason_expired_per_message")
@TIMED
@pytest.mark.parametrize("reason", ["expired", "rejected", "maxlen", "delivery_limit"])
def test_the_time_to_live_goes_into_the_record(head: bytes, reason: str) -> None:
    """Otherwise the message would expire again in the next queue; priority and durability stay."""
    dead = dead_lettered(head, replace(EXPIRED, reason=reason))
    assert dead.deaths[0].ttl_ms == 60
    assert deaths_of(dead.head)[0].ttl_ms == 60
    assert traits_of(head) == Traits(True, 7, 60)
    assert traits_of(dead.head) == Traits(True, 7, None)


COPIED = pytest.mark.parametrize(
    "head", [head091(headers={"CC": ["c1", "c2"]}), head10({"x-cc": ["c1", "c2"]})], ids=["0-9-1", "1.0"]
)


@pytest.mark.rabbitmq(
    "dead_lettering_SUITE",
    "dead_letter_headers_CC",
    "dead_letter_routing_key_header_CC",
    "dead_letter_headers_CC_with_routing_key",
)
@COPIED
@pytest.mark.parametrize(("cause", "keys"), [(EXPIRED, ("k", "c1", "c2")), (WITH_KEY, ("key",))])
def test_further_routing_keys_count_without_a_dead_letter_routing_key(
    head: bytes, cause: Cause, keys: tuple[str, ...]
) -> None:
    """They are recorded. A message that keeps its own key is routed by all of them, and keeps them."""
    dead = dead_lettered(head, cause)
    assert dead.deaths[0].routing_keys == ("k", "c1", "c2")
    assert dead.routing_keys == dead_lettered(dead.head, REJECTED).routing_keys == keys
    assert ("CC" in headers_of(to_amqp091((dead.head, BODY))[0])) is (cause is EXPIRED)


@BOTH
def test_the_message_is_fresh_in_its_new_queue(head: bytes) -> None:
    """In AMQP 0-9-1 it is not redelivered; in AMQP 1.0 it has no acquirer. The failure count is kept."""
    failed = acquired((head, BODY), failed=True)[0]
    dead = (dead_lettered(failed, EXPIRED).head, BODY)
    in_091, in_10 = to_amqp091(dead)[0], header_of(to_amqp10(dead)[0])
    assert not amqp091.split_head(in_091)[2]
    assert amqp091.delivery_count(in_091) == 1
    assert (bool(in_10.first_acquirer), in_10.delivery_count) == (False, 1)


@BOTH
@pytest.mark.parametrize("failed", [False, True])
def test_what_was_acquired_after_dead_lettering_is_redelivered(head: bytes, failed: bool) -> None:
    dead = dead_lettered(head, EXPIRED)
    again = acquired((dead.head, BODY), failed=failed)
    assert amqp091.split_head(to_amqp091(again)[0])[2]
    assert header_of(to_amqp10(again)[0]).first_acquirer is False
    assert deaths_of(again[0]) == dead.deaths


@BOTH
def test_records_survive_a_change_of_protocol(head: bytes) -> None:
    """Times are kept to the millisecond: a stream keeps messages in the encoding of AMQP 1.0."""
    dead = dead_lettered(dead_lettered(head, EXPIRED).head, REJECTED)
    there = to_amqp091(to_amqp10((dead.head, BODY)))[0]
    back = to_amqp10(to_amqp091((dead.head, BODY)))[0]
    assert deaths_of(there) == deaths_of(back) == dead.deaths


@BOTH
def test_a_headers_exchange_sees_the_summary(head: bytes) -> None:
    """RabbitMQ's documentation routes dead letters by it."""
    found = routing_headers((dead_lettered(head, EXPIRED).head, BODY))
    assert found["x-first-death-reason"] == "expired"
    assert found["x-last-death-queue"] == "q"


# --- AMQP 0-9-1 -------------------------------------------------------------------------------------


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_headers")
@pytest.mark.rabbitmq(
    "dead_lettering_SUITE", "dead_letter_headers_reason_maxlen", "dead_letter_headers_reason_expired"
)
@pytest.mark.parametrize("reason", ["expired", "maxlen"])
def test_x_death_of_amqp091(reason: str) -> None:
    death = replace(EXPIRED, reason=reason)
    headers = headers_of(dead_lettered(head091(headers={"mine": 1}, expiration="60"), death).head)
    (table,) = headers["x-death"]
    assert table == {
        "count": 1,
        "reason": reason,
        "queue": "q",
        "time": 1_700_000_000,
        "exchange": "ex",
        "routing-keys": ["k"],
        "original-expiration": "60",
    }
    assert (type(table["count"]), type(table["time"])) == (t091.Int64, t091.Timestamp)
    assert headers["mine"] == 1


@pytest.mark.rabbitmq(
    "dead_lettering_SUITE", "dead_letter_headers_first_death_route", "dead_letter_headers_first_death"
)
def test_summary_of_amqp091() -> None:
    """The first event is written once, the last one each time."""
    headers = headers_of(dead_lettered(dead_lettered(head091(), EXPIRED).head, REJECTED).head)
    del headers["x-death"]
    assert headers == {
        "x-first-death-reason": "expired",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "ex",
        "x-last-death-reason": "rejected",
        "x-last-death-queue": "q2",
        "x-last-death-exchange": "dlx",
    }


EVERY_PROPERTY: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "headers": {"mine": 1},
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60",
    "message_id": "m",
    "timestamp": 5,
    "type": "y",
    "user_id": "u",
    "app_id": "a",
    "cluster_id": "x",
}


@pytest.mark.parametrize("left_out", [None, *EVERY_PROPERTY])
def test_properties_of_amqp091_stay(left_out: str | None) -> None:
    all_but_one = {name: value for name, value in EVERY_PROPERTY.items() if name != left_out}
    alone = {left_out: EVERY_PROPERTY[left_out]} if left_out is not None else {}
    for given in (all_but_one, alone):
        dead = dead_lettered(head091(**given), EXPIRED).head
        kept = decode_properties(amqp091.split_head(dead)[1])
        assert ("mine" in kept.headers) == ("headers" in given)
        kept.headers = None
        expected = {name: value for name, value in given.items() if name not in ("headers", "expiration")}
        assert kept == BasicProperties(**expected)


def test_messages_that_die_together_have_histories_of_their_own() -> None:
    """A result for one of them is reused only for messages with the same history."""
    dying = DeadLetterHeads(EXPIRED)
    heads = [
        head091(message_id="1"),
        head091(message_id="2"),
        head091(key="other", message_id="3"),
        head091(expiration="60"),
        head091(headers={"CC": ["cc"]}),
        acquired((head091(message_id="4"), BODY), failed=True)[0],
        dead_lettered(head091(), REJECTED).head,
        head10(),
    ]
    for head in heads:
        assert dying.of(head) == dead_lettered(head, EXPIRED)


def published(**properties: Any) -> bytes:
    given = encode_properties(BasicProperties(**properties))
    return amqp091.read_content("ex", "k", given, user="guest", impersonator=False)[0]


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_routing_key_header_BCC", "dead_letter_headers_BCC")
def test_bcc_is_routed_by_and_shown_to_nobody() -> None:
    """This needs no dead-letter routing key, and holds at the first death and at later ones."""
    head = published(headers={"CC": ["cc"], "BCC": ["b1", "b2"]}, priority=3)
    assert decode_properties(split(head)[2]) == BasicProperties(headers={"CC": ["cc"]}, priority=3)
    for cause in (EXPIRED, REJECTED):
        dead = dead_lettered(acquired((head, BODY), failed=True)[0], cause)
        assert dead.routing_keys == ("k", "cc", "b1", "b2")
        assert dead.deaths[0].routing_keys == ("k", "cc")
        assert deaths_of(dead.head) == dead.deaths
        assert b"b1" not in split(dead.head)[2]
        head = dead.head
    assert len(dead.deaths) == 2


@pytest.mark.rabbitmq("dead_lettering_SUITE", "dead_letter_headers_should_not_be_appended_for_republish")
def test_a_clients_x_death_is_not_interpreted() -> None:
    """It neither counts nor makes a cycle, and the broker's own replaces it."""
    republished = headers_of(dead_lettered(head091(), EXPIRED).head)
    head = head091(headers=republished)
    assert deaths_of(head) == ()
    dead = dead_lettered(head, replace(EXPIRED, now_ms=LATER))
    assert dead.deaths == (Death("q", "expired", 1, LATER, LATER, "ex", ("k",)),)
    (table,) = headers_of(dead.head)["x-death"]
    assert table["count"] == 1


def test_the_times_of_records_never_reach_a_client_of_amqp091() -> None:
    """They follow the properties in the head, and a delivery leaves them out."""
    head = dead_lettered(head091(priority=3), EXPIRED).head
    bit, names, properties = split(head)
    assert (bit, names) == (b"\x00", b"\x03dlx\x01k")
    assert decode_properties(properties).priority == 3
    assert properties == amqp091.split_head(head)[1]


def test_a_long_dead_letter_routing_key_is_cut_in_the_head_only() -> None:
    """basic.deliver allows 255 bytes; the message is routed by the whole key."""
    key = "é" * 200
    dead = dead_lettered(head091(), replace(WITH_KEY, routing_key=key))
    assert dead.routing_keys == (key,)
    assert names_of(dead.head) == ("dlx", "é" * 127)


def test_a_name_that_utf8_cannot_encode_is_recorded_with_replacements() -> None:
    """A definitions file can contain half of a surrogate pair."""
    dead = dead_lettered(head091(), replace(WITH_KEY, queue="q\ud800", routing_key="k\ud800"))
    assert deaths_of(dead.head)[0].queue == "q?"
    assert names_of(dead.head) == ("dlx", "k?")


# --- AMQP 1.0 ---------------------------------------------------------------------------------------


def test_x_opt_deaths_of_amqp10() -> None:
    deaths = annotations_of(dead_lettered(head10(ttl=60), EXPIRED).head)["x-opt-deaths"]
    assert type(deaths) is Array
    (fields,) = deaths.items
    assert {key: (type(value), value) for key, value in fields.items() if key != "routing-keys"} == {
        "ttl": (t10.UInt, 60),
        "queue": (str, "q"),
        "reason": (Symbol, "expired"),
        "count": (ULong, 1),
        "first-time": (t10.Timestamp, NOW),
        "last-time": (t10.Timestamp, NOW),
        "exchange": (str, "ex"),
    }
    assert list(fields["routing-keys"]) == ["k"]


def test_summary_of_amqp10() -> None:
    dead = dead_lettered(dead_lettered(head10({"x-mine": 1}), EXPIRED).head, REJECTED)
    annotations = annotations_of(dead.head)
    del annotations["x-opt-deaths"]
    assert annotations == {
        "x-mine": 1,
        "x-exchange": "dlx2",
        "x-routing-key": "k",
        "x-first-death-reason": "expired",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "ex",
        "x-last-death-reason": "rejected",
        "x-last-death-queue": "q2",
        "x-last-death-exchange": "dlx",
    }


def test_a_clients_x_opt_deaths_is_not_interpreted() -> None:
    """This holds even if it is first among the annotations, the place of the broker's own."""
    forged = annotations_of(dead_lettered(head10(), EXPIRED).head)
    assert next(iter(forged)) == "x-opt-deaths"
    head = head10(forged)
    assert annotations_of(head)["x-opt-deaths"] == forged["x-opt-deaths"]
    assert deaths_of(head) == ()
    dead = dead_lettered(head, replace(EXPIRED, now_ms=LATER))
    assert dead.deaths == (Death("q", "expired", 1, LATER, LATER, "ex", ("k",)),)
    assert deaths_of(dead.head) == dead.deaths


@pytest.mark.parametrize(
    "head",
    [
        head091(headers=headers_of(dead_lettered(head091(), EXPIRED).head)),
        head091(headers={"x-opt-deaths": headers_of(dead_lettered(head091(), EXPIRED).head)["x-death"]}),
        head10({"x-opt-deaths": annotations_of(dead_lettered(head10(), EXPIRED).head)["x-opt-deaths"]}),
        head10({"x-opt-deaths": array_of(["nonsense"])}),
    ],
    ids=["x-death", "x-opt-deaths in 0-9-1", "x-opt-deaths", "another shape"],
)
def test_conversion_does_not_make_a_clients_records_the_brokers(head: bytes) -> None:
    message = (head, BODY)
    for other in (to_amqp10(message), to_amqp091(message)):
        assert deaths_of(other[0]) == ()
        assert deaths_of(to_amqp10(other)[0]) == deaths_of(to_amqp091(other)[0]) == ()
    assert header_of(to_amqp10(message)[0]).first_acquirer is True


@pytest.mark.parametrize(
    "written",
    [{"x-cc": 5}, {"x-cc": ["k", 5]}, {"x-exchange": 5, "x-routing-key": [1]}, {"x-opt-deaths": "d"}],
)
def test_annotations_that_a_consumer_wrote_do_no_harm(written: dict[str, Any]) -> None:
    """The outcome modified may set any name that begins with x-."""
    for head in (head10(), dead_lettered(head10(), EXPIRED).head):
        header, annotations = decode_head(head)
        changed = encode_head(header, {**annotations, **{Symbol(key): written[key] for key in written}})
        dead = dead_lettered(changed, replace(REJECTED, routing_key="dead"))
        assert dead.deaths[0].queue == "q2"
        assert deaths_of(dead.head) == dead.deaths
        assert deaths_of(to_amqp091((dead.head, BODY))[0]) == dead.deaths


@pytest.mark.rabbitmq("amqp_client_SUITE", "modified_dead_letter_history")
@BOTH
def test_a_redelivery_by_a_quorum_queue_keeps_the_history(head: bytes) -> None:
    """Counts and a consumer's annotations are added to the head; records, times and keys of BCC stay."""
    forged = [{"queue": "forged"}]
    written = {Symbol(name): forged for name in ("x-opt-deaths", "x-death", "x-exchange", "x-new")}
    head = published(headers={"BCC": ["bcc"]}) if head[0] == amqp091.MARK else head
    dead = dead_lettered(dead_lettered(head, EXPIRED).head, REJECTED)
    again = redelivered((dead.head, BODY), 2, 1, encode(written))
    assert deaths_of(again[0]) == dead.deaths
    assert names_of(again[0])[0] == "dlx2"
    last = dead_lettered(again[0], EXPIRED)
    assert [death.count for death in last.deaths] == [2, 1]
    assert last.routing_keys == dead.routing_keys
    properties = decode_properties(split(to_amqp091((again[0], BODY))[0])[2])
    assert properties.headers["x-delivery-count"] == 1
    assert properties.headers["x-new"] == forged


FIRST = Death("q", "expired", 1, 1_000, 1_000, "ex", ("k", "cc"), 50)


def event(deaths: tuple[Death, ...], queue: str, reason: str, now_ms: int) -> tuple[Death, ...]:
    return recorded(deaths, queue, reason, now_ms, "other", ("other",), None)


def history(*events: tuple[str, str]) -> tuple[Death, ...]:
    deaths: tuple[Death, ...] = ()
    for time, (queue, reason) in enumerate(events):
        deaths = event(deaths, queue, reason, time)
    return deaths


@pytest.mark.rabbitmq(
    "dead_lettering_SUITE", "dead_letter_routing_key_cycle_with_reject", "dead_letter_reject_expire_expire"
)
@pytest.mark.rabbitmq("mc_unit_SUITE", "is_death_cycle")
@pytest.mark.parametrize(
    ("events", "cycle"),
    [
        ((), False),
        ((("other", "expired"),), False),
        ((("q", "expired"),), True),
        ((("q", "maxlen"),), True),
        ((("q", "delivery_limit"),), True),
        ((("q", "rejected"),), False),
        ((("q", "expired"), ("other", "maxlen")), True),
        ((("q", "expired"), ("other", "rejected")), False),
        ((("other", "rejected"), ("q", "expired")), True),
        ((("q", "rejected"), ("other", "expired")), False),
    ],
)
def test_a_cycle_is_a_return_to_a_queue_with_no_rejection_since(
    events: tuple[tuple[str, str], ...], cycle: bool
) -> None:
    """Of the events since the message died in that queue, and of that one, none is a client's doing."""
    assert is_cycle(history(*events), "q") is cycle


def test_times_come_back_to_the_millisecond() -> None:
    """x-death has the first time in seconds; both full times are stored beside it."""
    deaths = (replace(FIRST, first_time_ms=1_234, last_time_ms=5_678), replace(FIRST, queue="b"))
    rounded = tuple(replace(death, first_time_ms=1_000, last_time_ms=1_000) for death in deaths)
    assert with_times(rounded, times_of(deaths)) == deaths
    assert with_times(rounded, b"") == rounded


def test_counts_are_annotations_of_amqp_10() -> None:
    given = make_head(Header(durable=True, ttl=UInt(9)), {Symbol("x-mine"): "y"}, "e", "k")
    head, content = redelivered((given, b"body"), 3, 2)
    header, annotations = decode_head(head)
    assert (header.durable, header.ttl, header.first_acquirer, header.delivery_count) == (True, 9, False, 2)
    assert annotations["x-acquired-count"] == Long(3)
    assert annotations["x-delivery-count"] == Long(2)
    # RabbitMQ's client for Java casts to long.
    assert {type(annotations[key]) for key in ("x-acquired-count", "x-delivery-count")} == {Long}
    assert (annotations["x-mine"], annotations["x-exchange"]) == ("y", "e")
    assert content == b"body"


def message091(headers: dict[str, object] | None) -> Message:
    return head091("e", "k", headers=headers, delivery_mode=2), b"body"


@pytest.mark.rabbitmq("quorum_queue_SUITE", "subscribe_redelivery_count", "consume_redelivery_count")
@pytest.mark.parametrize("given", [{"mine": "y"}, None])
@pytest.mark.parametrize("failures", [0, 1])
def test_counts_are_headers_of_amqp_091(given: dict[str, object] | None, failures: int) -> None:
    """Both are in each redelivery, x-delivery-count also when it is 0."""
    head, content = redelivered(message091(given), 3, failures)
    names, encoded, again = amqp091.split_head(head)
    properties = decode_properties(encoded)
    assert properties.headers == (given or {}) | {"x-acquired-count": 3, "x-delivery-count": failures}
    assert type(properties.headers["x-acquired-count"]) is Int64
    assert (again, amqp091.delivery_count(head), properties.delivery_mode) == (True, failures, 2)
    assert (names, content) == (b"\x01e\x01k", b"body")


def test_merged_annotations_reach_either_protocol() -> None:
    """A value that has no encoding as a header of AMQP 0-9-1 is left out there."""
    annotations = encode({Symbol("x-why"): "busy", Symbol("x-" + "y" * 300): 1})
    head, _ = redelivered(message091({"a": 1}), 1, 0, annotations)
    assert headers_of(head) == {"a": 1, "x-why": "busy", "x-acquired-count": 1, "x-delivery-count": 0}
    head, _ = redelivered((make_head(None, None, "", "q"), b""), 1, 0, annotations)
    assert decode_head(head)[1]["x-why"] == "busy"


def test_counts_survive_the_change_of_protocol() -> None:
    annotations = decode_head(to_amqp10(redelivered(message091(None), 2, 1))[0])[1]
    assert (annotations["x-acquired-count"], annotations["x-delivery-count"]) == (2, 1)
    back = to_amqp091(redelivered((make_head(None, None, "", "q"), b"\x00\x53\x75\xa0\x00"), 2, 1))
    headers = headers_of(back[0])
    assert (headers["x-acquired-count"], headers["x-delivery-count"]) == (2, 1)


@pytest.mark.parametrize(
    ("value", "time_ms"),
    [
        *((as_type(77), 77) for as_type in (Timestamp, Long, ULong, UInt)),
        (ULong(2**64 - 1), 2**63 - 1),
        *((value, None) for value in ("soon", True, None, 1.5)),
    ],
)
def test_the_delivery_time_is_a_number_of_any_type(value: object, time_ms: int | None) -> None:
    """The limit is the last possible timestamp; a value that is not a number is ignored."""
    assert delivery_time_ms(encode({Symbol("x-opt-delivery-time"): value})) == time_ms


def test_what_only_the_broker_knows_is_not_overwritten() -> None:
    """The original exchange and key, the dead-letter records and the hidden keys of BCC stay."""
    forged = encode({Symbol("x-opt-deaths"): 1, Symbol("x-death"): 1, Symbol("x-exchange"): "other"})
    annotations = decode_head(redelivered((make_head(None, None, "e", "q"), b""), 1, 0, forged)[0])[1]
    assert annotations["x-exchange"] == "e"
    assert "x-opt-deaths" not in annotations
    keys = b"hidden"
    head = amqp091.join_head(
        b"\x01e\x01k", encode_properties(BasicProperties()), hidden_keys=keys, death_times=bytes(16)
    )
    again, _ = redelivered((head, b""), 1, 1, forged)
    assert amqp091.hidden_keys_of(again) == keys
    assert amqp091.death_times(again) == bytes(16)
    assert headers_of(again) == {"x-acquired-count": 1, "x-delivery-count": 1}


NOW_DELAY = 1_800_000_000_000
AT = Delay(NOW_DELAY + 5, from_arrival=False)
AFTER = Delay(5, from_arrival=True)


@pytest.mark.parametrize(
    ("annotations", "delay"),
    [
        ({"x-opt-delivery-time": Long(NOW_DELAY + 5)}, AT),
        ({"x-opt-delivery-time": Timestamp(NOW_DELAY + 5)}, AT),
        ({"x-opt-delivery-time": ULong(NOW_DELAY + 5)}, AT),
        ({"x-opt-delivery-delay": Long(5)}, AFTER),
        ({"x-opt-delivery-delay": 5}, AFTER),
        ({"x-opt-delivery-time": Long(NOW_DELAY + 5), "x-opt-delivery-delay": Long(9)}, AT),
        ({"x-opt-delivery-delay": Long(0)}, None),
        ({"x-opt-delivery-delay": Long(-1)}, None),
        ({"x-opt-delivery-time": "tomorrow"}, None),
        ({"x-opt-delivery-time": True}, None),
        ({"x-opt-delivery-other": Long(5)}, None),
        ({}, None),
    ],
)
def test_an_annotation_of_amqp10_delays(annotations: dict[str, Any], delay: Delay | None) -> None:
    """The value counts and not its type; the time takes precedence over the delay."""
    assert traits_of(head10(annotations)).delay == delay


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        ({"x-opt-delivery-time": Int64(NOW_DELAY + 5)}, AT),
        ({"x-opt-delivery-time": Timestamp091(NOW_DELAY // 1000)}, Delay(NOW_DELAY, from_arrival=False)),
        ({"x-opt-delivery-delay": 5}, AFTER),
        ({"x-opt-delivery-time": "tomorrow"}, None),
        ({"other": 5}, None),
    ],
)
def test_a_header_of_amqp091_delays(headers: dict[str, Any], delay: Delay | None) -> None:
    """The header has the name of the annotation. A timestamp of that protocol is in seconds."""
    assert traits_of(head091(headers=headers)).delay == delay
    with_more = head091(headers=headers, priority=3, expiration="60", delivery_mode=2)
    assert traits_of(with_more) == Traits(True, 3, 60, delay)


@pytest.mark.parametrize(
    "head", [head10({"x-opt-delivery-delay": Long(5)}), head091(headers={"x-opt-delivery-delay": 5})]
)
def test_a_dead_letter_has_no_delay(head: bytes) -> None:
    """The annotation stays: consumers get the publisher's annotation."""
    dead = dead_lettered(head, Cause("q", "expired", NOW_DELAY, "dlx", None)).head
    assert (traits_of(head).delay, traits_of(dead).delay) == (AFTER, None)
    assert b"x-opt-delivery-delay" in dead


def test_records_of_death_that_a_client_wrote_make_no_dead_letter() -> None:
    head = head10({"x-opt-deaths": [], "x-opt-delivery-delay": Long(5)})
    assert traits_of(head).delay == AFTER


@pytest.mark.parametrize(
    ("delay", "due"),
    [
        (AT, NOW_DELAY + 5),
        (AFTER, NOW_DELAY + 5),
        (Delay(-7, from_arrival=False), 0),
        (Delay(TIME_MAX_MS, from_arrival=True), TIME_MAX_MS),
    ],
)
def test_when_a_message_is_due(delay: Delay, due: int) -> None:
    assert delay.due_ms(NOW_DELAY) == due
