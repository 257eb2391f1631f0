"""Fetch one message, or establish that there was none: grant credit 1, wait, drain.

    python examples/fetch_with_timeout.py [URL] [QUEUE]

A time-out alone is not enough: the credit stays granted, and a message may arrive just after the client
has stopped waiting. So the client drains the link: the broker uses the credit at once or gives it back,
and answers with a flow. This is figure 2.44 of the AMQP 1.0 specification (part 2, section 2.6.7).
"""

import os
import sys

from proton import ConnectionException, Message, Timeout
from proton.utils import BlockingConnection


def fetch(connection, receiver, timeout_s):
    """Return a message, or None. In both cases no credit is left."""
    arrived = receiver.fetcher
    receiver.link.flow(1)  # one credit
    try:
        connection.wait(lambda: arrived.has_message, timeout=timeout_s)
    except Timeout:
        receiver.link.drain(0)  # grant no more; the broker must use or give back the rest
        # Either a late message uses the credit, or the broker's flow gives it back.
        connection.wait(lambda: receiver.link.credit == 0, msg="answer to drain")
        receiver.link.drained()  # proton reports the credit that was given back; reset that count
    if not arrived.has_message:
        return None
    message = arrived.pop()
    receiver.accept()
    return message


default_url = os.environ.get("AMQP10BROKER_URL") or "amqp://guest:guest@127.0.0.1:5672"
url = sys.argv[1] if len(sys.argv) > 1 else default_url
queue = sys.argv[2] if len(sys.argv) > 2 else "examples-fetch"

try:
    connection = BlockingConnection(url, timeout=10)
except ConnectionException as error:
    sys.exit(f"{error}\nis the broker running? start it with: make run-broker")

try:
    receiver = connection.create_receiver(queue, credit=0)
    sender = connection.create_sender(queue)
    sender.send(Message(body="the only message"))
    for attempt in (1, 2):
        message = fetch(connection, receiver, timeout_s=0.5)
        print(f"fetch {attempt}:", message.body if message else "no message; credit left:", end="")
        print("" if message else f" {receiver.link.credit}")

    # A message sent now stays in the queue: the drained link has no credit.
    sender.send(Message(body="a late message"))
    print("before the third fetch:", receiver.fetcher.has_message, "messages arrived")
    print("fetch 3:", fetch(connection, receiver, timeout_s=0.5).body)
finally:
    connection.close()
