"""Run the broker inside a Trio program: for tests, tools and small systems. No server to start.

    python examples/embedded_broker.py

`async with Broker(config)` starts it, on any free port here, and stops it in order: clients are told,
connections are closed, and nothing runs on behind the block.
"""

import trio
from proton import Message
from proton.utils import BlockingConnection

from amqp10broker import Broker, Config


def client(port):
    """An ordinary client. It blocks, so it gets a thread; it could as well be another program."""
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
        print(f"a broker listens on {host}, on any free port")
        await trio.to_thread.run_sync(client, port)
        for queue in broker.status()["queues"]:
            print(f"queue '{queue['name']}' has {queue['messages_ready']} messages left")
    print("and now it is gone")


trio.run(main)
