"""The standard library's unittest: a virtual host for each test, on a broker in a thread."""

import unittest

import pika

from amqp10broker.testing.servers import BrokerTestCase


class Orders(BrokerTestCase):
    def test_an_order_is_queued(self):
        self.broker.declare("orders", "quorum")
        with pika.BlockingConnection(pika.URLParameters(self.broker.url)) as connection:
            connection.channel().basic_publish("", "orders", b"tea")
        assert self.broker.get("orders", within_s=5).body == b"tea"
        self.broker.assert_drained("orders")


if __name__ == "__main__":
    unittest.main()
