"""AMQP 0-9-1 with pika: a topic exchange, publisher confirms, an unroutable message, a worker with prefetch.

python examples/pika_publish_consume.py [URL] [QUEUE]
"""

import os
import sys

import pika

default_url = os.environ.get("AMQP10BROKER_URL") or "amqp://guest:guest@127.0.0.1:5672"
url = sys.argv[1] if len(sys.argv) > 1 else default_url
queue = sys.argv[2] if len(sys.argv) > 2 else "examples.orders"

try:
    connection = pika.BlockingConnection(pika.URLParameters(url + "/%2F"))
except pika.exceptions.AMQPConnectionError:
    print(f"no connection to {url}", file=sys.stderr)
    print("is the broker running? start it with: make run-broker", file=sys.stderr)
    sys.exit(1)

channel = connection.channel()
channel.exchange_declare("examples.topic", "topic", durable=True)
channel.queue_declare(queue, durable=True)
channel.queue_bind(queue, "examples.topic", "order.*.new")

channel.confirm_delivery()
for number in range(1, 6):
    # basic_publish returns when the broker has confirmed the message.
    channel.basic_publish("examples.topic", "order.shop.new", f"order {number}".encode(), mandatory=True)
print(f"5 messages confirmed for queue '{queue}'")
try:
    channel.basic_publish("examples.topic", "order.shop.old", b"no queue is bound", mandatory=True)
except pika.exceptions.UnroutableError:
    print("the broker returned an unroutable message")

channel.basic_qos(prefetch_count=2)
for method, _, body in channel.consume(queue, inactivity_timeout=20):
    if method is None:
        break
    print(f"{body.decode()}, delivery {method.delivery_tag}")
    channel.basic_ack(method.delivery_tag)
    if method.delivery_tag == 5:
        break
channel.cancel()
connection.close()
