"""Messages published and got over HTTP, against a running broker."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from amqp10broker.metadata.users import Permission
from amqp10broker.protocols.amqp091.content import Content
from amqp10broker.protocols.amqp091.methods import BasicConsume, BasicConsumeOk, QueueDeclare, QueueDeclareOk
from amqp10broker.protocols.amqp091.properties import decode_properties
from amqp10broker.routing.exchange import Binding, Destination
from amqp10broker.runtime.broker import Broker
from amqp10broker.sessions import jobs
from tests.support.declaring import bind, declare, declare_exchange, set_permission
from tests.support.http_user import HttpUser, add_login, http_user
from tests.support.queue_handles import FakeHandle
from tests.support.rawframes import attach_sender, transfer
from tests.support.trioclient import connect, settle_down
from tests.support.trioclient091 import connect091

KINDS = ["classic", "quorum"]


async def publish(
    user: HttpUser, payload: str, exchange: str = "amq.default", key: str = "q", **given: Any
) -> Any:
    body = {"routing_key": key, "payload": payload, "payload_encoding": "string", "properties": {}}
    return await user.ask("POST", f"/exchanges/%2F/{exchange}/publish", {**body, **given})


async def get(user: HttpUser, mode: str = "ack_requeue_false", count: Any = 1, **given: Any) -> Any:
    body = {"count": count, "ackmode": mode, "encoding": "auto", **given}
    heard = await user.ask("POST", "/queues/%2F/q/get", body)
    assert heard.status == 200, heard
    return heard.json


async def payloads(user: HttpUser, mode: str, count: int) -> list[str]:
    return [each["payload"] for each in await get(user, mode, count)]


async def test_a_message_is_published_and_got_with_all_that_it_says(broker: Broker, user: HttpUser) -> None:
    declare_exchange(broker.catalog, "/", "e", "topic")
    declare(broker.catalog, "/", "q")
    bind(broker.catalog, "/", Binding("e", Destination("queue", "q"), "a.#"))
    properties = {
        "content_type": "text/plain",
        "headers": {"text": "ü", "number": 2**40, "yes": True, "list": [1, "b"], "map": {"x": 1.5}},
        "delivery_mode": 2,
        "priority": 3,
        "timestamp": 1_700_000_000,
        "expiration": "60000",
        "user_id": "guest",
        "message_id": "1",
    }
    odd = {**properties, "unheard": "of"}
    heard = await publish(user, "grüße", "e", "a.b", properties=odd)
    assert (heard.status, heard.json) == (200, {"routed": True})
    assert (await publish(user, "x", "e", "b")).json == {"routed": False}
    assert await get(user) == [
        {
            "payload_bytes": 7,
            "redelivered": False,
            "exchange": "e",
            "routing_key": "a.b",
            "message_count": 0,
            "properties": properties,
            "payload": "grüße",
            "payload_encoding": "string",
        }
    ]
    assert await get(user) == []


async def test_a_consumer_gets_what_was_published_over_http(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    client = await connect091(broker).open()
    await client.call(1, BasicConsume(queue="q", no_ack=True), BasicConsumeOk)
    encoded = base64.b64encode(b"\xff\x00").decode()
    heard = await publish(user, encoded, "", payload_encoding="base64", properties={"type": "t"})
    assert heard.json == {"routed": True}
    got = await client.expect(Content)
    assert (got.body, decode_properties(got.properties).type, got.method.routing_key) == (
        b"\xff\x00",
        "t",
        "q",
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_what_becomes_of_messages_is_said(broker: Broker, user: HttpUser, kind: str) -> None:
    declare(broker.catalog, "/", "dead")
    arguments = {"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    assert await user.put("/queues/%2F/q", {"durable": True, "arguments": arguments}) == 201
    for payload in "abc":
        await publish(user, payload)
    first = await get(user, "ack_requeue_true", "2")
    assert [(each["payload"], each["message_count"]) for each in first] == [("a", 2), ("b", 1)]
    again = await get(user, "reject_requeue_true", 3)
    assert [(each["payload"], each["redelivered"]) for each in again] == [
        *(("a", True), ("b", True), ("c", False))
    ]
    assert await payloads(user, "reject_requeue_false", 1) == ["a"]
    assert await payloads(user, "ack_requeue_false", 1) == ["b"]
    assert await payloads(user, "ack_requeue_false", -1) == ["c"]
    await settle_down()
    counted = await user.get("/queues?columns=name,messages,consumers")
    assert counted == [
        {"name": "dead", "messages": 1, "consumers": 0},
        {"name": "q", "messages": 0, "consumers": 0},
    ]


async def test_payloads_are_text_or_base64_and_may_be_cut(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    await publish(user, "grüße")
    for given, shown in (
        ({}, ("grüße", "string")),
        ({"encoding": "base64"}, ("Z3LDvMOfZQ==", "base64")),
        ({"truncate": 2}, ("gr", "string")),
        ({"truncate": "3"}, ("Z3LD", "base64")),
    ):
        (got,) = await get(user, "ack_requeue_true", **given)
        assert ((got["payload"], got["payload_encoding"]), got["payload_bytes"]) == (shown, 7)


async def test_a_message_of_amqp_10_is_shown_in_words_of_091(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    client = await connect(broker).open()
    await client.send(attach_sender(0, "/queues/q"))
    await client.idle()
    await client.submit(transfer(0, 0, b"hi", settled=True))
    (got,) = await get(user)
    assert (got["payload"], got["exchange"], got["routing_key"]) == ("hi", "", "q")


async def test_many_messages_are_got_in_several_goes(
    broker: Broker, user: HttpUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(broker.catalog, "/", "q")
    for number in range(10):
        await publish(user, str(number))
    monkeypatch.setattr(jobs, "FETCHED_AT_ONCE", 3)
    got = await get(user, "ack_requeue_true", 8)
    assert [(each["payload"], each["message_count"]) for each in got] == [
        (str(number), 9 - number) for number in range(8)
    ]
    monkeypatch.setattr(jobs, "FETCHED_BYTES_MAX", 4 * jobs.MESSAGE_BYTES)
    assert await payloads(user, "ack_requeue_false", -1) == list("012345")
    monkeypatch.undo()
    assert await payloads(user, "ack_requeue_false", -1) == list("6789")


async def test_what_is_wrong_with_a_message_is_told(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    for given, reason in (
        ({"payload_encoding": "hex"}, "unsupported_encoding"),
        ({"payload_encoding": "base64", "payload": "?"}, "not_base64"),
        ({"payload": 3}, "'payload' must be a string"),
        ({"properties": {"delivery_mode": "x"}}, "not_int"),
        ({"properties": {"priority": 256}}, "a property cannot be encoded"),
        ({"properties": {"headers": {"x": [None]}}}, "a header is null"),
        ({"properties": {"headers": {"x": 2**70}}}, "a property cannot be encoded"),
        ({"properties": {"expiration": 3}}, "'expiration' must be a string"),
        ({"properties": {"expiration": "soon"}}, "406 PRECONDITION_FAILED - invalid expiration"),
        (
            {"properties": {"user_id": "ann"}},
            "406 PRECONDITION_FAILED - user_id property set to 'ann' but authenticated user was 'guest'",
        ),
        ({"properties": {"reply_to": "amq.rabbitmq.reply-to"}}, "406 PRECONDITION_FAILED - fast reply"),
        ({"routing_key": "k" * 256}, "the routing key cannot be encoded"),
    ):
        heard = await publish(user, **{"payload": "x", **given})
        assert (heard.status, heard.json["error"]) == (400, "bad_request"), given
        assert heard.json["reason"].startswith(reason)
    heard = await user.ask("POST", "/exchanges/%2F/amq.default/publish", {"payload": "x"})
    assert heard.json["reason"] == (
        "[{key_missing,routing_key},{key_missing,payload_encoding},{key_missing,properties}]"
    )
    assert (await publish(user, "x", "nowhere")).status == 404
    assert await get(user) == []


async def test_what_cannot_be_got_is_told(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    declare(broker.catalog, "/", "s", arguments={"x-queue-type": "stream"})
    declare(broker.catalog, "/", "sac", arguments={"x-single-active-consumer": True})
    usual = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for queue, body, status, reason in (
        ("q", {**usual, "ackmode": "maybe"}, 400, "Invalid ackmode value: maybe"),
        ("q", {**usual, "encoding": "hex"}, 400, "Unsupported encoding: hex"),
        ("q", {**usual, "truncate": -1}, 400, "'truncate' must be"),
        ("q", {"count": 1, "requeue": True, "encoding": "auto"}, 400, "[{key_missing,ackmode}]"),
        ("s", usual, 400, "basic.get not supported by stream queues queue 's'"),
        ("sac", usual, 400, "cannot obtain access to locked queue 'sac'"),
        ("none", usual, 404, "Not Found"),
    ):
        heard = await user.ask("POST", f"/queues/%2F/{queue}/get", body)
        assert (heard.status, heard.json["reason"][: len(reason)]) == (status, reason)
    assert await get(user, count=0) == []


async def test_a_queue_that_a_consumer_has_for_itself_gives_nothing(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    client = await connect091(broker).open()
    await client.call(1, QueueDeclare(queue="hers", exclusive=True), QueueDeclareOk)
    usual = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    heard = await user.ask("POST", "/queues/%2F/hers/get", usual)
    assert heard.status == 400
    assert heard.json["reason"].startswith("cannot obtain exclusive access to locked queue 'hers'")


async def test_a_full_queue_refuses_a_message(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    assert (await publish(user, "a")).json == {"routed": True}
    heard = await publish(user, "b")
    assert (heard.status, heard.json["reason"]) == (
        400,
        "rejected: queue 'q' in vhost '/' is full and takes no more messages",
    )


async def test_permissions_to_publish_and_get(broker: Broker) -> None:
    """A refused publish is 400, as RabbitMQ has it; a refused get is 401."""
    declare(broker.catalog, "/", "q")
    add_login(broker, "ann:pw", "management")
    set_permission(broker.catalog, "ann", "/", Permission(configure="", write="^$", read="^$"))
    async with http_user(broker, "ann:pw") as ann:
        heard = await publish(ann, "x")
        assert (heard.status, heard.json) == (
            400,
            {
                "error": "bad_request",
                "reason": "403 ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' "
                "refused for user 'ann'",
            },
        )
        usual = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        heard = await ann.ask("POST", "/queues/%2F/q/get", usual)
        assert (heard.status, heard.json["error"]) == (401, "not_authorised")
        assert heard.json["reason"].startswith("403 ACCESS_REFUSED - read access to queue 'q'")


async def test_nothing_stays_behind_at_queues(broker: Broker, user: HttpUser) -> None:
    declare(broker.catalog, "/", "q")
    before = len(broker.reply_registry)
    await publish(user, "x")
    await get(user, "ack_requeue_true")
    await publish(user, "x", "nowhere")
    assert len(broker.reply_registry) == before
    queue = broker.catalog.lookup_vhost("/").lookup("q")
    assert not queue.consumption._there
    assert queue.counted()["got"] == 1
    assert queue.counted()["requeued"] == 1


async def test_a_queue_that_does_not_answer_is_not_waited_for_for_ever(
    broker: Broker, user: HttpUser
) -> None:
    declare(broker.catalog, "/", "q")
    broker.catalog.lookup_vhost("/").queues["q"].handle = FakeHandle()
    heard = await publish(user, "x")
    assert (heard.status, heard.json["error"]) == (503, "unavailable")
    assert heard.json["reason"].startswith("a queue has not answered for 15 s")
