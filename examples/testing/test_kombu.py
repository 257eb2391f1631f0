"""kombu: a queue with a producer and a consumer."""

from kombu import Connection


def test_a_simple_queue(amqp_broker):
    with Connection(amqp_broker.url) as connection:
        queue = connection.SimpleQueue("jobs")
        queue.put({"job": 1})
        assert amqp_broker.queue("jobs").messages == 1
        message = queue.get(timeout=10)
        assert message.payload == {"job": 1}
        assert amqp_broker.queue("jobs").unsettled == 1
        message.ack()
        queue.close()
    amqp_broker.assert_drained("jobs")
