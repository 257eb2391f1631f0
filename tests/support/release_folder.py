"""``python -m tests.support.release_folder WHEEL``: keep the data folder of a release.

The broker of the wheel writes a folder with each kind of queue, of messages and of what is declared, and is
stopped. ``tests/folders/VERSION.tar.xz`` has the folder, and `found.json`: what that broker had, which every
later version has to find (`tests/integration/test_release_folders.py`).
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

import pika

from tests.support.broker_process import REPOSITORY, BrokerProcess
from tests.support.installed_wheel import PROGRAM, Installed

FOLDERS: Final = REPOSITORY / "tests" / "folders"
DATA: Final = "data"
FOUND: Final = "found.json"
USER, PASSWORD, VHOST = "ann", "größe & stärke", "shop"

QUEUES: Final[dict[str, dict[str, Any]]] = {
    "classic": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "priorities": {"x-max-priority": 5},
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 3},
    "stream": {"x-queue-type": "stream", "x-max-length-bytes": 1_000_000_000},
    "dead": {},
    "paged": {},
}
DEFINITIONS: Final[dict[str, Any]] = {
    "vhosts": [{"name": "/"}, {"name": VHOST, "metadata": {"description": "of a release"}}],
    "users": [{"name": USER, "password": PASSWORD, "tags": ["administrator"]}],
    "permissions": [
        {"user": USER, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}
        for vhost in ("/", VHOST)
    ],
    "policies": [
        {
            "vhost": VHOST, "name": "limits", "pattern": "^classic$", "apply-to": "queues", "priority": 1,
            "definition": {"max-length": 1000},
        }
    ],
    "exchanges": [
        {"name": name, "vhost": VHOST, "type": kind, "durable": True, "arguments": {}}
        for name, kind in (("orders", "topic"), ("pairs", "headers"), ("copies", "fanout"))
    ],
    "queues": [
        {"name": name, "vhost": VHOST, "durable": True, "arguments": arguments}
        for name, arguments in QUEUES.items()
    ],
    "bindings": [
        {
            "source": "orders", "vhost": VHOST, "destination": "classic", "destination_type": "queue",
            "routing_key": "order.*.new", "arguments": {},
        }
    ],
}  # fmt: skip
_NAMED: Final[dict[str, tuple[str, ...]]] = {
    "vhosts": ("name",), "policies": ("vhost", "name"), "exchanges": ("vhost", "name"),
    "queues": ("vhost", "name"), "permissions": ("user", "vhost"),
    "bindings": ("vhost", "source", "destination", "routing_key"),
}  # fmt: skip


def _connect(broker: BrokerProcess) -> pika.BlockingConnection:
    login = pika.PlainCredentials(USER, PASSWORD)
    return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port, VHOST, login))


def fill(broker: BrokerProcess) -> None:
    """Publish to every queue, and leave traces of deliveries."""
    with _connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()

        def publish(queue: str, body: bytes, exchange: str = "", **properties: Any) -> None:
            kept = pika.BasicProperties(delivery_mode=2, **properties)
            channel.basic_publish(exchange, queue, body, kept)

        publish("classic", b"too old", expiration="0")  # at the head it expires at once
        for queue in QUEUES:
            for number in range(5):
                publish(queue, b"%s %d" % (queue.encode(), number), headers={"number": number, "n": [1, "x"]})
        publish("priorities", b"urgent", priority=5)
        publish("order.1.new", b"routed", "orders", content_type="text/plain", message_id="m")
        for queue in ("classic", "quorum"):  # the first one was delivered
            channel.basic_nack(channel.basic_get(queue)[0].delivery_tag, requeue=True)
        for number in range(20):
            publish("paged", bytes(50_000), headers={"number": number})


def found(broker: BrokerProcess) -> dict[str, Any]:
    """Return definitions by name and every message; all queues but the stream are empty afterwards."""
    exported = broker.ask("export-definitions")
    named = {
        kind: {"|".join(str(each[field]) for field in fields): each for each in exported[kind]}
        for kind, fields in _NAMED.items()
    }
    with _connect(broker) as connection:
        channel = connection.channel()
        messages: dict[str, list[Any]] = {}
        for queue, arguments in QUEUES.items():
            messages[queue] = got = []
            if arguments.get("x-queue-type") == "stream":
                channel.basic_qos(prefetch_count=10)
                for method, properties, body in channel.consume(
                    queue, arguments={"x-stream-offset": "first"}, inactivity_timeout=30
                ):
                    got.append(_plain(method, properties, body))
                    channel.basic_ack(method.delivery_tag)
                    if len(got) == 5:
                        break
                channel.cancel()
                continue
            while (one := channel.basic_get(queue, auto_ack=True))[0] is not None:
                got.append(_plain(*one))
    return {"definitions": named, "messages": messages}


def _plain(method: Any, properties: Any, body: bytes) -> list[Any]:
    fields = {name: value for name, value in vars(properties).items() if value is not None}
    return [len(body), body[:100].decode(), method.redelivered, json.loads(json.dumps(fields, default=str))]


def keep(wheel: Path) -> Path:
    """Write the archive of a wheel's version; an unpublished one is replaced."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        installed = Installed(folder / "venv", wheel)
        definitions = folder / "definitions.json"
        definitions.write_text(json.dumps(DEFINITIONS), encoding="utf-8")
        copy = folder / "copy"
        options = ("--data-dir", str(folder / DATA))
        first = (*options, "--definitions", str(definitions))
        with BrokerProcess(folder, *first, python=installed.python, program=PROGRAM) as broker:
            fill(broker)
        (folder / DATA).rename(copy)
        with tarfile.open(folder / "copy.tar", "w") as archive:
            archive.add(copy, DATA)
        copy.rename(folder / DATA)
        with BrokerProcess(folder, *options, python=installed.python, program=PROGRAM) as broker:
            (folder / FOUND).write_text(json.dumps(found(broker), indent=1, sort_keys=True), encoding="utf-8")
        version = installed("--version").split()[1]
        FOLDERS.mkdir(exist_ok=True)
        path = FOLDERS / f"{version}.tar.xz"
        with tarfile.open(folder / "copy.tar") as before, tarfile.open(path, "w:xz") as archive:
            for member in before:
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                archive.addfile(member, before.extractfile(member) if member.isfile() else None)
            archive.add(folder / FOUND, FOUND)
        return path


if __name__ == "__main__":
    keep(Path(sys.argv[1]).resolve())
