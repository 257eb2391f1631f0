"""Stop a consumer without losing messages, resume it, and change its credit while it runs.

    python examples/stop_and_resume.py [URL] [QUEUE]

The consumer *sets* the credit, and credit does not expire: to stop, the consumer sets it to 0; to resume,
it grants again. Messages that were already on the wire still arrive, so the stop is complete only when
the broker has answered (figure 2.46 of the AMQP 1.0 specification, part 2, section 2.6.7).
"""

import os
import sys

from proton import ConnectionException, Message
from proton.utils import BlockingConnection

MESSAGES = 60


def take(count):
    """Wait for `count` messages and accept them."""
    bodies = []
    for _ in range(count):
        connection.wait(lambda: receiver.fetcher.has_message, msg="waiting for a message")
        bodies.append(receiver.fetcher.pop().body)
        receiver.accept()
    taken.extend(bodies)
    return bodies


def stop():
    """Set the credit to 0, and return when the broker has stopped sending."""
    link = receiver.link
    # proton's flow() adds to the credit, so this sets it to 0; messages in proton's buffer have used theirs.
    link.flow(link.queued - link.credit)
    # The broker answers a drain at once if there is no credit. Its answer shows that it has read the flow.
    answers = flows.count
    link.drain(0)
    connection.wait(lambda: flows.count > answers, msg="waiting for the broker's answer")


class Flows:
    """A counter of the broker's flow frames."""

    count = 0


default_url = os.environ.get("AMQP10BROKER_URL") or "amqp://guest:guest@127.0.0.1:5672"
url = sys.argv[1] if len(sys.argv) > 1 else default_url
queue = sys.argv[2] if len(sys.argv) > 2 else "examples-stop"

try:
    connection = BlockingConnection(url, timeout=10)
except ConnectionException as error:
    sys.exit(f"{error}\nis the broker running? start it with: make run-broker")

flows = Flows()
taken = []
try:
    sender = connection.create_sender(queue)
    for number in range(MESSAGES):
        sender.send(Message(body=number))
    print(f"{MESSAGES} messages are in the queue")

    receiver = connection.create_receiver(queue, credit=0)
    receiver.fetcher.on_link_flow = lambda event: setattr(flows, "count", flows.count + 1)
    print("no credit yet:", receiver.fetcher.has_message, "messages arrived")

    receiver.link.flow(20)
    print("credit 20:", take(5), "...")
    stop()
    on_the_wire = receiver.fetcher.has_message
    print(f"stopped; {on_the_wire} more were already on the wire:", take(on_the_wire))
    print("while stopped:", receiver.fetcher.has_message, "messages arrived")

    receiver.link.flow(3)
    print("resumed with credit 3:", take(3))

    # A consumer may raise or lower its credit at any time; proton's flow() adds to the rest.
    receiver.link.flow(4)
    receiver.link.flow(6)
    print("credit 4, raised by 6:", take(10))
    receiver.link.flow(10)
    receiver.link.flow(-5)
    print("credit 10, lowered by 5:", take(5))

    receiver.link.flow(MESSAGES - len(taken))
    take(MESSAGES - len(taken))
    print("all messages arrived once and in order:", taken == list(range(MESSAGES)))
finally:
    connection.close()
