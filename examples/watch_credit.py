"""Watch credit move, step by step, on both kinds of link.

    python examples/watch_credit.py [URL] [QUEUE] [PAUSE]

Start `amqp10broker status --watch` in another window to see the broker's side at the same time; it
also says why a link waits. PAUSE is the time between two steps in seconds (default 1).
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
    """Print one line about both links, then let the events of a moment be handled."""
    waiting = receiver.fetcher.has_message
    print(
        f"{what:<46} sender: credit {sender.link.credit:>3}   "
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
    """Wait for so many messages and accept them."""
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
    show("attached: the broker grants, we have not yet")
    full = sender.link.credit
    for _ in range(2):
        for number in range(20):
            sender.send(Message(body=number))
        show("20 messages sent: each costs one credit")
    # ... and sets it to that again when half of it is used up and the queue has kept pace.
    while sender.link.credit > full // 2 + 1:
        sender.send(Message(body="more"))
    show("one above half of it")
    sender.send(Message(body="and one"))
    wait_for(lambda: sender.link.credit > full // 2 + 1)
    show("half is used: topped up")

    # As a consumer we decide.
    receiver.link.flow(5)
    wait_for(lambda: receiver.fetcher.has_message == 5)
    show("we grant 5: five come, not one more")
    take(5)
    show("we accept them: settling gives no credit")
    receiver.link.flow(10)
    take(10)
    show("we grant 10 and take them")
    receiver.link.flow(200)  # more than there is
    take(full // 2 - 15)
    show("we grant 200: the queue is empty now")
    receiver.link.drain(0)
    wait_for(lambda: receiver.link.credit == 0)
    show("we drain: the broker hands the credit back")
finally:
    connection.close()
