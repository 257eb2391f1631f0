"""Send messages as fast as the broker's credit allows, and wait until each is accepted.

    python examples/simple_send.py [URL] [QUEUE] [COUNT]

A sender may send only when the broker has granted credit. Proton calls `on_sendable` when the link gets
credit; `event.sender.credit` is the rest of it.
"""

import os
import sys

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container


class Send(MessagingHandler):
    def __init__(self, url, queue, count):
        super().__init__()
        self.url = url
        self.queue = queue
        self.count = count
        self.sent = 0
        self.accepted = 0

    def on_start(self, event):
        connection = event.container.connect(self.url, reconnect=False)
        # A bare name is the address of a queue. The broker declares the queue if it does not exist.
        event.container.create_sender(connection, self.queue)

    def on_sendable(self, event):
        while event.sender.credit and self.sent < self.count:
            self.sent += 1
            event.sender.send(Message(body=f"message {self.sent}", durable=True))

    def on_accepted(self, event):
        # From now on the broker is responsible for the message.
        self.accepted += 1
        if self.accepted == self.count:
            print(f"{self.accepted} messages sent to '{self.queue}' and accepted")
            event.connection.close()

    def on_transport_error(self, event):
        print(f"no connection to {self.url}: {event.transport.condition.description}", file=sys.stderr)
        print("is the broker running? start it with: make run-broker", file=sys.stderr)
        sys.exit(1)


default_url = os.environ.get("AMQP10BROKER_URL") or "amqp://guest:guest@127.0.0.1:5672"
url = sys.argv[1] if len(sys.argv) > 1 else default_url
queue = sys.argv[2] if len(sys.argv) > 2 else "examples"
count = int(sys.argv[3]) if len(sys.argv) > 3 else 10

try:
    Container(Send(url, queue, count)).run()
except KeyboardInterrupt:
    pass
