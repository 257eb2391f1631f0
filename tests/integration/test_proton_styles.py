"""proton as its users write it: event handlers, with their own quirks; examples have its other styles."""

from __future__ import annotations

import threading
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container

from tests.support.broker_process import BrokerProcess, StartBroker
from tests.support.cluster_process import free_ports


def _url(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@{broker.host}:{broker.port}"


# --- MessagingHandler -----------------------------------------------------------------------------


def test_transactions(broker: BrokerProcess, queue: str) -> None:
    class Transacted(MessagingHandler, TransactionHandler):
        def __init__(self) -> None:
            super().__init__(auto_accept=False)
            self.ended: list[str] = []
            self.got: list[object] = []

        def on_start(self, event: Any) -> None:
            self.container = event.container
            self.connection = event.container.connect(_url(broker), reconnect=False)
            self.sender = event.container.create_sender(self.connection, queue)

        def on_connection_opened(self, event: Any) -> None:
            self.container.declare_transaction(self.connection, handler=self)

        def on_transaction_declared(self, event: Any) -> None:
            number = len(self.ended)
            for part in range(2):
                event.transaction.send(self.sender, Message(body=[number, part], durable=True))
            if number == 0:
                event.transaction.abort()
            else:
                event.transaction.commit()

        def on_transaction_aborted(self, event: Any) -> None:
            self.ended.append("aborted")
            self.container.declare_transaction(self.connection, handler=self)

        def on_transaction_committed(self, event: Any) -> None:
            self.ended.append("committed")
            self.container.create_receiver(self.connection, queue)

        def on_transaction_commit_failed(self, event: Any) -> None:
            self.ended.append("failed")
            self.connection.close()

        def on_message(self, event: Any) -> None:
            self.got.append(event.message.body)
            self.accept(event.delivery)
            if len(self.got) == 2:
                self.connection.close()

    handler = Transacted()
    Container(handler).run()
    assert handler.ended == ["aborted", "committed"]
    assert handler.got == [[1, 0], [1, 1]]


class _Receiving(MessagingHandler):
    def __init__(self, broker: BrokerProcess, queue: str) -> None:
        super().__init__()
        self.broker = broker
        self.queue = queue
        self.opened = threading.Event()
        self.ends: list[str] = []
        self.container_id = ""

    def on_start(self, event: Any) -> None:
        self.container_id = event.container.container_id
        connection = event.container.connect(_url(self.broker), reconnect=False)
        event.container.create_receiver(connection, self.queue)

    def on_link_opened(self, event: Any) -> None:
        self.opened.set()

    def on_connection_error(self, event: Any) -> None:
        self.ends.append(event.connection.remote_condition.name)

    def on_disconnected(self, event: Any) -> None:
        self.ends.append("disconnected")


def test_event_driven_client_ends_when_an_operator_closes_its_connection(
    broker: BrokerProcess, queue: str
) -> None:
    handler = _Receiving(broker, queue)
    thread = threading.Thread(target=Container(handler).run, daemon=True)
    thread.start()
    assert handler.opened.wait(20)
    connection = broker.connection(handler.container_id)
    broker.ask("close-connection", id=connection["id"], reason="tidy up")
    thread.join(20)
    assert not thread.is_alive()
    assert handler.ends == ["amqp:internal-error"]


def test_reconnecting_client_goes_on_after_a_restart(start_broker: StartBroker, queue: str) -> None:
    port = free_ports(1)
    first = start_broker("--port", str(port))
    brokers = [first]

    class Persistent(MessagingHandler):
        opened = 0

        def on_start(self, event: Any) -> None:
            url = f"amqp://guest:guest@127.0.0.1:{port}"
            self.connection = event.container.connect(url, reconnect=[0, 0.1])
            event.container.create_sender(self.connection, queue)

        def on_link_opened(self, event: Any) -> None:
            self.opened += 1
            event.sender.send(Message(body=self.opened))

        def on_accepted(self, event: Any) -> None:
            if self.opened == 1:
                first.kill()
                brokers.append(start_broker("--port", str(port)))
            else:
                self.connection.close()

    handler = Persistent()
    Container(handler).run()
    assert handler.opened == 2
    brokers[1].wait_for_counts(queue, ready=1)
