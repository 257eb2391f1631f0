"""AMQP 0-9-1 with pika: a plain test. The fixture gives it a virtual host of its own."""

import pika


def test_a_worker_acknowledges_what_it_has_done(amqp_broker):
    amqp_broker.declare("orders", "quorum")
    amqp_broker.publish("orders", "tea", "coffee")
    done = []

    def work(channel, method, properties, body):
        done.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(done) == 2:
            channel.stop_consuming()

    with pika.BlockingConnection(pika.URLParameters(amqp_broker.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("orders", work)
        channel.start_consuming()
        amqp_broker.assert_all_settled()

    assert done == [b"tea", b"coffee"]
    amqp_broker.assert_drained("orders")
