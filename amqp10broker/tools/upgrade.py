"""Finds in recorded frames what another version of RabbitMQ refuses or handles differently."""

from __future__ import annotations

from collections.abc import Collection

from amqp10broker.emulation import ADDRESS_V1, GLOBAL_QOS, MASTER_LOCATOR, TRANSIENT, Upgrade
from amqp10broker.observe.frames.records import Ended, Listening, Record, RecordedFrame
from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.content import HEADER
from amqp10broker.protocols.amqp091.properties import decode_properties
from amqp10broker.protocols.amqp10.performatives import Attach, Open

_PROPERTIES_AT = HEADER.size + 12
"""The offset in a content header frame, after class, weight and size."""
_NORMAL = 4


class _Client:
    """What frames have shown of a client. `of`: for `Upgrade.use`. `to`: by channel, the quorum queue of the
    message that follows, None if it goes elsewhere. `quorum`: by channel, a quorum queue that it consumes.
    """

    def __init__(self, peer: str) -> None:
        self.of = "client", peer, ""
        self.to: dict[int, str | None] = {}
        self.quorum: dict[int, str] = {}


class RecordedUses:
    """Processes the frames of any number of connections, and reports uses to an `Upgrade`."""

    def __init__(self, upgrade: Upgrade, quorum_queues: Collection[str] = ()) -> None:
        """Create it. `quorum_queues`: known queues besides those that the frames declare."""
        self._upgrade = upgrade
        self._quorum = set(quorum_queues)
        self._clients: dict[int, _Client] = {}

    def take(self, record: Record) -> None:
        if isinstance(record, Listening):
            self._clients[record.connection] = _Client(record.peer)
        elif isinstance(record, Ended):
            self._clients.pop(record.connection, None)
        elif isinstance(record, RecordedFrame) and record.direction == "in":
            client = self._clients.get(record.connection)
            if client is not None:
                self._frame(client, record)

    def _frame(self, client: _Client, record: RecordedFrame) -> None:
        frame = record.frame
        use, at = self._upgrade.use, frame.channel
        match frame.body:
            case Open(container_id=name) if name:
                client.of = "client", f"{name} at {client.of[1]}", ""
            case methods.ConnectionStartOk(client_properties=given) if "connection_name" in given:
                client.of = "client", f"{given['connection_name']} at {client.of[1]}", ""
            case methods.ConnectionOpen(virtual_host=vhost):
                client.of = *client.of[:2], vhost
            case methods.BasicQos(global_=True, prefetch_count=count) if count:
                use(GLOBAL_QOS, client.of, f"basic.qos with global=true on channel {at}: {count} messages")
            case methods.QueueDeclare(passive=False) as declare:
                self._declared(client, declare)
            case Attach() as attach:
                for end in (attach.source, attach.target):
                    address = getattr(end, "address", None)
                    if isinstance(address, str) and address and not address.startswith("/"):
                        use(ADDRESS_V1, client.of, f"link '{attach.name}' has the address '{address}'")
            case methods.BasicConsume(queue=queue) | methods.BasicGet(queue=queue) if queue in self._quorum:
                client.quorum[at] = queue
            case methods.BasicNack(requeue=True) | methods.BasicRecover(requeue=True):
                if at in client.quorum:
                    what = f"basic.nack or recover returns messages of quorum queue '{client.quorum[at]}'"
                    use("limit_counts_failed", client.of, what)
            case methods.BasicPublish(exchange="", routing_key=key):
                client.to[at] = key if key in self._quorum else None
            case None if client.to.get(at) and frame.data[:1] == bytes((methods.FRAME_HEADER,)):
                priority = decode_properties(frame.data[_PROPERTIES_AT:-1]).priority
                if priority not in (None, _NORMAL):
                    what = f"messages of priority {priority} to quorum queue '{client.to[at]}'"
                    use("priority_levels", client.of, what)

    def _declared(self, client: _Client, declare: methods.QueueDeclare) -> None:
        arguments = declare.arguments or {}
        if arguments.get("x-queue-type") == "quorum":
            self._quorum.add(declare.queue)
        if not declare.durable and not declare.exclusive:
            self._upgrade.use(
                TRANSIENT, client.of, f"it declares queue '{declare.queue}' neither durable nor exclusive"
            )
        if "x-queue-master-locator" in arguments:
            what = f"it declares queue '{declare.queue}' with x-queue-master-locator"
            self._upgrade.use(MASTER_LOCATOR, client.of, what)
