"""AMQP 1.0 with RabbitMQ's client for Python: its URI says the virtual host."""

from rabbitmq_amqp_python_client import AddressHelper, Environment, Message, QuorumQueueSpecification


def test_a_quorum_queue_and_a_publisher(amqp_broker):
    environment = Environment(uri=amqp_broker.url)
    connection = environment.connection()
    connection.dial()
    management = connection.management()
    management.declare_queue(QuorumQueueSpecification(name="orders"))
    management.close()
    publisher = connection.publisher(AddressHelper.queue_address("orders"))
    publisher.publish(Message(body=b"tea"))
    publisher.close()
    assert amqp_broker.queue("orders").status["type"] == "quorum"
    assert amqp_broker.get("orders").body == b"tea"
    environment.close()
