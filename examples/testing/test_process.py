"""A broker of its own in a process, which is killed: what was confirmed is there when it comes back."""

import pika
import pytest
from pika.exceptions import AMQPError


def test_a_confirmed_message_outlives_the_broker(amqp_broker_process):
    broker = amqp_broker_process
    broker.declare("orders")
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "orders", b"tea", pika.BasicProperties(delivery_mode=2))
    broker.kill()
    with pytest.raises(AMQPError):
        connection.process_data_events(time_limit=10)
    broker.start()
    assert broker.get("orders").body == b"tea"
