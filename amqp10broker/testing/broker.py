"""What a fixture gives a test: an address for its clients, and eyes and hands in the broker.

Every call asks the broker and waits for its answer, some hundred microseconds, and may come from any thread
and any event loop. All is done by operations of `management.table` and by a client of AMQP 1.0, as anybody
could.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from amqp10broker.client import blocking
from amqp10broker.client.message import Header, Message
from amqp10broker.client.options import ClientOptions, made_up_container_id
from amqp10broker.client.url import exchange_address, queue_address
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError
from amqp10broker.testing.assertions import Assertions
from amqp10broker.testing.faults import Faults
from amqp10broker.testing.frames import OWN
from amqp10broker.testing.process import Process
from amqp10broker.testing.report import report
from amqp10broker.testing.server import Server

USER: Final = "guest"
PASSWORD: Final = "guest"
CLIENT_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue by its name; each attribute asks the broker.

    Attributes:
        name: of the queue, which need not be there yet.
    """

    broker: AmqpBroker
    name: str

    @property
    def status(self) -> dict[str, Any]:
        """What ``amqp10broker list-queues`` knows of it.

        Raises:
            BrokerError: there is no such queue.
        """
        found: list[dict[str, Any]] = self.broker.ask("list-queues", names=[self.name])
        if not found:
            raise BrokerError(
                f"virtual host '{self.broker.vhost}' has no queue '{self.name}'; it has "
                f"{', '.join(self.broker.queues) or 'none'}"
            )
        return found[0]

    @property
    def exists(self) -> bool:
        """Whether it is declared."""
        return self.name in self.broker.queues

    @property
    def ready(self) -> int:
        """Messages that wait for a consumer; of a stream, those that it keeps."""
        count: int = self.status["message_count"]
        return count

    @property
    def unsettled(self) -> int:
        """Messages that consumers hold."""
        count: int = self.status["messages_unsettled"] or 0
        return count

    @property
    def messages(self) -> int:
        """All of them: ready and unsettled."""
        status = self.status
        count: int = status["message_count"] + (status["messages_unsettled"] or 0)
        return count

    @property
    def consumers(self) -> int:
        """How many may get messages."""
        count: int = self.status["consumer_count"]
        return count

    def purge(self) -> None:
        """Drop its ready messages."""
        self.broker.ask("purge-queue", name=self.name)

    def delete(self) -> None:
        """Delete it with its messages."""
        self.broker.ask("delete-queue", name=self.name)


