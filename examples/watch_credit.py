"""Show the credit of a sending and a receiving link after each step.

    python examples/watch_credit.py [URL] [QUEUE] [PAUSE]

Run `amqp10broker status --watch` in another terminal to see the broker's view at the same time, and why a
link waits. PAUSE is the time between two steps in seconds (default 1).
"""

import os
import sys

from proton import ConnectionException, Message, Timeout
from proton.utils import BlockingConnection

default_url = os.environ.get("AMQP10BROKER_URL") or "amqp://guest:guest@127.0.0.1:5672"
url = sys.argv[1] if len(sys.argv) > 1 else default_url
queue = sys.argv[2] if len(sys.argv) > 2 else "examples-credit"
pause_s = float(sys.argv[3]) if len(sys.argv) > 3 else 1.0


def show(what):
    """Print one line about both links, then handle events for the time of a pause."""
    waiting = receiver.fetcher.has_message
    print(
        f"{what:<49} sender: credit {sender.link.credit:>3}   "
        f"receiver: credit {receiver.link.credit:>2}, {waiting:>2} arrived"
    )
    pause(pause_s)


def pause(seconds):
    try:
        connection.wait(lambda: False, timeout=seconds)
    except Timeout:
        pass


def wait_for(condition):
    connection.wait(condition, msg="waiting for the broker")


def take(count):
    """Wait for `count` messages and accept them."""
    wait_for(lambda: receiver.fetcher.has_message >= count)
    for _ in range(count):
        receiver.fetcher.pop()
        receiver.accept()


try:
    connection = BlockingConnection(url, timeout=10)
except ConnectionException as error:
    sys.exit(f"{error}\nis the broker running? start it with: make run-broker")

try:
    sender = connection.create_sender(queue)
    receiver = connection.create_receiver(queue, credit=0)

    # The broker grants a publisher max_link_credit, 170 by default, ...
    wait_for(lambda: sender.link.credit > 0)
    show("attached: the broker grants, the client not yet")
    full = sender.link.credit
    for _ in range(2):
        for number in range(20):
            sender.send(Message(body=number))
        show("20 messages sent: each costs one credit")
    # ... and grants the full amount again when half of it is used and the queue has confirmed the messages.
    while sender.link.credit > full // 2 + 1:
        sender.send(Message(body="more"))
    show("one credit above half")
    sender.send(Message(body="and one"))
    wait_for(lambda: sender.link.credit > full // 2 + 1)
    show("half is used: the broker grants again")

    # On a receiving link the client decides.
    receiver.link.flow(5)
    wait_for(lambda: receiver.fetcher.has_message == 5)
    show("client grants 5: five arrive and no more")
    take(5)
    show("client accepts them: settling gives no credit")
    receiver.link.flow(10)
    take(10)
    show("client grants 10 and accepts ten messages")
    receiver.link.flow(200)  # more than the queue has
    take(full // 2 - 15)
    show("client grants 200: the queue is empty now")
    receiver.link.drain(0)
    wait_for(lambda: receiver.link.credit == 0)
    show("client drains: the broker gives the credit back")
finally:
    connection.close()
