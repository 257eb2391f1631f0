"""The objects that fixtures pass to tests: an address for clients, and access to the broker.

Every call requests the broker's current state or an operation, which takes some hundred microseconds, and may
come from any thread and any event loop. All calls use operations of `operations.registry` and a client of
AMQP 1.0.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from amqp10broker.client import blocking
from amqp10broker.client.message import Header, Message
from amqp10broker.client.options import ClientOptions, made_up_container_id
from amqp10broker.client.url import exchange_address, queue_address
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError
from amqp10broker.testing.assertions import Assertions, report
from amqp10broker.testing.faults import VhostFaults
from amqp10broker.testing.in_process import InProcess
from amqp10broker.testing.process import Process
from amqp10broker.testing.server import OWN, Server

USER: Final = "guest"
PASSWORD: Final = "guest"
CLIENT_TIMEOUT_S: Final = 10.0
_TOPOLOGY: Final = ("policies", "queues", "exchanges", "bindings")


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue by its name, which need not exist; each attribute reads the broker's current state."""

    broker: AmqpBroker
    name: str

    @property
    def status(self) -> dict[str, Any]:
        """Return the values of ``amqp10broker queue list``."""
        found: list[dict[str, Any]] = self.broker.ask("list-queues", names=[self.name])
        if not found:
            raise BrokerError(
                f"virtual host '{self.broker.vhost}' has no queue '{self.name}'; it has "
                f"{', '.join(self.broker.queues) or 'none'}"
            )
        return found[0]

    @property
    def exists(self) -> bool:
        return self.name in self.broker.queues

    @property
    def ready(self) -> int:
        """Number of messages that wait for a consumer; in a stream, of all messages."""
        count: int = self.status["message_count"]
        return count

    @property
    def unsettled(self) -> int:
        """Number of messages delivered to consumers and not settled."""
        count: int = self.status["messages_unsettled"] or 0
        return count

    @property
    def messages(self) -> int:
        """Number of ready and unsettled messages."""
        status = self.status
        count: int = status["message_count"] + (status["messages_unsettled"] or 0)
        return count

    @property
    def consumers(self) -> int:
        """Number of consumers that may get messages."""
        count: int = self.status["consumer_count"]
        return count

    def purge(self) -> None:
        self.broker.ask("purge-queue", name=self.name)

    def delete(self) -> None:
        self.broker.ask("delete-queue", name=self.name)


