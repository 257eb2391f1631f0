"""Receive messages and accept each of them. Run simple_send.py first.

    python examples/simple_recv.py [URL] [QUEUE] [COUNT]

`prefetch` is the credit that proton keeps granted: the broker may send this many messages before the
program has processed one. Use two or more: with a prefetch of one, proton 0.40 never grants again.
"""

import os
import sys

from proton.handlers import MessagingHandler
from proton.reactor import Container


class Receive(MessagingHandler):
    def __init__(self, url, queue, count):
        super().__init__(prefetch=10, auto_accept=True)
        self.url = url
        self.queue = queue
        self.count = count
        self.received = 0

    def on_start(self, event):
        connection = event.container.connect(self.url, reconnect=False)
        event.container.create_receiver(connection, self.queue)

    def on_link_opened(self, event):
        print(f"waiting for {self.count} messages from '{self.queue}' (press Ctrl-C to stop)", flush=True)

    def on_message(self, event):
        if self.received == self.count:
            # This message was already on its way. Released, it returns to its place in the queue.
            self.release(event.delivery, delivered=False)
            return
        self.received += 1
        print(event.message.body, flush=True)
        # If this method returns without an exception, proton accepts the message, and the queue removes it.
        if self.received == self.count:
            event.receiver.close()
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
    Container(Receive(url, queue, count)).run()
except KeyboardInterrupt:
    pass
