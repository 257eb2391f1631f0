"""A query of a queue, without Spark, that is killed at every call which something else sees.

    python -m tests.support.spark_queue_lives SETTINGS.json

Each life is a fork that does what Spark does with the reader: replays the batch that it had planned and not
done, then plans, reads and notes further ones, until the queue is empty, or until it kills itself before its
n-th call to send, sync, rename or remove. The settings: ``options`` of the source, ``folder`` for notes,
``lives``, and ``messages`` published before each life. Prints the number of lives that were killed.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset  # noqa: F401  (with all of pyarrow, before the forks: it takes a second)

from amqp10broker.client.blocking import connect
from amqp10broker.client.message import Message
from amqp10broker.protocols.amqp10.performatives import Header, Properties
from amqp10broker.spark.options import QueueOptions, parse_source
from amqp10broker.spark.queue.source import QueueStreamReader
from tests.support.spark_rows import body, message_id

REPLAYED_OTHERWISE: Final = 3
CALLS_MAX: Final = 45
"""Three batches and more; a life that makes fewer calls ends in order."""


class Notes:
    """What Spark would have in its checkpoint, and a sink that overwrites by the number of the batch."""

    def __init__(self, folder: Path) -> None:
        self._offsets = folder / "offsets"
        self._sink = folder / "sink"
        self._sink.mkdir(exist_ok=True)

    def offsets(self) -> list[Any]:
        """Where each batch ends; the first entry is where the first begins."""
        return json.loads(self._offsets.read_text()) if self._offsets.exists() else []

    def plan(self, offset: Any) -> None:
        """Note where the next batch ends."""
        put(self._offsets, [*self.offsets(), offset])

    def done(self, batch: int) -> bool:
        """Whether the sink has a batch."""
        return (self._sink / str(batch)).exists()

    def write(self, batch: int, rows: list[Any]) -> None:
        """Put a batch into the sink. One that was there must have been the same."""
        started = self._sink / f"{batch}.started"
        if started.exists() and json.loads(started.read_text()) != rows:
            os._exit(REPLAYED_OTHERWISE)
        put(started, rows)


def put(path: Path, value: Any) -> None:
    """Whole or not at all, by calls that do not count."""
    temporary = path.with_name("new")
    temporary.write_text(json.dumps(value))
    temporary.rename(path)


def life(options: QueueOptions, notes: Notes, tick: Callable[[], None]) -> None:
    """Read until the queue is empty."""
    reader = QueueStreamReader(options)
    offsets = notes.offsets()
    if not offsets:
        notes.plan(reader.initialOffset())
    while True:
        offsets = notes.offsets()
        batch = len(offsets) - 1
        if batch and not notes.done(batch):
            run(reader, notes, offsets[-2], offsets[-1], batch, tick)
        end = reader.latestOffset(offsets[-1], reader.getDefaultReadLimit())
        if end == offsets[-1]:
            break
        notes.plan(end)
        if batch:
            reader.commit(offsets[-1])
    reader.stop()


def run(
    reader: QueueStreamReader, notes: Notes, start: Any, end: Any, batch: int, tick: Callable[[], None]
) -> None:
    """Read a batch with pickled copies, as tasks do; it may end before the batch is noted as done."""
    copy = pickle.loads(pickle.dumps(reader))
    rows = [
        [row["messageId"], row["body"].decode()]
        for part in reader.partitions(start, end)
        for found in copy.read(pickle.loads(pickle.dumps(part)))
        for row in found.select(["messageId", "body"]).to_pylist()
    ]
    notes.write(batch, rows)
    tick()
    put(notes._sink / str(batch), rows)


def count_calls(die_at: int) -> Callable[[], None]:
    """Kill this process before its n-th call that others see; never with 0."""
    calls = 0

    def tick() -> None:
        nonlocal calls
        calls += 1
        if calls == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_it(*arguments: Any, **options: Any) -> Any:
            tick()
            return call(*arguments, **options)

        return call_it

    for name in ("fsync", "fdatasync", "replace", "rename", "unlink", "remove"):
        setattr(os, name, counted(getattr(os, name)))
    socket.socket.send = counted(socket.socket.send)  # type: ignore[method-assign]
    return tick


def publish(options: QueueOptions, first: int, count: int) -> None:
    """Messages N = first, ..., each accepted."""
    to = options.connection
    with connect(to.host, to.port, user=to.username, password=to.password) as client:
        messages = [
            Message(body(number), Properties(message_id=message_id(number)), header=Header(durable=True))
            for number in range(first, first + count)
        ]
        client.sender(f"/queues/{options.queue}").send_many(messages)


def main() -> int:
    """All lives, the last of which is not killed."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    options = parse_source(settings["options"], streaming=True)
    assert isinstance(options, QueueOptions)
    notes = Notes(Path(settings["folder"]))
    killed = 0
    for number in range(settings["lives"] + 1):
        die_at = 0 if number == settings["lives"] else 1 + number % CALLS_MAX
        publish(options, number * settings["messages"], settings["messages"])
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                life(options, notes, count_calls(die_at))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        ended = os.waitstatus_to_exitcode(status)
        if ended not in (0, -signal.SIGKILL):
            return ended
        killed += ended != 0
    sys.stdout.write(f"{killed}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