class AmqpBroker(Assertions):
    """The broker of one test, limited to its virtual host."""

    user = USER
    password = PASSWORD

    def __init__(self, server: Server, vhost: str) -> None:
        self._server = server
        self.vhost = vhost
        self.faults = VhostFaults(self.ask)
        self._began_ns = time.time_ns()

    def begin(self) -> None:
        self._server.ask("add-vhost", {"name": self.vhost}, None)
        everything = dict.fromkeys(("configure", "write", "read"), ".*")
        self._server.ask("set-permissions", {"user": self.user, "vhost": self.vhost, **everything}, None)
        self.ask("follow-links")

    def end(self) -> None:
        if self._server.alive:
            self.ask("follow-links", on=False)
            self._server.ask("delete-vhost", {"name": self.vhost}, None)

    # --- address ----------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        """``amqp://user:password@host:port/vhost``, for clients that support a virtual host in the URL."""
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/{quote(self.vhost, safe='')}"

    @property
    def hostname(self) -> str:
        """``vhost:NAME``, the hostname in the open of AMQP 1.0 clients that selects the virtual host."""
        return f"vhost:{self.vhost}"

    # --- state ------------------------------------------------------------------------------------

    def ask(self, operation: str, **arguments: Any) -> Any:
        return self._server.ask(operation, arguments, self.vhost)

    def queue(self, name: str) -> Queue:
        """Return a queue by its name, which need not exist."""
        return Queue(self, name)

    @property
    def queues(self) -> list[str]:
        return [each["name"] for each in self.ask("list-queues", counts=False)]

    @property
    def connections(self) -> list[dict[str, Any]]:
        return [
            each
            for each in self.ask("connections")
            if each["vhost"] == self.vhost and not (each["container_id"] or "").startswith(OWN)
        ]

    @property
    def waiting(self) -> list[dict[str, Any]]:
        found = self.ask("waiting", idle=True)["waiting"]
        return [each for each in found if each["vhost"] == self.vhost]

    def report(self) -> str:
        return report(self, self._server, self._began_ns)

    # --- actions ----------------------------------------------------------------------------------

    def declare(
        self,
        queue: str,
        type: str | None = None,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Queue:
        """Declare a queue. `type`: ``classic``, ``quorum`` or ``stream``; None: the default. Raises
        `BrokerError` if it exists with other properties, or cannot be declared.
        """
        given = {**({} if type is None else {"x-queue-type": type}), **(arguments or {})}
        self.ask("declare-queue", name=queue, durable=durable, auto_delete=auto_delete, arguments=given)
        return self.queue(queue)

    def declare_exchange(self, exchange: str, type: str = "direct") -> None:
        self.ask("declare-exchange", name=exchange, type=type)

    def bind(self, exchange: str, queue: str, key: str = "") -> None:
        self.ask("bind", source=exchange, destination_queue=queue, binding_key=key)

    def load(self, path: str | Path, vhost: str | None = None) -> None:
        """Declare in the test's virtual host what a definitions file of RabbitMQ or this broker has of one
        virtual host: queues, exchanges, bindings and policies. `vhost`: which one; None: the only one. Raises
        `BrokerError` if the file has several, or something in it is refused.
        """
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        found = {name: document.get(name, []) for name in _TOPOLOGY}
        named = sorted({each.get("vhost", "/") for records in found.values() for each in records})
        if vhost is None and len(named) > 1:
            raise BrokerError(f"{path} has virtual hosts {', '.join(named)}: choose with vhost='{named[0]}'")
        if vhost is not None and vhost not in named:
            raise BrokerError(f"{path} declares nothing in virtual host '{vhost}'; it has {', '.join(named)}")
        moved = {
            name: [
                {**each, "vhost": self.vhost} for each in records if vhost in (None, each.get("vhost", "/"))
            ]
            for name, records in found.items()
        }
        skipped = self.ask("import-definitions", document=moved)["skipped"]
        if skipped:
            raise BrokerError(f"{path} cannot be loaded: {'; '.join(skipped)}")

    def client(self) -> blocking.Client:
        """Return a client of AMQP 1.0 in this virtual host; a context manager."""
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
        """Publish messages and wait until they are accepted. `messages`: whole ones, or bodies of durable
        ones, text in UTF-8. Raises `BrokerError` if one was not accepted, for example because an exchange has
        no queue for it.
        """
        address = queue_address(queue) if exchange is None else exchange_address(exchange, key)
        with self._connect(f"{OWN}-{made_up_container_id()}") as client:
            sender = client.sender(address)
            for message in messages:
                sender.send(_message(message))

    def get(self, queue: str, *, within_s: float = 0.0) -> Message | None:
        """Receive a message and accept it. `within_s`: how long to wait for one; 0 takes only what is there.
        Returns the message, with its body as bytes or as the publisher's value; None if there was none.
        """
        found = self.get_many(queue, 1, within_s=within_s)
        return found[0] if found else None

    def get_many(self, queue: str, most: int, *, within_s: float = 0.0) -> Sequence[Message]:
        """Receive up to `most` messages and accept them; arguments as for `get`."""
        with self._connect(f"{OWN}-{made_up_container_id()}") as client:
            receiver = client.receiver(queue_address(queue), credit=0)
            deliveries = receiver.fetch(most, timeout_s=within_s)
            for delivery in deliveries:
                receiver.accept(delivery)
            client.flush()
            return [delivery.message() for delivery in deliveries]


class WholeBroker(AmqpBroker):
    """A broker that one test or block has for itself, with the virtual host ``/``."""

    def __init__(self, server: Server) -> None:
        super().__init__(server, "/")

    def begin(self) -> None:
        self.ask("follow-links")


class RunningBroker(WholeBroker):
    """The broker of `amqp10broker.testing.running`."""

    def __init__(self, server: InProcess) -> None:
        super().__init__(server)
        self.http_url = server.http_url


class AmqpBrokerProcess(WholeBroker):
    """A broker for one test, in a process with a data folder: it can be stopped, killed and started again.

    Its port stays the same.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> list[str]:
        """The last lines of the log, as JSON."""
        return list(self._process.log)

    def stop(self) -> None:
        """Stop the broker in order, with notice to clients."""
        self._process.end()

    def kill(self) -> None:
        """Kill the broker as ``kill -9`` does."""
        self._process.kill()

    def start(self) -> None:
        """Start the broker again after `stop` or `kill`, with its durable state."""
        self._process.start()
        self.begin()

    def restart(self) -> None:
        self.stop()
        self.start()


def _message(given: bytes | str | Message) -> bytes:
    if not isinstance(given, Message):
        # It survives a restart, if the queue does.
        given = Message(given.encode() if isinstance(given, str) else given, header=Header(durable=True))
    return given.encode()
