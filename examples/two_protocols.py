"""Publish over AMQP 0-9-1 (pika) and receive over AMQP 1.0 (proton), then the reverse, on one queue.

python examples/two_protocols.py [URL] [QUEUE]
"""

import os
import sys

import pika
from proton import Message, symbol
from proton.utils import BlockingConnection

default_url = os.environ.get("AMQP10BROKER_URL") or "amqp://guest:guest@127.0.0.1:5672"
url = sys.argv[1] if len(sys.argv) > 1 else default_url
queue = sys.argv[2] if len(sys.argv) > 2 else "examples.both"

try:
    old = pika.BlockingConnection(pika.URLParameters(url + "/%2F"))
except pika.exceptions.AMQPConnectionError:
    print(f"no connection to {url}", file=sys.stderr)
    print("is the broker running? start it with: make run-broker", file=sys.stderr)
    sys.exit(1)
new = BlockingConnection(url, timeout=10)

channel = old.channel()
channel.queue_declare(queue, durable=True)
channel.basic_publish(
    "",
    queue,
    b"from 0-9-1",
    pika.BasicProperties(message_id="m-1", delivery_mode=2, headers={"count": 7, "x-route": "north"}),
)
receiver = new.create_receiver(f"/queues/{queue}", credit=1)
message = receiver.receive()
receiver.accept()
receiver.close()
print(f"over AMQP 1.0: {bytes(message.body)!r}, id {message.id}, durable {message.durable}")
print(f"  application-properties {dict(message.properties)}")
print(f"  annotation x-route {message.annotations[symbol('x-route')]}")

sender = new.create_sender(f"/queues/{queue}")
sender.send(Message(body=b"from 1.0", inferred=True, id="m-2", properties={"count": 8}, durable=True))
method, properties, body = channel.basic_get(queue, auto_ack=True)
print(f"over AMQP 0-9-1: {body!r}, id {properties.message_id}, delivery mode {properties.delivery_mode}")
print(f"  header count {int(properties.headers['count'])}, {method.message_count} left")
new.close()
old.close()
