"""Run the broker inside a Trio program, for tests, tools and small systems. It needs no server.

    python examples/embedded_broker.py

`async with Broker(config)` starts the broker; `port=0` selects any free port. At the end of the block the
broker notifies its clients, closes their connections, and stops. No task of it runs after the block.
"""

import trio
from proton import Message
from proton.utils import BlockingConnection

from amqp10broker import Broker, Config


def client(port):
    """Send and receive as any client would. It blocks, so it runs in a thread."""
    connection = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{port}", timeout=10)
    try:
        sender = connection.create_sender("greetings")
        for name in ("Ada", "Grace", "Barbara"):
            sender.send(Message(body=f"hello {name}"))
        receiver = connection.create_receiver("greetings", credit=2)
        print("received:", receiver.receive(timeout=10).body)
        receiver.accept()
    finally:
        connection.close()


async def main():
    async with Broker(Config(port=0, admin_socket="")) as broker:
        host, port = broker.addresses[0]
        print(f"the broker listens on {host}, on a free port")
        await trio.to_thread.run_sync(client, port)
        for queue in broker.status()["queues"]:
            print(f"queue '{queue['name']}' has {queue['messages_ready']} messages left")
    print("the broker has stopped")


trio.run(main)
