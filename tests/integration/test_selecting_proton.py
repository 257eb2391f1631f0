"""Selectors and browsers on queues, with proton: what the client asks, what it hears, what it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Described, Link, Message, Terminus, symbol

from tests.support.broker_process import BrokerProcess
from tests.support.pika_client import Inbox
from tests.support.proton_client import ProtonClient, ReceivingEnd

SELECTOR = "apache.org:selector-filter:string"
KINDS = ("classic", "quorum")
Declare = Callable[..., None]


@pytest.fixture
def declare(channel: BlockingChannel, queue: str) -> Declare:
    """Declare the test's queue, of a kind and with arguments."""

    def call(kind: str, arguments: dict[str, Any] | None = None) -> None:
        given = {"x-queue-type": kind, **(arguments or {})}
        channel.queue_declare(queue, durable=True, arguments=given)

    return call


def reader(
    client: ProtonClient, queue: str, text: str | None = None, *, browses: bool = False, **options: Any
) -> ReceivingEnd:
    descriptor = options.pop("descriptor", symbol(SELECTOR))
    name = options.pop("filter_name", "jms-selector")

    def put(link: Any) -> None:
        if text is not None:
            link.source.filter.put_dict({symbol(name): Described(descriptor, text)})
        if browses:
            link.source.distribution_mode = Terminus.DIST_MODE_COPY

    return client.receiver(queue, apply=[put], **options)


def in_place(receiver: ReceivingEnd) -> dict[Any, Any]:
    found = receiver.link.remote_source.filter
    found.rewind()
    return found.get_dict() if found.next() else {}


def publish(client: ProtonClient, queue: str, *colours: str) -> None:
    sender = client.sender(queue)
    messages = [
        Message(body=number, properties={"colour": each}, subject=each, durable=True)
        for number, each in enumerate(colours)
    ]
    assert {each.state for each in sender.send(*messages)} == {Delivery.ACCEPTED}
    sender.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settled", [False, True])
def test_a_browser_takes_nothing(
    broker: BrokerProcess, client: ProtonClient, queue: str, kind: str, settled: bool, declare: Declare
) -> None:
    """As Qpid JMS browses: copy, drained to find the end; with a selector or without; whatever it settles."""
    declare(kind)
    publish(client, queue, "red", "blue", "red")
    mode = Link.SND_SETTLED if settled else Link.SND_UNSETTLED
    for text, expected in ((None, [0, 1, 2]), ("colour = 'red'", [0, 2])):
        browser = reader(client, queue, text, browses=True, snd_settle_mode=mode)
        assert browser.link.remote_source.distribution_mode == Terminus.DIST_MODE_COPY
        browser.drain(10)
        assert browser.bodies == expected
        assert {each.settled for each in browser.received} == {settled}
        if not settled:
            browser.settle(browser.received[0], Delivery.ACCEPTED)
            browser.settle(browser.received[1], Delivery.REJECTED)
        browser.close()
    taker = client.receiver(queue, credit=5)
    taken = taker.take(3)
    assert [each.message.body for each in taken] == [0, 1, 2]
    assert [(each.message.delivery_count, each.message.first_acquirer) for each in taken] == [(0, True)] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_active_consumer_may_not_select(
    client: ProtonClient, queue: str, kind: str, declare: Declare
) -> None:
    """It would keep the others from what it does not want; a browser may."""
    declare(kind, {"x-single-active-consumer": True})
    receiver = reader(client, queue, "colour = 'red'", wait=False)
    assert receiver.wait_refused() == "amqp:not-allowed"
    assert "single active consumer" in (receiver.description or "")
    publish(client, queue, "red", "blue")
    browser = reader(client, queue, "colour = 'red'", browses=True, credit=5)
    browser.drain()
    assert browser.bodies == [0]


def test_amqp_0_9_1_has_no_selectors(
    client: ProtonClient, channel: BlockingChannel, queue: str, declare: Declare
) -> None:
    """An argument of a consumer that looks like one is none."""
    declare("classic")
    publish(client, queue, "red", "blue")
    inbox = Inbox(channel, queue, arguments={"selector": "colour = 'blue'"})
    assert len(inbox.take(2)) == 2


def test_no_local_is_not_in_place_on_a_queue(client: ProtonClient, queue: str, declare: Declare) -> None:
    """It is for topics: here it is left out of the answer, and the client gets what it published."""
    declare("classic")
    publish(client, queue, "red")
    receiver = reader(
        client,
        queue,
        "",
        filter_name="no-local",
        descriptor=symbol("apache.org:no-local-filter:list"),
        credit=5,
    )
    assert in_place(receiver) == {}
    assert [each.message.body for each in receiver.take(1)] == [0]