class AmqpBroker(Assertions):
    """The broker of one test, as far as its virtual host goes.

    Attributes:
        vhost: the virtual host, the test's own.
        user: who may do everything there.
        password: of that user.
        faults: that the broker commits when the test asks for them.
    """

    user = USER
    password = PASSWORD

    def __init__(self, server: Server, vhost: str) -> None:
        self._server = server
        self.vhost = vhost
        self.faults = Faults(self.ask)
        self._began_ns = time.time_ns()

    def begin(self) -> None:
        """Make the virtual host, and watch its links."""
        self._server.ask("add-vhost", {"name": self.vhost}, None)
        everything = dict.fromkeys(("configure", "write", "read"), ".*")
        self._server.ask("set-permissions", {"user": self.user, "vhost": self.vhost, **everything}, None)
        self.ask("follow-links")

    def end(self) -> None:
        """Delete the virtual host; clients that are there are closed."""
        if self._server.alive:
            self.ask("follow-links", on=False)
            self._server.ask("delete-vhost", {"name": self.vhost}, None)

    # --- where it is ------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """Where it listens."""
        return self._server.host

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    @property
    def url(self) -> str:
        """``amqp://user:password@host:port/vhost``, for clients whose URL says the virtual host."""
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/{quote(self.vhost, safe='')}"

    @property
    def hostname(self) -> str:
        """``vhost:NAME``: what clients of AMQP 1.0 say in their open to come into the virtual host."""
        return f"vhost:{self.vhost}"

    # --- what is there ----------------------------------------------------------------------------

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Run an operation of the broker, in this virtual host: ``ask("bind", source=..., ...)``.

        Args:
            operation: one of those that ``amqp10broker --help`` has as commands.
            arguments: by the names of its table (`management.table`).

        Returns:
            The result as plain values.

        Raises:
            BrokerError: it was refused; says why.
        """
        return self._server.ask(operation, arguments, self.vhost)

    def queue(self, name: str) -> Queue:
        """A queue by its name."""
        return Queue(self, name)

    @property
    def queues(self) -> list[str]:
        """Names of all queues."""
        return [each["name"] for each in self.ask("list-queues", counts=False)]

    @property
    def connections(self) -> list[dict[str, Any]]:
        """Clients' connections with their sessions, links, channels and consumers, as `status` shows them."""
        return [
            each
            for each in self.ask("connections")
            if each["vhost"] == self.vhost and not (each["container_id"] or "").startswith(OWN)
        ]

    @property
    def waiting(self) -> list[dict[str, Any]]:
        """Links, channels and consumers that wait, the longest first: why, for how long, and what helps."""
        found = self.ask("waiting", idle=True)["waiting"]
        return [each for each in found if each["vhost"] == self.vhost]

    def report(self) -> str:
        """What a failed test's report says of the broker."""
        return report(self, self._server, self._began_ns)

    # --- what can be done -------------------------------------------------------------------------

    def declare(
        self,
        queue: str,
        type: str | None = None,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Queue:
        """Declare a queue.

        Args:
            queue: its name.
            type: ``classic``, ``quorum`` or ``stream``; None: the default.
            durable: it survives a restart of a broker with a data folder.
            auto_delete: it goes with its last consumer.
            arguments: x-arguments.

        Raises:
            BrokerError: it is there and another one, or cannot be.
        """
        given = {**({} if type is None else {"x-queue-type": type}), **(arguments or {})}
        self.ask("declare-queue", name=queue, durable=durable, auto_delete=auto_delete, arguments=given)
        return self.queue(queue)

    def declare_exchange(self, exchange: str, type: str = "direct") -> None:
        """Declare a durable exchange."""
        self.ask("declare-exchange", name=exchange, type=type)

    def bind(self, exchange: str, queue: str, key: str = "") -> None:
        """Bind a queue to an exchange."""
        self.ask("bind", source=exchange, destination_queue=queue, binding_key=key)

    def client(self) -> blocking.Client:
        """A client of AMQP 1.0 in this virtual host; a context manager."""
        return self._connect(made_up_container_id())

    def _connect(self, container_id: str) -> blocking.Client:
        options = ClientOptions(container_id=container_id, hostname=self.hostname)
        return blocking.connect(
            self.host,
            self.port,
            user=self.user,
            password=self.password,
            options=options,
            timeout_s=CLIENT_TIMEOUT_S,
        )

    def publish(
        self, queue: str, *messages: bytes | str | Message, exchange: str | None = None, key: str = ""
    ) -> None:
        """Publish messages and wait until they are accepted.

        Args:
            queue: to which; empty if there is an exchange.
            messages: whole ones, or bodies, text in UTF-8, of durable ones.
            exchange: instead of a queue.
            key: the routing key for it.

        Raises:
            BrokerError: one was not accepted, as when an exchange has no queue for it.
        """
        address = queue_address(queue) if exchange is None else exchange_address(exchange, key)
        with self._connect(f"{OWN}-{made_up_container_id()}") as client:
            sender = client.sender(address)
            for message in messages:
                sender.send(_message(message))

    def get(self, queue: str, *, within_s: float = 0.0) -> Message | None:
        """Take a message and accept it.

        Args:
            queue: from which.
            within_s: how long to wait for one; 0 takes what is there.

        Returns:
            The message, its body bytes or what the publisher has put there; None: there was none.
        """
        found = self.get_many(queue, 1, within_s=within_s)
        return found[0] if found else None

    def get_many(self, queue: str, most: int, *, within_s: float = 0.0) -> Sequence[Message]:
        """Take up to so many messages and accept them; see `get`."""
        with self._connect(f"{OWN}-{made_up_container_id()}") as client:
            receiver = client.receiver(queue_address(queue), credit=0)
            deliveries = receiver.fetch(most, timeout_s=within_s)
            for delivery in deliveries:
                receiver.accept(delivery)
            client.flush()
            return [delivery.message() for delivery in deliveries]


class AmqpBrokerProcess(AmqpBroker):
    """A broker of a test's own, in a process with a data folder: it can be stopped, killed, started again.

    Its port stays the same.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(process, "/")
        self._process = process

    def begin(self) -> None:
        """Watch its links."""
        self.ask("follow-links")

    @property
    def url(self) -> str:
        """``amqp://user:password@host:port/``: its virtual host is the default one."""
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/%2F"

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def log(self) -> list[str]:
        """The last lines of its log, as JSON."""
        return list(self._process.log)

    def stop(self) -> None:
        """Stop it in order; clients are told."""
        self._process.end()

    def kill(self) -> None:
        """Kill it, as ``kill -9`` does."""
        self._process.kill()

    def start(self) -> None:
        """Start it again, after `stop` or `kill`: with what is durable."""
        self._process.start()
        self.begin()

    def restart(self) -> None:
        """Stop it in order and start it again."""
        self.stop()
        self.start()


def _message(given: bytes | str | Message) -> bytes:
    if not isinstance(given, Message):
        # It survives a restart, if the queue does.
        given = Message(given.encode() if isinstance(given, str) else given, header=Header(durable=True))
    return given.encode()
