"""AMQP 1.0 with python-qpid-proton: the virtual host stands in the open frame, not in the URL."""

import pytest
from proton import Message
from proton.utils import BlockingConnection


@pytest.fixture
def connection(amqp_broker):
    connection = BlockingConnection(
        f"amqp://{amqp_broker.host}:{amqp_broker.port}",
        user=amqp_broker.user,
        password=amqp_broker.password,
        virtual_host=amqp_broker.hostname,
        timeout=10,
    )
    yield connection
    connection.close()


def test_a_message_is_accepted(amqp_broker, connection):
    amqp_broker.declare("q")
    connection.create_sender("/queues/q").send(Message(body="hello"))
    receiver = connection.create_receiver("/queues/q", credit=1)
    assert receiver.receive(timeout=10).body == "hello"
    assert amqp_broker.queue("q").unsettled == 1
    receiver.accept()
    receiver.close()  # a blocking client of proton writes while it waits for an answer
    amqp_broker.assert_all_settled()
    amqp_broker.assert_drained("q")


@pytest.mark.amqp_broker(max_link_credit=10)
def test_a_sender_is_given_credit_in_time(amqp_broker, connection):
    """The broker tops up at half, so a sender of one message at a time never has less than that."""
    amqp_broker.declare("q")
    sender = connection.create_sender("/queues/q")
    for number in range(50):
        sender.send(Message(body=number))
    amqp_broker.assert_credit_never_below(5, "q")
    amqp_broker.assert_no_stall()
