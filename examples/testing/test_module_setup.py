"""Set-up and tear-down by module, as in nose2, pytest and unittest alike."""

from contextlib import ExitStack

import pika

from amqp10broker.testing import running

resources = ExitStack()


def setup_module():
    global broker
    broker = resources.enter_context(running(max_link_credit=10))


def teardown_module():
    resources.close()


def test_a_queue_counts_its_messages():
    broker.declare("orders")
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"tea")
    assert broker.queue("orders").ready == 1
