"""The report of a failed test, of a broker in this process."""

from __future__ import annotations

import re

import pika

from amqp10broker.testing import running


def test_it_names_messages_that_were_routed_nowhere_and_folds_handshakes() -> None:
    """In both protocols; the first frame behind the handshake is shown as it is."""
    with running() as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("shop", "topic")
        channel.queue_declare("orders")
        for exchange, key in (("shop", "k"), ("", "nowhere"), ("", "orders")):
            channel.basic_publish(exchange, key, b"tea")
        channel.queue_declare("orders", passive=True)  # the broker has taken what came before
        with broker.client():
            report = broker.report()
    assert "exchange 'shop': 1 of 1 messages were routed to no queue" in report
    assert "exchange '': 1 of 2 messages were routed to no queue" in report
    assert not re.search(r"connection\.(start|tune|open)|SASL|OPEN", report)
    assert re.search(r"\(opened, after \d frames\)\n.*<- ch 1 channel\.open", report)
    assert re.search(r"\(opened, after 9 frames\)\n.*<- ch 0 BEGIN", report)
