"""Send requests to a service and receive its responses on a temporary queue.

    python examples/request_response.py [URL] [QUEUE]

The requester attaches a receiver with a *dynamic* source: the broker declares a queue with a generated
name, returns its address in the attach, and deletes the queue when the link closes. The requester puts the
address into `reply_to`. The responder sends all responses through one sender without a target, on which
each message carries its own address (`to`). Both run in this program, each on its own connection.
"""

import os
import sys

from proton import Message, symbol
from proton.handlers import MessagingHandler
from proton.reactor import Container, ReceiverOption


class TemporaryQueue(ReceiverOption):
    """The capability that selects the kind of dynamic node. RabbitMQ requires it; this broker does not."""

    def apply(self, receiver):
        receiver.source.capabilities.put_object(symbol("temporary-queue"))


class Responder(MessagingHandler):
    """The service: it converts each request to upper case."""

    def on_start(self, event):
        self.connection = event.container.connect(url, reconnect=False)
        event.container.create_receiver(self.connection, queue, handler=self)
        self.answers = event.container.create_sender(self.connection, None, handler=self)

    def on_message(self, event):
        request = event.message
        self.answers.send(
            Message(
                address=request.reply_to,
                correlation_id=request.correlation_id,
                body=request.body.upper(),
            )
        )


class Requester(MessagingHandler):
    """The client: it sends three requests and waits for their responses."""

    def __init__(self, responder):
        super().__init__()
        self.responder = responder
        self.requests = {1: "one", 2: "two", 3: "three"}

    def on_start(self, event):
        connection = event.container.connect(url, reconnect=False)
        self.sender = event.container.create_sender(connection, queue, handler=self)
        event.container.create_receiver(
            connection, None, dynamic=True, options=TemporaryQueue(), handler=self
        )

    def on_link_opened(self, event):
        if event.link.is_receiver:
            # The broker's attach contains the address of the new queue.
            address = event.receiver.remote_source.address
            print("reply address:", address.partition("amq.dyn")[0] + "amq.dyn-...")
            for number, text in self.requests.items():
                self.sender.send(Message(correlation_id=number, reply_to=address, body=text))

    def on_message(self, event):
        answer = event.message
        print(self.requests.pop(answer.correlation_id), "->", answer.body)
        if not self.requests:
            event.connection.close()
            self.responder.connection.close()

    def on_transport_error(self, event):
        print(f"no connection to {url}: {event.transport.condition.description}", file=sys.stderr)
        print("is the broker running? start it with: make run-broker", file=sys.stderr)
        sys.exit(1)


default_url = os.environ.get("AMQP10BROKER_URL") or "amqp://guest:guest@127.0.0.1:5672"
url = sys.argv[1] if len(sys.argv) > 1 else default_url
queue = sys.argv[2] if len(sys.argv) > 2 else "examples-service"

responder = Responder()
try:
    Container(responder, Requester(responder)).run()
except KeyboardInterrupt:
    pass
