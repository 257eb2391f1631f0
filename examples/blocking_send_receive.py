"""Send and receive step by step, without callbacks: proton's BlockingConnection.

python examples/blocking_send_receive.py [URL] [QUEUE]
"""

import os
import sys

from proton import ConnectionException, Message
from proton.utils import BlockingConnection

default_url = os.environ.get("AMQP10BROKER_URL") or "amqp://guest:guest@127.0.0.1:5672"
url = sys.argv[1] if len(sys.argv) > 1 else default_url
queue = sys.argv[2] if len(sys.argv) > 2 else "examples-blocking"

try:
    connection = BlockingConnection(url, timeout=10)
except ConnectionException as error:
    sys.exit(f"{error}\nis the broker running? start it with: make run-broker")

try:
    sender = connection.create_sender(queue)
    # send() returns when the broker has settled the delivery. A refusal raises SendException.
    delivery = sender.send(Message(body="hello", properties={"language": "en"}))
    print("sent, outcome:", delivery.remote_state.name.lower())

    receiver = connection.create_receiver(queue)
    message = receiver.receive(timeout=10)
    print("received:", message.body, message.properties)
    # The broker adds the exchange and the routing key by which the message was published.
    print("annotations:", {str(key): value for key, value in message.annotations.items()})

    # The message is not accepted yet: the queue still holds it, unsettled. If this client disconnected now,
    # the queue would deliver the message to another consumer. Here the client releases the message and
    # receives it again; then it is marked as redelivered.
    receiver.release(delivered=True)
    message = receiver.receive(timeout=10)
    print("received again; first acquirer:", message.first_acquirer)
    receiver.accept()
    print("accepted: the queue has removed it")
finally:
    connection.close()
